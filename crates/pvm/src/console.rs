//! PVM's console: lines in, text out.
//!
//! Sources: PVM's `pvm(1)`, and experiments with PVM 3.4.6's console. Commands, their output and
//! their error texts are PVM's own where they make sense here.
//!
//! The console neither waits, nor reads, nor prints. Lines and the machine's answers are arguments,
//! results are text, and actions go through [`Controls`], so that all of it can be tested without a
//! machine.
//!
//! The console has a task's id without being a task: it owns what it puts into mailboxes, and the
//! output of its [jobs](jobs) is sent to it as messages, as to a task.

mod help;
mod hosts;
mod jobs;
mod line;
mod options;
mod spawning;

use crate::error;
use crate::hosts::SpawnPlace;
use crate::ops::{
    OP_MAILBOX_INFO, OP_MAILBOX_PUT, OP_MIGRATE, OUTPUT_CONTEXT, OUTPUT_END, OUTPUT_NEW,
};
use crate::output::{Output, OutputTarget};
use crate::remote::TaskSpec;
use crate::shown::{self, ShownTask};
use crate::tid::{THIS_HOST, Tid};
use crate::wire::{self, Packet, PacketReader};
use hosts::HostChange;
use jobs::{Jobs, Sink};
use options::Options;
use spawning::{Spawning, Where};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;

/// The error text for a command with a wrong number of arguments.
fn wrong(command: &str) -> String {
    format!("{command}: wrong #args (help {command})")
}

/// What the first process of a machine knows about a task without asking.
#[derive(Clone, Debug)]
pub(crate) struct KnownTask {
    pub(crate) tid: Tid,
    /// As in PVM: an error code if there is no parent.
    pub(crate) parent: i32,
    pub(crate) program: String,
    pub(crate) process: i32,
    pub(crate) host: String,
}

/// The machine, as the console sees it. Later answers arrive through [`Console::answered`] and
/// [`Console::seen`].
pub(crate) trait Controls {
    /// Spawns `count` tasks. The answer has the number of those that started, their ids, and the
    /// errors of the others.
    fn spawn(&mut self, plan: TaskSpec, count: u32, place: SpawnPlace);
    /// The place with the name of a host.
    fn place(&self, name: &str) -> SpawnPlace;
    /// The hosts that have not ended: number and name.
    fn hosts(&self) -> Vec<(i32, String)>;
    /// Asks for a service. The answer comes later.
    fn ask(&mut self, op: u64, question: Packet);
    /// Asks all processes what their tasks do. The answer comes later.
    fn look(&mut self);
    fn kill(&mut self, tid: Tid);
    /// Saves the machine in a file. The answer comes later.
    fn checkpoint(&mut self, path: &str);
    /// Sends a signal, or returns why that is not possible.
    fn signal(&mut self, tid: Tid, number: i32) -> Result<(), &'static str>;
    /// All tasks that have not ended.
    fn tasks(&self) -> Vec<KnownTask>;
    /// Removes mailbox entries whose owners have ended, of one class or of all.
    fn forget_orphans(&mut self, class: Option<&str>);
    fn halt(&mut self);
}

/// The machine's answer that must arrive before the next line is read.
#[derive(Debug)]
enum ConsoleWait {
    Started {
        job: Option<i32>,
    },
    Names,
    Put,
    Moved,
    /// Hosts come or go.
    Hosts {
        names: Vec<String>,
        change: HostChange,
    },
    Look(SurveyPurpose),
    Checkpoint,
}

/// What to do when all processes have reported what their tasks do.
#[derive(Clone, Copy, Debug)]
enum SurveyPurpose {
    List { long: bool, console: bool },
    Tickle,
    Reset,
}

/// PVM's console; see the module.
#[derive(Debug)]
pub(crate) struct Console {
    tid: Tid,
    host: String,
    aliases: BTreeMap<String, Vec<String>>,
    /// Environment of spawned tasks; they get the variables that PVM_EXPORT names.
    environment: BTreeMap<String, String>,
    options: Options,
    jobs: Jobs,
    waits: Option<ConsoleWait>,
    /// Lines that come before the input.
    first: VecDeque<String>,
    open: bool,
    out: Vec<u8>,
}

const EXPORT: &str = "PVM_EXPORT";

