//! The servers behind sockets: asking several at once, and what to say of a silent server.

use crate::exit::{CommandError, Exit};
use crate::expect;
use crate::output::{line, note, quoted};
use std::cell::{LazyCell, OnceCell};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};
use upcall::BindError;
use upcall::directory;
use upcall_os::socket::Connection;

/// Maximum number of servers that are asked at the same time. A stopped one delays no other.
const AT_ONCE: usize = 64;

/// Asks the servers at these sockets at the same time. Returns the answers in the order of the
/// sockets. If the kernel gives no more threads, the calling thread asks the remaining servers one
/// after another.
pub fn ask_all<T: Send>(sockets: &[PathBuf], ask: impl Fn(&Path) -> T + Sync) -> Vec<T> {
    let ask = &ask;
    let batch = |sockets: &[PathBuf]| -> Vec<T> {
        std::thread::scope(|scope| {
            let start = |socket| {
                let started = Builder::new().spawn_scoped(scope, move || ask(socket));
                started.map_err(|_| socket)
            };
            let asked: Vec<_> = sockets.iter().map(PathBuf::as_path).map(start).collect();
            let answer = |asked: Result<ScopedJoinHandle<'_, T>, &Path>| match asked {
                Ok(thread) => thread.join().expect("no panic"),
                Err(socket) => ask(socket),
            };
            asked.into_iter().map(answer).collect()
        })
    };
    sockets.chunks(AT_ONCE).flat_map(batch).collect()
}

/// Asks the servers of other hosts at the same time, for `time` at most. Returns the answers in the
/// order of the questions; `None` for a server that has not answered.
///
/// A question that takes longer, because a resolver does, goes on until the process ends.
pub fn ask_within<T: Send + 'static>(
    time: Duration,
    questions: Vec<String>,
    ask: fn(&str) -> T,
) -> Vec<Option<T>> {
    let until = Instant::now() + time;
    let mut answers: Vec<Option<T>> = questions.iter().map(|_| None).collect();
    let asked = questions.len();
    let left = Arc::new(Mutex::new(questions.into_iter().enumerate()));
    let (answered, all) = mpsc::channel();
    for _ in 0..asked.min(AT_ONCE) {
        let (left, answered) = (left.clone(), answered.clone());
        let work = move || {
            loop {
                let next = left.lock().ok().and_then(|mut left| left.next());
                let Some((at, question)) = next else { return };
                if answered.send((at, ask(&question))).is_err() {
                    return;
                }
            }
        };
        // Without a thread more, those that run ask the rest.
        if Builder::new().spawn(work).is_err() {
            break;
        }
    }
    drop(answered);
    for _ in 0..asked {
        match all.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((at, answer)) => answers[at] = Some(answer),
            Err(_) => break,
        }
    }
    answers
}

/// A server that was asked, and gave no answer that the command can use.
pub struct SilentServer {
    /// Its names in the folder of names.
    pub names: Vec<String>,
    pub silence: Silence,
}

/// Why a server gave no answer.
pub enum Silence {
    /// A failure of the command.
    Failed(CommandError),
    /// The server has ended, and only another user can remove its socket. This is an error only of
    /// a command that was given one of the server's names.
    Left(LeftBehind),
}

/// The text of [`left_behind`]. It is made when it is shown, because it asks for the user's name.
pub type LeftBehind = LazyCell<CommandError, Box<dyn FnOnce() -> CommandError>>;

/// Notes which servers of other users have ended. Shows [`MOST_SHOWN`] of them, because another
/// user can leave any number of sockets.
pub fn note_left<'a>(left: impl IntoIterator<Item = &'a LeftBehind>) {
    notes_of(left).iter().for_each(note);
}

/// The notes of [`note_left`].
fn notes_of<'a>(left: impl IntoIterator<Item = &'a LeftBehind>) -> Vec<String> {
    let mut left = left.into_iter();
    let mut notes: Vec<String> =
        left.by_ref().take(MOST_SHOWN).map(|server| CommandError::to_string(server)).collect();
    match left.count() {
        0 => {}
        1 => notes.push("1 more server of another user has ended".into()),
        more => notes.push(format!("{more} more servers of other users have ended")),
    }
    notes
}

