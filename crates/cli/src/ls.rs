//! `upcall ls`: the domains of this user, or servers on other machines, and what they export.

use crate::told::{CommandResult, FAINT, STRONG, cell, json, line, plain};
use serde::Serialize;
use std::process::ExitCode;
use upcall::directory::{self, Exported};

/// Shows who exports what: name, interface, process, bound clients.
///
/// Without an address these are this user's servers on this machine. With one, what the server that
/// listens there exports to those who come by it, under the names that they bind; whose process it
/// is, is not known here.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall ls\n  upcall ls --procedures\n  upcall ls --json | jq '.[].name'\n  upcall ls tcp://127.0.0.1:7000"
)]
pub struct LsArgs {
    /// Addresses of servers on other machines, `tcp://HOST:PORT`, in place of this one's.
    servers: Vec<String>,
    /// Show each interface's procedures with their types.
    #[arg(short, long)]
    procedures: bool,
    /// Print a JSON array with one object for each export.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct LsRow {
    /// As it is bound.
    name: String,
    interface: String,
    /// On this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    clients: u32,
    procedures: Vec<(String, String)>,
}

impl LsRow {
    fn new(
        Exported { name, interface, clients, procedures, .. }: Exported,
        pid: Option<u32>,
    ) -> Self {
        Self { name, interface, pid, program: pid.map(program), clients, procedures }
    }
}

fn program(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map_or_else(|_| "?".into(), |name| name.trim().into())
}

/// What this user's servers export; and what is wrong with those that do not say.
///
/// # Errors
/// There is no usable folder of names.
fn here() -> Result<(Vec<LsRow>, Vec<String>), directory::FolderError> {
    directory::folder()?;
    directory::sweep();
    let (mut rows, mut silent) = (Vec::new(), Vec::new());
    for socket in directory::domains() {
        match directory::list(&socket) {
            Ok((peer, exports)) => rows.extend(
                exports
                    .into_iter()
                    .map(|exported| LsRow::new(exported, (peer.pid != 0).then_some(peer.pid))),
            ),
            Err(error) => silent.push(error.to_string()),
        }
    }
    Ok((rows, silent))
}

/// The same of servers on other machines.
fn there(servers: &[String]) -> (Vec<LsRow>, Vec<String>) {
    let (mut rows, mut silent) = (Vec::new(), Vec::new());
    for server in servers {
        let bound = |name: &str| format!("{}/{name}", server.trim_end_matches('/'));
        match directory::list_far(server) {
            Ok(exports) => rows.extend(exports.into_iter().map(|exported| {
                let row = LsRow::new(exported, None);
                LsRow { name: bound(&row.name), ..row }
            })),
            Err(error) => silent.push(error.to_string()),
        }
    }
    (rows, silent)
}

pub fn run(args: &LsArgs) -> CommandResult {
    let (mut rows, silent) = if args.servers.is_empty() { here()? } else { there(&args.servers) };
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    if args.json {
        println!("{}", json(&rows)?);
    } else if !rows.is_empty() {
        anstream::print!("{}", table(&rows, args.procedures));
    } else if args.servers.is_empty() {
        anstream::println!(
            "{FAINT}nothing is exported in {}{FAINT:#}",
            directory::folder()?.display()
        );
    } else if silent.is_empty() {
        anstream::println!("{FAINT}nothing is exported at {}{FAINT:#}", args.servers.join(", "));
    }
    for error in &silent {
        eprintln!("upcall ls: {}", plain(error));
    }
    Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(rows: &[LsRow], procedures: bool) -> String {
    let cells = |row: &LsRow| {
        let pid = row.pid.map_or_else(|| "-".into(), |pid| pid.to_string());
        let program = row.program.as_deref().map_or_else(|| "-".into(), cell);
        [cell(&row.name), cell(&row.interface), pid, row.clients.to_string(), program]
    };
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let heads = ["NAME", "INTERFACE", "PROCESS", "CLIENTS", "PROGRAM"];
    let width = |at: usize| {
        cells.iter().map(|row| row[at].chars().count()).chain([heads[at].len()]).max().unwrap_or(0)
    };
    let (name, interface) = (width(0), width(1));
    let shown =
        |[a, b, c, d, e]: [&str; 5]| format!("{a:name$}  {b:interface$}  {c:>7}  {d:>7}  {e}");
    let mut out = format!("{STRONG}{}{STRONG:#}\n", shown(heads));
    for (row, cells) in rows.iter().zip(&cells) {
        out += &format!("{}\n", shown(cells.each_ref().map(String::as_str)));
        if procedures {
            for (_, signature) in &row.procedures {
                out += &format!("  {FAINT}{}{FAINT:#}\n", line(signature));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::told::WIDEST;
    use crate::told::tests::{STEERING, is_clean};

    fn row(name: &str, interface: &str) -> LsRow {
        let (name, interface) = (name.into(), interface.into());
        LsRow { name, interface, pid: None, program: None, clients: 0, procedures: Vec::new() }
    }

    /// The texts are those of any server. A width above 65535 is a panic of `format!`.
    #[test]
    fn long_texts_are_cut_before_they_widen_a_column() {
        let rows = [
            row("files", "a:b/c"),
            row("long", &"é".repeat(100_000)),
            row("wide", &"é".repeat(WIDEST)),
        ];
        let shown = table(&rows, false);
        assert!(shown.contains(&format!("long   {}…  ", "é".repeat(WIDEST - 1))), "{shown}");
        assert!(shown.contains(&format!("wide   {}  ", "é".repeat(WIDEST))), "{shown}");
        assert!(shown.contains(&format!("files  {:WIDEST$}  ", "a:b/c")), "{shown}");
    }

    #[test]
    fn nothing_that_a_server_says_steers_the_terminal() {
        let row = LsRow {
            procedures: vec![(STEERING.into(), STEERING.into())],
            ..row(STEERING, STEERING)
        };
        let shown = anstream::adapter::strip_str(&table(&[row], true)).to_string();
        assert!(is_clean(&shown) && shown.matches("a?[2Jb?31mc?d?e?f?g?h").count() == 3, "{shown}");
    }
}
