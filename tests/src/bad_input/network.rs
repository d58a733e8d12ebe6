//! Readers of input from a network: records and messages in a stream of bytes.

use crate::interfaces::trial;
use crate::raw_link::message as records;
use crate::speech::{RELEASE, Request};
use std::time::{Duration, Instant};
use upcall_net::incoming::LinkEvent;
use upcall_net::link::HostLink;
use upcall_net::outgoing::OutMessage;
use upcall_net::record::{HELLO, Hello};
use upcall_net::{Frame, FrameHeader, FrameKind, LinkTerms, Wanted};

/// Reads a stream in pieces of the size that the first byte gives. The messages that come out are
/// no longer than what went in, and come out again when they are sent on.
pub(super) fn frames(bytes: &[u8]) {
    if let Some(Ok(hello)) = bytes.first_chunk::<HELLO>().map(Hello::read) {
        assert_eq!(Hello::read(&hello.to_bytes()), Ok(hello));
    }
    let piece = 1 + usize::from(bytes.first().copied().unwrap_or(0));
    let came = read(bytes, piece);
    let longest = came.iter().map(|frame| frame.body.len).sum::<usize>();
    assert!(longest <= bytes.len(), "{longest} bytes of {}", bytes.len());
    assert!(came.iter().all(|frame| frame.body.words.len() == frame.body.len.div_ceil(8)));
    let again: Vec<u8> =
        came.iter().flat_map(|frame| records(frame.head, &frame.body.to_vec())).collect();
    assert_eq!(read(&again, 4096), came, "messages are read as they were written");
}

/// The messages in a stream up to the first error. Those with the number 13 are not wanted.
fn read(bytes: &[u8], piece: usize) -> Vec<Frame> {
    let terms = LinkTerms { window: 9, patience: Duration::ZERO };
    let hello = crate::raw_link::hello([7; 16], 9);
    let mut link = HostLink::server(&hello, terms).expect("a session");
    link.accept(&hello).expect("a new session");
    link.send(1, OutMessage { head: head(), body: vec![0; 1 << 20][..].into(), owner: None });
    let (mut events, now) = (Vec::new(), Instant::now());
    for bytes in bytes.chunks(piece) {
        let mut wants =
            |head: &FrameHeader| Ok(if head.number == 13 { Wanted::No } else { Wanted::Yes(None) });
        let taken = link.take(bytes, now, &mut wants, &mut events);
        // What the other side says about our messages has its effect.
        let count = link.output().map_or(0, <[u8]>::len);
        link.sent(count);
        if taken.is_err() {
            break;
        }
    }
    let came = events.into_iter().filter_map(|event| match event {
        LinkEvent::Came(frame, _) => Some(frame),
        LinkEvent::GivenUp(_) => None,
    });
    came.filter(|frame| frame.head.number != 13).collect()
}

fn head() -> FrameHeader {
    FrameHeader { call: 1, ..FrameHeader::of(FrameKind::Reply) }
}

/// Messages as sent to a server. The first one binds `trial` as number 3.
pub(super) fn frames_samples() -> Vec<Vec<u8>> {
    let interface = &trial::INTERFACE;
    let bind = Request::Bind {
        id: 0,
        name: "trial".into(),
        interface: interface.id.to_string(),
        procedures: interface
            .procedures
            .iter()
            .map(|p| (p.name.to_string(), p.hash, p.signature.to_string()))
            .collect(),
        stacks: 0,
    };
    let message = |kind, call, number, body: &[u8]| {
        let left = (call % 2 == 1).then(|| Duration::from_millis(5));
        records(FrameHeader { call, binding: 3, number, left, ..FrameHeader::of(kind) }, body)
    };
    let packed = |request: &Request| postcard::to_stdvec(request).expect("a request can be packed");
    let mut all = vec![message(FrameKind::Ask, 1, 0, &packed(&bind))];
    let text: Vec<u8> =
        [16u64, 5].iter().flat_map(|word| word.to_le_bytes()).chain(*b"trial\0\0\0").collect();
    for (call, procedure) in (2..).zip(interface.procedures.iter().enumerate()) {
        let (number, fixed) = (procedure.0 as u16, procedure.1.args.fixed as usize);
        // Handlers that sleep do so only briefly.
        all.push(message(
            FrameKind::Call,
            call,
            number,
            &[1, 0, 0, 0, 0, 0, 0, 0].repeat(fixed.div_ceil(8)),
        ));
        all.push(message(FrameKind::Call, call + 100, number, &text));
    }
    all.push(message(FrameKind::Call, 300, RELEASE, &[0; 8]));
    all.push(message(FrameKind::Call, 301, 13, &[7; 900]));
    all.push(message(FrameKind::Reply, 302, 0, &[1; 9]));
    all.push(message(FrameKind::Farewell, 303, 0, &[1, 2, b'n', b'o']));
    all.push(message(FrameKind::Ask, 304, 0, &packed(&Request::Unbind { id: 0 })));
    all.push(message(FrameKind::Ask, 305, 0, &packed(&Request::List)));
    all
}
