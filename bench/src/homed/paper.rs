//! The paper's figures (Psyche, section 5), and the same figures computed from the records of a
//! run.

use super::case::{CHAINS, Op, chain, way};
use crate::record::Record;

/// Times of an operation in six columns: local with and without locks, by remote access with and
/// without, by remote invocation with and without. The unit depends on the row.
pub type Columns = [Option<f64>; 6];

/// Table 1, in µs.
pub const TABLE_1: [(Op, [f64; 6]); 6] = [
    (Op::EnqueueDequeue, [42.4, 21.6, 247.0, 154.0, 197.0, 174.0]),
    (Op::FindLast(5), [25.0, 16.1, 131.0, 87.6, 115.0, 96.7]),
    (Op::FindLast(10), [40.6, 30.5, 211.0, 169.0, 125.0, 105.0]),
    (Op::CreateSegment, [6200.0, 5690.0, 14_800.0, 13_100.0, 7420.0, 6880.0]),
    (Op::MapSegment, [960.0, 860.0, 3050.0, 2620.0, 1940.0, 1770.0]),
    (Op::CreateProcess, [1430.0, 1350.0, 3300.0, 3040.0, 1890.0, 1750.0]),
];

/// Ratio of a remote memory read to a local one: 6.88 µs to 0.518.
pub const R: f64 = 6.88 / 0.518;

/// Time of an urgent invocation in µs, and the number of remote references that it is worth. For
/// ordinary invocations, subtract 7 references for each lock saved.
pub const URGENT: (f64, f64) = (60.0, 11.0);
/// The same for an ordinary invocation.
pub const ORDINARY: (f64, f64) = (421.0, 71.0);

/// Slowdown of a program on the home, and total time of the operations that caused it, in ms: by
/// remote access, and by urgent invocation.
pub const SLOWDOWN: [(f64, f64); 2] = [(1.0, 19.0), (17.0, 22.0)];

/// Returns the paper's row of an operation.
pub fn columns_of_the_paper(op: Op) -> Option<Columns> {
    TABLE_1.into_iter().find(|(of, _)| *of == op).map(|(_, us)| us.map(Some))
}

/// Returns the median of a record.
pub fn found(records: &[Record], case: &str, system: &str) -> Option<f64> {
    records
        .iter()
        .find(|record| record.case == case && record.system == system)
        .map(|record| record.p50_ns)
}

/// Computes the same row from records, in ns, with remote operations after the home has touched the
/// object. The last column is not measured: short operations take the object's lock at home, and
/// the column is their time minus the cost of that lock.
pub fn columns(records: &[Record], op: Op) -> Columns {
    let (plain, dirty) = (op.name(), op.dirty());
    let local = found(records, &plain, way::LOCAL);
    let unlocked = found(records, &plain, way::LOCAL_UNLOCKED);
    let invoked = found(records, &dirty, if op.may_block() { way::INVOKE } else { way::URGENT });
    let lock = local.zip(unlocked).map(|(local, unlocked)| (local - unlocked).max(0.0));
    [
        local,
        unlocked,
        found(records, &dirty, way::ACCESS),
        found(records, &dirty, way::ACCESS_UNLOCKED),
        invoked,
        invoked.zip(lock).map(|(invoked, lock)| invoked - lock),
    ]
}

fn percent(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    part.zip(whole).map(|(part, whole)| 100.0 * part / whole)
}

fn less(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.zip(other).map(|(one, other)| (one - other).max(0.0))
}

/// Figure 3: the share of locking, in percent: local, by remote access, by remote invocation.
pub fn figure_3(c: Columns) -> [Option<f64>; 3] {
    [0, 2, 4].map(|at| percent(less(c[at], c[at + 1]), c[at]))
}

/// Figure 4: the share of the remote references, in percent: with locks, and without.
pub fn figure_4(c: Columns) -> [Option<f64>; 2] {
    [0, 1].map(|at| percent(less(c[2 + at], c[at]), c[2 + at]))
}

/// Figure 5: remote invocation in percent of remote access: with locks in the latter, in both, in
/// neither.
pub fn figure_5(c: Columns) -> [Option<f64>; 3] {
    [percent(c[5], c[2]), percent(c[4], c[2]), percent(c[5], c[3])]
}

/// The number of lines from which an invocation is worthwhile (P12).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakEven {
    /// Time of each further line of the chain for the home, which owns it, in ns.
    pub local_ns: f64,
    /// Time of each further line for a caller, which has to fetch it, in ns.
    pub remote_ns: f64,
    /// The ratio of the two.
    pub r: f64,
    /// Additional time of an invocation over the same walk at home, in local accesses.
    pub c: f64,
    /// Additional time of remote access over the same walk at home besides the chain's lines, for
    /// the lock and the head of the object, in local accesses.
    pub access: f64,
    /// Break-even by the paper's formula, (R − 1) n = C, in lines.
    pub formula: f64,
    /// Reduction of the break-even for each lock that remote access takes, in lines: the additional
    /// time of remote access. In the paper 7.
    pub lock: f64,
    /// Break-even with one lock, as here: (R − 1) n = C − A, in lines.
    pub whole: f64,
    /// Measured break-even, in lines: between the last chain for which remote access was faster,
    /// and the next. Less than 1: invocation was always faster. `None`: it was never faster.
    pub crossing: Option<f64>,
}

