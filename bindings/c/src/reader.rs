//! What a peer wrote, as C reads it: copied to private memory first, by functions that check it.

use crate::client::{CClient, CResource, hand_out, take_back};
use crate::error::{guard_or, text};
use crate::object::CObject;
use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::slice;
use std::sync::Arc;
use upcall_rpc::untyped::Foreign;
use upcall_rpc::{Bytes, Decoder, Handle, Malformed};

/// `upcall_reader`. Records what is allocated for values, and frees it when dropped, unless it is
/// [kept](Self::keep).
pub struct CReader<'a> {
    decoder: &'a Decoder<'a>,
    made: RefCell<ReaderAllocations<'a>>,
}

#[derive(Default)]
struct ReaderAllocations<'a> {
    memory: Vec<*mut c_void>,
    resources: Vec<*mut CResource>,
    objects: Vec<*const CObject>,
    lent: Vec<Arc<Foreign>>,
    // Boxed, since C has their addresses.
    #[allow(clippy::vec_box)]
    bytes: Vec<Box<Bytes<'a>>>,
    fault: Option<Malformed>,
}

impl<'a> CReader<'a> {
    pub(crate) fn new(decoder: &'a Decoder<'a>) -> Self {
        Self { decoder, made: RefCell::default() }
    }

    /// Passes ownership of all that was read to the caller.
    pub(crate) fn keep(&self) {
        let mut made = self.made.borrow_mut();
        made.memory.clear();
        made.resources.clear();
        made.objects.clear();
    }

    /// Returns the memory of what was read, for the caller to free.
    pub(crate) fn memory(&self) -> Vec<*mut c_void> {
        std::mem::take(&mut self.made.borrow_mut().memory)
    }

    /// Passes ownership of the objects to the procedure; memory stays the call's.
    pub(crate) fn keep_objects(&self) {
        self.made.borrow_mut().objects.clear();
    }

    /// The first fault that was found.
    pub(crate) fn fault(&self) -> Option<Malformed> {
        self.made.borrow_mut().fault.take()
    }

    fn fail(&self, fault: Malformed) -> bool {
        self.made.borrow_mut().fault.get_or_insert(fault);
        false
    }

    fn all_right<T>(&self, found: Result<T, Malformed>) -> Option<T> {
        found.map_err(|fault| self.fail(fault)).ok()
    }

    /// Allocates zeroed memory, aligned for any type, and counts it towards the call's values.
    /// Returns null, and the read fails, if the values may not take that much or there is no
    /// memory.
    fn allocate(&self, count: usize, size: usize) -> *mut c_void {
        let bytes = count.max(1).saturating_mul(size.max(1));
        if self.all_right(self.decoder.own(bytes)).is_none() {
            return ptr::null_mut();
        }
        // SAFETY: any sizes may be requested.
        let memory = unsafe { libc::calloc(count.max(1), size.max(1)) };
        if memory.is_null() {
            self.fail(Malformed::NoMemory { bytes: bytes as u64 });
            return memory;
        }
        self.made.borrow_mut().memory.push(memory);
        memory
    }
}

impl Drop for CReader<'_> {
    fn drop(&mut self) {
        let made = std::mem::take(self.made.get_mut());
        for memory in made.memory {
            // SAFETY: from `allocate`, and still owned by this, since it was not kept.
            unsafe { libc::free(memory) };
        }
        for resource in made.resources {
            // SAFETY: made below, and still owned by this, since it was not kept.
            let resource = unsafe { take_back(resource) };
            resource
                .into_iter()
                .for_each(|resource| resource.client.binding.release(resource.handle));
        }
        for object in made.objects {
            // SAFETY: from `Arc::into_raw` below, and still owned by this, since it was not kept.
            drop(unsafe { Arc::from_raw(object) });
        }
    }
}

