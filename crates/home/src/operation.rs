//! Operations and procedures that the home runs for others, by name.
//!
//! Closures never travel between processes; names and arguments do.

use crate::handle::Does;
use crate::homed::Homed;
use crate::lane::{DONE, InvocationLane, LONGEST, LaneDirection, MessageError};
use crate::rules;
use crate::types::{DataError, Memory, Shared};
use crate::wire::{InvokeFailure, OperationKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use upcall_shm::slot::SlotMessage;
use upcall_shm::span::WritableSpan;

/// A short operation: it has the object to itself, and must not block or invoke.
///
/// So it can be run on the object in place ([`Homed::perform`]), or at the home in between the
/// home's own work ([`Homed::urgent`]).
///
/// ```
/// use upcall_home::{DataError, Map, MapAt, Operation, Shared, Text};
///
/// /// Counts a page up.
/// struct Hit;
///
/// impl Operation for Hit {
///     type Of = Map<Text, u64>;
///     type Args<'a> = &'a str;
///     type Reply = u64;
///     const NAME: &'static str = "hit";
///
///     fn run(hits: MapAt<'_, Text, u64>, page: &str) -> Result<u64, DataError> {
///         hits.entry(page)?.update(|count| count + 1)
///     }
/// }
/// ```
pub trait Operation: 'static {
    /// The object's type.
    type Of: Shared;
    /// The arguments: at most 1 MiB in postcard's encoding.
    type Args<'a>: Serialize + Deserialize<'a> + Clone;
    /// The reply: at most 1 MiB in postcard's encoding.
    type Reply: Serialize + DeserializeOwned;
    /// The name by which the home finds the operation.
    const NAME: &'static str;
    /// Set this for an operation that only reads. It can then run without the lock
    /// ([`Homed::read`]), and under the lock it does not invalidate such reads. A write in it fails
    /// with [`DataError::ReadOnly`].
    const LOOKS: bool = false;

    /// Runs the operation.
    ///
    /// # Errors
    /// See [`DataError`]. The changes that it made before stay.
    fn run(
        on: <Self::Of as Shared>::At<'_>,
        args: Self::Args<'_>,
    ) -> Result<Self::Reply, DataError>;
}

/// A procedure, which may block, take long, and run several operations.
///
/// The home runs it as a thread ([`Homed::invoke`]).
pub trait Procedure: 'static {
    /// The object's type.
    type Of: Shared;
    /// The arguments: at most 1 MiB in postcard's encoding.
    type Args<'a>: Serialize + Deserialize<'a>;
    /// The reply: at most 1 MiB in postcard's encoding.
    type Reply: Serialize + DeserializeOwned;
    /// The name by which the home finds the procedure.
    const NAME: &'static str;

    /// Runs the procedure, with a handle of its own to the object.
    ///
    /// # Errors
    /// The caller gets the text that it returns.
    fn run(on: &Homed<Self::Of>, args: Self::Args<'_>) -> Result<Self::Reply, String>;
}

/// The state that a home has beside the object, of any type: see [`kept`](crate::kept).
pub(crate) type HomeState = dyn Any;

/// Runs an operation with the arguments in these bytes. Returns the reply, which is not sent yet.
pub(crate) type RunOperation<T> = Box<
    dyn Fn(&Homed<T>, &HomeState, &[u8], &InvocationLane) -> Result<SlotMessage, InvokeFailure>
        + Send,
>;

/// Runs a procedure with the arguments in these bytes, on any thread.
pub(crate) type RunProcedure<T> =
    fn(&Homed<T>, &[u8], &InvocationLane) -> Result<SlotMessage, InvokeFailure>;

/// How an operation or a procedure is run.
pub(crate) enum OperationBody<T> {
    Short(RunOperation<T>),
    MayBlock(RunProcedure<T>),
}

/// How an operation is run in an interrupt, by the holder of the lock. Returns the reply, which is
/// not sent yet.
///
/// Allocates only what the operation, its arguments or its reply do.
#[derive(Clone, Copy)]
pub(crate) struct RunInInterrupt {
    run: fn(
        WritableSpan<'_>,
        &[u8],
        &InvocationLane,
        &'static Location<'static>,
    ) -> Result<SlotMessage, InvokeFailure>,
    does: Does,
    registered: &'static Location<'static>,
}

impl RunInInterrupt {
    pub(crate) fn does(self) -> Does {
        self.does
    }

    pub(crate) fn run(
        self,
        room: WritableSpan<'_>,
        args: &[u8],
        lane: &InvocationLane,
    ) -> Result<SlotMessage, InvokeFailure> {
        (self.run)(room, args, lane, self.registered)
    }
}

pub(crate) struct OperationEntry<T> {
    pub(crate) name: &'static str,
    pub(crate) run: OperationBody<T>,
    /// How it is run in an interrupt, if it is fit for that.
    pub(crate) in_interrupt: Option<RunInInterrupt>,
}

impl<T> OperationEntry<T> {
    pub(crate) fn kind(&self) -> OperationKind {
        match self.run {
            OperationBody::Short(_) => OperationKind::Short,
            OperationBody::MayBlock(_) => OperationKind::MayBlock,
        }
    }
}

/// The operations and procedures that a home runs for others.
#[must_use]
pub struct Operations<T>(pub(crate) Vec<OperationEntry<T>>);

impl<T> Default for Operations<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> fmt::Debug for Operations<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|entry| (entry.name, entry.kind()))).finish()
    }
}

