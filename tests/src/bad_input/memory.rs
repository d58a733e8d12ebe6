//! Readers of input from the control connection and from shared memory.

use crate::speech::{Answer, Refusal, Request, ToClient, ToServer, VERSION};
use std::fmt::Debug;
use std::sync::Arc;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_rpc::fuzzing::{self, SessionObjects};
use upcall_rpc::{Decoder, Get, Layout, Limits, Malformed, Put};
use upcall_shm::astack::AStackPlan;
use upcall_shm::channel::{self, Channel};
use upcall_shm::region::Region;
use upcall_shm::ring::RingReceiver;
use upcall_shm::slot::ValueLocation;

/// Unpacks control messages as both sides do.
pub(super) fn control(bytes: &[u8]) {
    for text in fuzzing::control(bytes).into_iter().flatten() {
        // The unpacked message is no larger than the input, apart from the width of numbers and the
        // names of fields.
        assert!(
            text.len() <= 200 * (bytes.len() + 8),
            "{} bytes became {}",
            bytes.len(),
            text.len()
        );
    }
}

pub(super) fn control_samples() -> Vec<Vec<u8>> {
    let requests = [
        Request::Open { version: VERSION },
        Request::Bind {
            id: 3,
            name: "trial".into(),
            interface: "upcall:tests/trial@1.0.0".into(),
            procedures: vec![("add".into(), u64::MAX, "add: func(a: u32, b: u32) -> u32".into())],
            stacks: 1 << 20,
        },
        Request::Stacks { id: 3 },
        Request::Unbind { id: 2 },
        Request::OpenLane { number: 33, vp: Some(1) },
        Request::Segment { number: 7, len: 1 << 30 },
        Request::DropSegment { number: 7 },
        Request::List,
        Request::Tallies,
    ];
    let answers = [
        Answer::Opened { home: 3 },
        Answer::Bound { procedures: vec![(0, 5, 0), (7, 64, 1 << 20), (300, 1, 200)] },
        Answer::Mapped,
        Answer::Exports,
        Answer::Refused(Refusal::Mismatch(
            vec![("add".into(), "a".into(), Some("b".into())), ("c".into(), "d".into(), None)],
            7,
        )),
        Answer::Refused(Refusal::Resource { what: "mapping".into(), code: -24 }),
    ];
    let exports = vec![upcall_rpc::Exported {
        name: "trial".into(),
        interface: "upcall:tests/trial@1.0.0".into(),
        source: "package a:b;".into(),
        limits: String::new(),
        clients: 1,
        procedures: vec![("add".into(), "add: func(a: u32, b: u32) -> u32".into())],
    }];
    let packed =
        |message: Result<Vec<u8>, postcard::Error>| message.expect("a message can be packed");
    let requests = requests
        .into_iter()
        .map(|request| packed(postcard::to_stdvec(&ToServer { serial: 300, request })));
    let answers = answers
        .into_iter()
        .map(|answer| packed(postcard::to_stdvec(&ToClient { serial: 300, answer })));
    requests.chain(answers).chain([packed(postcard::to_stdvec(&exports))]).collect()
}

/// Takes a number from the front of `bytes`.
fn word(bytes: &mut &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    *bytes = &bytes[len..];
    u64::from_le_bytes(word)
}

thread_local! {
    static CHANNEL: (Arc<Region>, Channel) = {
        let region = region(channel::BYTES);
        (region.clone(), Channel::create(region).expect("a channel"))
    };
}

fn region(len: usize) -> Arc<Region> {
    let file = MemoryFile::create("upcall-bad-input", len).expect("memory");
    Region::new(Mapping::shared(&file).expect("a mapping")).expect("writable")
}

/// Maximum length of the memory for which a plan is tried, in bytes.
const LONGEST: usize = 1 << 20;

