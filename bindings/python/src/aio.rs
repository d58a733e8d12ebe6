//! Calls for asyncio.
//!
//! Each call is made by a user-level thread of the runtime, on one kernel thread of the package
//! ("upcall-aio") that never touches Python: it gets the arguments as a block and leaves the result
//! as a block. Each event loop has its own queue with an eventfd, which it watches as it watches
//! sockets. So a hundred calls under way cost no kernel threads, and a sleeping loop is woken once
//! for all results that have arrived. The loop's thread converts values to objects.

use crate::call::{CallArguments, let_go, read, write};
use crate::caller::PyCaller;
use crate::client::PyCancelToken;
use crate::decode::Wrong;
use crate::encode::PythonWriter;
use crate::error;
use crate::gate::{self, without_lock};
use crate::plan::{Package, ProcedurePlan};
use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use upcall_rpc::{Binding, CallError, CancelToken, Decoder, Pacing};
use upcall_thread::mpsc::{Sender, channel};

/// The completed calls of one event loop. It is never freed, since calls of a closed loop may still
/// complete.
struct CompletionQueue {
    done: Mutex<Vec<(u64, Finished)>>,
    doorbell: OwnedFd,
}

impl CompletionQueue {
    fn locked(&self) -> MutexGuard<'_, Vec<(u64, Finished)>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: u64, finished: Finished) {
        let first = {
            let mut done = self.locked();
            done.push((key, finished));
            done.len() == 1
        };
        if first {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: eight bytes to a descriptor that stays open. It never blocks, since that
            // would take 2^64 calls.
            unsafe { libc::write(self.doorbell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }
}

/// A call: its arguments, and where its result goes.
struct AsyncCall {
    key: u64,
    queue: &'static CompletionQueue,
    binding: Binding,
    package: &'static Package,
    procedure: &'static ProcedurePlan,
    number: u16,
    writer: PythonWriter<'static>,
}

/// A call that has ended.
#[pyclass(frozen, module = "upcall._upcall")]
pub struct Finished(Mutex<Option<EndedCall>>);

type EndedCall = (AsyncCall, Result<Vec<u8>, CallError>);

impl AsyncCall {
    /// Makes the call, on a user-level thread.
    fn run(self) {
        let procedure = self.procedure;
        let late = move |decoder: &Decoder<'_>| {
            if let Some(binding) = decoder.binding() {
                let_go(procedure, decoder, &binding);
            }
        };
        let result = {
            let tail = self.writer.tail();
            let pieces = self.writer.pieces(&tail);
            self.binding.call_pieces(self.number, &pieces, late, |decoder| decoder.block())
        };
        let (queue, key) = (self.queue, self.key);
        queue.put(key, Finished(Mutex::new(Some((self, result)))));
    }
}

/// Passes a job to the kernel thread that runs them, which starts with the first job.
fn give(job: AsyncCall) -> std::io::Result<()> {
    static JOBS: Mutex<Option<Sender<AsyncCall>>> = Mutex::new(None);
    let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
    if jobs.is_none() {
        let (sender, receiver) = channel::<AsyncCall>();
        let processors = upcall::thread::processors(1, Pacing::Adaptive)?;
        let run = move || {
            let served = processors.run(|| {
                while let Ok(job) = receiver.recv() {
                    drop(upcall_thread::spawn(move || job.run()));
                }
            });
            drop(served);
        };
        std::thread::Builder::new().name("upcall-aio".into()).spawn(run)?;
        *jobs = Some(sender);
    }
    let ended = || std::io::Error::other("the thread that makes calls for asyncio has ended");
    let sender = jobs.as_ref().ok_or_else(ended)?;
    sender.send(job).map_err(|_| ended())
}

/// The completed calls of an event loop.
#[pyclass(frozen, module = "upcall._upcall")]
pub struct Completions(&'static CompletionQueue);

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Self> {
        // SAFETY: creates a descriptor.
        let doorbell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if doorbell < 0 {
            return Err(PyOSError::new_err(std::io::Error::last_os_error()));
        }
        // SAFETY: this function just created it, and owns it.
        let doorbell = unsafe { OwnedFd::from_raw_fd(doorbell) };
        Ok(Self(Box::leak(Box::new(CompletionQueue { done: Mutex::default(), doorbell }))))
    }

    /// The descriptor that is readable once calls have ended.
    fn fileno(&self) -> i32 {
        self.0.doorbell.as_raw_fd()
    }

    /// Begins a call. Returns a token that cancels it.
    fn call(
        &self,
        caller: &Bound<'_, PyCaller>,
        number: usize,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        key: u64,
    ) -> PyResult<PyCancelToken> {
        let (py, this) = (caller.py(), caller.get());
        let binding = this.usable(py)?;
        let procedure = this
            .procedure(number)
            .ok_or_else(|| PyTypeError::new_err("the method is of another class"))?;
        let given: Vec<Bound<'_, PyAny>> = args.iter().collect();
        let writer = write(
            py,
            this,
            binding,
            procedure,
            &CallArguments::of(procedure, &given, Some(kwargs))?,
        )?
        .without_binding();
        let token = CancelToken::new();
        let job = AsyncCall {
            key,
            queue: self.0,
            binding: binding.with_cancel(&token),
            package: this.package(),
            procedure,
            number: number as u16,
            writer,
        };
        without_lock(py, || give(job)).map_err(PyErr::from)?;
        Ok(PyCancelToken(token))
    }

    /// Returns the calls that have ended since the last `take`.
    fn take(&self) -> Vec<(u64, Finished)> {
        let mut count = [0; 8];
        // SAFETY: eight bytes of this function's own.
        unsafe { libc::read(self.0.doorbell.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        std::mem::take(&mut *self.0.locked())
    }
}

#[pymethods]
impl Finished {
    /// Returns the result, or raises the call's exception.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (mut job, result) = ended.ok_or_else(|| PyTypeError::new_err("read already"))?;
        let binding = job.binding.without_cancel();
        let ours = |wrong: &CallError| error::call(py, wrong, binding.name(), binding.server());
        let block = result.map_err(|wrong| ours(&wrong))?;
        let decoder = Decoder::of_copy(&block, job.procedure.results, job.procedure.limits);
        let result = read(py, job.package, job.procedure, &decoder, &binding);
        if !matches!(result, Err(Wrong::Malformed(_))) {
            job.writer.all_given(py);
        }
        result.map_err(|wrong| match wrong {
            Wrong::Python(error) => error,
            Wrong::Malformed(malformed) => ours(&CallError::BadReply(malformed.to_string())),
        })
    }

    /// Drops the resources in a result that is not wanted any more.
    fn forget(&self, py: Python<'_>) {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((job, Ok(block))) = ended else { return };
        if gate::is_forked() {
            return std::mem::forget(job);
        }
        without_lock(py, || {
            let decoder = Decoder::of_copy(&block, job.procedure.results, job.procedure.limits);
            let_go(job.procedure, &decoder, &job.binding.without_cancel());
        });
    }
}
