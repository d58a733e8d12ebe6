//! `upcall job`: the processes of a group, started, stopped and scheduled together.

use crate::stat::seconds;
use crate::told::{CommandResult, FAINT, STRONG, cell, json, line, plain, tell};
use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use upcall_job::{Happening, Job, JobSchedule, JobState, OnDeath, ShownJob, SuspendMethod};

#[derive(Subcommand)]
pub enum JobCommand {
    Run(JobRunArgs),
    Ls(JobLsArgs),
    /// Suspends all members of a job; when this returns they are.
    Stop(JobNameArgs),
    /// Lets a stopped job go on: at once, or when its turn comes.
    Cont(JobNameArgs),
    /// Ends a job: SIGTERM, and after its period of grace SIGKILL. Returns when all members have
    /// ended.
    Kill(JobNameArgs),
}

/// Starts N processes that form one group, and stays until they have ended.
///
/// Each is told its group, the group's size and its rank by UPCALL_GROUP, UPCALL_SIZE and
/// UPCALL_RANK, and its limit by UPCALL_LIMIT; programs take them by `GroupBuilder::from_environment`.
/// SIGINT, SIGTERM and SIGHUP are passed on; the second one ends the job, after the period of grace
/// by force. If this command is killed the kernel kills the members.
///
/// The exit code is that of the first member that failed, or 128 and the signal by which it was
/// killed.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall job run --group 4 -- ./sieve 1000000\n  upcall job run --group 2 --name night --schedule batch -- ./simulate\n  \
    upcall job run --group 8 --label --on-death go-on -- sh -c 'echo I am $UPCALL_RANK of $UPCALL_SIZE'"
)]
pub struct JobRunArgs {
    /// The number of members.
    #[arg(short, long, value_name = "N")]
    group: usize,
    /// The name of the job; without this the program's, and a number.
    #[arg(short, long)]
    name: Option<String>,
    /// What becomes of the others when a member dies: fails, or is killed.
    #[arg(long, value_name = "WHAT", default_value = "end")]
    on_death: Death,
    /// How long members have to end by themselves after SIGTERM.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "5")]
    grace: Duration,
    /// Put each line that a member writes behind its rank.
    #[arg(short, long)]
    label: bool,
    /// Give the standard input to rank 0; otherwise no member has any.
    #[arg(long)]
    stdin: bool,
    /// Take turns with this user's other jobs that do: each to its end (batch), in slices on all
    /// processors at once (gang), or in slices on demand (co).
    #[arg(short, long, value_name = "HOW")]
    schedule: Option<Schedule>,
    /// The length of its turns.
    #[arg(long, value_name = "MS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    slice: u64,
    /// How much its group may buffer for members that do not take their messages: bytes, or with
    /// K, M, G or T behind the number units of 1024 each; without this a quarter of the machine's
    /// memory. Who has its share in use is stopped until there is room.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    limit: Option<u64>,
    /// Do not confine each member to one processor (rank i to the i-th of those that may be used,
    /// and around).
    #[arg(long)]
    no_pin: bool,
    /// How members are suspended; without this by the cgroup freezer where it can be had, else by
    /// signals.
    #[arg(long, value_name = "WAY")]
    suspend: Option<Suspend>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Death {
    /// They are ended.
    End,
    /// They go on; their group tells them.
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

/// Shows the jobs of this user: what each does, its members, and how it is suspended and scheduled.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall job ls\n  upcall job ls --members\n  upcall job ls --json | jq '.[].members[].pid'"
)]
pub struct JobLsArgs {
    /// Show each member.
    #[arg(short, long)]
    members: bool,
    /// Print a JSON array with one object for each job.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub struct JobNameArgs {
    /// The job, as `upcall job ls` names it.
    name: String,
}

pub fn run(suite: JobCommand) -> CommandResult {
    match suite {
        JobCommand::Run(args) => start(args),
        JobCommand::Ls(args) => list(&args),
        JobCommand::Stop(JobNameArgs { name }) => done(upcall_job::stop(&name)),
        JobCommand::Cont(JobNameArgs { name }) => done(upcall_job::cont(&name)),
        JobCommand::Kill(JobNameArgs { name }) => done(upcall_job::kill(&name)),
    }
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

fn done(asked: Result<(), upcall_job::JobRequestError>) -> CommandResult {
    asked?;
    Ok(ExitCode::SUCCESS)
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
            tell(&JobNotice(what.to_string()));
        }
    })?;
    Ok(ExitCode::from(code))
}

/// What is told in the same way as an error.
#[derive(Debug)]
struct JobNotice(String);

impl std::fmt::Display for JobNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {}", self.0)
    }
}

impl std::error::Error for JobNotice {}

#[derive(Serialize)]
struct JobRow {
    name: String,
    state: &'static str,
    pid: u32,
    program: String,
    size: usize,
    schedule: Option<&'static str>,
    /// Of those that take turns.
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
    if args.json {
        println!("{}", json(&rows)?);
    } else if rows.is_empty() && silent.is_empty() {
        anstream::println!("{FAINT}no job runs{FAINT:#}");
    } else if !rows.is_empty() {
        anstream::print!("{}", table(&rows, args.members));
    }
    for error in &silent {
        eprintln!("upcall job ls: {}", plain(&error.to_string()));
    }
    Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
        ["NAME", "STATE", "MEMBERS", "SCHEDULE", "SLICE", "SUSPENDED BY", "SUPERVISOR", "PROGRAM"];
    let width = |at: usize| {
        cells.iter().map(|row| row[at].chars().count()).chain([heads[at].len()]).max().unwrap_or(0)
    };
    let shown = |row: &[String; 8]| {
        let parts =
            row.iter().enumerate().map(|(at, text)| format!("{text:width$}", width = width(at)));
        parts.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    let mut out = format!("{STRONG}{}{STRONG:#}\n", shown(&heads.map(String::from)));
    for (row, cells) in rows.iter().zip(&cells) {
        out += &format!("{}\n", line(&shown(cells)));
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
