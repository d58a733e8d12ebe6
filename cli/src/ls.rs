//! `upcall ls`: the domains of this user, and what they export.

use crate::{Done, FAINT, STRONG};
use serde::Serialize;
use std::process::ExitCode;
use upcall::directory::{self, Exported};

/// Shows who exports what: name, interface, process, bound clients.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall ls\n  upcall ls --procedures\n  upcall ls --json | jq '.[].name'")]
pub struct Args {
    /// Show each interface's procedures with their types.
    #[arg(short, long)]
    procedures: bool,
    /// Print a JSON array with one object for each export.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    interface: String,
    pid: u32,
    program: String,
    clients: u32,
    procedures: Vec<(String, String)>,
}

fn program(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| "?".into(), |name| name.trim().into())
}

pub fn run(args: &Args) -> Done {
    directory::sweep();
    let mut rows = Vec::new();
    let mut silent = Vec::new();
    for socket in directory::domains() {
        match directory::list(&socket) {
            Ok((peer, exports)) => {
                rows.extend(exports.into_iter().map(|Exported { name, interface, clients, procedures, .. }| Row {
                    name,
                    interface,
                    pid: peer.pid,
                    program: program(peer.pid),
                    clients,
                    procedures,
                }))
            }
            Err(error) => silent.push(error.to_string()),
        }
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else if rows.is_empty() {
        anstream::println!("{FAINT}nothing is exported in {}{FAINT:#}", directory::folder().display());
    } else {
        table(&rows, args.procedures);
    }
    for error in &silent {
        eprintln!("upcall ls: {error}");
    }
    Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(rows: &[Row], procedures: bool) {
    let width = |text: fn(&Row) -> &str, head: &str| rows.iter().map(|row| text(row).len()).max().unwrap_or(0).max(head.len());
    let (name, interface) = (width(|row| &row.name, "NAME"), width(|row| &row.interface, "INTERFACE"));
    anstream::println!(
        "{STRONG}{:name$}  {:interface$}  {:>7}  {:>7}  PROGRAM{STRONG:#}",
        "NAME",
        "INTERFACE",
        "PROCESS",
        "CLIENTS"
    );
    for row in rows {
        println!("{:name$}  {:interface$}  {:>7}  {:>7}  {}", row.name, row.interface, row.pid, row.clients, row.program);
        if procedures {
            for (_, signature) in &row.procedures {
                anstream::println!("  {FAINT}{signature}{FAINT:#}");
            }
        }
    }
}
