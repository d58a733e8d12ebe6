//! The report of the suite `pvm`: a table for each of the paper's figures, with the paper's own
//! below, and each figure that has an aim.

use std::io::{self, Write};

use super::bars::{self, Bar};
use super::case::{BYTES, Case, IDLES, LAPLACES, RINGS, STARTS, SWITCHES, mflops};
use super::contender::{Contender, OURS, PEERS};
use super::paper::{FIGURE_2, FIGURE_3, FIGURE_5, FIGURE_6, FIGURE_7, SEQUENTIAL, hop_ns};
use crate::case::Placement;
use crate::record::Record;
use crate::report::Report;
use crate::table::{BOLD, DIM, GREEN, Paint, RED, remarks, thousands};

/// Column widths of a name, of a figure, and of an aim's name.
const NAME: usize = 32;
const FIGURE: usize = 11;
const BAR: usize = 60;

/// Prints the whole `report`.
///
/// # Errors
/// `out` cannot be written.
pub fn print(report: &Report, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let (paint, records) = (Paint { colour }, &report.records[..]);
    switches(records, out, &paint)?;
    one_way(records, out, &paint)?;
    ring(records, out, &paint)?;
    laplace(records, out, &paint)?;
    tasks(records, out, &paint)?;
    bars(records, out, &paint)?;
    writeln!(out)?;
    remarks(out, &paint, &report.notes, &report.failures)
}

/// Returns the median of a case, of Upcall or of the machine, on one processor.
pub(super) fn here(records: &[Record], system: &str, case: Case) -> Option<f64> {
    at(records, system, Placement::OneCore, case).map(|record| record.p50_ns)
}

/// The record of a case.
pub(super) fn at<'a>(
    records: &'a [Record],
    system: &str,
    placement: Placement,
    case: Case,
) -> Option<&'a Record> {
    let name = case.name();
    records.iter().find(|record| {
        record.system == system && record.placement == placement && record.case == name
    })
}

fn cell(figure: Option<f64>) -> String {
    format!("{:>FIGURE$}", figure.map_or("-".to_owned(), thousands))
}

fn row(name: &str, cells: impl IntoIterator<Item = Option<f64>>) -> String {
    format!("{name:<NAME$}{}", cells.into_iter().map(cell).collect::<String>())
}

fn heads<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    format!(
        "{:<NAME$}{}",
        "",
        all.into_iter().map(|head| format!("{:>FIGURE$}", head.to_string())).collect::<String>()
    )
}

fn multiple(ratio: Option<f64>) -> String {
    let text = match ratio {
        None => String::new(),
        Some(ratio) if ratio < 9.95 => format!("× {ratio:.2}"),
        Some(ratio) => format!("× {}", thousands(ratio.round())).replace(".0", ""),
    };
    format!("{text:>FIGURE$}")
}

fn switches(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let call = here(records, "limit", Case::ProcedureCall);
    let limits =
        [("procedure call", Case::ProcedureCall), ("two processes, by pipes", Case::SwitchProcess)];
    let limits = limits.map(|(name, case)| (name.to_owned(), here(records, "limit", case)));
    let own =
        SWITCHES.map(|ulps| (format!("ULPs, {ulps}"), here(records, "upcall", Case::Switch(ulps))));
    let all: Vec<_> =
        limits.into_iter().chain(own).filter_map(|(name, ns)| Some((name, ns?))).collect();
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint.text(BOLD, "Figure 2: from one to the next"))?;
    writeln!(out, "{}", paint.text(DIM, &heads(["ns", "× call"])))?;
    for (name, ns) in all {
        let line = row(&name, [Some(ns), call.map(|call| ns / call)]);
        writeln!(
            out,
            "{}",
            if name.starts_with("ULP") { paint.row("upcall", &line) } else { line }
        )?;
    }
    let [call, ulp, process] = FIGURE_2;
    let text = format!(
        "1994: a call {call} µs, ULPs {ulp} µs (× {:.2}), processes {process:.0} µs (× {:.0})",
        ulp / call,
        process / call
    );
    writeln!(out, "{}", paint.text(DIM, &text))
}

