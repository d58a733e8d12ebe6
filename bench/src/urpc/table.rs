//! The report of the suite `urpc`: Figures 3 and 4 as numbers, with a row for each T and a column
//! for each configuration, a comparison with the aims, and Table II.

use std::io::{self, Write};

use super::case::{ANCHORS, Part, THREADS, null};
use crate::record::Record;
use crate::report::Report;
use crate::table::{BOLD, DIM, GREEN, Paint, RED, remarks, thousands};

/// Column widths of a name, and of a figure.
const NAME: usize = 10;
const FIGURE: usize = 14;

/// Prints the whole `report`.
///
/// # Errors
/// `out` cannot be written.
pub fn print(report: &Report, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let (paint, found) = (Paint { colour }, Found(&report.records));
    let lines = found.lines();
    if !lines.is_empty() {
        figure(
            &found,
            &lines,
            out,
            &paint,
            "null call by T threads at once: latency, µs (median)",
            |r| r.p50_ns / 1e3,
        )?;
        limits(&found, &lines, out, &paint)?;
        figure(
            &found,
            &lines,
            out,
            &paint,
            "the same: thousand calls a second, all threads",
            |r| r.per_s / 1e3,
        )?;
        ratios(&found, out, &paint)?;
    }
    parts(&found, out, &paint)?;
    writeln!(out)?;
    remarks(out, &paint, &report.notes, &report.failures)
}

/// A line of the figures: a configuration and a system.
type Line<'a> = (&'a str, &'a str);

/// Access to records.
struct Found<'a>(&'a [Record]);

impl<'a> Found<'a> {
    fn null(&self, config: &str, system: &str, threads: usize) -> Option<&'a Record> {
        let case = null(threads);
        self.0
            .iter()
            .find(|r| r.config.as_deref() == Some(config) && r.system == system && r.case == case)
    }

    fn part(&self, part: Part) -> Option<f64> {
        self.0.iter().find(|record| record.case == part.name()).map(|record| record.p50_ns)
    }

    /// Returns Upcall's lines, by configuration.
    fn lines(&self) -> Vec<Line<'a>> {
        let mut lines: Vec<Line<'_>> = Vec::new();
        for record in self.0.iter().filter(|record| record.system.starts_with("upcall")) {
            if let Some(config) = record.config.as_deref()
                && !lines.contains(&(config, record.system.as_str()))
            {
                lines.push((config, &record.system));
            }
        }
        lines.sort_unstable();
        lines
    }
}

fn heading(line: &Line<'_>) -> String {
    let name = if line.1 == "upcall" { line.0.to_owned() } else { format!("{} polling", line.0) };
    format!("{name:>FIGURE$}")
}

fn cell(figure: Option<f64>) -> String {
    format!("{:>FIGURE$}", figure.map_or("-".to_owned(), precise))
}

/// Formats a latency, which may be below 1 µs or above 10.
fn precise(x: f64) -> String {
    if x < 10.0 { format!("{x:.2}") } else { thousands(x) }
}

