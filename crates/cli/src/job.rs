//! `upcall job`: starts, stops and schedules the processes of a group together.

mod member;
mod nodelist;
mod scheduler;

use crate::exit::{CommandError, CommandResult, Exit};
use crate::names::some_seconds;
use crate::output::{
    Columns, FAINT, STRONG, cell, print, print_json, println, quoted, report, report_all,
};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use std::ffi::OsString;
use std::time::Duration;
use upcall_job::{
    Happening, Job, JobRequestError, JobSchedule, JobState, OnDeath, ShownJob, SuspendMethod,
};

pub const EXAMPLES: &str = "\
Examples:
  upcall job run --group 4 -- ./sieve 1000000
  srun -n 4 upcall job member -- ./sieve 1000000
  upcall job ls --members";

#[derive(Subcommand)]
pub enum JobCommand {
    Run(JobRunArgs),
    Member(member::JobMemberArgs),
    Ls(JobLsArgs),
    Stop(JobStopArgs),
    Cont(JobContArgs),
    Kill(JobKillArgs),
}

/// Starts N processes that form one group, and waits for their end.
///
/// Each process gets the group's name and size and its own rank by UPCALL_GROUP, UPCALL_SIZE and
/// UPCALL_RANK, and the limit by UPCALL_LIMIT; a program reads them with
/// `GroupBuilder::from_environment`. SIGINT, SIGTERM and SIGHUP are passed on; the second of them
/// ends the job, by force after the grace period. If this command is killed, the kernel kills the
/// members. All members run on this machine; where another scheduler starts them, also on several
/// hosts, it runs `upcall job member` for each.
///
/// The exit code is that of the member that failed and ended first, or 128 plus the number of the
/// signal that killed it. If that code is 1, and another member panics (101) or crashes while the
/// rest is being ended, the code of the latter counts: it is probably the cause.
#[derive(clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct JobRunArgs {
    /// Number of members.
    #[arg(short, long, value_name = "N")]
    group: usize,
    /// Name of the job; by default the program's name and a number.
    #[arg(short, long)]
    name: Option<String>,
    /// What happens to the other members when a member fails or is killed.
    #[arg(long, value_name = "ACTION", default_value = "end")]
    on_death: Death,
    /// Time that members have to end after SIGTERM.
    #[arg(long, value_name = "SECONDS", value_parser = some_seconds, default_value = "5")]
    grace: Duration,
    /// Put the member's rank before each line that it writes.
    #[arg(short, long)]
    label: bool,
    /// Give the standard input to rank 0; otherwise no member has any.
    #[arg(long)]
    stdin: bool,
    /// Take turns with this user's other jobs that have this option.
    #[arg(short, long, value_name = "POLICY")]
    schedule: Option<Schedule>,
    /// Length of a turn, in milliseconds.
    #[arg(
        long,
        value_name = "MS",
        default_value = "10",
        value_parser = clap::value_parser!(u64).range(1..=60_000)
    )]
    slice: u64,
    /// Memory in which the group may buffer messages that are not taken: bytes, or units of 1024
    /// with K, M, G or T; by default a quarter of the machine's memory. A member that has used its
    /// share is stopped until there is room.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    limit: Option<u64>,
    /// Do not confine each member to one processor. By default rank i runs on the i-th of the
    /// processors that may be used.
    #[arg(long)]
    no_pin: bool,
    /// How members are suspended; by default with the cgroup freezer where it is available, and
    /// with signals elsewhere.
    #[arg(long, value_name = "METHOD")]
    suspend: Option<Suspend>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  upcall job run --group 4 -- ./sieve 1000000
  upcall job run --group 2 --name night --schedule batch -- ./sieve
  upcall job run --group 8 --label -- sh -c 'echo I am $UPCALL_RANK of $UPCALL_SIZE'";

#[derive(Clone, Copy, ValueEnum)]
enum Death {
    /// The other members are ended.
    End,
    /// The other members go on; their group reports the death to them.
    GoOn,
}

#[derive(Clone, Copy, ValueEnum)]
enum Schedule {
    /// Each job to its end, in the order in which they were started.
    Batch,
    /// Slices, on all processors at once.
    Gang,
    /// Slices, on demand.
    Co,
}

#[derive(Clone, Copy, ValueEnum)]
enum Suspend {
    /// The freezer of cgroup v2.
    Freezer,
    /// SIGSTOP and SIGCONT.
    Signals,
}

