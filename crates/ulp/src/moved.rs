//! Takes a ULP's state in one process, and goes on with it in another (UPVM; V8, V9 here).
//!
//! A slot is at the same addresses in every process, so no pointer of a ULP changes. A waiting ULP
//! is the mappings of its slot with their contents, and a few words of its context:
//!
//! ```text
//! first process                                 second process
//! Ulp::pinned   nothing of it is elsewhere
//! Ulp::state    context, mappings, program  ──► Ulp::arrive          checks, maps
//! Ulp::pages    contents, 64 KiB at a time  ──► ArrivingUlp::fill    checks, writes
//!               (or their addresses         ──► ArrivingUlp::pull    reads them there)
//!               (or UlpPages::write_to      ──►                      they are there)
//!               PageSum of the contents     ──► ArrivingUlp::finish  own words, protection
//! Ulp::leave    number stays, memory goes       Worker::resume
//! ```
//! - The registers are on its stack ([`switch`](crate::switch)), also where an interrupt found it
//!   in its own code ([`interrupts`](crate::interrupts)).
//! - Sent are only pages that differ from those of a fresh mapping: pages of its own
//!   (`/proc/self/pagemap`), except zeros in anonymous memory.
//! - Both processes use `/proc/self/mem`, so a wrong address is an error there, and no crash.
//! - Five words of the table are the process's own: gate, clock, call, owners of descriptors, and
//!   process. The second process writes its own there. Just before a question, the gate's address
//!   is in a register or on the stack: a ULP does not move then ([`UlpPin::Asks`]).
//! - The state depends on nothing else of the first process. So it may lie in a file, and be used
//!   by a process that starts later, or by one on another host. The processor there must have all
//!   that the first one has ([`processor`]), and clocks go on from where they were.
//! - What arrives is not trusted until it has been checked. Wrong contents harm only the ULP.
//!   After it was resumed, its code can do what each ULP's code can.
//! - Descriptors are duplicated from the first process ([`ArrivingUlp::take_descriptors`]). On
//!   another host, regular files are opened by their paths ([`ArrivingUlp::open_files`]).
//!
//! Not here: message blocks, and the data that the library above has of a ULP.

mod arriving;
mod files;
mod mappings;
mod named;
mod pages;
mod paths;
mod processor;
mod pulling;
mod state;
mod watching;

pub use arriving::{ArrivingUlp, NotArrived};
pub use named::{FileIdentity, FileLack, FilePin, FileStays, UlpFile};
pub use pages::{PIECE, PageSum, UlpPages};
pub use processor::{ProcessorLack, ProcessorTraits};
pub use pulling::{allow_others, keep_ended_children, write_early};
pub use state::{PageRun, UlpContext, UlpDescriptor, UlpMapping, UlpPin, UlpState};
pub use watching::UlpWrites;

use self::state::{DEEPEST, SAVED, SEARCHED, VERSIONS, words};
use crate::backtrace::KernelRegisters;
use crate::clock::UlpClocks;
use crate::descriptors;
use crate::image::{Image, ImageIdentity};
use crate::layout::{
    ASK_EXIT, ASK_INTERRUPTED, ASK_READY, SLOT, TABLE_AHEAD, TABLE_BOOT_AHEAD, TABLE_CHILDREN,
};
use crate::own::OwnFiles;
use crate::pid::Pid;
use crate::shared::SharedImage;
use crate::switch::{self, Context, REGISTERS};
use crate::ulp::Ulp;
use std::fs::File;
use std::{fmt, io};

/// The reason why a ULP's state was not taken.
#[derive(Debug)]
pub enum NotTaken {
    /// The ULP cannot move now.
    Pinned(UlpPin),
    /// The kernel's files about the process's memory (`/proc/self`) cannot be read.
    Kernel(io::Error),
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned(pin) => write!(f, "the task cannot move: {pin}"),
            Self::Kernel(error) => {
                write!(f, "the task cannot move: /proc/self cannot be read: {error}")
            }
        }
    }
}

impl std::error::Error for NotTaken {}

impl From<UlpPin> for NotTaken {
    fn from(pin: UlpPin) -> Self {
        Self::Pinned(pin)
    }
}

impl From<io::Error> for NotTaken {
    fn from(error: io::Error) -> Self {
        Self::Kernel(error)
    }
}