/// Returns the contenders that have a row in the tables, once each.
fn rows() -> impl Iterator<Item = (Contender, String)> {
    let all = OURS.into_iter().chain(PEERS);
    all.filter(|one| one.takes_part(Case::Ring(2))).map(|one| {
        let place = if one.placement == Placement::TwoCores { ", two cores" } else { "" };
        (one, format!("{}{place}", one.name))
    })
}

/// Prints a figure of each case for all contenders that have it. Rows of others are followed by
/// multiples of Upcall's figures.
fn matrix<const N: usize>(
    records: &[Record],
    cases: [Case; N],
    figure: fn(f64) -> f64,
    (out, paint): (&mut impl Write, &Paint),
) -> io::Result<()> {
    for (one, name) in rows() {
        let found = cases.map(|case| {
            at(records, one.name, one.placement, case).map(|record| figure(record.p50_ns))
        });
        if found.iter().all(Option::is_none) {
            continue;
        }
        writeln!(out, "{}", paint.row(one.name, &row(&name, found)))?;
        if one.name != "upcall" {
            let ours = cases.map(|case| here(records, "upcall", case).map(figure));
            let ratios = found
                .into_iter()
                .zip(ours)
                .map(|(found, ours)| multiple(found.zip(ours).map(|(a, b)| a / b)));
            let ratios: String = ratios.collect();
            if !ratios.trim().is_empty() {
                writeln!(
                    out,
                    "{}",
                    paint.text(DIM, format!("{:<NAME$}{ratios}", "  to upcall").trim_end())
                )?;
            }
        }
    }
    Ok(())
}

fn any(records: &[Record], cases: impl IntoIterator<Item = Case>) -> bool {
    cases.into_iter().any(|case| records.iter().any(|record| record.case == case.name()))
}

fn one_way(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let cases = BYTES.map(Case::OneWay);
    if !any(records, cases) {
        return Ok(());
    }
    writeln!(
        out,
        "\n{}",
        paint
            .text(BOLD, "Figure 3: one way, packed and unpacked, written and checked, ns by bytes")
    )?;
    writeln!(out, "{}", paint.text(DIM, &heads(BYTES)))?;
    matrix(records, cases, |ns| ns, (&mut *out, paint))?;
    writeln!(out, "{}", paint.text(DIM, "neither written nor checked"))?;
    let figures = |contender: &Contender, of: fn(&Record) -> Option<f64>| {
        cases.map(|case| at(records, contender.name, contender.placement, case).and_then(of))
    };
    for (contender, name) in rows() {
        let bare = figures(&contender, |record| record.bare_ns);
        if bare.iter().any(Option::is_some) {
            writeln!(out, "{}", paint.row(contender.name, &row(&name, bare)))?;
        }
        if (contender.name, contender.placement) == ("upcall", Placement::OneCore) {
            let copies =
                figures(&contender, |r| bars::in_copies(r).filter(|_| r.memcpy_ns > Some(30.0)));
            writeln!(out, "{}", row("a copy", figures(&contender, |record| record.memcpy_ns)))?;
            writeln!(out, "{}", row("upcall, in copies", copies))?;
        }
    }
    for (at, name) in ["1994: PVM, µs", "1994: UPVM, µs"].into_iter().enumerate() {
        writeln!(
            out,
            "{}",
            paint.text(DIM, &row(name, FIGURE_3.map(|(_, ms)| Some(1e3 * ms[at]))))
        )?;
    }
    Ok(())
}

fn ring(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let cases = RINGS.map(Case::Ring);
    if !any(records, cases) {
        return Ok(());
    }
    writeln!(out, "\n{}", paint.text(BOLD, "Figures 5 and 6: a hop in a ring, ns by tasks"))?;
    writeln!(out, "{}", paint.text(DIM, &heads(RINGS)))?;
    matrix(records, cases, |ns| ns, (&mut *out, paint))?;
    let hops = |name: &str, ms: [f64; 8]| {
        let hops = FIGURE_5.iter().zip(ms).map(|((tasks, _), ms)| Some(hop_ns(*tasks, ms) / 1e3));
        row(name, hops)
    };
    for (at, name) in ["1994: PVM, µs", "1994: UPVM, µs"].into_iter().enumerate() {
        writeln!(out, "{}", paint.text(DIM, &hops(name, FIGURE_5.map(|(_, ms)| ms[at]))))?;
    }
    let two = [
        "PVM, 2 nodes, intlv",
        "PVM, 2 nodes, blocks",
        "UPVM, 2 nodes, intlv",
        "UPVM, 2 nodes, blocks",
    ];
    for (at, name) in two.into_iter().enumerate() {
        writeln!(
            out,
            "{}",
            paint.text(DIM, &hops(&format!("1994: {name}, µs"), FIGURE_6.map(|(_, ms)| ms[at])))
        )?;
    }
    Ok(())
}

