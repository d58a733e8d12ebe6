//! Servers.
//!
//! A call arrives on a user-level thread of the runtime. Its procedure runs on a separate kernel
//! thread (`upcall_thread::blocking`), while the user-level thread waits. Python cannot run on
//! user-level threads, for three reasons. Its thread state belongs to the kernel thread, so two
//! procedures that alternate on one kernel thread would share one stack of frames, and corrupt it.
//! A procedure that waits for a Python lock would stop the processor with all its threads, among
//! them the one that holds the lock. And from 3.14 on, Python takes a stack that is not the kernel
//! thread's own for an overflown one. On kernel threads of their own, procedures may do anything:
//! wait, call other domains and be called back, 512 at a time
//! (`upcall_thread::MOST_KERNEL_THREADS`). The price is two switches between kernel threads for
//! each call.
//!
//! The user-level thread writes the result, from what the kernel thread has left: the block, and
//! the objects in it. A server's objects are references to Python objects. They, too, are dropped
//! on kernel threads, because `__del__` may do anything.

use crate::accepts::Accepts;
use crate::bytes::Lease;
use crate::decode::{HandleSource, PythonReader, Wrong};
use crate::encode::{HandleDestination, PythonWriter};
use crate::gate::{self, with_lock, without_lock};
use crate::plan::{Package, ProcedurePlan, TypePlan};
use crate::{error, names};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use std::cell::{OnceCell, RefCell};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use upcall_idl::model::ProcedureKind;
use upcall_rpc::encode::EncodeError;
use upcall_rpc::untyped::{Foreign, ResultBlock};
use upcall_rpc::{Call, CallError, Decoder, Dispatch, Export, Malformed, Replied, Running, Server};

/// The servers of an interface: for each number, the object and the method.
struct Service {
    package: &'static Package,
    procedures: Vec<(Arc<Py<PyAny>>, &'static ProcedurePlan)>,
    /// The event loop that runs coroutines, if it is not the package's own.
    on: Option<Py<PyAny>>,
}

/// The data that outlives a procedure: its results, until they are written.
#[derive(Default)]
struct ProcedureOutput {
    writer: OnceCell<PythonWriter<'static>>,
    tail: OnceCell<Vec<(usize, &'static [u8])>>,
    objects: RefCell<Vec<(usize, Arc<Foreign>)>>,
    fault: RefCell<Option<EncodeError>>,
}

/// How a procedure ended.
enum ProcedureEnd {
    Done(PythonWriter<'static>),
    /// The result exceeds the interface's limits.
    TooLong(EncodeError),
    Malformed(Malformed),
    Failed(String),
}

/// A decoder that is lent to the kernel thread that runs the procedure.
struct LentDecoder<'a>(&'a Decoder<'a>);

// SAFETY: the decoder's thread waits until the thread that borrows it is done, and nothing that the
// decoder refers to is bound to a thread.
unsafe impl Send for LentDecoder<'_> {}

impl Dispatch for Service {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        let number = usize::from(call.procedure());
        let Some((on, procedure)) = self.procedures.get(number) else { return call.unknown() };
        let ends = upcall_thread::calls_end();
        let kept = ProcedureOutput::default();
        let replied = call.respond(|decoder| {
            let lent = LentDecoder(decoder);
            let run = move || {
                let lent = lent;
                let LentDecoder(decoder) = lent;
                let run = || with_lock(|py| self.run(py, on, procedure, decoder));
                let ended = match ends {
                    None => run(),
                    Some(ends) => upcall_thread::with_calls_that_end(ends, run),
                };
                ended.unwrap_or_else(|| {
                    ProcedureEnd::Failed("the server's interpreter has ended".into())
                })
            };
            match upcall_thread::blocking(run) {
                ProcedureEnd::Done(mut writer) => {
                    kept.objects.replace(writer.objects());
                    let _ = kept.writer.set(writer);
                }
                ProcedureEnd::TooLong(fault) => {
                    kept.fault.replace(Some(fault));
                }
                ProcedureEnd::Malformed(malformed) => return Err(malformed),
                // A failure is passed on like a panic, but without the hook's message.
                ProcedureEnd::Failed(text) => std::panic::resume_unwind(Box::new(text)),
            }
            Ok(kept.answer())
        });
        // Python buffers are released with Python's lock, which no user-level thread acquires.
        if kept.writer.get().is_some_and(PythonWriter::has_buffers) {
            let ProcedureOutput { writer, tail, .. } = kept;
            drop(tail);
            upcall_thread::blocking(move || drop(writer));
        }
        replied
    }
}

impl ProcedureOutput {
    fn answer(&self) -> ResultBlock<'_> {
        let fault = self.fault.take();
        let Some(writer) = self.writer.get() else {
            return ResultBlock { block: Default::default(), objects: RefCell::default(), fault };
        };
        let tail = self.tail.get_or_init(|| {
            let view = |(at, bytes): (usize, &[u8])| {
                // SAFETY: only the lifetime changes: the writer keeps the bytes, and is not moved
                // in its cell before this is dropped.
                (at, unsafe { std::mem::transmute::<&[u8], &'static [u8]>(bytes) })
            };
            writer.tail().into_iter().map(view).collect()
        });
        ResultBlock {
            block: writer.pieces(tail),
            objects: RefCell::new(self.objects.take()),
            fault,
        }
    }
}

impl Service {
    fn run(
        &self,
        py: Python<'_>,
        on: &Py<PyAny>,
        procedure: &'static ProcedurePlan,
        decoder: &Decoder<'_>,
    ) -> ProcedureEnd {
        let mut lease = Lease::default();
        let ended = self.run_with(py, on, procedure, decoder, &mut lease);
        if lease.is_empty() {
            return ended;
        }
        // Another thread may be writing them to a file.
        without_lock(py, || drop(lease));
        ended
    }