/// What is known of the servers in the folder of names that one command finds silent.
///
/// Other users can enter any number of names in a shared folder, and any number of sockets. So the
/// folder is read once, when the first server is found silent.
pub struct SilentServers<'a> {
    command: &'static str,
    /// Names that the user has given, which are shown before others.
    wanted: &'a [String],
    names: OnceCell<BTreeMap<PathBuf, Vec<String>>>,
}

impl<'a> SilentServers<'a> {
    pub fn new(command: &'static str, wanted: &'a [String]) -> Self {
        Self { command, wanted, names: OnceCell::new() }
    }

    /// The server with this socket was asked in vain.
    pub fn add(&self, socket: &Path, error: BindError) -> SilentServer {
        let all = || {
            let names = directory::folder().map(|folder| directory::names_in(&folder));
            by_socket(names.unwrap_or_default(), |name| directory::find(name).ok())
        };
        let mut names = self.names.get_or_init(all).get(socket).cloned().unwrap_or_default();
        names.sort_by_cached_key(|name| (!self.wanted.contains(name), name.clone()));
        let is_dead = match &error {
            BindError::ServerGone { .. } => true,
            BindError::Denied { .. } => directory::has_ended(socket),
            _ => false,
        };
        if is_dead && let Some(owner) = upcall_directory::names::foreign_owner(socket) {
            let (known, socket) = (names.clone(), socket.to_path_buf());
            let text = move || left_behind(&known, &socket, owner);
            return SilentServer { names, silence: Silence::Left(LazyCell::new(Box::new(text))) };
        }
        let error = match &error {
            BindError::NoAnswer { after, .. } => no_answer(&names, socket, *after),
            BindError::WrongUser { .. } => {
                expect::not_accepted(&shown(&names, socket), &error, self.command)
            }
            _ => on_one_line(error.into()),
        };
        SilentServer { names, silence: Silence::Failed(error) }
    }
}

/// The error on one line. Its text may have the path of a socket, which any user may have chosen.
fn on_one_line(error: CommandError) -> CommandError {
    CommandError::new(error.exit(), line(&error.to_string()))
}

/// The path of a socket on one line. Any user may have chosen it.
fn path_of(socket: &Path) -> String {
    line(&socket.display().to_string())
}

/// The names that lead to each socket.
fn by_socket(
    names: Vec<String>,
    mut find: impl FnMut(&str) -> Option<PathBuf>,
) -> BTreeMap<PathBuf, Vec<String>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for name in names {
        if let Some(socket) = find(&name) {
            found.entry(socket).or_default().push(name);
        }
    }
    found
}

/// Maximum number of names of one server that an error shows, and of ended servers that are noted.
const MOST_SHOWN: usize = 8;

/// `"greeter", "math"`, or the socket of a server that has no name.
fn shown(names: &[String], socket: &Path) -> String {
    if names.is_empty() {
        return format!("the server at {}", path_of(socket));
    }
    let (first, rest) = names.split_at(names.len().min(MOST_SHOWN));
    let first = first.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    if rest.is_empty() { first } else { format!("{first} and {} more", rest.len()) }
}

/// Says who can remove the socket of a server that has ended. `owner` is the socket's user.
pub fn left_behind(names: &[String], socket: &Path, owner: u32) -> CommandError {
    let owner = upcall_os::user::name_of(owner).unwrap_or_else(|| owner.to_string());
    let named = match names {
        [] => String::new(),
        names => format!(" ({})", shown(names, socket)),
    };
    let folder = socket.parent().unwrap_or(Path::new("/")).display().to_string();
    let text = format!(
        "a server of user `{owner}` has ended and left its socket {}{named}. That user, root or \
         the owner of the folder can remove it: let one of them run `UPCALL_DIR={} upcall ls`",
        path_of(socket),
        quoted(&folder)
    );
    CommandError::new(Exit::NotFound, text)
}

