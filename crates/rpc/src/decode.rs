//! Reading values out of a block that a peer wrote.
//!
//! Every number is read once, and the value that was read is checked. Every length is checked
//! against the block and the interface's limits before anything is allocated. No byte of a tail is
//! given out twice, so a small block cannot claim to be a large value. A peer that writes at the
//! same time changes values, never bounds.

use crate::interface::Limits;
use crate::pace::{OF_MAKING, PIECE, Pace};
use crate::session::Session;
use crate::value::{Get, Layout};
use std::any::Any;
use std::cell::Cell;
use std::collections::TryReserveError;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use upcall_sched::quota::{QuotaBound, QuotaKind};
use upcall_shm::span::{NoText, Span};

/// Reads one block; see the module.
#[derive(Debug)]
pub struct Decoder<'a> {
    pub(crate) span: Span<'a>,
    pub(crate) limits: Limits,
    /// Bytes of the tail that can still be claimed.
    budget: Cell<usize>,
    pub(crate) side: DecoderSide<'a>,
    /// Bytes of the values that were made, and how much of them the client's account was charged.
    values: Cell<usize>,
    charged: Cell<usize>,
    pace: Pace,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum DecoderSide<'a> {
    /// The binding through which a result arrived.
    Client(&'a dyn Any),
    Server(&'a Arc<Session>),
    /// For tests of the reader: a block without handles.
    None,
}

/// Why a value cannot be read: the peer's bytes break the interface's types or limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The block ends before the value at this offset does.
    Short {
        /// The offset in bytes.
        at: usize,
    },
    /// A number that should be a case, a bool, a character or flags, and is not a valid one.
    NoSuchCase {
        /// The offset in bytes.
        at: usize,
        /// The number.
        found: u64,
        /// The number of cases.
        cases: u64,
    },
    /// A string or list is longer than the interface permits, or than its block can hold.
    TooLong {
        /// The offset of its descriptor.
        at: usize,
        /// Its length in bytes or elements.
        len: u64,
        /// The maximum length.
        limit: u64,
    },
    /// A string is not UTF-8.
    NotUtf8 {
        /// The offset of its descriptor.
        at: usize,
    },
    /// The client does not hold the handle, or the handle is of another resource type.
    NoSuchHandle {
        /// The handle.
        handle: u64,
    },
    /// The values would exceed a quota of the server's memory.
    Quota {
        /// Bytes that the call's values would take, as far as they were read.
        bytes: u64,
        /// The maximum.
        limit: u64,
        /// Whose quota it is.
        of: QuotaScope,
    },
    /// There is no memory for a value.
    NoMemory {
        /// Bytes of the value.
        bytes: u64,
    },
}

/// Which quota limits the memory that calls take in a server: for their arguments as values, or for
/// their results until they are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaScope {
    /// The interface's limit for one call ([`Limits::values`]).
    Call,
    /// The server's quota for the calls of one client ([`Quota::values`](crate::Quota::values),
    /// [`Quota::results`](crate::Quota::results)).
    Client,
    /// The server's quota for the calls of all clients.
    All,
}

impl fmt::Display for QuotaScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Call => "one call (`values` in the TOML file beside the interface)",
            Self::Client => "the calls of one client at a time (the server's `Quotas`)",
            Self::All => {
                "the calls of all clients at a time, with room for others (the server's `Quotas`)"
            }
        })
    }
}

/// Maximum number of elements of a list whose elements take no bytes.
const MOST_WITHOUT_BYTES: u64 = 1 << 20;

/// Bytes of values that a call may take without being charged. It is less than the call's stack.
const UNCOUNTED: usize = 4 << 10;

/// Number of bytes in which accounts are charged at a time.
const STEP: usize = 64 << 10;

/// Bytes that an allocated string takes beside its text.
const OF_ALLOCATION: usize = 32;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { at } => write!(f, "the block ends before the value at byte {at}"),
            Self::NoSuchCase { at, found, cases } => {
                write!(f, "{found} at byte {at} is not one of {cases} cases")
            }
            Self::TooLong { at, len, limit } => {
                write!(f, "length {len} at byte {at}, more than the limit of {limit}")
            }
            Self::NotUtf8 { at } => write!(f, "the string at byte {at} is not UTF-8"),
            Self::NoSuchHandle { handle } => {
                write!(f, "handle {handle:#x} is not held, or is of another type")
            }
            Self::Quota { bytes, limit, of } => {
                write!(f, "values of {bytes} bytes, more than the {limit} of {of}")
            }
            Self::NoMemory { bytes } => write!(f, "no memory for a value of {bytes} bytes"),
        }
    }
}

