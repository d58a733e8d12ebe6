//! The contenders of the suite `pvm`, their placements and their cases.

use super::ampi::Layer;
use super::case::Case;
use crate::case::{Mode, Placement};
use crate::peers::Peer;

/// How a contender is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By this program itself, or by two kernel processes.
    Limit,
    /// By `upcall pvm run`, with all tasks in one process.
    Upcall,
    /// By `upcall pvm run`, with tasks in two processes. Neighbours are in the same process, or
    /// each in a different process from its neighbours.
    Upcall2 {
        /// `true` for the latter.
        interleave: bool,
    },
    /// By a call with Upcall from one process to another.
    Call,
    /// By Debian's PVM: messages go from task to task, or through the daemon.
    Pvm {
        /// `true` for the former.
        direct: bool,
    },
    /// By Debian's Open MPI: waiting processes spin, or yield.
    OpenMpi {
        /// `true` for the latter.
        yields: bool,
    },
    /// By Debian's MPICH: waiting processes spin.
    Mpich,
    /// By AMPI: processing elements sleep if one is alone or each has a process, and spin beside
    /// another in one process.
    Ampi(Layer),
}

/// A contender in a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// Name in records and on the command line.
    pub name: &'static str,
    /// How it is run.
    pub how: How,
    /// Where it runs.
    pub placement: Placement,
    /// How its processes wait: by polling continuously, or parked.
    pub mode: Mode,
}

const fn contender(name: &'static str, how: How, placement: Placement, mode: Mode) -> Contender {
    Contender { name, how, placement, mode }
}

use Mode::{Parked, Polling};
use Placement::{OneCore, TwoCores};

/// Upcall and the limits of the machine.
pub const OURS: [Contender; 5] = [
    contender("limit", How::Limit, OneCore, Parked),
    contender("upcall", How::Call, TwoCores, Polling),
    contender("upcall", How::Upcall, OneCore, Parked),
    contender("upcall-2", How::Upcall2 { interleave: false }, TwoCores, Parked),
    contender("upcall-2-interleave", How::Upcall2 { interleave: true }, TwoCores, Parked),
];

/// A peer by its name on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named(pub &'static str);

const NAMED: [Named; 7] = [
    Named("pvm"),
    Named("pvm-direct"),
    Named("openmpi"),
    Named("openmpi-yield"),
    Named("mpich"),
    Named("ampi"),
    Named("ampi-2"),
];

impl Peer for Named {
    const ALL: &'static [Named] = &NAMED;

    fn name(&self) -> &'static str {
        self.0
    }
}

/// The peers.
pub const PEERS: [Contender; 10] = [
    contender("pvm", How::Pvm { direct: false }, OneCore, Parked),
    contender("pvm-direct", How::Pvm { direct: true }, OneCore, Parked),
    contender("openmpi-yield", How::OpenMpi { yields: true }, OneCore, Polling),
    contender("pvm", How::Pvm { direct: false }, TwoCores, Parked),
    contender("pvm-direct", How::Pvm { direct: true }, TwoCores, Parked),
    contender("openmpi", How::OpenMpi { yields: false }, TwoCores, Polling),
    contender("mpich", How::Mpich, TwoCores, Polling),
    contender("ampi", How::Ampi(Layer::Multicore), OneCore, Parked),
    contender("ampi", How::Ampi(Layer::Multicore), TwoCores, Polling),
    contender("ampi-2", How::Ampi(Layer::Netlrts), TwoCores, Parked),
];

