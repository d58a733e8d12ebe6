//! What is run at the home for others: operations and procedures, by name. Closures never travel;
//! their names and arguments do.

use crate::handle::Does;
use crate::homed::Homed;
use crate::lane::{DONE, LONGEST, Lane, Unsent, Way};
use crate::rules;
use crate::types::{DataError, Memory, Shared};
use crate::wire::{Failure, Kind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use upcall_shm::slot::Image;
use upcall_shm::span::Room;

/// A short operation: it is run by one at a time, does not block, and invokes nothing. So it can be
/// run where the object is ([`Homed::perform`]), or at the home in between whatever that does
/// ([`Homed::urgent`]).
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
    /// What it is given: 1 MiB at most, as postcard encodes it.
    type Args<'a>: Serialize + Deserialize<'a> + Clone;
    /// What it gives back: as much at most.
    type Reply: Serialize + DeserializeOwned;
    /// By this it is found at the home.
    const NAME: &'static str;
    /// Set this for an operation that only reads. It can then run without the lock
    /// ([`Homed::read`]), and under the lock it does not invalidate such reads. A write in it fails
    /// with [`DataError::ReadOnly`].
    const LOOKS: bool = false;

    /// Runs it.
    ///
    /// # Errors
    /// See [`DataError`]. What it has done before stays.
    fn run(
        on: <Self::Of as Shared>::At<'_>,
        args: Self::Args<'_>,
    ) -> Result<Self::Reply, DataError>;
}

/// What may block and take long, and do several operations: it is run at the home as a thread
/// ([`Homed::invoke`]).
pub trait Procedure: 'static {
    /// The object's type.
    type Of: Shared;
    /// What it is given: 1 MiB at most, as postcard encodes it.
    type Args<'a>: Serialize + Deserialize<'a>;
    /// What it gives back: as much at most.
    type Reply: Serialize + DeserializeOwned;
    /// By this it is found at the home.
    const NAME: &'static str;

    /// Runs it, with a hold on the object that is its own.
    ///
    /// # Errors
    /// What it says is told to who has invoked it.
    fn run(on: &Homed<Self::Of>, args: Self::Args<'_>) -> Result<Self::Reply, String>;
}

/// What a home has beside the object, of whatever type: see [`kept`](crate::kept).
pub(crate) type State = dyn Any;

/// Runs it with the arguments of these bytes. Gives the reply, which is yet to be sent.
pub(crate) type Run<T> =
    Box<dyn Fn(&Homed<T>, &State, &[u8], &Lane) -> Result<Image, Failure> + Send>;

/// Runs a procedure with the arguments of these bytes, on any thread.
pub(crate) type RunProcedure<T> = fn(&Homed<T>, &[u8], &Lane) -> Result<Image, Failure>;

/// How an operation or a procedure is run.
pub(crate) enum How<T> {
    Short(Run<T>),
    MayBlock(RunProcedure<T>),
}

/// How one is run in an interrupt, by who has the lock. Gives the reply, which is yet to be sent.
/// Allocates nothing but what the operation, or its arguments or reply, do.
#[derive(Clone, Copy)]
pub(crate) struct RunInInterrupt {
    run: fn(Room<'_>, &[u8], &Lane, &'static Location<'static>) -> Result<Image, Failure>,
    does: Does,
    registered: &'static Location<'static>,
}

impl RunInInterrupt {
    pub(crate) fn does(self) -> Does {
        self.does
    }

