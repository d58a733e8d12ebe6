//! `upcall pvm top`: what the processes and tasks of a machine use, live.

mod screen;

use super::Which;
use crate::exit::{CommandError, CommandResult, Exit};
use crate::names::some_seconds;
use crate::output::{
    Columns, FAINT, STRONG, cell, counted, line, print, print_json, println, write_json_line,
};
use ratatui::crossterm::event::{self, Event};
use screen::{MachineScreen, ScreenOutcome};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use upcall_pvm::{ProcessState, ShownMachine, ShownTask, TaskPin};

/// Shows live what the processes and tasks of a machine use.
///
/// The load is processor time, in percent of one processor, as interrupts each 10 ms find it. That
/// of a host is the sum of its processes. A process takes tasks (in use) or not (spare, evacuated).
/// IN and OUT count the tasks that entered from other processes and left for them; PAUSE is the
/// time for which a task's last move has stopped it. `q` ends the command, and the arrow keys
/// scroll.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub struct PvmTopArgs {
    /// Seconds between two updates.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = some_seconds)]
    interval: Duration,
    /// Print the tables once, after one interval.
    #[arg(long)]
    once: bool,
    /// Print a JSON object on a line of its own after each interval; with --once a single object
    /// over several lines.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

const EXAMPLES: &str = "\
Examples:
  upcall pvm top
  upcall pvm top --once --interval 0.2
  upcall pvm top --once --json | jq '.tasks[] | {tid, rank, load_percent, pinned}'";

const JSON: &str = "\
JSON keys: machine, balancer, hosts with host, processes (in use), tasks and load_percent,
processes with rank, process, state (in use, spare, evacuated or ended), tasks, load_percent,
entered and left, and tasks with tid, program, rank, load_percent, doing, pinned (the reason why
the task stays), moves and pause_us. Null means unknown or none.";

#[derive(Clone, Debug, Serialize)]
pub struct ProcessLoadRow {
    rank: usize,
    process: u32,
    state: &'static str,
    tasks: usize,
    load_percent: Option<f64>,
    entered: u64,
    left: u64,
}

/// What the processes of a host use together.
#[derive(Clone, Debug, Serialize)]
pub struct HostLoadRow {
    host: String,
    /// Number of its processes in use.
    processes: usize,
    tasks: usize,
    load_percent: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct TaskLoadRow {
    tid: String,
    program: String,
    rank: usize,
    load_percent: Option<f64>,
    doing: String,
    pinned: Option<String>,
    /// Whether `doing` says that, too.
    #[serde(skip)]
    is_pin_shown: bool,
    moves: u32,
    pause_us: Option<u64>,
}

/// A machine in an interval.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MachineLoad {
    machine: u32,
    balancer: Option<String>,
    hosts: Vec<HostLoadRow>,
    processes: Vec<ProcessLoadRow>,
    tasks: Vec<TaskLoadRow>,
}

pub const PROCESS_HEADS: [&str; 7] = ["PROCESS", "RANK", "STATE", "TASKS", "LOAD", "IN", "OUT"];
const HOST_HEADS: [&str; 4] = ["HOST", "PROCESSES", "TASKS", "LOAD"];
pub const TASK_HEADS: [&str; 7] = ["TID", "PROGRAM", "RANK", "LOAD", "MOVES", "PAUSE", "DOES"];

fn percent(load: Option<f64>) -> String {
    load.map_or_else(|| "-".into(), |load| format!("{load:.0}%"))
}

impl ProcessLoadRow {
    pub fn cells(&self) -> [String; 7] {
        let numbers = [self.entered, self.left].map(|number| number.to_string());
        let [entered, left] = numbers;
        let (process, rank) = (self.process.to_string(), self.rank.to_string());
        let load = percent(self.load_percent);
        [process, rank, self.state.into(), self.tasks.to_string(), load, entered, left]
    }
}

