//! What is run at the home for others: operations and procedures, by name. Closures never travel; their names and arguments do.

use crate::homed::Homed;
use crate::types::{DataError, Memory, Shared};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A short operation: it is run by one at a time, does not block, and invokes nothing. So it can be run where the object is ([`Homed::perform`]), or at the home in between whatever that does ([`Homed::urgent`]).
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
    /// It writes nothing, so that it can also be run by a look, without the lock ([`Homed::read`]).
    const LOOKS: bool = false;

    /// Runs it.
    ///
    /// # Errors
    /// See [`DataError`]. What it has done before stays.
    fn run(on: <Self::Of as Shared>::At<'_>, args: Self::Args<'_>) -> Result<Self::Reply, DataError>;
}

/// What may block and take long, and do several operations: it is run at the home as a thread ([`Homed::invoke`]).
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

/// How it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Short,
    MayBlock,
}

/// What the home says in place of a reply.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    Full {
        asked: u64,
    },
    Corrupt {
        what: String,
        at: u64,
    },
    ReadOnly,
    /// The procedure's own words.
    Said(String),
    /// It was not run.
    NotRun(String),
    Panicked,
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Full { asked } => Self::Full { asked },
            DataError::Corrupt { what, at } => Self::Corrupt { what: what.into(), at },
            DataError::ReadOnly => Self::ReadOnly,
        }
    }
}

type Run<T> = Box<dyn Fn(&Homed<T>, &[u8], &mut Vec<u8>) -> Result<(), Failure> + Send>;

pub(crate) struct Entry<T> {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) run: Run<T>,
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
        f.debug_list().entries(self.0.iter().map(|entry| (entry.name, entry.kind))).finish()
    }
}

fn unpack<'a, A: Deserialize<'a>>(bytes: &'a [u8]) -> Result<A, Failure> {
    postcard::from_bytes(bytes).map_err(|error| Failure::NotRun(format!("its arguments cannot be read: {error}")))
}

/// Puts a value's bytes at the end of others.
pub(crate) fn pack(value: &impl Serialize, to: &mut Vec<u8>) -> Result<(), String> {
    *to = postcard::to_extend(value, std::mem::take(to)).map_err(|error| error.to_string())?;
    Ok(())
}

impl<T: Shared> Operations<T> {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a short one.
    pub fn operation<O: Operation<Of = T>>(mut self) -> Self {
        let run: Run<T> = Box::new(|on, args, reply| {
            let args = unpack::<O::Args<'_>>(args)?;
            let mut result = None;
            let done = catch_unwind(AssertUnwindSafe(|| {
                on.handle().access(|room| result = Some(O::run(T::at(Memory::of::<T>(room).spot(0)), args)))
            }));
            match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Failure::NotRun(error.to_string())),
                Err(_) => return Err(Failure::Panicked),
            }
            let value = result.expect("it was run")?;
            pack(&value, reply).map_err(Failure::Said)
        });
        self.0.push(Entry { name: O::NAME, kind: Kind::Short, run });
        self
    }

    /// With one that may block.
    pub fn procedure<P: Procedure<Of = T>>(mut self) -> Self {
        let run: Run<T> = Box::new(|on, args, reply| {
            let args = unpack::<P::Args<'_>>(args)?;
            let own = on.try_clone().map_err(|error| Failure::NotRun(error.to_string()))?;
            let done = catch_unwind(AssertUnwindSafe(|| P::run(&own, args)));
            let value = done.map_err(|_| Failure::Panicked)?.map_err(Failure::Said)?;
            pack(&value, reply).map_err(Failure::Said)
        });
        self.0.push(Entry { name: P::NAME, kind: Kind::MayBlock, run });
        self
    }
}
