//! A ULP that comes from another process: what is checked, and how its memory is made again.

use super::named::FileLack;
use super::pages::{PIECE, PageSum};
use super::processor::{ProcessorLack, ProcessorTraits};
use super::state::{MOST_MAPPINGS, PageRun, SAVED, UlpMapping, UlpState, VERSIONS, words};
use crate::backtrace::KernelRegisters;
use crate::clock::{ClockOrigin, UlpClocks};
use crate::image::{Image, ImageIdentity, up};
use crate::layout::{
    ASK_EXIT, PAGE, SLOT, TABLE_AHEAD, TABLE_BOOT_AHEAD, TABLE_CAUGHT, TABLE_CHILDREN,
    TABLE_HEAP_END, TABLE_INTERRUPTED, TABLE_LINES, TABLE_STACK,
};
use crate::own::OwnFiles;
use crate::pid::Pid;
use crate::slot::{LEAST_STACK, MOST_STACK, SLOTS, UlpSlot};
use crate::switch::CRASHED;
use crate::ulp::{Ulp, anonymous};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect};
use std::ffi::{OsString, c_void};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

/// The bits of MXCSR that can be set.
const MXCSR: u64 = 0xFFFF;

/// The reason why a ULP did not arrive.
#[derive(Debug)]
pub enum NotArrived {
    /// The state is of another version, or of a program that was linked for one.
    Version {
        /// The state's versions.
        found: [u64; 2],
    },
    /// The slot is taken in this process, or does not exist.
    Slot(u64),
    /// The program is not the same.
    OtherProgram {
        /// The program's file in the first process.
        path: PathBuf,
        /// What differs.
        differs: &'static str,
    },
    /// The ULP may use what this processor does not have.
    Processor(ProcessorLack),
    /// The ULP has this number of descriptors, and they were not all duplicated.
    Descriptors(usize),
    /// An open file of the ULP is not to be had here.
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        lack: FileLack,
    },
    /// The state cannot be one of a ULP's.
    Unfit {
        /// The field.
        field: &'static str,
        /// Its value, or an address.
        value: u64,
    },
    /// The contents of the memory are not those that were sent.
    Incomplete {
        /// The first process's sum.
        sent: PageSum,
        /// This process's sum.
        arrived: PageSum,
    },
    /// Memory could not be mapped or written.
    Memory {
        /// The address.
        at: u64,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for NotArrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { found } => write!(
                f,
                "the task is of version {found:?}, and this process takes {VERSIONS:?}: use the \
                 same version of Upcall everywhere, and link the program again"
            ),
            Self::Slot(slot) => write!(
                f,
                "place {slot} for tasks is taken in this process, or is not below {SLOTS}"
            ),
            Self::OtherProgram { path, differs } => write!(
                f,
                "{} is not the program of the task: the {differs} differs",
                path.display()
            ),
            Self::Processor(lack) => {
                write!(f, "the task may use what this processor does not have: {lack}")
            }
            Self::Descriptors(count) => {
                write!(f, "the task has {count} open files, which were not all handed over")
            }
            Self::File { path, lack } => write!(f, "{} {lack}", path.display()),
            Self::Unfit { field, value } => {
                write!(f, "the task cannot go on here: its {field} is invalid ({value:#x})")
            }
            Self::Incomplete { sent, arrived } => write!(
                f,
                "the task's memory has not arrived as it was sent: {} bytes in {} pieces were \
                 sent, and {} in {} have arrived",
                sent.bytes, sent.pieces, arrived.bytes, arrived.pieces
            ),
            Self::Memory { at, error } => {
                write!(f, "no memory for the task at {at:#x}: {error}")
            }
        }
    }
}

impl std::error::Error for NotArrived {}

pub(super) fn unfit(field: &'static str, value: u64) -> NotArrived {
    NotArrived::Unfit { field, value }
}

/// A ULP whose memory is being filled. Dropping it gives the memory and the slot back.
pub struct ArrivingUlp {
    pub(super) ulp: Ulp,
    image: Option<Arc<ImageIdentity>>,
    pub(super) state: UlpState,
    pub(super) files: Arc<OwnFiles>,
    /// The descriptors of the state, as this process has them.
    pub(super) descriptors: Vec<OwnedFd>,
    sum: PageSum,
}

impl fmt::Debug for ArrivingUlp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrivingUlp").field("ulp", &self.ulp).finish_non_exhaustive()
    }
}

