//! `upcall job member`: runs a program as a member of a group that another scheduler starts.

use super::bytes;
use super::scheduler::{self, Scheduler, SchedulerTerms};
use crate::exit::{CommandError, CommandResult, Exit};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::ToSocketAddrs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use upcall::message::{GroupBuilder, MOST_MEMBERS};
use upcall_directory::names;

/// Runs a program as a member of a group whose processes another scheduler starts, also on several
/// hosts.
///
/// The scheduler runs this command once for each member: `srun` of Slurm, `mpirun`, an indexed job
/// of Kubernetes, units of systemd, or a script. The command sets UPCALL_GROUP, UPCALL_SIZE,
/// UPCALL_RANK and UPCALL_RENDEZVOUS, and executes the program in its place, which reads them with
/// `GroupBuilder::from_environment`.
///
/// What no option gives comes from the scheduler's variables. Slurm gives everything: the members
/// meet on the first host of the step, at a port from 20000 to 29999 that follows from the job's
/// number. Open MPI gives all but --at, and another mpiexec (PMI) --rank and --size. Kubernetes
/// gives --rank, and --group where pods are called as their job.
///
/// Members on several hosts prove their identities (docs/how-to/schedulers.md).
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct JobMemberArgs {
    /// Address at which the members meet, the same for all. HOST is a host on which a member runs,
    /// by the name under which the others trust it.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    at: Option<String>,
    /// Port at which the members meet on the first host of a step of Slurm.
    #[arg(
        long,
        value_name = "PORT",
        conflicts_with = "at",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    port: Option<u16>,
    /// Name of the group, the same for all members.
    #[arg(long, value_name = "NAME", value_parser = group_name)]
    group: Option<String>,
    /// Number of members.
    #[arg(long, value_name = "N")]
    size: Option<usize>,
    /// Rank of this member, from 0.
    #[arg(long, value_name = "N")]
    rank: Option<usize>,
    /// Memory in which the group may buffer messages that are not taken, as for `job run`.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    limit: Option<u64>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  srun -n 4 upcall job member -- ./sieve 1000000
  mpirun -n 4 upcall job member --at n1:7411 -- ./sieve 1000000
  upcall job member --at n1:7411 --group sieve --size 2 --rank 0 -- ./sieve 1000000";

/// What a member has to know.
#[derive(Debug, PartialEq, Eq)]
struct MemberTerms {
    group: String,
    size: usize,
    rank: usize,
    at: MeetingPoint,
}

/// Where the members meet.
#[derive(Debug, PartialEq, Eq)]
enum MeetingPoint {
    /// At the address of `--at`.
    Given(String),
    /// On the first host of several, at a port, as the scheduler's variables say.
    Derived { host: String, port: u16, hosts: usize },
}

impl fmt::Display for MeetingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(address) => f.write_str(address),
            Self::Derived { host, port, .. } => write!(f, "{host}:{port}"),
        }
    }
}

/// Why a process cannot be a member.
#[derive(Debug, PartialEq, Eq)]
enum NoMember {
    /// Neither an option nor a scheduler gives what is missing.
    Missing {
        what: &'static str,
        option: &'static str,
        scheduler: Option<Scheduler>,
    },
    BadSize {
        size: usize,
    },
    BadRank {
        rank: usize,
        size: usize,
    },
    /// The first host of several leads to an address that only it can reach.
    Loopback {
        host: String,
        port: u16,
    },
    NotFound {
        host: String,
        why: String,
    },
}

impl fmt::Display for NoMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { what, option, scheduler: Some(scheduler) } => {
                write!(f, "{scheduler} does not say {what}: give {option}")
            }
            Self::Missing { what, option, scheduler: None } => write!(
                f,
                "{what} is not known, since this process has no variables of Slurm, Open MPI, PMI \
                 or Kubernetes: give {option}"
            ),
            Self::BadSize { size } => {
                write!(f, "a group has from 1 to {MOST_MEMBERS} members, not {size}")
            }
            Self::BadRank { rank, size } => write!(
                f,
                "there is no rank {rank} in a group of {size}: ranks are from 0 to {}",
                size - 1
            ),
            Self::Loopback { host, port } => write!(
                f,
                "{host}, the first host of this step, calls itself by a loopback address, so other \
                 hosts could not reach it: give `--at HOST:{port}` with another name of it, or \
                 remove that line from its /etc/hosts"
            ),
            Self::NotFound { host, why } => write!(
                f,
                "{host}, the first host of this step, has no address here ({why}): give `--at \
                 HOST:PORT` with a name that leads to it"
            ),
        }
    }
}

