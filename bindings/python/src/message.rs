//! Groups: the engine behind `upcall.message`, which documents them.
//!
//! A group belongs to the thread that joined it; each method first checks that it is called on that
//! thread. Python's collector may still drop the objects on any thread: then the membership lasts
//! until the process ends.
//!
//! *The interpreter's lock* is released for everything that may wait, by [`gate::without_lock`],
//! and handlers acquire it again. Values are converted to objects, and objects to words, while the
//! lock is held.
//!
//! *A handler's exception* passes through the runtime as a panic does, which `Group::poll` allows
//! for: the message was taken, no other handler runs, and the method that was called raises the
//! exception.
//!
//! *Ctrl-C* ends all waits of the interpreter's first thread (`Handlers::interruption`). The thread
//! checks for signals after it has slept, since the kernel ends a sleep to deliver a signal, and
//! now and then.

use crate::error::{self, raise};
use crate::gate::{self, with_lock, without_lock};
use crate::group_error::{expect_error, join_error, run_error, send_error};
use crate::interrupt;
use crate::joining::{builder, natural, seconds};
use crate::payload::{object, payload, read, word};
use crate::pending;
use crate::petition::PyPetition;
use crate::place::{HeldMessages, PyPlace};
use pyo3::exceptions::{PyKeyError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use upcall::message::{
    Announced, Carried, Event, ForeignKind, Group, Handlers, Message, Number, Rank, SendError,
    Shape,
};

/// Time since the last check after which a wait checks for signals again: the thread has slept, or
/// the machine was busy.
const SLEPT: Duration = Duration::from_micros(2);

/// A member of a group.
#[pyclass(frozen, name = "Member", module = "upcall._upcall")]
pub struct PyMember {
    thread: ThreadId,
    rank: usize,
    processes: Box<[u32]>,
    /// Used by that thread only.
    own: Option<Own>,
}

// SAFETY: only the thread that made `own` uses it, which `here` and `drop` check.
unsafe impl Send for PyMember {}
// SAFETY: as above; the rest never changes.
unsafe impl Sync for PyMember {}

struct Own {
    group: RefCell<Option<Group>>,
    kinds: Rc<[ForeignKind]>,
    /// By rank: whether a message was sent to the member, so that the queue is open.
    opened: RefCell<Vec<bool>>,
    /// Number of methods under way that may run handlers.
    within: Cell<u32>,
    failed: HandlerException,
    /// Set while handlers run by upcalls, with the nesting depth.
    announced: RefCell<Option<(Announced, usize)>>,
    /// Dropped after the group, which it no longer uses by then.
    holds: HeldMessages,
}

impl Drop for PyMember {
    fn drop(&mut self) {
        if self.thread != std::thread::current().id() || gate::is_forked() {
            std::mem::forget(self.own.take());
        }
    }
}

/// A handler's exception on its way to the method that raises it.
type HandlerException = Rc<RefCell<Option<PyErr>>>;

/// An event as the fields of Python's `Event`.
type ToldEvent = (Rank, Option<String>, bool, Option<Rank>);

/// The payload of the panic that carries it.
struct ExceptionPanic;

fn fail(failed: &HandlerException, error: PyErr) -> ! {
    *failed.borrow_mut() = Some(error);
    resume_unwind(Box::new(ExceptionPanic))
}

/// A value in a closure that stays on its thread.
struct ThreadBound<T>(T);

// SAFETY: the closure runs on the thread that made it (`without_lock`).
unsafe impl<T> Send for ThreadBound<T> {}

impl<T> ThreadBound<T> {
    /// A method, so that a closure captures the whole struct.
    fn get(self) -> T {
        self.0
    }
}

struct MemberUse<'a>(&'a Cell<u32>);

impl<'a> MemberUse<'a> {
    fn enter(within: &'a Cell<u32>) -> Self {
        within.set(within.get() + 1);
        Self(within)
    }
}

