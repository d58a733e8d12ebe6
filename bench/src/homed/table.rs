//! The report of the suite `homed`: Table 1, Figures 3 to 5, throughput, slowdown and break-even,
//! beside the paper's numbers, and a comparison with the aims.

use std::io::{self, Write};

use super::case::{
    CALLERS, CHAINS, Hot, Op, SLOWED, chain, slowdown, slowdown_caller, slowdown_quiet, way,
};
use super::paper::{
    BreakEven, ORDINARY, R, SLOWDOWN, TABLE_1, URGENT, break_even, columns, columns_of_the_paper,
    figure_3, figure_4, figure_5, found,
};
use crate::record::Record;
use crate::report::Report;
use crate::table::{BOLD, DIM, GREEN, Paint, RED, remarks, thousands};

/// Column widths of a name, and of a figure.
const NAME: usize = 24;
const FIGURE: usize = 12;

/// Columns of Table 1, with their heads.
const COLUMNS: [(&str, &str); 13] = [
    (way::BARE, "bare"),
    (way::LOCAL_UNLOCKED, "unlocked"),
    (way::LOCAL, "local"),
    (way::ACCESS_UNLOCKED, "acc. unl."),
    (way::ACCESS, "access"),
    (way::READ, "read"),
    (way::BULK, "bulk"),
    (way::URGENT, "urgent"),
    (way::AUTO, "auto"),
    (way::URGENT_COMPUTING, "computing"),
    (way::URGENT_BACKGROUND, "backgr."),
    (way::INVOKE, "invoke"),
    (way::INVOKE_BACKGROUND, "backgr."),
];

/// Prints the whole `report`.
///
/// # Errors
/// `out` cannot be written.
pub fn print(report: &Report, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let (paint, records) = (Paint { colour }, &report.records[..]);
    operations(records, out, &paint)?;
    figures(records, out, &paint)?;
    throughput(records, out, &paint)?;
    slowdowns(records, out, &paint)?;
    chains(records, out, &paint)?;
    aims(records, out, &paint)?;
    writeln!(out)?;
    remarks(out, &paint, &report.notes, &report.failures)
}

fn cell(figure: Option<f64>) -> String {
    format!("{:>FIGURE$}", figure.map_or("-".to_owned(), thousands))
}

fn cells(figures: impl IntoIterator<Item = Option<f64>>) -> String {
    figures.into_iter().map(cell).collect()
}

fn heads<'a>(heads: impl IntoIterator<Item = &'a str>) -> String {
    heads.into_iter().map(|head| format!("{head:>FIGURE$}")).collect()
}

fn operations(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    type Figure = fn(&Record) -> Option<f64>;
    let tables: [(&str, Figure); 2] = [
        ("medians", |record| Some(record.p50_ns)),
        ("99th percentiles", |record| Some(record.p99_ns)),
    ];
    let names = Op::ALL.into_iter().flat_map(|op| [op.name(), op.dirty()]);
    let names: Vec<String> =
        names.filter(|name| records.iter().any(|record| record.case == *name)).collect();
    if names.is_empty() {
        return Ok(());
    }
    for (what, figure) in tables {
        writeln!(
            out,
            "\n{}",
            paint.text(BOLD, &format!("Table 1: an operation by each way, ns ({what})"))
        )?;
        let head =
            format!("{:<NAME$}{}{:>FIGURE$}", "", heads(COLUMNS.map(|(_, head)| head)), "line");
        writeln!(out, "{}", paint.text(DIM, &head))?;
        for name in &names {
            let of = |system: &str| {
                records.iter().find(|record| record.case == *name && record.system == system)
            };
            let line = records
                .iter()
                .find(|record| record.case == *name)
                .and_then(|record| record.line_ns);
            writeln!(
                out,
                "{name:<NAME$}{}{}",
                cells(COLUMNS.map(|(way, _)| of(way).and_then(figure))),
                cell(line)
            )?;
        }
    }
    writeln!(
        out,
        "\n{}",
        paint.text(
            DIM,
            "1993, µs: local, without locks; by access, without locks; by invocation, without locks"
        )
    )?;
    for (op, us) in TABLE_1 {
        writeln!(
            out,
            "{}",
            paint.text(DIM, &format!("{:<NAME$}{}", op.name(), cells(us.map(Some))))
        )?;
    }
    Ok(())
}

