//! Processes that use an object over links, under a test's control: its home, which listens, and
//! guests. Each reads one command a line and writes one reply a line. The object is a number.

use crate::outcome::{Outcome, done, say, show};
use std::io::BufRead;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex};
use std::time::Duration;
use upcall_home::{DataError, Homed, Operation, Operations, Place, Procedure, Reference, Verdict};

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

/// Panics.
struct Fail;

impl Operation for Fail {
    type Of = u64;
    type Args<'a> = ();
    type Reply = ();
    const NAME: &'static str = "fail";

    fn run(_: Place<'_, u64>, (): ()) -> Result<(), DataError> {
        panic!("as it was asked for")
    }
}

/// Number of procedures that have begun to hold, and whether they may end.
static HELD: Mutex<(u64, bool)> = Mutex::new((0, false));
static CHANGED: Condvar = Condvar::new();

/// Waits for the command `release` at its home, and then adds to the number.
struct Hold;

impl Procedure for Hold {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "hold";

    fn run(on: &Homed<u64>, more: u64) -> Result<u64, String> {
        let mut held = HELD.lock().map_err(|error| error.to_string())?;
        held.0 += 1;
        drop(CHANGED.wait_while(held, |held| !held.1).map_err(|error| error.to_string())?);
        on.perform::<Add>(more).map_err(|error| error.to_string())
    }
}

/// Invokes itself at the first of two homes, which does so at the second one, back and forth.
struct Bounce;

impl Procedure for Bounce {
    type Of = u64;
    type Args<'a> = (u64, &'a str, &'a str);
    type Reply = u64;
    const NAME: &'static str = "bounce";

    fn run(on: &Homed<u64>, (left, next, other): (u64, &str, &str)) -> Result<u64, String> {
        on.perform::<Add>(1).map_err(|error| error.to_string())?;
        if left == 0 {
            return Ok(0);
        }
        let next_home = Homed::<u64>::find(next).map_err(|error| error.to_string())?;
        let args = (left - 1, other, next);
        Ok(next_home.invoke::<Bounce>(args).map_err(|error| error.to_string())? + 1)
    }
}

/// A guest's request to a home by hand.
#[derive(Debug, serde::Serialize)]
pub enum Asking<'a> {
    /// Asks for an object.
    Open {
        /// The version of the protocol.
        version: u32,
        /// The object.
        name: &'a str,
        /// Its shape.
        shape: u64,
    },
    /// Asks for a binding.
    Bind {
        /// The version of the protocol.
        version: u32,
        /// The object.
        name: &'a str,
        /// Its shape.
        shape: u64,
    },
    /// Gives the binding back.
    Unbind,
}

/// A home's answer.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Answering {
    /// The object may be invoked.
    Found(Option<u64>),
    /// The operations, and whether they may block (1) or not (0).
    Bound(Vec<(String, u8)>),
    /// There is no such object.
    Absent,
    /// The home refuses.
    No(String),
}

/// The version of the protocol of objects.
pub const VERSION: u32 = 1;

/// The number in the header of a request to a home.
pub const OBJECTS: u16 = 0x0b1e;

/// Makes an object whose home listens at `address`, and obeys standard input until it ends.
pub fn home(name: &str, address: &str) {
    let making = Homed::<u64>::create(name).listen(address).repair(|_, _| Verdict::Keep);
    let home = match making.with(|_| Ok(())) {
        Ok(home) => home,
        Err(error) => return say(Err(error.into())),
    };
    let at = home.addresses().first().map(|at| format!("tcp://{at}/{name}"));
    let (send, commands) = channel();
    let serves = std::thread::spawn(move || serve(&home, at, &commands));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line == "leave" || !pass_on(&send, line) {
            break;
        }
    }
    drop(send);
    let _ = serves.join();
}

