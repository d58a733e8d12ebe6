//! Bytes that a peer may change at any time: uninterpreted until they are copied.
//!
//! Numbers are read and written with relaxed atomics of their own size: one access, so a value is
//! checked and used as it was read once. Runs of bytes are moved by [`copy_out`](Span::copy_out)
//! and [`copy_in`](WritableSpan::copy_in). Short ones are moved word by word, longer ones by
//! vectors or `rep movsb` in assembly blocks. The compiler cannot see into these blocks, so a
//! peer's concurrent stores cannot contradict any of its assumptions. No run of bytes goes into or
//! out of shared memory by another way, so a build with debug assertions can count what was copied
//! ([`copied`]).

use std::collections::TryReserveError;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Length from which copies use vectors, in bytes. Many lines are then under way from the other
/// processor at once.
const VECTOR_COPY: usize = 64;

/// Length from which copies into private memory use the processor's string instruction, in bytes.
/// The instruction writes whole lines without reading them first.
const STRING_COPY: usize = 256 << 10;

/// Length from which copies into shared memory use the string instruction, in bytes. The peer has
/// read the lines since they were last written, and a vector's store has to take each of them back
/// first. For 64 KiB that lay in the other processor's cache, vectors took 9.5 µs and the string
/// instruction 1.4 µs (EPYC, lines of 360 ns; at 2 KiB they were alike).
const STRING_SHARE: usize = 2 << 10;

/// Length of the pieces in which text is copied and checked, in bytes.
const TEXT_PIECE: usize = if cfg!(test) { 64 } else { 16 << 10 };

/// Maximum number of bytes that are prefetched before a read.
#[cfg(not(miri))]
const AHEAD: usize = 4096;

#[cfg(debug_assertions)]
static COPIED: AtomicU64 = AtomicU64::new(0);

#[cfg(debug_assertions)]
static READ_SINGLY: AtomicU64 = AtomicU64::new(0);

/// Number of bytes that this process has copied by spans, in all its threads.
///
/// It counts copies into shared memory, out of it, and within it, to test which code copies. It
/// does not count numbers that are read or written one by one, which are used in place, nor what
/// the kernel takes ([`Span::write_to`]).
///
/// `None` in builds without debug assertions, which do not count.
pub fn copied() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(COPIED.load(Relaxed));
    #[cfg(not(debug_assertions))]
    return None;
}

/// Number of bytes that this process has read from spans as single numbers.
///
/// It counts all threads. It is the complement of [`copied`]: a copy made word by word shows here.
/// Words that [`Span::words`] gives out count as read. `None` in builds without debug assertions,
/// which do not count.
pub fn read_singly() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(READ_SINGLY.load(Relaxed));
    #[cfg(not(debug_assertions))]
    return None;
}

/// The bytes of private words, as they lie in memory.
pub fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: the words are initialised, lie together, and are borrowed for as long as the bytes.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Why bytes could not become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoText {
    /// They are not UTF-8.
    NotUtf8,
    /// There is no memory for the copy.
    NoMemory,
}

/// A run of bytes that others may change; see the module.
///
/// Copying a span copies the view, not the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    start: NonNull<u8>,
    len: usize,
    life: PhantomData<&'a AtomicU8>,
}

// SAFETY: a span is a view of atomics, which may be sent and shared.
unsafe impl Send for Span<'_> {}
// SAFETY: as above.
unsafe impl Sync for Span<'_> {}

macro_rules! load {
    ($load:ident, $atomic:ty, $plain:ty) => {
        /// Reads a number at `at`, once.
        ///
        /// `None` if it does not lie within or is not aligned.
        #[inline(always)]
        pub fn $load(&self, at: usize) -> Option<$plain> {
            let cell = self.cell::<$atomic>(at)?;
            #[cfg(debug_assertions)]
            READ_SINGLY.fetch_add(size_of::<$plain>() as u64, Relaxed);
            // SAFETY: `cell` checked bounds and alignment, and no code holds a plain reference to
            // the bytes of a span.
            Some(unsafe { cell.as_ref() }.load(Relaxed))
        }
    };
}

