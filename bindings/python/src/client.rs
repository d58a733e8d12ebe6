//! Clients and resources.
//!
//! Both are a `PyCaller`: a binding with its terms and, for a resource, its handle. The methods of
//! generated classes are method descriptors (`PyDescr_NewMethod`), which CPython calls in the
//! fastest way that it has for C functions, without an object for the bound method. A descriptor
//! has no room for the procedure's number, so there is one C function for each number
//! ([`thunks`](crate::thunks)); all of them call [`invoke`].
//!
//! A procedure whose arguments and results are only numbers, few enough to fit into a message
//! ([`Fast`](crate::scalar::Fast)), takes the fast path: words on the stack, no references taken,
//! and nothing allocated but the result. Anything unexpected falls back to the slow path
//! ([`call`](crate::call)), which does the same for any values, and reports what is wrong.

use crate::accepts::Accepts;
use crate::call::{CallArguments, call};
use crate::caller::{CLOSED, OPEN, PyCaller, PyKind, PyMade};
use crate::gate::{self, ReleasedGil, is_forked, wait_for_server, watch_forks, without_lock};
use crate::plan::ProcedurePlan;
use crate::scalar::store;
use crate::{error, thunks};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;
use upcall_idl::model::ProcedureKind;
use upcall_rpc::untyped::InlineWords;
use upcall_rpc::{BindTerms, Binding, CallError, CancelToken, HandOff, Handle, Pacing, WhenFull};

fn kind_of(class: &Bound<'_, PyType>) -> PyResult<PyKind> {
    let found = class.getattr(pyo3::intern!(class.py(), "_upcall_kind"))?;
    let kind = found.cast::<PyKind>().map_err(|_| {
        PyTypeError::new_err(format!(
            "{} is not a class of a generated module",
            class.name().map_or("?".into(), |n| n.to_string())
        ))
    })?;
    Ok(*kind.get())
}

#[pymethods]
impl PyCaller {
    /// Makes a client of the server that exports a name, a client of an interface that another
    /// client's interface carries, or a new resource.
    #[new]
    #[classmethod]
    #[pyo3(signature = (*args, **kwargs))]
    fn make(
        class: &Bound<'_, PyType>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let py = class.py();
        let first = args.iter().next();
        if let Some(Ok(made)) = first.as_ref().map(|first| first.cast::<PyMade>()) {
            let made = made.get().0.lock().unwrap_or_else(PoisonError::into_inner).take();
            return made.ok_or_else(|| PyTypeError::new_err("made already"));
        }
        let kind = kind_of(class)?;
        let first = first.ok_or_else(|| {
            PyTypeError::new_err(match kind.resource {
                None => "the name to bind is missing",
                Some(_) => "the client is missing, whose server makes the resource",
            })
        })?;
        if kind.resource.is_some() {
            let client = first
                .cast::<Self>()
                .map_err(|_| PyTypeError::new_err("the first argument is the client"))?;
            return construct(kind, client, args, kwargs);
        }
        let given = |name| kwargs.map(|kwargs| kwargs.get_item(name)).transpose();
        let [expect, wait, lost_after] = [given("expect")?, given("wait")?, given("lost_after")?];
        let [expect, wait, lost_after] = [expect.flatten(), wait.flatten(), lost_after.flatten()];
        let known = [&expect, &wait, &lost_after].into_iter().flatten().count();
        if kwargs.map_or(0, |kwargs| kwargs.len()) > known || args.len() > 1 {
            let text = "a client takes the name to bind, or another client, and by keyword \
                `expect` (which server it accepts), `wait` (how many seconds it waits for a \
                server) and `lost_after` (after how many seconds a silent server on another host \
                is lost)";
            return Err(PyTypeError::new_err(text));
        }
        let expect = expect.filter(|expect| !expect.is_none());
        let id = &kind.package.interface(kind.interface).id;
        if let Ok(other) = first.cast::<Self>() {
            if expect.is_some() {
                return Err(PyTypeError::new_err(
                    "the other client is already bound, so `expect` has no effect",
                ));
            }
            let part = other.get().usable(py)?.part_named(id);
            let none =
                || PyTypeError::new_err(format!("this client's interface does not carry {id}"));
            return Ok(Self::new(kind, part.ok_or_else(none)?, None));
        }
        let name = first
            .cast::<PyString>()
            .map_err(|_| PyTypeError::new_err("the name to bind is a str"))?
            .to_string();
        if is_forked() {
            return Err(error::forked(py));
        }
        watch_forks();
        let descriptor = kind.package.interface(kind.interface).descriptor;
        let accepts = expect.as_ref().map(Accepts::of).transpose()?;
        let policy = accepts.as_ref().map(|accepts| &*accepts.policy);
        let wait = error::seconds("wait", wait.filter(|wait| !wait.is_none()).as_ref())?;
        let mut terms = BindTerms::new(policy);
        if let Some(lost_after) = lost_after.filter(|time| !time.is_none()) {
            terms.lost_after = error::seconds("lost_after", Some(&lost_after))?;
        }
        let bound = wait_for_server(py, wait, || Binding::try_bind_on(&name, descriptor, terms))?;
        Ok(Self::new(
            kind,
            bound.map_err(|wrong| error::bind_expecting(py, &wrong, accepts.as_ref()))?,
            None,
        ))
    }

