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
//!               PageSum of the contents     ──► ArrivingUlp::finish  own words, protection
//! Ulp::leave    memory goes, number stays       Worker::resume
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
//!   by a process that starts later.
//! - What arrives is not trusted until it has been checked. Wrong contents harm only the ULP.
//!   After it was resumed, its code can do what each ULP's code can.
//!
//! Not here: descriptors, message blocks, and the data that the library above has of a ULP.

mod arriving;
mod mappings;
mod pages;

pub use arriving::{ArrivingUlp, NotArrived};
pub use pages::{PIECE, PageSum, UlpPages};

use crate::backtrace::KernelRegisters;
use crate::descriptors;
use crate::image::{Image, ImageIdentity};
use crate::layout::{ASK_EXIT, ASK_INTERRUPTED, ASK_READY, SLOT, TABLE_CHILDREN, VERSION};
use crate::pid::Pid;
use crate::shared::SharedImage;
use crate::slot::UlpSlot;
use crate::switch::{self, ARGS, Context, REGISTERS};
use crate::ulp::Ulp;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::{fmt, io};

/// Version of [`UlpState`], to be raised when it changes.
const STATE_VERSION: u64 = 1;
/// Versions of the state and of the images' layout.
const VERSIONS: [u64; 2] = [STATE_VERSION, VERSION];
/// Maximum number of mappings of a ULP that moves.
const MOST_MAPPINGS: usize = 1024;
/// Maximum number of calls under way in a ULP that moves.
const DEEPEST: usize = 1 << 16;
/// Number of words that a waiting ULP has on its stack: control words, FS, six registers, and the
/// address where it goes on.
const SAVED: usize = 9;
/// Maximum size of the part of a stack that is searched, in bytes.
const SEARCHED: u64 = 8 << 20;

/// A ULP's state without the contents of its memory; see the module comment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpState {
    /// Versions of this state and of the layout that the image was linked for.
    pub versions: [u64; 2],
    /// Number of the slot, or of the first of several.
    pub slot: u64,
    /// Number of slots that the ULP has.
    pub slots: u64,
    /// The program.
    pub image: ImageIdentity,
    /// The number that `getpid` returns.
    pub process: u32,
    /// Size of the stack, in bytes.
    pub stack: u64,
    /// Where the ULP waits.
    pub context: UlpContext,
    /// The registers when the ULP was interrupted last, in the kernel's order.
    pub registers: Option<[u64; REGISTERS]>,
    /// What is mapped in the slot, in ascending order.
    pub mappings: Vec<UlpMapping>,
    /// Descriptors. The caller passes the descriptors themselves. There are none so far, since a
    /// ULP with descriptors does not move.
    pub descriptors: Vec<UlpDescriptor>,
}

impl UlpState {
    /// The versions of the states that this process makes and takes.
    pub const VERSIONS: [u64; 2] = VERSIONS;
}

/// Where a ULP waits, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpContext {
    /// The stack pointer.
    pub sp: u64,
    /// The question.
    pub what: u64,
    /// The question's arguments.
    pub args: [u64; ARGS],
    /// The answer, if the ULP has one already.
    pub reply: u64,
}

/// A mapping in a ULP's slot, which is always private.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpMapping {
    /// The first address.
    pub start: u64,
    /// The end.
    pub end: u64,
    /// What is allowed there: the sum of [`READ`](Self::READ), [`WRITE`](Self::WRITE) and
    /// [`EXECUTE`](Self::EXECUTE).
    pub protection: u8,
    /// Offset in the program's file; none for anonymous memory.
    pub offset: Option<u64>,
}

impl UlpMapping {
    /// The memory can be read.
    pub const READ: u8 = 1;
    /// The memory can be written to.
    pub const WRITE: u8 = 2;
    /// The memory can be executed.
    pub const EXECUTE: u8 = 4;
}

/// A descriptor of a ULP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UlpDescriptor {
    /// The program's number for it.
    pub number: i32,
    /// Whether children inherit it.
    pub inherited: bool,
}