impl Contender {
    /// Returns `true` if it runs a case, and within an acceptable time: PVM's Laplace of 64 tasks
    /// would take half a minute.
    pub fn takes_part(&self, case: Case) -> bool {
        let here = self.placement == OneCore;
        match (self.how, case) {
            (How::Limit, _) => matches!(case, Case::ProcedureCall | Case::SwitchProcess),
            (How::Call, _) => case == Case::CallOneWay,
            (_, Case::ProcedureCall | Case::SwitchProcess | Case::CallOneWay) => false,
            (How::Ampi(Layer::Netlrts), Case::Ring(tasks)) => tasks <= 24,
            (How::Ampi(_), Case::OneWay(_) | Case::Ring(_)) => true,
            // Ranks without PIEglobals cannot have globals of their own.
            (How::Ampi(Layer::Netlrts), Case::Laplace(_)) => false,
            (How::Ampi(_), Case::Laplace(tasks)) => here || tasks > 1,
            (How::Ampi(_), Case::LaplacePaper(_) | Case::Idle(_)) => here,
            (How::Ampi(_), Case::Move(_)) => !here,
            (How::Ampi(_), _) => false,
            (How::Upcall2 { interleave: false }, Case::Move(_) | Case::MovingMessages) => true,
            (_, Case::Move(_) | Case::MovingMessages) => false,
            (How::Upcall2 { interleave: false }, Case::Balance(_) | Case::ProcessorAway) => true,
            (_, Case::Balance(_) | Case::ProcessorAway) => false,
            (How::Upcall, _) => true,
            (How::Pvm { .. } | How::OpenMpi { yields: true }, Case::LaplacePaper(_)) => here,
            (_, Case::LaplacePaper(_)) => false,
            (How::Upcall2 { interleave: false }, Case::Checkpoint(_) | Case::Restart(_)) => true,
            (_, Case::Checkpoint(_) | Case::Restart(_)) => false,
            (_, Case::Switch(_)) => false,
            (How::Upcall2 { interleave: true }, _) => matches!(case, Case::Ring(_)),
            (How::Upcall2 { .. }, Case::Laplace(tasks)) => tasks > 1,
            (How::Pvm { direct }, Case::Start(_)) => here && !direct,
            (How::Pvm { direct }, Case::Idle(tasks)) => here && !direct && tasks <= 24,
            (_, Case::Start(_) | Case::Idle(_)) => false,
            (How::Upcall2 { .. }, _) => true,
            (_, Case::OneWay(_)) => true,
            (How::Pvm { .. }, Case::Ring(tasks)) => tasks <= 24,
            (How::Pvm { .. }, Case::Laplace(tasks)) => here && tasks <= 16,
            (How::OpenMpi { yields: true }, Case::Ring(tasks)) => tasks <= 24,
            (How::OpenMpi { yields: true }, Case::Laplace(_)) => true,
            (How::OpenMpi { .. }, Case::Ring(tasks) | Case::Laplace(tasks)) => tasks == 2,
            (How::Mpich, _) => case == Case::Ring(2),
        }
    }

    /// Returns `true` for Upcall in any setting.
    pub fn is_ours(&self) -> bool {
        matches!(self.how, How::Limit | How::Call | How::Upcall | How::Upcall2 { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, placement: Placement) -> Vec<String> {
        let all = OURS
            .into_iter()
            .chain(PEERS)
            .filter(|one| one.name == name && one.placement == placement);
        all.flat_map(|one| Case::all().filter(move |case| one.takes_part(*case)))
            .map(Case::name)
            .collect()
    }

    #[test]
    fn who_has_which_case() {
        assert_eq!(of("limit", OneCore), ["procedure-call", "switch-process"]);
        assert_eq!(of("upcall", TwoCores), ["call-one-way"]);
        assert_eq!(of("upcall", OneCore).len(), Case::all().count() - 12);
        assert!(of("upcall-2-interleave", TwoCores).iter().all(|case| case.starts_with("ring-")));
        assert_eq!(
            of("upcall-2", TwoCores).iter().filter(|case| case.starts_with("laplace-")).count(),
            7
        );
        let pvm = of("pvm", OneCore);
        assert!(
            pvm.contains(&"start-1".to_owned())
                && pvm.contains(&"idle-24".to_owned())
                && !pvm.contains(&"ring-1000".to_owned())
        );
        assert_eq!(of("mpich", TwoCores).len(), 7);
        let ampi = [OneCore, TwoCores].map(|placement| of("ampi", placement));
        let has = |name: &str| ampi.each_ref().map(|cases| cases.iter().any(|case| case == name));
        assert_eq!(has("idle-24"), [true, false]);
        assert_eq!(has("move-64m"), [false, true]);
        assert!(of("ampi-2", TwoCores).contains(&"move-64m".to_owned()));
        assert!(!of("ampi-2", TwoCores).iter().any(|case| case.starts_with("laplace-")));
        assert_eq!(of("openmpi", TwoCores).last().unwrap(), "laplace-2");
        assert!(PEERS.iter().all(|peer| NAMED.iter().any(|named| named.0 == peer.name)));
    }
}