impl std::error::Error for Malformed {}

impl Malformed {
    /// The error for a discriminant that names no case.
    #[cold]
    pub fn discriminant(at: usize, found: u64, cases: u64) -> Self {
        Self::NoSuchCase { at, found, cases }
    }
}

macro_rules! number {
    ($name:ident, $plain:ty, $doc:literal) => {
        #[doc = $doc]
        ///
        /// # Errors
        /// The block ends before.
        #[inline(always)]
        pub fn $name(&self, at: usize) -> Result<$plain, Malformed> {
            self.span.$name(at).ok_or(Malformed::Short { at })
        }
    };
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(span: Span<'a>, fixed: usize, limits: Limits, side: DecoderSide<'a>) -> Self {
        let budget = Cell::new(span.len().saturating_sub(fixed));
        let pace = Pace::new(matches!(side, DecoderSide::Server(_)));
        Self { span, limits, budget, side, values: Cell::new(0), charged: Cell::new(0), pace }
    }

    /// Charges `bytes` of memory that a value is about to take. In a server they count against the
    /// call, its client and all clients, until the decoder is dropped after the procedure has
    /// returned.
    ///
    /// # Errors
    /// The bytes exceed one of the quotas.
    #[inline]
    pub fn own(&self, bytes: usize) -> Result<(), Malformed> {
        let values = self.values.get().saturating_add(bytes);
        self.values.set(values);
        if values <= UNCOUNTED { Ok(()) } else { self.charge(values) }
    }

    fn charge(&self, values: usize) -> Result<(), Malformed> {
        let DecoderSide::Server(session) = self.side else { return Ok(()) };
        let over = |limit: u64, of| Malformed::Quota { bytes: values as u64, limit, of };
        if values as u64 > self.limits.values {
            return Err(over(self.limits.values, QuotaScope::Call));
        }
        let charged = self.charged.get();
        if values > charged {
            let more = values.checked_next_multiple_of(STEP).unwrap_or(usize::MAX) - charged;
            let charge = session.account().charge(QuotaKind::Values, more);
            charge.map_err(|no| {
                over(
                    no.most as u64,
                    if no.bound == QuotaBound::Client {
                        QuotaScope::Client
                    } else {
                        QuotaScope::All
                    },
                )
            })?;
            self.charged.set(charged + more);
        }
        Ok(())
    }

    /// Makes an empty list with room for `count` values, and charges them.
    ///
    /// # Errors
    /// The values exceed a quota, or there is no memory for them.
    pub fn room<T>(&self, count: usize) -> Result<Vec<T>, Malformed> {
        let bytes = count.saturating_mul(size_of::<T>());
        self.own(bytes)?;
        let mut list = Vec::new();
        list.try_reserve_exact(count).map_err(|_| Malformed::NoMemory { bytes: bytes as u64 })?;
        self.spent(OF_MAKING);
        Ok(list)
    }

    /// Records that `bytes` were read or copied. On a server's virtual processor other threads and
    /// calls get a turn after many bytes.
    #[inline]
    pub fn spent(&self, bytes: usize) {
        self.pace.spent(bytes);
    }

    /// Drops a value that this decoder has read; see [`Layout::free`].
    #[inline]
    pub fn free<T: Layout>(&self, value: T) {
        value.free(&self.pace);
    }

    /// Reads a value.
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline(always)]
    pub fn get<T: Get>(&self, at: usize) -> Result<T, Malformed> {
        T::get(self, at)
    }

    number!(u8, u8, "Reads a byte.");
    number!(u16, u16, "Reads two bytes at a multiple of two.");
    number!(u32, u32, "Reads four bytes at a multiple of four.");
    number!(u64, u64, "Reads eight bytes at a multiple of eight.");

    /// Returns the offset and the number of the elements of the list whose descriptor is at `at`.
    /// All elements lie within the block.
    ///
    /// # Errors
    /// The list is longer than the interface or the block permits.
    pub fn list(&self, at: usize, stride: usize) -> Result<(usize, usize), Malformed> {
        self.claim(at, stride, self.limits.list)
    }

    fn claim(&self, at: usize, stride: usize, limit: u64) -> Result<(usize, usize), Malformed> {
        let (start, len) = (self.u64(at)?, self.u64(at + 8)?);
        self.claim_read((start, len), stride, limit, at)?;
        Ok((start as usize, len as usize))
    }

    /// Claims the part of the tail that a descriptor, read at `at`, describes. Returns its length
    /// in bytes.
    pub(crate) fn claim_read(
        &self,
        (start, len): (u64, u64),
        stride: usize,
        limit: u64,
        at: usize,
    ) -> Result<usize, Malformed> {
        // Elements without bytes need a bound too: their count alone could keep the server busy for
        // ever.
        let limit = if stride == 0 { limit.min(MOST_WITHOUT_BYTES) } else { limit };
        if len > limit {
            return Err(Malformed::TooLong { at, len, limit });
        }
        let short =
            Malformed::TooLong { at, len, limit: (self.budget.get() / stride.max(1)) as u64 };
        let bytes = usize::try_from(len).ok().and_then(|len| len.checked_mul(stride));
        let (Some(bytes), Ok(start)) = (bytes, usize::try_from(start)) else { return Err(short) };
        if bytes > self.budget.get() || self.span.part(start, bytes).is_none() {
            return Err(short);
        }
        self.budget.set(self.budget.get() - bytes);
        Ok(bytes)
    }

    fn tail(&self, at: usize, limit: u64) -> Result<Span<'a>, Malformed> {
        let (start, len) = self.claim(at, 1, limit)?;
        self.span.part(start, len).ok_or(Malformed::Short { at })
    }

    /// Copies consecutive bytes at `at`.
    ///
    /// # Errors
    /// The block ends before they do.
    #[inline]
    pub fn run<const N: usize>(&self, at: usize) -> Result<[u8; N], Malformed> {
        let mut bytes = [0; N];
        self.run_into(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies consecutive bytes at `at` to their final place. Compilers do not remove the second
    /// copy that [`Decoder::run`] would need.
    ///
    /// # Errors
    /// The block ends before they do.
    #[inline]
    pub fn run_into(&self, at: usize, bytes: &mut [u8]) -> Result<(), Malformed> {
        self.span.copy_out(at, bytes).ok_or(Malformed::Short { at })
    }

    /// Copies the string at `at`, and validates it during the copy.
    ///
    /// # Errors
    /// The string is too long, or not UTF-8.
    pub fn string(&self, at: usize) -> Result<String, Malformed> {
        let tail = self.tail(at, self.limits.string)?;
        self.own(if tail.is_empty() { 0 } else { tail.len().saturating_add(OF_ALLOCATION) })?;
        self.spent(OF_MAKING);
        tail.try_to_text(|bytes| self.spent(bytes)).map_err(|error| match error {
            NoText::NotUtf8 => Malformed::NotUtf8 { at },
            NoText::NoMemory => Malformed::NoMemory { bytes: tail.len() as u64 },
        })
    }

    /// Copies the list of bytes at `at`.
    ///
    /// # Errors
    /// The list is too long, or as for [`Decoder::room`].
    pub fn byte_list(&self, at: usize) -> Result<Vec<u8>, Malformed> {
        let tail = self.tail(at, self.limits.list)?;
        let mut bytes = self.room(tail.len())?;
        for start in (0..tail.len()).step_by(PIECE) {
            let piece =
                tail.part(start, PIECE.min(tail.len() - start)).ok_or(Malformed::Short { at })?;
            piece.append_to(&mut bytes);
            self.spent(piece.len());
        }
        Ok(bytes)
    }

    /// The list of bytes at `at`, neither interpreted nor copied.
    ///
    /// # Errors
    /// The list is too long.
    pub fn bytes(&self, at: usize) -> Result<Bytes<'a>, Malformed> {
        Ok(Bytes(self.tail(at, self.limits.list)?))
    }

    /// The object that the handle at `at` stands for.
    ///
    /// # Errors
    /// The client does not hold the handle, or the handle is of another type.
    pub fn borrow<T: ?Sized + Send + Sync + 'static>(
        &self,
        at: usize,
    ) -> Result<Arc<T>, Malformed> {
        let handle = self.u64(at)?;
        self.session(handle)?.get(handle).ok_or(Malformed::NoSuchHandle { handle })
    }

    /// Like [`Decoder::borrow`], and ends the client's hold on the object.
    ///
    /// # Errors
    /// As for [`Decoder::borrow`].
    pub fn take<T: ?Sized + Send + Sync + 'static>(&self, at: usize) -> Result<Arc<T>, Malformed> {
        let handle = self.u64(at)?;
        self.session(handle)?.take(handle).ok_or(Malformed::NoSuchHandle { handle })
    }

    fn session(&self, handle: u64) -> Result<&'a Arc<Session>, Malformed> {
        match self.side {
            DecoderSide::Server(session) => Ok(session),
            _ => Err(Malformed::NoSuchHandle { handle }),
        }
    }
}

