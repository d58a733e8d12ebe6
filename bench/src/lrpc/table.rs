//! The report of the suite `lrpc`: Tables IV and V and Figure 2, beside the paper's numbers, and a
//! comparison with the aims.

use std::io::{self, Write};

use super::paper::{FIGURE_2, MINIMUM_US, OVERHEAD_US, SRC_RPC_MOST, TESTS, table_iv};
use super::{CONFIGS, HALVES, MIXES, PARTS, SPARES, null};
use crate::case::{Case, Placement};
use crate::record::Record;
use crate::report::Report;
use crate::table::{BOLD, DIM, GREEN, Paint, RED, remarks, thousands};

/// Prints the whole `report`.
///
/// # Errors
/// `out` cannot be written.
pub fn print(report: &Report, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let (paint, found) = (Paint { colour }, Found(&report.records));
    tests(&found, out, &paint)?;
    parts(&found, out, &paint)?;
    processors(&found, out, &paint)?;
    mixes(&found, out, &paint)?;
    ratios(&found, out, &paint)?;
    writeln!(out)?;
    remarks(out, &paint, &report.notes, &report.failures)
}

/// Access to records.
pub(super) struct Found<'a>(pub &'a [Record]);

impl<'a> Found<'a> {
    fn test(&self, system: &str, placement: Placement, case: &str) -> Option<&'a Record> {
        self.0.iter().find(|r| r.system == system && r.placement == placement && r.case == case)
    }

    fn p50(&self, system: &str, placement: Placement, case: &str) -> Option<f64> {
        self.test(system, placement, case).map(|record| record.p50_ns)
    }

    fn per_s(&self, system: &str, config: &str, processors: usize) -> Option<f64> {
        let of = |r: &&Record| {
            r.system == system && r.config.as_deref() == Some(config) && r.case == null(processors)
        };
        self.0.iter().find(of).map(|record| record.per_s)
    }

    /// Returns the systems that made the four calls: the paper's two first.
    fn callers(&self) -> Vec<(&'a str, Placement)> {
        let mut callers = Vec::new();
        for record in self.0.iter().filter(|record| record.case == Case::Null.name()) {
            callers.push((record.system.as_str(), record.placement));
        }
        callers
    }

    /// Returns the minimum in ns: a procedure call, two crossings, two switches.
    pub fn minimum(&self) -> Option<[f64; 3]> {
        let part = |name| self.p50("limit", Placement::OneCore, name);
        let (call, crossings) = (part(PARTS[0])?, 2.0 * part(PARTS[1])?);
        Some([call, crossings, part(Case::Null.name())? - crossings])
    }
}

fn cell(figure: Option<f64>) -> String {
    format!("{:>11}", figure.map_or("-".to_owned(), thousands))
}

fn tests(found: &Found<'_>, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    writeln!(
        out,
        "{}",
        paint.text(BOLD, "Table IV: one call at a time, ns (median), and p99 of Null")
    )?;
    let heads: String = TESTS.iter().map(|test| format!("{:>11}", test.name())).collect();
    writeln!(
        out,
        "{}",
        paint.text(DIM, &format!("{:<28}{heads}{:>11}{:>11}", "", "null p99", "line"))
    )?;
    for (system, placement) in found.callers() {
        let cells: String =
            TESTS.iter().map(|test| cell(found.p50(system, placement, test.name()))).collect();
        let null = found.test(system, placement, Case::Null.name());
        let ends =
            format!("{}{}", cell(null.map(|r| r.p99_ns)), cell(null.and_then(|r| r.line_ns)));
        let row = format!("{:<28}{cells}{ends}", format!("{system}, {placement}"));
        writeln!(out, "{}", paint.row(system, &row))?;
    }
    let mut paper = |name: &str, of: fn(super::TableIv) -> f64| {
        let cells: String =
            TESTS.iter().map(|&test| cell(table_iv(test).map(|row| of(row) * 1e3))).collect();
        writeln!(out, "{}", paint.text(DIM, &format!("{name:<28}{cells}")))
    };
    paper("1990: LRPC/MP", |row| row.lrpc_mp)?;
    paper("1990: LRPC", |row| row.lrpc)?;
    paper("1990: SRC RPC (Taos)", |row| row.taos)
}

