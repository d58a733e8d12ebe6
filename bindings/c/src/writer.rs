//! Blocks that C has written, in pieces.

use crate::client::{CClient, CResource};
use crate::error::{Problem, Status, guard_or};
use std::ffi::c_void;
use std::ptr;
use std::slice;

/// `upcall_piece`.
#[repr(C)]
pub struct CPiece {
    pub(crate) at: u64,
    pub(crate) data: *const c_void,
    pub(crate) len: u64,
    owned: *mut c_void,
}

/// `upcall_given`.
#[repr(C)]
pub struct CGiven {
    pub(crate) at: *const u8,
    pub(crate) what: *mut c_void,
}

/// `upcall_writer`.
#[repr(C)]
pub struct CWriter {
    pub(crate) fixed: *const u8,
    pub(crate) fixed_len: u64,
    pub(crate) tail: u64,
    pub(crate) string_limit: u64,
    pub(crate) list_limit: u64,
    pub(crate) too_long: u64,
    /// A `Status`, of those that the header's functions set.
    pub(crate) status: u32,
    client: *const CClient,
    pieces: *mut CPiece,
    piece_count: usize,
    piece_room: usize,
    given: *mut CGiven,
    given_count: usize,
    given_room: usize,
}

/// A writer that this side owns: what it has from malloc is freed with it.
pub(crate) struct OwnedWriter(pub(crate) CWriter);

impl OwnedWriter {
    /// # Safety
    /// As the header requires: the generated code made the writer, and does not use it again,
    /// except for what it has on its stack.
    pub(crate) unsafe fn take(writer: *mut CWriter) -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { ptr::read(writer) })
    }

    pub(crate) fn pieces(&self) -> &[CPiece] {
        if self.0.piece_count == 0 {
            return &[];
        }
        // SAFETY: per the header, that many pieces lie there, and they do not change.
        unsafe { slice::from_raw_parts(self.0.pieces, self.0.piece_count) }
    }

    pub(crate) fn given(&self) -> &[CGiven] {
        if self.0.given_count == 0 {
            return &[];
        }
        // SAFETY: per the header, that many entries lie there, and they do not change.
        unsafe { slice::from_raw_parts(self.0.given, self.0.given_count) }
    }

    pub(crate) fn fixed(&self) -> &[u8] {
        if self.0.fixed_len == 0 {
            return &[];
        }
        // SAFETY: per the header, the fixed part, on the stack of the generated code that waits for
        // this function.
        unsafe { slice::from_raw_parts(self.0.fixed, self.0.fixed_len as usize) }
    }

    /// Returns the offset and the bytes of each piece of the tail.
    pub(crate) fn tail(&self) -> Result<Vec<(usize, &[u8])>, Problem> {
        let one = |piece: &CPiece| {
            if piece.data.is_null() {
                return Err(Problem::misuse(format!(
                    "a string or list of {} bytes has no data: its pointer is NULL",
                    piece.len
                )));
            }
            // SAFETY: per the header, the piece is the caller's memory, which stays valid and does
            // not change during the call.
            Ok((piece.at as usize, unsafe {
                slice::from_raw_parts(piece.data.cast(), piece.len as usize)
            }))
        };
        self.pieces().iter().map(one).collect()
    }

    /// Size of the whole block, in bytes.
    pub(crate) fn len(&self) -> usize {
        if self.0.piece_count == 0 { self.0.fixed_len as usize } else { self.0.tail as usize }
    }

    /// Returns the error that the generated code found.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let long = self.0.too_long;
        let (string, list) = (self.0.string_limit, self.0.list_limit);
        match self.0.status {
            0 => Ok(()),
            status if status == Status::TooLong as u32 => {
                let text = format!(
                    "a string or list of {long} is longer than the interface's limits, {string} \
                    bytes and {list} elements; nothing was sent"
                );
                Err(Problem::new(Status::TooLong, text))
            }
            status if status == Status::ForeignHandle as u32 => {
                Err(upcall_rpc::CallError::ForeignHandle.into())
            }
            status if status == Status::Misuse as u32 => Err(Problem::misuse("a resource is NULL")),
            _ => Err(Problem::new(Status::NoMemory, "no memory for the arguments")),
        }
    }
}

impl Drop for OwnedWriter {
    fn drop(&mut self) {
        for piece in self.pieces() {
            // SAFETY: null, or from the C library's allocator and owned by the piece.
            unsafe { libc::free(piece.owned) };
        }
        // SAFETY: null, or from `upcall_write_grow`.
        unsafe { libc::free(self.0.pieces.cast()) };
        // SAFETY: as above.
        unsafe { libc::free(self.0.given.cast()) };
    }
}

/// Grows a vector of the generated code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_write_grow(
    items: *mut c_void,
    room: *mut usize,
    size: usize,
) -> *mut c_void {
    // SAFETY: per the header, the vector's own count.
    let room = unsafe { &mut *room };
    let wish = (*room * 2).max(8);
    // SAFETY: null, or from this function.
    let grown = unsafe { libc::realloc(items, wish.saturating_mul(size)) };
    if grown.is_null() {
        std::process::abort();
    }
    *room = wish;
    grown
}

/// Returns the number of a resource that may go to the writer's server.
///
/// # Safety
/// Both are as the header requires.
unsafe fn number(writer: &mut CWriter, resource: *const CResource) -> Option<u64> {
    // SAFETY: per the header, null or a resource.
    let Some(resource) = (unsafe { resource.as_ref() }) else {
        writer.status = Status::Misuse as u32;
        return None;
    };
    // SAFETY: per the header, the client that is called.
    let client = unsafe { writer.client.as_ref() };
    if !client.is_some_and(|client| client.binding.same(&resource.client.binding)) {
        writer.status = Status::ForeignHandle as u32;
        return None;
    }
    Some(resource.handle.0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_write_lent(
    writer: *mut CWriter,
    at: *mut u8,
    resource: *const CResource,
) {
    guard_or((), || {
        // SAFETY: per the header, the generated code's own writer.
        let writer = unsafe { &mut *writer };
        // SAFETY: the header's contract.
        if let Some(number) = unsafe { number(writer, resource) } {
            // SAFETY: per the header, eight bytes of the block.
            unsafe { at.cast::<u64>().write_unaligned(number) };
        }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_write_own(
    writer: *mut CWriter,
    at: *mut u8,
    resource: *mut CResource,
) {
    guard_or((), || {
        // SAFETY: per the header, the generated code's own writer.
        let writer = unsafe { &mut *writer };
        // SAFETY: the header's contract.
        let Some(number) = (unsafe { number(writer, resource) }) else { return };
        // SAFETY: per the header, eight bytes of the block.
        unsafe { at.cast::<u64>().write_unaligned(number) };
        if writer.given_count == writer.given_room {
            // SAFETY: the vector and its room belong together.
            let grown = unsafe {
                upcall_write_grow(writer.given.cast(), &mut writer.given_room, size_of::<CGiven>())
            };
            writer.given = grown.cast();
        }
        // SAFETY: there is room for one more.
        let end = unsafe { writer.given.add(writer.given_count) };
        // SAFETY: as above.
        unsafe { end.write(CGiven { at, what: resource.cast() }) };
        writer.given_count += 1;
    });
}