macro_rules! store {
    ($store:ident, $atomic:ty, $plain:ty) => {
        /// Writes a number at `at`; `None` if it does not lie within or is not aligned.
        #[inline(always)]
        pub fn $store(&self, at: usize, value: $plain) -> Option<()> {
            let cell = self.0.cell::<$atomic>(at)?;
            // SAFETY: as for the load; a `WritableSpan` is writable by construction.
            unsafe { cell.as_ref() }.store(value, Relaxed);
            Some(())
        }
    };
}

impl<'a> Span<'a> {
    /// A view of `len` bytes at `start`.
    ///
    /// # Safety
    /// The range is mapped and stays so for `'a`. During that time it is written only by atomics,
    /// by opaque copies, or by another process.
    #[inline]
    pub const unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, life: PhantomData }
    }

    /// A view of private bytes, which do not change while it lives.
    ///
    /// Number accesses fail if they are unaligned; byte copies always work.
    #[inline]
    pub const fn of_bytes(bytes: &'a [u8]) -> Self {
        // SAFETY: a reference is not null.
        let start = unsafe { NonNull::new_unchecked(bytes.as_ptr().cast_mut()) };
        // SAFETY: the shared borrow keeps the bytes valid for `'a`; a span only reads.
        unsafe { Self::new(start, bytes.len()) }
    }

    /// A view of private words, which do not change while it lives.
    #[inline]
    pub const fn of_words(words: &'a [u64]) -> Self {
        // SAFETY: a reference is not null.
        let start = unsafe { NonNull::new_unchecked(words.as_ptr().cast_mut().cast()) };
        // SAFETY: the shared borrow keeps the words valid for `'a`; a span only reads.
        unsafe { Self::new(start, words.len() * 8) }
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if it has no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Address of its beginning, for other languages and for the kernel.
    ///
    /// A read there finds what a peer has just written, and may find something else the next time.
    #[inline]
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// A part of the span; `None` if the part does not lie within.
    #[inline]
    pub fn part(&self, at: usize, len: usize) -> Option<Self> {
        if at > self.len || len > self.len - at {
            return None;
        }
        // SAFETY: `at <= self.len`, within the range or one past its end.
        let start = unsafe { self.start.add(at) };
        Some(Self { start, len, life: PhantomData })
    }

    #[inline(always)]
    fn cell<T>(&self, at: usize) -> Option<NonNull<T>> {
        let size = size_of::<T>();
        if self.len < size || at > self.len - size {
            return None;
        }
        // SAFETY: `at + size <= len`.
        let cell = unsafe { self.start.add(at) }.cast::<T>();
        cell.is_aligned().then_some(cell)
    }

    load!(u8, AtomicU8, u8);
    load!(u16, AtomicU16, u16);
    load!(u32, AtomicU32, u32);
    load!(u64, AtomicU64, u64);

    /// Prefetches its first lines all at once.
    ///
    /// What the peer has just written lies in its processor's cache. Without a prefetch the lines
    /// come from there almost one after the other (4 KiB: 893 ns, with a prefetch 640). Further on,
    /// the processor detects the direction and prefetches by itself.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for at in (0..self.len.min(AHEAD)).step_by(64) {
            let line = self.start.as_ptr().wrapping_add(at);
            // SAFETY: a prefetch of any address has no effect that a program can see.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast())
            };
        }
    }

    /// Its whole words of eight bytes.
    ///
    /// `None` if it does not begin at a multiple of eight.
    #[inline]
    pub fn words(&self) -> Option<&'a [AtomicU64]> {
        let start = self.start.cast::<AtomicU64>();
        if !start.is_aligned() {
            return None;
        }
        #[cfg(debug_assertions)]
        READ_SINGLY.fetch_add(self.len as u64 / 8 * 8, Relaxed);
        let words = NonNull::slice_from_raw_parts(start, self.len / 8);
        // SAFETY: aligned and within a range that is mapped for `'a`; atomics may be changed by
        // others.
        Some(unsafe { words.as_ref() })
    }

    /// Fills `to` with the bytes from `at` on.
    ///
    /// `None`, and no copy, if they do not lie within.
    #[inline]
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> Option<()> {
        let from = self.part(at, to.len())?;
        from.prefetch();
        // SAFETY: a slice's pointer is not null.
        let target = unsafe { NonNull::new_unchecked(to.as_mut_ptr()) };
        // SAFETY: both ranges have `to.len()` valid bytes, and `to` is ours alone, so they do not
        // overlap.
        unsafe { move_bytes(from.start, target, to.len(), STRING_COPY) };
        Some(())
    }

    /// Appends all its bytes to `to`.
    ///
    /// This is the only copy of a variable-sized value on its way to its owner.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        self.prefetch();
        to.reserve(self.len);
        let room = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: the spare capacity's pointer is not null, even if it is empty.
        let target = unsafe { NonNull::new_unchecked(room) };
        // SAFETY: `reserve` made room for `len` bytes that no other code can reach.
        unsafe { move_bytes(self.start, target, self.len, STRING_COPY) };
        let len = to.len() + self.len;
        // SAFETY: these bytes have just been written.
        unsafe { to.set_len(len) };
    }

    /// Appends all its bytes to `to`, and zeros up to a whole word.
    ///
    /// # Errors
    /// There is no memory, and nothing was added.
    pub fn append_to_words(&self, to: &mut Vec<u64>) -> Result<(), TryReserveError> {
        let room = room_for(self.len, to)?;
        self.prefetch();
        // SAFETY: `room` has at least as many bytes, which no other code can reach.
        unsafe { move_bytes(self.start, room, self.len, STRING_COPY) };
        // SAFETY: these words have just been written: the last one before the bytes in it.
        unsafe { to.set_len(to.len() + self.len.div_ceil(8)) };
        Ok(())
    }

    /// A copy as text; `None` if the bytes are not UTF-8.
    ///
    /// Each piece is checked right after its copy, while it is in the cache: the check of a value
    /// that is interpreted is part of its copy (LRPC, section 3.5).
    pub fn to_text(&self) -> Option<String> {
        self.try_to_text(|_| {}).ok()
    }

    /// Like [`to_text`](Self::to_text), but also returns why there is no text.
    ///
    /// It calls `copied` after each piece of at most 16 KiB, with the piece's length.
    ///
    /// # Errors
    /// See [`NoText`].
    pub fn try_to_text(&self, mut copied: impl FnMut(usize)) -> Result<String, NoText> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.len).map_err(|_| NoText::NoMemory)?;
        let mut checked = 0;
        for at in (0..self.len).step_by(TEXT_PIECE) {
            let piece = self.part(at, TEXT_PIECE.min(self.len - at)).ok_or(NoText::NotUtf8)?;
            piece.append_to(&mut bytes);
            checked += match std::str::from_utf8(&bytes[checked..]) {
                Ok(piece) => piece.len(),
                // A character that continues in the next piece.
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                Err(_) => return Err(NoText::NotUtf8),
            };
            copied(piece.len);
        }
        if checked != bytes.len() {
            return Err(NoText::NotUtf8);
        }
        // SAFETY: each piece, which ends where a character ends, was found to be UTF-8 in our own
        // memory, and the pieces make up all of `bytes`.
        Ok(unsafe { String::from_utf8_unchecked(bytes) })
    }

    /// Returns `true` if the bytes are UTF-8.
    ///
    /// It copies them to the stack piece by piece, and allocates nothing.
    pub fn is_text(&self) -> bool {
        const PIECE: usize = if cfg!(test) { 61 } else { 4096 };
        let (mut piece, mut carried) = ([0; PIECE + 3], 0);
        for at in (0..self.len).step_by(PIECE) {
            let there = carried + PIECE.min(self.len - at);
            if self.copy_out(at, &mut piece[carried..there]).is_none() {
                return false;
            }
            carried = match std::str::from_utf8(&piece[..there]) {
                Ok(_) => 0,
                // A character that continues in the next piece.
                Err(error) if error.error_len().is_none() => {
                    piece.copy_within(error.valid_up_to()..there, 0);
                    there - error.valid_up_to()
                }
                Err(_) => return false,
            };
        }
        carried == 0
    }

    /// Copies all bytes to the start of `to`. `None`, and no copy, if `to` is shorter.
    pub fn copy_to(&self, to: WritableSpan<'_>) -> Option<()> {
        let to = to.part(0, self.len)?;
        // SAFETY: both ranges have `len` valid bytes. The spans may overlap, and then the result is
        // some mixture of their bytes, which is what uninterpreted bytes may be.
        unsafe { move_bytes(self.start, to.start, self.len, STRING_SHARE) };
        Some(())
    }

    /// Writes the bytes to a descriptor, without a copy in user space.
    ///
    /// Returns the number of bytes that the kernel took.
    ///
    /// # Errors
    /// Those of `write`; an interrupted one is tried again.
    pub fn write_to(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        loop {
            // SAFETY: the range is mapped for `'a`; the kernel copies it as it finds it, even if a
            // peer writes at the same time.
            let done = unsafe { libc::write(fd.as_raw_fd(), self.start.as_ptr().cast(), self.len) };
            if let Ok(done) = usize::try_from(done) {
                return Ok(done);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// A [`Span`] that this side may also write.
#[derive(Clone, Copy, Debug)]
pub struct WritableSpan<'a>(Span<'a>);

impl<'a> Deref for WritableSpan<'a> {
    type Target = Span<'a>;

    #[inline]
    fn deref(&self) -> &Span<'a> {
        &self.0
    }
}

impl<'a> WritableSpan<'a> {
    /// A writable view of `len` bytes at `start`.
    ///
    /// # Safety
    /// As [`Span::new`]; also the range is writable, and for `'a` no code in this process holds a
    /// plain reference to it.
    #[inline]
    pub const unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        // SAFETY: passed on to the caller.
        Self(unsafe { Span::new(start, len) })
    }

    /// A view of private words, which no other code can reach while it lives.
    #[inline]
    pub const fn of_words(words: &'a mut [u64]) -> Self {
        let len = words.len() * 8;
        // SAFETY: a reference is not null.
        let start = unsafe { NonNull::new_unchecked(words.as_mut_ptr().cast()) };
        // SAFETY: the exclusive borrow for `'a` makes every access but ours impossible.
        unsafe { Self::new(start, len) }
    }

    /// A writable part of the span; `None` if the part does not lie within.
    #[inline]
    pub fn within(&self, at: usize, len: usize) -> Option<Self> {
        self.part(at, len).map(Self)
    }

    store!(put_u8, AtomicU8, u8);
    store!(put_u16, AtomicU16, u16);
    store!(put_u32, AtomicU32, u32);
    store!(put_u64, AtomicU64, u64);

    /// Copies `from` to the bytes from `at` on.
    ///
    /// `None`, and no copy, if they do not lie within.
    #[inline]
    pub fn copy_in(&self, at: usize, from: &[u8]) -> Option<()> {
        let to = self.part(at, from.len())?;
        let source = NonNull::from(from).cast::<u8>();
        // SAFETY: both ranges have `from.len()` valid bytes; `from` is immutable, so the writable
        // span cannot overlap it.
        unsafe { move_bytes(source, to.start, from.len(), STRING_SHARE) };
        Some(())
    }
}

