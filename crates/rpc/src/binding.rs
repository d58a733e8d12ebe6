//! A client's binding to an interface, and the call.
//!
//! Source: LRPC, section 3.1. What a call does is in `call.rs`.

use crate::absent::wait_while_absent;
use crate::brought::{AStackPool, aside};
use crate::decode::{Decoder, DecoderSide};
use crate::error::BindError;
use crate::interface::{self, Interface, Procedure, WantedProcedure, check_descriptors};
use crate::link::{self, BinderRequest, DomainLink, refused};
use crate::names;
use crate::network::address::{self, Address};
use crate::network::far::{self, NetworkBinding};
use crate::server;
use crate::terms::BindTerms;
use crate::value::Handle;
use crate::wire::{ClientRequest, ServerReply};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_directory::policy::{self, Policy};
use upcall_net::wire::LOST_AFTER;
use upcall_os::atomic::{AtomicBool, AtomicU32, Ordering};
use upcall_os::fault::{Point, point};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::socket::Peer;
use upcall_sched::{CancelToken, HandOff, NoReply, Pacing, WaitPolicy};
use upcall_shm::astack::AStackPlan;
use upcall_shm::region::Region;
use upcall_shm::slot::{NO_ASTACK, SlotMessage, ValueLocation};

/// A client's right to call the procedures of one interface of one server. Clones share the
/// binding, and dropping the last clone ends it. If the server does not respond, that drop blocks
/// the kernel thread for at most 2 ms; the server then learns of it later, at the latest when the
/// channel ends.
#[derive(Clone)]
pub struct Binding {
    pub(crate) inner: Arc<BindingState>,
    /// Maximum duration of a call.
    pub(crate) deadline: Option<Duration>,
    /// The token that cancels the calls of this clone.
    pub(crate) cancel: Option<CancelToken>,
    /// When a call gives its processor to a server that sleeps.
    pub(crate) hand_off: HandOff,
    pub(crate) when_full: WhenFull,
    /// Index of this clone's first procedure among the procedures that were bound.
    pub(crate) first: u16,
}

/// The terms on which a client of type `C` binds: which servers it accepts.
pub struct Binder<C> {
    accepts: Box<Policy>,
    lost_after: Duration,
    interface: &'static Interface,
    client: fn(Binding) -> C,
}

impl<C> fmt::Debug for Binder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binder").field("interface", &self.interface.id).finish_non_exhaustive()
    }
}

impl<C> Binder<C> {
    /// Makes a binder whose clients `client` builds from a binding. Generated clients call this in
    /// `expect`.
    pub fn new(
        interface: &'static Interface,
        client: fn(Binding) -> C,
        accepts: impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { accepts: Box::new(accepts), lost_after: LOST_AFTER, interface, client }
    }

    /// Sets the time after which a server on another host that gives no sign of life is lost, in
    /// place of 5 s. It is rounded up to a second. Calls that wait then fail with
    /// [`CallError::Failed`](crate::CallError::Failed). For a server on this machine it has no
    /// effect.
    #[must_use]
    pub fn lost_after(mut self, time: Duration) -> Self {
        self.lost_after = time;
        self
    }

    /// Binds to the server that exports the interface as `name`, if the policy accepts it.
    ///
    /// # Errors
    /// As [`Binding::bind_expecting`].
    pub fn bind(&self, name: &str) -> Result<C, BindError> {
        aside(|| Binding::bind_here(name, self.interface, self.terms()))
            .map(self.client)
            .map_err(BindError::with_hint)
    }

    /// Binds like [`Binder::bind`], and waits for at most `limit` while no server serves `name`.
    ///
    /// # Errors
    /// As [`Binding::bind_wait`].
    pub fn bind_wait(&self, name: &str, limit: Duration) -> Result<C, BindError> {
        let attempt = || Binding::bind_here(name, self.interface, self.terms());
        aside(|| wait_while_absent(limit, attempt)).map(self.client)
    }

    fn terms(&self) -> BindTerms<'_> {
        BindTerms { accepts: Some(&*self.accepts), lost_after: self.lost_after }
    }
}

/// What a call that needs an A-stack does while calls under way hold all A-stacks of its class
/// (LRPC, section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The call waits in line until an A-stack is returned. A thread that itself serves a call from
    /// another domain does not wait, but goes on as with `Grow`: the call that it would wait for
    /// may be waiting for it.
    #[default]
    Wait,
    /// The call carries its values in a segment: memory beside the binding's, which is made on
    /// first use (about 0.1 ms), kept for later calls, and a little slower to validate than an
    /// A-stack. A virtual processor has at most 64 segments in use at a time, and all kernel
    /// threads together 32. A segment has 64 KiB, or more if the values need it.
    Grow,
}