fn figure(
    found: &Found<'_>,
    lines: &[Line<'_>],
    out: &mut impl Write,
    paint: &Paint,
    title: &str,
    of: impl Fn(&Record) -> f64,
) -> io::Result<()> {
    writeln!(out, "\n{}", paint.text(BOLD, title))?;
    let heads: String = lines.iter().map(heading).collect();
    writeln!(out, "{}", paint.text(DIM, &format!("{:<NAME$}{heads}", "T \\ C,S")))?;
    for threads in THREADS {
        let figures: Vec<_> = lines
            .iter()
            .map(|(config, system)| found.null(config, system, threads).map(&of))
            .collect();
        if figures.iter().any(Option::is_some) {
            writeln!(out, "{threads:<NAME$}{}", figures.into_iter().map(cell).collect::<String>())?;
        }
    }
    Ok(())
}

/// Prints the row of the machine's limits, with one call at a time.
fn limits(
    found: &Found<'_>,
    lines: &[Line<'_>],
    out: &mut impl Write,
    paint: &Paint,
) -> io::Result<()> {
    let of = |line: &Line<'_>| found.null(line.0, "limit", 1).map(|record| record.p50_ns / 1e3);
    if lines.iter().all(|line| of(line).is_none()) {
        return Ok(());
    }
    let row: String = lines.iter().map(|line| cell(of(line))).collect();
    writeln!(out, "{}", paint.text(DIM, &format!("{:<NAME$}{row}", "limit")))
}

/// A ratio with an aim.
struct Aim {
    what: &'static str,
    found: Option<f64>,
    bar: f64,
    /// `true` if more is better.
    more: bool,
    paper: Option<f64>,
}

/// Extracts a figure from a record.
type Figure = fn(&Record) -> f64;
const P50: Figure = |record| record.p50_ns;
const RATE: Figure = |record| record.per_s;
const PER_CALL: Figure = |record| 1e9 / record.per_s;

fn aims(found: &Found<'_>) -> Vec<(&'static str, Vec<Aim>)> {
    let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
    let anchor = |threads| {
        ANCHORS.iter().find(|a| a.config.to_string() == "1,1" && a.threads == Some(threads))
    };
    let us = |threads| anchor(threads).and_then(|anchor| anchor.us);
    let per_s = |threads| anchor(threads).and_then(|anchor| anchor.per_s);
    let paper_most = ANCHORS.iter().find(|a| a.config.to_string() == "2,2").and_then(|a| a.per_s);
    let hand_off = found.null("1,0", "limit", 1).map(P50);
    let mut all = Vec::new();
    for system in ["upcall", "upcall-polling"] {
        let of = |config, threads, figure: Figure| found.null(config, system, threads).map(figure);
        let most =
            |config| THREADS.into_iter().filter_map(|t| of(config, t, RATE)).max_by(f64::total_cmp);
        let aims = vec![
            Aim {
                what: "C=S=1: throughput, T=2 to T=1",
                found: ratio(of("1,1", 2, RATE), of("1,1", 1, RATE)),
                bar: 1.75,
                more: true,
                paper: ratio(per_s(2), per_s(1)),
            },
            Aim {
                what: "C=S=1: latency, T=2 to T=1",
                found: ratio(of("1,1", 2, P50), of("1,1", 1, P50)),
                bar: 1.2,
                more: false,
                paper: ratio(us(2), us(1)),
            },
            Aim {
                what: "throughput, C=S=2 to C=S=1",
                found: ratio(most("2,2"), most("1,1")),
                bar: 1.8,
                more: true,
                paper: ratio(paper_most, per_s(2)),
            },
            Aim {
                what: "S=0, T=1: latency to hand-off",
                found: ratio(of("1,0", 1, P50), hand_off),
                bar: 1.25,
                more: false,
                paper: None,
            },
            Aim {
                what: "S=0, T=32: time a call to hand-off",
                found: ratio(of("1,0", 32, PER_CALL), hand_off),
                bar: 0.25,
                more: false,
                paper: None,
            },
        ];
        all.push((system, aims.into_iter().filter(|aim| aim.found.is_some()).collect()));
    }
    all
}

fn ratios(found: &Found<'_>, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let aims = aims(found);
    if aims.iter().all(|(_, aims)| aims.is_empty()) {
        return Ok(());
    }
    writeln!(out, "\n{}", paint.text(BOLD, "ratios of this run"))?;
    let heads = format!("{:<52}{:>8}{:>10}{:>8}", "", "found", "aim", "URPC's");
    writeln!(out, "{}", paint.text(DIM, &heads))?;
    for (system, aims) in aims {
        for Aim { what, found, bar, more, paper } in aims {
            let found = found.unwrap_or(f64::NAN);
            let (sign, met) = if more { ("≥", found >= bar) } else { ("≤", found <= bar) };
            let paper = paper.map_or("-".to_owned(), |paper| format!("{paper:.2}"));
            let name = format!("{what}, {system}");
            let row = format!("{name:<52}{found:>8.2}{:>10}{paper:>8}", format!("{sign} {bar:.2}"));
            writeln!(out, "{}", paint.text(if met { GREEN } else { RED }, &row))?;
        }
    }
    Ok(())
}

/// Prints Table II: a row for each part, a column each for client and server.
fn parts(found: &Found<'_>, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    if Part::ALL.into_iter().all(|part| found.part(part).is_none()) {
        return Ok(());
    }
    let unit = found.part(Part::ProcedureCall);
    writeln!(
        out,
        "\n{}",
        paint.text(
            BOLD,
            "parts of a null call on one processor, ns (median); × procedure calls; URPC's µs and ×"
        )
    )?;
    let heads = ["client", "×", "URPC", "×", "server", "×", "URPC", "×"]
        .map(|head| format!("{head:>9}"))
        .concat();
    writeln!(out, "{}", paint.text(DIM, &format!("{:<NAME$}{heads}", "part")))?;
    let side = |ns: Option<f64>, us: f64| {
        let times = ns.zip(unit).map(|(ns, unit)| ns / unit);
        let show = |x: Option<f64>| x.map_or("-".to_owned(), thousands);
        format!(
            "{:>9}{:>9}{:>9}{:>9.1}",
            show(ns),
            show(times),
            us,
            us / Part::ProcedureCall.paper_us()
        )
    };
    let rows: [(&str, Part, Part); 4] = [
        ("send", Part::SendClient, Part::SendServer),
        ("poll", Part::PollClient, Part::PollServer),
        ("receive", Part::ReceiveClient, Part::ReceiveServer),
        ("dispatch", Part::DispatchClient, Part::DispatchServer),
    ];
    for (name, client, server) in rows {
        let [client, server] = [client, server].map(|part| side(found.part(part), part.paper_us()));
        writeln!(out, "{name:<NAME$}{client}{server}")?;
    }
    let sum = |parts: [Part; 4]| {
        let ns = parts.iter().map(|&part| found.part(part)).sum::<Option<f64>>();
        side(ns, parts.iter().map(|part| part.paper_us()).sum())
    };
    let (client, server) = (sum(rows.map(|row| row.1)), sum(rows.map(|row| row.2)));
    writeln!(out, "{:<NAME$}{client}{server}", "total")?;
    let call = unit.map_or("-".to_owned(), |ns| format!("{ns:.2} ns"));
    writeln!(
        out,
        "{}",
        paint.text(DIM, &format!("a procedure call: {call} here, 7 µs on the paper's Firefly"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::record::{Label, Turn};
    use crate::stats::Summary;

    fn record(case: &str, system: &str, config: Option<&str>, ns: f64, per_s: f64) -> Record {
        let found = Summary::flat(ns, 5);
        let label = Label {
            suite: "urpc",
            case,
            system,
            placement: Placement::OneCore,
            mode: Mode::Polling,
        };
        let record = label.latency(&[Turn { found, lines: (140.0, 140.0) }]);
        Record { config: config.map(str::to_owned), per_s, ..record }
    }

    fn printed(records: Vec<Record>) -> String {
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
    fn figures_have_threads_down_and_configurations_across() {
        let text = printed(vec![
            record("null-t1", "upcall", Some("1,1"), 200.0, 5e6),
            record("null-t2", "upcall", Some("1,1"), 220.0, 9e6),
            record("null-t1", "upcall-polling", Some("1,1"), 180.0, 5.5e6),
            record("null-t1", "upcall", Some("1,0"), 6_000.0, 166e3),
            record("null-t32", "upcall", Some("1,0"), 9_000.0, 2e6),
            record("null-t1", "limit", Some("1,0"), 5_000.0, 200e3),
        ]);
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[2], ["T", "\\", "C,S", "1,0", "1,1", "1,1", "polling"], "{text}");
        assert_eq!(words[3], ["1", "6.00", "0.20", "0.18"], "{text}");
        assert_eq!(words[4], ["2", "-", "0.22", "-"], "{text}");
        assert_eq!(words[6], ["limit", "5.00", "-", "-"], "{text}");
        let find = |what: &str| {
            text.lines()
                .find(|line| line.contains(what))
                .unwrap_or_else(|| panic!("{what}: {text}"))
        };
        assert!(
            find("throughput, T=2 to T=1").contains("1.80")
                && find("throughput, T=2 to T=1").contains("1.73"),
            "{text}"
        );
        assert!(find("latency, T=2 to T=1").contains("1.10"), "{text}");
        assert!(
            find("latency to hand-off").contains("1.20")
                && find("time a call to hand-off").contains("0.10"),
            "{text}"
        );
        assert!(!text.contains("C=S=2") && !text.contains("procedure call"), "{text}");
        assert!(
            text.contains("note: a note")
                && text.contains("not measured: something")
                && !text.contains('\x1b'),
            "{text}"
        );
    }

    #[test]
    fn parts_are_told_in_procedure_calls() {
        let mut records: Vec<_> =
            Part::ALL.iter().map(|part| record(part.name(), "upcall", None, 10.0, 1e8)).collect();
        records[0].p50_ns = 2.0;
        let text = printed(records);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("send"), ["10.0", "5.0", "18", "2.6", "10.0", "5.0", "13", "1.9"], "{text}");
        assert_eq!(
            row("total"),
            ["40.0", "20.0", "54", "7.7", "40.0", "20.0", "53", "7.6"],
            "{text}"
        );
    }
}