fn laplace(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let cases = LAPLACES.map(Case::Laplace);
    if !any(records, cases) {
        return Ok(());
    }
    writeln!(out, "\n{}", paint.text(BOLD, "Figure 7: Laplace of 128 x 128, Mflops by tasks"))?;
    writeln!(out, "{}", paint.text(DIM, &heads(LAPLACES)))?;
    matrix(records, cases, mflops, (&mut *out, paint))?;
    let alone = cases.map(|case| {
        at(records, "upcall", Placement::OneCore, case).and_then(|record| record.alone_ns)
    });
    if alone.iter().any(Option::is_some) {
        writeln!(out, "{}", row("one task, in as many blocks", alone.map(|ns| ns.map(mflops))))?;
    }
    for (at, name) in ["1994: PVM", "1994: UPVM"].into_iter().enumerate() {
        let of = |tasks: usize| match tasks {
            1 => Some(SEQUENTIAL),
            _ => FIGURE_7.iter().find(|(known, _)| *known == tasks).map(|(_, mflops)| mflops[at]),
        };
        let cells: String = LAPLACES
            .map(|tasks| of(tasks).map_or("-".to_owned(), |mflops| format!("{mflops:.2}")))
            .map(|cell| format!("{cell:>FIGURE$}"))
            .concat();
        writeln!(out, "{}", paint.text(DIM, &format!("{name:<NAME$}{cells}")))?;
    }
    Ok(())
}

fn tasks(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let (starts, idles) = (STARTS.map(Case::Start), IDLES.map(Case::Idle));
    if any(records, starts) {
        writeln!(
            out,
            "\n{}",
            paint.text(
                BOLD,
                "start, until it has sent a message from its main, µs a task by tasks at once"
            )
        )?;
        writeln!(out, "{}", paint.text(DIM, &heads(STARTS)))?;
        matrix(records, starts, |ns| ns / 1e3, (&mut *out, paint))?;
    }
    if any(records, idles) {
        writeln!(
            out,
            "\n{}",
            paint.text(
                BOLD,
                "tasks that wait for a message: processor time, memory with that of \
                all that runs them"
            )
        )?;
        writeln!(out, "{}", paint.text(DIM, &heads(["tasks", "µs/s", "KiB each"])))?;
        for (one, name) in rows() {
            for tasks in IDLES {
                let Some(record) = at(records, one.name, one.placement, Case::Idle(tasks)) else {
                    continue;
                };
                let kib = record.bytes_each.map(|bytes| bytes / 1024.0);
                let line = format!(
                    "{name:<NAME$}{tasks:>FIGURE$}{}{}",
                    cell(Some(record.p50_ns / 1e3)),
                    cell(kib)
                );
                writeln!(out, "{}", paint.row(one.name, &line))?;
            }
        }
    }
    Ok(())
}