/// Keeps the process number of a ULP taken after it has left.
///
/// To be dropped when the ULP has ended.
#[derive(Debug)]
pub struct ProcessNumber {
    _pid: Option<Pid>,
}

/// Opens the kernel's files about this process's memory, which the first move would open otherwise.
///
/// # Errors
/// They cannot be opened. ULPs can neither be taken nor arrive.
pub fn prepare_moves() -> io::Result<()> {
    OwnFiles::get().map(drop)
}

impl Ulp {
    /// Why the ULP cannot move now, if it cannot. `image` is the ULP's own.
    ///
    /// # Errors
    /// See [`NotTaken::Kernel`].
    pub fn pinned(&self, image: &Image) -> io::Result<Option<UlpPin>> {
        match self.state(image) {
            Ok(_) => Ok(None),
            Err(NotTaken::Pinned(pin)) => Ok(Some(pin)),
            Err(NotTaken::Kernel(error)) => Err(error),
        }
    }

    /// What belongs to the ULP and keeps it here, apart from where its code is now.
    ///
    /// Makes no system call.
    pub fn belongings(&self) -> Option<UlpPin> {
        // SAFETY: the ULP does not run, so nothing else uses its context.
        let Context { sp, what, args, reply, .. } = unsafe { &*self.context() };
        self.check_owned(&UlpContext { sp: *sp, what: *what, args: *args, reply: *reply }).err()
    }

    /// Takes the ULP's state. `image` is the ULP's own.
    ///
    /// The state is valid until the ULP is answered or resumed.
    ///
    /// # Errors
    /// See [`NotTaken`].
    pub fn state(&self, image: &Image) -> Result<UlpState, NotTaken> {
        self.take_state(image, true)
    }

    /// With `is_final`, the ULP must be where it can be resumed.
    fn take_state(&self, image: &Image, is_final: bool) -> Result<UlpState, NotTaken> {
        // SAFETY: the ULP does not run, so nothing else uses its context.
        let Context { sp, what, args, reply, .. } = unsafe { &*self.context() };
        let context = UlpContext { sp: *sp, what: *what, args: *args, reply: *reply };
        self.check_owned(&context)?;
        let same = self.rest.image.as_ref().filter(|_| !image.has_changed());
        let same = same.filter(|own| image.identity.as_ref() == Some(own));
        let same = same.ok_or_else(|| UlpPin::Program(image.path.clone()))?;
        let slot = self.slot.start()..self.slot.start() + self.slot.size();
        let files = OwnFiles::get()?;
        let mappings = mappings::within(&files, slot, self.base())?.map_err(NotTaken::Pinned)?;
        let mut descriptors = Vec::new();
        if is_final {
            descriptors = self.opened(&files.memory)?;
            self.check_place(image, &context, &files.memory)?;
            self.check_stack(&context, &mappings, &files.memory)?;
        }
        Ok(UlpState {
            versions: VERSIONS,
            slot: self.slot() as u64,
            slots: self.slot.size() / SLOT,
            image: ImageIdentity::clone(same),
            process: self.process(),
            stack: self.slot.stack_size(),
            context,
            clocks: self.clocks(),
            processor: ProcessorTraits::own(),
            registers: self.rest.registers.as_ref().map(|registers| registers.0),
            mappings,
            descriptors,
            files: Vec::new(),
        })
    }

    /// The ULP's clocks now.
    pub fn clocks(&self) -> UlpClocks {
        let ahead =
            UlpClocks { monotonic: self.word(TABLE_AHEAD), boot: self.word(TABLE_BOOT_AHEAD) };
        UlpClocks::now().plus(ahead)
    }

    /// As [`state`](Self::state) at any place in the code: to prepare for the ULP, and not to
    /// resume it.
    ///
    /// # Errors
    /// See [`NotTaken`].
    pub fn outline(&self, image: &Image) -> Result<UlpState, NotTaken> {
        self.take_state(image, false)
    }

    /// What of the ULP's memory is to be sent with its state.
    ///
    /// # Errors
    /// The kernel's memory map of this process cannot be read.
    pub fn pages(&self, state: &UlpState) -> io::Result<UlpPages> {
        let files = OwnFiles::get()?;
        UlpPages::new(self.slot.number(), &state.mappings, files.pages.as_ref())
    }

