//! Values that are only ever invoked ([`Kept`]): of any type, in the home's own memory, and without
//! a lock.
//!
//! Source: Psyche, section 3.1 (P4 here): where an object is only touched by invocations, that
//! these run one after the other at its home is all the synchronisation that it needs. The types
//! keep it so: nobody but the thread that keeps a value gets at it, and others have an [`Asked`],
//! by which nothing can be done but ask. The object behind it has no data, and its memory is handed
//! over to nobody.

use crate::builder::HomeBuilder;
use crate::error::{CreateError, FindError};
use crate::failure::InvokeError;
use crate::finder::Finder;
use crate::handle::Handle;
use crate::homed::Homed;
use crate::object::Grant;
use crate::operation::{HomeState, Operations};
use crate::rules;
use crate::serving::{ServeError, Serving};
use crate::types::shape;
use crate::wire::{InvokeFailure, OperationKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::time::Duration;
use upcall_os::socket::Peer;

/// What others can have done with a value: short, for it runs in between what the thread that keeps
/// it does; it does not block, and invokes nothing.
///
/// ```
/// use std::collections::BTreeMap;
/// use upcall_home::{Asked, Errand, Errands, Kept};
///
/// /// Counts a page up.
/// struct Hit;
///
/// impl Errand for Hit {
///     type Of = BTreeMap<String, u64>;
///     type Args<'a> = &'a str;
///     type Reply = u64;
///     const NAME: &'static str = "hit";
///
///     fn run(hits: &mut BTreeMap<String, u64>, page: &str) -> Result<u64, String> {
///         let count = hits.entry(page.into()).or_default();
///         *count += 1;
///         Ok(*count)
///     }
/// }
///
/// // At its home:
/// let name = format!("kept-hits-{}", std::process::id());
/// let hits = Kept::serve(&name, BTreeMap::new(), Errands::new().errand::<Hit>())?;
///
/// // Elsewhere, by the same user:
/// # let theirs = name.clone();
/// let other = std::thread::spawn(move || Asked::find(&theirs).unwrap().ask::<Hit>("/").unwrap());
///
/// while !other.is_finished() {
///     hits.poll();
///     hits.wait(Some(std::time::Duration::from_millis(1)));
/// }
/// assert_eq!(hits.with(|hits| hits["/"]), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Errand: 'static {
    /// The value's type.
    type Of: 'static;
    /// What it is given: 1 MiB at most, as postcard encodes it.
    type Args<'a>: Serialize + Deserialize<'a>;
    /// What it gives back: as much at most.
    type Reply: Serialize + DeserializeOwned;
    /// By this it is found at the home.
    const NAME: &'static str;

    /// Runs it.
    ///
    /// # Errors
    /// What it says is told to who has asked.
    fn run(of: &mut Self::Of, args: Self::Args<'_>) -> Result<Self::Reply, String>;
}

/// What a home does for others with a value.
#[must_use]
pub struct Errands<V>(Operations<u64>, PhantomData<fn(V)>);

impl<V> fmt::Debug for Errands<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<V> Default for Errands<V> {
    fn default() -> Self {
        Self(Operations::new(), PhantomData)
    }
}

/// A value, at its home.
struct KeptValue<V> {
    value: RefCell<V>,
    /// An errand has panicked.
    torn: Cell<bool>,
}

const TORN: &str =
    "an errand has panicked in the midst of it, and its home has not put it right yet";

impl<V: 'static> Errands<V> {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more. In builds with debug assertions who asks for one that blocks is told of it,
    /// and of this place ([`InvokeError::Blocked`]).
    #[track_caller]
    pub fn errand<E: Errand<Of = V>>(self) -> Self {
        let registered = Location::caller();
        let run = move |state: &HomeState, args: &[u8]| {
            let not_run = |why: &'static str| InvokeFailure::NotRun(why.into());
            let kept = state
                .downcast_ref::<KeptValue<V>>()
                .ok_or_else(|| not_run("nothing is kept there"))?;
            if kept.torn.get() {
                return Err(not_run(TORN));
            }
            let args = postcard::from_bytes::<E::Args<'_>>(args)
                .map_err(|_| not_run("its arguments cannot be decoded"))?;
            let mut value = kept.value.try_borrow_mut().map_err(|_| not_run("it is in use"))?;
            let done =
                catch_unwind(AssertUnwindSafe(|| rules::watched(|| E::run(&mut value, args))));
            let (done, blocked) = done.map_err(|_| {
                kept.torn.set(true);
                InvokeFailure::Panicked
            })?;
            if blocked {
                return Err(InvokeFailure::blocked(registered));
            }
            done.map_err(|words| InvokeFailure::Said(words.into()))
        };
        Self(self.0.unlocked(E::NAME, run), PhantomData)
    }
}

/// Tells what is kept apart from objects.
const KEPT: u64 = shape("kept 1", &[]);

/// A value that this thread keeps, and does errands with for others, as long as this lives. On a
/// virtual processor they are done by themselves, at safe points; elsewhere where this thread
/// [polls](Self::poll), or waits.
#[must_use = "nothing is kept any more when this is dropped"]
pub struct Kept<V> {
    serving: Serving<u64>,
    of: PhantomData<V>,
}

impl<V> fmt::Debug for Kept<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.serving).finish()
    }
}