impl Ulp {
    /// Begins to take a ULP over from another process, in the slot that it had there.
    ///
    /// `image` is the program, as this process has opened it.
    ///
    /// # Errors
    /// See [`NotArrived`].
    pub fn arrive(image: &Image, state: &UlpState) -> Result<ArrivingUlp, NotArrived> {
        let slot = slot_of(state).ok_or(NotArrived::Slot(state.slot))?;
        Self::arrive_at(slot, image, state)
    }

    /// As [`arrive`](Self::arrive), in a slot that the caller has taken.
    ///
    /// # Errors
    /// See [`NotArrived`].
    pub fn arrive_at(
        slot: UlpSlot,
        image: &Image,
        state: &UlpState,
    ) -> Result<ArrivingUlp, NotArrived> {
        let fits = (LEAST_STACK..=MOST_STACK).contains(&state.stack);
        if !fits || !state.stack.is_multiple_of(PAGE) {
            return Err(unfit("stack", state.stack));
        }
        let slot = slot.with_stack(state.stack);
        check(&slot, image, state)?;
        let pid = Pid::brought(state.process).ok_or(unfit("process", state.process.into()))?;
        let failed = |error| NotArrived::Memory { at: slot.start(), error };
        let files = OwnFiles::get().map_err(failed)?;
        let mut ulp = Self::empty(slot);
        ulp.rest.pid = Some(pid);
        for one in &state.mappings {
            map(image, one)
                .map_err(|error| NotArrived::Memory { at: one.start, error: error.into() })?;
        }
        ulp.register(image);
        let (state, image) = (state.clone(), image.identity.clone());
        let (descriptors, sum) = (Vec::new(), PageSum::default());
        Ok(ArrivingUlp { ulp, image, state, files, descriptors, sum })
    }
}

impl ArrivingUlp {
    /// Writes a piece of the ULP's memory.
    ///
    /// # Errors
    /// The address is not within one of the state's mappings, or the piece is no number of whole
    /// pages or too long; or the memory cannot be written.
    pub fn fill(&mut self, address: u64, bytes: &[u8]) -> Result<(), NotArrived> {
        let length = bytes.len() as u64;
        if length == 0 || bytes.len() > PIECE || !length.is_multiple_of(PAGE) {
            return Err(unfit("piece", length));
        }
        if !address.is_multiple_of(PAGE) || find(&self.state.mappings, address, length).is_none() {
            return Err(unfit("piece", address));
        }
        self.files
            .memory
            .write_all_at(bytes, address)
            .map_err(|error| NotArrived::Memory { at: address, error })?;
        self.sum.add(address, bytes);
        Ok(())
    }

    /// Makes pages that are expected, if they are within one of the ULP's mappings.
    ///
    /// Others are made when they are written, which takes longer.
    pub fn expect(&mut self, PageRun { start, end }: PageRun) {
        let length = end.saturating_sub(start);
        let is_within = find(&self.state.mappings, start, length).is_some();
        if !is_within || !start.is_multiple_of(PAGE) {
            return;
        }
        // SAFETY: this is the ULP's own memory, and the ULP does not run. Its contents do not
        // change. If the kernel does not know the advice, or has no memory, nothing is made.
        let _ =
            unsafe { madvise(start as *mut c_void, length as usize, Advice::LinuxPopulateWrite) };
    }

    /// Takes the state in which the ULP has stopped, after pages of an [`outline`](Ulp::outline)
    /// have arrived.
    ///
    /// # Errors
    /// The state has other mappings, or another program or slot.
    pub fn update(&mut self, image: &Image, state: &UlpState) -> Result<(), NotArrived> {
        check(&self.ulp.slot, image, state)?;
        if state.mappings != self.state.mappings || state.process != self.state.process {
            return Err(unfit("mappings", state.slot));
        }
        self.state = state.clone();
        Ok(())
    }

