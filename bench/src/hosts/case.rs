//! The cases of the suite `hosts`, and the systems that run them.

use std::fmt;
use std::path::Path;

use crate::built::{self, PeersError};
use crate::case::Mode;
use crate::peers::Peer;
use crate::programs::Programs;
use crate::pvm::case::Case as TaskCase;
use crate::pvm::contender::How;

/// A measurement between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// A call without argument and result.
    Null,
    /// The same number of null calls as in [`Case::SmallBesideLarge`], with nothing beside them.
    SmallAlone,
    /// Null calls while large arguments go to the same server, one after another.
    SmallBesideLarge,
    /// A call with an argument of 1 MiB, which the client writes and the server reads on each call.
    In1m,
    /// A bind and a first call without a ticket of an earlier connection, so that both sides prove
    /// themselves.
    Connect,
    /// A bind and a first call with a ticket of an earlier connection.
    Resume,
    /// A message of 8 bytes between members of a group, and the answer to it.
    MessageRound,
    /// A message of 8 bytes, of many that one member sends to the other one.
    Message8,
    /// A message of 64 KiB, of many.
    Message64k,
    /// Half of a round trip of an empty message between two of PVM's tasks, one on each host.
    PvmOneWay,
    /// A hop of a message of one int around a ring of 24 of PVM's tasks, on each host in turn.
    PvmRing,
    /// The pause of a task of 100 KiB that moves to and fro between the hosts; the mean is the time
    /// from the request to the answer.
    Move,
    /// A connection without calls. The figure is the processor time of both sides, in nanoseconds
    /// per second, with that of the processes that the system needs.
    Idle,
}

/// Length of the argument in [`Case::In1m`], in bytes.
pub const MIB: usize = 1 << 20;

/// Length of the large argument, in bytes: 256 MiB, with 4 KiB left for what a system puts before
/// it. 256 MiB is the most that one message of Upcall holds.
pub const LARGE: usize = (256 << 20) - (4 << 10);

/// Length of a long message, in bytes.
pub const KIB64: usize = 64 << 10;

impl Case {
    /// Every case, in the order of the report.
    pub const ALL: [Case; 13] = [
        Case::Null,
        Case::SmallAlone,
        Case::SmallBesideLarge,
        Case::In1m,
        Case::Connect,
        Case::Resume,
        Case::MessageRound,
        Case::Message8,
        Case::Message64k,
        Case::PvmOneWay,
        Case::PvmRing,
        Case::Move,
        Case::Idle,
    ];