    fn run_with(
        &self,
        py: Python<'_>,
        on: &Py<PyAny>,
        procedure: &'static ProcedurePlan,
        decoder: &Decoder<'_>,
        lease: &mut Lease,
    ) -> ProcedureEnd {
        let reader =
            PythonReader { py, package: self.package, decoder, from: HandleSource::Client };
        let arguments = match self.arguments(&reader, on, procedure, lease) {
            Ok(arguments) => arguments,
            Err(Wrong::Malformed(malformed)) => return ProcedureEnd::Malformed(malformed),
            Err(Wrong::Python(error)) => return failed(py, procedure, error),
        };
        let (on, arguments) = arguments;
        let called = || {
            let result =
                on.call_method1(procedure.served.bind(py), PyTuple::new(py, arguments)?)?;
            // The coroutine of an `async def`.
            if !result.get_type().is(names::get(py)?.coroutine.bind(py)) {
                return Ok(result);
            }
            let wait = names::get(py)?.serving.bind(py).getattr(pyo3::intern!(py, "wait"))?;
            wait.call1((result, self.on.as_ref().map(|on| on.clone_ref(py))))
        };
        let result = called();
        let mut writer = PythonWriter::new(
            self.package,
            HandleDestination::Client,
            procedure.results,
            procedure.limits,
        );
        match write(py, procedure, result, &mut writer) {
            Ok(()) => ProcedureEnd::Done(writer),
            Err(encode) => match encode {
                Unwritten::Python(error) => failed(py, procedure, error),
                Unwritten::TooLong(fault) => ProcedureEnd::TooLong(fault),
            },
        }
    }

