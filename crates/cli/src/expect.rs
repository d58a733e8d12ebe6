//! `--expect`: the users whose servers the command accepts, beside its own user and root.

use crate::exit::{CommandError, Exit};
use upcall::BindError;
use upcall::policy::{self, Policy};
use upcall_os::socket::own_user;

/// A user whose servers are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedUser {
    Any,
    Number(u32),
}

/// Reads a user from the command line.
fn expected_user(text: &str) -> Result<ExpectedUser, String> {
    match (text, text.parse()) {
        ("any", _) => Ok(ExpectedUser::Any),
        (_, Ok(number)) => Ok(ExpectedUser::Number(number)),
        _ => match upcall_os::user::number_of(text) {
            Ok(number) => Ok(ExpectedUser::Number(number)),
            Err(error) => Err(format!("{error}: give a user's name or number, or `any`")),
        },
    }
}

/// The option of commands that ask servers.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ExpectArgs {
    /// Accept servers of this user as well: a name, a number, or `any`. Can be repeated. Servers of
    /// one's own user and of root are always accepted.
    #[arg(long = "expect", value_name = "USER", value_parser = expected_user)]
    expected: Vec<ExpectedUser>,
}

impl ExpectArgs {
    /// Returns `true` if no user was given.
    pub fn is_default(&self) -> bool {
        self.expected.is_empty()
    }

    /// Returns `true` if servers of this user are accepted because the user was given.
    pub fn names(&self, user: Option<u32>) -> bool {
        let is_named = |user| self.expected.contains(&ExpectedUser::Number(user));
        self.expected.contains(&ExpectedUser::Any) || user.is_some_and(is_named)
    }

    /// Checks that the option goes with the server of a name or an address.
    ///
    /// # Errors
    /// A user was given, and the server is on another machine.
    pub fn check(&self, server: &str) -> Result<(), CommandError> {
        if self.is_default() || !server.contains("://") {
            return Ok(());
        }
        Err(CommandError::usage(
            "--expect is for servers on this machine: the user of a server on another machine is \
             not known",
        ))
    }

    /// Which servers the command accepts.
    pub fn policy(&self) -> Box<Policy> {
        if self.is_default() {
            return Box::new(policy::own_user_or_root());
        }
        if self.expected.contains(&ExpectedUser::Any) {
            return Box::new(policy::any_user());
        }
        let numbers = self.expected.iter().filter_map(|user| match user {
            ExpectedUser::Any => None,
            ExpectedUser::Number(number) => Some(*number),
        });
        Box::new(policy::users(numbers.chain([0, own_user()])))
    }
}

/// What `--expect` calls a user: the name or the number. `None` for a user without a number here,
/// whose servers only `--expect any` accepts.
///
/// # Blocks
/// As [`upcall_os::user::name_of`].
fn named(user: Option<u32>) -> Option<String> {
    let user = user.filter(|user| upcall_os::process::is_known_user(*user))?;
    Some(name_or_number(user, upcall_os::user::name_of(user)))
}

/// The user's name. It is the number if there is no name, or if [`expected_user`] reads the name as
/// another user.
fn name_or_number(user: u32, name: Option<String>) -> String {
    let name = name.filter(|name| name != "any" && name.parse::<u32>().is_err());
    name.unwrap_or_else(|| user.to_string())
}

/// What is said of a server that was not asked: its user, and the option that asks it.
///
/// # Blocks
/// As [`upcall_os::user::name_of`].
pub fn whose(user: Option<u32>) -> String {
    let named = named(user);
    let owner = named.as_deref().unwrap_or("a user without a number here");
    let option = named.as_deref().unwrap_or("any");
    format!("belongs to {owner}: `--expect {option}` asks it")
}

/// The error for a server whose user `command` does not accept. `server` says which it is.
pub fn not_accepted(server: &str, error: &BindError, command: &str) -> CommandError {
    let BindError::WrongUser { found: Some(user), .. } = error else {
        return CommandError::new(Exit::Refused, error);
    };
    let named = named(Some(*user));
    let whose = match &named {
        Some(named) if *named == user.to_string() => format!("user {user}"),
        Some(named) => format!("user {named} ({user})"),
        None => "a user without a number in this user namespace".into(),
    };
    let named = named.as_deref().unwrap_or("any");
    let text = format!(
        "{server}: the server runs as {whose}, which `upcall {command}` does not accept: add \
         `--expect {named}` if that is the server that you mean"
    );
    CommandError::new(Exit::Refused, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use upcall::directory::Peer;

    fn accepts(expected: &[&str], uid: u32) -> bool {
        let expected = expected.iter().map(|text| expected_user(text).expect("a user")).collect();
        let peer = Peer { gid: 1, ..Peer::of_user(uid) };
        ExpectArgs { expected }.policy()(&peer).is_ok()
    }

    #[test]
    fn users_are_accepted_beside_ones_own_and_root() {
        let own = own_user();
        let other = own + 1;
        assert!(accepts(&[], own) && accepts(&[], 0) && !accepts(&[], other));
        for expected in [&["any"][..], &[&other.to_string()], &["root", &other.to_string()]] {
            assert!(accepts(expected, own) && accepts(expected, 0) && accepts(expected, other));
        }
        assert!(!accepts(&["root"], other));
        assert_eq!(expected_user("root"), Ok(ExpectedUser::Number(0)));
        let unknown = expected_user("no such user").unwrap_err();
        assert!(unknown.contains("no user \"no such user\": give"), "{unknown}");
    }

    #[test]
    fn a_name_that_the_option_reads_as_another_user_is_not_proposed() {
        let called = |name: &str| name_or_number(4_000_001, Some(name.into()));
        assert_eq!(["alice", "any", "7"].map(called), ["alice", "4000001", "4000001"]);
        assert_eq!(name_or_number(4_000_001, None), "4000001");
        assert_eq!(whose(None), "belongs to a user without a number here: `--expect any` asks it");
    }

    #[test]
    fn the_error_says_what_to_add() {
        let error = |found| BindError::WrongUser { name: "a".into(), found, reason: "why".into() };
        let text = |found, command| not_accepted("\"a\"", &error(found), command).to_string();
        assert!(text(Some(0), "call").contains("user root (0)"), "{}", text(Some(0), "call"));
        assert!(text(Some(4_000_001), "ls").contains("add `--expect 4000001` if"));
        let stat = text(Some(0), "stat");
        assert!(
            stat.contains("`upcall stat`") && stat.contains("add `--expect root` if"),
            "{stat}"
        );
        assert!(text(None, "call").contains("why"));
    }
}
