//! The kernel's function that reads the clock without a call (vDSO), for images: it uses no
//! thread-locals, so it can be called on a ULP's.

use std::sync::OnceLock;

/// Its address; 0: there is none, and an image asks the kernel.
pub(crate) fn address() -> u64 {
    static ADDRESS: OnceLock<u64> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        // SAFETY: names a library that the kernel has mapped, or none; it is not loaded if it is
        // not there, and never goes.
        let library = unsafe {
            libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY)
        };
        if library.is_null() {
            return 0;
        }
        // SAFETY: a library that is loaded, and a name.
        unsafe { libc::dlsym(library, c"__vdso_clock_gettime".as_ptr()) as u64 }
    })
}
