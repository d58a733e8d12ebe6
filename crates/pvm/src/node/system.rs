//! Services that a process provides for its own tasks: starting and ending tasks, options, output.
//! The machine provides the others ([`elsewhere`](super::elsewhere)).

use super::{NextTask, Node, posted};
use crate::error;
use crate::hosts::SpawnPlace;
use crate::ops;
use crate::output::{Output, OutputTarget};
use crate::remote::{ControlMessage, TaskSpec};
use crate::report::{report, report_line};
use crate::stream::STDERR;
use crate::task::{self, Task, TaskState};
use crate::tid::{HOST, Tid};
use crate::unsent::MachineMessage;
use crate::wire::{Packet, PacketReader, exact};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::ffi::{CString, OsString};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use upcall_ulp::Ulp;
use upcall_ulp::slot::UlpSlot;

/// Flags of `pvm_spawn`.
const TASK_HOST: i32 = 1;
const TASK_ARCH: i32 = 2;
const HOST_COMPLEMENT: i32 = 32;
const NO_PARENT: i32 = 64;
/// Options that the host handles.
const OUTPUT: [i32; 3] = [4, 5, 21];
const SELF_OUTPUT: [i32; 3] = [12, 13, 23];

impl Node {
    /// Creates a task in this process, at a place that no other task of the machine has. Returns
    /// its tid, or PVM's error. The task runs after [`together`](Self::together).
    pub(super) fn start(&mut self, plan: &TaskSpec, place: u32) -> Result<Tid, i32> {
        self.go_home();
        self.free_left();
        if let Some(folder) = &plan.folder {
            self.programs.also_in(Path::new(folder));
        }
        let image = self.programs.image(&plan.program)?;
        let folder = plan.directory.as_ref().map(|path| self.first_folder(path)).transpose()?;
        let name =
            CString::new(image.path().as_os_str().as_bytes()).map_err(|_| error::BAD_PARAM)?;
        let args = [&[name], &plan.args[..]].concat();
        let tid = self.places.name().ok_or(error::OUT_OF_RES)?;
        let slots = self.sizes.slots();
        let slot = UlpSlot::take_these(place as usize * slots, slots).ok_or_else(|| {
            report_line!(
                "upcall pvm: a system call of an ended task still runs, and uses the addresses \
                 that a new task needs: try again"
            );
            error::OUT_OF_RES
        })?;
        let environment = environment(&plan.environment);
        let loaded = Ulp::load_with(slot, &image, &args, &environment, self.sizes.options());
        let mut ulp = loaded.map_err(|refused| {
            report_line!("upcall pvm: {refused}");
            error::OUT_OF_RES
        })?;
        ulp.call_it(tid.number());
        ulp.set_parent(self.first_process);
        self.begin(Task {
            ulp,
            state: TaskState::Starts,
            ticket: 0,
            runs: 0,
            tid,
            held: Default::default(),
            inbox: VecDeque::new(),
            left: false,
            descriptor: None,
            alarm: None,
            folder,
            umask: None,
            parent: plan.parent,
            siblings: vec![tid],
            context: plan.context,
            program: image.path().to_owned(),
            image,
            output: plan.output.for_another(),
            child_output: if plan.output.to == OutputTarget::Own {
                Output::log()
            } else {
                plan.output.for_another()
            },
            options: plan.options.clone(),
            is_pinned: false,
        });
        Ok(tid)
    }

    /// Lets the tasks of one spawn run that are in this process.
    pub(super) fn together(&mut self, tids: &[Tid]) {
        for tid in tids {
            if let Some(seat) = self.seat(tid.number())
                && let Some(task) = self.tasks[seat as usize].as_deref_mut()
                && task.state == TaskState::Starts
            {
                task.siblings = tids.to_vec();
                task.state = TaskState::Runs;
                self.enqueue(seat);
            }
        }
    }