    /// Returns the object that runs the procedure, and the arguments.
    fn arguments<'py>(
        &self,
        reader: &PythonReader<'_, 'py>,
        on: &Py<PyAny>,
        procedure: &'static ProcedurePlan,
        lease: &mut Lease,
    ) -> Result<(Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>), Wrong> {
        let py = reader.py;
        let mut target = on.bind(py).clone();
        if let (true, Some(resource)) = (procedure.is_method, procedure.resource) {
            let of = crate::plan::Typed { ty: TypePlan::Borrow(resource), size: 8 };
            target = reader.get(&of, 0)?;
        }
        let mut arguments = Vec::with_capacity(procedure.params.len());
        for param in &procedure.params {
            arguments.push(match param.server.ty {
                TypePlan::Bytes => {
                    let bytes = reader.decoder.bytes(param.at)?;
                    // SAFETY: the lease is dropped before the call is answered, and until then the
                    // memory belongs to the call.
                    let view = unsafe { lease.lend(bytes) };
                    Bound::new(py, view)?.into_any()
                }
                _ => reader.get(&param.server, param.at)?,
            });
        }
        Ok((target, arguments))
    }
}

enum Unwritten {
    Python(PyErr),
    TooLong(EncodeError),
}

fn write<'py>(
    py: Python<'py>,
    procedure: &ProcedurePlan,
    result: PyResult<Bound<'py, PyAny>>,
    writer: &mut PythonWriter<'_>,
) -> Result<(), Unwritten> {
    let Some(results) = &procedure.result else {
        return result.map(drop).map_err(Unwritten::Python);
    };
    let put = |writer: &mut PythonWriter<'_>,
               typed: &crate::plan::Typed,
               value: &Bound<'py, PyAny>,
               at,
               what: &str| {
        writer.put_at(typed, value, at).map_err(|fault| match fault {
            crate::error::ConversionError::Call(CallError::TooLong { what, len, limit }) => {
                Unwritten::TooLong(EncodeError::TooLong { what, len, limit })
            }
            fault => Unwritten::Python(error::fault(
                py,
                fault,
                &format!("the {what} of {}()", procedure.name),
                "",
                0,
            )),
        })
    };
    let TypePlan::Result { ok, err, at } = &results.server.ty else {
        return put(writer, &results.server, &result.map_err(Unwritten::Python)?, 0, "result");
    };
    let found = match result {
        Ok(value) => Ok(value),
        Err(error) => {
            let names = names::get(py).map_err(Unwritten::Python)?;
            match names.err(error.value(py)).map_err(Unwritten::Python)? {
                Some(payload) => Err(payload),
                None => return Err(Unwritten::Python(error)),
            }
        }
    };
    let (is_err, typed, value, what) = match found {
        Ok(value) => (0, ok, value, "result"),
        Err(value) => (1, err, value, "error"),
    };
    writer.put_number(0, is_err, 1);
    match typed {
        Some(typed) => put(writer, typed, &value, *at, what),
        None => Ok(()),
    }
}

/// Returns `true` if the interface declares an error with a value for the procedure.
fn declares_error(procedure: &ProcedurePlan) -> bool {
    let result = procedure.result.as_ref().map(|result| &result.server.ty);
    matches!(result, Some(TypePlan::Result { err: Some(_), .. }))
}

/// The text about an exception that the client gets; the server logs all of it.
fn failed(py: Python<'_>, procedure: &ProcedurePlan, error: PyErr) -> ProcedureEnd {
    let class =
        error.get_type(py).name().map_or_else(|_| "an exception".into(), |name| name.to_string());
    let text = error.value(py).str().map_or_else(|_| String::new(), |text| text.to_string());
    // Includes the traceback.
    let error = error.into_value(py);
    let log = || {
        let serving = names::get(py)?.serving.bind(py);
        serving.call_method1("failed", (&procedure.name, error, declares_error(procedure)))
    };
    if let Err(worse) = log() {
        worse.write_unraisable(py, None);
    }
    ProcedureEnd::Failed(if text.is_empty() { class } else { format!("{class}: {text}") })
}

/// How long the caller of the procedure that the calling thread runs still waits, in seconds.
#[pyfunction]
pub fn deadline() -> Option<f64> {
    let ends = upcall_thread::calls_end()?;
    Some(ends.saturating_duration_since(Instant::now()).as_secs_f64())
}

/// A server that runs until it is stopped.
#[pyclass(frozen, name = "Served", module = "upcall._upcall")]
pub struct PyServed(Mutex<Option<Running>>);

#[pymethods]
impl PyServed {
    /// Ends the server, and waits until running calls have ended, for at most `seconds`; after that
    /// the server continues to end by itself. Returns true if it has ended.
    #[pyo3(signature = (seconds = None))]
    fn stop(&self, py: Python<'_>, seconds: Option<f64>) -> bool {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(running) = running else { return true };
        if gate::is_forked() {
            std::mem::forget(running);
            return true;
        }
        without_lock(py, move || {
            let Some(limit) = seconds else {
                running.stop();
                return true;
            };
            let (said, heard) = std::sync::mpsc::channel();
            let ending =
                std::thread::Builder::new().name("upcall-ending".into()).spawn(move || {
                    running.stop();
                    let _ = said.send(());
                });
            ending.is_ok()
                && heard
                    .recv_timeout(Duration::try_from_secs_f64(limit).unwrap_or_default())
                    .is_ok()
        })
    }