    /// Keeps the number of a ULP taken that goes on elsewhere. Its memory goes when it is dropped.
    pub fn leave(&mut self) -> ProcessNumber {
        ProcessNumber { _pid: self.rest.pid.take() }
    }

    /// Returns an error if something that belongs to the ULP cannot move.
    fn check_owned(&self, context: &UlpContext) -> Result<(), UlpPin> {
        let (opened, children) =
            (descriptors::count_of(self.slot.number()), self.word(TABLE_CHILDREN));
        let waits = (context.what == ASK_READY).then_some(context.args[0] as i32);
        match waits.filter(|descriptor| *descriptor > 2) {
            _ if self.ended().is_some() => Err(UlpPin::Ended),
            _ if context.what == ASK_EXIT => Err(UlpPin::NeverRan),
            _ if self.rest.call.is_some() => Err(UlpPin::Aside),
            _ if children > 0 => Err(UlpPin::Children(children)),
            Some(descriptor) => Err(UlpPin::Waits(descriptor)),
            None if opened > 0 && !files::is_between_calls(context.what) => Err(UlpPin::Inside),
            None => Ok(()),
        }
    }

    /// Returns an error if a function of the library is half done.
    ///
    /// At a gate the innermost calls may be the library's. If there are others further out, the
    /// program is in a handler of signals that interrupts one, which may have opened a descriptor.
    fn check_place(
        &self,
        image: &Image,
        context: &UlpContext,
        memory: &File,
    ) -> Result<(), UlpPin> {
        let library = self.library();
        let interrupted = context.what == ASK_INTERRUPTED;
        let gate = KernelRegisters(self.registers_at(context, memory).ok_or(UlpPin::Inside)?);
        let registers = if interrupted { self.rest.registers.as_ref() } else { Some(&gate) };
        let calls = registers.and_then(|registers| self.calls(registers, image, DEEPEST));
        let calls = calls.ok_or(UlpPin::Inside)?;
        let mut outer = calls.iter().map(|address| library.contains(address)).peekable();
        while !interrupted && outer.next_if(|inside| *inside).is_some() {}
        if outer.any(|inside| inside) { Err(UlpPin::Inside) } else { Ok(()) }
    }

    /// The registers with which a ULP returns from the gate, in the kernel's order.
    fn registers_at(&self, context: &UlpContext, memory: &File) -> Option<[u64; REGISTERS]> {
        let words = words(memory, context.sp, SAVED).ok()?;
        let [_, _, r15, r14, r13, r12, rbx, rbp, rip] = words[..] else { return None };
        let mut registers = [0; REGISTERS];
        for (register, word) in [
            (libc::REG_R15, r15),
            (libc::REG_R14, r14),
            (libc::REG_R13, r13),
            (libc::REG_R12, r12),
            (libc::REG_RBX, rbx),
            (libc::REG_RBP, rbp),
            (libc::REG_RIP, rip),
            (libc::REG_RSP, context.sp + SAVED as u64 * 8),
        ] {
            registers[register as usize] = word;
        }
        Some(registers)
    }

    /// Returns an error if an address of the host's is on the ULP's stack.
    ///
    /// All registers of a waiting ULP are there too, also those of interrupts that have not ended.
    fn check_stack(
        &self,
        context: &UlpContext,
        mappings: &[UlpMapping],
        memory: &File,
    ) -> Result<(), NotTaken> {
        let host = [
            switch::gate as *const () as u64,
            switch::call as *const () as u64,
            crate::clock::address(),
            descriptors::owners(),
        ];
        let shared = SharedImage::all();
        let is_hosts = |word: &u64| {
            host.contains(word) && *word != 0
                || shared.iter().any(|shared| shared.memory.contains(word))
        };
        let mut end = self.slot.table();
        if !(self.slot.stack()..end).contains(&context.sp) {
            // A stack that the program has made itself.
            let within = |one: &&UlpMapping| (one.start..one.end).contains(&context.sp);
            end = mappings.iter().find(within).map_or(context.sp, |one| one.end);
        }
        let count = (end - context.sp).min(SEARCHED) as usize / 8;
        let found = words(memory, context.sp, count)?.iter().any(is_hosts);
        if found { Err(UlpPin::Asks.into()) } else { Ok(()) }
    }
}