/// Takes a slot with arbitrary words as a server does, and runs its guards against A-stacks of an
/// arbitrary plan and a segment of arbitrary length.
pub(super) fn request(mut bytes: &[u8]) {
    // The control word carries the first slot's lap, so that the slot is taken. The peer chooses
    // the rest.
    let control = word(&mut bytes) & !(0x7fff << 48) | 1 << 48;
    let words: [u64; 7] = std::array::from_fn(|_| word(&mut bytes));
    let image = CHANNEL.with(|(region, channel)| {
        const RINGS: usize = 8192;
        let room = region.room(RINGS, 64).expect("a slot");
        for (at, &word) in [control].iter().chain(&words).enumerate() {
            room.put_u64(at * 8, word).expect("a word");
        }
        RingReceiver::new(channel.lane(0).expect("a lane").requests)
            .take()
            .expect("a request of this lap")
    });
    let segment = word(&mut bytes) as usize % LONGEST;
    // The input stands for a list of descriptors.
    let plan = AStackPlan::for_procedures(bytes.chunks(6).take(70).map(|told| {
        let mut told = told;
        let word = word(&mut told);
        (word as u32, (word >> 32) as u16)
    }));
    for number in 0..=u16::MAX {
        let Some((at, len)) = plan.place(number) else { break };
        assert!(
            at.checked_add(len).is_some_and(|end| end <= plan.bytes()),
            "A-stack {number} of {plan:?}"
        );
    }
    // The memory is as long as the plan requires. A longer one than `LONGEST` would take too much
    // time and is left out.
    let astacks = (1..=LONGEST).contains(&plan.bytes()).then(|| region(plan.bytes()));
    let segment = (segment > 0).then(|| region(segment));
    if let Some((args, astack)) =
        fuzzing::guards(&image, &plan, astacks.as_ref(), segment.as_deref())
    {
        let most = match image.values_in().expect("a place") {
            ValueLocation::Inline => upcall_shm::slot::INLINE,
            ValueLocation::AStack => astack.expect("an A-stack"),
            ValueLocation::Segment => segment.as_ref().expect("a segment").len(),
        };
        assert!(args.len() <= most, "{} bytes of {most}", args.len());
        // Every byte of the arguments is readable.
        let mut copy = Vec::new();
        args.append_to(&mut copy);
        assert_eq!(copy.len(), args.len());
    }
    let _ = (
        image.deadline().and_then(upcall_os::clock::moment),
        image.donated(),
        image.asks_to_stay(),
    );
}

pub(super) fn request_samples() -> Vec<Vec<u8>> {
    let words =
        |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let class =
        |size: u32, count: u16| [&size.to_le_bytes()[..], &count.to_le_bytes()[..]].concat();
    let with = |slot: [u64; 9], classes: &[Vec<u8>]| [words(&slot), classes.concat()].concat();
    let values = 1 << 63;
    vec![
        with([u16::MAX.into(), 0, 0, 0, 0, 0, 0, 0, 0], &[]),
        with([values | 0xffff, 48, 1, 2, 3, 4, 5, 6, 0], &[class(64, 5), class(1024, 5)]),
        with([values | 3, 1 << 48 | 64, 1, 2, 3, 4, 5, 6, 0], &[class(64, 5), class(1024, 64)]),
        with(
            [values | 0xffff, 2 << 48 | 1 << 32 | 8, 4096, 2, 3, 4, 5, 6, 4096],
            &[class(1 << 16, 1)],
        ),
        with([values | 0xffff, 7 << 61 | 40, 1, 2, 3, 4, 5, u64::MAX, 4096], &[]),
    ]
}

#[allow(missing_docs, reason = "generated; the WIT has the documentation")]
mod shapes {
    upcall::interface!("../crates/idl/tests/wit/all.wit");
}

/// An object of the server, looked up by the handle that a client passed.
#[derive(Debug)]
struct Held(#[expect(dead_code, reason = "read, and that is all")] Arc<str>);

impl Layout for Held {
    const SIZE: usize = 8;
    const ALIGN: usize = 8;
    const FIXED: bool = true;
}

impl Get for Held {
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
        match decoder.u8(at)? & 1 {
            0 => decoder.borrow(at),
            _ => decoder.take(at),
        }
        .map(Self)
    }
}

/// Reads a value of this type on both sides. A value that can be read survives a write and a second
/// read unchanged.
fn both_sides<T: Get + Put + Debug>(
    block: &mut [u64],
    len: usize,
    limits: Limits,
    objects: &SessionObjects,
) {
    let server = fuzzing::read::<T>(block, len, limits, Some(objects));
    let client = fuzzing::read::<T>(block, len, limits, None);
    assert_eq!(format!("{server:?}"), format!("{client:?}"));
    let Ok(value) = client else { return };
    let mut again = fuzzing::write(&value);
    let whole = again.len() * 8;
    let read = fuzzing::read::<T>(&mut again, whole, limits, None);
    assert_eq!(format!("{read:?}"), format!("{:?}", Ok::<_, Malformed>(value)));
}

