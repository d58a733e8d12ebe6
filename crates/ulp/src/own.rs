//! The kernel's files about this process's memory, which are opened once: to open one takes the
//! kernel longer than most of what is done with it.

use std::fs::{File, OpenOptions};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns `true` if the process or the system has no descriptor or no memory left, which another
/// attempt may find.
fn is_for_now(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    matches!(number, Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// The files of `/proc/self`.
#[derive(Debug)]
pub(crate) struct OwnFiles {
    process: u32,
    /// What is mapped.
    pub(crate) maps: File,
    /// The memory.
    pub(crate) memory: File,
    /// Which pages there are. `None`: the kernel does not have this file.
    pub(crate) pages: Option<File>,
}

impl OwnFiles {
    /// This process's files.
    ///
    /// # Errors
    /// They cannot be opened.
    pub(crate) fn get() -> io::Result<Arc<Self>> {
        static FILES: Mutex<Option<Arc<OwnFiles>>> = Mutex::new(None);
        let mut known = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        // After a fork, those of the parent show the parent's memory.
        if let Some(known) = known.as_ref().filter(|known| known.process == process) {
            return Ok(known.clone());
        }
        let pages = File::open("/proc/self/pagemap");
        let files = Self {
            process,
            maps: File::open("/proc/self/maps")?,
            memory: OpenOptions::new().read(true).write(true).open("/proc/self/mem")?,
            pages: if pages.as_ref().is_err_and(is_for_now) { Some(pages?) } else { pages.ok() },
        };
        Ok(known.insert(Arc::new(files)).clone())
    }
}
