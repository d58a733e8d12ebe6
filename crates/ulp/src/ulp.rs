//! One user-level process: an image in a slot, and where it was when it stopped.

use crate::aside::{Aside, AsideCall, WORDS};
use crate::backtrace::{self, KernelRegisters, UlpFrame};
use crate::copying::UlpRange;
use crate::debug::{self, DebugRegistration};
use crate::descriptors;
use crate::image::{Image, ImageIdentity, ImageSegment, room, up};
use crate::layout::{
    AUXILIARY, LETTER_WORDS, LETTERS, LINE, PAGE, REPLY_WORDS, TABLE_CALL, TABLE_CLOCK, TABLE_CODE,
    TABLE_CODE_END, TABLE_COUNT, TABLE_FILES, TABLE_FILES_RANGE, TABLE_GATE, TABLE_HEAP,
    TABLE_HEAP_END, TABLE_LETTERS, TABLE_LIBRARY, TABLE_OWNERS, TABLE_PARENT, TABLE_PID,
    TABLE_PROCESS, TABLE_REPLY, TABLE_STACK, TABLE_TASK, TABLE_TIME,
};
use crate::loading::{NotLoaded, UlpOptions};
use crate::pid::Pid;
use crate::slot::{LEAST_STACK, MOST_STACK, UlpSlot};
use crate::switch::{self, CONTROL, Context};
use crate::worker::StopReason;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_void};
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, ptr};
use upcall_os::random;

/// Part of the stack that arguments and environment may take. The rest is for the program.
const WORDS_OF_STACK: u64 = 4;

/// The entries of descriptors 0, 1 and 2, which are the process's at first, and inherited.
const STANDARD: [u64; 2] = [2 << 33 | 1 << 32 | 1 << 1 | 1, 3 << 1 | 1];

/// A user-level process; see the module comment.
///
/// Dropping it ends it silently: none of its code runs any more, and its memory is given back.
pub struct Ulp {
    pub(crate) slot: ManuallyDrop<UlpMemory>,
    context: Box<UnsafeCell<Context>>,
    /// Boxed, since it is seldom used; so is `rest`.
    pub(crate) ended: Option<Box<StopReason>>,
    pub(crate) rest: Box<Rest>,
}

/// What a switch does not need.
#[derive(Default)]
pub(crate) struct Rest {
    pub(crate) pid: Option<Pid>,
    /// The file that the ULP's program is mapped from, once all of the ULP is there.
    pub(crate) image: Option<Arc<ImageIdentity>>,
    /// Set once the whole ULP is mapped.
    pub(crate) known: Option<DebugRegistration>,
    /// A call of the ULP's that a helper runs, or has run.
    pub(crate) call: Option<Arc<AsideCall>>,
    /// The registers when the ULP crashed, or was interrupted last.
    pub(crate) registers: Option<KernelRegisters>,
}

/// A slot, and what is mapped there.
#[derive(Debug)]
pub(crate) struct UlpMemory(UlpSlot);

impl Deref for UlpMemory {
    type Target = UlpSlot;

    fn deref(&self) -> &UlpSlot {
        &self.0
    }
}

impl fmt::Debug for Ulp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ulp")
            .field("slot", &self.slot.number())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// Maximum size of a program's data that is copied at once, in bytes. A program relocates, and so
/// writes, almost each page of it before its `main`, and each fault would cost more than the copy.
const MOST_POPULATED: usize = 1 << 16;

impl Ulp {
    /// Loads an image into a free slot, to be started at its entry.
    ///
    /// The first of `args` is the program's name. Takes some 20 to 50 µs; none of its code has run
    /// yet.
    ///
    /// # Errors
    /// See [`NotLoaded`].
    pub fn load(
        image: &Image,
        args: &[CString],
        environment: &[CString],
    ) -> Result<Self, NotLoaded> {
        Self::load_at(UlpSlot::take().ok_or(NotLoaded::Full)?, image, args, environment)
    }

    /// As [`load`](Self::load), into this slot.
    ///
    /// # Errors
    /// See [`NotLoaded`].
    pub fn load_at(
        slot: UlpSlot,
        image: &Image,
        args: &[CString],
        environment: &[CString],
    ) -> Result<Self, NotLoaded> {
        Self::load_with(slot, image, args, environment, UlpOptions::default())
    }

