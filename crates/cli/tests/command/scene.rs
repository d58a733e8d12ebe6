//! A folder of names with servers in it, in which the tests run the command.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder of names for one test.
pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    pub fn names(&self) -> std::path::PathBuf {
        self.0.path().join("names")
    }

    pub fn upcall(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upcall"));
        command.args(arguments).env("UPCALL_DIR", self.names()).env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Runs the command. Returns whether it succeeded, its output, and its errors.
    pub fn run(&self, arguments: &[&str]) -> (bool, String, String) {
        let (code, out, error) = self.code(arguments);
        (code == 0, out, error)
    }

    /// Runs the command. Returns its exit code, its output, and its errors.
    pub fn code(&self, arguments: &[&str]) -> (i32, String, String) {
        let Output { status, stdout, stderr } =
            self.upcall(arguments).output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (status.code().expect("an exit code"), text(stdout), text(stderr))
    }

    /// Makes the folder of names, in which each user may enter names. Only root can let others in.
    pub fn open_for_all(&self) {
        let set = |path: &std::path::Path, mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("its own folder");
        };
        set(self.0.path(), 0o755);
        std::fs::create_dir(self.names()).expect("a folder");
        set(&self.names(), 0o1777);
    }

    /// Starts a server that exports `test:far/far`. Returns it with its name.
    pub fn serve(&self) -> (Served, String) {
        let (served, _) = self.program("math");
        let list = self.json(&["ls", "--json"]);
        assert_eq!(list[0]["pid"], served.0.id());
        assert_eq!(list[0]["interface"], "test:far/far@1.0.0");
        (served, list[0]["name"].as_str().expect("a name").to_string())
    }
}

mod far {
    upcall::interface!(
        r#"
        package test:far@1.0.0;
        /// Served to other machines.
        interface far {
            resource counter {
                constructor(start: u32);
                next: func() -> u32;
            }
            add: func(a: s32, b: s32) -> s32;
            join: func(words: list<string>) -> result<string, string>;
        }
        "#
    );

    pub struct Far;
    pub struct Counter(std::sync::atomic::AtomicU32);

    impl far::Serve for Far {
        fn new_counter(&self, start: u32) -> std::sync::Arc<dyn far::ServeCounter> {
            std::sync::Arc::new(Counter(start.into()))
        }
        fn add(&self, a: i32, b: i32) -> i32 {
            a + b
        }
        fn join(&self, words: &[String]) -> Result<String, String> {
            if words.is_empty() { Err("nothing to join".into()) } else { Ok(words.join(" ")) }
        }
    }

    impl far::ServeCounter for Counter {
        fn next(&self) -> u32 {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        }
    }
}

mod files {
    upcall::interface!(
        r#"
        package test:files@1.0.0;
        /// The part of the example's interface that the examples of the help call.
        interface files {
            resource file {
                read: func(offset: u64, most: u32) -> result<list<u8>, string>;
            }
            root: func() -> list<u8>;
            open: func(path: list<u8>) -> result<file, string>;
        }
        "#
    );

    /// The beginning of every file.
    pub const TEXT: &str = "Format: https://";

    pub struct Files;
    pub struct File;

    impl files::Serve for Files {
        fn root(&self) -> Vec<u8> {
            b"/".to_vec()
        }
        fn open(
            &self,
            path: upcall::Bytes<'_>,
        ) -> Result<std::sync::Arc<dyn files::ServeFile>, String> {
            let is_known = path.to_vec() == b"etc";
            if is_known { Ok(std::sync::Arc::new(File)) } else { Err("not found".into()) }
        }
    }

    impl files::ServeFile for File {
        fn read(&self, _offset: u64, most: u32) -> Result<Vec<u8>, String> {
            Ok(TEXT.bytes().cycle().take(most as usize).collect())
        }
    }
}

/// The variable that makes a run of this file a server, a client or a member of a group.
const PROGRAM: &str = "UPCALL_TEST_PROGRAM";

