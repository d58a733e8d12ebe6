//! Tests of the console without a machine.

use super::*;
use crate::shown::TaskActivity;
use std::time::Duration;

/// Records what the console asks of the machine.
#[derive(Default)]
struct Machine {
    tasks: Vec<KnownTask>,
    spawned: Vec<(TaskSpec, u32)>,
    places: Vec<SpawnPlace>,
    has_far: bool,
    asked: Vec<(u64, Packet)>,
    looks: usize,
    killed: Vec<Tid>,
    saved: Vec<String>,
    signals: Vec<(Tid, i32)>,
    forgotten: Vec<Option<String>>,
    halted: bool,
}

impl Controls for Machine {
    fn spawn(&mut self, plan: TaskSpec, count: u32, place: SpawnPlace) {
        self.spawned.push((plan, count));
        self.places.push(place);
    }

    fn place(&self, name: &str) -> SpawnPlace {
        match name {
            "." | "vm" => SpawnPlace::On(0),
            "far" if self.has_far => SpawnPlace::On(1),
            _ => SpawnPlace::Nowhere,
        }
    }

    fn hosts(&self) -> Vec<(i32, String)> {
        let far = self.has_far.then(|| (2 * THIS_HOST, "far".into()));
        [(THIS_HOST, "vm".into())].into_iter().chain(far).collect()
    }

    fn ask(&mut self, op: u64, question: Packet) {
        self.asked.push((op, question));
    }

    fn look(&mut self) {
        self.looks += 1;
    }

    fn checkpoint(&mut self, path: &str) {
        self.saved.push(path.to_owned());
    }

    fn kill(&mut self, tid: Tid) {
        self.killed.push(tid);
    }

    fn signal(&mut self, tid: Tid, number: i32) -> Result<(), &'static str> {
        self.signals.push((tid, number));
        if number == 10 { Err("not this one") } else { Ok(()) }
    }

    fn tasks(&self) -> Vec<KnownTask> {
        self.tasks.clone()
    }

    fn forget_orphans(&mut self, class: Option<&str>) {
        self.forgotten.push(class.map(Into::into));
    }

    fn halt(&mut self) {
        self.halted = true;
    }
}

const A: Tid = Tid::new(0, 2);
const B: Tid = Tid::new(1, 1);

struct Session {
    console: Console,
    machine: Machine,
}

impl Session {
    fn new() -> Self {
        let environment = BTreeMap::from([("HOME".into(), "/root".into())]);
        let console =
            Console::new(Tid::new(0, 1), "vm".into(), environment, "alias q quit\n# a comment\n");
        let known = |tid, parent, program: &str| KnownTask {
            tid,
            parent,
            program: program.into(),
            process: 4711,
            host: "vm".into(),
        };
        let tasks = vec![known(A, error::PARENT_NOT_SET, "worker"), known(B, A.number(), "b")];
        Self { console, machine: Machine { tasks, ..Machine::default() } }
    }

    /// Executes a line. Returns what is printed at once.
    fn line(&mut self, line: &str) -> String {
        self.console.line(line, &mut self.machine);
        self.said()
    }

    fn said(&mut self) -> String {
        String::from_utf8(self.console.take_output()).unwrap()
    }

    fn answered(&mut self, code: i32, packet: Packet) -> String {
        self.console.answered(code, packet.as_bytes());
        self.said()
    }

    fn printed(&mut self, job: i32, tid: Tid, what: i64, text: &str) -> String {
        let packet = Packet::default().ints([tid.number(), what as i32]).bytes(text.as_bytes());
        self.console.printed(job, packet.as_bytes());
        self.said()
    }
}

#[test]
fn lists_have_pvms_form() {
    let mut session = Session::new();
    assert_eq!(
        session.line("conf"),
        "1 host, 1 data format\n                    HOST     DTID     ARCH   SPEED       DSIG\n\
         \x20                     vm    40000  LINUX64    1000 0x00408c41\n"
    );
    assert_eq!(
        session.line("ps -lx"),
        "                    HOST      TID     PTID    PID   FLAG 0x COMMAND\n".to_owned()
            + &format!(
                "                      vm   (cons)        - {:6}       4/c -           \n",
                std::process::id()
            )
            + "                      vm    40002 ffffffdd   4711     6/c,f worker      \n\
               \x20                     vm    80001    40002   4711     6/c,f b           \n"
    );
    assert_eq!(session.line("id"), "t40001\n");
    assert_eq!(
        session.line("mstat vm foo"),
        "                      vm  ok\n                     foo  No such host\n"
    );
    assert_eq!(
        session.line("pstat t40002 999 t40001"),
        "t   40002  run\nt     999  No such task\nt   40001  run\n"
    );
    assert!(session.line("ps -z").starts_with("unknown flag -z\n"));
    assert_eq!(session.line("getopt PvmRoute"), "PvmRoute Currently Set to 1\n");
    assert_eq!(session.line("setopt PvmDebugMask 1"), "PvmDebugMask Changed from 0 to 1\n");
    assert_eq!(session.line("getopt").lines().count(), 23);
    assert_eq!(session.line("add x"), "");
    assert!(!session.console.is_ready());
    let answer = Packet::default().ints([error::CANT_START]);
    assert_eq!(
        session.answered(0, answer).lines().nth(2),
        Some("                       x Can't start pvmd")
    );
}