impl Drop for Decoder<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.charged.get() > 0
            && let DecoderSide::Server(session) = self.side
        {
            session.account().credit(QuotaKind::Values, self.charged.get());
        }
    }
}

/// A list of bytes as a server sees it: in the memory that it shares with the client,
/// uninterpreted.
///
/// The client can still change the bytes, so no plain reference to them exists. A handler can copy
/// them, fold over them word by word, or write them to a descriptor. Bytes that are to be
/// interpreted are copied first, and the copy is validated (LRPC, section 3.5).
///
/// No method gives other calls a turn, because the handler may hold a lock of `std` that they need.
/// A handler that processes many MiB does so part by part ([`Bytes::part`]), and calls
/// `upcall::thread::yield_now` between parts while it holds no such lock.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(Span<'a>);

impl<'a> Bytes<'a> {
    /// Number of bytes; constant during the call.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A part of the bytes. Returns `None` if the part does not lie within them.
    pub fn part(&self, at: usize, len: usize) -> Option<Self> {
        self.0.part(at, len).map(Self)
    }

    /// Copies the bytes to the start of `to`. Returns `None`, and copies nothing, if `to` is
    /// shorter.
    pub fn copy_to(&self, to: &mut [u8]) -> Option<()> {
        self.0.copy_out(0, to.get_mut(..self.len())?)
    }