fn figures(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let ops: Vec<Op> =
        Op::ALL.into_iter().filter(|op| columns(records, *op)[0].is_some()).collect();
    if ops.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{}",
        paint.text(
            BOLD,
            "Figures 3 to 5, percent: locking of local (LA), access (RA), invocation \
            (RI); remote of access with locks (L), without (NL);"
        )
    )?;
    writeln!(
        out,
        "{}",
        paint.text(
            BOLD,
            "invocation to access, locks in access only (RA), in both (B), in \
            neither (N); the paper's below"
        )
    )?;
    let head = heads(["3: LA", "RA", "RI", "4: L", "NL", "5: RA", "B", "N"]);
    writeln!(out, "{}", paint.text(DIM, &format!("{:<NAME$}{head}", "")))?;
    for op in ops {
        let all =
            |columns| [&figure_3(columns)[..], &figure_4(columns), &figure_5(columns)].concat();
        writeln!(out, "{:<NAME$}{}", op.name(), cells(all(columns(records, op))))?;
        if let Some(paper) = columns_of_the_paper(op) {
            writeln!(
                out,
                "{}",
                paint.text(DIM, &format!("{:<NAME$}{}", "  1993", cells(all(paper))))
            )?;
        }
    }
    Ok(())
}

fn throughput(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    for hot in [Hot::Counter, Hot::Queue] {
        let per_s = |system: &str, callers| {
            let case = hot.record(callers);
            records
                .iter()
                .find(|record| record.case == case && record.system == system)
                .map(|record| record.per_s / 1e6)
        };
        let ways = [way::ACCESS, way::URGENT, way::MUTEX, way::SPIN];
        if ways.iter().all(|way| CALLERS.iter().all(|&callers| per_s(way, callers).is_none())) {
            continue;
        }
        let title = format!(
            "{}: million operations a second by processes; and at home by itself, ns",
            hot.name()
        );
        writeln!(out, "\n{}", paint.text(BOLD, &title))?;
        let counts = CALLERS.map(|callers| callers.to_string());
        let head = heads(counts.iter().map(String::as_str).chain(["alone, ns"]));
        writeln!(out, "{}", paint.text(DIM, &format!("{:<NAME$}{head}", "")))?;
        for way in ways {
            let figures = CALLERS.map(|callers| {
                per_s(way, callers).map_or("-".to_owned(), |per_s| format!("{per_s:.2}"))
            });
            let figures = figures.map(|figure| format!("{figure:>FIGURE$}")).concat();
            let alone =
                found(records, &hot.alone(), if way == way::ACCESS { way::LOCAL } else { way });
            writeln!(out, "{way:<NAME$}{figures}{}", cell(alone))?;
        }
    }
    Ok(())
}

fn slowdowns(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    if SLOWED.iter().all(|&op| found(records, &slowdown(op), way::ACCESS).is_none()) {
        return Ok(());
    }
    let title = "a home that computes: what it loses for an operation, and what that takes its \
        caller, ns; percent";
    writeln!(out, "\n{}", paint.text(BOLD, title))?;
    writeln!(
        out,
        "{}",
        paint.text(DIM, &format!("{:<2$}{}", "", heads(["home", "caller", "percent"]), NAME + 20))
    )?;
    for op in SLOWED {
        for way in [
            way::ACCESS,
            way::URGENT_COMPUTING,
            way::URGENT_COMPUTING_PAUSED,
            way::URGENT_SIGNAL,
            way::URGENT_SIGNAL_PAUSED,
            way::INVOKE,
        ] {
            let [home, caller] =
                [slowdown(op), slowdown_caller(op)].map(|case| found(records, &case, way));
            let percent = home.zip(caller).map(|(home, caller)| 100.0 * home / caller);
            writeln!(
                out,
                "{:<2$}{}",
                format!("{}, {way}", op.name()),
                cells([home, caller, percent]),
                NAME + 20
            )?;
        }
        let steps = [way::BARE, way::URGENT_COMPUTING, way::URGENT_SIGNAL, way::INVOKE];
        let steps = steps.map(|way| found(records, &slowdown_quiet(op), way));
        let [bare, polls, signals, processor] =
            steps.map(|step| step.map_or("-".to_owned(), thousands));
        let text = format!(
            "  a step while nobody asks: {bare}, with a poll {polls}, while signals may come \
            {signals}, with a virtual processor's safe point {processor}"
        );
        writeln!(out, "{}", paint.text(DIM, &text))?;
    }
    let paper = SLOWDOWN
        .map(|(home, all)| format!("{home} ms of {all}, {:.0} %", 100.0 * home / all))
        .join("; urgent ");
    writeln!(out, "{}", paint.text(DIM, &format!("1993: by access {paper}")))
}

