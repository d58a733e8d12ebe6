//! Points of the path at which a test makes this process die, stop or panic.
//!
//! Behaviour that users must never meet shows when a process ends in the middle of an operation. So
//! each step of binding and calling that leaves something behind has a [`Point`], and a test walks
//! through all of them, with each way of ending. A process that is started with
//! `UPCALL_FAULT=point:act` does the act when it reaches the point; with `point:act:n` it does so
//! when it reaches the point for the nth time.
//!
//! Only builds with debug assertions have points.

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
            /// All points.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name of the point, as in `UPCALL_FAULT`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $label),* }
            }
        }
    };
}

points! {
    /// A client has connected, and requested nothing yet.
    ClientConnected = "client-connected",
    /// It has requested a channel.
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
    /// A kernel thread that calls, or a virtual processor of either side, has announced its sleep.
    Sleeps = "sleeps",
    /// The reply is there, the results are not read.
    ClientAnswered = "client-answered",
    /// The results are read; the A-stack or segment is not given back.
    ClientRead = "client-read",
    /// It has made a segment, and not reported it.
    ClientMadeSegment = "client-made-segment",
    /// It has reported a segment.
    ClientToldSegment = "client-told-segment",
    /// It is about to fetch a result that had no room.
    ClientFetches = "client-fetches",
    /// It is about to release an object.
    ClientReleases = "client-releases",
    /// It leaves a call to its late reply.
    ClientLeaves = "client-leaves",
    /// It is about to give up a binding.
    ClientUnbinds = "client-unbinds",
    /// A server's socket is there, its name is not.
    ServerEntersName = "server-enters-name",
    /// The name is there too.
    ServerEntered = "server-entered",
    /// It has accepted a connection.
    ServerAccepted = "server-accepted",
    /// It has mapped a channel, and not replied.
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
    /// It is about to release an object.
    ServerReleases = "server-releases",
    /// The result is written, the reply not sent.
    ServerReplies = "server-replies",
    /// The reply is sent, the caller not woken.
    ServerReplied = "server-replied",
    /// It is about to drop what a client left.
    ServerDrops = "server-drops",
    /// A member of a forming group has its socket, and has not looked up the leader.
    MemberForms = "member-forms",
    /// It leads, and has the name.
    MemberFormsLeads = "member-forms-leads",
    /// It has connected to the leader, and has not sent its request.
    MemberFormsFinds = "member-forms-finds",
    /// It has sent its request to the leader.
    MemberFormsAsked = "member-forms-asked",
    /// All members are there, and the leader has notified none.
    MemberFormsAll = "member-forms-all",
    /// A member that joins a formed group has connected to the leader, and has sent no request.
    LateMemberFinds = "late-member-finds",
    /// It has sent its request.
    LateMemberAsked = "late-member-asked",
    /// The leader has admitted it, and it has opened no pair.
    LateMemberAdmitted = "late-member-admitted",
    /// It has opened a pair.
    LateMemberOpened = "late-member-opened",
    /// A member is about to bring its queue to another member.
    MemberBrings = "member-brings",
    /// It has brought the queue, and has no reply.
    MemberBrought = "member-brought",
    /// A member is about to take in a queue that another member brings.
    MemberTakesIn = "member-takes-in",
    /// It has taken the queue in, and not replied.
    MemberTookIn = "member-took-in",
    /// A message is written, and not launched.
    MemberDescribed = "member-described",
    /// It is launched, and its receiver not woken.
    MemberLaunched = "member-launched",
    /// A segment is mapped, and no word leads there.
    MemberDiverts = "member-diverts",
    /// Messages go to the segment now.
    MemberDiverted = "member-diverted",
    /// A message is read, and not disposed of.
    MemberReads = "member-reads",
    /// It is disposed of, and its handler has not run.
    MemberTook = "member-took",
    /// A segment is left, and its sender not notified.
    MemberLeaves = "member-leaves",
    /// A home has made an object, and not entered its name.
    ObjectMade = "object-made",
    /// It has entered the name.
    ObjectNamed = "object-named",
    /// A peer has requested to use the object.
    ObjectAsked = "object-asked",
    /// The peer has the object's memory, and has not read it.
    ObjectOpened = "object-opened",
    /// A party has the lock of an object, and has changed nothing.
    ObjectLocked = "object-locked",
    /// It has done what it wanted, and still has the lock.
    ObjectDone = "object-done",
    /// The home is about to repair an object.
    ObjectRepairs = "object-repairs",
    /// A request is in its lane, and the home is not notified.
    InvocationSent = "invocation-sent",
    /// The home has taken a request, and not begun to run it.
    InvocationTaken = "invocation-taken",
    /// The home has run an operation, and not replied.
    InvocationRan = "invocation-ran",
}

/// What a process does at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is killed, as by `kill -9`.
    Kill,
    /// It ends by `exit`.
    Exit,
    /// It panics at the point.
    Panic,
    /// It becomes another program, which keeps the process's number.
    Exec,
    /// It stops, until another process resumes it.
    Stop,
}

impl Act {
    /// All acts.
    pub const ALL: &[Self] = &[Self::Kill, Self::Exit, Self::Panic, Self::Exec, Self::Stop];

    /// The name of the act, as in `UPCALL_FAULT`.
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
            // A process may send any signal to itself.
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        };
        match self {
            Self::Kill => signal(rustix::process::Signal::KILL),
            Self::Stop => signal(rustix::process::Signal::STOP),
            Self::Exit => std::process::exit(3),
            Self::Panic => panic!("a fault at {point}, as the test demands"),
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

/// `true` in builds that have points.
pub const POINTS_ARE_THERE: bool = cfg!(debug_assertions);

static ARMED: OnceLock<Armed> = OnceLock::new();

/// Arms a fault from now on, as `UPCALL_FAULT` with this text does from the start.
///
/// Returns `false` if the text is not valid, or a fault was armed before.
pub fn arm(text: &str) -> bool {
    Armed::parse(text).is_some_and(|armed| ARMED.set(armed).is_ok())
}

/// Marks that `point` is reached.
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
