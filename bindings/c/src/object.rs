//! A server's objects.

use crate::error::guard_or;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// `upcall_object`: in C, a pointer to one is an `Arc` of this.
pub struct CObject {
    /// The address that distinguishes its type from others.
    kind: *const c_void,
    value: *mut c_void,
    drop: Option<extern "C" fn(*mut c_void)>,
}

// SAFETY: per the header, any thread of the server may use and drop an object's value.
unsafe impl Send for CObject {}
// SAFETY: as above.
unsafe impl Sync for CObject {}

impl CObject {
    pub(crate) fn is(&self, kind: *const c_void) -> bool {
        self.kind == kind
    }

    pub(crate) fn value(&self) -> *mut c_void {
        self.value
    }
}

impl Drop for CObject {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            drop(self.value);
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn upcall_object_new(
    kind: *const c_void,
    value: *mut c_void,
    drop: Option<extern "C" fn(*mut c_void)>,
) -> *const CObject {
    guard_or(ptr::null(), || Arc::into_raw(Arc::new(CObject { kind, value, drop })))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_object_value(object: *const CObject) -> *mut c_void {
    // SAFETY: per the header, null or an object.
    unsafe { object.as_ref() }.map_or(ptr::null_mut(), CObject::value)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_object_drop(object: *const CObject) {
    if !object.is_null() {
        // SAFETY: per the header, an object that the caller gives up.
        guard_or((), || drop(unsafe { Arc::from_raw(object) }));
    }
}