impl Drop for MemberUse<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Returns the function by which waits check for signals. Once it has returned true, it does so
/// until the waiting method has raised the signal handler's exception.
pub fn asker() -> impl Fn() -> bool {
    let (first, last) = (gate::is_first_thread(), Cell::new(Instant::now()));
    move || {
        if !first || interrupt::is_raised() {
            return first;
        }
        let (now, before) = (Instant::now(), last.get());
        last.set(now);
        now - before > SLEPT && interrupt::ask()
    }
}

impl PyMember {
    fn own(&self, py: Python<'_>) -> PyResult<&Own> {
        if gate::is_forked() {
            return Err(error::forked(py));
        }
        if self.thread != std::thread::current().id() {
            let text = "the group belongs to the thread that has joined it: call this method on \
                that thread";
            return Err(raise(py, "OtherThread", text, &[]));
        }
        self.own.as_ref().ok_or_else(|| error::closed(py, "the group"))
    }

    fn here(&self, py: Python<'_>) -> PyResult<(&Own, Group)> {
        let own = self.own(py)?;
        let group = own.group.borrow().clone().ok_or_else(|| error::closed(py, "the group"))?;
        own.holds.let_go();
        Ok((own, group))
    }

    /// Converts an object to a member's rank.
    fn rank_of(&self, rank: &Bound<'_, PyAny>) -> PyResult<Rank> {
        let size = self.processes.len();
        let none = |py| {
            raise(py, "NoSuchRank", &format!("there is no rank {rank} in a group of {size}"), &[])
        };
        let found = natural(rank, none)?;
        if found < size { Ok(found) } else { Err(none(rank.py())) }
    }

    /// Runs the handlers of arrived messages, at a safe point.
    pub fn heed(&self, py: Python<'_>) -> PyResult<()> {
        let is_there = self.own.as_ref().is_some_and(|own| own.group.borrow().is_some());
        if is_there && !gate::is_forked() {
            self.run(py, false, |_, group| group.heed()).map(drop)
        } else {
            Ok(())
        }
    }

    /// Runs `run`, during which handlers may run.
    fn run<R>(
        &self,
        py: Python<'_>,
        waits: bool,
        run: impl FnOnce(&Own, &Group) -> R,
    ) -> PyResult<R> {
        let (own, group) = self.here(py)?;
        let _within = MemberUse::enter(&own.within);
        let done = {
            let run = || catch_unwind(AssertUnwindSafe(|| run(own, &group)));
            if waits {
                let run = ThreadBound(run);
                without_lock(py, move || ThreadBound(run.get()())).get()
            } else {
                run()
            }
        };
        if let Some(raised) = interrupt::raised() {
            return Err(raised);
        }
        done.map_err(|panic| match own.failed.borrow_mut().take() {
            Some(raised) if panic.is::<ExceptionPanic>() => raised,
            _ => error::bug(&*panic),
        })
    }
}

/// Registers the kinds of a group's messages, each with its name, its signature, and its handler if
/// it has one. The first exception of a handler is left in `failed`.
fn handlers(
    kinds: Vec<(String, String, Option<Py<PyAny>>)>,
    failed: &HandlerException,
) -> PyResult<(Handlers, Vec<ForeignKind>)> {
    let (mut handlers, mut known) = (Handlers::new(), Vec::new());
    for (name, carries, handler) in kinds {
        let carries =
            Carried::parse(&carries).map_err(|bad| PyValueError::new_err(bad.to_string()))?;
        let kind = handlers
            .foreign(&name, carries)
            .map_err(|bad| PyValueError::new_err(bad.to_string()))?;
        if let Some(handler) = handler {
            let (of, failed) = (kind.clone(), failed.clone());
            handlers.on_foreign(
                &kind,
                move |message| {
                    with_lock(|py| read(py, message, &of))
                        .unwrap_or_else(|| Some(Err(PyKeyError::new_err("the interpreter ends"))))
                },
                move |_, from: Rank, value: PyResult<Py<PyAny>>| {
                    let done = with_lock(|py| handler.call1(py, (from, value?)).map(drop));
                    if let Some(Err(error)) = done {
                        fail(&failed, error);
                    }
                },
            );
        }
        known.push(kind);
    }
    handlers.interruption(asker());
    Ok((handlers, known))
}