/// Appends bytes of this process alone to `to`, and zeros up to a whole word.
///
/// No peer reaches these bytes, so the C library copies them, with the widest vectors that the
/// processor has.
///
/// # Errors
/// There is no memory, and nothing was added.
pub fn append_bytes(bytes: &[u8], to: &mut Vec<u64>) -> Result<(), TryReserveError> {
    let room = room_for(bytes.len(), to)?;
    // SAFETY: `room` has at least as many bytes, and `bytes` cannot overlap what `to` owns.
    unsafe { room.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    // SAFETY: these words have just been written: the last one before the bytes in it.
    unsafe { to.set_len(to.len() + bytes.len().div_ceil(8)) };
    Ok(())
}

/// Makes room behind `to` for so many bytes, in whole words. The last word is zero.
fn room_for(bytes: usize, to: &mut Vec<u64>) -> Result<NonNull<u8>, TryReserveError> {
    let words = bytes.div_ceil(8);
    to.try_reserve(words)?;
    let room = to.spare_capacity_mut();
    if let Some(last) = words.checked_sub(1) {
        room[last].write(0);
    }
    // SAFETY: the spare capacity's pointer is not null, even if it is empty.
    Ok(unsafe { NonNull::new_unchecked(room.as_mut_ptr().cast::<u8>()) })
}

/// Copies `len` bytes between ranges that a peer may be writing or reading. Uses the string
/// instruction from `string` bytes on.
///
/// # Safety
/// Both ranges are valid for `len` bytes, and each is either private to the caller or a span's.
#[inline]
unsafe fn move_bytes(from: NonNull<u8>, to: NonNull<u8>, len: usize, string: usize) {
    #[cfg(debug_assertions)]
    COPIED.fetch_add(len as u64, Relaxed);
    if cfg!(any(miri, not(target_arch = "x86_64"))) || len < VECTOR_COPY {
        // SAFETY: passed on from the caller.
        unsafe { word_copy(from, to, len) }
    } else if len < string {
        // SAFETY: passed on from the caller; there are at least 64 bytes.
        unsafe { vector_copy(from, to, len) }
    } else {
        // SAFETY: passed on from the caller.
        unsafe { string_copy(from, to, len) }
    }
}

/// Copies 64 bytes at a time. If `len` is not a multiple of 64, the last step copies the last 64
/// bytes, and overlaps the step before. `len >= 64`.
#[cfg(target_arch = "x86_64")]
unsafe fn vector_copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: the caller vouches for both ranges; every access lies within them, since the loop
    // ends 64 bytes before their ends and the last step begins there.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "cmp {from}, {last}",
            "jb 2b",
            "sub {from}, {last}",
            "sub {to}, {from}",
            "movups {a}, [{last}]",
            "movups {b}, [{last} + 16]",
            "movups {c}, [{last} + 32]",
            "movups {d}, [{last} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            from = inout(reg) from.as_ptr() => _,
            to = inout(reg) to.as_ptr() => _,
            last = in(reg) from.as_ptr().wrapping_add(len - 64),
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn vector_copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { word_copy(from, to, len) }
}

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn string_copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: the caller vouches for both ranges; the direction flag is clear by the calling
    // convention.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from.as_ptr() => _,
            inout("rdi") to.as_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn string_copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { word_copy(from, to, len) }
}

