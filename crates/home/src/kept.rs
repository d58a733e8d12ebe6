//! Values that are only ever invoked ([`Kept`]).
//!
//! They are of any type, in the home's own memory, and have no lock.
//!
//! Source: Psyche, section 3.1 (P4 here): where an object is only touched by invocations, the fact
//! that they run one after the other at its home is all the synchronisation that it needs. The
//! types keep it so: only the thread that keeps a value can get at it, and other processes have an
//! [`Asked`], which can only request errands. The object behind a value has no data, and its memory
//! is handed over to no guest.

use crate::absent::wait_while_absent;
use crate::builder::HomeBuilder;
use crate::error::{CreateError, FindError};
use crate::failure::InvokeError;
use crate::finder::{FindTerms, Finder};
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
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::time::Duration;
use upcall_os::socket::Peer;

/// A short operation on a kept value, which other processes can request.
///
/// It runs in between the other work of the thread that keeps the value, so it must not block, and
/// invokes nothing.
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
    /// The arguments: at most 1 MiB in postcard's encoding.
    type Args<'a>: Serialize + Deserialize<'a>;
    /// The reply: at most 1 MiB in postcard's encoding.
    type Reply: Serialize + DeserializeOwned;
    /// The name by which the home finds the errand.
    const NAME: &'static str;

    /// Runs the errand.
    ///
    /// # Errors
    /// The caller gets the text that it returns.
    fn run(of: &mut Self::Of, args: Self::Args<'_>) -> Result<Self::Reply, String>;
}

/// The errands that a home runs for others on a value.
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

const TORN: &str = "an errand panicked in the middle of it, and its home has not repaired it yet";

impl<V: 'static> Errands<V> {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an errand.
    ///
    /// In builds with debug assertions, a caller whose errand blocks gets an error that names this
    /// place ([`InvokeError::Blocked`]).
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

/// Distinguishes kept values from objects.
const KEPT: u64 = shape("kept 1", &[]);

/// A value that this thread keeps, and on which it runs errands for others.
///
/// It is kept as long as this lives.
///
/// On a virtual processor errands run by themselves, at safe points; elsewhere where this thread
/// [polls](Self::poll) or waits.
#[must_use = "nothing is kept any more when this is dropped"]
pub struct Kept<V> {
    serving: Serving<u64>,
    addresses: Vec<SocketAddr>,
    of: PhantomData<V>,
}

impl<V> fmt::Debug for Kept<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.serving).finish()
    }
}

/// Why a value is not kept.
pub enum KeepError {
    /// The object behind the value was not made.
    Create(CreateError),
    /// The value is not served.
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

upcall_os::error_debug!(KeepError { Create(error), Serve(error) });

impl std::error::Error for KeepError {}

impl<V: 'static> Kept<V> {
    /// Keeps a value under a name, for programs of the same user.
    ///
    /// # Errors
    /// See [`KeepError`].
    ///
    /// # Blocking
    /// Blocks for about 0.1 ms, and for up to 5 s while a process that had the name before is
    /// ending.
    pub fn serve(name: &str, value: V, errands: Errands<V>) -> Result<Self, KeepError> {
        Self::make(HomeBuilder::new(name, 8), value, errands)
    }

    /// Like [`serve`](Self::serve), for the processes that `policy` accepts.
    ///
    /// A process that is refused gets the text that `policy` returned. The function runs on the
    /// domain's clerk, and must not block.
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