    /// As [`load_at`](Self::load_at), with options.
    ///
    /// # Errors
    /// See [`NotLoaded`].
    pub fn load_with(
        slot: UlpSlot,
        image: &Image,
        args: &[CString],
        environment: &[CString],
        UlpOptions { stack }: UlpOptions,
    ) -> Result<Self, NotLoaded> {
        if !(LEAST_STACK..=MOST_STACK).contains(&stack) {
            return Err(NotLoaded::Stack { bytes: stack });
        }
        if image.end > room(slot.size(), stack) {
            return Err(NotLoaded::NoRoom { image: image.end, stack, memory: slot.size() });
        }
        let bytes =
            args.iter().chain(environment).map(|text| text.as_bytes_with_nul().len() + 8).sum();
        let most = (stack / WORDS_OF_STACK) as usize;
        if bytes > most {
            return Err(NotLoaded::TooLong { bytes, most });
        }
        let slot = slot.with_stack(stack);
        if image.has_changed() {
            return Err(NotLoaded::Changed(image.path.clone()));
        }
        let mut new = Self::empty(slot);
        new.rest.pid = Some(Pid::take());
        new.map(image)?;
        new.register(image);
        new.rest.image.clone_from(&image.identity);
        let sp = new.fill(image, args, environment)?;
        new.context.get_mut().sp = sp;
        new.set_parent(std::process::id());
        Ok(new)
    }

    /// A ULP with nothing in its slot yet. What is mapped there is unmapped when this is dropped.
    pub(crate) fn empty(slot: UlpSlot) -> Self {
        debug::tell_of_ends();
        let slot = ManuallyDrop::new(UlpMemory(slot));
        let mut new = Self { slot, context: Box::default(), ended: None, rest: Box::default() };
        new.context.get_mut().table = new.slot.table();
        new
    }

    /// Registers a ULP that is mapped with debuggers.
    pub(crate) fn register(&mut self, image: &Image) {
        self.rest.known = DebugRegistration::new(&image.whole_path, self.base(), image.dynamic);
    }

    /// The number of the ULP's slot.
    pub fn slot(&self) -> usize {
        self.slot.number()
    }

    /// The number that its program has for its process (`getpid`).
    ///
    /// No process has that number, and no other ULP of this process while this one lives.
    pub fn process(&self) -> u32 {
        self.rest.pid.as_ref().map_or(0, Pid::number)
    }

    /// Address of the program: what is added to the addresses in its file.
    pub fn base(&self) -> u64 {
        self.slot.middle()
    }

    /// Sets the number by which debuggers know the ULP, as `upcall_current_task`.
    ///
    /// To be called before the ULP runs.
    pub fn call_it(&mut self, task: i32) {
        put(self.table() + TABLE_TASK * 8, task as u64);
    }

    /// Sets the number that `getppid` returns. By default it is this process's.
    ///
    /// To be called before the ULP runs.
    pub fn set_parent(&mut self, process: u32) {
        put(self.table() + TABLE_PARENT * 8, process.into());
    }

    /// A range of the ULP's addresses. `None`: not all of it is in the ULP's slot.
    #[inline]
    pub fn range(&self, start: u64, length: usize) -> Option<UlpRange> {
        UlpRange::within(self.slot.start()..self.slot.end(), start, length)
    }

    /// Answers the ULP's question.
    pub fn answer(&mut self, reply: i64) {
        // SAFETY: the ULP does not run, so nothing else uses its context.
        unsafe { (*self.context()).reply = reply as u64 };
    }

    /// As [`answer`](Self::answer), with words that the ULP finds in its table.
    pub fn answer_with(&mut self, reply: i64, words: [u64; REPLY_WORDS as usize]) {
        let at = (self.table() + TABLE_REPLY * 8) as *mut [u64; REPLY_WORDS as usize];
        // SAFETY: the address is in the ULP's table, which is mapped as long as the ULP lives; and
        // it does not run.
        unsafe { at.write(words) };
        self.answer(reply);
    }

    /// Passes the call that the ULP asked for ([`ASK_ASIDE`](crate::ASK_ASIDE)) to a helper.
    ///
    /// `at` is the address of the call's number and arguments. The ULP must not be resumed before
    /// [`aside`](Self::aside) has the result. If it is dropped earlier, the call is interrupted,
    /// and the ULP's memory stays until the call has ended.
    ///
    /// # Errors
    /// The number of the kernel's error: helpers do not run this call, a call is under way already,
    /// or no thread is available.
    pub fn begin_aside(&mut self, helpers: &Aside, at: u64, token: u64) -> Result<(), i32> {
        let ends = at.checked_add(WORDS as u64 * 8).ok_or(libc::EFAULT)?;
        // Within the stack, table and image, all of which are mapped.
        if !at.is_multiple_of(8) || at < self.slot.stack() || ends > self.slot.middle() {
            return Err(libc::EFAULT);
        }
        if self.rest.call.is_some() {
            return Err(libc::EBUSY);
        }
        // SAFETY: the address is mapped and aligned, and the ULP does not run.
        let words = unsafe { (at as *const [u64; WORDS]).read() };
        self.rest.call = Some(helpers.run(words, token)?);
        Ok(())
    }