/// The reason why a ULP cannot move now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UlpPin {
    /// None of its code has run yet: it can be loaded elsewhere instead.
    NeverRan,
    /// The ULP has ended.
    Ended,
    /// A helper makes a system call for it.
    Aside,
    /// The number of children that the ULP has not waited for.
    Children(u64),
    /// The number of descriptors that the ULP has opened.
    Descriptors(usize),
    /// The ULP waits for this descriptor of the process's, which it or its library has opened.
    Waits(i32),
    /// The ULP has mapped a file or shared memory.
    Maps {
        /// Address of the mapping.
        start: u64,
        /// The file, as the kernel names it.
        name: String,
    },
    /// The number of the ULP's mappings is above the maximum.
    Mappings(usize),
    /// The ULP was interrupted in a function of its library, or in a handler of signals during
    /// such a function, or the calls under way are not known.
    Inside,
    /// An address of the process is in the ULP's registers or on its stack, since the ULP is about
    /// to ask something.
    Asks,
    /// The program's file was changed, or is not the ULP's.
    Program(PathBuf),
}

impl fmt::Display for UlpPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverRan => f.write_str("it has not begun"),
            Self::Ended => f.write_str("it has ended"),
            Self::Aside => f.write_str("a system call of its own is under way"),
            Self::Children(count) => write!(f, "it has {count} children"),
            Self::Descriptors(count) => write!(f, "it has {count} open files"),
            Self::Waits(descriptor) => write!(f, "it waits for descriptor {descriptor}"),
            Self::Maps { start, name } => write!(f, "it has mapped {name} at {start:#x}"),
            Self::Mappings(count) => {
                write!(f, "it has {count} mappings of memory, and {MOST_MAPPINGS} is the most")
            }
            Self::Inside => f.write_str("a function of its library is under way"),
            Self::Asks => f.write_str("it is about to ask its process for something"),
            Self::Program(path) => write!(f, "its program {} was changed", path.display()),
        }
    }
}

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
        // SAFETY: the ULP does not run, so nothing else uses its context.
        let Context { sp, what, args, reply, .. } = unsafe { &*self.context() };
        let context = UlpContext { sp: *sp, what: *what, args: *args, reply: *reply };
        self.check_owned(&context)?;
        let same = self.rest.image.as_ref().filter(|_| !image.has_changed());
        let same = same.filter(|own| image.identity.as_ref() == Some(own));
        let same = same.ok_or_else(|| UlpPin::Program(image.path.clone()))?;
        let slot = self.slot.start()..self.slot.start() + self.slot.size();
        let mappings = mappings::within(slot, self.base())?.map_err(NotTaken::Pinned)?;
        let memory = File::open("/proc/self/mem")?;
        self.check_place(image, &context, &memory)?;
        self.check_stack(&context, &mappings, &memory)?;
        Ok(UlpState {
            versions: VERSIONS,
            slot: self.slot() as u64,
            slots: self.slot.size() / SLOT,
            image: ImageIdentity::clone(same),
            process: self.process(),
            stack: self.slot.stack_size(),
            context,
            registers: self.rest.registers.as_ref().map(|registers| registers.0),
            mappings,
            descriptors: Vec::new(),
        })
    }

    /// What of the ULP's memory is to be sent with its state.
    ///
    /// # Errors
    /// The kernel's memory map of this process cannot be read.
    pub fn pages(&self, state: &UlpState) -> io::Result<UlpPages> {
        UlpPages::new(self.slot.number(), &state.mappings, File::open("/proc/self/pagemap").ok())
    }

    /// Gives the memory of a ULP back that goes on elsewhere.
    pub fn leave(mut self) -> ProcessNumber {
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
            None if opened > 0 => Err(UlpPin::Descriptors(opened)),
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

/// Reads words of this process's memory.
fn words(memory: &File, at: u64, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    memory.read_exact_at(&mut bytes, at)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// The slots that a state is for, if they exist and are free.
fn slot_of(state: &UlpState) -> Option<UlpSlot> {
    let (first, count) = (usize::try_from(state.slot).ok()?, usize::try_from(state.slots).ok()?);
    UlpSlot::take_these(first, count)
}
