//! Detection of SIGINT and SIGTERM.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static FLAG: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Returns `true` if this program was asked to stop while it watched for that.
pub(crate) fn is_asked() -> bool {
    FLAG.load(Ordering::Relaxed)
}

/// Turns SIGINT and SIGTERM into a flag, until it is dropped.
pub struct Interrupted {
    /// Set when a signal has arrived.
    pub flag: Arc<AtomicBool>,
    handlers: Vec<signal_hook::SigId>,
}

impl Interrupted {
    /// Watches for the signals from now on.
    ///
    /// # Errors
    /// The kernel permits no handler.
    pub fn watch() -> io::Result<Interrupted> {
        let flag = FLAG.clone();
        flag.store(false, Ordering::Relaxed);
        let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
        let handlers =
            signals.into_iter().map(|signal| signal_hook::flag::register(signal, flag.clone()));
        Ok(Interrupted { handlers: handlers.collect::<io::Result<_>>()?, flag })
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        for &handler in &self.handlers {
            signal_hook::low_level::unregister(handler);
        }
    }
}