    /// The result of the call, once. Returns `None` if it is not done yet, or there is none.
    pub fn aside(&mut self) -> Option<i64> {
        let result = self.rest.call.as_ref()?.result()?;
        self.rest.call = None;
        Some(result)
    }

    /// Ends the call with EINTR as soon as possible, if it is not done.
    pub fn interrupt_aside(&self) {
        if let Some(call) = &self.rest.call {
            call.interrupt();
        }
    }

    /// Processor time of the ULP so far, as its worker's interrupts have found it
    /// ([`Worker::interrupt_every`](crate::Worker::interrupt_every)): right on average. A ULP that
    /// moves takes it along.
    ///
    /// The ULP may write the word that has it.
    pub fn processor_time(&self) -> Duration {
        Duration::from_nanos(self.word(TABLE_TIME))
    }

    /// Reads a word of the table.
    pub(crate) fn word(&self, at: u64) -> u64 {
        // SAFETY: the address is in the ULP's table, which is mapped as long as the ULP lives; and
        // it does not run.
        unsafe { ((self.table() + at * 8) as *const u64).read() }
    }

    pub(crate) fn set_word(&mut self, at: u64, word: u64) {
        // SAFETY: as above.
        unsafe { ((self.table() + at * 8) as *mut u64).write(word) };
    }

    /// Prefetches what the ULP begins with, since it is to run soon.
    ///
    /// `distances` are offsets of lines in what the library above keeps after the table.
    #[inline]
    pub fn expect(&self, distances: [u64; 4]) {
        let context = self.context.get() as u64;
        // SAFETY: the ULP does not run, so nothing else uses its context.
        let sp = unsafe { (*self.context()).sp };
        let table = self.table();
        let library = table + TABLE_LIBRARY * 8;
        let own = [context, sp, sp + LINE, sp + 2 * LINE, table, table + TABLE_LETTERS * 8];
        // Two loops, which the compiler unrolls.
        own.into_iter().for_each(prefetch);
        distances.into_iter().for_each(|distance| prefetch(library + distance));
    }

    /// Takes the letters in the table, and returns their number.
    ///
    /// The next letter that the ULP writes is the first again.
    pub fn take_letters(&mut self) -> usize {
        let at = (self.table() + TABLE_COUNT * 8) as *mut u64;
        // SAFETY: the address is in the ULP's table, and it does not run.
        let count = unsafe { at.read() };
        if count > 0 {
            // SAFETY: as above.
            unsafe { at.write(0) };
        }
        count.min(LETTERS) as usize
    }