/// Reads two words, which need not be aligned.
///
/// # Safety
/// Sixteen bytes lie at `at`.
unsafe fn descriptor(at: *const u8) -> (u64, u64) {
    // SAFETY: the caller's contract.
    let words = unsafe { at.cast::<[u64; 2]>().read_unaligned() };
    (words[0], words[1])
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read(
    reader: *const CReader<'_>,
    at: u64,
    to: *mut u8,
    len: usize,
) -> bool {
    guard_or(false, || {
        // SAFETY: per the header, the reader of this call.
        let reader = unsafe { &*reader };
        // SAFETY: per the header, that many bytes of the caller's, which are initialised.
        let to = unsafe { slice::from_raw_parts_mut(to, len) };
        reader.all_right(reader.decoder.copy_out(at as usize, to)).is_some()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read_piece(
    reader: *const CReader<'_>,
    at: *const u8,
    stride: usize,
    data: *mut *const c_void,
    count: *mut usize,
) -> bool {
    guard_or(false, || {
        // SAFETY: per the header, the reader of this call.
        let reader = unsafe { &*reader };
        // SAFETY: per the header, a descriptor.
        let (start, len) = unsafe { descriptor(at) };
        let Some(span) = reader.all_right(reader.decoder.claim_piece(
            start,
            len,
            stride,
            reader.decoder.limits().list,
        )) else {
            return false;
        };
        let mut memory = ptr::null_mut();
        if !span.is_empty() {
            memory = reader.allocate(span.len(), 1);
            if memory.is_null() {
                return false;
            }
            // SAFETY: as many bytes as were allocated above, all zero.
            let to = unsafe { slice::from_raw_parts_mut(memory.cast(), span.len()) };
            let _ = span.copy_out(0, to);
        }
        // SAFETY: per the header, a place of the caller's.
        unsafe { data.write(memory) };
        // SAFETY: as above.
        unsafe { count.write(len as usize) };
        true
    })
}

/// `upcall_string`.
#[repr(C)]
pub struct CString {
    data: *const c_char,
    len: usize,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read_string(
    reader: *const CReader<'_>,
    at: *const u8,
    string: *mut CString,
) -> bool {
    guard_or(false, || {
        // SAFETY: per the header, the reader of this call.
        let reader = unsafe { &*reader };
        // SAFETY: per the header, a descriptor.
        let (start, len) = unsafe { descriptor(at) };
        let Some(span) = reader.all_right(reader.decoder.claim_piece(
            start,
            len,
            1,
            reader.decoder.limits().string,
        )) else {
            return false;
        };
        let mut memory = ptr::null_mut();
        if !span.is_empty() {
            memory = reader.allocate(span.len(), 1);
            if memory.is_null() {
                return false;
            }
            // SAFETY: as many bytes as were allocated above, all zero.
            let to = unsafe { slice::from_raw_parts_mut(memory.cast::<u8>(), span.len()) };
            let _ = span.copy_out(0, to);
            if std::str::from_utf8(to).is_err() {
                return reader.fail(Malformed::NotUtf8 { at: start as usize });
            }
        }
        // SAFETY: per the header, a place of the caller's.
        unsafe { string.write(CString { data: memory.cast(), len: len as usize }) };
        true
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read_bytes<'a>(
    reader: *const CReader<'a>,
    at: *const u8,
    bytes: *mut *const Bytes<'a>,
) -> bool {
    guard_or(false, || {
        // SAFETY: per the header, the reader of this call.
        let reader = unsafe { &*reader };
        // SAFETY: per the header, a descriptor.
        let (start, len) = unsafe { descriptor(at) };
        let Some(span) = reader.all_right(reader.decoder.claim_piece(
            start,
            len,
            1,
            reader.decoder.limits().list,
        )) else {
            return false;
        };
        let kept = Box::new(Bytes::from(span));
        // SAFETY: per the header, a place of the caller's.
        unsafe { bytes.write(&*kept) };
        reader.made.borrow_mut().bytes.push(kept);
        true
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read_alloc(
    reader: *const CReader<'_>,
    count: usize,
    size: usize,
) -> *mut c_void {
    // SAFETY: per the header, the reader of this call.
    guard_or(ptr::null_mut(), || unsafe { &*reader }.allocate(count, size))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read_release(reader: *const CReader<'_>, data: *mut c_void) {
    guard_or((), || {
        // SAFETY: per the header, the reader of this call.
        let mut made = unsafe { &*reader }.made.borrow_mut();
        if let Some(place) = made.memory.iter().rposition(|memory| *memory == data) {
            made.memory.swap_remove(place);
            // SAFETY: from `allocate`, and freed once.
            unsafe { libc::free(data) };
        }
    });
}

/// Reads the number of a handle.
///
/// # Safety
/// Eight bytes lie at `at`.
unsafe fn number(at: *const u8) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { at.cast::<u64>().read_unaligned() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read_resource(
    reader: *const CReader<'_>,
    at: *const u8,
    interface: *const c_char,
    resource: *mut *mut CResource,
) -> bool {
    guard_or(false, || {
        // SAFETY: per the header, the reader of this call.
        let reader = unsafe { &*reader };
        // SAFETY: per the header, a handle in private memory.
        let handle = unsafe { number(at) };
        // SAFETY: per the header, a literal.
        let id = unsafe { text(interface, "the interface") }.unwrap_or_default();
        let Some(binding) = reader.decoder.binding().and_then(|binding| binding.part_named(id))
        else {
            return reader.fail(Malformed::NoSuchHandle { handle });
        };
        let made = hand_out(CResource { client: CClient { binding }, handle: Handle(handle) });
        reader.made.borrow_mut().resources.push(made);
        // SAFETY: per the header, a place of the caller's.
        unsafe { resource.write(made) };
        true
    })
}

/// Returns the object behind a handle if it is of the type.
fn object(found: Option<Arc<Foreign>>, kind: *const c_void) -> Option<Arc<CObject>> {
    found?.downcast::<CObject>().ok().filter(|object| object.is(kind))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read_lent(
    reader: *const CReader<'_>,
    at: *const u8,
    kind: *const c_void,
    value: *mut *mut c_void,
) -> bool {
    guard_or(false, || {
        // SAFETY: per the header, the reader of this call.
        let reader = unsafe { &*reader };
        // SAFETY: per the header, a handle in private memory.
        let handle = unsafe { number(at) };
        let Some(object) = object(reader.decoder.object(handle), kind) else {
            return reader.fail(Malformed::NoSuchHandle { handle });
        };
        // SAFETY: per the header, a place of the caller's.
        unsafe { value.write(object.value()) };
        reader.made.borrow_mut().lent.push(object);
        true
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read_object(
    reader: *const CReader<'_>,
    at: *const u8,
    kind: *const c_void,
    given: *mut *const CObject,
) -> bool {
    guard_or(false, || {
        // SAFETY: per the header, the reader of this call.
        let reader = unsafe { &*reader };
        // SAFETY: per the header, a handle in private memory.
        let handle = unsafe { number(at) };
        // Check the type before taking: an object of another type stays the client's.
        let right = object(reader.decoder.object(handle), kind).is_some();
        let taken = if right { reader.decoder.take_object(handle) } else { None };
        let Some(object) = object(taken, kind) else {
            return reader.fail(Malformed::NoSuchHandle { handle });
        };
        let object = Arc::into_raw(object);
        reader.made.borrow_mut().objects.push(object);
        // SAFETY: per the header, a place of the caller's.
        unsafe { given.write(object) };
        true
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_read_fault(
    reader: *const CReader<'_>,
    found: u64,
    cases: u64,
) -> bool {
    // SAFETY: per the header, null or the reader of this call.
    let Some(reader) = (unsafe { reader.as_ref() }) else { return false };
    guard_or(false, || reader.fail(Malformed::discriminant(0, found, cases)))
}
