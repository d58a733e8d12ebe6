//! ULPs between two processes of a test.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use upcall_ulp::slot::UlpSlot;
use upcall_ulp::{
    ClockOrigin, FileStamp, Image, ImageIdentity, NotArrived, NotTaken, PageSum, ProcessNumber,
    ProcessorTraits, Ulp, UlpClocks, UlpContext, UlpMapping, UlpState,
};

/// A ULP as it was taken: its state, the contents of its memory, and their sum.
#[derive(Clone)]
pub struct Taken {
    pub state: UlpState,
    pub pieces: Vec<(u64, Vec<u8>)>,
    pub sum: PageSum,
}

/// Takes a ULP, which goes on as if nothing had happened, unless it leaves.
pub fn take(ulp: &Ulp, image: &Image) -> Result<Taken, NotTaken> {
    let (state, mut pieces) = (ulp.state(image)?, Vec::new());
    let mut pages = ulp.pages(&state)?;
    let mut keep = |at, bytes: &[u8]| {
        pieces.push((at, bytes.to_vec()));
        Ok(())
    };
    while !pages.send(ulp, 1 << 20, &mut keep)? {}
    Ok(Taken { state, pieces, sum: pages.sum() })
}

pub fn arrive(taken: &Taken, image: &Image) -> Result<Ulp, NotArrived> {
    let mut new = Ulp::arrive(image, &taken.state)?;
    taken.pieces.iter().try_for_each(|(at, bytes)| new.fill(*at, bytes))?;
    new.finish(taken.sum, ClockOrigin::ThisKernel)
}

/// The other process.
pub struct Link(pub UnixStream);

impl Link {
    pub fn put(&mut self, words: &[u64]) {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        self.0.write_all(&bytes).unwrap();
    }

    pub fn get(&mut self) -> io::Result<u64> {
        let mut word = [0; 8];
        self.0.read_exact(&mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn get_bytes(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.get()? as usize];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends a ULP, a part at a time, and waits until it has arrived.
    pub fn send(&mut self, mut ulp: Ulp, image: &Image) -> ProcessNumber {
        let state = ulp.state(image).unwrap();
        let bytes = encode(&state);
        self.put(&[bytes.len() as u64]);
        self.0.write_all(&bytes).unwrap();
        let mut pages = ulp.pages(&state).unwrap();
        loop {
            let link = &mut *self;
            let done = pages.send(&ulp, 256 << 10, |at, bytes| {
                link.put(&[at, bytes.len() as u64]);
                link.0.write_all(bytes)
            });
            if done.unwrap() {
                break;
            }
        }
        let PageSum { pieces, bytes, hash } = pages.sum();
        self.put(&[0, pieces, bytes, hash]);
        assert_eq!(self.get().unwrap(), 1, "the ULP has arrived");
        ulp.leave()
    }

    /// Receives a ULP. Returns `None` if the other process has ended.
    pub fn receive(&mut self, image: &Image) -> Option<Ulp> {
        let state = decode(&self.get_bytes().ok()?).unwrap();
        let mut new = Ulp::arrive(image, &state).unwrap();
        loop {
            match self.get().unwrap() {
                0 => break,
                at => new.fill(at, &self.get_bytes().unwrap()).unwrap(),
            }
        }
        let [pieces, bytes, hash] = [(); 3].map(|()| self.get().unwrap());
        let new = new.finish(PageSum { pieces, bytes, hash }, ClockOrigin::ThisKernel).unwrap();
        self.put(&[1]);
        Some(new)
    }
}

/// What is mapped in a slot of this process.
pub fn mapped(slot: usize) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let start = |line: &str| u64::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap();
    maps.lines().filter(|line| UlpSlot::of(start(line)) == Some(slot)).map(Into::into).collect()
}

/// Changes which signals this thread has blocked.
pub fn mask(how: i32, signal: i32) {
    // SAFETY: all zeros are a valid mask.
    let mut mask = unsafe { std::mem::zeroed() };
    // SAFETY: changes the local mask.
    unsafe { libc::sigaddset(&raw mut mask, signal) };
    // SAFETY: passes a valid mask.
    unsafe { libc::pthread_sigmask(how, &raw const mask, std::ptr::null_mut()) };
}

/// Returns `true` if this thread has the signal blocked.
pub fn blocked(signal: i32) -> bool {
    // SAFETY: all zeros are a valid mask.
    let mut mask = unsafe { std::mem::zeroed() };
    // SAFETY: writes the local mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut mask) };
    // SAFETY: reads the local mask.
    unsafe { libc::sigismember(&raw const mask, signal) == 1 }
}

/// Changes a word of the memory, and the sum with it.
pub fn poke(taken: &mut Taken, at: u64, word: u64) {
    let page = at / 4096 * 4096;
    let place =
        |(start, bytes): &(u64, Vec<u8>)| (*start..start + bytes.len() as u64).contains(&page);
    let piece = taken.pieces.iter_mut().find(|piece| place(piece)).unwrap();
    let offset = (at - piece.0) as usize;
    piece.1[offset..offset + 8].copy_from_slice(&word.to_ne_bytes());
}

/// The mapping of the stack.
pub fn stack_of(taken: &mut Taken) -> &mut UlpMapping {
    let sp = taken.state.context.sp;
    taken.state.mappings.iter_mut().find(|one| (one.start..one.end).contains(&sp)).unwrap()
}

/// All that was taken of a ULP, as bytes.
pub fn to_bytes(taken: &Taken) -> Vec<u8> {
    let state = encode(&taken.state);
    let PageSum { pieces, bytes, hash } = taken.sum;
    let mut all = [pieces, bytes, hash, state.len() as u64].map(u64::to_ne_bytes).concat();
    all.extend(state);
    for (at, piece) in &taken.pieces {
        all.extend([*at, piece.len() as u64].map(u64::to_ne_bytes).concat());
        all.extend(piece);
    }
    all
}

pub fn of_bytes(mut bytes: &[u8]) -> Option<Taken> {
    let bytes = &mut bytes;
    let [count, all, hash, length] = numbers(bytes)?;
    let state = decode(bytes.split_off(..length as usize)?)?;
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let [at, length] = numbers(bytes)?;
        pieces.push((at, bytes.split_off(..length as usize)?.to_vec()));
    }
    Some(Taken { state, pieces, sum: PageSum { pieces: count, bytes: all, hash } })
}