    /// Copies the bytes. The client chooses their number, so a server that may lack memory calls
    /// [`Bytes::try_to_vec`].
    ///
    /// # Aborts
    /// There is no memory for the copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.0.append_to(&mut bytes);
        bytes
    }

    /// Copies the bytes.
    ///
    /// # Errors
    /// There is no memory for the copy.
    pub fn try_to_vec(&self) -> Result<Vec<u8>, TryReserveError> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.len())?;
        self.0.append_to(&mut bytes);
        Ok(bytes)
    }

    /// Calls `each` with copies of consecutive parts of at most 4096 bytes, for hashing and parsing
    /// without a copy of the whole.
    pub fn for_each_chunk(&self, mut each: impl FnMut(&[u8])) {
        let mut chunk = [0; 4096];
        for at in (0..self.len()).step_by(chunk.len()) {
            let len = chunk.len().min(self.len() - at);
            if self.0.copy_out(at, &mut chunk[..len]).is_some() {
                each(&chunk[..len]);
            }
        }
    }

    /// Folds over the words of eight bytes (native byte order), then over the remaining bytes. Each
    /// is read once, and nothing is copied to memory.
    pub fn fold_words<T>(
        &self,
        start: T,
        mut word: impl FnMut(T, u64) -> T,
        mut byte: impl FnMut(T, u8) -> T,
    ) -> T {
        let mut state = start;
        let mut at = 0;
        match self.0.words() {
            Some(words) => {
                self.0.prefetch();
                for cell in words {
                    state = word(state, cell.load(upcall_os::atomic::Ordering::Relaxed));
                }
                at = words.len() * 8;
            }
            // Only the bytes of a caller in the same process can be unaligned.
            None => {
                while at + 8 <= self.len() {
                    let mut copy = [0; 8];
                    let _ = self.0.copy_out(at, &mut copy);
                    state = word(state, u64::from_ne_bytes(copy));
                    at += 8;
                }
            }
        }
        while at < self.len() {
            state = byte(state, self.0.u8(at).unwrap_or(0));
            at += 1;
        }
        state
    }

    /// Writes all bytes to a descriptor, without a copy in this process.
    ///
    /// # Errors
    /// The kernel's error from `write`. A descriptor that would block is an error too.
    pub fn write_to(&self, fd: impl AsFd) -> io::Result<()> {
        let mut rest = self.0;
        while !rest.is_empty() {
            let done = rest.write_to(fd.as_fd())?;
            match rest.part(done, rest.len() - done) {
                Some(next) if done > 0 => rest = next,
                _ => return Err(io::ErrorKind::WriteZero.into()),
            }
        }
        Ok(())
    }
}

impl<'a> From<Span<'a>> for Bytes<'a> {
    fn from(span: Span<'a>) -> Self {
        Self(span)
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    /// For a call in the same process: the caller's own bytes.
    fn from(bytes: &'a [u8]) -> Self {
        Self(Span::of_bytes(bytes))
    }
}