/// Lists the jobs of this user: state, members, schedule and supervisor.
#[derive(clap::Args)]
#[command(after_help = LS_EXAMPLES, after_long_help = format!("{LS_EXAMPLES}\n\n{LS_JSON}"))]
pub struct JobLsArgs {
    /// Show each member.
    #[arg(short, long)]
    members: bool,
    /// Print a JSON array with one object for each job.
    #[arg(long)]
    json: bool,
}

const LS_EXAMPLES: &str = "\
Examples:
  upcall job ls
  upcall job ls --members
  upcall job ls --json | jq '.[].members[].pid'";

const LS_JSON: &str = "\
JSON keys: name, state (running, stopped, waiting or ending), pid (the supervisor), program, size,
schedule (batch, gang, co or null), slice_ms, suspended_by (freezer or signals), leads, and members
with rank, pid, processor and suspended.";

/// Suspends all members of a job, and returns when they are suspended.
#[derive(clap::Args)]
#[command(after_help = STOP_EXAMPLES)]
pub struct JobStopArgs {
    /// The job's name, as `upcall job ls` shows it.
    name: String,
}

const STOP_EXAMPLES: &str = "\
Examples:
  upcall job stop night
  upcall job stop night && upcall job ls --members";

/// Continues a stopped job, at once or when its turn comes.
#[derive(clap::Args)]
#[command(after_help = CONT_EXAMPLES)]
pub struct JobContArgs {
    /// The job's name, as `upcall job ls` shows it.
    name: String,
}

const CONT_EXAMPLES: &str = "\
Examples:
  upcall job cont night
  upcall job stop night; sleep 1; upcall job cont night";

/// Ends a job: SIGTERM, and SIGKILL after the grace period. Returns when all members have ended.
#[derive(clap::Args)]
#[command(after_help = KILL_EXAMPLES)]
pub struct JobKillArgs {
    /// The job's name, as `upcall job ls` shows it.
    name: String,
}

const KILL_EXAMPLES: &str = "\
Examples:
  upcall job kill night
  upcall job ls --json | jq -r '.[].name' | xargs -n 1 upcall job kill";

pub fn run(suite: JobCommand) -> CommandResult {
    match suite {
        JobCommand::Run(args) => start(args),
        JobCommand::Member(args) => member::run(args),
        JobCommand::Ls(args) => list(&args),
        JobCommand::Stop(JobStopArgs { name }) => done(upcall_job::stop(&name)),
        JobCommand::Cont(JobContArgs { name }) => done(upcall_job::cont(&name)),
        JobCommand::Kill(JobKillArgs { name }) => done(upcall_job::kill(&name)),
    }
}