/// A state as bytes.
pub fn encode(state: &UlpState) -> Vec<u8> {
    let UlpState {
        versions,
        slot,
        slots,
        image,
        process,
        stack,
        context,
        clocks,
        processor,
        registers,
        mappings,
        ..
    } = state;
    let FileStamp { device, inode, length, modified, changed } = image.stamp;
    let mut words = vec![versions[0], versions[1], *slot, *slots, (*process).into(), *stack];
    words.extend([device, inode, length]);
    words.extend([modified, changed].into_iter().flatten().map(|time| time as u64));
    words.extend([context.sp, context.what, context.reply]);
    words.extend(context.args);
    words.extend([clocks.monotonic, clocks.boot]);
    words.extend(processor.features.map(u64::from));
    words.extend(processor.registers.map(u64::from));
    words.push(registers.is_some().into());
    words.extend(registers.iter().flatten());
    words.push(mappings.len() as u64);
    for one in mappings {
        words.extend([one.start, one.end, one.protection.into()]);
        words.extend([one.offset.is_some().into(), one.offset.unwrap_or_default()]);
    }
    let mut bytes = words.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<_>>();
    let build_id = image.build_id.as_deref();
    bytes.push(build_id.is_some().into());
    for text in [&image.path, build_id.unwrap_or_default()] {
        bytes.extend((text.len() as u64).to_ne_bytes());
        bytes.extend(text);
    }
    bytes
}

pub fn decode(mut bytes: &[u8]) -> Option<UlpState> {
    let bytes = &mut bytes;
    let [layout, version, slot, slots, process, stack] = numbers(bytes)?;
    let [device, inode, length, m, m_nano, c, c_nano] = numbers(bytes)?;
    let (modified, changed) =
        ([m, m_nano].map(|one| one as i64), [c, c_nano].map(|one| one as i64));
    let [sp, what, reply] = numbers(bytes)?;
    let args = numbers(bytes)?;
    let [monotonic, boot] = numbers(bytes)?;
    let features = numbers(bytes)?.map(|word| word as u32);
    let sets = numbers(bytes)?.map(|word| word as u32);
    let registers = if numbers(bytes)? == [1] { Some(numbers(bytes)?) } else { None };
    let [count] = numbers(bytes)?;
    let mut mappings = Vec::new();
    for _ in 0..count {
        let [start, end, protection, is_file, offset] = numbers(bytes)?;
        let (protection, offset) = (protection as u8, (is_file == 1).then_some(offset));
        mappings.push(UlpMapping { start, end, protection, offset });
    }
    let has_id = bytes.split_off_first()?;
    let mut texts = [Vec::new(), Vec::new()];
    for text in &mut texts {
        let [length] = numbers(bytes)?;
        *text = bytes.split_off(..length as usize)?.to_vec();
    }
    let [path, build_id] = texts;
    Some(UlpState {
        versions: [layout, version],
        slot,
        slots,
        image: ImageIdentity {
            path,
            stamp: FileStamp { device, inode, length, modified, changed },
            build_id: (*has_id == 1).then_some(build_id),
        },
        process: process as u32,
        stack,
        context: UlpContext { sp, what, args, reply },
        clocks: UlpClocks { monotonic, boot },
        processor: ProcessorTraits { features, registers: sets },
        registers,
        mappings,
        descriptors: Vec::new(),
        files: Vec::new(),
    })
}

fn numbers<const COUNT: usize>(bytes: &mut &[u8]) -> Option<[u64; COUNT]> {
    let all = bytes.split_off(..COUNT * 8)?;
    let mut words = [0; COUNT];
    for (word, bytes) in words.iter_mut().zip(all.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Some(words)
}