/// Why a value is not kept.
#[derive(Debug)]
pub enum KeepError {
    /// There is no object for it.
    Create(CreateError),
    /// It is not served.
    Serve(ServeError),
}

impl fmt::Display for KeepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(error) => error.fmt(f),
            Self::Serve(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KeepError {}

impl<V: 'static> Kept<V> {
    /// Keeps a value under a name, for programs of the same user. Blocks for some 0.1 ms, and up to
    /// 5 s while a process that had the name before is just ending.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub fn serve(name: &str, value: V, errands: Errands<V>) -> Result<Self, KeepError> {
        Self::make(HomeBuilder::new(name, 8), value, errands)
    }

    /// The same for those that `policy` lets ask. What it says when it refuses is told. It runs on
    /// the domain's clerk, and may not block.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub fn serve_to(
        name: &str,
        value: V,
        errands: Errands<V>,
        policy: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
    ) -> Result<Self, KeepError> {
        Self::make(
            HomeBuilder::new(name, 8).policy(move |peer| policy(peer).map(|()| Grant::Invoke)),
            value,
            errands,
        )
    }

    /// The same with a mode and a group of the home's socket, as [`HomeBuilder::mode`] and
    /// [`HomeBuilder::group`] say it: for programs of other users.
    ///
    /// # Errors
    /// See [`KeepError`].
    pub fn serve_by(
        creating: HomeBuilder,
        value: V,
        errands: Errands<V>,
    ) -> Result<Self, KeepError> {
        Self::make(creating.length(8), value, errands)
    }

    fn make(
        creating: HomeBuilder,
        value: V,
        Errands(operations, _): Errands<V>,
    ) -> Result<Self, KeepError> {
        let handle = creating.only_to_invoke().create(KEPT, |_| ()).map_err(KeepError::Create)?;
        let value = KeptValue { value: RefCell::new(value), torn: Cell::new(false) };
        let serving = Homed::<u64>::of(handle)
            .serve_with(operations, Box::new(value))
            .map_err(KeepError::Serve)?;
        Ok(Self { serving, of: PhantomData })
    }

    fn kept(&self) -> &KeptValue<V> {
        self.serving.state().downcast_ref().expect("what was kept")
    }

    /// Its home's own turn. No errand is done meanwhile; the thread invokes nothing in it
    /// ([`Serving::mask`]).
    ///
    /// # Panics
    /// In a turn of the same thread, or in an errand.
    #[track_caller]
    pub fn with<R>(&self, turn: impl FnOnce(&mut V) -> R) -> R {
        let _masked = self.serving.mask();
        turn(&mut self.kept().value.borrow_mut())
    }

    /// Whether an errand has panicked. Then none is done, and who asks is told so, until its home
    /// has [put it right](Self::mend).
    pub fn is_torn(&self) -> bool {
        self.kept().torn.get()
    }

    /// Has the home put right what an errand may have left half done.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[track_caller]
    pub fn mend<R>(&self, turn: impl FnOnce(&mut V) -> R) -> R {
        let done = self.with(turn);
        self.kept().torn.set(false);
        done
    }

    /// Does what others wait for: [`Serving::poll`].
    pub fn poll(&self) -> usize {
        self.serving.poll()
    }

    /// Serves until this is true: [`Serving::run_until`].
    pub fn run_until(&self, done: impl FnMut() -> bool) {
        self.serving.run_until(done);
    }

    /// Waits until somebody waits for something: [`Serving::wait`].
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        self.serving.wait(limit)
    }
}

/// By this others have errands done with a value of type `V`. Used by one thread at a time.
pub struct Asked<V> {
    handle: Handle,
    of: PhantomData<fn(V)>,
}

impl<V> fmt::Debug for Asked<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Asked").field(&self.handle).finish()
    }
}

impl<V: 'static> Asked<V> {
    /// Finds what is kept under a name. Takes some 0.1 ms, and up to 5 s if its home is stopped.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find(name: &str) -> Result<Self, FindError> {
        Ok(Self { handle: Handle::find(name, KEPT)?, of: PhantomData })
    }

    /// Finds what homes keep that `accepts` accepts, in place of those of this user and of root:
    /// see [`Homed::expect`].
    pub fn expect(
        accepts: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
    ) -> Finder<Self> {
        Finder::new(accepts, |name, accepts| {
            Ok(Self { handle: Handle::find_expecting(name, KEPT, accepts)?, of: PhantomData })
        })
    }

    /// The same, which waits so long at most for a reply; for ever, if nothing else is said.
    #[must_use]
    pub fn patience(self, patience: Option<Duration>) -> Self {
        Self { handle: self.handle.patience(patience), of: PhantomData }
    }

    /// Has an errand done, as soon as the thread that keeps the value can, and waits for that: as
    /// [`Homed::urgent`]. It is done once; if it cannot be known whether it was, the error says so.
    ///
    /// # Errors
    /// See [`InvokeError`].
    #[track_caller]
    pub fn ask<E: Errand<Of = V>>(&self, args: E::Args<'_>) -> Result<E::Reply, InvokeError> {
        rules::invoke().map_err(InvokeError::Rule)?;
        self.handle.ask(E::NAME, OperationKind::Short, &args)
    }
}