fn chains(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let evens = [("urgent", way::URGENT), ("ordinary", way::INVOKE)];
    let evens = evens
        .into_iter()
        .filter_map(|(name, way)| Some((name, break_even(records, way)?)))
        .collect::<Vec<_>>();
    let Some((_, first)) = evens.first() else { return Ok(()) };
    writeln!(
        out,
        "\n{}",
        paint.text(BOLD, "break-even: a walk over n lines that the home has written, ns")
    )?;
    let counts = CHAINS.map(|lines| lines.to_string());
    let narrow = |text: &str| format!("{text:>9}");
    let head: String = counts.iter().map(|count| narrow(count)).collect();
    writeln!(out, "{}", paint.text(DIM, &format!("{:<NAME$}{head}", "")))?;
    for way in [way::LOCAL, way::ACCESS, way::READ, way::BULK, way::URGENT, way::AUTO, way::INVOKE]
    {
        let figures = CHAINS.map(|lines| {
            narrow(&found(records, &chain(lines), way).map_or("-".to_owned(), thousands))
        });
        writeln!(out, "{way:<NAME$}{}", figures.concat())?;
    }
    writeln!(
        out,
        "R = {:.1} ({:.1} ns to {:.2}); break-even by (R - 1) n = C, with k locks saved:",
        first.r, first.remote_ns, first.local_ns
    )?;
    for (name, even) in &evens {
        let crossing = match even.crossing {
            None => format!("more than {}", CHAINS[CHAINS.len() - 1]),
            Some(n) if n < 1.0 => "less than 1".to_owned(),
            Some(n) => format!("{n:.1}"),
        };
        let BreakEven { c, formula, lock, whole, .. } = even;
        writeln!(
            out,
            "{name}: C = {c:.0}, n = {formula:.1} - {lock:.1} k, with one lock {whole:.1}; found \
            {crossing}"
        )?;
    }
    let paper = format!(
        "1993: R = {R:.0}; urgent {} µs, n = {}; ordinary {} µs, n = {} - 7 k",
        URGENT.0, URGENT.1, ORDINARY.0, ORDINARY.1
    );
    writeln!(out, "{}", paint.text(DIM, &paper))
}

/// A figure with an aim.
struct Aim {
    what: String,
    found: Option<f64>,
    bar: f64,
    more: bool,
}