pub(crate) struct BindingState {
    pub(crate) way: ServerLocation,
    name: String,
    pub(crate) interface: &'static Interface,
    /// Indexed by this program's procedure number.
    pub(crate) procedures: Vec<BoundProcedure>,
    /// Handles that were dropped, but that the server has not received yet because a deadline
    /// passed.
    overdue: KernelMutex<Vec<Handle>>,
    any_overdue: AtomicBool,
}

/// Where the server is. Binding decides it once, and each call branches on it first (LRPC, section
/// 5.1: "a bit in the Binding Object").
pub(crate) enum ServerLocation {
    /// On this machine.
    Near(Near),
    /// On another machine.
    Far(NetworkBinding),
}

/// A binding's part of a channel.
pub(crate) struct Near {
    pub(crate) link: Arc<DomainLink>,
    pub(crate) id: u16,
    pub(crate) astacks: Option<Arc<Region>>,
    /// Indexed by class.
    pub(crate) stacks: Vec<AStackPool>,
}

/// What a call needs to know about its procedure.
pub(crate) struct BoundProcedure {
    /// The message's tag: the binding and the server's procedure number. On a connection to another
    /// machine, the procedure number alone.
    pub(crate) tag: u16,
    /// The class of the procedure's A-stacks.
    pub(crate) class: Option<usize>,
    /// Size in bytes of the largest recent result that did not fit.
    pub(crate) result: AtomicU32,
}

impl BoundProcedure {
    fn new(tag: u16, class: Option<usize>) -> Self {
        Self { tag, class, result: AtomicU32::new(0) }
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BindingState { name, interface, way, .. } = &*self.inner;
        match way {
            ServerLocation::Near(near) => {
                write!(f, "Binding({name:?}, {}, process {})", interface.id, near.link.peer.pid)
            }
            ServerLocation::Far(far) => {
                write!(f, "Binding({name:?}, {}, at {})", interface.id, far.link.caller.server())
            }
        }
    }
}