    /// The name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Case::Null => "null",
            Case::SmallAlone => "small-alone",
            Case::SmallBesideLarge => "small-beside-large",
            Case::In1m => "in-1m",
            Case::Connect => "connect",
            Case::Resume => "resume",
            Case::MessageRound => "message-round",
            Case::Message8 => "message-8",
            Case::Message64k => "message-64k",
            Case::PvmOneWay => "pvm-one-way-0",
            Case::PvmRing => "pvm-ring-24",
            Case::Move => "move-100k",
            Case::Idle => "idle",
        }
    }

    /// The command to the client ([`super::child`]); `None` where it does nothing.
    pub fn command(self, quick: bool) -> Option<String> {
        let (millis, calls, large, binds) =
            if quick { (20, 100, 1 << 20, 3) } else { (200, 10_000, LARGE, 25) };
        let (large_batch, small_batch) = if quick { (1000, 16) } else { (40_000, 256) };
        match self {
            Case::Null | Case::In1m | Case::MessageRound => Some(format!("time {self} {millis}")),
            Case::Message8 => Some(format!("messages 8 {large_batch} {binds}")),
            Case::Message64k => Some(format!("messages {KIB64} {small_batch} {binds}")),
            Case::SmallAlone => Some(format!("small {calls} 0")),
            Case::SmallBesideLarge => Some(format!("small {calls} {large}")),
            Case::Connect | Case::Resume => Some(format!("{self} {binds}")),
            Case::PvmOneWay | Case::PvmRing | Case::Move | Case::Idle => None,
        }
    }

    /// The case of the suite `pvm` that PVM's tasks run; `None` for calls and messages of groups.
    pub fn tasks(self) -> Option<TaskCase> {
        match self {
            Case::PvmOneWay => Some(TaskCase::OneWay(0)),
            Case::PvmRing => Some(TaskCase::Ring(24)),
            Case::Move => Some(TaskCase::Move("100k")),
            _ => None,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The program that answers to `bench-hosts NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// The program that runs the benchmark.
    Own,
    /// `upcall-host-peers`, which has the heavy dependencies.
    Peers,
    /// `upcall-openmpi`. Open MPI's own command starts both sides together.
    OpenMpi,
}

/// How long a system's processes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lives {
    /// As long as the run. They sleep while other systems have their turns.
    Run,
    /// For one turn. They poll as long as they live, which would slow the turns of others.
    Turn,
}

/// A system's server and client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The program that contains them.
    pub program: Program,
    /// Port of the server. Open MPI chooses its ports itself.
    pub port: u16,
    /// A program on the path that the server starts, and Debian's package of it.
    pub daemon: Option<[&'static str; 2]>,
}

impl Served {
    /// Returns how long the processes live.
    pub fn lives(self) -> Lives {
        match self.program {
            Program::Own | Program::Peers => Lives::Run,
            Program::OpenMpi => Lives::Turn,
        }
    }
}

/// A system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Name in records and on the command line.
    pub name: &'static str,
    /// Its server and client, if it has calls.
    pub served: Option<Served>,
    /// How it runs PVM's tasks, if it does.
    pub tasks: Option<How>,
    /// The cases of those that it has no part in.
    lacks: &'static [Case],
}

const fn served(program: Program, port: u16) -> Option<Served> {
    Some(Served { program, port, daemon: None })
}

/// The least that the same bytes take: bare TCP for small calls, and rustls over it with the same
/// identities for all other cases.
pub const LIMIT: Contender = Contender {
    name: "limit",
    served: served(Program::Own, 7700),
    tasks: None,
    lacks: &[Case::Idle, Case::Message8],
};

/// Upcall.
pub const UPCALL: Contender = Contender {
    name: "upcall",
    served: served(Program::Own, 7710),
    tasks: Some(How::Upcall2 { interleave: true }),
    lacks: &[],
};

/// The cases of groups. The peers for calls have none.
const MESSAGES: [Case; 3] = [Case::MessageRound, Case::Message8, Case::Message64k];

/// The cases of calls and of their connections.
const CALLS: [Case; 6] =
    [Case::Null, Case::SmallAlone, Case::SmallBesideLarge, Case::In1m, Case::Connect, Case::Resume];

/// NATS. Its broker takes messages of at most 64 MiB, and its client keeps no tickets.
const NATS: Contender = Contender {
    name: "nats",
    served: Some(Served {
        program: Program::Peers,
        port: 7760,
        daemon: Some(["nats-server", "nats-server"]),
    }),
    tasks: None,
    lacks: &[Case::SmallAlone, Case::SmallBesideLarge, Case::Resume],
};

/// The peers. `capnproto` is in the clear, so nothing of it can be resumed. `openmpi` has messages
/// only, in the clear as well. PVM's messages go through its daemons, or from task to task.
pub const PEERS: [Contender; 7] = [
    Contender { name: "grpc", served: served(Program::Peers, 7720), tasks: None, lacks: &MESSAGES },
    Contender { name: "wrpc", served: served(Program::Peers, 7750), tasks: None, lacks: &MESSAGES },
    Contender {
        name: "capnproto",
        served: served(Program::Peers, 7730),
        tasks: None,
        lacks: &[Case::Resume, MESSAGES[0], MESSAGES[1], MESSAGES[2]],
    },
    NATS,
    Contender {
        name: "openmpi",
        served: served(Program::OpenMpi, 7770),
        tasks: None,
        lacks: &CALLS,
    },
    pvm("pvm", false),
    pvm("pvm-direct", true),
];

const fn pvm(name: &'static str, direct: bool) -> Contender {
    Contender { name, served: None, tasks: Some(How::Pvm { direct }), lacks: &[Case::Move] }
}

impl Contender {
    /// Returns `true` if it runs a case.
    pub fn takes_part(&self, case: Case) -> bool {
        let runs =
            if case.tasks().is_some() { self.tasks.is_some() } else { self.served.is_some() };
        runs && !self.lacks.contains(&case)
    }

    /// Returns how it waits.
    pub fn mode(&self) -> Mode {
        match self.served.map(Served::lives) {
            Some(Lives::Turn) => Mode::Polling,
            Some(Lives::Run) | None => Mode::Parked,
        }
    }
}

impl Peer for Contender {
    const ALL: &'static [Contender] = &PEERS;

    fn name(&self) -> &'static str {
        self.name
    }
}

/// Finds the programs of `contenders`, and removes the contenders without one. `own` is the running
/// program.
///
/// # Errors
/// None: every peer may be missing.
pub(super) fn programs(
    contenders: &mut Vec<(&'static str, Served)>,
    own: &Path,
) -> Result<Programs<Program>, PeersError> {
    let build = |program| match program {
        Program::Own => Ok(own.to_owned()),
        Program::Peers => built::host_peers(own),
        Program::OpenMpi => built::open_mpi(own),
    };
    Programs::of(contenders, |(name, served)| (served.program, name), build, |_, _| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_a_command_unless_nothing_is_called() {
        let commands = Case::ALL.map(|case| case.command(true));
        assert_eq!(commands[0].as_deref(), Some("time null 20"));
        assert_eq!(commands.last(), Some(&None));
        assert!(UPCALL.takes_part(Case::Idle) && !LIMIT.takes_part(Case::Idle));
    }

    #[test]
    fn systems_that_poll_live_for_a_turn() {
        let all = [LIMIT, UPCALL].into_iter().chain(PEERS);
        let polling = all.filter(|one| one.mode() == Mode::Polling).map(|one| one.name);
        assert_eq!(polling.collect::<Vec<_>>(), ["openmpi"]);
    }

    #[test]
    fn tasks_run_by_upcall_and_by_pvm_and_move_by_upcall_only() {
        let names = |case: Case| {
            let all = [LIMIT, UPCALL].into_iter().chain(PEERS);
            all.filter(|one| one.takes_part(case)).map(|one| one.name).collect::<Vec<_>>()
        };
        assert_eq!(names(Case::PvmRing), ["upcall", "pvm", "pvm-direct"]);
        assert_eq!(names(Case::Move), ["upcall"]);
        assert_eq!(names(Case::Null), ["limit", "upcall", "grpc", "wrpc", "capnproto", "nats"]);
        for case in MESSAGES {
            let limit = if case == Case::Message8 { &[][..] } else { &["limit"] };
            assert_eq!(names(case), [limit, &["upcall", "nats", "openmpi"]].concat(), "{case}");
        }
        let idle = ["upcall", "grpc", "wrpc", "capnproto", "nats", "openmpi"];
        assert_eq!(names(Case::Idle), idle);
        let of_tasks = Case::ALL.into_iter().filter_map(|case| Some((case.name(), case.tasks()?)));
        assert!(of_tasks.inspect(|(name, of)| assert!(name.ends_with(&of.name()))).count() == 3);
    }
}
