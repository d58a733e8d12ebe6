//! Servers and shared objects at addresses on other machines.
//!
//! What listens at an address is either a server of procedures or a home of objects, and each ends
//! the connection of a client that asks for the other.

use super::{Listing, LsRow, TIME_FOR_OTHERS};
use crate::exit::{CommandError, Exit};
use crate::output::{Columns, STRONG, cell};
use crate::servers::ask_within;
use serde::Serialize;
use upcall::BindError;
use upcall::directory::{self, Exported};
use upcall::home::{ListedObject, objects_at};
use upcall_net::identity::{HostName, HostStore, PeerRole};

/// A shared object whose home is on another machine.
#[derive(Serialize)]
pub(super) struct ObjectRow {
    /// The name by which a guest finds it.
    pub name: String,
    /// The number that stands for its type, as references write it.
    pub shape: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// What is found at an address.
enum AtAddress {
    Exports(Vec<Exported>),
    Objects(Vec<ListedObject>),
}

/// Asks what listens at `tcp://HOST:PORT`.
fn ask(server: &str) -> Result<AtAddress, CommandError> {
    let error = match directory::list_far(server) {
        Ok(exports) => return Ok(AtAddress::Exports(exports)),
        Err(error) => error,
    };
    // A home ends the connection, and has said nothing that a client of procedures understands.
    if matches!(error, BindError::Unreachable { .. } | BindError::Protocol { .. })
        && let Ok(objects) = objects_at(server)
    {
        return Ok(AtAddress::Objects(objects));
    }
    Err(error.into())
}

impl Listing {
    /// The servers and objects at addresses of other machines.
    pub(super) fn of_addresses(servers: &[String]) -> Self {
        let mut listing = Self::default();
        for server in servers {
            match ask(server) {
                Ok(found) => listing.add_far(server, None, found),
                Err(error) => listing.silent.push(error),
            }
        }
        listing
    }

    /// Adds what was found at an address on another machine.
    fn add_far(&mut self, server: &str, host: Option<&HostName>, found: AtAddress) {
        let far = |name: &str| format!("{}/{name}", server.trim_end_matches('/'));
        let host = || host.map(HostName::to_string);
        match found {
            AtAddress::Exports(exports) => self.rows.extend(exports.into_iter().map(|exported| {
                let row = LsRow::new(exported, None);
                LsRow { name: far(&row.name), host: host(), ..row }
            })),
            AtAddress::Objects(objects) => self.objects.extend(objects.into_iter().map(|object| {
                let ListedObject { name, shape, operations } = object;
                let shape = format!("{shape:016x}");
                ObjectRow { name: far(&name), shape, operations, host: host() }
            })),
        }
    }

    /// Adds the servers and objects of trusted hosts, which are asked at the same time.
    pub(super) fn ask_hosts(&mut self) -> Result<(), CommandError> {
        let list = HostStore::find()?.list()?;
        let serving = list.hosts().filter(|host| host.may.allows(PeerRole::Server));
        let (known, unknown): (Vec<_>, Vec<_>) =
            serving.partition(|host| !host.addresses.is_empty());
        let servers: Vec<_> = known
            .iter()
            .flat_map(|host| host.addresses.iter().map(|at| (host.name.clone(), at.port())))
            .map(|(name, port)| (format!("tcp://{name}:{port}"), name))
            .collect();
        let questions = servers.iter().map(|(server, _)| server.clone()).collect();
        let answers = ask_within(TIME_FOR_OTHERS, questions, ask);
        for ((server, host), answer) in servers.iter().zip(answers) {
            match answer {
                Some(Ok(found)) => self.add_far(server, Some(host), found),
                Some(Err(error)) => self.silent.push(error),
                None => self.silent.push(CommandError::new(
                    Exit::Deadline,
                    format_args!("{server} did not answer within {} s", TIME_FOR_OTHERS.as_secs()),
                )),
            }
        }
        self.without_address = unknown.iter().map(|host| host.name.to_string()).collect();
        Ok(())
    }
}

/// The table of objects.
pub(super) fn objects_table(objects: &[ObjectRow]) -> String {
    let heads = ["OBJECT", "SHAPE", "OPERATIONS"].map(String::from);
    let cells = |object: &ObjectRow| {
        let operations = object.operations.map_or_else(|| "-".into(), |count| count.to_string());
        [cell(&object.name), object.shape.clone(), operations]
    };
    let cells: Vec<_> = objects.iter().map(cells).collect();
    let columns = Columns::new(cells.iter().chain([&heads]), [false, false, true]);
    let mut out = format!("{STRONG}{}{STRONG:#}\n", columns.line(&heads));
    for cells in &cells {
        out += &format!("{}\n", columns.line(cells));
    }
    out
}