    /// One of the letters. Valid until the ULP runs again.
    ///
    /// # Panics
    /// If `number` is not below the maximum number of letters.
    pub fn letter(&self, number: usize) -> [u64; LETTER_WORDS as usize] {
        assert!(number < LETTERS as usize);
        let at = self.table() + (TABLE_LETTERS + number as u64 * LETTER_WORDS) * 8;
        // SAFETY: the address is in the ULP's table, which is mapped as long as it lives.
        let words = unsafe { &*(at as *const [AtomicU64; LETTER_WORDS as usize]) };
        // Each word by a load of its own, since the image has stored it so. A load of two words
        // would wait until both are in the cache.
        words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// Address of the table.
    #[inline]
    pub(crate) fn table(&self) -> u64 {
        // SAFETY: the ULP does not run, so nothing else uses its context.
        unsafe { (*self.context()).table }
    }

    /// The part of the ULP that the switch uses.
    pub(crate) fn context(&self) -> *mut Context {
        self.context.get()
    }

    /// How the ULP has ended, if it has.
    pub fn ended(&self) -> Option<StopReason> {
        self.ended.as_deref().copied()
    }

    /// The calls under way when the ULP crashed, or was interrupted last.
    ///
    /// The innermost comes first, down to `main`, as far as `image`, the ULP's own, tells. Reads
    /// the image's file. Empty if the ULP was neither.
    pub fn backtrace(&self, image: &Image) -> Vec<UlpFrame> {
        let memory = self.slot.start()..self.slot.end();
        self.rest
            .registers
            .as_ref()
            .map_or_else(Vec::new, |registers| backtrace::of(registers, image, self.base(), memory))
    }

    /// Returns `true` if the ULP was [interrupted](StopReason::Interrupted) where handlers may run.
    ///
    /// That is where no function of the library is under way, which could be half done. Returns
    /// `false` where `image`, the ULP's own, does not tell.
    pub fn is_in_own_code(&self, image: &Image) -> bool {
        let library = self.library();
        let registers = self.rest.registers.as_ref();
        registers
            .and_then(|registers| self.calls(registers, image, backtrace::DEEPEST))
            .is_some_and(|all| !all.iter().any(|address| library.contains(address)))
    }

    /// The range of the library's code.
    pub(crate) fn library(&self) -> Range<u64> {
        self.word(TABLE_CODE)..self.word(TABLE_CODE_END)
    }

    /// The addresses of the calls under way, if there are at most `most` and all are known.
    pub(crate) fn calls(
        &self,
        registers: &KernelRegisters,
        image: &Image,
        most: usize,
    ) -> Option<Vec<u64>> {
        let memory = self.slot.start()..self.slot.end();
        backtrace::addresses(registers, image, self.base(), memory, most)
    }

    fn map(&self, image: &Image) -> Result<(), NotLoaded> {
        let number = self.slot.number();
        let unable = |what| {
            move |error: rustix::io::Errno| NotLoaded::Memory {
                what,
                slot: number,
                error: error.into(),
            }
        };
        let start = self.slot.middle();
        for part in &image.parts {
            self.map_part(image, part).map_err(unable("the program"))?;
        }
        let heap = start + image.end;
        anonymous(heap, self.slot.end() - heap).map_err(unable("the heap"))?;
        anonymous(self.slot.stack(), self.slot.stack_size()).map_err(unable("the stack"))
    }

    fn map_part(&self, image: &Image, part: &ImageSegment) -> rustix::io::Result<()> {
        let start = self.slot.middle();
        let (first, file) = (part.at / PAGE * PAGE, part.at + part.filled);
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, part.writable);
        protection.set(ProtFlags::EXEC, part.executable);
        if up(file) > first {
            let (at, length) = ((start + first) as *mut c_void, (up(file) - first) as usize);
            let mut flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            flags.set(MapFlags::POPULATE, part.writable && length <= MOST_POPULATED);
            // SAFETY: nothing is mapped there, or the kernel refuses; the slot is this ULP's.
            unsafe {
                mmap(at, length, protection, flags, image.file.as_fd(), part.offset / PAGE * PAGE)
            }?;
        }
        if part.length > part.filled {
            // What the file holds after the data, to the end of the page, is not the program's.
            let rest = (up(file) - file).min(part.length - part.filled);
            // SAFETY: mapped just now, and writable, as segments with zeros are; nothing runs there
            // yet.
            unsafe { ptr::write_bytes((start + file) as *mut u8, 0, rest as usize) };
            let end = up(part.at + part.length);
            if end > up(file) {
                anonymous(start + up(file), end - up(file))?;
            }
        }
        Ok(())
    }

    /// Writes the words of the table that are this process's.
    pub(crate) fn fill_process(&mut self) {
        let words = [
            (TABLE_GATE, switch::gate as *const () as u64),
            (TABLE_PID, self.process().into()),
            (TABLE_PROCESS, u64::from(std::process::id())),
            (TABLE_OWNERS, descriptors::owners()),
            (TABLE_CLOCK, crate::clock::address()),
            (TABLE_CALL, switch::call as *const () as u64),
        ];
        for (at, word) in words {
            self.set_word(at, word);
        }
    }

    /// Writes the table.
    fn fill_table(&mut self, image: &Image) {
        self.fill_process();
        let table = [
            (TABLE_HEAP, self.slot.middle() + image.end + self.slot.lines()),
            (TABLE_HEAP_END, self.slot.heap_end()),
            (TABLE_STACK, self.slot.stack()),
            (TABLE_FILES, STANDARD[0]),
            (TABLE_FILES + 1, STANDARD[1]),
            (TABLE_FILES_RANGE, 3 << 32 | 3),
        ];
        for (at, value) in table {
            put(self.table() + at * 8, value);
        }
    }