#[pymethods]
impl PyMember {
    #[new]
    fn new(
        py: Python<'_>,
        terms: &Bound<'_, PyAny>,
        kinds: Vec<(String, String, Option<Py<PyAny>>)>,
    ) -> PyResult<Self> {
        if gate::is_forked() {
            return Err(error::forked(py));
        }
        gate::watch_forks();
        let joining = builder(terms)?;
        let failed = HandlerException::default();
        let (handlers, known) = handlers(kinds, &failed)?;
        let joining = ThreadBound((joining, handlers));
        let joined = without_lock(py, move || {
            let (joining, handlers) = joining.get();
            ThreadBound(joining.join(handlers))
        });
        let group = joined.get().map_err(|wrong| join_error(py, &wrong))?;
        let processes = (0..group.size()).map(|rank| group.process(rank).unwrap_or(0)).collect();
        Ok(Self {
            thread: std::thread::current().id(),
            rank: group.rank(),
            processes,
            own: Some(Own {
                opened: RefCell::new(vec![false; group.size()]),
                group: RefCell::new(Some(group)),
                kinds: known.into(),
                within: Cell::new(0),
                failed,
                announced: RefCell::new(None),
                holds: HeldMessages::default(),
            }),
        })
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.processes.len()
    }

    fn process(&self, rank: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        match rank.extract::<usize>() {
            Ok(rank) => Ok(self.processes.get(rank).copied().filter(|pid| *pid != 0)),
            Err(error) if error.is_instance_of::<PyOverflowError>(rank.py()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a message. If `waits`, it waits for room, for at most `limit` if given.
    #[expect(clippy::too_many_arguments, reason = "the package's Python half gives them names")]
    fn send(
        &self,
        py: Python<'_>,
        to: &Bound<'_, PyAny>,
        kind: usize,
        value: &Bound<'_, PyAny>,
        waits: bool,
        limit: Option<f64>,
    ) -> PyResult<()> {
        let limit = limit.map(|limit| seconds(limit, "timeout")).transpose()?;
        let (own, _) = self.here(py)?;
        let to = self.rank_of(to)?;
        let kind =
            own.kinds.get(kind).ok_or_else(|| PyValueError::new_err("a kind of another group"))?;
        let sent = payload(kind.carries(), value, |payload| -> PyResult<_> {
            // With the lock if there is room; otherwise without.
            let (own, group) = self.here(py)?;
            let within = MemberUse::enter(&own.within);
            let sent = match own.opened.borrow()[to] {
                false if waits => Err(SendError::Full),
                _ => group.try_send_foreign(to, kind, payload),
            };
            drop(within);
            match sent {
                // Handlers may run during the wait.
                Err(SendError::Full) if waits => self.run(py, true, |_, group| match limit {
                    Some(limit) => group.send_foreign_within(to, kind, payload, limit),
                    None => group.send_foreign(to, kind, payload),
                }),
                sent => Ok(sent),
            }
        })??;
        if sent.is_ok() {
            own.opened.borrow_mut()[to] = true;
        }
        sent.map_err(|wrong| send_error(py, &wrong))
    }

    fn available(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.here(py)?.1.available())
    }

    fn poll(&self, py: Python<'_>) -> PyResult<usize> {
        self.run(py, false, |_, group| group.poll())
    }

    /// Returns the next message, which is taken or stays.
    fn take(&self, py: Python<'_>, takes: bool) -> PyResult<(usize, u16, Py<PyAny>)> {
        let (own, group) = self.here(py)?;
        let look = |message: &Message<'_, '_>| {
            let kind = own.kinds.get(usize::from(message.kind()))?;
            Some((message.from(), kind.index(), read(py, message, kind)?))
        };
        let found = if takes { group.receive_foreign(look) } else { group.peek_foreign(look) };
        let (from, kind, value) =
            found.map_err(|none| raise(py, "NothingThere", &none.to_string(), &[]))?;
        Ok((from, kind, value?))
    }

    /// Returns the next message in place. It is taken, or stays, when its place ends. `kinds` are
    /// those of the package.
    fn place(&self, py: Python<'_>, takes: bool, kinds: &Bound<'_, PyList>) -> PyResult<PyPlace> {
        let (own, group) = self.here(py)?;
        let fits = |message: &Message<'_, '_>| {
            own.kinds
                .get(usize::from(message.kind()))
                .is_some_and(|kind| kind.may_have(message.size()))
        };
        let held = if takes { group.receive_held(fits) } else { group.peek_held(fits) };
        let held = held.map_err(|none| raise(py, "NothingThere", &none.to_string(), &[]))?;
        let kind = kinds.get_item(held.lying().kind().into())?.unbind();
        Ok(own.holds.place(held, kind))
    }

    /// Ends a place. Returns `true` if buffers of it are left: then the message is released with
    /// the last of them, by the next method call.
    fn end(&self, py: Python<'_>, place: &Bound<'_, PyPlace>) -> bool {
        let is_left = place.get().end();
        // On another thread, or after the group was left, there is nothing to release.
        let _ = self.here(py);
        is_left
    }

    fn wait(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<bool> {
        let limit = limit.map(|limit| seconds(limit, "timeout")).transpose()?;
        self.run(py, true, |_, group| group.wait_foreign(limit))?
            .map_err(|wrong| run_error(py, &wrong))
    }

    fn run_until(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<()> {
        let ran = self.run(py, true, |own, group| {
            group.run_until(|| {
                let Some(done) = &done else { return false };
                match with_lock(|py| done.call0(py)?.is_truthy(py)) {
                    Some(Ok(is)) => is,
                    Some(Err(error)) => fail(&own.failed, error),
                    None => false,
                }
            })
        })?;
        ran.map_err(|wrong| run_error(py, &wrong))
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, true, |_, group| group.barrier())?.map_err(|wrong| run_error(py, &wrong))
    }

    fn reduce<'py>(
        &self,
        py: Python<'py>,
        number: &str,
        value: &Bound<'py, PyAny>,
        combine: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let number = match number {
            "u64" => Number::U64,
            "i64" => Number::I64,
            "f64" => Number::F64,
            other => {
                return Err(PyValueError::new_err(format!(
                    "{other:?} cannot be reduced: it is one of u64, i64, f64"
                )));
            }
        };
        let (shape, own) = (Shape::Number(number), word(number, value)?);
        let reduced = self.run(py, true, |own_of, group| {
            group.reduce(own, |one, next| {
                let combined = with_lock(|py| {
                    let of = |word: u64| object(py, &shape, &mut std::iter::once(word));
                    word(number, combine.bind(py).call1((of(one)?, of(next)?))?.as_any())
                });
                match combined {
                    Some(Ok(word)) => word,
                    Some(Err(error)) => fail(&own_of.failed, error),
                    None => one,
                }
            })
        })?;
        let reduced = reduced.map_err(|wrong| run_error(py, &wrong))?;
        object(py, &shape, &mut std::iter::once(reduced))
    }

    /// The next event.
    fn event(&self, py: Python<'_>) -> PyResult<Option<ToldEvent>> {
        Ok(self.here(py)?.1.event().and_then(|event| match event {
            Event::Ended { rank } => Some((rank, None, false, None)),
            Event::Violation { rank, what } => Some((rank, Some(what), false, None)),
            Event::Joined { rank } => Some((rank, None, true, None)),
            Event::Parted { one, other } => Some((one, None, false, Some(other))),
            _ => None,
        }))
    }

    /// Expects members with the ranks from `first` to `end`. Returns their invitation.
    fn expect(&self, py: Python<'_>, first: Rank, end: Rank) -> PyResult<String> {
        let expected = self.here(py)?.1.expect(first..end);
        expected.map(|invitation| invitation.text()).map_err(|wrong| expect_error(py, &wrong))
    }

    /// Expects them as `expect` does, on the host of a petition only.
    fn expect_from(
        &self,
        py: Python<'_>,
        first: Rank,
        end: Rank,
        petition: &Bound<'_, PyPetition>,
    ) -> PyResult<String> {
        let group = self.here(py)?.1;
        let expect = |petition: &mut Option<_>| {
            petition.as_ref().map(|petition| group.expect_from(first..end, petition))
        };
        let expected = petition.get().with(py, expect)?;
        expected.map(|invitation| invitation.text()).map_err(|wrong| expect_error(py, &wrong))
    }

    fn petition(&self, py: Python<'_>) -> PyResult<Option<PyPetition>> {
        Ok(self.here(py)?.1.petition().map(|petition| PyPetition::new(py, petition)))
    }

    fn expect_no_more(&self, py: Python<'_>, first: Rank, end: Rank) -> PyResult<()> {
        self.here(py)?.1.expect_no_more(&(first..end));
        Ok(())
    }

    fn expel(&self, py: Python<'_>, first: Rank, end: Rank) -> PyResult<()> {
        self.here(py)?.1.expel(&(first..end));
        Ok(())
    }

    fn has_joined(&self, py: Python<'_>, rank: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.here(py)?.1.has_joined(self.rank_of(rank)?))
    }

    /// Returns `true` on the interpreter's first thread, where upcalls are possible.
    fn is_first(&self, py: Python<'_>) -> PyResult<bool> {
        self.here(py)?;
        Ok(gate::is_first_thread())
    }

    /// Begins upcalls: from now on handlers run between two bytecodes. The package has a handler
    /// for the signal.
    fn announce(slf: &Bound<'_, Self>, py: Python<'_>) -> PyResult<()> {
        let (own, group) = slf.get().here(py)?;
        let mut announced = own.announced.borrow_mut();
        match &mut *announced {
            Some((_, depth)) => *depth += 1,
            None => {
                let told = group
                    .announce(Arc::new(pending::ask))
                    .map_err(|wrong| raise(py, "NoUpcalls", &wrong.to_string(), &[]))?;
                *announced = Some((told, 1));
                drop(announced);
                pending::add(slf.clone().unbind());
            }
        }
        Ok(())
    }

    /// Ends the innermost `announce`.
    fn retract(slf: &Bound<'_, Self>, py: Python<'_>) -> PyResult<()> {
        let own = slf.get().own(py)?;
        let mut announced = own.announced.borrow_mut();
        match &mut *announced {
            Some((_, depth)) if *depth > 1 => *depth -= 1,
            // The outermost one, or the group was left within it.
            _ => {
                let told = announced.take();
                drop(announced);
                pending::remove(slf.as_unbound());
                drop(told);
            }
        }
        Ok(())
    }

    fn begin_atomic(&self, py: Python<'_>) -> PyResult<()> {
        self.here(py)?.1.begin_atomic();
        Ok(())
    }

    fn end_atomic(&self, py: Python<'_>) -> PyResult<()> {
        let ended = self.here(py)?.1.end_atomic();
        if ended { Ok(()) } else { Err(PyValueError::new_err("there is no atomic section to end")) }
    }

    fn buffered(&self, py: Python<'_>, to: &Bound<'_, PyAny>) -> PyResult<u64> {
        Ok(self.here(py)?.1.buffered(self.rank_of(to)?))
    }

    fn diverted(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.here(py)?.1.diverted())
    }

    fn diversions(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.here(py)?.1.diversions())
    }

    fn is_open(&self) -> bool {
        self.thread == std::thread::current().id()
            && self.own.as_ref().is_some_and(|own| own.group.borrow().is_some())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let own = self.own(py)?;
        if own.within.get() > 0 {
            let text = "a handler or another callback of the group is running: leave after that";
            return Err(raise(py, "InHandler", text, &[]));
        }
        drop(own.announced.take());
        let group = own.group.borrow_mut().take();
        // To leave members on other hosts takes until they have what was sent to them. Dropping the
        // group drops its handlers, whose destructors may run Python code: they run later, with the
        // lock.
        let group = ThreadBound(group);
        without_lock(py, move || drop(group.get()));
        Ok(())
    }
}
