//! The orders of the rows of a view. The largest rates and counts come first.

use crate::members::MemberActivity;
use crate::stat::BindingRow;

/// Sorts bindings by a column.
pub fn sort_bindings(rows: &mut [BindingRow], column: usize, reversed: bool) {
    rows.sort_by(|a, b| {
        let order = match column {
            0 => a.name.cmp(&b.name),
            1 => (a.client, a.address).cmp(&(b.client, b.address)),
            2 => a.server.cmp(&b.server),
            // The largest rates and counts come first.
            3 => b.calls.cmp(&a.calls),
            4 => b.errors().cmp(&a.errors()),
            5 => b.bytes_in.cmp(&a.bytes_in),
            6 => b.bytes_out.cmp(&a.bytes_out),
            7 => b.p50_below_ns.cmp(&a.p50_below_ns),
            8 => b.p99_below_ns.cmp(&a.p99_below_ns),
            // By shares, which is what the column shows.
            way => {
                let part = |of: &BindingRow, calls: u64| {
                    u128::from(of.came()[way - 9]) * u128::from(calls.max(1))
                };
                part(b, a.calls).cmp(&part(a, b.calls))
            }
        };
        let order = if reversed { order.reverse() } else { order };
        order.then_with(|| {
            (&a.name, a.client, a.address, a.server).cmp(&(&b.name, b.client, b.address, b.server))
        })
    });
}

/// Sorts members of groups by a column.
pub fn sort_members(members: &mut [MemberActivity], column: usize, reversed: bool) {
    members.sort_by(|a, b| {
        let place = |of: &MemberActivity| (of.group.clone(), of.id.clone(), of.rank, of.process);
        let order = match column {
            0 => a.group.cmp(&b.group),
            1 => a.rank.cmp(&b.rank),
            2 => a.process.cmp(&b.process),
            3 => b.sent.cmp(&a.sent),
            4 => b.taken.cmp(&a.taken),
            5 => b.waiting.cmp(&a.waiting),
            // By shares, which is what the column shows.
            6 => {
                let part = |of: &MemberActivity, sent: u64| {
                    u128::from(of.buffered) * u128::from(sent.max(1))
                };
                part(b, a.sent).cmp(&part(a, b.sent))
            }
            7 => b.held_bytes.cmp(&a.held_bytes),
            8 => b.limit_bytes.cmp(&a.limit_bytes),
            9 => b.stops.cmp(&a.stops),
            10 => b.refused.cmp(&a.refused),
            _ => b
                .stopped_s
                .unwrap_or(0.0)
                .total_cmp(&a.stopped_s.unwrap_or(0.0))
                .then_with(|| b.state().cmp(&a.state())),
        };
        let order = if reversed { order.reverse() } else { order };
        order.then_with(|| place(a).cmp(&place(b)))
    });
}