/// Computes the figures of the chains, for one of the methods of invocation.
pub fn break_even(records: &[Record], way: &str) -> Option<BreakEven> {
    // Longer chains are partly prefetched.
    const LONG: u32 = 16;
    let of = |lines, system| found(records, &chain(lines), system);
    let slope = |system| Some((of(LONG, system)? - of(1, system)?) / f64::from(LONG - 1));
    let (local_ns, remote_ns) = (slope(way::LOCAL)?, slope(way::ACCESS)?);
    let one = of(1, way::LOCAL)?;
    let r = remote_ns / local_ns;
    let c = (of(1, way)? - one) / local_ns;
    let access = ((of(1, way::ACCESS)? - one) / local_ns - (r - 1.0)).max(0.0);
    let differences =
        CHAINS.map(|lines| Some((f64::from(lines), of(lines, way::ACCESS)? - of(lines, way)?)));
    let differences: Vec<(f64, f64)> = differences.into_iter().flatten().collect();
    let crossing = match differences.iter().rposition(|(_, more)| *more < 0.0) {
        None => Some(0.0),
        Some(at) => differences.get(at + 1).map(|(n, more)| {
            let (before, less) = differences[at];
            before + (n - before) * -less / (more - less)
        }),
    };
    let (formula, lock) = (c / (r - 1.0), access / (r - 1.0));
    Some(BreakEven {
        local_ns,
        remote_ns,
        r,
        c,
        access,
        formula,
        lock,
        whole: formula - lock,
        crossing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::record::{Label, Turn};
    use crate::stats::Summary;

    pub fn record(case: &str, system: &str, ns: f64) -> Record {
        let found = Summary::flat(ns, 5);
        let label = Label {
            suite: "homed",
            case,
            system,
            placement: Placement::TwoCores,
            mode: Mode::Polling,
        };
        label.latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    fn rounded<const N: usize>(percents: [Option<f64>; N]) -> [i32; N] {
        percents.map(|percent| percent.unwrap().round() as i32)
    }

    #[test]
    fn the_papers_figures_follow_from_its_table() {
        let row = |op| columns_of_the_paper(op).unwrap();
        assert_eq!(rounded(figure_3(row(Op::EnqueueDequeue))), [49, 38, 12]);
        assert_eq!(rounded(figure_4(row(Op::EnqueueDequeue))), [83, 86]);
        let fifth = TABLE_1.map(|(op, _)| rounded(figure_5(row(op))));
        let of = |at: usize| {
            (fifth.iter().map(|bars| bars[at]).min(), fifth.iter().map(|bars| bars[at]).max())
        };
        assert_eq!(
            (of(0), of(1), of(2)),
            ((Some(46), Some(74)), (Some(50), Some(88)), (Some(53), Some(113)))
        );
        assert_eq!(columns_of_the_paper(Op::FindLast(100)), None);
    }

    #[test]
    fn ours_are_computed_alike() {
        let op = Op::FindLast(5);
        let mut records = vec![
            record(&op.name(), way::LOCAL, 20.0),
            record(&op.name(), way::LOCAL_UNLOCKED, 15.0),
        ];
        records.extend([
            record(&op.dirty(), way::ACCESS, 400.0),
            record(&op.dirty(), way::ACCESS_UNLOCKED, 100.0),
            record(&op.dirty(), way::URGENT, 505.0),
        ]);
        let row = columns(&records, op);
        assert_eq!(row, [20.0, 15.0, 400.0, 100.0, 505.0, 500.0].map(Some));
        assert_eq!(
            (rounded(figure_3(row)), rounded(figure_4(row)), rounded(figure_5(row))),
            ([25, 75, 1], [95, 85], [125, 126, 500])
        );
        assert_eq!(figure_3(columns(&[], op)), [None; 3]);
    }

    #[test]
    fn two_lines_cross() {
        // 2 ns a line at home, 52 remotely, 300 and 800 for invocations, 100 for the lock.
        let all = |access: fn(f64) -> f64| -> Vec<Record> {
            let of = |n: u32| {
                let lines = f64::from(n);
                let at = |system, ns| record(&chain(n), system, ns);
                let invoked = [(way::URGENT, 300.0), (way::INVOKE, 800.0)]
                    .map(|(way, ns)| at(way, ns + 2.0 * lines));
                [at(way::LOCAL, 2.0 * lines), at(way::ACCESS, access(lines))]
                    .into_iter()
                    .chain(invoked)
            };
            CHAINS.into_iter().flat_map(of).collect()
        };
        let urgent = |access| break_even(&all(access), way::URGENT);
        let found = urgent(|lines| 100.0 + 52.0 * lines).unwrap();
        assert_eq!((found.r, found.c, found.access, found.lock), (26.0, 150.0, 50.0, 2.0));
        assert_eq!((found.formula, found.whole), (6.0, 4.0));
        assert!((found.crossing.unwrap() - 4.0).abs() < 1e-9, "{found:?}");
        assert_eq!(urgent(|lines| 400.0 + 52.0 * lines).unwrap().crossing, Some(0.0));
        assert_eq!(urgent(|lines| 2.5 * lines).unwrap().crossing, None);
        let found = break_even(&all(|lines| 100.0 + 52.0 * lines), way::INVOKE).unwrap();
        assert_eq!((found.formula, found.lock, found.whole), (16.0, 2.0, 14.0));
        assert!((found.crossing.unwrap() - 14.0).abs() < 1e-9, "{found:?}");
        assert_eq!(break_even(&[], way::URGENT), None);
    }
}