    /// Like [`serve`](Self::serve), with settings of the home's socket.
    ///
    /// Its mode and group admit programs of other users: see [`HomeBuilder::mode`] and
    /// [`HomeBuilder::group`]. Programs on other hosts need [`HomeBuilder::listen`].
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
        let (handle, object) = creating
            .only_to_invoke()
            .create_unnamed(KEPT, |_| Ok(()))
            .map_err(KeepError::Create)?;
        let value = KeptValue { value: RefCell::new(value), torn: Cell::new(false) };
        let serving = Homed::<u64>::of(handle)
            .serve_with(operations, Box::new(value))
            .map_err(KeepError::Serve)?;
        // A process that waits for the name requests an errand at once, so the errands come first.
        object.enter_name().map_err(|error| KeepError::Create(error.into()))?;
        Ok(Self { serving, addresses: object.addresses(), of: PhantomData })
    }

    fn kept(&self) -> &KeptValue<V> {
        self.serving.state().downcast_ref().expect("what was kept")
    }

    /// Runs a turn of the home itself on the value.
    ///
    /// No errand runs during the turn, and the thread invokes nothing in it ([`Serving::mask`]).
    ///
    /// # Panics
    /// Panics in a turn of the same thread, or in an errand.
    #[track_caller]
    pub fn with<R>(&self, turn: impl FnOnce(&mut V) -> R) -> R {
        let _masked = self.serving.mask();
        turn(&mut self.kept().value.borrow_mut())
    }

    /// Returns `true` if an errand has panicked.
    ///
    /// Then no errand runs, and callers get an error, until the home has [repaired](Self::mend) the
    /// value.
    pub fn is_torn(&self) -> bool {
        self.kept().torn.get()
    }

    /// Runs a turn of the home that repairs what an errand may have left half done.
    ///
    /// # Panics
    /// As [`with`](Self::with).
    #[track_caller]
    pub fn mend<R>(&self, turn: impl FnOnce(&mut V) -> R) -> R {
        let done = self.with(turn);
        self.kept().torn.set(false);
        done
    }

    /// The addresses at which guests on other hosts connect: see [`HomeBuilder::listen`].
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Runs the errands that callers wait for: [`Serving::poll`].
    pub fn poll(&self) -> usize {
        self.serving.poll()
    }

    /// Serves until `done` returns `true`: [`Serving::run_until`].
    pub fn run_until(&self, done: impl FnMut() -> bool) {
        self.serving.run_until(done);
    }

    /// Waits for a request: [`Serving::wait`].
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        self.serving.wait(limit)
    }
}

/// A handle to a value of type `V` that another process keeps.
///
/// It is used by one thread at a time.
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
    /// Finds the value with this name.
    ///
    /// Takes about 0.1 ms, and up to 5 s if its home is stopped.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find(name: &str) -> Result<Self, FindError> {
        Self::try_find(name).map_err(FindError::with_hint)
    }

    /// Finds the value, and looks for no hint if there is none.
    fn try_find(name: &str) -> Result<Self, FindError> {
        let handle = Handle::try_find(name, KEPT, FindTerms::default())?;
        Ok(Self { handle, of: PhantomData })
    }

    /// Finds the value like [`find`](Self::find), and waits for at most `limit` while no home has
    /// made it: see [`Homed::find_wait`].
    ///
    /// # Errors
    /// See [`Homed::find_wait`].
    pub fn find_wait(name: &str, limit: Duration) -> Result<Self, FindError> {
        wait_while_absent(limit, || Self::try_find(name))
    }

    /// Finds values at homes that `accepts` accepts: see [`Homed::expect`].
    pub fn expect(
        accepts: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
    ) -> Finder<Self> {
        Finder::new(accepts, |name, terms| {
            Ok(Self { handle: Handle::try_find(name, KEPT, terms)?, of: PhantomData })
        })
    }

    /// Sets the maximum time that requests wait for a reply.
    ///
    /// By default they wait for ever.
    #[must_use]
    pub fn patience(self, patience: Option<Duration>) -> Self {
        Self { handle: self.handle.patience(patience), of: PhantomData }
    }

    /// Requests an errand, and waits for its reply, as [`Homed::urgent`] does.
    ///
    /// The thread that keeps the value runs the errand as soon as it can.
    ///
    /// The errand is run at most once. If it is not known whether it was run, the error says so.
    ///
    /// # Errors
    /// See [`InvokeError`].
    #[track_caller]
    pub fn ask<E: Errand<Of = V>>(&self, args: E::Args<'_>) -> Result<E::Reply, InvokeError> {
        rules::invoke().map_err(InvokeError::Rule)?;
        self.handle.ask(E::NAME, OperationKind::Short, &args)
    }
}