impl MemberTerms {
    /// Takes from the scheduler what no option gives.
    fn new(args: &JobMemberArgs, scheduled: SchedulerTerms) -> Result<Self, NoMember> {
        let scheduler = scheduled.scheduler;
        let missing = |what, option| NoMember::Missing { what, option, scheduler };
        let size = args.size.or(scheduled.size);
        let size = size.ok_or_else(|| missing("the number of members", "--size N"))?;
        if size == 0 || size > MOST_MEMBERS {
            return Err(NoMember::BadSize { size });
        }
        let rank = args.rank.or(scheduled.rank);
        let rank = rank.ok_or_else(|| missing("the rank of this member", "--rank N"))?;
        if rank >= size {
            return Err(NoMember::BadRank { rank, size });
        }
        let group = args.group.clone().or(scheduled.group);
        let group = group.ok_or_else(|| missing("the group's name", "--group NAME"))?;
        let derived = scheduled.host.zip(args.port.or(scheduled.port));
        let derived = derived.map(|(host, port)| {
            let hosts = scheduled.hosts.unwrap_or(1);
            MeetingPoint::Derived { host, port, hosts }
        });
        let at = args.at.clone().map(MeetingPoint::Given).or(derived);
        let at =
            at.ok_or_else(|| missing("the address at which members meet", "--at HOST:PORT"))?;
        Ok(Self { group, size, rank, at })
    }
}

impl MeetingPoint {
    /// Checks that the other hosts can reach the first one by its name.
    fn check(&self) -> Result<(), NoMember> {
        let Self::Derived { host, port, hosts } = self else { return Ok(()) };
        let found = (host.as_str(), *port).to_socket_addrs();
        let found = found.map_err(|why| {
            let (host, why) = (host.clone(), why.to_string());
            NoMember::NotFound { host, why }
        })?;
        match found.into_iter().next() {
            Some(address) if address.ip().to_canonical().is_loopback() && *hosts > 1 => {
                Err(NoMember::Loopback { host: host.clone(), port: *port })
            }
            _ => Ok(()),
        }
    }
}

pub fn run(args: JobMemberArgs) -> CommandResult {
    let variable = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    // With all four options no variable counts, and none has to make sense.
    let scheduled = match &args {
        JobMemberArgs { at: Some(_), group: Some(_), size: Some(_), rank: Some(_), .. } => {
            SchedulerTerms::default()
        }
        _ => scheduler::terms(&variable).map_err(CommandError::usage)?,
    };
    let terms = MemberTerms::new(&args, scheduled).map_err(CommandError::usage)?;
    terms.at.check().map_err(CommandError::usage)?;
    let mut program = args.program.into_iter();
    let name = program.next().unwrap_or_default();
    let mut command = Command::new(&name);
    command.args(program);
    command.envs(GroupBuilder::environment(&terms.group, terms.size, terms.rank));
    command.env(GroupBuilder::RENDEZVOUS, terms.at.to_string());
    if let Some(limit) = args.limit {
        command.env(GroupBuilder::LIMIT, limit.to_string());
    }
    let error = command.exec();
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "; give a path, or a program on PATH",
        io::ErrorKind::PermissionDenied => "; is it a program (chmod +x)?",
        _ => "",
    };
    let text = format!("{} could not be started: {error}{advice}", name.display());
    Err(CommandError::new(Exit::of_file(&error), text))
}