/// The error for a server that did not answer within a time.
pub fn no_answer(names: &[String], socket: &Path, after: Duration) -> CommandError {
    let shown = shown(names, socket);
    let process = process_at(socket);
    let text = match process.map(|pid| (pid, stop_of(pid))) {
        None => format!(
            "{shown}: the server did not answer within {after:?}: it may be stopped or overloaded"
        ),
        Some((pid, Some(stop))) => format!("{shown}: process {pid} {}", stop.explain(pid)),
        Some((pid, None)) => format!(
            "{shown}: process {pid} did not answer within {after:?}: it may be overloaded, or \
             hang: see `upcall threads {pid}`"
        ),
    };
    CommandError::new(Exit::Deadline, text)
}

/// The process that listens at a socket. Asks the kernel, so a stopped server is found as well.
/// `None` if the process has ended, or has no number here.
pub fn process_at(socket: &Path) -> Option<u32> {
    let process = match Connection::connect(socket) {
        Ok(connection) => connection.peer().ok().map(|peer| peer.pid),
        // A stopped server with a full queue takes no connection; the number in the path is a hint.
        // After any other error that number may be another process's.
        Err(error) if error.kind() == ErrorKind::WouldBlock => directory::process_of(socket),
        Err(_) => None,
    };
    process.filter(|pid| *pid != 0 && Path::new("/proc").join(pid.to_string()).exists())
}

/// What stops a process.
#[derive(Debug, PartialEq, Eq)]
enum StoppedBy {
    Signal,
    /// The process that traces it, or 0 if that one has no number here.
    Debugger(u32),
}

impl StoppedBy {
    /// What is said of process `pid`.
    fn explain(&self, pid: u32) -> String {
        let by = match self {
            Self::Signal => {
                return format!(
                    "does not answer, because it is stopped: `kill -CONT {pid}` continues it"
                );
            }
            Self::Debugger(0) => "a debugger".into(),
            Self::Debugger(tracer) => format!("a debugger, process {tracer},"),
        };
        format!("does not answer, because {by} holds it: continue it in the debugger")
    }
}

/// What stops a process; `None` if nothing does.
fn stop_of(pid: u32) -> Option<StoppedBy> {
    match status_field(pid, "State:")?.chars().next()? {
        'T' => Some(StoppedBy::Signal),
        // SIGCONT does not end this state.
        't' => {
            let number = |text: String| text.parse().ok();
            // The tracer is a kernel thread, which may not be the first one of its process.
            let tracer = status_field(pid, "TracerPid:").and_then(number);
            let tracer = tracer.and_then(|tid| status_field(tid, "Tgid:")).and_then(number);
            Some(StoppedBy::Debugger(tracer.unwrap_or(0)))
        }
        _ => None,
    }
}