fn aims(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let most = CALLERS[CALLERS.len() - 1];
    let per_s = |hot: Hot, system: &str| {
        let case = hot.record(most);
        records
            .iter()
            .find(|record| record.case == case && record.system == system)
            .map(|record| record.per_s)
    };
    let ratio =
        |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(one, other)| one / other);
    let mut all = Vec::new();
    for hot in [Hot::Counter, Hot::Queue] {
        let name = hot.name();
        all.push(Aim {
            what: format!("{name}, {most} processes: access to a pthread mutex"),
            found: ratio(per_s(hot, way::ACCESS), per_s(hot, way::MUTEX)),
            bar: 2.0,
            more: true,
        });
    }
    // The queue behind the spin lock is another implementation: it does not validate its content.
    let alone = |way| found(records, &Hot::Counter.alone(), way);
    all.push(Aim {
        what: "counter at home alone, to a spin lock".to_owned(),
        found: ratio(alone(way::LOCAL), alone(way::SPIN)),
        bar: 1.3,
        more: false,
    });
    let all: Vec<Aim> = all.into_iter().filter(|aim| aim.found.is_some()).collect();
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint.text(BOLD, "ratios of this run"))?;
    writeln!(out, "{}", paint.text(DIM, &format!("{:<52}{}", "", heads(["found", "aim"]))))?;
    for Aim { what, found, bar, more } in all {
        let found = found.unwrap_or(f64::NAN);
        let (sign, met) = if more { ("≥", found >= bar) } else { ("≤", found <= bar) };
        let row = format!("{what:<52}{found:>FIGURE$.2}{:>FIGURE$}", format!("{sign} {bar}"));
        writeln!(out, "{}", paint.text(if met { GREEN } else { RED }, &row))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::found::Throughput;
    use crate::record::{Label, Turn};
    use crate::stats::Summary;

    fn label<'a>(case: &'a str, system: &'a str) -> Label<'a> {
        Label { suite: "homed", case, system, placement: Placement::TwoCores, mode: Mode::Polling }
    }

    fn time(case: &str, system: &str, ns: f64) -> Record {
        let found = Summary { p99_ns: 2.0 * ns, p999_ns: 3.0 * ns, ..Summary::flat(ns, 5) };
        label(case, system).latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    fn rate(case: &str, system: &str, calls: u64) -> Record {
        label(case, system).throughput(
            8,
            &[Turn { found: Throughput { calls, elapsed_ns: 1_000_000 }, lines: (140.0, 140.0) }],
        )
    }

    #[test]
    fn everything_is_told_beside_the_papers() {
        let mut records = vec![
            time("find-last-5", way::LOCAL, 20.0),
            time("find-last-5", way::LOCAL_UNLOCKED, 15.0),
            time("find-last-5-dirty", way::ACCESS, 400.0),
            time("find-last-5-dirty", way::BULK, 450.0),
            time("find-last-5-dirty", way::URGENT, 505.0),
            rate("throughput-counter-8", way::ACCESS, 30_000),
            rate("throughput-counter-8", way::MUTEX, 10_000),
            time("throughput-counter-alone", way::LOCAL, 6.0),
            time("throughput-counter-alone", way::SPIN, 4.0),
            time("slowdown-find-last-10", way::ACCESS, 10.0),
            time("slowdown-find-last-10-caller", way::ACCESS, 200.0),
            time("slowdown-find-last-10", way::URGENT_SIGNAL_PAUSED, 300.0),
            time("slowdown-find-last-10-caller", way::URGENT_SIGNAL_PAUSED, 900.0),
            time("slowdown-enqueue-dequeue", way::ACCESS, 10.0),
        ];
        for lines in CHAINS {
            let n = f64::from(lines);
            records.extend([
                time(&chain(lines), way::LOCAL, 2.0 * n),
                time(&chain(lines), way::ACCESS, 100.0 + 52.0 * n),
                time(&chain(lines), way::URGENT, 300.0 + 2.0 * n),
                time(&chain(lines), way::INVOKE, 800.0 + 2.0 * n),
            ]);
        }
        let report = Report {
            records,
            notes: vec!["a note".into()],
            failures: vec!["something".into()],
            ..Report::default()
        };
        let mut out = Vec::new();
        print(&report, &mut out, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let row = |name: &str| {
            let line = text
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_else(|| panic!("{name}: {text}"));
            line[name.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("find-last-5-dirty")[4..8], ["400", "-", "450", "505"], "{text}");
        assert_eq!(
            row("counter, 8 processes: access to a pthread mutex"),
            ["3.00", "≥", "2"],
            "{text}"
        );
        assert_eq!(row("counter at home alone, to a spin lock"), ["1.50", "≤", "1.3"], "{text}");
        assert_eq!(row("find-last-10, access"), ["10.0", "200", "5.0"], "{text}");
        assert_eq!(row("find-last-10, urgent-signal-paused"), ["300", "900", "33.3"], "{text}");
        assert!(text.contains("R = 26.0 (52.0 ns to 2.00)"), "{text}");
        assert!(
            text.contains("urgent: C = 150, n = 6.0 - 2.0 k, with one lock 4.0; found 4.0"),
            "{text}"
        );
        assert!(
            text.contains("ordinary: C = 400, n = 16.0 - 2.0 k, with one lock 14.0; found 14.0"),
            "{text}"
        );
        assert!(
            text.contains("1993: by access 1 ms of 19, 5 %; urgent 17 ms of 22, 77 %"),
            "{text}"
        );
        assert!(
            text.contains("note: a note")
                && text.contains("not measured: something")
                && !text.contains('\x1b'),
            "{text}"
        );
    }
}