    pub(super) fn system(&mut self, index: u32, op: u64, bytes: &[u8]) -> NextTask {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return NextTask::Any;
        };
        let (code, packet) = match op {
            ops::OP_SPAWN => match spawning(task, PacketReader::new(bytes)) {
                Some(asked) => return self.ask_to_spawn(index, asked),
                None => (error::BAD_MSG, Packet::default()),
            },
            ops::OP_HOSTS => self.packed_hosts(),
            ops::OP_SIBLINGS => {
                let all = task.siblings.iter().map(|tid| tid.number());
                (task.siblings.len() as i32, Packet::default().ints(all))
            }
            ops::OP_OUTPUT => {
                // The descriptor is above 2, and all errors are negative.
                let awaited = self.output(index, bytes).unwrap_or(error::OK);
                (awaited, Packet::default())
            }
            ops::OP_REPORT => {
                self.report(index, bytes);
                (error::OK, Packet::default())
            }
            _ => return self.ask(index, op, bytes.to_vec()),
        };
        if let Some(task) = self.tasks[index as usize].as_deref_mut() {
            super::question::answer_packet(task, code, &packet);
        }
        NextTask::Same
    }

    /// Asks the machine to spawn tasks.
    fn ask_to_spawn(&mut self, index: u32, asked: AskedSpawn) -> NextTask {
        let AskedSpawn { plan, count, flags, place } = asked;
        let place = match flags & (TASK_HOST | TASK_ARCH) {
            TASK_HOST => self.spawn_place(&place, flags & HOST_COMPLEMENT != 0),
            TASK_ARCH if !place.is_empty() && place != "LINUX64" => SpawnPlace::Nowhere,
            _ => SpawnPlace::Any,
        };
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return NextTask::Any;
        };
        let tid = task.tid.number();
        task.state = TaskState::Asks(ops::OP_SPAWN);
        self.tell_first(ControlMessage::Spawn { tid, plan, count, place });
        self.goes_on(index)
    }

    /// Asks the machine, which answers now or later.
    fn ask(&mut self, index: u32, op: u64, question: Vec<u8>) -> NextTask {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return NextTask::Any;
        };
        task.state = TaskState::Asks(op);
        let tid = task.tid.number();
        self.tell_first(ControlMessage::Ask { tid, op, question });
        self.goes_on(index)
    }

    /// Lets a task that is already answered run on without waiting for its turn.
    fn goes_on(&self, index: u32) -> NextTask {
        let task = self.tasks.get(index as usize).and_then(Option::as_deref);
        if task.is_some_and(|task| task.state == TaskState::Runs) {
            NextTask::This(index)
        } else {
            NextTask::Any
        }
    }

    /// Answers questions that consist of integers alone.
    pub(super) fn short(&mut self, index: u32, op: u64, words: [u64; 3]) -> NextTask {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return NextTask::Any;
        };
        let tid = task.tid.number();
        let [first, second, third] = words.map(|word| word as i32);
        let code = match op {
            ops::OP_ENROLL => {
                task.ulp.answer_with(
                    0,
                    [tid as u64, task.parent as u64, task.context as u64, 0, 0, 0, 0, 0],
                );
                if std::mem::take(&mut task.left) {
                    self.tell_first(ControlMessage::Entered { tid });
                }
                return NextTask::Same;
            }
            ops::OP_LEAVE => {
                task.left = true;
                task.inbox.clear();
                task.ulp.answer(0);
                let sent = self.sent_afar();
                self.tell_first(ControlMessage::Left { tid, sent });
                return NextTask::Same;
            }
            ops::OP_OPTION => {
                let old = option(task, first, second, third != 0);
                task.ulp.answer(old.into());
                if first == task::NO_RESET && third != 0 {
                    self.tell_first(ControlMessage::Spared { tid, is_spared: second != 0 });
                }
                return NextTask::Same;
            }
            ops::OP_OUTPUT_KIND => i32::from(task.output.to != OutputTarget::Own),
            // The caller waits until the first process has passed this on. So what it sends next
            // comes later, also to other tasks of the same process.
            ops::OP_KILL | ops::OP_SIGNAL => {
                let question = Packet::default().ints([first, second]);
                return self.ask(index, op, question.as_bytes().to_vec());
            }
            ops::OP_DESCRIPTOR => descriptor(task),
            ops::OP_PIN => std::mem::replace(&mut task.is_pinned, first != 0).into(),
            ops::OP_PROCESS => self.places.rank() as i32,
            ops::OP_TID_TO_HOST => {
                let host = self.host_of_task(first);
                return self.short_answer(index, host);
            }
            ops::OP_COPIED => posted::copied(),
            ops::OP_TASK_STATE | ops::OP_OUTPUT_SOURCES | ops::OP_HALT => {
                return self.ask(index, op, first.to_ne_bytes().to_vec());
            }
            _ => error::NOT_IMPL,
        };
        self.short_answer(index, code)
    }

    fn short_answer(&mut self, index: u32, code: i32) -> NextTask {
        if let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) {
            task.ulp.answer(code.into());
        }
        NextTask::Same
    }

    /// Handles output of a task that has no stream of its own. Returns the descriptor for which the
    /// task is to wait, if the reader is slow.
    fn output(&mut self, index: u32, bytes: &[u8]) -> Option<i32> {
        let task = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut)?;
        let tid = task.tid;
        match task.output.to {
            OutputTarget::Own => {}
            OutputTarget::Log => {
                task.output.log_lines(tid, bytes);
                return STDERR.awaited();
            }
            OutputTarget::Task(to) => {
                let (tag, context) = (task.output.tag, task.output.context);
                let data = Packet::default().int(tid.number()).int(bytes.len() as i32).bytes(bytes);
                self.message(MachineMessage { source: HOST, to, tag, context, data });
            }
        }
        None
    }

    /// Handles a report of the library in a task, for which the task never waits.
    fn report(&mut self, index: u32, bytes: &[u8]) {
        let Some(task) = self.tasks.get(index as usize).and_then(Option::as_deref) else { return };
        let text = String::from_utf8_lossy(bytes);
        match task.output.to {
            OutputTarget::Own => report(&text),
            OutputTarget::Log => report(&format!("[{}] {text}", task.tid)),
            OutputTarget::Task(_) => _ = self.output(index, bytes),
        }
    }
}