    /// Where the server listens for clients that connect by TCP.
    fn addresses(&self) -> Vec<String> {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = running.as_ref().map(Running::addresses).unwrap_or_default();
        addresses.iter().map(ToString::to_string).collect()
    }

    /// Revokes the bindings of a process, and returns their number.
    fn revoke(&self, py: Python<'_>, pid: u32) -> usize {
        let running = &self.0;
        without_lock(py, || {
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            running.as_ref().map_or(0, |running| running.revoke(|client| client.pid == pid))
        })
    }
}

impl Drop for PyServed {
    fn drop(&mut self) {
        let Some(running) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        if gate::is_forked() || gate::is_shut() {
            return std::mem::forget(running);
        }
        with_lock(|py| without_lock(py, || drop(running)));
    }
}

#[allow(clippy::too_many_arguments)] // The package's `start` passes them all by name.
/// Serves objects under names, given as `(name, class, object)`. `listen` gives addresses. When
/// this returns, clients can bind.
#[pyfunction]
pub fn start(
    py: Python<'_>,
    exports: Vec<(String, Bound<'_, crate::caller::PyKind>, Bound<'_, PyAny>)>,
    processors: usize,
    pacing: u32,
    on: Option<Py<PyAny>>,
    admits: Option<Bound<'_, PyAny>>,
    mode: Option<u32>,
    group: Option<u32>,
    listen: Vec<String>,
) -> PyResult<PyServed> {
    if gate::is_forked() {
        return Err(error::forked(py));
    }
    gate::watch_forks();
    let mut server = Server::new().processors(processors).pacing(crate::client::pacing(pacing));
    if let Some(admits) = admits {
        server = server.policy(Accepts::of(&admits)?.reporting());
    }
    if let Some(mode) = mode {
        server = server.mode(mode);
    }
    if let Some(group) = group {
        server = server.group(group);
    }
    for address in listen {
        server = server.listen(&address);
    }
    for (name, kind, object) in exports {
        let on = on.as_ref().map(|on| on.clone_ref(py));
        server = server.export(&name, export(*kind.get(), &object, on)?);
    }
    let running = without_lock(py, || server.start());
    running
        .map(|running| PyServed(Mutex::new(Some(running))))
        .map_err(|wrong| error::serve(py, &wrong))
}

fn export(
    kind: crate::caller::PyKind,
    object: &Bound<'_, PyAny>,
    on: Option<Py<PyAny>>,
) -> PyResult<Export> {
    let (py, interface) = (object.py(), kind.package.interface(kind.interface));
    let own = Arc::new(object.clone().unbind());
    let mut servers = vec![(kind.interface, own.clone())];
    for (part, attribute) in interface.parts.iter().zip(&interface.attributes) {
        let told = kind.package.interface(*part);
        let needs = told
            .procedures
            .iter()
            .any(|procedure| !matches!(procedure.kind, ProcedureKind::Method(_)));
        let other = if !needs || object.is_instance(told.served.bind(py))? {
            own.clone()
        } else {
            let missing = |_| {
                let text = format!(
                    "{} carries {}: have the object serve that one too (derive it from {}), or \
                    set its attribute `{attribute}` to an object that does",
                    interface.id,
                    told.id,
                    told.served
                        .bind(py)
                        .name()
                        .map_or_else(|_| "?".into(), |name: Bound<'_, PyString>| name.to_string()),
                );
                pyo3::exceptions::PyTypeError::new_err(text)
            };
            Arc::new(object.getattr(&**attribute).map_err(missing)?.unbind())
        };
        servers.push((*part, other));
    }
    let of = |&(index, number): &(usize, usize)| {
        let server =
            servers.iter().find(|(part, _)| *part == index).map_or(&own, |(_, server)| server);
        (server.clone(), &kind.package.interface(index).procedures[number])
    };
    let procedures: Vec<_> = interface.bound.iter().map(of).collect();
    for (server, procedure) in &procedures {
        let has = procedure.is_method || server.bind(py).hasattr(procedure.served.bind(py))?;
        if !has {
            let text = format!(
                "the object that serves {} has no method {}",
                interface.id, procedure.served
            );
            return Err(pyo3::exceptions::PyTypeError::new_err(text));
        }
    }
    Ok(Export::new(interface.descriptor, Service { package: kind.package, procedures, on }))
}