impl Console {
    /// Creates a console with its id, its host's name, its environment, and the lines of
    /// `~/.pvmrc`.
    pub(crate) fn new(
        tid: Tid,
        host: String,
        environment: BTreeMap<String, String>,
        first: &str,
    ) -> Self {
        Self {
            tid,
            host,
            aliases: BTreeMap::new(),
            environment,
            options: Options::new(),
            jobs: Jobs::default(),
            waits: None,
            first: first.lines().map(Into::into).collect(),
            open: true,
            out: Vec::new(),
        }
    }

    pub(crate) fn tid(&self) -> Tid {
        self.tid
    }

    /// Returns `true` if the console still takes lines.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Returns `true` if the console takes the next line now.
    pub(crate) fn is_ready(&self) -> bool {
        self.open && self.waits.is_none()
    }

    /// Takes the text that was printed since the last call.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// The next line of those that come before the input.
    pub(crate) fn next_first(&mut self) -> Option<String> {
        self.first.pop_front()
    }

    /// Stops taking lines.
    pub(crate) fn close(&mut self) {
        self.open = false;
    }

    fn say(&mut self, text: impl AsRef<str>) {
        self.out.extend(text.as_ref().as_bytes());
        self.out.push(b'\n');
    }

    /// Executes a command.
    #[expect(clippy::too_many_lines, reason = "one arm for each command")]
    pub(crate) fn line(&mut self, line: &str, controls: &mut dyn Controls) {
        let mut words = line::words(line);
        // An alias may expand to another one. The limit stops an alias of itself.
        for _ in 0..8 {
            let Some(alias) = words.first().and_then(|first| self.aliases.get(first)) else {
                break;
            };
            words.splice(..1, alias.iter().cloned());
        }
        let Some((command, args)) = words.split_first() else { return };
        match (command.as_str(), args) {
            ("add", [_, ..]) => self.change_hosts(args, HostChange::Add, controls),
            ("delete", [_, ..]) => self.change_hosts(args, HostChange::Delete, controls),
            ("alias", [name, rest @ ..]) if !rest.is_empty() => {
                _ = self.aliases.insert(name.clone(), rest.to_vec())
            }
            ("alias", _) => {
                let all = self
                    .aliases
                    .iter()
                    .map(|(name, words)| format!("{name}\t{}\n", words.join(" ")))
                    .collect::<String>();
                self.out.extend(all.into_bytes());
            }
            ("unalias", [_, ..]) => args.iter().for_each(|name| _ = self.aliases.remove(name)),
            ("checkpoint", [file]) => {
                self.waits = Some(ConsoleWait::Checkpoint);
                controls.checkpoint(file);
            }
            ("conf", []) => self.conf(&controls.hosts()),
            ("echo", _) => self.say(args.join(" ")),
            ("export", []) => {
                let names = self.environment.get(EXPORT).cloned().unwrap_or_default();
                self.say(format!("{EXPORT}={names}"));
            }
            ("export" | "unexport", _) => self.export(args, command == "export"),
            ("getopt", [] | [_]) => self.option(args.first()),
            ("setopt", [name, value]) => self.set_option(name, value),
            ("halt", []) => {
                self.open = false;
                controls.halt();
            }
            ("help" | "?", [] | [_]) => match help::help(args.first().map(String::as_str)) {
                Some(text) => self.out.extend(text.into_bytes()),
                None => {
                    self.say(format!("help: there is no command {:?} (help lists them)", args[0]))
                }
            },
            ("id", []) => self.say(self.tid.to_string()),
            ("jobs", []) => self.jobs(None),
            ("jobs", [long]) if long == "-l" => self.jobs(Some(&controls.tasks())),
            ("kill", [_, ..]) => self.kill(args, controls),
            ("migrate", [task, rank]) => self.migrate(task, rank, controls),
            ("mstat", [_, ..]) => {
                let hosts = controls.hosts();
                for name in args {
                    let is_known =
                        self.is_here(name) || hosts.iter().any(|(_, known)| known == name);
                    let status = if is_known { "ok" } else { shown::error(error::NO_HOST) };
                    self.say(format!("{name:>24}  {status}"));
                }
            }
            ("names", [] | [_]) => {
                let pattern = args.first().map_or("", String::as_str);
                self.ask(
                    ConsoleWait::Names,
                    OP_MAILBOX_INFO,
                    Packet::default().text(&wire::written(pattern)),
                    controls,
                );
            }
            ("ps", _) => self.ps(args, controls),
            ("pstat", [_, ..]) => {
                let known = controls.tasks();
                for word in args {
                    let tid = number(word);
                    let status = match tid.map(|number| (number, Tid::of(number))) {
                        Some((_, Some(tid)))
                            if tid == self.tid || known.iter().any(|task| task.tid == tid) =>
                        {
                            "run"
                        }
                        None | Some((THIS_HOST, None)) => shown::error(error::BAD_PARAM),
                        Some(_) => shown::error(error::NO_TASK),
                    };
                    self.say(format!("t{:8x}  {status}", tid.unwrap_or_default()));
                }
            }
            ("put", [name, flags, text]) => match flags.parse() {
                Ok(flags) => self.put(name, flags, text, controls),
                Err(_) => self.say(format!(
                    "put: {flags:?} is not a number: the flags are a sum of 1 (persistent), 2 \
                     (one of several), 4 (other tasks may change it)"
                )),
            },
            ("quit", []) => self.open = false,
            ("reset", []) => self.look(SurveyPurpose::Reset, controls),
            ("reset", [info]) if info == "info" => controls.forget_orphans(None),
            ("reset", [info, class]) if info == "info" => controls.forget_orphans(Some(class)),
            ("setenv", _) if args.len() < 3 => self.setenv(args),
            ("sig", [signal, tasks @ ..]) if !tasks.is_empty() => {
                self.signal(signal, tasks, controls)
            }
            ("spawn", _) => match spawning::read(args) {
                Ok(spawning) => self.spawn(spawning, controls),
                Err(why) => self.say(why),
            },
            ("tickle", [how]) if how == "2" => self.look(SurveyPurpose::Tickle, controls),
            ("tickle", [how]) if how == "4" => {
                self.ask(ConsoleWait::Names, OP_MAILBOX_INFO, Packet::default().text(""), controls)
            }
            ("tickle", [_, ..]) => self.say(
                "tickle: only 2 (what each task does) and 4 (mailboxes) are known here; the \
                 others are for PVM's daemon, and there is none",
            ),
            ("trace", _) => self.say("trace: not implemented yet (PvmNotImpl)"),
            ("version", []) => self.say(format!("3.4.6 (Upcall {})", env!("CARGO_PKG_VERSION"))),
            (command, _) if help::COMMANDS.iter().any(|known| known.name == command) => {
                self.say(wrong(command))
            }
            (command, _) => self.say(format!("{command}: not found (help lists all commands)")),
        }
    }