impl HostLoadRow {
    /// Sums up the rows of processes, whose hosts are `hosts`, by host.
    fn all(processes: &[ProcessLoadRow], hosts: &[&str]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (row, host) in processes.iter().zip(hosts) {
            let used = usize::from(row.state == ProcessState::InUse.word());
            // The processes of a host follow each other. A host that comes back is another one.
            match all.last_mut().filter(|last| last.host == *host) {
                Some(last) => {
                    last.processes += used;
                    last.tasks += row.tasks;
                    let both = last.load_percent.zip(row.load_percent);
                    let sum = both.map(|(one, other)| ((one + other) * 10.0).round() / 10.0);
                    last.load_percent = sum.or(last.load_percent).or(row.load_percent);
                }
                None => all.push(Self {
                    host: (*host).into(),
                    processes: used,
                    tasks: row.tasks,
                    load_percent: row.load_percent,
                }),
            }
        }
        all
    }

    fn cells(&self) -> [String; 4] {
        let (processes, tasks) = (self.processes.to_string(), self.tasks.to_string());
        [cell(&self.host), processes, tasks, percent(self.load_percent)]
    }
}

impl TaskLoadRow {
    fn of(task: &ShownTask, load_percent: Option<f64>) -> Self {
        Self {
            tid: task.tid.to_string(),
            program: task.program.clone(),
            rank: task.rank,
            load_percent,
            doing: task.doing.to_string(),
            pinned: task.pinned.map(|pin| pin.to_string()),
            is_pin_shown: matches!(task.pinned, Some(TaskPin::Starts | TaskPin::Call)),
            moves: task.moves,
            pause_us: task.pause.map(|pause| pause.as_micros() as u64),
        }
    }

    pub fn cells(&self) -> [String; 7] {
        let does = match &self.pinned {
            Some(why) if !self.is_pin_shown => format!("{}; stays here: {why}", self.doing),
            _ => self.doing.clone(),
        };
        [
            self.tid.clone(),
            cell(&self.program),
            self.rank.to_string(),
            percent(self.load_percent),
            self.moves.to_string(),
            self.pause_us.map_or_else(|| "-".into(), |pause| format!("{pause} us")),
            line(&does),
        ]
    }
}

impl MachineLoad {
    /// What was used between two surveys of a machine, which are so far apart.
    fn between(before: &ShownMachine, after: &ShownMachine, time: Duration) -> Self {
        let load = |before: Option<Duration>, after: Duration| {
            let used = after.saturating_sub(before?).as_secs_f64();
            // Rounded to tenths, since it is measured in steps.
            Some((used * 1000.0 / time.as_secs_f64().max(0.001)).round() / 10.0)
        };
        let times =
            before.tasks.iter().map(|task| (task.tid, task.time)).collect::<BTreeMap<_, _>>();
        let of_task = |task: &ShownTask| {
            TaskLoadRow::of(task, load(times.get(&task.tid).copied(), task.time))
        };
        let process = |member: &upcall_pvm::ShownProcess| {
            let known = before.members.iter().find(|one| one.rank == member.rank);
            let known = known.and_then(|one| one.time);
            ProcessLoadRow {
                rank: member.rank,
                process: member.process,
                state: member.state.word(),
                tasks: after.tasks.iter().filter(|task| task.rank == member.rank).count(),
                load_percent: member.time.and_then(|time| load(known, time)),
                entered: member.entered,
                left: member.left,
            }
        };
        let mut tasks = after.tasks.iter().map(of_task).collect::<Vec<_>>();
        let of = |row: &TaskLoadRow| row.load_percent.unwrap_or(0.0);
        tasks.sort_by(|one, other| of(other).total_cmp(&of(one)).then(one.tid.cmp(&other.tid)));
        let processes = after.members.iter().map(process).collect::<Vec<_>>();
        let hosts = after.members.iter().map(|member| &*member.host).collect::<Vec<_>>();
        let hosts = HostLoadRow::all(&processes, &hosts);
        let (machine, balancer) = (after.process, after.balancer.clone());
        Self { machine, balancer, hosts, processes, tasks }
    }