mod greeter {
    upcall::interface!(
        r#"
        package demo:greeter@1.0.0;
        /// The interface of the README's first example.
        interface greeter {
            /// Greets a person by name.
            greet: func(name: string) -> string;
            /// Returns the value, so that tests see what arrived.
            initial: func(letter: char, again: option<string>) -> string;
            panic: func();
            slow: func(milliseconds: u32);
        }
        "#
    );

    pub struct Greeter;

    impl greeter::Serve for Greeter {
        fn greet(&self, name: &str) -> String {
            format!("Hello, {name}!")
        }
        fn initial(&self, letter: char, again: &Option<String>) -> String {
            format!("{letter}{}", again.as_deref().unwrap_or("-"))
        }
        fn panic(&self) {
            panic!("as asked");
        }
        fn slow(&self, milliseconds: u32) {
            upcall::thread::sleep(std::time::Duration::from_millis(milliseconds.into()));
        }
    }
}

/// Runs as a server, as a client, or as a member of a group until the input ends, if this process
/// was started by [`Place::program`]. Otherwise does nothing.
pub fn program() {
    let serve = |server: upcall::Server| {
        let running = match server.start() {
            Ok(running) => running,
            Err(error) => {
                println!("\nlistens not: {error}");
                // The harness would report success, which no process reads.
                std::process::exit(0);
            }
        };
        let address = running.addresses().first().map(ToString::to_string);
        println!("\nlistens {}", address.unwrap_or_default());
        let _ = std::io::stdin().read(&mut [0]);
    };
    let math = || far::far::export(far::Far);
    match std::env::var(PROGRAM).as_deref() {
        Ok("serve") => serve(upcall::Server::new().export("far", math()).listen("127.0.0.1:0")),
        Ok("examples") => serve(
            upcall::Server::new()
                .export("math", math())
                .export("files", files::files::export(files::Files))
                .export("greeter", greeter::greeter::export(greeter::Greeter))
                .listen("127.0.0.1:0"),
        ),
        // For other users, for none, and for a group of which the server's user is no member.
        Ok(whom @ ("shared" | "private" | "grouped")) => {
            let server =
                upcall::Server::new().export("greeter", greeter::greeter::export(greeter::Greeter));
            serve(match whom {
                "shared" => server.mode(0o666).policy(upcall::policy::any_user()),
                "private" => server,
                _ => server.mode(0o660).group(0),
            });
        }
        Ok("home") => {
            let home = upcall::home::Homed::<u64>::create("hits").with(|_| Ok(()));
            println!("\nlistens nowhere");
            let _ = std::io::stdin().read(&mut [0]);
            drop(home);
        }
        // One of its objects admits no guest.
        Ok("far home") => {
            use upcall::home::Homed;
            let making = Homed::<u64>::create("hits").listen("127.0.0.1:0");
            let hits = making.with(|_| Ok(())).expect("an object");
            let address = hits.addresses()[0].to_string();
            let making = Homed::<u64>::create("secret").listen(&address);
            let secret = making.policy(|_| Err("it admits no guest".into())).with(|_| Ok(()));
            println!("\nlistens {address}");
            let _ = std::io::stdin().read(&mut [0]);
            drop((hits, secret));
        }
        Ok("math") => serve(upcall::Server::new().export("math", math())),
        // A server that has called another one, on this machine once and by an address three times.
        Ok(what) if what.starts_with("relay ") => {
            let bind = |name: &str| far::far::Far::bind(name).expect("a binding");
            let (near, far) = (bind("far"), bind(what.trim_start_matches("relay ")));
            let add = |to: &far::far::Far| assert_eq!(to.add(2, 3), Ok(5));
            add(&near);
            (0..3).for_each(|_| add(&far));
            serve(upcall::Server::new().export("relay", math()));
            drop((near, far));
        }
        Ok("flood") => member(0),
        Ok("look away") => member(1),
        Ok(name) => {
            let bound = far::far::Far::bind(name).expect("a binding");
            (0..3).for_each(|_| assert_eq!(bound.add(2, 3), Ok(5)));
            println!("\nlistens nowhere");
            let _ = std::io::stdin().read(&mut [0]);
        }
        Err(_) => {}
    }
}