    fn is_here(&self, host: &str) -> bool {
        host == "." || host == self.host
    }

    fn export(&mut self, names: &[String], more: bool) {
        let old = self.environment.get(EXPORT).cloned().unwrap_or_default();
        let mut all = old
            .split(':')
            .filter(|one| !one.is_empty() && !names.iter().any(|name| name == one))
            .collect::<Vec<_>>();
        if more {
            all.extend(names.iter().map(String::as_str));
        }
        let all = all.join(":");
        self.environment.insert(EXPORT.into(), all);
    }

    fn setenv(&mut self, args: &[String]) {
        match args {
            [name, value] => _ = self.environment.insert(name.clone(), value.clone()),
            [name] => match self.environment.get(name).cloned() {
                Some(value) => self.say(value),
                None => self.say(format!("setenv: {name} is not set")),
            },
            _ => {
                let all = self
                    .environment
                    .iter()
                    .map(|(name, value)| format!("{name}={value}\n"))
                    .collect::<String>();
                self.out.extend(all.into_bytes());
            }
        }
    }

    fn option(&mut self, name: Option<&String>) {
        let found = self
            .options
            .all()
            .filter(|(one, _)| name.is_none_or(|name| name == one))
            .collect::<Vec<_>>();
        match name {
            Some(name) if found.is_empty() => {
                self.say(format!("PVM Option {name:?} Unknown. (getopt lists all)"))
            }
            _ => found
                .iter()
                .for_each(|(name, value)| self.say(format!("{name} Currently Set to {value}"))),
        }
    }