    pub fn summary(&self) -> String {
        let used = self.processes.iter().filter(|process| process.state == "in use").count();
        let balancer = match &self.balancer {
            Some(name) => format!(", balanced by {name}"),
            None => String::new(),
        };
        format!(
            "machine {}: {} in {used} of {}{balancer}",
            self.machine,
            counted(self.tasks.len(), "task"),
            counted(self.processes.len(), "process"),
        )
    }

    /// The loads by host on one line, if there are several hosts.
    pub fn host_line(&self) -> Option<String> {
        let host = |row: &HostLoadRow| {
            let [host, _, tasks, load] = row.cells();
            format!("{host} {load} ({tasks})")
        };
        let all = self.hosts.iter().map(host).collect::<Vec<_>>();
        (all.len() > 1).then(|| format!("hosts, with their tasks: {}", all.join(", ")))
    }

    fn text(&self) -> String {
        let processes = self.processes.iter().map(ProcessLoadRow::cells).collect::<Vec<_>>();
        let tasks = self.tasks.iter().map(TaskLoadRow::cells).collect::<Vec<_>>();
        let right = [true, true, false, true, true, true, true];
        let mut out = format!("{STRONG}{}{STRONG:#}\n", self.summary());
        if self.hosts.len() > 1 {
            let hosts = self.hosts.iter().map(HostLoadRow::cells).collect::<Vec<_>>();
            out += &table(HOST_HEADS, &hosts, [false, true, true, true]);
        }
        out += &table(PROCESS_HEADS, &processes, right);
        out += &table(TASK_HEADS, &tasks, [false, false, true, true, true, true, false]);
        out
    }
}

fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]], right: [bool; N]) -> String {
    let heads = heads.map(String::from);
    let columns = Columns::new(rows.iter().chain([&heads]), right);
    let mut out = format!("{FAINT}{}{FAINT:#}\n", columns.line(&heads));
    rows.iter().for_each(|row| out += &format!("{}\n", columns.line(row)));
    out
}

/// Surveys of a machine, one after the other.
struct WatchedMachine {
    which: u32,
    last: (ShownMachine, Instant),
}

impl WatchedMachine {
    fn begin(which: &Which) -> Result<Self, CommandError> {
        let shown = upcall_pvm::shown(which.machine)?;
        Ok(Self { which: shown.process, last: (shown, Instant::now()) })
    }

    /// What was used since the last survey.
    fn next(&mut self) -> Result<MachineLoad, CommandError> {
        let now = (upcall_pvm::shown(Some(self.which))?, Instant::now());
        let load = MachineLoad::between(&self.last.0, &now.0, now.1 - self.last.1);
        self.last = now;
        Ok(load)
    }
}

pub fn run(args: &PvmTopArgs) -> CommandResult {
    if !args.once && !args.json && !std::io::stdout().is_terminal() {
        return Err(CommandError::usage(
            "top needs a terminal: scripts use `upcall pvm top --once`, with or without --json",
        ));
    }
    let mut watched = WatchedMachine::begin(&args.which)?;
    if !args.once && !args.json {
        return live(&mut watched, args.interval);
    }
    loop {
        std::thread::sleep(args.interval);
        let load = watched.next()?;
        match (args.json, args.once) {
            (true, true) => print_json(&load)?,
            (true, false) => {
                let mut text = Vec::new();
                write_json_line(&mut text, &load).map_err(std::io::Error::from)?;
                println(String::from_utf8_lossy(&text))?;
            }
            (false, _) => print(load.text())?,
        }
        if args.once {
            return Ok(Exit::Done);
        }
    }
}

