//! A binding to a server on another machine, and its messages (LRPC, section 5.1: the branch to a
//! more conventional stub).

use super::address::Address;
use super::made::MadeCalls;
use crate::error::BindError;
use crate::interface::{Descriptor, Interface, WantedProcedure, check_descriptors};
use crate::link::{patience_ends, refused};
use crate::server::RELEASE;
use crate::terms::BindTerms;
use crate::value::Handle;
use crate::wire::{self, BindRefusal, ClientRequest, ServerReply};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use upcall_directory::policy::Policy;
use upcall_net::frame::MOST_BODY;
use upcall_net::record::VERSION;
use upcall_net::{
    CallerTerms, Frame, FrameBody, FrameHeader, FrameKind, LEAST_LOST_AFTER, LateFrame,
    NetworkCaller, NoConnection, Unreached, reach,
};
use upcall_os::atomic::{AtomicU32, Ordering};
use upcall_os::lock::KernelMutex;
use upcall_os::socket::Peer;
use upcall_sched::{Closed, NoReply, WaitLimit};

/// A server of procedures, which answers some questions where calls run.
const SERVER: CallerTerms = CallerTerms { most_reply: MOST_BODY, counts_asks: true };

/// A binding's part of a connection.
pub(crate) struct NetworkBinding {
    pub(crate) link: Arc<FarLink>,
    id: u32,
    made: MadeCalls,
}

/// A connection, shared by the bindings to one server.
pub(crate) struct FarLink {
    pub(crate) caller: Arc<NetworkCaller>,
    ids: AtomicU32,
    /// The reason that the server gave for the end of the connection, once that has ended.
    reason: OnceLock<Option<Closed>>,
}

/// The open connections, by the server's address as the program gave it, and the time after which
/// it is lost.
type FarLinks = HashMap<(String, Duration), Weak<FarLink>>;

fn links() -> upcall_os::lock::MutexGuard<'static, FarLinks> {
    static LINKS: OnceLock<KernelMutex<FarLinks>> = OnceLock::new();
    LINKS.get_or_init(KernelMutex::default).lock()
}

impl FarLink {
    /// The open connection, or a new one. Two binders at the same time may open two, of which later
    /// binders find one.
    pub(super) fn to(
        server: &str,
        text: &str,
        terms: BindTerms<'_>,
        deadline: Instant,
    ) -> Result<Arc<Self>, BindError> {
        let lost_after = terms.lost_after.max(LEAST_LOST_AFTER);
        let key = (server.to_string(), lost_after);
        if let Some(link) =
            links().get(&key).and_then(Weak::upgrade).filter(|link| link.caller.closed().is_none())
        {
            return link.accepted(text, terms.accepts);
        }
        let caller = reach(server, lost_after, SERVER, deadline)
            .map_err(|error| unreached(error, server, text))?;
        let link = Arc::new(Self { caller, ids: AtomicU32::new(0), reason: OnceLock::new() });
        let mut links = links();
        links.retain(|_, link| link.strong_count() > 0);
        links.insert(key, Arc::downgrade(&link));
        drop(links);
        link.accepted(text, terms.accepts)
    }

    /// The link, if the policy accepts its server.
    fn accepted(
        self: Arc<Self>,
        text: &str,
        accepts: Option<&Policy>,
    ) -> Result<Arc<Self>, BindError> {
        let Some(accepts) = accepts else { return Ok(self) };
        let refused = |found, reason| BindError::WrongUser { name: text.into(), found, reason };
        let peer = match (self.caller.host(), self.caller.user()) {
            (Some(host), _) => Peer::on_host(host.as_str().into()),
            (None, Some(user)) => Peer::of_user(user),
            (None, None) => {
                let reason = "the kernel does not say whose server it is (/proc/net/tcp)";
                return Err(refused(None, reason.into()));
            }
        };
        accepts(&peer).map_err(|reason| refused(peer.user(), reason))?;
        Ok(self)
    }

    /// Sends a request, and waits for the answer.
    pub(super) fn ask(
        &self,
        id: u32,
        request: &ClientRequest<'_>,
        text: &str,
        deadline: Instant,
    ) -> Result<ServerReply, BindError> {
        let body = wire::pack(request)
            .map_err(|error| BindError::Resource { what: "a request".into(), error })?;
        let head = FrameHeader { binding: id, ..FrameHeader::of(FrameKind::Ask) };
        let mut nobody = || -> LateFrame { Box::new(drop) };
        let asked =
            self.caller.call(head, FrameBody::from(&*body), Some(deadline).into(), &mut nobody);
        let broken = |what: String| BindError::Protocol { what };
        match asked {
            Ok(Frame { head: FrameHeader { kind: FrameKind::Answer, .. }, body }) => {
                wire::unpack(&body.to_vec()).map_err(broken)
            }
            Ok(_) => Err(broken("a reply in place of an answer".into())),
            Err(NoReply::OutOfTime { .. }) => {
                Err(BindError::NoAnswer { name: text.into(), after: crate::link::PATIENCE })
            }
            Err(NoReply::NoMemory { .. }) => Err(BindError::Resource {
                what: "a request".into(),
                error: std::io::ErrorKind::OutOfMemory.into(),
            }),
            Err(NoReply::Closed(closed)) => match self.refusal() {
                Some(refusal) => Ok(ServerReply::Refused(refusal)),
                None => Err(BindError::Unreachable {
                    server: self.caller.server().to_string(),
                    why: closed.to_string(),
                }),
            },
        }
    }

