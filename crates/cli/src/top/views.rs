//! The views of the command: their columns, and the rows of bindings.

use super::objects;
use crate::members;
use crate::output::{self, share, size};
use crate::stat::{BindingRow, time};

const HEADS: [&str; 15] = [
    "NAME", "CLIENT", "SERVER", "CALLS/S", "ERRORS", "IN/S", "OUT/S", "P50", "P99", "SPIN",
    "DONATE", "HAND", "WAKE", "WAIT", "NET",
];
pub const WIDTHS: [u16; 15] = [16, 8, 8, 12, 7, 10, 10, 9, 9, 6, 7, 6, 6, 6, 5];
const MEMBERS: [&str; 12] = [
    "GROUP", "RANK", "PROCESS", "SENT/S", "TAKEN/S", "WAITING", "BUFFERED", "HELD", "LIMIT",
    "STOPS", "REFUSED", "STATE",
];
const MEMBERS_WIDTHS: [u16; 12] = [16, 5, 8, 11, 11, 9, 9, 9, 9, 6, 8, 36];
const _: () = assert!(members::HEADS.len() == MEMBERS.len());
pub const NAME: usize = 0;
pub const CLIENT: usize = 1;
/// The column by which each view is sorted at first: calls, messages sent, or operations a second.
pub const MOST: usize = 3;

/// The rows of a view.
#[derive(Clone, Copy, PartialEq)]
pub enum Of {
    Bindings,
    Members,
    Objects,
}

/// A table that can be shown.
pub struct View {
    pub title: &'static str,
    pub of: Of,
    pub heads: &'static [&'static str],
    pub widths: &'static [u16],
    /// The columns of the view, in their order.
    pub columns: &'static [usize],
    /// The same columns by importance. Where there is no room for all, the last are left out.
    pub importance: &'static [usize],
}

pub static VIEWS: [View; 4] = [
    View {
        title: "calls",
        of: Of::Bindings,
        heads: &HEADS,
        widths: &WIDTHS,
        columns: &[NAME, CLIENT, 2, MOST, 4, 5, 6, 7, 8],
        importance: &[NAME, MOST, 4, 7, 8, CLIENT, 5, 6, 2],
    },
    View {
        title: "how calls reached the servers",
        of: Of::Bindings,
        heads: &HEADS,
        widths: &WIDTHS,
        columns: &[NAME, CLIENT, 2, MOST, 9, 10, 11, 12, 13, 14],
        importance: &[NAME, MOST, 9, 10, 11, 12, 13, 14, CLIENT, 2],
    },
    View {
        title: "groups",
        of: Of::Members,
        heads: &MEMBERS,
        widths: &MEMBERS_WIDTHS,
        columns: &[NAME, 1, 2, MOST, 4, 5, 6, 7, 8, 9, 10, 11],
        importance: &[NAME, MOST, 1, 4, 5, 11, 7, 9, 2, 6, 8, 10],
    },
    View {
        title: "objects",
        of: Of::Objects,
        heads: &objects::HEADS,
        widths: &objects::WIDTHS,
        columns: &[NAME, 1, 2, MOST, 4, 5, 6, 7, 8, 9, 10, 11],
        importance: &[NAME, MOST, 4, 5, 6, 11, 10, 1, 7, 8, 9, 2],
    },
];

/// The cells of a binding, as [`HEADS`] names them.
pub fn cells(row: &BindingRow) -> [String; 15] {
    let [spins, donations, hand_offs, wakes, waits, remote] =
        row.came().map(|calls| share(calls, row.calls));
    let calls = row.calls_per_s.unwrap_or(0.0);
    // The bytes of the interval, converted to bytes a second.
    let each = |bytes: u64| {
        size(if row.calls == 0 { 0 } else { (bytes as f64 * calls / row.calls as f64) as u64 })
    };
    let below = |ns: Option<u64>| ns.map_or_else(|| "-".to_string(), time);
    [
        output::cell(&row.name),
        row.client(),
        row.server(),
        format!("{calls:.0}"),
        row.errors().to_string(),
        each(row.bytes_in),
        each(row.bytes_out),
        below(row.p50_below_ns),
        below(row.p99_below_ns),
        spins,
        donations,
        hand_offs,
        wakes,
        waits,
        remote,
    ]
}
