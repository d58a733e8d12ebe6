//! Makes a test that hangs fail, and reports what it waited for.

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Maximum time of a test, or of a part of one with members of its own. Only a hang takes that
/// long.
const LIMIT: Duration = Duration::from_secs(60);

/// The members of a test that have not ended. They end within the limit, or the process ends with
/// their ranks in a message.
pub struct Guard<'a> {
    running: &'a Mutex<Vec<usize>>,
    _over: Sender<()>,
}

/// Runs `body`, in which each of `members` members calls [`Guard::member`].
pub fn guarded<R>(members: usize, body: impl FnOnce(&Guard<'_>) -> R) -> R {
    let running = Mutex::new((0..members).collect::<Vec<_>>());
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    std::thread::scope(|scope| {
        let (over, ended) = channel();
        scope.spawn({
            let running = &running;
            move || {
                if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                    let running = running.lock().map(|running| running.clone()).unwrap_or_default();
                    let text = format!(
                        "\n{test} hangs: it waited for members {running:?} of {members} to end, \
                         for {LIMIT:?}; the others have ended\n"
                    );
                    // The macros would write to the test's own buffer, which is lost with the
                    // process.
                    let _ = std::io::stderr().write_all(text.as_bytes());
                    std::process::exit(101);
                }
            }
        });
        body(&Guard { running: &running, _over: over })
    })
}

impl Guard<'_> {
    /// Runs a member. It counts as ended after that, even after a panic.
    pub fn member<R>(&self, rank: usize, body: impl FnOnce() -> R) -> R {
        struct Ended<'a>(&'a Mutex<Vec<usize>>, usize);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                // The test's own report would be lost if the others then wait for this member.
                if std::thread::panicking() {
                    let text = format!("\nmember {} has panicked\n", self.1);
                    let _ = std::io::stderr().write_all(text.as_bytes());
                }
                if let Ok(mut running) = self.0.lock() {
                    running.retain(|rank| *rank != self.1);
                }
            }
        }
        let _ended = Ended(self.running, rank);
        body()
    }
}