/// A field of `/proc/PID/status`. `name` is its name with the colon.
fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    // The kernel escapes line ends in the program's name, which is another field.
    let status = String::from_utf8_lossy(&status);
    let field = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(field.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::killed::Killed;
    use std::process::Command;
    use std::sync::Barrier;

    /// Each question waits for the others, so it would hang if they were asked in turn.
    #[test]
    fn servers_are_asked_at_the_same_time_and_answers_keep_their_order() {
        let sockets: Vec<PathBuf> = (0..AT_ONCE).map(|at| at.to_string().into()).collect();
        let all = Barrier::new(sockets.len());
        let answers = ask_all(&sockets, |socket| {
            all.wait();
            socket.to_path_buf()
        });
        assert_eq!(answers, sockets);
    }

    /// The first question is never answered, and keeps no answer of another back.
    #[test]
    fn a_server_that_does_not_answer_is_left_out() {
        let questions = (0..200).map(|at| at.to_string()).collect();
        let ask = |question: &str| match question {
            "0" => loop {
                std::thread::park();
            },
            other => other.to_owned(),
        };
        let answers = ask_within(Duration::from_secs(1), questions, ask);
        assert_eq!((answers.len(), &answers[0]), (200, &None));
        // Those that the machine had time for are in their places.
        let came =
            answers.iter().enumerate().filter_map(|(at, answer)| Some((at, answer.as_ref()?)));
        assert!(came.into_iter().all(|(at, answer)| *answer == at.to_string()));
    }

    #[test]
    fn a_server_without_a_name_is_shown_by_its_socket() {
        let socket = Path::new("/run/upcall/domain.1.0.a");
        assert_eq!(shown(&[], socket), "the server at /run/upcall/domain.1.0.a");
        assert_eq!(shown(&["a".into(), "b".into()], socket), "\"a\", \"b\"");
    }

    #[test]
    fn the_name_of_a_socket_begins_no_line() {
        let socket = Path::new("/run/upcall/domain.1.0.a\nupcall: forged");
        let reason = socket.display().to_string();
        let denied = on_one_line(BindError::Denied { name: "a".into(), reason }.into());
        assert_eq!(denied.exit(), Exit::Refused);
        let after = Duration::from_secs(5);
        for error in [left_behind(&[], socket, 0), no_answer(&[], socket, after), denied] {
            let text = error.to_string();
            assert!(text.contains("domain.1.0.a upcall: forged") && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn a_bounded_number_of_ended_servers_is_noted() {
        let notes = |all: usize| {
            let made = std::rc::Rc::new(std::cell::Cell::new(0));
            let left = |at: usize| -> LeftBehind {
                let made = std::rc::Rc::clone(&made);
                LazyCell::new(Box::new(move || {
                    made.set(made.get() + 1);
                    CommandError::failed(at)
                }))
            };
            let left: Vec<LeftBehind> = (0..all).map(left).collect();
            let notes = notes_of(&left);
            (notes.len(), notes.last().cloned().unwrap_or_default(), made.get())
        };
        assert_eq!(notes(0), (0, "".into(), 0));
        assert_eq!(notes(8), (8, "7".into(), 8));
        assert_eq!(notes(9), (9, "1 more server of another user has ended".into(), 8));
        assert_eq!(notes(1000), (9, "992 more servers of other users have ended".into(), 8));
    }

    #[test]
    fn each_name_is_looked_up_once() {
        let name = |at: usize| format!("n{at:02}");
        let mut looked_up = 0;
        let found = by_socket((0..30).map(name).collect(), |name| {
            looked_up += 1;
            (name != "n03").then(|| if name < "n10" { "/a".into() } else { "/b".into() })
        });
        let counts = [Path::new("/a"), Path::new("/b")].map(|socket| found[socket].len());
        assert_eq!((looked_up, counts), (30, [9, 20]));
        let text = shown(&found[Path::new("/b")], Path::new("/b"));
        assert!(text.starts_with("\"n10\", ") && text.ends_with("\"n17\" and 12 more"), "{text}");
    }

    #[test]
    fn a_debugger_is_told_apart_from_a_signal() {
        let own = std::process::id();
        assert_eq!(stop_of(own), None);
        let child = Killed(Command::new("sleep").arg("600").spawn().expect("sleep"));
        let pid = child.0.id();
        match upcall_os::trace::HeldThread::seize(pid) {
            Err(error) => eprintln!("skipped: the kernel permits no tracing: {error}"),
            Ok(held) => {
                let start = std::time::Instant::now();
                while stop_of(pid).is_none() {
                    assert!(start.elapsed() < Duration::from_secs(60), "it is not held");
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(stop_of(pid), Some(StoppedBy::Debugger(own)));
                let text = stop_of(pid).expect("it is held").explain(pid);
                let by = format!("because a debugger, process {own}, holds it");
                assert!(text.contains(&by) && !text.contains("kill"), "{text}");
                drop(held);
            }
        }
        drop(child);
        assert!(StoppedBy::Signal.explain(7).contains("`kill -CONT 7`"));
    }
}
