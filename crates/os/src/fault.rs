//! Points of the path at which a test has this process die, stop or panic.
//!
//! What users must never meet shows when a process ends in the middle of something: so each step of
//! binding and calling that leaves something behind has a [`Point`], and a test walks through all
//! of them, with each way of ending. A process that is started with `UPCALL_FAULT=point:act` does
//! the act when it comes to the point; `point:act:n` when it comes there for the nth time.
//!
//! Only in builds with debug assertions; in others a point is nothing.

use std::fmt;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

macro_rules! points {
    ($($(#[doc = $doc:literal])* $name:ident = $label:literal),* $(,)?) => {
        /// A step after which, or before which, a process may end.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $($(#[doc = $doc])* $name),* }

        impl Point {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name, as in `UPCALL_FAULT`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $label),* }
            }
        }
    };
}

points! {
    /// A client has connected, and asked for nothing yet.
    ClientConnected = "client-connected",
    /// It has asked for a channel.
    ClientAsked = "client-asked",
    /// The channel is open, the binding is not known yet.
    ClientOpened = "client-opened",
    /// It is about to bring other A-stacks than it had guessed.
    ClientBringsStacks = "client-brings-stacks",
    /// It has bound.
    ClientBound = "client-bound",
    /// It has taken an A-stack or a segment for a call.
    ClientTook = "client-took",
    /// The arguments are written, the request is not sent.
    ClientWrote = "client-wrote",
    /// The request is sent, and the server not woken.
    ClientSent = "client-sent",
    /// A kernel thread that calls, or a virtual processor of either side, has said that it sleeps.
    Sleeps = "sleeps",
    /// The reply is there, the results are not read.
    ClientAnswered = "client-answered",
    /// The results are read; what was taken is not given back.
    ClientRead = "client-read",
    /// It has made a segment, and not told of it.
    ClientMadeSegment = "client-made-segment",
    /// It has told of a segment.
    ClientToldSegment = "client-told-segment",
    /// It is about to fetch a result that had no room.
    ClientFetches = "client-fetches",
    /// It is about to let go of an object.
    ClientReleases = "client-releases",
    /// It leaves a call to its late reply.
    ClientLeaves = "client-leaves",
    /// It is about to give up a binding.
    ClientUnbinds = "client-unbinds",
    /// A server's socket is there, a name is not.
    ServerEntersName = "server-enters-name",
    /// The name is there too.
    ServerEntered = "server-entered",
    /// It has accepted a connection.
    ServerAccepted = "server-accepted",
    /// It has mapped a channel, and not answered.
    ServerMapped = "server-mapped",
    /// It is about to enter a binding.
    ServerBinds = "server-binds",
    /// It is about to map A-stacks that were brought later.
    ServerMapsStacks = "server-maps-stacks",
    /// It is about to open a lane.
    ServerOpensLane = "server-opens-lane",
    /// It is about to map a segment.
    ServerMapsSegment = "server-maps-segment",
    /// It has taken a request.
    ServerTook = "server-took",
    /// It is about to run a procedure.
    ServerRuns = "server-runs",
    /// The procedure has returned, its result is not written.
    ServerRan = "server-ran",
    /// It keeps a result that has no room.
    ServerHolds = "server-holds",
    /// It is about to give such a result.
    ServerGives = "server-gives",
    /// It is about to let go of an object.
    ServerReleases = "server-releases",
    /// The result is written, the reply not sent.
    ServerReplies = "server-replies",
    /// The reply is sent, the caller not woken.
    ServerReplied = "server-replied",
    /// It is about to drop what a client left.
    ServerDrops = "server-drops",
    /// A member of a group that forms has its socket, and has not looked who leads.
    MemberForms = "member-forms",
    /// It leads, and has the name.
    MemberFormsLeads = "member-forms-leads",
    /// It has connected to the leader, and has not asked it.
    MemberFormsFinds = "member-forms-finds",
    /// It has asked the leader.
    MemberFormsAsked = "member-forms-asked",
    /// All are there, and the leader has told nobody.
    MemberFormsAll = "member-forms-all",
    /// A member is about to bring its queue to another one.
    MemberBrings = "member-brings",
    /// It has brought it, and has no answer.
    MemberBrought = "member-brought",
    /// It is about to take a queue in that another one brings.
    MemberTakesIn = "member-takes-in",
    /// It has taken it in, and not answered.
    MemberTookIn = "member-took-in",
    /// A message is written, and not launched.
    MemberDescribed = "member-described",
    /// It is launched, and its receiver not woken.
    MemberLaunched = "member-launched",
    /// A segment is mapped, and no word leads there.
    MemberDiverts = "member-diverts",
    /// Messages go there now.
    MemberDiverted = "member-diverted",
    /// A message is read, and not disposed of.
    MemberReads = "member-reads",
    /// It is disposed of, and its handler has not run.
    MemberTook = "member-took",
    /// A segment is left, and its sender not told.
    MemberLeaves = "member-leaves",
    /// A home has made an object, and not entered its name.
    ObjectMade = "object-made",
    /// It has entered it.
    ObjectNamed = "object-named",
    /// One who wants to use it has asked for that.
    ObjectAsked = "object-asked",
    /// It has its memory, and has not looked at it.
    ObjectOpened = "object-opened",
    /// It has the lock of an object, and has changed nothing.
    ObjectLocked = "object-locked",
    /// It has done what it wanted, and has the lock still.
    ObjectDone = "object-done",
    /// The home is about to repair one.
    ObjectRepairs = "object-repairs",
    /// A request is in its lane, and the home was not told.
    InvocationSent = "invocation-sent",
    /// The home has taken a request, and not begun with it.
    InvocationTaken = "invocation-taken",
    /// The home has run an operation, and not answered.
    InvocationRan = "invocation-ran",
}

