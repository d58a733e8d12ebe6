//! One short life of a client, with every step of binding and calling in it.

use crate::interfaces::trial::{INTERFACE, Trial};
use crate::outcome::{Outcome, same};
use std::error::Error;
use std::sync::LazyLock;
use std::time::Duration;
use upcall::stub::{Binding, Interface};
use upcall::{BindError, CallError, Pacing};

/// Binds to `name`, calls with values of every size, takes an object and drops it, abandons a call
/// at its deadline, and unbinds. It does so on the main thread, or on a user-level thread.
pub(crate) fn scenario(name: &str, user_level: bool) -> Outcome {
    if !user_level {
        return live(name);
    }
    let name = name.to_string();
    let outcome = upcall::thread::processors(1, Pacing::Adaptive)?.run(|| {
        let thread =
            upcall::thread::Builder::new().spawn(move || live(&name).map_err(Telling::from));
        thread.map_or_else(
            |error| Err(Telling::Kernel(error)),
            |thread| thread.join().unwrap_or(Err(Telling::Panicked)),
        )
    })?;
    match outcome {
        Ok(words) => Ok(words),
        Err(Telling::Call(error)) => Err(error.into()),
        Err(Telling::Bind(error)) => Err(error),
        Err(Telling::Kernel(error)) => Err(error.into()),
        Err(Telling::Text(text)) => Err(text.into()),
        Err(Telling::Panicked) => Err("a thread panicked".into()),
    }
}

/// An error that passes between threads.
enum Telling {
    Call(CallError),
    Bind(Box<BindError>),
    Kernel(std::io::Error),
    Text(String),
    Panicked,
}

impl From<Box<dyn Error>> for Telling {
    fn from(error: Box<dyn Error>) -> Self {
        match error.downcast::<CallError>().map_err(|error| error.downcast::<BindError>()) {
            Ok(error) => Self::Call(*error),
            Err(Ok(error)) => Self::Bind(error),
            Err(Err(error)) => Self::Text(error.to_string()),
        }
    }
}

fn with_other_limits() -> &'static Interface {
    static OTHER: LazyLock<Interface> = LazyLock::new(|| {
        let mut other = INTERFACE.clone();
        other
            .procedures
            .to_mut()
            .iter_mut()
            .for_each(|procedure| (procedure.calls, procedure.args.tail) = (1, 0));
        other
    });
    &OTHER
}

fn live(name: &str) -> Outcome {
    // Binds like a program compiled with other limits, which has to bring other A-stacks than it
    // guessed.
    let others = Binding::bind(name, with_other_limits())?;
    let trial = Trial::bind(name)?;
    drop(others);
    trial.null()?;
    same(trial.add(2, 3)?, 5)?;
    let text = "text".repeat(100);
    same(trial.echo(&text)?, text)?;
    same(trial.length(&vec![1; 300_000])?, 300_000)?;
    same(trial.make(200_000, 7)?, vec![7; 200_000])?;
    // One object is dropped at once, the other at the end.
    let kept = trial.open(8)?;
    same(trial.open(7)?.number()?, 7)?;
    // If this process does not run for a while, the nap ends before its caller sees the deadline.
    let mut length = 25;
    loop {
        match trial.with_deadline(Some(Duration::from_millis(5))).nap(length) {
            Err(CallError::Aborted { sent: true }) => break,
            // The call was not sent before its deadline.
            Err(CallError::Aborted { sent: false }) => {}
            Err(error) => return Err(error.into()),
            Ok(()) if length > 10_000 => return Err("a nap did not end at its deadline".into()),
            Ok(()) => length *= 4,
        }
    }
    // The server and its callers fall asleep now and then.
    std::thread::sleep(Duration::from_millis(2));
    trial.nap(30)?;
    drop(kept);
    Ok(Vec::new())
}