    /// Writes the table, and what the kernel would have written on the stack. Returns the stack
    /// pointer.
    ///
    /// # Errors
    /// [`NotLoaded::NoRandomBytes`].
    fn fill(
        &mut self,
        image: &Image,
        args: &[CString],
        environment: &[CString],
    ) -> Result<u64, NotLoaded> {
        let start = self.slot.middle();
        self.fill_table(image);
        let mut top = self.table();
        let mut text = |text: &CStr| {
            let bytes = text.to_bytes_with_nul();
            top -= bytes.len() as u64;
            copy(top, bytes);
            top
        };
        let name = args.first().map(CString::as_c_str).unwrap_or_default();
        let program = text(name);
        let args = args.iter().map(|one| text(one)).collect::<Vec<_>>();
        let environment = environment.iter().map(|one| text(one)).collect::<Vec<_>>();
        let random = random::bytes::<16>().map_err(NotLoaded::NoRandomBytes)?;
        top = (top - 16) / 16 * 16;
        copy(top, &random);
        let auxiliary = self.auxiliary(image, program, top);
        let mut words = vec![args.len() as u64];
        words.extend(args.iter().copied().chain([0]).chain(environment.iter().copied()).chain([0]));
        words.extend(auxiliary.into_iter().flat_map(|(of, value)| [of, value]));
        // At the entry the stack pointer is at argc, and a multiple of 16.
        let argc = (top - words.len() as u64 * 8) / 16 * 16;
        for (at, word) in words.into_iter().enumerate() {
            put(argc + at as u64 * 8, word);
        }
        let mut sp = argc;
        let begin = switch::begin as *const () as u64;
        for word in [begin, 0, start + image.entry, 0, 0, 0, 0, 0, CONTROL] {
            sp -= 8;
            put(sp, word);
        }
        Ok(sp)
    }

    /// What the kernel gives a program besides its environment.
    ///
    /// `program` is the address of its name, and `random` that of 16 random bytes.
    fn auxiliary(&self, image: &Image, program: u64, random: u64) -> [(u64, u64); 20] {
        let start = self.slot.middle();
        let [user, own] = [rustix::process::getuid(), rustix::process::geteuid()]
            .map(|id| u64::from(id.as_raw()));
        let [group, groups] = [rustix::process::getgid(), rustix::process::getegid()]
            .map(|id| u64::from(id.as_raw()));
        // SAFETY: reads a value that the kernel has given.
        let kernels = |of| unsafe { libc::getauxval(of) };
        [
            (libc::AT_PHDR, start + image.headers.0),
            (libc::AT_PHENT, 56),
            (libc::AT_PHNUM, image.headers.1),
            (libc::AT_PAGESZ, PAGE),
            (libc::AT_BASE, 0),
            (libc::AT_FLAGS, 0),
            (libc::AT_ENTRY, start + image.entry),
            (libc::AT_UID, user),
            (libc::AT_EUID, own),
            (libc::AT_GID, group),
            (libc::AT_EGID, groups),
            (libc::AT_SECURE, 0),
            (libc::AT_RANDOM, random),
            (libc::AT_HWCAP, kernels(libc::AT_HWCAP)),
            (libc::AT_HWCAP2, kernels(libc::AT_HWCAP2)),
            (libc::AT_CLKTCK, kernels(libc::AT_CLKTCK)),
            (libc::AT_EXECFN, program),
            (libc::AT_MINSIGSTKSZ, kernels(libc::AT_MINSIGSTKSZ)),
            (AUXILIARY, self.table()),
            (libc::AT_NULL, 0),
        ]
    }
}

/// Maps zeros that take memory only where they are touched.
pub(crate) fn anonymous(at: u64, length: u64) -> rustix::io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: nothing is mapped there, or the kernel refuses; the slot is this ULP's.
    unsafe { mmap_anonymous(at as *mut c_void, length as usize, protection, flags) }.map(drop)
}

/// Writes a word into a fresh ULP's stack or table.
fn put(at: u64, word: u64) {
    copy(at, &word.to_ne_bytes());
}

fn prefetch(at: u64) {
    // SAFETY: a prefetch of any address is harmless, since it reads nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at as *const i8) };
}

fn copy(at: u64, bytes: &[u8]) {
    // SAFETY: `Ulp::load` has checked that all of this fits into the stack, which is mapped and
    // writable; nothing runs there yet.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

impl Drop for Ulp {
    fn drop(&mut self) {
        self.rest.known = None;
        descriptors::close_all_of(self.slot.number());
        // SAFETY: taken once, and not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.slot) };
        if let Some(call) = self.rest.call.take() {
            call.keep(memory);
        }
    }
}

impl Drop for UlpMemory {
    fn drop(&mut self) {
        // SAFETY: what is mapped in the slot belongs to one ULP, which is not resumed any more and
        // has no call under way.
        let _ = unsafe { munmap(self.0.start() as *mut c_void, self.0.size() as usize) };
    }
}