/// Obeys a command, or passes it to the serving thread. Returns `false` if that has ended.
fn pass_on(send: &Sender<String>, line: String) -> bool {
    match (&line[..], HELD.lock()) {
        ("begun", Ok(held)) => say(show([held.0])),
        ("release", Ok(mut held)) => {
            held.1 = true;
            CHANGED.notify_all();
            say(done());
        }
        _ => return send.send(line).is_ok(),
    }
    true
}

/// Serves the object, reports where it is found, and obeys commands.
fn serve(home: &Homed<u64>, at: Option<String>, commands: &Receiver<String>) {
    let operations = Operations::new().operation::<Add>().operation::<Fail>();
    let serving = match home.serve(operations.procedure::<Hold>().procedure::<Bounce>()) {
        Ok(serving) => serving,
        Err(error) => return say(Err(error.into())),
    };
    say(Ok(at.into_iter().collect()));
    loop {
        serving.poll();
        serving.wait(Some(Duration::from_millis(1)));
        match commands.try_recv() {
            Ok(line) => say(obey_at_home(home, &line.split_whitespace().collect::<Vec<_>>())),
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
        }
    }
}

fn obey_at_home(home: &Homed<u64>, words: &[&str]) -> Outcome {
    match words {
        ["number"] => show([home.read(|number| number.get())?]),
        ["reference"] => Ok(vec![home.reference().to_string()]),
        ["shape"] => {
            let reference = home.reference().to_string();
            let numbers = reference.rsplit('@').next().ok_or("a shape")?;
            let shape = numbers.split('-').next().unwrap_or(numbers);
            show([u64::from_str_radix(shape, 16)?])
        }
        // Invokes another home that many times, whose thread may do the same here.
        ["mutual", other, times] => {
            let other = Homed::<u64>::find(other)?;
            for _ in 0..times.parse::<u64>()? {
                other.urgent::<Add>(1)?;
            }
            done()
        }
        _ => Err(format!("unknown command {words:?}").into()),
    }
}

/// Finds the object at this address by the command `find`, and obeys standard input until it ends.
/// `lost` is the time after which the home is lost, in milliseconds.
pub fn guest(at: &str, lost: &str) {
    let mut number: Option<Homed<u64>> = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["leave"] => return,
            ["find"] => say(find(at, lost).map(|found| {
                number = Some(found);
                Vec::new()
            })),
            // Finds an object by a reference to it.
            ["refer", text] => say(refer(text).map(|found| {
                number = Some(found);
                Vec::new()
            })),
            ["patience", ms] => {
                let patience = ms.parse().ok().map(Duration::from_millis);
                number = number.map(|number| number.patience(patience));
                say(done());
            }
            _ => say(match &number {
                Some(number) => obey(number, &words),
                None => Err("nothing is found yet".into()),
            }),
        }
    }
}

fn find(at: &str, lost: &str) -> Result<Homed<u64>, Box<dyn std::error::Error>> {
    let lost = Duration::from_millis(lost.parse()?);
    Ok(Homed::<u64>::expect(|_| Ok(())).lost_after(lost).find(at)?)
}

fn refer(text: &str) -> Result<Homed<u64>, Box<dyn std::error::Error>> {
    Ok(text.parse::<Reference<u64>>()?.find()?)
}

fn obey(number: &Homed<u64>, words: &[&str]) -> Outcome {
    match words {
        ["add", more] => show([number.urgent::<Add>(more.parse()?)?]),
        ["adds", times] => {
            let mut last = 0;
            for _ in 0..times.parse::<u64>()? {
                last = number.urgent::<Add>(1)?;
            }
            show([last])
        }
        ["auto", more] => show([number.auto::<Add>(more.parse()?)?]),
        ["hold", more] => show([number.invoke::<Hold>(more.parse()?)?]),
        ["bounce", left, next, other] => {
            show([number.invoke::<Bounce>((left.parse()?, next, other))?])
        }
        ["reference"] => Ok(vec![number.reference().to_string()]),
        ["fail"] => {
            number.urgent::<Fail>(())?;
            done()
        }
        ["access"] => show([number.access(|number| number.get())?]),
        _ => Err(format!("unknown command {words:?}").into()),
    }
}
