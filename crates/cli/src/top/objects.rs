//! The view of objects: operations a second, and the ways in which they were run.

use crate::objects::ObjectActivity;
use crate::output::cell;
use std::cmp::Ordering;

pub(super) const HEADS: [&str; 12] = [
    "OBJECT",
    "HOME",
    "HOLDS",
    "CHANGES/S",
    "URGENT/S",
    "INVOKED/S",
    "AUTO/S",
    "%LOCK",
    "%LOOK",
    "%URG",
    "HOLDER",
    "STATE",
];
pub(super) const WIDTHS: [u16; 12] = [16, 7, 6, 10, 9, 10, 8, 6, 6, 5, 7, 8];
/// Shown in place of 0, which is easily overlooked.
const NONE: &str = "-";

pub(super) fn cells(row: &ObjectActivity) -> [String; 12] {
    let rate = |count| format!("{:.0}", row.per_s(count));
    let [_, lock, look, urgent, ..] = row.done.cells();
    [
        cell(&row.name),
        row.home.to_string(),
        row.holds.len().to_string(),
        rate(row.changes),
        rate(row.done.urgent),
        rate(row.done.invoked),
        rate(row.done.chosen.all()),
        lock,
        look,
        urgent,
        row.holder.map_or_else(|| NONE.into(), |process| process.to_string()),
        row.state.into(),
    ]
}

/// The order by a column. The largest rates and counts come first.
pub(super) fn order(a: &ObjectActivity, b: &ObjectActivity, column: usize) -> Ordering {
    // By shares, which is what the column shows.
    let share = |way: fn(&ObjectActivity) -> u64| {
        let part = |of: &ObjectActivity, other: &ObjectActivity| {
            u128::from(way(of)) * u128::from(other.done.chosen.all().max(1))
        };
        part(b, a).cmp(&part(a, b))
    };
    match column {
        0 => a.name.cmp(&b.name),
        1 => a.home.cmp(&b.home),
        2 => b.holds.len().cmp(&a.holds.len()),
        3 => b.changes.cmp(&a.changes),
        4 => b.done.urgent.cmp(&a.done.urgent),
        5 => b.done.invoked.cmp(&a.done.invoked),
        6 => b.done.chosen.all().cmp(&a.done.chosen.all()),
        7 => share(|of| of.done.chosen.lock),
        8 => share(|of| of.done.chosen.look),
        9 => share(|of| of.done.chosen.urgent),
        10 => b.holder.cmp(&a.holder),
        _ => a.state.cmp(b.state),
    }
}
