//! LRPC's Table IV on this machine, also as multiples of the machine's minimum beside the paper's;
//! and its Figure 2.

use super::{
    Area, Axes, Bars, COLOURS, Drawn, GREY, LIGHT, Line, Picture, PlotError, SIZE, Svg, WIDE, bars,
    chart, legend, measured, render, room,
};
use plotters::prelude::*;
use upcall_bench::case::{Case, Placement};
use upcall_bench::lrpc::{CONFIGS, FIGURE_2, MINIMUM_US, TESTS, TableIv, null, table_iv};
use upcall_bench::record::Record;

/// Draws the figures of a run. Cases that were not measured are not drawn.
///
/// # Errors
/// See [`PlotError`].
pub fn figures(records: &[Record]) -> Result<Vec<Svg>, PlotError> {
    let (groups, lines) = (callers(records), throughput(records));
    let calls = |area: &Area<'_>| {
        let (left, right) = area.split_horizontally(WIDE.0 * 3 / 5);
        let names = TESTS.map(|test| test.name().to_owned());
        bars(
            &left,
            "One call at a time, on one processor",
            "ns (median; logarithmic)",
            &names,
            &groups,
        )?;
        match multiples(&groups) {
            Some(multiples) => bars(
                &right,
                "Ours and the paper's, by the minimum",
                "multiple (logarithmic)",
                &names,
                &multiples,
            ),
            None => Ok(()),
        }
    };
    let processors = |area: &Area<'_>| figure_2(area, &lines);
    let pictures = [
        (groups.is_empty(), Picture { name: "lrpc-calls.svg", size: WIDE, draw: &calls }),
        (lines.is_empty(), Picture { name: "lrpc-processors.svg", size: SIZE, draw: &processors }),
    ];
    let there: Vec<_> =
        pictures.into_iter().filter_map(|(empty, picture)| (!empty).then_some(picture)).collect();
    if there.is_empty() { Err(PlotError::Nothing("calls")) } else { render(&there) }
}

/// Name of the least that the machine permits.
const MINIMUM: &str = "minimum";

/// Returns the bars of the systems that called on one processor: Upcall first, then the minimum,
/// then the others.
fn callers(records: &[Record]) -> Vec<Bars> {
    let here = |record: &&Record| record.placement == Placement::OneCore;
    let found = |system: &str, test: Case| {
        records
            .iter()
            .filter(here)
            .find(|record| record.system == system && record.case == test.name())
            .map(|record| record.p50_ns)
    };
    let mut systems = vec!["upcall", "limit"];
    for record in records.iter().filter(here).filter(|record| record.case == Case::Null.name()) {
        if !systems.contains(&record.system.as_str()) {
            systems.push(&record.system);
        }
    }
    let mut colours = COLOURS.into_iter().cycle();
    let bars = |system: &str| {
        let heights = TESTS
            .into_iter()
            .enumerate()
            .filter_map(|(at, test)| Some((at, found(system, test)?)))
            .collect();
        let (name, colour) =
            if system == "limit" { (MINIMUM, Some(LIGHT)) } else { (system, None) };
        Bars {
            name: name.to_owned(),
            colour: colour.or_else(|| colours.next()).unwrap_or(GREY),
            heights,
        }
    };
    systems.into_iter().map(bars).filter(|bars| !bars.heights.is_empty()).collect()
}

/// Returns Upcall's times divided by the machine's minimum for Null, and the paper's by its own.
fn multiples(groups: &[Bars]) -> Option<Vec<Bars>> {
    let minimum = groups.iter().find(|bars| bars.name == MINIMUM)?.heights.first()?.1;
    let ours = groups.iter().find(|bars| bars.name == "upcall")?;
    let paper = |name: &str, colour, of: fn(TableIv) -> f64| {
        let least: f64 = MINIMUM_US.iter().sum();
        let heights = TESTS
            .into_iter()
            .enumerate()
            .filter_map(|(at, test)| Some((at, of(table_iv(test)?) / least)))
            .collect();
        Bars { name: name.to_owned(), colour, heights }
    };
    let here = ours.heights.iter().map(|&(at, ns)| (at, ns / minimum)).collect();
    Some(vec![
        Bars { name: "upcall, here".to_owned(), colour: ours.colour, heights: here },
        paper("LRPC, Firefly", GREY, |row| row.lrpc),
        paper("SRC RPC, Firefly", LIGHT, |row| row.taos),
    ])
}