    fn set_option(&mut self, name: &str, value: &str) {
        let tid = || value.strip_prefix('t').and_then(|hex| i32::from_str_radix(hex, 16).ok());
        let Some(value) = value.parse().ok().or_else(tid) else {
            return self.say(format!("setopt: {value:?} is neither a number nor a task"));
        };
        match self.options.set(name, value) {
            Some(old) => self.say(format!("{name} Changed from {old} to {value}")),
            None => self.say(format!("PVM Option {name:?} Unknown. (getopt lists all)")),
        }
    }

    fn jobs(&mut self, known: Option<&[KnownTask]>) {
        let all = self.jobs.each().collect::<Vec<_>>();
        if known.is_some() {
            self.say(head(false));
        }
        for (number, tids) in all {
            match known {
                Some(known) => {
                    self.say(format!("{number:2}:"));
                    known
                        .iter()
                        .filter(|task| tids.contains(&task.tid))
                        .for_each(|task| self.say(row(task, false)));
                }
                None => self.say(format!(
                    "{number:2}:{}",
                    tids.iter().map(|tid| format!(" {tid}")).collect::<String>()
                )),
            }
        }
    }

    /// Finds a running task. If there is none, prints why.
    fn a_task(&mut self, word: &str, known: &[KnownTask]) -> Option<Tid> {
        let tid = number(word).and_then(Tid::of);
        if tid == Some(self.tid) {
            self.say(format!("{word}: that's me."));
            return None;
        }
        let found = tid.filter(|tid| known.iter().any(|task| task.tid == *tid));
        if found.is_none() {
            self.say(format!(
                "{word}: {}",
                shown::error(if tid.is_some() { error::NO_TASK } else { error::BAD_PARAM })
            ));
        }
        found
    }

    fn kill(&mut self, args: &[String], controls: &mut dyn Controls) {
        let known = controls.tasks();
        let children = args[0] == "-c";
        for word in &args[usize::from(children)..] {
            if children {
                let parent = number(word).unwrap_or_default();
                // Tasks that this console has spawned have no parent in PVM's terms.
                let parent =
                    if parent == self.tid.number() { error::PARENT_NOT_SET } else { parent };
                known
                    .iter()
                    .filter(|task| task.parent == parent)
                    .for_each(|task| controls.kill(task.tid));
            } else if let Some(tid) = self.a_task(word, &known) {
                controls.kill(tid);
            }
        }
    }

    fn signal(&mut self, signal: &str, tasks: &[String], controls: &mut dyn Controls) {
        let Some(signal) = signal.parse().ok().filter(|number| (0..=64).contains(number)) else {
            return self.say(format!(
                "sig: {signal:?} is not a signal number: give one from 0 to 64, such as 15 \
                 (SIGTERM)"
            ));
        };
        let known = controls.tasks();
        for word in tasks {
            if let Some(Err(why)) =
                self.a_task(word, &known).map(|tid| controls.signal(tid, signal))
            {
                self.say(format!("sig: {why}"));
            }
        }
    }

    fn migrate(&mut self, task: &str, rank: &str, controls: &mut dyn Controls) {
        let Some(rank) = rank.parse::<i32>().ok().filter(|rank| *rank >= 0) else {
            return self.say(format!(
                "migrate: {rank:?} is not the rank of a process: give a number from 0, as \
                 `upcall pvm ps` shows it after the process's number"
            ));
        };
        if let Some(tid) = self.a_task(task, &controls.tasks()) {
            let question = Packet::default().ints([tid.number(), rank]);
            self.ask(ConsoleWait::Moved, OP_MIGRATE, question, controls);
        }
    }

    fn put(&mut self, name: &str, flags: i32, text: &str, controls: &mut dyn Controls) {
        // Packs the text as `pvm_pkstr` does with PvmDataDefault: the length in network order,
        // padded to multiples of 4 bytes.
        let length = text.len() + 1;
        let mut bytes = (length as u32).to_be_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.resize(4 + length.next_multiple_of(4), 0);
        let message = Packet::default().ints([0, bytes.len() as i32, 0]).bytes(&bytes);
        let question = Packet::default()
            .text(&wire::written(name))
            .ints([flags, -1, 0])
            .bytes(message.as_bytes());
        self.ask(ConsoleWait::Put, OP_MAILBOX_PUT, question, controls);
    }