fn parts(found: &Found<'_>, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let Some(minimum) = found.minimum() else { return Ok(()) };
    let half = |name| found.p50("upcall", Placement::OneCore, name);
    let whole = half(Case::Null.name());
    writeln!(
        out,
        "\n{}",
        paint.text(BOLD, "Table V: Null on one processor, ns; × procedure calls; LRPC's µs and ×")
    )?;
    let mut row = |name: &str, ns: Option<f64>, us: Option<f64>| {
        let times = ns.map(|ns| ns / minimum[0]);
        let paper = us.map_or(format!("{:>11}{:>11}", "-", "-"), |us| {
            format!("{us:>11}{:>11.1}", us / MINIMUM_US[0])
        });
        writeln!(out, "{name:<40}{}{}{paper}", cell(ns), cell(times))
    };
    row("procedure call", Some(minimum[0]), Some(MINIMUM_US[0]))?;
    row("two kernel crossings", Some(minimum[1]), Some(MINIMUM_US[1]))?;
    row("two switches", Some(minimum[2]), Some(MINIMUM_US[2]))?;
    let least: f64 = minimum.iter().sum();
    row("minimum", Some(least), Some(MINIMUM_US.iter().sum()))?;
    let over = whole.map(|whole| whole - least);
    row("overhead", over, Some(OVERHEAD_US.iter().sum()))?;
    row("Null", whole, Some(MINIMUM_US.iter().chain(&OVERHEAD_US).sum()))?;
    row("  of it until the procedure", half(HALVES[0]), None)?;
    row("  and after it", half(HALVES[1]), None)
}

fn processors(found: &Found<'_>, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let most = (1..)
        .take_while(|&processors| found.0.iter().any(|record| record.case == null(processors)))
        .last();
    let Some(most) = most else { return Ok(()) };
    writeln!(
        out,
        "\n{}",
        paint.text(
            BOLD,
            "Figure 2: thousand null calls a second by processors that call, each by \
            hand-off on itself"
        )
    )?;
    let heads: String = (1..=most).map(|processors| format!("{processors:>11}")).collect();
    writeln!(out, "{}", paint.text(DIM, &format!("{:<28}{heads}{:>11}", "", "× of one")))?;
    for config in CONFIGS {
        for system in ["limit", "upcall", "unix-socket"] {
            let figures: Vec<_> =
                (1..=most).map(|processors| found.per_s(system, config, processors)).collect();
            if figures.iter().all(Option::is_none) {
                continue;
            }
            let cells: String =
                figures.iter().map(|figure| cell(figure.map(|per_s| per_s / 1e3))).collect();
            let times = figures[0].zip(figures[most - 1]).map(|(one, all)| all / one);
            let times = times.map_or("-".to_owned(), |times| format!("{times:.2}"));
            let row = format!("{:<28}{cells}{times:>11}", format!("{system}, {config}"));
            writeln!(out, "{}", paint.row(system, &row))?;
        }
    }
    let [(_, one), (processors, all)] = FIGURE_2;
    let paper = format!(
        "1990: LRPC {:.1} by one and {:.1} by {processors}, × {:.1}; SRC RPC {:.1} by two and more",
        one / 1e3,
        all / 1e3,
        3.7,
        SRC_RPC_MOST / 1e3
    );
    writeln!(out, "{}", paint.text(DIM, &paper))
}

fn mixes(found: &Found<'_>, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let of = |case: &str, config: &str| {
        found.0.iter().find(|r| r.case == case && r.config.as_deref() == Some(config))
    };
    if MIXES.iter().all(|(case, _)| of(case, SPARES[0]).is_none()) {
        return Ok(());
    }
    writeln!(
        out,
        "\n{}",
        paint.text(BOLD, "Domain caching: one client of four servers, ns a call (mean)")
    )?;
    let heads = SPARES.map(|config| format!("{config:>11}")).concat();
    writeln!(out, "{}", paint.text(DIM, &format!("{:<28}{heads}{:>11}", "", "/")))?;
    for (case, _) in MIXES {
        let figures = SPARES.map(|config| of(case, config).map(|record| record.p50_ns));
        let times = figures[0]
            .zip(figures[1])
            .map_or("-".to_owned(), |(without, with)| format!("{:.2}", without / with));
        writeln!(out, "{case:<28}{}{times:>11}", figures.map(cell).concat())?;
    }
    Ok(())
}

/// A figure with an aim.
struct Aim {
    what: String,
    found: Option<f64>,
    bar: f64,
    /// `true` if more is better.
    more: bool,
    paper: Option<f64>,
}