    pub(crate) fn run(self, room: Room<'_>, args: &[u8], lane: &Lane) -> Result<Image, Failure> {
        (self.run)(room, args, lane, self.registered)
    }
}

pub(crate) struct Entry<T> {
    pub(crate) name: &'static str,
    pub(crate) run: How<T>,
    /// Of one that is fit for it.
    pub(crate) in_interrupt: Option<RunInInterrupt>,
}

impl<T> Entry<T> {
    pub(crate) fn kind(&self) -> Kind {
        match self.run {
            How::Short(_) => Kind::Short,
            How::MayBlock(_) => Kind::MayBlock,
        }
    }
}

/// What a home runs for others.
#[must_use]
pub struct Operations<T>(pub(crate) Vec<Entry<T>>);

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

fn unpack<'a, A: Deserialize<'a>>(bytes: &'a [u8]) -> Result<A, Failure> {
    postcard::from_bytes(bytes)
        .map_err(|error| Failure::NotRun(format!("its arguments cannot be read: {error}").into()))
}

/// The reply of an operation that has come to its end.
fn pack(value: &impl Serialize, lane: &Lane) -> Result<Image, Failure> {
    lane.message(DONE, value, Way::Back).map_err(|unsent| match unsent {
        Unsent::TooLong { bytes } => {
            Failure::Said(format!("its result has {bytes} bytes, and {LONGEST} can be sent").into())
        }
        Unsent::Unencodable(error) => Failure::Said(error.to_string().into()),
    })
}

impl<T: Shared> Operations<T> {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a short one. In builds with debug assertions who asks for one that blocks is told of
    /// it, and of this place ([`InvokeError::Blocked`](crate::InvokeError::Blocked)).
    #[track_caller]
    pub fn operation<O: Operation<Of = T>>(mut self) -> Self {
        let registered = Location::caller();
        let run: Run<T> = Box::new(|on, _, args, lane| {
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
                Ok(Err(error)) => return Err(Failure::NotRun(error.to_string().into())),
                Err(_) => return Err(Failure::Panicked),
            }
            match result.expect("it was run") {
                (_, true) => Err(Failure::blocked(registered)),
                (value, false) => pack(&value?, lane),
            }
        });
        self.0.push(Entry { name: O::NAME, run: How::Short(run), in_interrupt: None });
        self
    }

    /// With a short one that may also interrupt what its home computes, while that is
    /// [interruptible](crate::Serving::interruptible): so it has to be fit for a handler of a
    /// signal, which [`Promise`](crate::Promise) tells of. Its arguments are to be such that to
    /// read and to drop them allocates and frees nothing (numbers, `&str`, `&[u8]`, arrays and
    /// tuples of those), and so is its reply. An error that it returns is told as ever.
    ///
    /// In an interrupt it is run only if its arguments have no more than 4 KiB, as postcard encodes
    /// them; with more it waits until its home polls.
    #[track_caller]
    pub fn on_interrupt<O: Operation<Of = T>>(self) -> Self {
        let run = |room: Room<'_>, args: &[u8], lane: &Lane, registered| {
            let not_run = |_| Failure::NotRun(Cow::Borrowed("its arguments cannot be read"));
            let args = postcard::from_bytes::<O::Args<'_>>(args).map_err(not_run)?;
            let _holds = rules::hold(true, registered);
            let memory = if O::LOOKS { Memory::to_read::<T>(*room) } else { Memory::of::<T>(room) };
            let (value, blocked) = rules::watched(|| O::run(T::at(memory.spot(0)), args));
            if blocked {
                return Err(Failure::blocked(registered));
            }
            let value = value?;
            let said = |words| Failure::Said(Cow::Borrowed(words));
            lane.message(DONE, &value, Way::Back).map_err(|unsent| match unsent {
                Unsent::TooLong { .. } => {
                    said("its result has more bytes than can be sent, which are 1 MiB")
                }
                Unsent::Unencodable(_) => said("its result cannot be encoded"),
            })
        };
        let mut all = self.operation::<O>();
        if let Some(entry) = all.0.last_mut() {
            let does = if O::LOOKS { Does::Looks } else { Does::Changes };
            entry.in_interrupt = Some(RunInInterrupt { run, does, registered: Location::caller() });
        }
        all
    }

    /// With a short one that does not touch the object, but the state beside it.
    pub(crate) fn unlocked<R: Serialize>(
        mut self,
        name: &'static str,
        run: impl Fn(&State, &[u8]) -> Result<R, Failure> + Send + 'static,
    ) -> Self {
        let run: Run<T> = Box::new(move |_, state, args, lane| pack(&run(state, args)?, lane));
        self.0.push(Entry { name, run: How::Short(run), in_interrupt: None });
        self
    }

    /// With one that may block.
    pub fn procedure<P: Procedure<Of = T>>(mut self) -> Self {
        self.0.push(Entry {
            name: P::NAME,
            run: How::MayBlock(run_procedure::<P>),
            in_interrupt: None,
        });
        self
    }
}

fn run_procedure<P: Procedure>(
    on: &Homed<P::Of>,
    args: &[u8],
    lane: &Lane,
) -> Result<Image, Failure> {
    let args = unpack::<P::Args<'_>>(args)?;
    let own = on.try_clone().map_err(|error| Failure::NotRun(error.to_string().into()))?;
    let done = catch_unwind(AssertUnwindSafe(|| P::run(&own, args)));
    let value =
        done.map_err(|_| Failure::Panicked)?.map_err(|words| Failure::Said(words.into()))?;
    pack(&value, lane)
}