    fn spawn(&mut self, spawning: Spawning, controls: &mut dyn Controls) {
        let Spawning { count, place, directory, output, program, args } = spawning;
        let here = std::env::current_dir().ok();
        if directory.as_ref().is_some_and(|directory| std::fs::canonicalize(directory).ok() != here)
        {
            let here = here.unwrap_or_default();
            return self.say(format!(
                "spawn: all tasks of a process have its directory, {}: start the console in the \
                 directory where they are to run",
                here.display()
            ));
        }
        let (output, job) = match output {
            Where::Log => (self.options.output(), None),
            Where::Here => self.begin_job(Sink::Here),
            Where::File { path, append } => {
                let mut options = std::fs::OpenOptions::new();
                match options.create(true).write(true).append(append).truncate(!append).open(&path)
                {
                    Ok(file) => self.begin_job(Sink::File(file)),
                    Err(error) => return self.say(format!("{path}: {error}")),
                }
            }
        };
        if let Some(job) = job {
            self.say(format!("[{job}]"));
        }
        self.waits = Some(ConsoleWait::Started { job });
        let place = match place {
            Some(place) if place != "LINUX64" => controls.place(&place),
            _ => SpawnPlace::Any,
        };
        if place == SpawnPlace::Nowhere {
            let errors = Packet::default().ints((0..count).map(|_| error::NO_HOST));
            return self.answered(0, errors.as_bytes());
        }
        let exported = self.environment.get(EXPORT).cloned().unwrap_or_default();
        let names = exported.split(':').chain([EXPORT]);
        let values =
            names.filter_map(|name| Some(format!("{name}={}", self.environment.get(name)?)));
        let plan = TaskSpec {
            program: program.into(),
            // A zero byte cannot be typed, so no word is dropped.
            args: args.into_iter().filter_map(|word| CString::new(word).ok()).collect(),
            environment: values.filter_map(|value| CString::new(value).ok()).collect(),
            parent: error::PARENT_NOT_SET,
            output,
            options: self.options.inherited(),
            ..TaskSpec::default()
        };
        controls.spawn(plan, count, place);
    }

    fn begin_job(&mut self, sink: Sink) -> (Output, Option<i32>) {
        let job = self.jobs.begin(sink);
        let mut output = Output::log();
        (output.to, output.tag, output.context) =
            (OutputTarget::Task(self.tid), job, OUTPUT_CONTEXT as i32);
        (output, Some(job))
    }

    fn ask(&mut self, waits: ConsoleWait, op: u64, question: Packet, controls: &mut dyn Controls) {
        self.waits = Some(waits);
        controls.ask(op, question);
    }

    fn look(&mut self, look: SurveyPurpose, controls: &mut dyn Controls) {
        self.waits = Some(ConsoleWait::Look(look));
        controls.look();
    }

    fn ps(&mut self, args: &[String], controls: &mut dyn Controls) {
        let flags =
            args.iter().flat_map(|arg| arg.chars().filter(|flag| *flag != '-')).collect::<String>();
        let has = |flag| flags.contains(flag);
        for unknown in flags.chars().filter(|flag| !"alsx".contains(*flag)) {
            self.say(format!("unknown flag -{unknown}"));
        }
        let (long, console) = (has('l'), has('x'));
        if has('s') {
            return self.look(SurveyPurpose::List { long, console }, controls);
        }
        self.say(head(long));
        if console {
            self.say(own_row(&self.host, long));
        }
        controls.tasks().iter().for_each(|task| self.say(row(task, long)));
    }

