//! Figures 3 and 4 of URPC on this machine, drawn from the records of a run, and beside the paper's
//! where its text gives numbers.
//!
//! The paper's machine took 93 µs for what takes a fraction of a microsecond here, so the two are
//! compared as multiples of the call by one thread with one processor on each side. The paper's
//! curves are known as pictures only; only the points that its text states are drawn.

use super::{
    Area, Axes, COLOURS, Chart, Drawn, Figure, GREY, Line, Picture, PlotError, SIZE, Svg, WIDE,
    chart, legend, measured, render, room,
};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use upcall_bench::record::Record;
use upcall_bench::urpc::case::{ANCHORS, Anchor, MOST_FIGURES, THREADS, null};

const LATENCY_US: Figure = |record| record.p50_ns / 1e3;
const THOUSANDS: Figure = |record| record.per_s / 1e3;

/// Draws the figures of a run.
///
/// # Errors
/// See [`PlotError`].
pub fn figures(records: &[Record]) -> Result<Vec<Svg>, PlotError> {
    if lines(records, LATENCY_US).is_empty() {
        return Err(PlotError::Nothing("calls by 1 to 16 threads"));
    }
    let pictures = [
        Picture {
            name: "urpc-latency.svg",
            size: SIZE,
            draw: &|area| {
                let title = "Null call: latency by the number of threads that call";
                absolute(
                    area,
                    title,
                    "latency, µs (median; logarithmic)",
                    &lines(records, LATENCY_US),
                )
            },
        },
        Picture {
            name: "urpc-throughput.svg",
            size: SIZE,
            draw: &|area| {
                let title = "Null call: throughput by the number of threads that call";
                absolute(
                    area,
                    title,
                    "thousand calls a second (logarithmic)",
                    &lines(records, THOUSANDS),
                )
            },
        },
        Picture { name: "urpc-relative.svg", size: WIDE, draw: &|area| relative(area, records) },
    ];
    render(&pictures)
}

/// Returns Upcall's lines, by configuration: the default way of waiting first.
fn lines(records: &[Record], of: Figure) -> Vec<Line> {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for record in records.iter().filter(|record| record.system.starts_with("upcall")) {
        if let Some(config) = record.config.as_deref()
            && !names.contains(&(config, &record.system))
        {
            names.push((config, &record.system));
        }
    }
    names.sort_unstable();
    let found = |config: &str, system: &str, threads: usize| {
        let case = null(threads);
        records
            .iter()
            .find(|r| r.config.as_deref() == Some(config) && r.system == system && r.case == case)
            .map(of)
    };
    let line = |((config, system), colour): ((&str, &str), RGBColor)| Line {
        name: if system == "upcall" {
            format!("C,S = {config}")
        } else {
            format!("C,S = {config}, pinned and polling")
        },
        colour,
        points: THREADS
            .into_iter()
            .filter(|&threads| threads <= MOST_FIGURES)
            .filter_map(|threads| Some((threads as f64, found(config, system, threads)?)))
            .collect(),
    };
    let all = names.into_iter().zip(COLOURS.into_iter().cycle()).map(line);
    all.filter(|line| !line.points.is_empty()).collect()
}

const ALL_T: Range<f64> = 0.0..MOST_FIGURES as f64 + 1.0;

fn absolute(area: &Area<'_>, title: &str, unit: &str, lines: &[Line]) -> Drawn {
    let range = room(lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y), lines.len());
    let mut chart = by_threads(area, title, unit, range)?;
    for (at, line) in lines.iter().enumerate() {
        measured(&mut chart, at, line)?;
    }
    legend(&mut chart)
}

/// Draws latency and throughput beside each other, both as multiples of those at T = C = S = 1,
/// with the paper's.
fn relative(area: &Area<'_>, records: &[Record]) -> Drawn {
    let (left, right) = area.split_horizontally(SIZE.0);
    let anchor = |of: fn(&Anchor) -> Option<f64>| {
        let one = ANCHORS
            .iter()
            .find(|a| a.config.to_string() == "1,1" && a.threads == Some(1))
            .and_then(of);
        let found = ANCHORS
            .iter()
            .filter_map(move |a| Some((a.config.to_string(), a.threads, of(a)? / one?)));
        found.collect::<Vec<_>>()
    };
    side_by_side(
        &left,
        "Latency, relative to T = C = S = 1",
        &lines(records, LATENCY_US),
        &anchor(|a| a.us),
    )?;
    side_by_side(
        &right,
        "Throughput, relative to T = C = S = 1",
        &lines(records, THOUSANDS),
        &anchor(|a| a.per_s),
    )
}

