//! A process that has an object, at home or elsewhere, and that a test controls: it reads one
//! command a line and writes one reply a line. The object has two words that must be equal, and
//! each operation increments both; in between the object is torn.

use crate::outcome::{Outcome, done, say, show};
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall::policy;
use upcall_home::{
    Background, DataError, Grant, Handle, HomeBuilder, Homed, List, Operation, Operations, Place,
    Torn, Verdict,
};
use upcall_os::socket::Peer;
use upcall_shm::span::WritableSpan;

const SHAPE: u64 = 1;

/// Offsets of the two words, and of the number of repairs by the home.
const FIRST: usize = 0;
const SECOND: usize = 64;
const REPAIRED: usize = 128;

fn word(room: WritableSpan<'_>, at: usize) -> u64 {
    room.u64(at).unwrap_or(u64::MAX)
}

/// Creates or finds the object, reports that, and obeys standard input until it ends.
pub fn run(name: &str, options: &[&str]) {
    if let ["serve" | "ask"] = options {
        return invoke(name, options == ["serve"]);
    }
    if let ["endure", way] = options {
        return endure_as_told(name, way == &"user-level");
    }
    if let ["list"] = options {
        return keep_list(name);
    }
    if let ["scribble", shape] = options {
        return say(scribble(name, shape));
    }
    let handle = match options {
        ["make", options @ ..] => make(name, options),
        ["find"] => Handle::find(name, SHAPE).map_err(Into::into),
        ["find", users] => {
            let users: Vec<u32> = users.split(',').flat_map(str::parse).collect();
            Handle::find_expecting(name, SHAPE, Arc::new(policy::users(users))).map_err(Into::into)
        }
        _ => Err(format!("unknown options {options:?}").into()),
    };
    let mut handle = match handle {
        Ok(handle) => handle,
        Err(error) => return say(Err(error)),
    };
    say(done());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["leave"] => return,
            ["patience", ms] => {
                handle = handle.patience(ms.parse().ok().map(Duration::from_millis));
                say(done());
            }
            _ => say(obey(&handle, &words)),
        }
    }
}

fn make(name: &str, options: &[&str]) -> Result<Handle, Box<dyn std::error::Error>> {
    let [poisons, sealed] = ["poison", "sealed"].map(|option| options.contains(&option));
    let repair = move |room: WritableSpan<'_>, _: Torn| {
        if poisons {
            return Verdict::Poison;
        }
        // The operation that was begun is completed.
        room.put_u64(SECOND, word(room, FIRST));
        room.put_u64(REPAIRED, word(room, REPAIRED) + 1);
        Verdict::Keep
    };
    let creating = HomeBuilder::new(name, 4096).repair(repair);
    let creating = if sealed { creating.only_home_writes() } else { creating };
    // A process with this variable in its environment may only read.
    let reads_only = |peer: &Peer| {
        let environment = std::fs::read(format!("/proc/{}/environ", peer.pid))
            .map_err(|error| error.to_string())?;
        let reads = environment.split(|byte| *byte == 0).any(|word| word == b"ONLY_READS=1");
        Ok(if reads { Grant::Read } else { Grant::ReadWrite })
    };
    let mut creating =
        if options.contains(&"own-user") { creating } else { creating.policy(reads_only) };
    for option in options {
        creating = match option.split_once('=') {
            Some(("mode", mode)) => creating.mode(u32::from_str_radix(mode, 8)?),
            Some(("group", group)) => match group.parse::<u32>() {
                Ok(number) => creating.group(number),
                Err(_) => creating.group(group),
            },
            Some(("admit", users)) => {
                let accepts = policy::users(users.split(',').flat_map(str::parse));
                creating.policy(move |peer| accepts(peer).map(|()| Grant::ReadWrite))
            }
            _ => creating,
        };
    }
    Ok(creating.create(SHAPE, |_| ())?)
}

fn obey(handle: &Handle, words: &[&str]) -> Outcome {
    match words {
        // Performs this many operations.
        ["count", times] => {
            for _ in 0..times.parse()? {
                handle.access(count)??;
            }
            done()
        }
        // An operation that ends in the middle, by a signal that cannot be handled.
        ["die"] => {
            handle.access(|room| {
                room.put_u64(FIRST, word(room, FIRST) + 1);
                let _ = rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::KILL,
                );
            })?;
            done()
        }
        // An operation that reports its begin, and lasts until the file `path` exists.
        ["hold", path] => {
            handle.access(|_| {
                say(done());
                while !Path::new(path).exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            })?;
            done()
        }
        // A read without an operation.
        ["look"] => {
            show(handle.read(|span| {
                [FIRST, SECOND, REPAIRED].map(|at| span.u64(at).unwrap_or(u64::MAX))
            })?)
        }
        // Reads this many times, and checks that each read sees a single state.
        ["looks", times] => {
            for _ in 0..times.parse()? {
                let [first, second] = handle.read(|span| [FIRST, SECOND].map(|at| span.u64(at)))?;
                if first != second {
                    return Err(format!("{first:?} and {second:?}").into());
                }
            }
            done()
        }
        // Reports whether its memory can be written, as the kernel has it.
        ["mapped"] => {
            let maps = std::fs::read_to_string("/proc/self/maps")?;
            let kinds = maps
                .lines()
                .filter(|line| line.contains("upcall-object-"))
                .filter_map(|line| line.split(' ').nth(1));
            Ok(kinds.map(String::from).collect())
        }
        ["read"] => show(handle.access(|room| [FIRST, SECOND, REPAIRED].map(|at| word(room, at)))?),
        _ => Err(format!("unknown command {words:?}").into()),
    }
}