    /// Empties pages of anonymous memory, which become zeros.
    ///
    /// # Errors
    /// A range is not within anonymous memory of the ULP, or is no number of whole pages; or the
    /// kernel refuses.
    pub fn empty(&mut self, runs: &[PageRun]) -> Result<(), NotArrived> {
        for PageRun { start, end } in runs.iter().copied() {
            let length = end.checked_sub(start).filter(|length| length.is_multiple_of(PAGE));
            let length =
                length.filter(|_| start.is_multiple_of(PAGE)).ok_or(unfit("pages", start))?;
            let found = find(&self.state.mappings, start, length);
            if found.is_none_or(|one| one.offset.is_some()) {
                return Err(unfit("pages", start));
            }
            let failed =
                |error: rustix::io::Errno| NotArrived::Memory { at: start, error: error.into() };
            // SAFETY: this is the ULP's own memory, and the ULP does not run.
            unsafe { madvise(start as *mut c_void, length as usize, Advice::LinuxDontNeed) }
                .map_err(failed)?;
        }
        Ok(())
    }

    /// The sum of what has arrived.
    pub fn sum(&self) -> PageSum {
        self.sum
    }

    /// Completes the ULP, which can be resumed then. `sent` is the first process's sum.
    ///
    /// # Errors
    /// See [`NotArrived`].
    pub fn finish(mut self, sent: PageSum, clocks: ClockOrigin) -> Result<Ulp, NotArrived> {
        if sent != self.sum {
            return Err(NotArrived::Incomplete { sent, arrived: self.sum });
        }
        self.check_words()?;
        self.ulp.fill_process();
        if clocks == ClockOrigin::OtherKernel {
            let ahead = self.state.clocks.ahead_of(UlpClocks::now());
            self.ulp.set_word(TABLE_AHEAD, ahead.monotonic);
            self.ulp.set_word(TABLE_BOOT_AHEAD, ahead.boot);
        }
        self.fill_files()?;
        self.ulp.set_word(TABLE_CHILDREN, 0);
        for one in &self.state.mappings {
            protect(one)
                .map_err(|error| NotArrived::Memory { at: one.start, error: error.into() })?;
        }
        let Self { mut ulp, image, state, .. } = self;
        // SAFETY: the ULP does not run, so nothing else uses its context.
        let context = unsafe { &mut *ulp.context() };
        (context.sp, context.what) = (state.context.sp, state.context.what);
        (context.args, context.reply) = (state.context.args, state.context.reply);
        ulp.rest.image = image;
        ulp.rest.registers = state.registers.map(KernelRegisters);
        Ok(ulp)
    }

    /// Checks what the switch and the host's handlers of signals take from the ULP's memory.
    fn check_words(&self) -> Result<(), NotArrived> {
        let sp = self.state.context.sp;
        let failed = |error| NotArrived::Memory { at: sp, error };
        let saved = words(&self.files.memory, sp, SAVED).map_err(failed)?;
        let (control, fs, goes_on) = (saved[0], saved[1], saved[SAVED - 1]);
        if control & u64::from(u32::MAX) & !MXCSR != 0 {
            return Err(unfit("MXCSR", control));
        }
        if fs >> 47 != 0 {
            return Err(unfit("FS", fs));
        }
        if !self.is_code(goes_on) {
            return Err(unfit("return address", goes_on));
        }
        for at in [TABLE_INTERRUPTED, TABLE_CAUGHT] {
            let handler = self.ulp.word(at);
            if handler != 0 && !self.is_code(handler) {
                return Err(unfit("handler", handler));
            }
        }
        let (stack, heap_end) = (self.ulp.word(TABLE_STACK), self.ulp.word(TABLE_HEAP_END));
        if stack != self.ulp.slot.stack() {
            return Err(unfit("stack", stack));
        }
        if heap_end != self.ulp.slot.heap_end() {
            return Err(unfit("end of the heap", heap_end));
        }
        Ok(())
    }

    fn is_code(&self, address: u64) -> bool {
        let found = find(&self.state.mappings, address, 1);
        found.is_some_and(|one| one.protection & UlpMapping::EXECUTE != 0)
    }
}

/// The mapping that contains these bytes.
pub(super) fn find(mappings: &[UlpMapping], address: u64, length: u64) -> Option<&UlpMapping> {
    let end = address.checked_add(length)?;
    let after = mappings.partition_point(|one| one.start <= address);
    mappings.get(after.checked_sub(1)?).filter(|one| end <= one.end)
}

