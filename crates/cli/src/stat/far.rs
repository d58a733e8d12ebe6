//! The counts of servers on other machines, which are asked for them.

use super::bindings::{CountSource, ServerBindings};
use crate::exit::CommandError;
use crate::servers::ask_within;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use upcall::BindError;
use upcall::directory::FarServer;

/// What a command line begins an address with.
const SCHEME: &str = "tcp://";

/// Time after which servers that have not answered are reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns `true` if the name or address is of another machine.
pub fn is_far(name: &str) -> bool {
    name.contains("://")
}

/// Returns `true` if there are names, all of other machines.
pub fn is_of_others(names: &[String]) -> bool {
    !names.is_empty() && names.iter().all(|name| is_far(name))
}

/// The servers `tcp://HOST:PORT` of these names, each once.
pub fn servers_of(names: &[String]) -> BTreeSet<String> {
    let server = |name: &String| {
        let rest = name.strip_prefix(SCHEME)?;
        let end = rest.find('/').unwrap_or(rest.len());
        Some(format!("{SCHEME}{}", &rest[..end]))
    };
    names.iter().filter_map(server).collect()
}

/// Checks the names of other machines.
///
/// # Errors
/// One is no address.
pub fn check(names: &[String]) -> Result<(), CommandError> {
    for name in names.iter().filter(|name| is_far(name)) {
        let own = name.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'));
        let server = name.strip_suffix('/').unwrap_or(name);
        match own {
            Some((server, own)) if !own.is_empty() => {
                FarServer::at(&format!("{SCHEME}{server}"))?;
                upcall_directory::names::check(own).map_err(CommandError::usage)?;
            }
            _ => _ = FarServer::at(server)?,
        }
    }
    Ok(())
}

/// A server on another machine, and what it has counted.
pub struct FarBindings {
    /// `tcp://HOST:PORT`.
    pub at: String,
    server: FarServer,
    pub bindings: ServerBindings,
    /// The time of the last counts.
    pub read: Instant,
}

impl FarBindings {
    /// Asks a server.
    ///
    /// # Errors
    /// It cannot be reached, does not admit this client, or does not answer.
    pub fn ask(at: &str) -> Result<Self, BindError> {
        let server = FarServer::at(at)?;
        let exports = server.list()?;
        let counts = CountSource::There(server.read()?);
        let names = exports.into_iter().map(|export| {
            (export.name, export.procedures.into_iter().map(|(name, _)| name).collect())
        });
        let bindings = ServerBindings::new(Some(at.into()), 0, counts, names.collect());
        Ok(Self { at: at.into(), server, bindings, read: Instant::now() })
    }

    /// Asks the server again for its counts.
    ///
    /// # Errors
    /// As [`FarBindings::ask`].
    pub fn renew(&mut self) -> Result<(), BindError> {
        self.bindings.counts = CountSource::There(self.server.read()?);
        self.read = Instant::now();
        Ok(())
    }
}

/// Asks the servers of these names at the same time. Returns those that answered, and the errors of
/// the others.
pub fn ask_far(names: &[String]) -> (Vec<FarBindings>, Vec<(String, CommandError)>) {
    let servers: Vec<String> = servers_of(names).into_iter().collect();
    let answers = ask_within(PATIENCE, servers.clone(), FarBindings::ask);
    let (mut found, mut silent) = (Vec::new(), Vec::new());
    for (server, answer) in servers.into_iter().zip(answers) {
        match answer {
            Some(Ok(far)) => found.push(far),
            Some(Err(error)) => silent.push((server, error.into())),
            None => {
                let error = BindError::NoAnswer { name: server.clone(), after: PATIENCE };
                silent.push((server, error.into()));
            }
        }
    }
    (found, silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_asked_once() {
        let names = ["files", "tcp://a:1", "tcp://a:1/x", "tcp://a:1/", "tcp://[::1]:2/y"];
        let names = names.map(String::from);
        let servers = servers_of(&names);
        assert_eq!(servers.into_iter().collect::<Vec<_>>(), ["tcp://[::1]:2", "tcp://a:1"]);
        assert_eq!(check(&names), Ok(()));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for bad in ["udp://a:1", "tcp://a", "tcp://a:1/x/y", "tcp://:1/x", "tcp://a:0", "tcp://"] {
            assert!(check(&[bad.into()]).is_err(), "{bad}");
        }
    }
}