    /// The same client, with a deadline in seconds for each call that it, or what it returns,
    /// makes; `None` means no deadline.
    fn _with_deadline<'py>(
        slf: &Bound<'py, Self>,
        seconds: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wrong = |_| {
            pyo3::exceptions::PyValueError::new_err(
                "a deadline is a number of seconds, not negative",
            )
        };
        let deadline = seconds.map(Duration::try_from_secs_f64).transpose().map_err(wrong)?;
        Self::with(slf, |binding| binding.with_deadline(deadline))
    }

    fn _with_cancel<'py>(
        slf: &Bound<'py, Self>,
        token: Option<&Bound<'py, PyCancelToken>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::with(slf, |binding| {
            token.map_or_else(
                || binding.without_cancel(),
                |token| binding.with_cancel(&token.get().0),
            )
        })
    }

    fn _with_hand_off<'py>(slf: &Bound<'py, Self>, at_once: bool) -> PyResult<Bound<'py, PyAny>> {
        let when = if at_once { HandOff::AtOnce } else { HandOff::WhenIdle };
        Self::with(slf, |binding| binding.with_hand_off(when))
    }

    fn _with_when_full<'py>(slf: &Bound<'py, Self>, grow: bool) -> PyResult<Bound<'py, PyAny>> {
        let what = if grow { WhenFull::Grow } else { WhenFull::Wait };
        Self::with(slf, |binding| binding.with_when_full(what))
    }

    fn _set_pacing(&self, py: Python<'_>, number: u32) -> PyResult<()> {
        self.usable(py)?.set_pacing(pacing(number));
        Ok(())
    }

    fn _is_open(&self) -> bool {
        self.is_usable() && self.binding.as_ref().is_some_and(Binding::is_open)
    }

    fn _server_pid(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.usable(py)?.server())
    }

    fn _name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.usable(py)?.name().to_owned())
    }

    /// Closes the client or resource. A resource's server drops the object.
    fn _close(&self, py: Python<'_>) {
        let was = self.state.compare_exchange(OPEN, CLOSED, Ordering::Relaxed, Ordering::Relaxed);
        let (Ok(_), Some(handle), Some(binding)) = (was, self.handle, &self.binding) else {
            return;
        };
        if !is_forked() && !gate::is_shut() {
            without_lock(py, || binding.release(Handle(handle)));
        }
    }
}

pub fn pacing(number: u32) -> Pacing {
    match number {
        1 => Pacing::Poll,
        2 => Pacing::Sleep,
        _ => Pacing::Adaptive,
    }
}

/// A token that cancels calls.
#[pyclass(frozen, name = "CancelToken", module = "upcall")]
pub struct PyCancelToken(pub CancelToken);

#[pymethods]
impl PyCancelToken {
    #[new]
    fn new() -> Self {
        Self(CancelToken::new())
    }

    /// Cancels all calls that have this token: they raise `CallAborted`. Any thread may call this;
    /// it never waits.
    fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether `cancel` has been called.
    #[getter]
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Makes the server construct a resource.
fn construct(
    kind: PyKind,
    client: &Bound<'_, PyCaller>,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyCaller> {
    let py = client.py();
    let interface = kind.package.interface(kind.interface);
    let is = |procedure: &&ProcedurePlan| {
        matches!(procedure.kind, ProcedureKind::Constructor(_))
            && procedure.resource == kind.resource
    };
    let number = interface.procedures.iter().position(|procedure| is(&procedure));
    let number = number.ok_or_else(|| {
        PyTypeError::new_err("resources of this type are made by procedures only")
    })?;
    let procedure = &interface.procedures[number];
    let binding = client.get().usable(py)?.part_named(&interface.id);
    let binding = binding.ok_or_else(|| {
        PyTypeError::new_err(format!("this client's interface does not carry {}", interface.id))
    })?;
    let on = PyCaller::new(PyKind { resource: None, ..kind }, binding, None);
    let given: Vec<Bound<'_, PyAny>> = args.iter().skip(1).collect();
    let made = call(py, &on, number, procedure, &CallArguments::of(procedure, &given, kwargs)?)?;
    // The object for the result is taken apart, since the class to construct may be a derived one.
    let made = made.into_bound(py).cast_into::<PyCaller>()?;
    let handle =
        made.get().handle().ok_or_else(|| PyTypeError::new_err("the constructor made nothing"))?;
    made.get().was_given();
    let binding = made.get().binding.clone();
    Ok(PyCaller::new(kind, binding.ok_or_else(|| error::closed(py, "the resource"))?, Some(handle)))
}

/// The implementation of every method of a generated class.
///
/// # Safety
/// As for a function of METH_FASTCALL | METH_KEYWORDS. `slf` is a `PyCaller`, which the descriptor
/// has checked.
pub unsafe fn invoke(
    number: usize,
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the caller's contract.
    let run = || unsafe { invoke_fast(number, slf, args, count, names) };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => {
            // SAFETY: the thread has the lock, which `ReleasedGil` has taken back.
            let py = unsafe { Python::assume_attached() };
            error::bug(&*panic).restore(py);
            std::ptr::null_mut()
        }
    }
}