fn live(watched: &mut WatchedMachine, interval: Duration) -> CommandResult {
    let mut screen = MachineScreen::default();
    screen.renew(MachineLoad::between(&watched.last.0, &watched.last.0, interval));
    // ratatui restores the terminal also after a panic.
    let mut terminal = ratatui::try_init()?;
    let outcome = (|| -> CommandResult {
        let mut due = Instant::now() + interval;
        loop {
            terminal.draw(|frame| screen.draw(frame))?;
            if event::poll(due.saturating_duration_since(Instant::now()))? {
                if let Event::Key(key) = event::read()?
                    && key.is_press()
                    && screen.press(key) == ScreenOutcome::Quit
                {
                    return Ok(Exit::Done);
                }
                continue;
            }
            screen.renew(watched.next()?);
            due = Instant::now() + interval;
        }
    })();
    ratatui::try_restore()?;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use upcall_pvm::{ShownProcess, TaskActivity, Tid};

    fn task(number: u32, rank: usize, ms: u64) -> ShownTask {
        ShownTask {
            tid: Tid::new(0, number),
            parent: None,
            program: "p".into(),
            doing: TaskActivity::Runs,
            messages: 0,
            blocks: 0,
            block_bytes: 0,
            rank,
            process: 70,
            pid: 71,
            slot: None,
            time: Duration::from_millis(ms),
            moves: 2,
            pause: Some(Duration::from_micros(450)),
            slots: 0,
            stays: false,
            pinned: (rank == 1).then_some(TaskPin::Children),
            refused: None,
        }
    }

    pub(super) fn machine(ms: u64) -> ShownMachine {
        let member = |rank, state| ShownProcess {
            rank,
            process: 70 + rank as u32,
            host: "vm".into(),
            state,
            time: (rank == 0).then_some(Duration::from_millis(ms)),
            entered: 3,
            left: 4,
        };
        ShownMachine {
            process: 70,
            processes: 2,
            members: vec![member(0, ProcessState::InUse), member(1, ProcessState::Evacuated)],
            balancer: Some("refine".into()),
            console: false,
            tasks: vec![task(2, 1, 0), task(1, 0, ms)],
        }
    }

    #[test]
    fn loads_are_summed_up_by_host_if_there_are_several() {
        let second = Duration::from_secs(1);
        let (mut before, mut after) = (machine(100), machine(600));
        let load = MachineLoad::between(&before, &after, second);
        assert_eq!((load.hosts.len(), load.host_line()), (1, None));
        for machine in [&mut before, &mut after] {
            let third = ShownProcess { host: "ws".into(), rank: 2, ..machine.members[0].clone() };
            machine.members.push(third);
            machine.members[1].time = Some(Duration::ZERO);
        }
        let load = MachineLoad::between(&before, &after, second);
        let cells = load.hosts.iter().map(HostLoadRow::cells).collect::<Vec<_>>();
        assert_eq!(cells, [["vm", "1", "2", "50%"], ["ws", "1", "0", "50%"]]);
        let line = load.host_line();
        assert_eq!(line.as_deref(), Some("hosts, with their tasks: vm 50% (2), ws 50% (0)"));
        assert_eq!(load.text().lines().count(), 1 + 3 + 1 + 3 + 1 + 2);
    }

    #[test]
    fn loads_are_the_time_that_was_used_between_two_surveys() {
        let second = Duration::from_secs(1);
        let load = MachineLoad::between(&machine(100), &machine(600), second);
        assert_eq!(load.summary(), "machine 70: 2 tasks in 1 of 2 processes, balanced by refine");
        assert_eq!(load.processes[0].cells(), ["70", "0", "in use", "1", "50%", "3", "4"]);
        assert_eq!(load.processes[1].cells(), ["71", "1", "evacuated", "1", "-", "3", "4"]);
        let runs = "runs, or is in the queue";
        assert_eq!(load.tasks[0].cells(), ["t40001", "p", "0", "50%", "2", "450 us", runs]);
        let stays = format!("{runs}; stays here: it has child processes");
        assert_eq!(load.tasks[1].cells(), ["t40002", "p", "1", "0%", "2", "450 us", &stays]);
        let lines = load.text().lines().count();
        assert_eq!(lines, 1 + 1 + 2 + 1 + 2);
        // A task that has begun since has no load yet.
        let mut before = machine(100);
        before.tasks.clear();
        let load = MachineLoad::between(&before, &machine(600), second);
        assert!(load.tasks.iter().all(|task| task.load_percent.is_none()));
    }
}