fn aims(found: &Found<'_>) -> Vec<Aim> {
    use Placement::OneCore;
    let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
    let of = |test: Case| found.p50("upcall", OneCore, test.name());
    let null = of(Case::Null);
    let least = found.minimum().map(|parts| parts.iter().sum());
    let paper = |test| table_iv(test).map(|row| row.lrpc);
    let mut aims = vec![Aim {
        what: "Null by hand-off to the minimum".to_owned(),
        found: ratio(null, least),
        bar: 1.15,
        more: false,
        paper: ratio(paper(Case::Null), Some(MINIMUM_US.iter().sum())),
    }];
    for test in &TESTS[1..] {
        let over = of(*test).zip(null).map(|(test, null)| test - null);
        let paper = paper(*test).zip(paper(Case::Null)).map(|(test, null)| (test - null) * 1e3);
        aims.push(Aim {
            what: format!("{test} over Null, ns"),
            found: over,
            bar: 100.0,
            more: false,
            paper,
        });
    }
    let is_peer =
        |system: &str| !system.starts_with("limit") && !["upcall", "unix-socket"].contains(&system);
    let peers = found.callers().into_iter().filter(|(system, _)| is_peer(system));
    let best = peers
        .filter_map(|(system, _)| Some((found.p50(system, OneCore, Case::Null.name())?, system)));
    if let Some((best, system)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) {
        let paper = table_iv(Case::Null).map(|row| row.taos / row.lrpc);
        aims.push(Aim {
            what: format!("the best peer ({system}) to Null"),
            found: ratio(Some(best), null),
            bar: 2.5,
            more: true,
            paper,
        });
    }
    for (system, what) in
        [("grpc", "gRPC in Rust (tonic) to Null"), ("grpc-c++", "gRPC in C++ to Null")]
    {
        let grpc = found.p50(system, OneCore, Case::Null.name());
        aims.push(Aim {
            what: what.to_owned(),
            found: ratio(grpc, null),
            bar: 15.0,
            more: true,
            paper: None,
        });
    }
    aims.into_iter().filter(|aim| aim.found.is_some()).collect()
}

fn ratios(found: &Found<'_>, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let aims = aims(found);
    if aims.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint.text(BOLD, "ratios of this run"))?;
    writeln!(
        out,
        "{}",
        paint.text(DIM, &format!("{:<44}{:>10}{:>10}{:>10}", "", "found", "aim", "LRPC's"))
    )?;
    for Aim { what, found, bar, more, paper } in aims {
        let found = found.unwrap_or(f64::NAN);
        let (sign, met) = if more { ("≥", found >= bar) } else { ("≤", found <= bar) };
        let paper = paper.map_or("-".to_owned(), |paper| {
            if paper < 1e3 { format!("{paper:.2}") } else { thousands(paper) }
        });
        let row = format!("{what:<44}{found:>10.2}{:>10}{paper:>10}", format!("{sign} {bar}"));
        writeln!(out, "{}", paint.text(if met { GREEN } else { RED }, &row))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Mode;
    use crate::record::{Label, Turn};
    use crate::stats::Summary;

    fn record(case: &str, system: &str, ns: f64, config: Option<&str>) -> Record {
        let found = Summary::flat(ns, 5);
        let label = Label {
            suite: "lrpc",
            case,
            system,
            placement: Placement::OneCore,
            mode: Mode::Parked,
        };
        Record {
            config: config.map(str::to_owned),
            ..label.latency(&[Turn { found, lines: (140.0, 140.0) }])
        }
    }

    #[test]
    fn tables_and_aims_are_told() {
        let mut records = vec![
            record("procedure-call", "limit", 2.0, None),
            record("kernel-crossing", "limit", 200.0, None),
            record("null", "limit", 2_500.0, None),
            record("null", "grpc", 50_000.0, None),
            record("null", "grpc-c++", 40_000.0, None),
            record("null", "unix-socket", 6_000.0, None),
            record("null", "ipc-channel", 9_000.0, None),
            record("null-p1", "upcall", 2_500.0, Some("pairs")),
            record("null-p2", "upcall", 1_250.0, Some("pairs")),
        ];
        for (test, ns) in
            [("null", 2_752.2), ("add", 2_800.0), ("bigin", 2_852.2), ("biginout", 2_900.0)]
        {
            records.push(record(test, "upcall", ns, None));
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
        assert_eq!(
            row("upcall, one-core")[..4],
            ["2 752", "2 800", "2 852", "2 900"].join(" ").split(' ').collect::<Vec<_>>()[..4]
        );
        assert_eq!(row("two switches")[..2], ["2", "100"], "{text}");
        assert_eq!(row("Null by hand-off to the minimum"), ["1.10", "≤", "1.15", "1.44"], "{text}");
        assert_eq!(row("bigin over Null, ns"), ["100.00", "≤", "100", "35", "000"], "{text}");
        assert!(row("the best peer (ipc-channel) to Null")[0].starts_with("3.27"), "{text}");
        assert!(row("gRPC in Rust (tonic) to Null")[0].starts_with("18.17"), "{text}");
        assert!(row("gRPC in C++ to Null")[0].starts_with("14.53"), "{text}");
        assert_eq!(row("upcall, pairs"), ["400", "800", "2.00"], "{text}");
        assert!(
            text.contains("note: a note")
                && text.contains("not measured: something")
                && !text.contains('\x1b'),
            "{text}"
        );
    }
}