/// Checks a state before anything is made of it.
fn check(slot: &UlpSlot, image: &Image, state: &UlpState) -> Result<(), NotArrived> {
    if state.versions != VERSIONS {
        return Err(NotArrived::Version { found: state.versions });
    }
    if [slot.number() as u64, slot.size() / SLOT] != [state.slot, state.slots] {
        return Err(NotArrived::Slot(state.slot));
    }
    let differs = match &image.identity {
        Some(_) if image.has_changed() => Some("time of the last change"),
        Some(own) => own.difference(&state.image),
        None => Some("file"),
    };
    if let Some(differs) = differs {
        return Err(NotArrived::OtherProgram { path: path(&state.image), differs });
    }
    if let Some(lack) = state.processor.lack_of(&ProcessorTraits::own()) {
        return Err(NotArrived::Processor(lack));
    }
    if [ASK_EXIT, CRASHED].contains(&state.context.what) {
        return Err(unfit("question", state.context.what));
    }
    check_mappings(slot, image, &state.mappings)?;
    // The host reads and writes these directly.
    let is_written = |start: u64, end: u64| {
        let both = UlpMapping::READ | UlpMapping::WRITE;
        find(&state.mappings, start, end - start).is_some_and(|one| one.protection & both == both)
    };
    if !is_written(slot.stack(), slot.middle()) {
        return Err(unfit("stack", slot.stack()));
    }
    let sp = state.context.sp;
    let ends = sp.checked_add(SAVED as u64 * 8).filter(|_| sp.is_multiple_of(8));
    // The table, above the stack, is read before the registers are.
    let table = slot.table()..slot.table() + TABLE_LINES * crate::layout::LINE;
    let fits =
        ends.is_some_and(|end| is_written(sp, end) && (end <= table.start || sp >= table.end));
    if fits { Ok(()) } else { Err(unfit("stack pointer", sp)) }
}

fn path(image: &ImageIdentity) -> PathBuf {
    OsString::from_vec(image.path.clone()).into()
}

/// Checks that mappings are whole pages of the slot, in ascending order, and of the file.
fn check_mappings(
    slot: &UlpSlot,
    image: &Image,
    mappings: &[UlpMapping],
) -> Result<(), NotArrived> {
    if mappings.len() > MOST_MAPPINGS {
        return Err(unfit("number of mappings", mappings.len() as u64));
    }
    let file = image.identity.as_ref().map_or(0, |own| up(own.stamp.length));
    let mut from = slot.start();
    for one in mappings {
        let UlpMapping { start, end, protection, offset } = *one;
        let whole = start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        if !whole || start < from || end <= start || end > slot.start() + slot.size() {
            return Err(unfit("mapping", start));
        }
        if protection > UlpMapping::READ | UlpMapping::WRITE | UlpMapping::EXECUTE {
            return Err(unfit("protection", protection.into()));
        }
        let fits = |offset: u64| {
            let ends = offset.checked_add(end - start);
            offset.is_multiple_of(PAGE) && ends.is_some_and(|ends| ends <= file)
        };
        if offset.is_some_and(|offset| !fits(offset)) {
            return Err(unfit("offset", offset.unwrap_or_default()));
        }
        from = end;
    }
    Ok(())
}

/// Makes a mapping, writable so that it can be filled.
fn map(image: &Image, one: &UlpMapping) -> rustix::io::Result<()> {
    let Some(offset) = one.offset else { return anonymous(one.start, one.end - one.start) };
    let (at, length) = (one.start as *mut c_void, (one.end - one.start) as usize);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is within the ULP's slot, and nothing is mapped there, or the kernel
    // refuses.
    unsafe { mmap(at, length, protection, flags, image.file.as_fd(), offset) }.map(drop)
}

/// Gives a mapping its protection.
fn protect(one: &UlpMapping) -> rustix::io::Result<()> {
    if one.protection == UlpMapping::READ | UlpMapping::WRITE {
        return Ok(());
    }
    let mut flags = MprotectFlags::empty();
    for (bit, flag) in [
        (UlpMapping::READ, MprotectFlags::READ),
        (UlpMapping::WRITE, MprotectFlags::WRITE),
        (UlpMapping::EXECUTE, MprotectFlags::EXEC),
    ] {
        flags.set(flag, one.protection & bit != 0);
    }
    // SAFETY: the mapping is the ULP's, which does not run yet, and the host uses only what stays
    // writable.
    unsafe { mprotect(one.start as *mut c_void, (one.end - one.start) as usize, flags) }
}

/// The slots that a state is for, if they exist and are free.
fn slot_of(state: &UlpState) -> Option<UlpSlot> {
    let (first, count) = (usize::try_from(state.slot).ok()?, usize::try_from(state.slots).ok()?);
    UlpSlot::take_these(first, count)
}