/// The fast path.
///
/// # Safety
/// As for [`invoke`].
#[inline]
unsafe fn invoke_fast(
    number: usize,
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the thread has the lock.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: the caller's contract: an object that lives during the call.
    let this = unsafe { Borrowed::from_ptr(py, slf) };
    // SAFETY: the caller's contract.
    let this: &PyCaller = unsafe { this.cast_unchecked::<PyCaller>() }.get();
    // SAFETY: passed on.
    let slow = || unsafe { invoke_slow(number, slf, args, count, names) };
    let Some(procedure) = this.procedure(number) else { return slow() };
    let (Some(fast), Some(binding)) = (&procedure.fast, this.calling()) else { return slow() };
    if !names.is_null() || count as usize != fast.params.len() || !this.is_usable() {
        return slow();
    }
    let mut words = InlineWords::default();
    if procedure.is_method {
        words[0] = this.handle.unwrap_or_default();
    }
    for (at, (scalar, place)) in fast.params.iter().enumerate() {
        // SAFETY: `at` is less than the number of arguments.
        let object = unsafe { args.add(at) };
        // SAFETY: as above.
        let object = unsafe { object.read() };
        // SAFETY: the thread has the lock.
        let Some(bits) = (unsafe { scalar.bits(object) }) else {
            // SAFETY: as above. The slow path reports the error.
            unsafe { ffi::PyErr_Clear() };
            return slow();
        };
        store(&mut words, *place, bits, scalar.size());
    }
    // SAFETY: the thread has the lock, and only the runtime is used until it is taken back.
    let away = unsafe { ReleasedGil::go() };
    let called = binding.call_words(number as u16, &mut words, fast.len);
    drop(away);
    if let Err(wrong) = called {
        return raise(error::of_call(py, &wrong, binding), py);
    }
    let Some(scalar) = fast.result else {
        // SAFETY: the thread has the lock.
        let none = unsafe { ffi::Py_None() };
        // SAFETY: as above.
        return unsafe { ffi::Py_NewRef(none) };
    };
    let bits =
        if scalar.size() == 8 { words[0] } else { words[0] & ((1 << (scalar.size() * 8)) - 1) };
    // SAFETY: the thread has the lock.
    match unsafe { scalar.object(bits, 0) } {
        Ok(object) => object,
        Err(malformed) => {
            let wrong = CallError::BadReply(malformed.to_string());
            raise(error::of_call(py, &wrong, binding), py)
        }
    }
}

#[cold]
fn raise(error: PyErr, py: Python<'_>) -> *mut ffi::PyObject {
    error.restore(py);
    std::ptr::null_mut()
}

/// # Safety
/// As for [`invoke`].
unsafe fn invoke_slow(
    number: usize,
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // PyO3 does not know yet that this thread has the lock.
    Python::attach(|py| {
        let run = || {
            // SAFETY: the caller's contract.
            let slf = unsafe { Bound::from_borrowed_ptr(py, slf) }.cast_into::<PyCaller>()?;
            let this = slf.get();
            let unknown = || PyTypeError::new_err("the method is of another class");
            let procedure = this.procedure(number).ok_or_else(unknown)?;
            let value = |at: usize| {
                // SAFETY: `at` is less than the number of arguments, positional ones and then named
                // ones.
                let object = unsafe { args.add(at) };
                // SAFETY: as above.
                let object = unsafe { object.read() };
                // SAFETY: the object lives during the call.
                unsafe { Bound::from_borrowed_ptr(py, object) }
            };
            let given: Vec<Bound<'_, PyAny>> = (0..count as usize).map(value).collect();
            let mut named = Vec::new();
            if !names.is_null() {
                // SAFETY: by the calling convention, a tuple of names.
                let names =
                    unsafe { Bound::from_borrowed_ptr(py, names) }.cast_into::<PyTuple>()?;
                named.extend(
                    names.iter().enumerate().map(|(at, name)| (name, value(count as usize + at))),
                );
            }
            call(py, this, number, procedure, &CallArguments::join(procedure, &given, named)?)
        };
        match run() {
            Ok(result) => result.into_ptr(),
            Err(error) => raise(error, py),
        }
    })
}

/// Adds the methods of its procedures to a class.
pub fn add_methods(
    class: &Bound<'_, PyType>,
    procedures: &'static [ProcedurePlan],
    has: impl Fn(&ProcedurePlan) -> bool,
) -> PyResult<()> {
    for (number, procedure) in procedures.iter().enumerate().filter(|(_, procedure)| has(procedure))
    {
        class.setattr(&*procedure.client_method, thunks::descriptor(class, number, procedure)?)?;
    }
    Ok(())
}