/// Returns the calls per second by processors, as multiples of those of one.
fn throughput(records: &[Record]) -> Vec<Line> {
    let found = |system: &str, config: &str, processors: usize| {
        let of = |r: &&Record| {
            r.system == system && r.config.as_deref() == Some(config) && r.case == null(processors)
        };
        records.iter().find(of).map(|record| record.per_s)
    };
    let all = CONFIGS
        .into_iter()
        .flat_map(|config| ["upcall", "limit", "unix-socket"].map(|system| (system, config)));
    let lines = all.zip(COLOURS.into_iter().cycle()).filter_map(|((system, config), colour)| {
        let one = found(system, config, 1)?;
        let points = (1..)
            .map_while(|processors| {
                Some((processors as f64, found(system, config, processors)? / one))
            })
            .collect();
        Some(Line { name: format!("{system}, {config}"), colour, points })
    });
    let [(_, one), (processors, most)] = FIGURE_2;
    let paper = Line {
        name: "LRPC, Firefly".to_owned(),
        colour: GREY,
        points: vec![(1.0, 1.0), (processors as f64, most / one)],
    };
    let lines: Vec<_> = lines.collect();
    if lines.is_empty() { lines } else { lines.into_iter().chain([paper]).collect() }
}

fn figure_2(area: &Area<'_>, lines: &[Line]) -> Drawn {
    let most = lines.iter().flat_map(|line| &line.points).map(|&(x, _)| x).fold(2.0, f64::max);
    let high = room(
        lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y).chain([most]),
        lines.len() + 1,
    );
    let label = |processors: &f64| {
        if processors.fract() == 0.0 { format!("{processors:.0}") } else { String::new() }
    };
    let title = "Null calls a second, relative to one processor's";
    let axes = Axes {
        title,
        across: "processors that call, each by hand-off on itself",
        upwards: "multiple (logarithmic)",
        labels: 8,
        label: &label,
    };
    let mut chart = chart(area, &axes, 0.5..most + 0.5, high)?;
    let ideal = DashedLineSeries::new([(1.0, 1.0), (most, most)], 6, 5, GREY.stroke_width(1));
    chart
        .draw_series(ideal)?
        .label("as many as processors")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], GREY.stroke_width(1)));
    for (at, line) in lines.iter().enumerate() {
        measured(&mut chart, at, line)?;
    }
    legend(&mut chart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::texts;
    use upcall_bench::case::Mode;
    use upcall_bench::record::{Label, Turn};
    use upcall_bench::stats::Summary;

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
    fn figures_name_ours_the_minimum_and_the_papers() {
        let mut records = vec![
            record("null-p1", "upcall", 3_000.0, Some("pairs")),
            record("null-p2", "upcall", 1_500.0, Some("pairs")),
        ];
        for test in TESTS {
            records.extend(
                [("upcall", 2_800.0), ("limit", 2_500.0), ("grpc", 90_000.0)]
                    .map(|(system, ns)| record(test.name(), system, ns, None)),
            );
        }
        let svg = texts(figures(&records));
        assert_eq!(svg.len(), 2);
        assert!(
            ["biginout", "minimum", "grpc", "SRC RPC, Firefly"]
                .iter()
                .all(|name| svg[0].contains(name)),
            "{}",
            svg[0]
        );
        assert!(
            ["upcall, pairs", "as many as processors", "LRPC, Firefly"]
                .iter()
                .all(|name| svg[1].contains(name)),
            "{}",
            svg[1]
        );
        assert!(svg.iter().all(|svg| !svg.contains("NaN") && !svg.contains("inf")));
    }

    #[test]
    fn nothing_is_not_plotted() {
        assert!(figures(&[]).unwrap_err().to_string().contains("no calls"));
    }
}
