//! Names that a user types: the process behind one, and what to type in place of a wrong one.

use crate::exit::{CommandError, Exit};
use crate::expect;
use crate::output::quoted;
use crate::servers;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use upcall::BindError;
use upcall::directory;

/// The known name that is most like the typed one, if one is like it at all.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let most = (typed.chars().count() / 3).max(1);
    let distance = |name: &str| {
        let name = name.to_lowercase();
        // A beginning, such as `greet` of `greeter`, is like the whole.
        let begins = typed.len() > 2 && name.starts_with(&typed);
        if begins { 1 } else { strsim::damerau_levenshtein(&typed, &name) }
    };
    let known = known.into_iter().map(|name| (distance(name), name));
    known.filter(|(distance, _)| *distance <= most).min().map(|(_, name)| name)
}

/// `. Did you mean "greeter"?`, or nothing.
pub fn did_you_mean<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(typed, known).map(|name| format!(". Did you mean {name:?}?")).unwrap_or_default()
}

/// The error of a bind, with the names and folders in which the server may be.
pub fn advise(error: BindError) -> CommandError {
    match &error {
        BindError::NoSuchName { name, folder } => {
            CommandError::new(Exit::NotFound, no_such_name(name, folder))
        }
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
            Ok(socket) => servers::no_answer(std::slice::from_ref(name), &socket, *after),
            Err(_) => error.into(),
        },
        BindError::Denied { name, .. } => match directory::find(name) {
            Ok(socket) if directory::has_ended(&socket) => {
                CommandError::new(Exit::NotFound, left_behind(name, &socket))
            }
            _ => error.into(),
        },
        _ => error.into(),
    }
}

/// Says what to do with the name of a server that has ended, and that this user cannot remove.
fn left_behind(name: &str, socket: &Path) -> String {
    let entry = socket.with_file_name(name);
    format!(
        "the server of {name:?} has ended, and its name is left: have {} removed by its user or \
         root, or start the server again as that user",
        entry.display()
    )
}

/// Says where a name is instead, or which name is like it.
fn no_such_name(name: &str, folder: &Path) -> String {
    let here = directory::names_in(folder);
    // A folder of another user is not recommended: that user chooses what the name stands for.
    let elsewhere = directory::folders().into_iter().find(|other| {
        other != folder
            && is_trusted(other)
            && directory::names_in(other).iter().any(|found| found == name)
    });
    let missing = if folder.exists() {
        format!("no server exports {name:?} in {}", folder.display())
    } else {
        format!("no server exports {name:?}: the folder {} does not exist", folder.display())
    };
    if let Some(other) = elsewhere {
        return format!(
            "{missing}. It is exported in another folder: set UPCALL_DIR={}",
            quoted(&other.display().to_string())
        );
    }
    match did_you_mean(name, here.iter().map(String::as_str)) {
        none if none.is_empty() => {
            format!("{missing}. Start its server, or see `upcall ls --all` for what runs")
        }
        advice => missing + &advice,
    }
}

/// Returns `true` if a folder belongs to this user or to root.
fn is_trusted(folder: &Path) -> bool {
    let owner = std::fs::metadata(folder).map(|found| found.uid());
    owner.is_ok_and(|owner| owner == 0 || owner == upcall_os::socket::own_user())
}

/// The process that exports a name. Asks the kernel, so a stopped server is found as well.
///
/// # Errors
/// No server has the name, or its process has no number here.
pub fn process_of(name: &str) -> Result<u32, CommandError> {
    let socket = directory::find(name).map_err(|error| advise(error.into()))?;
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
pub fn seconds(text: &str) -> Result<Duration, String> {
    let given = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let given = given.filter(|given| *given <= MOST_SECONDS);
    given.ok_or_else(|| "give seconds, such as 2 or 0.5".into())
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
    fn a_typo_finds_the_name() {
        let known = ["files", "greeter", "math", "a"];
        let found = |typed| nearest(typed, known);
        for (typed, name) in
            [("greter", "greeter"), ("greet", "greeter"), ("maht", "math"), ("Files", "files")]
        {
            assert_eq!(found(typed), Some(name), "{typed}");
        }
        for typed in ["", "calendar", "xyz"] {
            assert!(found(typed).is_none_or(|name| name == "a"), "{typed}");
        }
        assert_eq!(did_you_mean("maht", known), ". Did you mean \"math\"?");
        assert_eq!(did_you_mean("calendar", known), "");
    }

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["-1", "1e19", "inf", "nan", "two", ""] {
            assert!(seconds(text).is_err() && some_seconds(text).is_err(), "{text}");
        }
        assert!(seconds("0").is_ok() && some_seconds("0").is_err());
    }

    #[test]
    fn a_folder_that_does_not_exist_is_named() {
        let text = no_such_name("math-of-nowhere", Path::new("/no/such/folder"));
        assert!(text.contains("the folder /no/such/folder does not exist"), "{text}");
        assert!(text.contains("upcall ls --all"), "{text}");
    }
}