/// The descriptor that is readable while a message waits (`pvm_getfds`), or PVM's error. A task
/// keeps the same one for its life.
fn descriptor(task: &mut Task) -> i32 {
    if task.descriptor.is_none() {
        task.descriptor = eventfd(
            u32::from(!task.inbox.is_empty()),
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )
        .ok();
    }
    task.descriptor.as_ref().map_or(error::SYS_ERR, AsRawFd::as_raw_fd)
}

/// A task's request to spawn others.
struct AskedSpawn {
    plan: TaskSpec,
    count: u32,
    flags: i32,
    /// A host or an architecture.
    place: String,
}

/// Reads a spawn request: file, flags, host, count, arguments, environment, context. `None`: the
/// request is malformed.
fn spawning(spawner: &Task, mut question: PacketReader<'_>) -> Option<AskedSpawn> {
    let (program, flags, place, count) =
        (question.text()?, question.int()?, question.text()?, question.int()?);
    let args = (0..question.int()?)
        .map(|_| CString::new(exact(&question.text()?)).ok())
        .collect::<Option<Vec<_>>>()?;
    let one = |name: String, value: String| CString::new(exact(&format!("{name}={value}"))).ok();
    let environment = (0..question.int()?)
        .map(|_| one(question.text()?, question.text()?))
        .collect::<Option<Vec<_>>>()?;
    let context = question.int()?;
    // A host, and the folder to start in.
    let (place, directory) =
        place.split_once(':').map_or((&place[..], None), |(place, folder)| (place, Some(folder)));
    let plan = TaskSpec {
        program: OsString::from_vec(exact(&program)),
        args,
        environment,
        parent: if flags & NO_PARENT != 0 { error::PARENT_NOT_SET } else { spawner.tid.number() },
        context,
        output: spawner.child_output.for_another(),
        options: spawner.options.clone(),
        directory: directory.map(|path| OsString::from_vec(exact(path))),
        folder: spawner.program.parent().map(Into::into),
    };
    let place = place.to_owned();
    Some(AskedSpawn { plan, count: u32::try_from(count).ok()?, flags, place })
}

/// Sets, or only reads, an option that the host keeps. Returns the value before.
fn option(task: &mut Task, which: i32, value: i32, set: bool) -> i32 {
    let (output, at) = match OUTPUT.iter().position(|one| *one == which) {
        Some(at) => (&mut task.child_output, at),
        None => match SELF_OUTPUT.iter().position(|one| *one == which) {
            Some(at) => (&mut task.output, at),
            None => {
                let old = task.option(which);
                if set {
                    task.set_option(which, value);
                }
                return old;
            }
        },
    };
    let to = match output.to {
        OutputTarget::Task(tid) => tid.number(),
        OutputTarget::Own | OutputTarget::Log => 0,
    };
    let old = [to, output.tag, output.context][at];
    match at {
        _ if !set => {}
        0 => output.to = Tid::of(value).map_or(OutputTarget::Log, OutputTarget::Task),
        1 => output.tag = value,
        _ => output.context = value,
    }
    old
}

/// This process's environment, with some variables replaced.
fn environment(others: &[CString]) -> Vec<CString> {
    let name = |one: &[u8]| one.split(|byte| *byte == b'=').next().map(<[u8]>::to_vec);
    let names = others.iter().map(|one| name(one.to_bytes())).collect::<Vec<_>>();
    let own =
        std::env::vars_os().filter(|(own, _)| !names.contains(&Some(own.as_bytes().to_vec())));
    let own = own.filter_map(|(name, value)| {
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
    });
    own.chain(others.iter().cloned()).collect()
}