fn count(room: WritableSpan<'_>) -> Result<(), String> {
    let (first, second) = (word(room, FIRST), word(room, SECOND));
    if first != second {
        return Err(format!("torn: {first} and {second}"));
    }
    room.put_u64(FIRST, first + 1);
    std::hint::black_box(&room);
    room.put_u64(SECOND, second + 1);
    Ok(())
}

/// Adds to the number.
struct Add;

impl Operation for Add {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "add";

    fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
        number.update(|number| number.wrapping_add(more))
    }
}

/// Creates a list in a large room, and reports its shape.
fn keep_list(name: &str) {
    let making = Homed::<List<u64>>::create(name).room(16 << 30).repair(|_, _| Verdict::Keep);
    let list =
        match making.with(|list| (0..3).try_for_each(|number| list.push_back(number).map(drop))) {
            Ok(list) => list.patience(Some(Duration::from_secs(60))),
            Err(error) => return say(Err(error.into())),
        };
    let reference = list.reference().to_string();
    say(Ok(reference.rsplit('@').next().map(String::from).into_iter().collect()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        say(match &line[..] {
            "leave" => return,
            "length" => {
                list.access(|list| list.len()).map_err(Into::into).and_then(|length| show([length]))
            }
            other => Err(format!("unknown command {other:?}").into()),
        });
    }
}

/// Makes the second element of that list its own successor, and is killed in the middle of the
/// operation.
fn scribble(name: &str, shape: &str) -> Outcome {
    let handle = Handle::find(name, u64::from_str_radix(shape, 16)?)?;
    handle.access(|room| {
        let second = word(room, word(room, 0) as usize);
        room.put_u64(second as usize, second);
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    })?;
    done()
}

/// Obeys commands on a number, whose home is this process if it serves.
fn invoke(name: &str, serves: bool) {
    let (number, _served) = match found(name, serves) {
        Ok(found) => found,
        Err(error) => return say(Err(error)),
    };
    say(done());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        say(match words[..] {
            ["leave"] => return,
            ["add", more] => more
                .parse()
                .map_err(Into::into)
                .and_then(|more| show([number.urgent::<Add>(more)?])),
            ["number"] => number
                .read(|number| number.get())
                .map_err(Into::into)
                .and_then(|number| show([number])),
            _ => Err(format!("unknown command {words:?}").into()),
        });
    }
}

fn found(
    name: &str,
    serves: bool,
) -> Result<(Homed<u64>, Option<Background>), Box<dyn std::error::Error>> {
    if !serves {
        return Ok((Homed::find(name)?, None));
    }
    let home = Homed::<u64>::create(name).repair(|_, _| Verdict::Keep).with(|_| Ok(()))?;
    let served = home.serve_in_background(Operations::new().operation::<Add>())?;
    Ok((home, Some(served)))
}

/// Finds the number again and again for `time`, and uses it in each way. Values and errors do not
/// matter. Reports how many times it was found, how many operations were done, and how many failed.
fn endure(name: &str, time: Duration) -> Outcome {
    /// Longest wait of an operation for others.
    const PATIENCE: Duration = Duration::from_millis(20);
    let end = Instant::now() + time;
    let (mut found, mut done, mut failed) = (0, 0, 0);
    while Instant::now() < end {
        let Ok(number) = Homed::<u64>::find(name) else {
            failed += 1;
            continue;
        };
        found += 1;
        let number = number.patience(Some(PATIENCE));
        let failed_before = failed;
        for turn in 0..30 {
            let is_done = match turn % 3 {
                0 => number.urgent::<Add>(1).is_ok(),
                1 => number.access(|number| number.update(|number| number.wrapping_add(1))).is_ok(),
                _ => number.read(|number| number.get()).is_ok(),
            };
            *if is_done { &mut done } else { &mut failed } += 1_u64;
            if failed - failed_before > 3 {
                break;
            }
        }
    }
    show([found, done, failed])
}

/// Runs `work` on a user-level thread, or on this thread.
fn run_on<T: Send + 'static>(user_level: bool, work: impl FnOnce() -> T + Send + 'static) -> T {
    if !user_level {
        return work();
    }
    let processors = upcall::thread::processors(1, upcall::Pacing::Sleep)
        .unwrap_or_else(|error| panic!("{error}"));
    processors.run(work).unwrap_or_else(|error| panic!("{error}"))
}

fn endure_as_told(name: &str, user_level: bool) {
    say(done());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (name, words) =
            (name.to_string(), line.split_whitespace().map(String::from).collect::<Vec<_>>());
        let work = move || -> Result<Vec<String>, String> {
            let outcome = match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["for", ms] => ms
                    .parse()
                    .map_err(Into::into)
                    .and_then(|ms| endure(&name, Duration::from_millis(ms))),
                ["add-at", other, more] => add_at(other, more),
                words => Err(format!("unknown command {words:?}").into()),
            };
            outcome.map_err(|error| error.to_string())
        };
        say(run_on(user_level, work).map_err(Into::into));
    }
}

fn add_at(name: &str, more: &str) -> Outcome {
    show([Homed::<u64>::find(name)?.urgent::<Add>(more.parse()?)?])
}