#[test]
fn what_cannot_be_is_said() {
    let mut session = Session::new();
    for (line, said) in [
        ("kill", "kill: wrong #args (help kill)\n"),
        ("nosuch", "nosuch: not found (help lists all commands)\n"),
        ("kill t40099 x t40001", "t40099: No such task\nx: Bad parameter\nt40001: that's me.\n"),
        (
            "sig x t40002",
            "sig: \"x\" is not a signal number: give one from 0 to 64, such as 15 (SIGTERM)\n",
        ),
        ("sig 10 t40002", "sig: not this one\n"),
        ("setopt PvmFoo 1", "PVM Option \"PvmFoo\" Unknown. (getopt lists all)\n"),
        ("help nosuch", "help: there is no command \"nosuch\" (help lists them)\n"),
        ("spawn", "spawn: wrong #args (help spawn)\n"),
        ("", ""),
        ("  # nothing", ""),
    ] {
        assert_eq!(session.line(line), said, "{line}");
    }
    assert!(session.line("spawn -:/nowhere w").contains("have its directory"));
    assert!(session.line("spawn ->/nowhere/x w").contains("/nowhere/x: No such file"));
    assert!(
        session.machine.spawned.is_empty()
            && session.machine.killed.is_empty()
            && session.console.is_ready()
    );
}

#[test]
fn help_is_there_for_all_commands() {
    let mut session = Session::new();
    let all = session.line("help");
    for command in &help::COMMANDS {
        assert!(
            session.line(&format!("help {}", command.name)).contains("Syntax:  "),
            "{}",
            command.name
        );
        assert!(
            command.name == "?" || all.contains(&format!("\n  {:<11} ", command.name)),
            "{}",
            command.name
        );
    }
}

#[test]
fn a_job_shows_the_lines_of_its_tasks_and_of_theirs() {
    let mut session = Session::new();
    session.line("setenv FOO bar");
    session.line("export FOO HOME NONE");
    session.line("unexport HOME");
    assert_eq!(session.line("export"), "PVM_EXPORT=FOO:NONE\n");
    assert_eq!(session.line("spawn -2 -> w 'a b' -x"), "[1]\n");
    assert!(!session.console.is_ready());
    let (plan, count) = session.machine.spawned.pop().unwrap();
    assert_eq!(
        (plan.program.to_str(), plan.args, count),
        (Some("w"), vec![c"a b".into(), c"-x".into()], 2)
    );
    assert_eq!(plan.environment, [c"FOO=bar".to_owned(), c"PVM_EXPORT=FOO:NONE".to_owned()]);
    assert_eq!((plan.output.to, plan.output.tag), (OutputTarget::Task(Tid::new(0, 1)), 1));
    assert_eq!(session.printed(1, A, OUTPUT_NEW, ""), "");
    let started = Packet::default().ints([A.number(), error::NO_FILE]);
    assert!(session.answered(1, started).starts_with("1 successful\nt40002\nNo such file\n"));
    assert!(session.console.is_ready());
    assert_eq!(session.printed(1, A, 5, "one\ntw"), "[1:t40002] one\n");
    session.printed(1, B, OUTPUT_NEW, "");
    assert_eq!(session.line("jobs"), " 1: t40002 t80001\n");
    assert_eq!(session.printed(1, A, 2, "o\n"), "[1:t40002] two\n");
    assert_eq!(session.printed(1, A, 3, "end"), "");
    assert_eq!(session.printed(1, A, OUTPUT_END, ""), "[1:t40002] end\n[1:t40002] EOF\n");
    session.line("setopt PvmShowTids 0");
    assert_eq!(session.printed(1, B, 2, "x\n"), "x\n");
    assert_eq!(session.printed(1, B, OUTPUT_END, ""), "[1] finished\n");
    assert_eq!(session.line("jobs"), "");
    // A spawn that starts nothing leaves no job.
    assert_eq!(session.line("spawn -elsewhere -> w"), "[2]\n0 successful\nNo such host\n");
    assert_eq!(session.line("jobs"), "");
}

#[test]
fn output_goes_to_a_file_anew_or_behind_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let mut session = Session::new();
    for (job, arrow) in [(1, "->"), (2, "->"), (3, "->>")] {
        assert_eq!(
            session.line(&format!("spawn {arrow}{} w", path.display())),
            format!("[{job}]\n")
        );
        session.printed(job, A, OUTPUT_NEW, "");
        session.answered(1, Packet::default().int(A.number()));
        assert_eq!(session.printed(job, A, 3, "hi\n"), "");
        assert_eq!(session.printed(job, A, OUTPUT_END, ""), format!("[{job}] finished\n"));
    }
    let lines = "[2:t40002] hi\n[2:t40002] EOF\n[3:t40002] hi\n[3:t40002] EOF\n";
    assert_eq!(std::fs::read_to_string(path).unwrap(), lines);
}