fn side_by_side(
    area: &Area<'_>,
    title: &str,
    lines: &[Line],
    paper: &[(String, Option<usize>, f64)],
) -> Drawn {
    // Each way of waiting relative to its own T = C = S = 1; S = 0, which has one way only,
    // relative to the default's.
    let one = |name: &str| {
        let way =
            if name.ends_with("polling") { "C,S = 1,1, pinned and polling" } else { "C,S = 1,1" };
        lines
            .iter()
            .find(|line| line.name == way)?
            .points
            .iter()
            .find(|(threads, _)| *threads == 1.0)
            .map(|&(_, y)| y)
    };
    let scale = |line: &Line| {
        let one = one(&line.name)?;
        let points = line.points.iter().map(|&(threads, y)| (threads, y / one)).collect();
        Some(Line { name: line.name.clone(), colour: line.colour, points })
    };
    // The lists differ in length: the colours are those of the other figures.
    let scaled: Vec<(usize, Line)> =
        lines.iter().enumerate().filter_map(|(at, line)| Some((at, scale(line)?))).collect();
    let figures = scaled.iter().flat_map(|(_, line)| &line.points).map(|&(_, y)| y);
    let range =
        room(figures.chain(paper.iter().map(|&(.., y)| y)), scaled.len() + paper.len().min(2));
    let mut chart = by_threads(area, title, "multiple (logarithmic)", range)?;
    let mut named = BTreeSet::new();
    for (at, line) in &scaled {
        measured(&mut chart, *at, line)?;
    }
    for (config, threads, y) in paper {
        let colour = lines
            .iter()
            .find(|line| line.name == format!("C,S = {config}"))
            .map_or(GREY, |line| line.colour);
        let thick = colour.stroke_width(2);
        match threads {
            Some(threads) => {
                let cross = Cross::new((*threads as f64, *y), 7, thick);
                let drawn = chart.draw_series([cross])?;
                if named.insert(config) {
                    drawn
                        .label(format!("URPC's C,S = {config}"))
                        .legend(move |(x, y)| Cross::new((x + 10, y), 6, thick));
                }
            }
            // The text states the maximum, and not its number of threads.
            None => {
                let dashes = DashedLineSeries::new([(0.0, *y), (ALL_T.end, *y)], 6, 5, thick);
                let drawn = chart.draw_series(dashes)?;
                let name = format!("URPC's C,S = {config}, the most");
                let dash = move |from, to| PathElement::new([(from, 0), (to, 0)], thick);
                drawn
                    .label(name)
                    .legend(move |(x, y)| EmptyElement::at((x, y)) + dash(0, 7) + dash(13, 20));
            }
        }
    }
    legend(&mut chart)
}

fn by_threads<'a>(
    area: &Area<'a>,
    title: &str,
    unit: &str,
    range: Range<f64>,
) -> Result<Chart<'a, RangedCoordf64>, DrawingAreaErrorKind<io::Error>> {
    let label = |threads: &f64| format!("{threads:.0}");
    let axes = Axes {
        title,
        across: "T, threads that call",
        upwards: unit,
        labels: MOST_FIGURES + 2,
        label: &label,
    };
    chart(area, &axes, ALL_T, range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::texts;
    use upcall_bench::case::{Mode, Placement};
    use upcall_bench::record::{Label, Turn};
    use upcall_bench::stats::Summary;

    fn record(threads: usize, system: &str, config: &str, ns: f64, per_s: f64) -> Record {
        let found = Summary::flat(ns, 5);
        let case = null(threads);
        let label = Label {
            suite: "urpc",
            case: &case,
            system,
            placement: Placement::OneCore,
            mode: Mode::Polling,
        };
        Record {
            config: Some(config.to_owned()),
            per_s,
            ..label.latency(&[Turn { found, lines: (140.0, 140.0) }])
        }
    }

    #[test]
    fn lines_are_ours_by_configuration() {
        let records = [
            record(1, "upcall-polling", "1,1", 150.0, 6e6),
            record(1, "limit", "1,1", 140.0, 7e6),
            record(2, "upcall", "1,1", 250.0, 8e6),
            record(1, "upcall", "1,1", 200.0, 5e6),
            record(32, "upcall", "1,0", 9000.0, 3e6),
        ];
        let lines = lines(&records, LATENCY_US);
        let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
        // T = 32 is beyond the paper's figures.
        assert_eq!(names, ["C,S = 1,1", "C,S = 1,1, pinned and polling"]);
        assert_eq!(lines[0].points, [(1.0, 0.2), (2.0, 0.25)]);
    }

    #[test]
    fn figures_name_their_axes_and_the_papers_points() {
        let of =
            |config, ns| (1..=4).map(move |t| record(t, "upcall", config, ns * t as f64, 1e9 / ns));
        let records: Vec<_> = of("1,0", 6000.0).chain(of("1,1", 200.0)).collect();
        let svg = texts(figures(&records));
        assert_eq!(svg.len(), 3);
        assert!(svg.iter().all(|svg| svg.starts_with("<svg")
            && svg.contains("threads that call")
            && !svg.contains("NaN")));
        assert!(
            svg[0].contains("latency, µs")
                && svg[0].contains("C,S = 1,0")
                && !svg[0].contains("URPC")
        );
        assert!(
            svg[2].contains("C,S = 1,0")
                && svg[2].contains("URPC&apos;s C,S = 2,2") | svg[2].contains("URPC's C,S = 2,2")
        );
    }

    #[test]
    fn without_a_unit_the_paper_is_alone() {
        let svg = texts(figures(&[record(1, "upcall", "1,0", 6000.0, 160e3)]));
        assert!(svg[2].contains("URPC") && !svg[2].contains(">C,S = 1,0"), "{}", svg[2]);
    }

    #[test]
    fn nothing_is_not_plotted() {
        let error = figures(&[]).unwrap_err().to_string();
        assert!(error.contains("nothing to plot"), "{error}");
    }
}