/// Reads values of all types from a block of arbitrary bytes, within arbitrary limits.
pub(super) fn values(mut bytes: &[u8]) {
    let head = word(&mut bytes);
    let small = |byte: u64| if byte == 255 { u64::MAX } else { byte };
    let limits = Limits {
        string: small(head >> 8 & 255),
        list: small(head >> 16 & 255),
        ..Limits::default()
    };
    let len = bytes.len().min(1 << 16);
    let mut block: Vec<u64> = bytes[..len].chunks(8).map(|mut chunk| word(&mut chunk)).collect();
    let (objects, _) = SessionObjects::new(["a", "b", "c"].map(Arc::<str>::from));
    let read = match head & 31 {
        0 => both_sides::<(bool, i16, char, f64)>,
        1 => both_sides::<(u8, i64, f32, u32, i8)>,
        2 => both_sides::<String>,
        3 => both_sides::<Vec<u8>>,
        4 => both_sides::<Vec<u64>>,
        5 => both_sides::<Vec<Vec<u16>>>,
        6 => both_sides::<Vec<String>>,
        7 => both_sides::<Option<Vec<Option<String>>>>,
        8 => both_sides::<Result<Vec<char>, String>>,
        9 => both_sides::<([u32; 3], [String; 2], [[u8; 5]; 3])>,
        10 => both_sides::<Vec<(bool, Result<(), u8>)>>,
        11 => both_sides::<Vec<Vec<Vec<Vec<bool>>>>>,
        12 => both_sides::<shapes::all::Numbers>,
        13 => both_sides::<shapes::all::Odd>,
        14 => both_sides::<shapes::all::Deep>,
        15 => both_sides::<shapes::all::Shape>,
        16 => both_sides::<Vec<shapes::all::Shape>>,
        17 => both_sides::<(shapes::all::Mode, shapes::all::Many, shapes::all::Color)>,
        18 => both_sides::<Vec<shapes::all::Deep>>,
        19 => {
            let _ = fuzzing::read::<Vec<Held>>(&mut block, len, limits, Some(&objects));
            let _ = fuzzing::read::<(Held, Held, Option<Held>)>(
                &mut block,
                len,
                limits,
                Some(&objects),
            );
            return;
        }
        _ => both_sides::<(String, Vec<u8>, Vec<Vec<u16>>, Vec<String>)>,
    };
    read(&mut block, len, limits, &objects);
}

pub(super) fn values_samples() -> Vec<Vec<u8>> {
    let sample = |kind: u64, block: Vec<u64>| {
        let head = kind | 0xffff << 8;
        [head].iter().chain(&block).flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    let texts = vec!["a".to_string(), String::new(), "grüße".repeat(9)];
    let point = |x| shapes::types::Point { x, y: -x };
    let deep = || shapes::all::Deep {
        name: "n".into(),
        points: vec![point(1.0), point(2.5)],
        maybe: Some("m".into()),
        grid: [[1, 2], [3, 4], [5, 6]],
        pair: (7, "p".into()),
        one: (8,),
        outcome: Err("e".into()),
        nothing: Ok(()),
        mode: shapes::all::Mode::default(),
        names: texts.clone(),
        raw: vec![1, 2, 3],
    };
    let (_, handles) = SessionObjects::new(["a", "b", "c"].map(Arc::<str>::from));
    vec![
        sample(0, fuzzing::write(&(true, -3i16, 'ß', 1.5f64))),
        sample(2, fuzzing::write(&texts[2])),
        sample(4, fuzzing::write(&vec![1u64, 2, 3])),
        sample(5, fuzzing::write(&vec![vec![1u16], vec![], vec![2, 3]])),
        sample(7, fuzzing::write(&Some(vec![Some("x".to_string()), None]))),
        sample(
            9,
            fuzzing::write(&([1u32, 2, 3], [texts[0].clone(), texts[2].clone()], [[1u8; 5]; 3])),
        ),
        sample(11, fuzzing::write(&vec![vec![vec![vec![true, false]; 2]; 2]; 2])),
        sample(14, fuzzing::write(&deep())),
        sample(
            16,
            fuzzing::write(&vec![shapes::all::Shape::Named(deep()), shapes::all::Shape::Dot]),
        ),
        sample(19, [vec![16, 3], handles].concat()),
        sample(20, fuzzing::write(&("ü".to_string(), vec![1u8, 2], vec![vec![1u16]], texts))),
    ]
}