/// Adds the advice to put `--` before the program, if the program was taken for an unknown argument
/// of `job run` or `job member`.
pub fn with_dashes(mut error: clap::Error) -> clap::Error {
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (found, usage) = (text(ContextKind::InvalidArg), text(ContextKind::Usage));
    let is_program = !found.is_empty() && !found.starts_with('-');
    let lines = [("upcall job run ", "run --group N"), ("upcall job member ", "member")];
    let line = lines.into_iter().find(|(command, _)| usage.contains(command));
    if error.kind() == ErrorKind::UnknownArgument
        && is_program
        && let Some((_, line)) = line
    {
        let advice = format!(
            "put `--` before the program, so that its options are its own: `upcall job {line} -- \
             {} …`",
            quoted(&found)
        );
        let tip = ContextValue::StyledStrs(vec![advice.into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

/// `4096`, `512M`, `2GiB`.
fn bytes(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.strip_suffix("iB").unwrap_or(unit);
    let power = ["", "K", "M", "G", "T"].iter().position(|known| *known == unit);
    let bytes = number
        .parse::<u64>()
        .ok()
        .zip(power)
        .and_then(|(number, power)| number.checked_mul(1 << (10 * power)));
    bytes.ok_or_else(|| "give bytes, or units of 1024 such as 512M or 2G".into())
}

fn done(asked: Result<(), JobRequestError>) -> CommandResult {
    Ok(asked.map(|()| Exit::Done)?)
}

fn start(args: JobRunArgs) -> CommandResult {
    let mut program = args.program.into_iter();
    let mut job = Job::new(args.group, program.next().unwrap_or_default())
        .arguments(program)
        .grace(args.grace)
        .label(args.label)
        .input(args.stdin)
        .pin(!args.no_pin)
        .slice(Duration::from_millis(args.slice));
    if let Some(limit) = args.limit {
        job = job.limit(limit);
    }
    if let Death::GoOn = args.on_death {
        job = job.on_death(OnDeath::GoOn);
    }
    if let Some(name) = &args.name {
        job = job.named(name);
    }
    if let Some(schedule) = args.schedule {
        job = job.schedule(match schedule {
            Schedule::Batch => JobSchedule::Batch,
            Schedule::Gang => JobSchedule::Gang,
            Schedule::Co => JobSchedule::Co,
        });
    }
    if let Some(way) = args.suspend {
        job = job.way(match way {
            Suspend::Freezer => SuspendMethod::Freezer,
            Suspend::Signals => SuspendMethod::Signals,
        });
    }
    let code = job.run(|what| {
        if let Happening::Died { .. } = what {
            report(format_args!("job {what}"));
        }
    })?;
    Ok(Exit::Program(code))
}

#[derive(Serialize)]
struct JobRow {
    name: String,
    state: &'static str,
    pid: u32,
    program: String,
    size: usize,
    schedule: Option<&'static str>,
    /// The length of a turn, of a job that takes turns.
    slice_ms: Option<u64>,
    suspended_by: &'static str,
    leads: bool,
    members: Vec<MemberRow>,
}

#[derive(Serialize)]
struct MemberRow {
    rank: usize,
    pid: u32,
    processor: Option<u32>,
    suspended: bool,
}

impl From<ShownJob> for JobRow {
    fn from(job: ShownJob) -> Self {
        Self {
            name: job.name,
            state: match job.state {
                JobState::Running => "running",
                JobState::Stopped => "stopped",
                JobState::Waiting => "waiting",
                JobState::Ending => "ending",
            },
            pid: job.pid,
            program: job.program,
            size: job.size,
            schedule: job.schedule.map(|kind| match kind {
                JobSchedule::Batch => "batch",
                JobSchedule::Gang => "gang",
                JobSchedule::Co => "co",
            }),
            slice_ms: job.schedule.map(|_| job.slice.as_millis() as u64),
            suspended_by: match job.way {
                SuspendMethod::Freezer => "freezer",
                SuspendMethod::Signals => "signals",
            },
            leads: job.leads,
            members: job
                .members
                .into_iter()
                .map(|m| MemberRow {
                    rank: m.rank,
                    pid: m.pid,
                    processor: m.processor,
                    suspended: m.suspended,
                })
                .collect(),
        }
    }
}

fn list(args: &JobLsArgs) -> CommandResult {
    let (shown, silent) = upcall_job::list();
    let rows: Vec<JobRow> = shown.into_iter().map(JobRow::from).collect();
    let silent: Vec<CommandError> = silent.into_iter().map(CommandError::from).collect();
    if args.json {
        print_json(&rows)?;
    } else if rows.is_empty() && silent.is_empty() {
        println(format_args!("{FAINT}no job runs{FAINT:#}"))?;
    } else if !rows.is_empty() {
        print(table(&rows, args.members))?;
    }
    Ok(report_all(&silent))
}

fn table(rows: &[JobRow], members: bool) -> String {
    let cells = |row: &JobRow| {
        let schedule = row.schedule.unwrap_or("-");
        let slice = row.slice_ms.map_or_else(|| "-".into(), |ms| format!("{ms} ms"));
        let alive = format!("{}/{}", row.members.len(), row.size);
        [
            cell(&row.name),
            row.state.into(),
            alive,
            schedule.into(),
            slice,
            row.suspended_by.into(),
            row.pid.to_string(),
            cell(&row.program),
        ]
    };
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let heads =
        ["NAME", "STATE", "MEMBERS", "SCHEDULE", "SLICE", "SUSPENDED BY", "SUPERVISOR", "PROGRAM"]
            .map(String::from);
    let columns = Columns::new(cells.iter().chain([&heads]), [false; 8]);
    let mut out = format!("{STRONG}{}{STRONG:#}\n", columns.line(&heads));
    for (row, cells) in rows.iter().zip(&cells) {
        out += &format!("{}\n", columns.line(cells));
        for member in row.members.iter().filter(|_| members) {
            let processor = member
                .processor
                .map_or_else(|| "any processor".into(), |on| format!("processor {on}"));
            let suspended = if member.suspended { ", suspended" } else { "" };
            out += &format!(
                "  {FAINT}{}  process {}, {processor}{suspended}{FAINT:#}\n",
                member.rank, member.pid
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_units_of_1024() {
        let read = ["0", "4096", "3K", "512M", "2GiB", "1T"].map(|text| bytes(text).unwrap());
        assert_eq!(read, [0, 4096, 3072, 512 << 20, 2 << 30, 1 << 40]);
        for wrong in ["", "M", "5MB", "5 M", "-1", "1.5G", "99999999T", "5k"] {
            assert!(bytes(wrong).unwrap_err().contains("512M"), "{wrong}");
        }
    }
}
