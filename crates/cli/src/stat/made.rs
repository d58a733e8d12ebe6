//! What processes call themselves: the shares of local and remote calls of a client (LRPC, Table
//! I).
//!
//! Servers on this machine count the local calls of a process. A process that is a server counts
//! its calls to other machines itself. Both are those of the bindings that exist now.

use super::bindings::{BindingRow, ServerBindings, sum};
use crate::output::{Columns, FAINT, STRONG, cell, share, size};
use serde::Serialize;

/// The calls that one process has made.
#[derive(Clone, Serialize)]
pub struct MadeRow {
    process: u32,
    /// The names that the process exports.
    names: Vec<String>,
    calls: u64,
    local: u64,
    remote: u64,
    /// Share of the calls, from 0 to 1; `None` if there are no calls.
    remote_share: Option<f64>,
    /// Bytes of arguments and of results of remote calls.
    bytes_out: u64,
    bytes_in: u64,
}

impl MadeRow {
    /// Returns `true` if the process exports one of these names.
    pub fn exports(&self, names: &[String]) -> bool {
        self.names.iter().any(|name| names.contains(name))
    }
}

/// What each of the servers on this machine has called, given all bindings to all of them. `before`
/// has what the servers had made at the start of an interval.
pub fn made(
    servers: &[ServerBindings],
    before: &[[u64; 3]],
    bindings: &[BindingRow],
) -> Vec<MadeRow> {
    let of_server = |(at, server): (usize, &ServerBindings)| {
        let own = bindings.iter().filter(|row| row.server != 0 && row.client == server.pid);
        let local = sum(&own.map(|row| row.local).collect::<Vec<_>>());
        let (now, before) = (server.counts.made(), before.get(at).copied().unwrap_or_default());
        let since = |which: usize| now[which].saturating_sub(before[which]);
        let (remote, calls) = (since(0), local.saturating_add(since(0)));
        MadeRow {
            process: server.pid,
            names: server.procedures.keys().cloned().collect(),
            calls,
            local,
            remote,
            remote_share: (calls > 0).then(|| remote as f64 / calls as f64),
            bytes_out: since(1),
            bytes_in: since(2),
        }
    };
    // Processes without a number here are one number, 0.
    let servers = servers.iter().enumerate().filter(|(_, server)| server.pid != 0);
    servers.map(of_server).collect()
}

pub fn made_table(rows: &[MadeRow]) -> String {
    let heads = ["PROCESS", "CALLS", "LOCAL", "REMOTE", "%REMOTE", "OUT", "IN", "NAMES"];
    let heads = heads.map(String::from);
    let cells = rows.iter().map(|row| {
        let [process, calls, local, remote] =
            [u64::from(row.process), row.calls, row.local, row.remote].map(|of| of.to_string());
        let part = share(row.remote, row.calls);
        let [out, back] = [row.bytes_out, row.bytes_in].map(size);
        [process, calls, local, remote, part, out, back, cell(&row.names.join(", "))]
    });
    let cells: Vec<_> = cells.collect();
    let right = std::array::from_fn(|at| at < 7);
    let columns = Columns::new(cells.iter().chain([&heads]), right);
    let mut out = format!("{STRONG}{}{STRONG:#}\n", columns.line(&heads));
    cells.iter().for_each(|row| out += &format!("{}\n", columns.line(row)));
    out
}

/// A line for each process that has made remote calls.
pub fn made_lines(rows: &[MadeRow]) -> String {
    let lines = rows.iter().filter(|row| row.remote > 0).map(|row| {
        let MadeRow { process, calls, .. } = row;
        let [local, remote] = [row.local, row.remote].map(|part| share(part, *calls));
        let local = if row.local == 0 { "none".into() } else { local };
        let text =
            format!("process {process} has made {calls} calls: {local} local, {remote} remote");
        format!("{FAINT}{text}{FAINT:#}\n")
    });
    lines.collect()
}