#[test]
fn tasks_are_ended_one_by_one_by_their_parent_and_all_but_those_that_stay() {
    let mut session = Session::new();
    session.line("kill t40002 80001");
    session.line("kill -c t40001");
    session.line("kill -c t40002");
    assert_eq!(std::mem::take(&mut session.machine.killed), [A, B, A, B]);
    session.line("sig 15 t40002");
    assert_eq!(session.machine.signals, [(A, 15)]);
    let seen = |tid, stays| ShownTask {
        tid,
        parent: None,
        program: "w".into(),
        doing: TaskActivity::Awaits(0),
        messages: 2,
        blocks: 0,
        block_bytes: 0,
        rank: 0,
        process: 1,
        pid: 0,
        slot: None,
        slots: 0,
        stays,
        pinned: None,
        refused: None,
        time: Duration::ZERO,
        moves: 0,
        pause: None,
    };
    let all = [seen(A, true), seen(B, false)];
    session.line("ps -s");
    session.console.seen(&all, &mut session.machine);
    let said = session.said();
    assert!(
        said.contains("COMMAND      DOES\n")
            && said.contains(" worker       waits for descriptor 0; 2 messages wait\n"),
        "{said}"
    );
    session.line("reset");
    assert!(!session.console.is_ready());
    session.console.seen(&all, &mut session.machine);
    assert_eq!((session.machine.killed, session.machine.forgotten), (vec![B], vec![None]));
    assert_eq!(session.machine.looks, 2);
}

#[test]
fn a_task_is_moved_or_the_reason_is_said() {
    let mut session = Session::new();
    assert_eq!(session.line("migrate t40002"), "migrate: wrong #args (help migrate)\n");
    assert_eq!(session.line("migrate t40099 1"), "t40099: No such task\n");
    assert_eq!(session.line("migrate t40001 1"), "t40001: that's me.\n");
    for rank in ["-1", "x", "2147483648"] {
        let said = session.line(&format!("migrate t40002 {rank}"));
        assert!(said.starts_with(&format!("migrate: {rank:?} is not the rank")), "{said}");
    }
    assert!(session.machine.asked.is_empty() && session.console.is_ready());
    let refusal = "t40002 was not moved: the task cannot leave its process: it has child processes";
    let answers = [
        (error::OK, Packet::default(), String::new()),
        (error::DENIED, Packet::default().text(refusal), format!("migrate: {refusal}\n")),
    ];
    for (code, answer, said) in answers {
        assert_eq!(session.line("migrate t40002 1"), "");
        let question = Packet::default().ints([A.number(), 1]);
        assert_eq!(session.machine.asked.pop(), Some((OP_MIGRATE, question)));
        assert!(!session.console.is_ready());
        assert_eq!(session.answered(code, answer), said);
        assert!(session.console.is_ready());
    }
}

#[test]
fn mailboxes_are_listed_and_filled() {
    let mut session = Session::new();
    session.line("names f*");
    assert_eq!(session.machine.asked.pop(), Some((OP_MAILBOX_INFO, Packet::default().text("f*"))));
    let info = Packet::default().text("foo").ints([1, 0, 0x40001, 1]);
    assert_eq!(session.answered(1, info), "<foo>:\n\tindex=0 owner=0x40001/262145 flags=0x1\n\n");
    session.line("put foo 1 'a text'");
    let (op, question) = session.machine.asked.pop().unwrap();
    assert_eq!(op, OP_MAILBOX_PUT);
    assert!(question.as_bytes().ends_with(b"\0\0\0\x07a text\0\0"), "{question:?}");
    assert_eq!(session.answered(error::DENIED, Packet::default()), "put: Permission denied\n");
    assert!(session.line("put foo x y").starts_with("put: \"x\" is not a number"));
}

#[test]
fn aliases_stand_for_commands_and_the_end_is_the_end() {
    let mut session = Session::new();
    assert_eq!(session.line("alias say echo it"), "");
    assert_eq!(session.line("say is"), "it is\n");
    // An alias of itself ends.
    session.line("alias loop loop x");
    assert!(session.line("loop").starts_with("loop: not found"));
    session.line("unalias loop");
    assert_eq!(session.line("alias"), "say\techo it\n");
    while let Some(line) = session.console.next_first() {
        session.line(&line);
    }
    assert!(session.console.is_open());
    session.line("q");
    assert!(!session.console.is_open() && !session.machine.halted);
    let mut other = Session::new();
    other.line("halt");
    assert!(other.machine.halted && !other.console.is_open());
}