impl Binding {
    /// Binds to the server that exports `name`, for the procedures of `interface`.
    ///
    /// `name` is a name in this machine's folder of names, or `tcp://HOST:PORT/NAME` for a server
    /// on another machine that listens there (`Server::listen`). Calls to another machine differ in
    /// their time, and lack the features that docs/reference/network.md lists.
    ///
    /// # Blocking
    /// Blocks the calling thread for about 0.15 ms if a channel has to be opened, for about 0.05 ms
    /// if one is open, and for at most 5 s if the server does not answer. Other user-level threads
    /// go on. Resolving a HOST that is not a number takes as long as this machine's resolver needs.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(name: &str, interface: &'static Interface) -> Result<Self, BindError> {
        aside(|| {
            Self::bind_here(name, interface, BindTerms::new(None)).map_err(BindError::with_hint)
        })
    }

    /// Binds like [`Binding::bind`], to a server that `accepts` accepts instead of a server of this
    /// user or of root.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind_expecting(
        name: &str,
        interface: &'static Interface,
        accepts: &Policy,
    ) -> Result<Self, BindError> {
        let terms = BindTerms::new(Some(accepts));
        aside(|| Self::bind_here(name, interface, terms).map_err(BindError::with_hint))
    }

    /// Binds like [`Binding::bind`], or like [`Binding::bind_expecting`] if `accepts` is given, but
    /// looks for no hint if no process exports `name`. For an attempt of
    /// [`wait_while_absent`].
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn try_bind(
        name: &str,
        interface: &'static Interface,
        accepts: Option<&Policy>,
    ) -> Result<Self, BindError> {
        Self::try_bind_on(name, interface, BindTerms::new(accepts))
    }

    /// Binds like [`Binding::try_bind`], on these terms.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn try_bind_on(
        name: &str,
        interface: &'static Interface,
        terms: BindTerms<'_>,
    ) -> Result<Self, BindError> {
        aside(|| Self::bind_here(name, interface, terms))
    }

    /// Binds like [`Binding::bind_expecting`], or like [`Binding::bind`] if `accepts` is `None`,
    /// and waits for at most `limit` while no server serves `name`. While it waits it takes no
    /// processor time on this machine's names, and tries an address again every 0.1 s.
    ///
    /// # Errors
    /// At once, if a server is there and the binding fails for another reason. At the limit, the
    /// error of the last attempt, such as [`BindError::NoSuchName`]; an attempt takes at most 5 s.
    pub fn bind_wait(
        name: &str,
        interface: &'static Interface,
        accepts: Option<&Policy>,
        limit: Duration,
    ) -> Result<Self, BindError> {
        Self::bind_wait_on(name, interface, BindTerms::new(accepts), limit)
    }

    /// Binds like [`Binding::bind_wait`], on these terms.
    ///
    /// # Errors
    /// As [`Binding::bind_wait`].
    pub fn bind_wait_on(
        name: &str,
        interface: &'static Interface,
        terms: BindTerms<'_>,
        limit: Duration,
    ) -> Result<Self, BindError> {
        aside(|| wait_while_absent(limit, || Self::bind_here(name, interface, terms)))
    }

    fn bind_here(
        name: &str,
        interface: &'static Interface,
        terms: BindTerms<'_>,
    ) -> Result<Self, BindError> {
        if let Some(address) = address::parse(name)? {
            return Self::bind_far(name, &address, interface, terms);
        }
        let own = policy::own_user_or_root();
        let accepts = terms.accepts.unwrap_or(&own);
        let deadline = link::patience_ends();
        let socket = names::find(name)?;
        // The A-stacks that the server most likely wants too, made while the server does its part.
        let mut guessed = None;
        let ask = |id| {
            let (memory, region) = astacks(interface.plan().bytes())?.unzip();
            guessed = region;
            let request = ClientRequest::Bind {
                id,
                name,
                interface: &interface.id,
                procedures: interface.procedures.iter().map(WantedProcedure::from).collect(),
                stacks: guessed.as_ref().map_or(0, |region| region.len() as u32),
            };
            Ok(BinderRequest { request, memory })
        };
        let (link, id, answer) = DomainLink::bind(name, &socket, deadline, accepts, ask)?;
        let descriptors = match answer {
            ServerReply::Bound { procedures } => procedures,
            ServerReply::Refused(refusal) => return Err(refused(name, &interface.id, refusal)),
            _ => return Err(BindError::Protocol { what: "another answer than a binding".into() }),
        };
        check_descriptors(&descriptors, interface.procedures.len())
            .map_err(|what| BindError::Protocol { what })?;
        let plan = interface::plan(&descriptors);
        let mut near = Near::new(link, id, &plan, guessed);
        near.bring_astacks(plan.bytes(), name, deadline)?;
        point(Point::ClientBound);
        let procedures = descriptors.iter().map(|told| {
            BoundProcedure::new(server::tag(id, told.number), plan.class_for(told.bytes))
        });
        let procedures = procedures.collect();
        Ok(Self::new(ServerLocation::Near(near), name, interface, procedures))
    }

    fn bind_far(
        name: &str,
        address: &Address,
        interface: &'static Interface,
        terms: BindTerms<'_>,
    ) -> Result<Self, BindError> {
        let (far, descriptors) = far::bind(address, name, interface, terms)?;
        let procedures =
            descriptors.iter().map(|told| BoundProcedure::new(told.number, None)).collect();
        Ok(Self::new(ServerLocation::Far(far), name, interface, procedures))
    }

    fn new(
        way: ServerLocation,
        name: &str,
        interface: &'static Interface,
        procedures: Vec<BoundProcedure>,
    ) -> Self {
        let (overdue, any_overdue) = (KernelMutex::default(), AtomicBool::new(false));
        Self::of(Arc::new(BindingState {
            way,
            name: name.into(),
            interface,
            procedures,
            overdue,
            any_overdue,
        }))
    }

    /// Makes a clone without terms of its own.
    pub(crate) fn of(inner: Arc<BindingState>) -> Self {
        Self {
            inner,
            deadline: None,
            cancel: None,
            hand_off: HandOff::default(),
            when_full: WhenFull::default(),
            first: 0,
        }
    }

    /// Returns the same binding with a deadline for each call through this clone, or through a
    /// handle that this clone returns. A call that has waited for `deadline` returns
    /// [`CallError::Aborted`](crate::CallError::Aborted). With `None` a call waits until the reply
    /// arrives or the server ends.
    ///
    /// Deadlines travel with calls from domain to domain. A thread that has a deadline itself
    /// (`upcall::thread::with_deadline`), or that serves a call whose caller has one, does not wait
    /// beyond that deadline either.
    ///
    /// A call that was sent goes on in the server, and its result is dropped when it arrives. Until
    /// then the call keeps its A-stack and its place among the calls under way to this server: 32
    /// of all kernel threads, and 64 of each virtual processor.
    #[must_use]
    pub fn with_deadline(&self, deadline: Option<Duration>) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// Returns the same binding, whose calls through this clone, or through a handle that this
    /// clone returns, are cancelled when [`CancelToken::cancel`] is called on `token`. A cancelled
    /// call returns [`CallError::Aborted`](crate::CallError::Aborted), as at a deadline. Any thread
    /// may cancel, also while the server is stopped or never answers.
    #[must_use]
    pub fn with_cancel(&self, token: &CancelToken) -> Self {
        Self { cancel: Some(token.clone()), ..self.clone() }
    }

    /// Returns `true` if a token can cancel the calls of this clone.
    pub fn has_cancel(&self) -> bool {
        self.cancel.is_some()
    }

    /// Returns the same binding without a cancel token.
    #[must_use]
    pub fn without_cancel(&self) -> Self {
        Self { cancel: None, ..self.clone() }
    }

    /// Returns the same binding with another rule for when a call through this clone, or through a
    /// handle that it returns, gives its processor to a server that sleeps.
    ///
    /// With [`HandOff::AtOnce`] a call from a user-level thread gives the processor away before the
    /// other threads of its virtual processor have run. A kernel thread that polls
    /// ([`Pacing::Poll`]) gives it away too. A server that is awake on a processor of its own is
    /// not moved.
    #[must_use]
    pub fn with_hand_off(&self, hand_off: HandOff) -> Self {
        Self { hand_off, ..self.clone() }
    }

    /// Returns the same binding with another rule for a call through this clone, or through a
    /// handle that it returns, that finds no A-stack free.
    #[must_use]
    pub fn with_when_full(&self, when_full: WhenFull) -> Self {
        Self { when_full, ..self.clone() }
    }

    /// Returns the same binding with procedures numbered as in `interface`, which the bound
    /// interface carries. Returns `None` if the bound interface does not carry it.
    pub fn part(&self, interface: &'static Interface) -> Option<Self> {
        let bound = self.inner.interface;
        let first = if std::ptr::eq(bound, interface) {
            0
        } else {
            bound.parts.iter().find(|part| part.id == interface.id)?.first
        };
        Some(Self { first, ..self.clone() })
    }

    /// Like [`Binding::part`], by the interface's full name.
    pub fn part_named(&self, id: &str) -> Option<Self> {
        let bound = self.inner.interface;
        let first =
            if bound.id == id { 0 } else { bound.parts.iter().find(|part| part.id == id)?.first };
        Some(Self { first, ..self.clone() })
    }

    /// The name that was bound.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The bound interface.
    pub fn interface(&self) -> &'static Interface {
        self.inner.interface
    }

    /// The process number of the server; 0 for a server on another machine.
    pub fn server(&self) -> u32 {
        match &self.inner.way {
            ServerLocation::Near(near) => near.link.peer.pid,
            ServerLocation::Far(_) => 0,
        }
    }

    /// Sets how kernel threads that call through this channel spend the wait. User-level threads
    /// follow the pacing of their scheduler. A caller that waits for another machine sleeps.
    pub fn set_pacing(&self, pacing: Pacing) {
        if let ServerLocation::Near(near) = &self.inner.way {
            near.link.channel.set_pacing(pacing);
        }
    }

    /// Returns `true` if both are clones of one binding. A handle of one clone is valid for the
    /// other.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns `true` if calls can still go through. Once `false`, it stays `false`.
    pub fn is_open(&self) -> bool {
        match &self.inner.way {
            ServerLocation::Near(near) => near.link.channel.closed(),
            ServerLocation::Far(far) => far.closed(),
        }
        .is_none()
    }

    /// Drops the client's hold on a resource. If the server has ended, the resource has ended too.
    /// Blocks until the server has dropped its hold, but not beyond a deadline. A drop that misses
    /// its deadline goes to the server with a later call through this binding.
    pub fn release(&self, handle: Handle) {
        self.release_by(self.ends(), handle);
    }

    fn release_by(&self, ends: Option<Instant>, handle: Handle) -> bool {
        point(Point::ClientReleases);
        let told = match &self.inner.way {
            ServerLocation::Near(near) => near.release(ends, handle, self.hand_off),
            ServerLocation::Far(far) => far.release(ends, handle),
        };
        if !told {
            self.overdue().push(handle);
            self.inner.any_overdue.store(true, Ordering::Release);
        }
        told
    }

    fn overdue(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.inner.overdue.lock()
    }

    /// Sends the server the handles whose drop missed a deadline.
    #[inline]
    pub(crate) fn release_overdue(&self, ends: Option<Instant>) {
        if self.inner.any_overdue.load(Ordering::Acquire) {
            self.release_all_overdue(ends);
        }
    }

    #[cold]
    fn release_all_overdue(&self, ends: Option<Instant>) {
        loop {
            let handle = {
                let mut overdue = self.overdue();
                let Some(handle) = overdue.pop() else {
                    return self.inner.any_overdue.store(false, Ordering::Release);
                };
                handle
            };
            if !self.release_by(ends, handle) {
                return;
            }
        }
    }
}