/// `HOST:PORT`, `[::1]:7411`.
fn address(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':');
    let is_whole = |host: &str, port: &str| {
        let is_host = !host.is_empty() && (host.ends_with(']') || !host.contains(':'));
        is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    match parts {
        Some((host, port)) if is_whole(host, port) => Ok(text.into()),
        _ => Err("give HOST:PORT, such as n1:7411 or [fd00::1]:7411".into()),
    }
}

fn group_name(text: &str) -> Result<String, String> {
    names::check(text).map(|()| text.into()).map_err(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct MemberLine {
        #[command(flatten)]
        args: JobMemberArgs,
    }

    fn of(options: &str, scheduled: &SchedulerTerms) -> Result<MemberTerms, String> {
        let line = ["member"].into_iter().chain(options.split_whitespace()).chain(["--", "true"]);
        let line = MemberLine::try_parse_from(line).map_err(|error| error.to_string())?;
        MemberTerms::new(&line.args, scheduled.clone()).map_err(|error| error.to_string())
    }

    fn slurm() -> SchedulerTerms {
        SchedulerTerms {
            scheduler: Some(Scheduler::Slurm),
            rank: Some(1),
            size: Some(3),
            group: Some("slurm-7.0".into()),
            host: Some("n1".into()),
            port: Some(20_007),
            hosts: Some(2),
        }
    }

    #[test]
    fn options_count_more_than_the_scheduler() {
        let at = MeetingPoint::Derived { host: "n1".into(), port: 20_007, hosts: 2 };
        let expected = MemberTerms { group: "slurm-7.0".into(), size: 3, rank: 1, at };
        assert_eq!(of("", &slurm()), Ok(expected));
        let terms = of("--port 7 --rank 2 --group g", &slurm()).unwrap();
        assert_eq!((&*terms.group, terms.size, terms.rank), ("g", 3, 2));
        assert_eq!(terms.at.to_string(), "n1:7");
        let terms = of("--at [::1]:8 --size 9", &slurm()).unwrap();
        assert_eq!((terms.size, terms.at), (9, MeetingPoint::Given("[::1]:8".into())));
    }

    #[test]
    fn what_is_missing_is_named_with_its_option() {
        let none = SchedulerTerms::default();
        let pods = SchedulerTerms { scheduler: Some(Scheduler::Kubernetes), ..none.clone() };
        for (options, scheduled, parts) in [
            ("", &none, ["the number of members is not known", "--size N"]),
            ("--size 2", &none, ["the rank of this member", "--rank N"]),
            ("--size 2 --rank 0", &none, ["the group's name", "--group NAME"]),
            ("--size 2 --rank 0 --group g", &none, ["address at which", "--at HOST:PORT"]),
            ("", &pods, ["Kubernetes does not say the number of members", "--size N"]),
            ("--size 2 --rank 2", &none, ["no rank 2 in a group of 2", "from 0 to 1"]),
            ("--size 0", &none, ["from 1 to 1024 members", "not 0"]),
            ("--size 1025", &none, ["from 1 to 1024 members", "not 1025"]),
            ("--at n1", &none, ["HOST:PORT", "n1:7411"]),
            ("--at fd00::1:80", &none, ["HOST:PORT", "[fd00::1]:7411"]),
            ("--at n1:0", &none, ["HOST:PORT", "n1:7411"]),
            ("--at :80", &none, ["HOST:PORT", "n1:7411"]),
            ("--group a/b", &none, ["a/b", "characters other than"]),
            ("--at n1:1 --port 2", &none, ["--port", "cannot be used with"]),
        ] {
            let error = of(options, scheduled).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{options}: {error}");
        }
    }

    #[test]
    fn a_loopback_address_is_enough_for_one_host_only() {
        let at = |hosts| MeetingPoint::Derived { host: "127.0.1.1".into(), port: 7, hosts };
        assert_eq!(at(1).check(), Ok(()));
        let error = at(2).check().unwrap_err().to_string();
        assert!(error.contains("loopback") && error.contains("--at HOST:7"), "{error}");
        let given = MeetingPoint::Given("localhost:7".into());
        assert_eq!(given.check(), Ok(()));
    }
}