    /// What the server sent before it closed the connection.
    fn refusal(&self) -> Option<BindRefusal> {
        wire::unpack(&self.caller.farewell()?.to_vec()).ok()
    }

    /// Why no call goes through any more: the server's reason, if it gave one, or else `closed`.
    fn reason(&self, closed: Closed) -> Closed {
        let reason = self.reason.get_or_init(|| {
            let refusal = self.refusal()?;
            Some(Closed::Refused(refusal.to_string()))
        });
        reason.clone().unwrap_or(closed)
    }
}

/// Why a program does not bind to a server that is not reached.
fn unreached(error: Unreached, server: &str, text: &str) -> BindError {
    let why = match error {
        Unreached::NotProved(why) => return BindError::NotProved { server: server.into(), why },
        Unreached::NoAddress(error) => error.to_string(),
        Unreached::NoConnection(NoConnection::Version(found)) => {
            let reason = format!("it speaks version {found} on the network");
            return BindError::Version { name: text.into(), own: VERSION, reason };
        }
        Unreached::NoConnection(NoConnection::NoThread(error)) => {
            return BindError::Resource { what: "threads for a connection".into(), error };
        }
        Unreached::NoConnection(NoConnection::NoKey(error)) => {
            let what = "random bytes for the key of a session".into();
            return BindError::Resource { what, error };
        }
        Unreached::NoConnection(NoConnection::Silent) => {
            return BindError::NoAnswer { name: text.into(), after: crate::link::PATIENCE };
        }
        Unreached::NoConnection(error) => error.to_string(),
    };
    BindError::Unreachable { server: server.into(), why }
}

fn head(binding: u32, number: u16) -> FrameHeader {
    FrameHeader { binding, number, ..FrameHeader::of(FrameKind::Call) }
}

/// Binds to the server that exports the name at that address. Blocks the kernel thread.
pub(crate) fn bind(
    address: &Address,
    text: &str,
    interface: &'static Interface,
    terms: BindTerms<'_>,
) -> Result<(NetworkBinding, Vec<Descriptor>), BindError> {
    let deadline = patience_ends();
    let link = FarLink::to(&address.server, text, terms, deadline)?;
    let id = link.ids.fetch_add(1, Ordering::Relaxed);
    let request = ClientRequest::Bind {
        // The connection's own number has more bits; see the frame's header.
        id: 0,
        name: &address.name,
        interface: &interface.id,
        procedures: interface.procedures.iter().map(WantedProcedure::from).collect(),
        stacks: 0,
    };
    let far = NetworkBinding { link, id, made: MadeCalls::default() };
    match far.link.ask(id, &request, text, deadline)? {
        ServerReply::Bound { procedures } => {
            check_descriptors(&procedures, interface.procedures.len())
                .map_err(|what| BindError::Protocol { what })?;
            Ok((far, procedures))
        }
        ServerReply::Refused(BindRefusal::NoSuchName) => {
            Err(BindError::NotThere { name: address.name.clone(), server: address.server.clone() })
        }
        ServerReply::Refused(refusal) => Err(refused(text, &interface.id, refusal)),
        _ => Err(BindError::Protocol { what: "another answer than a binding".into() }),
    }
}

impl NetworkBinding {
    /// Why no call goes through any more. The server's last message counts more than the end of the
    /// connection.
    pub(crate) fn closed(&self) -> Option<Closed> {
        self.link.caller.closed().map(|closed| self.link.reason(closed))
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn call(
        &self,
        number: u16,
        block: FrameBody,
        until: WaitLimit<'_>,
        late: &mut dyn FnMut() -> LateFrame,
    ) -> Result<Frame, NoReply> {
        let bytes = block.len;
        match self.link.caller.call(head(self.id, number), block, until, late) {
            Ok(frame) => {
                // What the runtime asks for by itself is no call of the program.
                if number != RELEASE {
                    self.made.count(bytes, frame.body.len);
                }
                Ok(frame)
            }
            Err(NoReply::Closed(closed)) => Err(NoReply::Closed(self.link.reason(closed))),
            Err(error) => Err(error),
        }
    }

    /// Drops the client's hold on a resource. Returns `true` if the server has received the drop.
    pub(crate) fn release(&self, ends: Option<Instant>, handle: Handle) -> bool {
        let block = FrameBody { words: vec![handle.0], len: 8 };
        let released = self.call(RELEASE, block, ends.into(), &mut || Box::new(drop));
        !matches!(released, Err(NoReply::OutOfTime { sent: false } | NoReply::NoMemory { .. }))
    }
}

impl Drop for NetworkBinding {
    fn drop(&mut self) {
        if let Ok(body) = wire::pack(&ClientRequest::Unbind { id: 0 }) {
            let head = FrameHeader { binding: self.id, ..FrameHeader::of(FrameKind::Ask) };
            self.link.caller.notify(head, FrameBody::from(&*body));
        }
    }
}
