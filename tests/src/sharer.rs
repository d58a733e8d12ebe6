//! A process that has an object, at home or elsewhere, and does what it is told: one line in, one line out. The object has two words that are to be equal, and each operation counts both up; in between it is torn.

use crate::client::{Outcome, done, say, show};
use std::io::BufRead;
use std::time::Duration;
use upcall_home::{Creating, Handle, Torn, Verdict};
use upcall_shm::span::Room;

const SHAPE: u64 = 1;

/// The words, and how often the home has repaired them.
const FIRST: usize = 0;
const SECOND: usize = 64;
const REPAIRED: usize = 128;

fn word(room: Room<'_>, at: usize) -> u64 {
    room.u64(at).unwrap_or(u64::MAX)
}

/// Makes or finds the object, says so, and does what standard input says until it ends.
pub fn run(name: &str, options: &[&str]) {
    let handle = match options {
        ["make", options @ ..] => make(name, options.contains(&"poison")),
        ["find"] => Handle::find(name, SHAPE).map_err(Into::into),
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

fn make(name: &str, poisons: bool) -> Result<Handle, Box<dyn std::error::Error>> {
    let repair = move |room: Room<'_>, _: Torn| {
        if poisons {
            return Verdict::Poison;
        }
        // Whatever was begun is done.
        room.put_u64(SECOND, word(room, FIRST));
        room.put_u64(REPAIRED, word(room, REPAIRED) + 1);
        Verdict::Keep
    };
    Ok(Creating::new(name, 4096).repair(repair).create(SHAPE, |_| ())?)
}

fn obey(handle: &Handle, words: &[&str]) -> Outcome {
    match words {
        // So many operations.
        ["count", times] => {
            for _ in 0..times.parse()? {
                handle.access(count)??;
            }
            done()
        }
        // One that ends in the middle, by a signal that nobody handles.
        ["die"] => {
            handle.access(|room| {
                room.put_u64(FIRST, word(room, FIRST) + 1);
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            })?;
            done()
        }
        // One that takes so many milliseconds.
        ["hold", ms] => {
            let time = Duration::from_millis(ms.parse()?);
            handle.access(|_| std::thread::sleep(time))?;
            done()
        }
        ["read"] => show(handle.access(|room| [FIRST, SECOND, REPAIRED].map(|at| word(room, at)))?),
        _ => Err(format!("unknown command {words:?}").into()),
    }
}

fn count(room: Room<'_>) -> Result<(), String> {
    let (first, second) = (word(room, FIRST), word(room, SECOND));
    if first != second {
        return Err(format!("torn: {first} and {second}"));
    }
    room.put_u64(FIRST, first + 1);
    std::hint::black_box(&room);
    room.put_u64(SECOND, second + 1);
    Ok(())
}