fn unpack<'a, A: Deserialize<'a>>(bytes: &'a [u8]) -> Result<A, InvokeFailure> {
    postcard::from_bytes(bytes).map_err(|error| {
        InvokeFailure::NotRun(format!("its arguments cannot be decoded: {error}").into())
    })
}

/// The reply of an operation that has ended.
fn pack(value: &impl Serialize, lane: &InvocationLane) -> Result<SlotMessage, InvokeFailure> {
    lane.message(DONE, value, LaneDirection::Back).map_err(|unsent| match unsent {
        MessageError::TooLong { bytes } => InvokeFailure::Said(
            format!("its result has {bytes} bytes, but at most {LONGEST} can be sent").into(),
        ),
        MessageError::Unencodable(error) => InvokeFailure::Said(error.to_string().into()),
    })
}

impl<T: Shared> Operations<T> {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a short operation.
    ///
    /// In builds with debug assertions, a caller whose operation blocks gets an error that names
    /// this place ([`InvokeError::Blocked`](crate::InvokeError::Blocked)).
    #[track_caller]
    pub fn operation<O: Operation<Of = T>>(mut self) -> Self {
        let registered = Location::caller();
        let run: RunOperation<T> = Box::new(|on, _, args, lane| {
            let args = unpack::<O::Args<'_>>(args)?;
            let mut result = None;
            let run = |memory: Memory<'_>| {
                let _holds = rules::hold(true, registered);
                result = Some(rules::watched(|| O::run(T::at(memory.spot(0)), args)));
            };
            let done = catch_unwind(AssertUnwindSafe(|| {
                if O::LOOKS {
                    on.handle().access_to_look(|span| run(Memory::to_read::<T>(span)))
                } else {
                    on.handle().access(|room| run(Memory::of::<T>(room)))
                }
            }));
            match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(InvokeFailure::NotRun(error.to_string().into())),
                Err(_) => return Err(InvokeFailure::Panicked),
            }
            match result.expect("it was run") {
                (_, true) => Err(InvokeFailure::blocked(registered)),
                (value, false) => pack(&value?, lane),
            }
        });
        self.0.push(OperationEntry {
            name: O::NAME,
            run: OperationBody::Short(run),
            in_interrupt: None,
        });
        self
    }

    /// Adds a short operation that may also interrupt the home's computation.
    ///
    /// It does so while that computation is [interruptible](crate::Serving::interruptible).
    ///
    /// The operation must be fit for a signal handler: see [`Promise`](crate::Promise). Decoding
    /// and dropping its arguments must neither allocate nor free memory (numbers, `&str`, `&[u8]`,
    /// arrays and tuples of those). The same holds for its reply. An error that it returns is
    /// passed on as usual.
    ///
    /// It is run in an interrupt only if its arguments have at most 4 KiB in postcard's encoding.
    /// Otherwise it waits until the home polls.
    #[track_caller]
    pub fn on_interrupt<O: Operation<Of = T>>(self) -> Self {
        let run = |room: WritableSpan<'_>, args: &[u8], lane: &InvocationLane, registered| {
            let not_run =
                |_| InvokeFailure::NotRun(Cow::Borrowed("its arguments cannot be decoded"));
            let args = postcard::from_bytes::<O::Args<'_>>(args).map_err(not_run)?;
            let _holds = rules::hold(true, registered);
            let memory = if O::LOOKS { Memory::to_read::<T>(*room) } else { Memory::of::<T>(room) };
            let (value, blocked) = rules::watched(|| O::run(T::at(memory.spot(0)), args));
            if blocked {
                return Err(InvokeFailure::blocked(registered));
            }
            let value = value?;
            let said = |words| InvokeFailure::Said(Cow::Borrowed(words));
            lane.message(DONE, &value, LaneDirection::Back).map_err(|unsent| match unsent {
                MessageError::TooLong { .. } => {
                    said("its result has more than 1 MiB, which is the most that can be sent")
                }
                MessageError::Unencodable(_) => said("its result cannot be encoded"),
            })
        };
        let mut all = self.operation::<O>();
        if let Some(entry) = all.0.last_mut() {
            let does = if O::LOOKS { Does::Looks } else { Does::Changes };
            entry.in_interrupt = Some(RunInInterrupt { run, does, registered: Location::caller() });
        }
        all
    }

    /// Adds a short operation that touches only the state beside the object.
    pub(crate) fn unlocked<R: Serialize>(
        mut self,
        name: &'static str,
        run: impl Fn(&HomeState, &[u8]) -> Result<R, InvokeFailure> + Send + 'static,
    ) -> Self {
        let run: RunOperation<T> =
            Box::new(move |_, state, args, lane| pack(&run(state, args)?, lane));
        self.0.push(OperationEntry { name, run: OperationBody::Short(run), in_interrupt: None });
        self
    }

    /// Adds a procedure, which may block.
    pub fn procedure<P: Procedure<Of = T>>(mut self) -> Self {
        self.0.push(OperationEntry {
            name: P::NAME,
            run: OperationBody::MayBlock(run_procedure::<P>),
            in_interrupt: None,
        });
        self
    }
}

fn run_procedure<P: Procedure>(
    on: &Homed<P::Of>,
    args: &[u8],
    lane: &InvocationLane,
) -> Result<SlotMessage, InvokeFailure> {
    let args = unpack::<P::Args<'_>>(args)?;
    let own = on.try_clone().map_err(|error| InvokeFailure::NotRun(error.to_string().into()))?;
    let done = catch_unwind(AssertUnwindSafe(|| P::run(&own, args)));
    let value = done
        .map_err(|_| InvokeFailure::Panicked)?
        .map_err(|words| InvokeFailure::Said(words.into()))?;
    pack(&value, lane)
}
