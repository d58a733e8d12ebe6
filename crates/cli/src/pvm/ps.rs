//! `upcall pvm ps`: machines, and what their tasks do.

use crate::exit::{CommandError, CommandResult};
use crate::output::{
    Columns, FAINT, STRONG, cell, counted, line, print, print_json, println, report_all, size,
};
use serde::Serialize;
use std::collections::BTreeMap;
use upcall_pvm::{ShownMachine, ShownTask, TaskPin};

#[derive(Serialize)]
struct MachineRow {
    machine: u32,
    processes: usize,
    console: bool,
    /// Its home, and the other ones.
    hosts: Vec<String>,
    tasks: Vec<TaskRow>,
}

#[derive(Serialize)]
struct TaskRow {
    tid: String,
    /// The id as programs have it.
    number: i32,
    parent: Option<String>,
    program: String,
    /// starts, runs, polls, receives, asks, sleeps, awaits, pauses, aside, moves or silent.
    state: &'static str,
    /// In words.
    doing: String,
    /// Why the task could not move to another process now, as far as that is known.
    pinned: Option<String>,
    /// Why its last move did not come about, if it did not.
    refused: Option<String>,
    /// Whether `doing` says that, too.
    #[serde(skip)]
    is_pin_shown: bool,
    /// Sender and tag of the message for which the task waits.
    from: Option<String>,
    tag: Option<i32>,
    messages: usize,
    blocks: usize,
    block_bytes: u64,
    /// `None` if the size is unknown.
    resident_kib: Option<u64>,
    own_kib: Option<u64>,
    rank: usize,
    host: String,
    process: u32,
    /// The number that `getpid` returns in the task; `None` if it is unknown.
    pid: Option<u32>,
}

type TaskMemory = BTreeMap<u32, BTreeMap<usize, (u64, u64)>>;

impl TaskRow {
    fn of(task: ShownTask, hosts: &[String], memory: &TaskMemory) -> Self {
        let host = hosts.get(task.rank).cloned().unwrap_or_default();
        // Files of other hosts cannot be read here.
        let slot = task.slot.filter(|_| hosts.first() == Some(&host));
        let kib = slot.and_then(|slot| {
            let of_slots = memory.get(&task.process)?.range(slot..slot + task.slots.max(1));
            of_slots.map(|(_, kib)| *kib).reduce(|one, other| (one.0 + other.0, one.1 + other.1))
        });
        let wanted = task.doing.wanted();
        Self {
            tid: task.tid.to_string(),
            number: task.tid.number(),
            parent: task.parent.map(|tid| tid.to_string()),
            program: task.program,
            state: task.doing.word(),
            doing: task.doing.to_string(),
            pinned: task.pinned.map(|pin| pin.to_string()),
            refused: task.refused,
            is_pin_shown: matches!(task.pinned, Some(TaskPin::Starts | TaskPin::Call)),
            from: wanted.and_then(|wanted| wanted.from).map(|tid| tid.to_string()),
            tag: wanted.and_then(|wanted| wanted.tag),
            messages: task.messages,
            blocks: task.blocks,
            block_bytes: task.block_bytes,
            resident_kib: kib.map(|(resident, _)| resident),
            own_kib: kib.map(|(_, own)| own),
            rank: task.rank,
            host,
            process: task.process,
            pid: Some(task.pid).filter(|pid| *pid != 0),
        }
    }
}

impl From<ShownMachine> for MachineRow {
    fn from(shown: ShownMachine) -> Self {
        let of_ranks = shown.members.iter().map(|member| member.host.clone()).collect::<Vec<_>>();
        let mut hosts = of_ranks.clone();
        hosts.dedup();
        let is_near = |task: &&ShownTask| of_ranks.get(task.rank) == of_ranks.first();
        let near = shown.tasks.iter().filter(is_near).map(|task| task.process);
        let near = near.collect::<std::collections::BTreeSet<_>>();
        let memory =
            near.into_iter().map(|process| (process, upcall_pvm::memory(process))).collect();
        let tasks = shown.tasks.into_iter().map(|task| TaskRow::of(task, &of_ranks, &memory));
        Self {
            machine: shown.process,
            processes: shown.processes,
            console: shown.console,
            hosts,
            tasks: tasks.collect(),
        }
    }
}

pub fn list(as_json: bool) -> CommandResult {
    let (shown, silent) = upcall_pvm::machines();
    let machines = shown.into_iter().map(MachineRow::from).collect::<Vec<_>>();
    let silent: Vec<CommandError> = silent.into_iter().map(CommandError::from).collect();
    if as_json {
        print_json(&machines)?;
    } else if machines.is_empty() && silent.is_empty() {
        println(format_args!("{FAINT}no machine runs{FAINT:#}"))?;
    } else {
        print(machines.iter().map(table).collect::<String>())?;
    }
    Ok(report_all(&silent))
}

fn table(machine: &MachineRow) -> String {
    let console = if machine.console { ", with a console" } else { "" };
    let (tasks, processes) =
        (counted(machine.tasks.len(), "task"), counted(machine.processes, "process"));
    let hosts = match machine.hosts.len() {
        0 | 1 => String::new(),
        more => format!(" on {more} hosts"),
    };
    let mut out = format!(
        "{STRONG}machine {}{STRONG:#}: {tasks} in {processes}{hosts}{console}\n",
        machine.machine
    );
    let does = |row: &TaskRow| match (&row.pinned, &row.refused) {
        // With one process there is no other to move to.
        (Some(why), _) if machine.processes > 1 && !row.is_pin_shown => {
            format!("{}; stays here: {why}", row.doing)
        }
        (_, Some(why)) => format!("{}; {why}", row.doing),
        _ => row.doing.clone(),
    };
    let cells = |row: &TaskRow| {
        [
            row.tid.clone(),
            row.parent.clone().unwrap_or_else(|| "-".into()),
            match &machine.hosts[..] {
                [_, _, ..] => format!("{}:{}.{}", row.host, row.process, row.rank),
                _ => format!("{}.{}", row.process, row.rank),
            },
            row.messages.to_string(),
            size(row.block_bytes),
            row.resident_kib.map_or_else(|| "-".into(), |kib| size(kib << 10)),
            cell(&row.program),
            does(row),
        ]
    };
    let rows = machine.tasks.iter().map(cells).collect::<Vec<_>>();
    if rows.is_empty() {
        return out;
    }
    let heads = ["TID", "PARENT", "PROCESS", "MESSAGES", "HELD", "RESIDENT", "PROGRAM", "DOES"]
        .map(String::from);
    let right = [false, false, false, true, true, true, false, false];
    let columns = Columns::new(rows.iter().chain([&heads]), right);
    out += &format!("{FAINT}{}{FAINT:#}\n", columns.line(&heads));
    for row in &rows {
        out += &format!("{}\n", line(&columns.line(row)));
    }
    out
}
