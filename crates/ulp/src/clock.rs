//! The kernel's function that reads the clock without a system call (vDSO), for images.
//!
//! It uses no thread-locals, so it may run with a ULP's.

use std::sync::OnceLock;

/// Address of the function; 0 if there is none, and an image asks the kernel.
pub(crate) fn address() -> u64 {
    static ADDRESS: OnceLock<u64> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        // SAFETY: names a library that the kernel has mapped, or none. It is not loaded if it is
        // not there, and is never unmapped.
        let library = unsafe {
            libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY)
        };
        if library.is_null() {
            return 0;
        }
        // SAFETY: the library is loaded, and the name is a C string.
        unsafe { libc::dlsym(library, c"__vdso_clock_gettime".as_ptr()) as u64 }
    })
}