/// A member of a group of two. The first sends messages that the second does not take until its
/// input ends. Both end when all messages were taken.
fn member(rank: usize) {
    use upcall::message::{GroupBuilder, Handlers};
    const ALL: u64 = 600;
    println!("\nlistens nowhere");
    let mut handlers = Handlers::new();
    let block = handlers.kind::<[u64]>("block");
    let joining = GroupBuilder::new("flood", 2)
        .rank(rank)
        .limit(8 << 20)
        .timeout(Some(std::time::Duration::from_micros(50)));
    let group = joining.join(handlers).expect("a group");
    if rank == 0 {
        (0..ALL).for_each(|number| group.send(1, block, &[number; 1024]).expect("it is sent"));
    }
    let _ = std::io::stdin().read(&mut [0]);
    let mut taken = 0;
    while rank == 1 && taken < ALL {
        match group.receive(|message| message.word(1)) {
            Ok(number) => taken += u64::from(number == Some(taken)),
            Err(_) => _ = group.wait(Some(std::time::Duration::from_secs(1))),
        }
    }
    group.barrier().expect("both are there");
    drop(group);
    // The harness would report success, which no process reads.
    std::process::exit(0);
}

impl Place {
    /// Runs this file as a program until it reports that it is ready. Returns it with its report:
    /// the address at which it listens.
    pub fn program(&self, what: &str) -> (Served, String) {
        self.start(what, Command::new(std::env::current_exe().expect("its own path")))
    }

    /// Runs this file as a program with the identities of hosts in this folder.
    pub fn program_on(&self, what: &str, hosts: &std::path::Path) -> (Served, String) {
        let mut command = Command::new(std::env::current_exe().expect("its own path"));
        command.env("UPCALL_HOSTS", hosts);
        self.start(what, command)
    }

    /// Runs this file as a program of another user. Only root can.
    pub fn program_as(&self, what: &str, user: u32) -> (Served, String) {
        // That user may not be able to read the folder in which this file was built.
        let copy = self.0.path().join("program");
        if !copy.exists() {
            self::copy(&std::env::current_exe().expect("its own path"), &copy);
        }
        let mut command = Command::new(copy);
        as_user(&mut command, user);
        self.start(what, command)
    }

    fn start(&self, what: &str, mut command: Command) -> (Served, String) {
        command.args(["program", "--exact", "--nocapture"]).env(PROGRAM, what);
        command.env("UPCALL_DIR", self.names()).env_remove("XDG_RUNTIME_DIR");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this file runs");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut lines = lines.map_while(Result::ok);
        let report = lines.find_map(|line| line.strip_prefix("listens ").map(String::from));
        // The harness in the child writes a line after 60 s, and ends the child if it cannot.
        std::thread::spawn(move || lines.for_each(drop));
        (Served(child), report.expect("it is ready"))
    }

    /// Runs the command, which has to succeed and to print one JSON document.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let (done, said, error) = self.run(arguments);
        assert!(done, "{arguments:?}: {error}");
        serde_json::from_str(&said).expect("JSON")
    }
}

/// Copies a program. The copy is made in another process: a process that another test starts at the
/// same time would inherit the open file, and the kernel runs no file that is open for writing.
pub fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().expect("cp starts");
    assert!(copied.success(), "{}", to.display());
}

/// The user who runs the tests.
pub fn user() -> u32 {
    let own = std::fs::metadata("/proc/self").expect("this process");
    std::os::unix::fs::MetadataExt::uid(&own)
}

/// Makes a command run as another user, of that user's group alone.
pub fn as_user(command: &mut Command, user: u32) -> &mut Command {
    std::os::unix::process::CommandExt::uid(command, user);
    std::os::unix::process::CommandExt::gid(command, user)
}

/// Waits until `done` is true, for at most a minute.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waits too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A child process, which is killed on drop.
pub struct Served(pub Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