impl<'a> From<&'a Procedure> for WantedProcedure<'a> {
    fn from(procedure: &'a Procedure) -> Self {
        Self { name: &procedure.name, hash: procedure.hash, signature: &procedure.signature }
    }
}

/// Makes memory for A-stacks of this many bytes in all, and maps it here. Returns `None` for zero
/// bytes.
fn astacks(bytes: usize) -> Result<Option<(MemoryFile, Arc<Region>)>, BindError> {
    if bytes == 0 {
        return Ok(None);
    }
    let unable = |error| BindError::Resource { what: format!("{bytes} bytes of A-stacks"), error };
    let memory = MemoryFile::create("upcall-astacks", bytes).map_err(unable)?;
    let region = Region::new(Mapping::shared(&memory).map_err(unable)?);
    let region = region.ok_or_else(|| BindError::Protocol { what: "read-only A-stacks".into() })?;
    Ok(Some((memory, region)))
}

impl Near {
    /// A binding that the server has accepted. The guessed memory holds its A-stacks if the list
    /// needs no more.
    fn new(
        link: Arc<DomainLink>,
        id: u16,
        plan: &AStackPlan,
        guessed: Option<Arc<Region>>,
    ) -> Self {
        let astacks = guessed.filter(|region| region.len() >= plan.bytes());
        Self {
            link,
            id,
            astacks,
            stacks: (0..plan.classes().len()).map(|class| AStackPool::new(plan, class)).collect(),
        }
    }