/// Copies eight bytes at a time if both ends are aligned at eight, and else byte by byte.
#[inline]
unsafe fn word_copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    let mut done = 0;
    if (from.as_ptr().addr() | to.as_ptr().addr()) & 7 == 0 {
        while done + 8 <= len {
            // SAFETY: `done + 8 <= len`.
            let from = unsafe { from.add(done) }.cast::<AtomicU64>();
            // SAFETY: `done + 8 <= len`.
            let to = unsafe { to.add(done) }.cast::<AtomicU64>();
            // SAFETY: aligned and within; private memory may be read atomically too.
            let word = unsafe { from.as_ref() }.load(Relaxed);
            // SAFETY: aligned, within and writable.
            unsafe { to.as_ref() }.store(word, Relaxed);
            done += 8;
        }
    }
    while done < len {
        // SAFETY: `done < len`.
        let from = unsafe { from.add(done) }.cast::<AtomicU8>();
        // SAFETY: `done < len`.
        let to = unsafe { to.add(done) }.cast::<AtomicU8>();
        // SAFETY: within; bytes are always aligned.
        let byte = unsafe { from.as_ref() }.load(Relaxed);
        // SAFETY: within and writable.
        unsafe { to.as_ref() }.store(byte, Relaxed);
        done += 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn text_is_checked_piece_by_piece() {
        // Characters of one to four bytes lie across the ends of pieces in every way.
        for start in 0..4 {
            let text = "x".repeat(start) + &"aä€😀".repeat(60);
            assert_eq!(Span::of_bytes(text.as_bytes()).to_text().as_deref(), Some(text.as_str()));
            for cut in 0..text.len() {
                let bytes = &text.as_bytes()[..cut];
                assert_eq!(
                    Span::of_bytes(bytes).to_text().as_deref(),
                    std::str::from_utf8(bytes).ok(),
                    "{start} {cut}"
                );
                assert_eq!(
                    Span::of_bytes(bytes).is_text(),
                    std::str::from_utf8(bytes).is_ok(),
                    "{start} {cut}"
                );
                let mut broken = text.clone().into_bytes();
                broken[cut] = 0xff;
                assert_eq!(Span::of_bytes(&broken).to_text(), None, "{start} {cut}");
                assert!(!Span::of_bytes(&broken).is_text(), "{start} {cut}");
            }
        }
    }

    #[test]
    fn numbers_stay_within_and_aligned() {
        let mut words = [0; 2];
        let span = WritableSpan::of_words(&mut words);
        assert_eq!(span.put_u64(8, 0x0102_0304_0506_0708), Some(()));
        assert_eq!(span.u64(8), Some(0x0102_0304_0506_0708));
        assert_eq!(span.u8(15), Some(1));
        assert_eq!(span.u8(16), None);
        assert_eq!(span.u16(15), None);
        assert_eq!(span.u32(2), None);
        assert_eq!(span.u64(9), None);
        assert_eq!(span.u64(usize::MAX), None);
        assert_eq!(span.put_u32(13, 0), None);
    }

    #[test]
    fn appended_bytes_end_with_a_whole_word() {
        for len in 0..40 {
            let bytes: Vec<u8> = (1..=len).collect();
            let mut words = vec![7];
            append_bytes(&bytes, &mut words).unwrap();
            let mut expected = vec![7];
            Span::of_bytes(&bytes).append_to_words(&mut expected).unwrap();
            assert_eq!(words, expected, "{len}");
        }
    }

    #[test]
    fn copies_of_every_length_and_alignment() {
        let long = if cfg!(miri) { 40 } else { 2 * STRING_COPY };
        let source: Vec<u8> = (0..long + 8).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in (0..200)
            .chain([384, STRING_SHARE - 1, STRING_SHARE, 4100, STRING_COPY - 1, STRING_COPY, long])
            .filter(|&n| n <= long)
        {
            for shift in 0..8 {
                let mut words = vec![0u64; len / 8 + 3];
                let span = WritableSpan::of_words(&mut words);
                span.copy_in(shift, &source[shift..shift + len]).unwrap();
                let mut back = vec![0; len];
                span.copy_out(shift, &mut back).unwrap();
                assert_eq!(back, source[shift..shift + len]);
                let mut more = vec![1];
                span.part(shift, len).unwrap().append_to(&mut more);
                assert_eq!(more[1..], source[shift..shift + len]);
            }
        }
    }

    #[test]
    fn a_copy_that_does_not_fit_does_nothing() {
        let mut words = [0; 1];
        let span = WritableSpan::of_words(&mut words);
        assert_eq!(span.copy_in(1, &[1; 8]), None);
        assert_eq!(span.copy_out(9, &mut []), None);
        assert_eq!(span.u64(0), Some(0));
        let mut other = [0; 1];
        assert_eq!(
            WritableSpan::of_words(&mut [0; 2]).copy_to(WritableSpan::of_words(&mut other)),
            None
        );
    }
}