fn bars(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let all = bars::all(records);
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint.text(BOLD, "what is aimed at"))?;
    writeln!(
        out,
        "{}",
        paint.text(DIM, &format!("{:<BAR$}{:>FIGURE$}{:>FIGURE$}", "", "found", "aim"))
    )?;
    for bar in all {
        let shown =
            |figure: f64| if figure < 10.0 { format!("{figure:.2}") } else { thousands(figure) };
        let aim = format!(
            "{} {}",
            if bar.more { "≥" } else { "≤" },
            shown(bar.aim).trim_end_matches(".00").trim_end_matches(".0")
        );
        let Bar { what, found, .. } = &bar;
        let line = format!(
            "{what:<BAR$}{:>FIGURE$}{aim:>FIGURE$}{:>FIGURE$}",
            shown(*found),
            if bar.met() { "" } else { "missed" }
        );
        writeln!(out, "{}", paint.text(if bar.met() { GREEN } else { RED }, line.trim_end()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Mode;
    use crate::record::{Label, Turn};
    use crate::stats::Summary;

    fn record(case: &str, system: &str, placement: Placement, ns: f64) -> Record {
        let found = Summary { p99_ns: 2.0 * ns, p999_ns: 3.0 * ns, ..Summary::flat(ns, 5) };
        let label = Label { suite: "pvm", case, system, placement, mode: Mode::Parked };
        label.latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    fn told(records: Vec<Record>) -> String {
        let report = Report {
            records,
            notes: vec!["a note".into()],
            failures: vec!["something".into()],
            ..Report::default()
        };
        let mut out = Vec::new();
        print(&report, &mut out, false).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn everything_is_told_beside_the_papers() {
        let one = |case: &str, system: &str, ns| record(case, system, Placement::OneCore, ns);
        let touched = Record {
            bare_ns: Some(10_000.0),
            memcpy_ns: Some(5_000.0),
            ..one("one-way-100000", "upcall", 30_000.0)
        };
        let text = told(vec![
            one("procedure-call", "limit", 2.0),
            one("switch-process", "limit", 1_600.0),
            one("switch-16", "upcall", 30.0),
            one("one-way-0", "upcall", 120.0),
            one("one-way-0", "pvm-direct", 12_000.0),
            record("one-way-0", "openmpi", Placement::TwoCores, 150.0),
            touched,
            one("ring-24", "upcall", 160.0),
            record("ring-2", "upcall-2", Placement::TwoCores, 110.0),
            record("call-one-way", "upcall", Placement::TwoCores, 100.0),
            one("laplace-1", "upcall", 10_000.0),
            one("laplace-64", "upcall", 10_100.0),
            one("start-1", "upcall", 250_000.0),
            one("start-1", "pvm", 2_000_000.0),
            Record { bytes_each: Some(102_400.0), ..one("idle-1000", "upcall", 0.0) },
        ]);
        let words = |begin: &str| -> Vec<String> {
            let line = text
                .lines()
                .find(|line| line.starts_with(begin))
                .unwrap_or_else(|| panic!("{begin}: {text}"));
            line[begin.len()..].split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(words("ULPs, 16"), ["30.0", "15.0"], "{text}");
        assert_eq!(words("pvm-direct")[..2], ["12", "000"], "{text}");
        assert!(
            text.contains("× 100") && text.contains("× 1.25") && text.contains("1994: UPVM, µs"),
            "{text}"
        );
        assert_eq!(words("upcall, in copies").last().unwrap(), "2.0", "{text}");
        assert_eq!(words("a hop in a ring of 24, ns"), ["160", "≤", "150", "missed"], "{text}");
        assert_eq!(words("one way, 0 bytes: PVM to ours"), ["100", "≥", "100"], "{text}");
        assert_eq!(words("Laplace, percent lost by 64 tasks"), ["0.99", "≤", "2"], "{text}");
        assert_eq!(
            words("a hop between processes, in one ways of a call"),
            ["1.10", "≤", "1.50"],
            "{text}"
        );
        assert_eq!(words("KiB of a task that waits"), ["100", "≤", "150"], "{text}");
        assert_eq!(words("start of a task: PVM to ours"), ["8.00", "≥", "6"], "{text}");
        assert!(
            text.contains("note: a note")
                && text.contains("not measured: something")
                && !text.contains('\x1b'),
            "{text}"
        );
    }

    #[test]
    fn what_was_not_measured_is_not_told() {
        let text = told(vec![record("ring-2", "mpich", Placement::TwoCores, 200.0)]);
        assert!(
            text.contains("mpich, two cores")
                && !text.contains("to upcall")
                && !text.contains("aimed at"),
            "{text}"
        );
        assert!(!text.contains("Figure 2") && !text.contains("Figure 7"), "{text}");
    }
}