    /// Makes the A-stacks that the list needs unless they were guessed, and makes the server map
    /// them too.
    fn bring_astacks(
        &mut self,
        bytes: usize,
        name: &str,
        deadline: Instant,
    ) -> Result<(), BindError> {
        if self.astacks.is_some() {
            return Ok(());
        }
        let Some((memory, region)) = astacks(bytes)? else { return Ok(()) };
        self.link.bring_astacks(name, self.id, &memory, deadline)?;
        self.astacks = Some(region);
        Ok(())
    }

    /// Drops the client's hold on a resource. Returns `true` if the server has received the drop.
    fn release(&self, ends: Option<Instant>, handle: Handle, hand_off: HandOff) -> bool {
        let mut request = SlotMessage::new(0, server::tag(self.id, server::RELEASE), NO_ASTACK);
        request.values[0] = handle.0;
        request.place(ValueLocation::Inline, 0, 8);
        let outcome = match ends {
            None => self.link.channel.call(&mut request, hand_off),
            Some(ends) => {
                let patience =
                    WaitPolicy { until: Some(ends).into(), late: &mut || Box::new(drop), hand_off };
                self.link.channel.call_within(&mut request, patience)
            }
        };
        outcome != Err(NoReply::OutOfTime { sent: false })
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.link.unbind(self.id);
    }
}

impl Decoder<'_> {
    /// The part of the result's binding to which a handle of `interface` belongs. `None` in a
    /// server, and if the binding does not carry that interface.
    pub fn part(&self, interface: &'static Interface) -> Option<Binding> {
        self.client()?.part(interface)
    }

    /// The binding through which a result arrived; `None` in a server.
    pub fn binding(&self) -> Option<Binding> {
        self.client().cloned()
    }

    fn client(&self) -> Option<&Binding> {
        match self.side {
            DecoderSide::Client(binding) => binding.downcast_ref(),
            _ => None,
        }
    }
}