/// What a process does at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// As by `kill -9`.
    Kill,
    /// Ends by `exit`.
    Exit,
    /// Panics there.
    Panic,
    /// Becomes another program, which keeps the process's number.
    Exec,
    /// Stops, until somebody has it continue.
    Stop,
}

impl Act {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Kill, Self::Exit, Self::Panic, Self::Exec, Self::Stop];

    /// Its name, as in `UPCALL_FAULT`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Exit => "exit",
            Self::Panic => "panic",
            Self::Exec => "exec",
            Self::Stop => "stop",
        }
    }

    fn happens(self, point: Point) {
        let signal = |signal| {
            // It is our own process, which may be sent what it likes.
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        };
        match self {
            Self::Kill => signal(rustix::process::Signal::KILL),
            Self::Stop => signal(rustix::process::Signal::STOP),
            Self::Exit => std::process::exit(3),
            Self::Panic => panic!("a fault at {point}, as it was asked for"),
            Self::Exec => drop(std::process::Command::new("sleep").arg("1000").exec()),
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

struct Armed {
    point: Point,
    act: Act,
    left: AtomicU32,
}

impl Armed {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (point, act) = (parts.next()?, parts.next()?);
        let left = parts.next().map_or(Some(1), |left| left.parse().ok())?;
        Some(Self {
            point: *Point::ALL.iter().find(|known| known.name() == point)?,
            act: *Act::ALL.iter().find(|known| known.name() == act)?,
            left: AtomicU32::new(left),
        })
    }
}

/// Whether points are there.
pub const POINTS_ARE_THERE: bool = cfg!(debug_assertions);

static ARMED: OnceLock<Armed> = OnceLock::new();

/// Does from now on what `UPCALL_FAULT` with this text would have done from the beginning. False if
/// the text says nothing, or something was asked for before.
pub fn arm(text: &str) -> bool {
    Armed::parse(text).is_some_and(|armed| ARMED.set(armed).is_ok())
}

/// Here is `point`.
#[inline(always)]
pub fn point(point: Point) {
    if POINTS_ARE_THERE {
        reached(point);
    }
}

#[cold]
#[inline(never)]
fn reached(point: Point) {
    static FROM_OUTSIDE: Once = Once::new();
    FROM_OUTSIDE.call_once(|| {
        let _ = std::env::var("UPCALL_FAULT").is_ok_and(|text| arm(&text));
    });
    if let Some(armed) = ARMED.get()
        && armed.point == point
        && armed.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            == Ok(1)
    {
        armed.act.happens(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_understood() {
        for &point in Point::ALL {
            for &act in Act::ALL {
                let armed = Armed::parse(&format!("{point}:{}:3", act.name())).unwrap();
                assert_eq!((armed.point, armed.act, armed.left.into_inner()), (point, act, 3));
            }
        }
        assert!(Armed::parse("client-sent").is_none() && Armed::parse("nowhere:kill").is_none());
        assert!(
            Armed::parse("client-sent:sing").is_none()
                && Armed::parse("client-sent:kill:x").is_none()
        );
    }
}