    /// Handles the machine's answer to the last line.
    pub(crate) fn answered(&mut self, code: i32, bytes: &[u8]) {
        let mut reader = PacketReader::new(bytes);
        match self.waits.take() {
            Some(ConsoleWait::Started { job }) => {
                self.say(format!("{code} successful"));
                (0..code)
                    .filter_map(|_| reader.int())
                    .for_each(|tid| self.say(format!("t{tid:x}")));
                let errors = std::iter::from_fn(|| reader.int()).collect::<Vec<_>>();
                errors.iter().for_each(|code| self.say(shown::error(*code)));
                if errors.contains(&error::NO_FILE) {
                    self.say(
                        "spawn: compile the program by `upvmcc`, and give its path, or a name \
                         that is in this directory, in ~/pvm3/bin/LINUX64 or in PATH",
                    );
                }
                if let Some(job) = job {
                    self.jobs.started(job, code > 0, &mut self.out);
                }
            }
            Some(ConsoleWait::Names) => {
                for _ in 0..code {
                    let (Some(name), Some(count)) = (reader.text(), reader.int()) else { return };
                    self.say(format!("<{}>:", wire::shown(&name)));
                    for _ in 0..count {
                        let (Some(index), Some(owner), Some(flags)) =
                            (reader.int(), reader.int(), reader.int())
                        else {
                            return;
                        };
                        self.say(format!(
                            "\tindex={index} owner=0x{owner:x}/{owner} flags=0x{flags:x}"
                        ));
                    }
                    self.say("");
                }
            }
            Some(ConsoleWait::Moved) => {
                // Without a text the task was moved.
                if let Some(why) = reader.text() {
                    self.say(format!("migrate: {}", wire::shown(&why)));
                }
            }
            Some(ConsoleWait::Hosts { names, change }) => {
                self.hosts_changed(&names, change, code, bytes);
            }
            Some(ConsoleWait::Put) if code < 0 => self.say(format!("put: {}", shown::error(code))),
            _ => {}
        }
    }

    /// Handles the report of what all tasks do.
    pub(crate) fn seen(&mut self, tasks: &[ShownTask], controls: &mut dyn Controls) {
        let Some(ConsoleWait::Look(look)) =
            self.waits.take_if(|waits| matches!(waits, ConsoleWait::Look(_)))
        else {
            return;
        };
        match look {
            SurveyPurpose::List { long, console } => {
                self.say(format!("{:<width$} DOES", head(long), width = head(long).len() + 5));
                if console {
                    self.say(format!("{} reads commands", own_row(&self.host, long)));
                }
                for task in controls.tasks() {
                    let Some(seen) = tasks.iter().find(|seen| seen.tid == task.tid) else {
                        continue;
                    };
                    self.say(format!(
                        "{} {}; {} messages wait",
                        row(&task, long),
                        seen.doing,
                        seen.messages
                    ));
                }
            }
            SurveyPurpose::Tickle => tasks.iter().for_each(|task| {
                self.say(format!("{} ({}) {}", task.tid, task.program, task.doing))
            }),
            SurveyPurpose::Reset => {
                tasks.iter().filter(|task| !task.stays).for_each(|task| controls.kill(task.tid));
                controls.forget_orphans(None);
            }
        }
    }

    /// Handles the result of a checkpoint.
    pub(crate) fn saved(&mut self, text: &str) {
        self.waits.take_if(|waits| matches!(waits, ConsoleWait::Checkpoint));
        self.say(text);
    }

    /// Handles an output message of a job. `job` is the message's tag.
    pub(crate) fn printed(&mut self, job: i32, bytes: &[u8]) {
        let mut reader = PacketReader::new(bytes);
        let (Some(tid), Some(what)) = (reader.int().and_then(Tid::of), reader.int()) else {
            return;
        };
        let label = self.options.show_tids();
        match i64::from(what) {
            OUTPUT_NEW => self.jobs.new_task(job, tid),
            OUTPUT_END => self.jobs.task_ended(job, tid, label, &mut self.out),
            _ => self.jobs.printed(job, tid, reader.rest(), label, &mut self.out),
        }
    }
}

/// Parses a task's number as people write it.
fn number(word: &str) -> Option<i32> {
    i32::from_str_radix(word.strip_prefix('t').unwrap_or(word), 16).ok()
}

fn head(long: bool) -> String {
    let long = if long { format!("{:>9}{:>7}", "PTID", "PID") } else { String::new() };
    format!("{:>24} {:>8}{long} {:>9} {:<12}", "HOST", "TID", "FLAG 0x", "COMMAND")
        .trim_end()
        .to_owned()
}

fn row(task: &KnownTask, long: bool) -> String {
    let long = if long { format!(" {:8x} {:6}", task.parent, task.process) } else { String::new() };
    let KnownTask { tid, host, program, .. } = task;
    format!("{host:>24} {:8x}{long} {:>9} {program:<12}", tid.number(), "6/c,f")
}

fn own_row(host: &str, long: bool) -> String {
    let long = if long { format!(" {:>8} {:6}", "-", std::process::id()) } else { String::new() };
    format!("{host:>24} {:>8}{long} {:>9} {:<12}", "(cons)", "4/c", "-")
}

#[cfg(test)]
#[path = "console/tests.rs"]
mod tests;
