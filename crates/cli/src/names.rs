//! Names that a user types: the process behind one, and what to type in place of a wrong one.

use crate::exit::{CommandError, Exit};
use crate::expect;
use crate::servers;
use std::os::unix::fs::MetadataExt;
use std::slice::from_ref;
use std::time::Duration;
use upcall::BindError;
use upcall::directory;
pub use upcall_directory::nearby::did_you_mean;

/// The error of a bind, with what the library does not look for: the names that a server on another
/// machine exports, and the state of a server here.
pub fn advise(error: BindError) -> CommandError {
    match &error {
        BindError::NotThere { name, server } => {
            let exports = directory::list_far(&format!("tcp://{server}")).unwrap_or_default();
            let there = exports.iter().map(|exported| exported.name.as_str());
            let advice = match did_you_mean(name, there) {
                none if none.is_empty() => format!(": see `upcall ls tcp://{server}`"),
                advice => advice,
            };
            CommandError::new(
                Exit::NotFound,
                format_args!("the server at {server} does not export {name:?}{advice}"),
            )
        }
        BindError::WrongUser { name, .. } => {
            expect::not_accepted(&format!("{name:?}"), &error, "call")
        }
        BindError::NoAnswer { name, after } => match directory::find(name) {
            Ok(socket) => servers::no_answer(from_ref(name), &socket, *after),
            Err(_) => error.into(),
        },
        BindError::Denied { name, .. } => match directory::find(name) {
            Ok(socket) if directory::has_ended(&socket) => match socket.symlink_metadata() {
                Ok(found) => servers::left_behind(from_ref(name), &socket, found.uid()),
                // It has just been removed.
                Err(_) => error.into(),
            },
            _ => error.into(),
        },
        _ => error.into(),
    }
}

/// The process that exports a name. Asks the kernel, so a stopped server is found as well.
///
/// # Errors
/// No server has the name, or its process has no number here.
pub fn process_of(name: &str) -> Result<u32, CommandError> {
    let socket = directory::find(name).map_err(|error| BindError::from(error).with_hint())?;
    servers::process_at(&socket).ok_or_else(|| {
        let text = format!(
            "the server of {name:?} has ended, or runs in a PID namespace that is not visible \
             here: see `upcall ls`"
        );
        CommandError::new(Exit::NotFound, text)
    })
}

/// Maximum time that an option may give, in seconds: about 136 years, which no clock overflows.
const MOST_SECONDS: Duration = Duration::from_secs(1 << 32);

/// Reads a time in seconds from the command line.
fn seconds(text: &str) -> Result<Duration, String> {
    let given = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let given = given.filter(|given| *given <= MOST_SECONDS);
    given.ok_or_else(|| "give seconds, such as 2 or 0.5".into())
}

/// Reads a deadline, in seconds. Zero is refused: the deadline would have passed before the call.
pub fn deadline(text: &str) -> Result<Duration, String> {
    some_seconds(text).map_err(|why| {
        format!(
            "a deadline is the time after which the command gives up: {why}, above 0 and at most \
             {}; without --deadline a call has none",
            MOST_SECONDS.as_secs()
        )
    })
}

/// Reads a time in seconds that is not zero.
pub fn some_seconds(text: &str) -> Result<Duration, String> {
    seconds(text).and_then(|given| match given.is_zero() {
        true => Err("give seconds, such as 2 or 0.5".into()),
        false => Ok(given),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["-1", "1e19", "inf", "nan", "two", ""] {
            assert!(seconds(text).is_err() && some_seconds(text).is_err(), "{text}");
        }
        assert!(seconds("0").is_ok() && some_seconds("0").is_err());
        assert_eq!(deadline("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "soon", "1e19"] {
            let error = deadline(text).unwrap_err();
            let said = "gives up: give seconds, such as 2 or 0.5, above 0 and at most 4294967296;";
            assert!(error.contains(said), "{error}");
        }
    }
}
