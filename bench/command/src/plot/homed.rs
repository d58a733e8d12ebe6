//! Psyche's Table 1 and Figures 3 to 5 on this machine, beside the paper's; throughput by
//! processes, and the break-even.

use super::{
    Area, Axes, Bars, COLOURS, Drawn, GREY, LIGHT, Line, Picture, PlotError, SIZE, Svg, WIDE, bars,
    chart, legend, measured, render, room,
};
use plotters::prelude::*;
use std::ops::Range;
use upcall_bench::homed::case::{CALLERS, CHAINS, Hot, Op, chain, way};
use upcall_bench::homed::paper::{
    Columns, columns, columns_of_the_paper, figure_3, figure_4, figure_5, found,
};
use upcall_bench::record::Record;

/// Lower bound of the figures: 0 has no place on a logarithmic axis.
const LEAST: f64 = 1.0;

/// Draws the figures of a run. Cases that were not measured are not drawn.
///
/// # Errors
/// See [`PlotError`].
pub fn figures(records: &[Record]) -> Result<Vec<Svg>, PlotError> {
    let names: Vec<String> = Op::ALL.map(Op::name).into();
    let (times, multiples) = (operations(records), multiples(records));
    let shares = [
        shares(records, &["local", "access", "invocation"], |row| figure_3(row).into()),
        shares(records, &["with locks", "without"], |row| figure_4(row).into()),
        shares(records, &["locks in access", "in both", "in neither"], |row| figure_5(row).into()),
    ];
    let (throughput, walks) =
        ([Hot::Counter, Hot::Queue].map(|hot| throughput(records, hot)), walks(records));
    let table = |area: &Area<'_>| {
        let (left, right) = area.split_horizontally(SIZE.0);
        bars(
            &left,
            "An operation by each way (remote ones on dirty lines)",
            "ns (median; logarithmic)",
            &names,
            &times,
        )?;
        bars(
            &right,
            "Ours and the paper's, by the local operation",
            "multiple of local (logarithmic)",
            &names,
            &multiples,
        )
    };
    let title = [
        "Figure 3: share of locking",
        "Figure 4: share of remote references in remote access",
        "Figure 5: remote invocation as a share of remote access",
    ];
    let figure = |at: usize| {
        let (names, title, shares) = (&names, title[at], &shares[at]);
        move |area: &Area<'_>| {
            bars(area, title, "percent (logarithmic; 1 or less at the floor)", names, shares)
        }
    };
    let (third, fourth, fifth) = (figure(0), figure(1), figure(2));
    let rates = |area: &Area<'_>| {
        let (left, right) = area.split_horizontally(SIZE.0);
        rates(&left, "A counter that all want", &throughput[0])?;
        rates(&right, "A queue that all want: enqueue and dequeue", &throughput[1])
    };
    let even = |area: &Area<'_>| break_even(area, &walks);
    let pictures = [
        (times.is_empty(), Picture { name: "homed-table-1.svg", size: WIDE, draw: &table }),
        (times.is_empty(), Picture { name: "homed-figure-3.svg", size: WIDE, draw: &third }),
        (times.is_empty(), Picture { name: "homed-figure-4.svg", size: WIDE, draw: &fourth }),
        (times.is_empty(), Picture { name: "homed-figure-5.svg", size: WIDE, draw: &fifth }),
        (
            throughput.iter().all(Vec::is_empty),
            Picture { name: "homed-throughput.svg", size: WIDE, draw: &rates },
        ),
        (walks.is_empty(), Picture { name: "homed-break-even.svg", size: SIZE, draw: &even }),
    ];
    let there: Vec<_> =
        pictures.into_iter().filter_map(|(empty, picture)| (!empty).then_some(picture)).collect();
    if there.is_empty() {
        Err(PlotError::Nothing("operations, throughput or break-even"))
    } else {
        render(&there)
    }
}

/// Returns the times of the operations by each method.
fn operations(records: &[Record]) -> Vec<Bars> {
    let ways = [
        (way::LOCAL, false),
        (way::ACCESS, true),
        (way::READ, true),
        (way::URGENT, true),
        (way::AUTO, true),
        (way::INVOKE, true),
    ];
    let of = |((way, dirty), colour): ((&str, bool), RGBColor)| {
        let height = |(at, op): (usize, Op)| {
            Some((at, found(records, &if dirty { op.dirty() } else { op.name() }, way)?))
        };
        Bars {
            name: way.to_owned(),
            colour,
            heights: Op::ALL.into_iter().enumerate().filter_map(height).collect(),
        }
    };
    ways.into_iter().zip(COLOURS).map(of).filter(|bars| !bars.heights.is_empty()).collect()
}

/// Returns a figure of each operation's row, of Upcall or the paper.
fn of_rows(name: String, colour: RGBColor, row: impl Fn(Op) -> Option<f64>) -> Bars {
    let heights = Op::ALL
        .into_iter()
        .enumerate()
        .filter_map(|(at, op)| Some((at, row(op)?.max(LEAST))))
        .collect();
    Bars { name, colour, heights }
}

/// Returns remote access and invocation as multiples of local operations.
fn multiples(records: &[Record]) -> Vec<Bars> {
    let times = |row: Columns, at: usize| Some(row[at]? / row[0]?);
    let of = |(name, at, [colour, pale]): (&str, usize, [RGBColor; 2])| {
        [
            of_rows(format!("{name}, here"), colour, |op| times(columns(records, op), at)),
            of_rows(format!("{name}, Psyche"), pale, |op| times(columns_of_the_paper(op)?, at)),
        ]
    };
    let ways = [("access", 2, [COLOURS[0], GREY]), ("invocation", 4, [COLOURS[1], LIGHT])];
    ways.into_iter().flat_map(of).filter(|bars| !bars.heights.is_empty()).collect()
}

/// Returns the bars of one of the paper's figures, in percent: Upcall's, and the paper's in grey.
fn shares(records: &[Record], names: &[&str], of: fn(Columns) -> Vec<Option<f64>>) -> Vec<Bars> {
    let paper = [RGBColor(90, 90, 90), RGBColor(140, 140, 140), LIGHT];
    let ours = names.iter().enumerate().map(|(at, name)| {
        of_rows(format!("{name}, here"), COLOURS[at], move |op| of(columns(records, op))[at])
    });
    let papers = names.iter().enumerate().map(|(at, name)| {
        of_rows(format!("{name}, Psyche"), paper[at], move |op| of(columns_of_the_paper(op)?)[at])
    });
    ours.chain(papers).filter(|bars| !bars.heights.is_empty()).collect()
}

/// Returns a line for each method.
fn lines(ways: &[&str], points: impl Fn(&str) -> Vec<(f64, f64)>) -> Vec<Line> {
    let line = |(way, colour): (&&str, RGBColor)| Line {
        name: (*way).to_owned(),
        colour,
        points: points(way),
    };
    ways.iter().zip(COLOURS).map(line).filter(|line| !line.points.is_empty()).collect()
}

fn throughput(records: &[Record], hot: Hot) -> Vec<Line> {
    lines(&[way::ACCESS, way::URGENT, way::MUTEX, way::SPIN], |way| {
        let per_s = |callers: usize| {
            let case = hot.record(callers);
            let record =
                records.iter().find(|record| record.case == case && record.system == way)?;
            Some((callers as f64, record.per_s / 1e6))
        };
        CALLERS.into_iter().filter_map(per_s).collect()
    })
}

fn walks(records: &[Record]) -> Vec<Line> {
    lines(
        &[way::LOCAL, way::ACCESS, way::READ, way::URGENT, way::AUTO, way::INVOKE, way::BULK],
        |way| {
            CHAINS
                .into_iter()
                .filter_map(|lines| Some((f64::from(lines), found(records, &chain(lines), way)?)))
                .collect()
        },
    )
}

/// Draws lines over a logarithmic axis.
fn drawn(area: &Area<'_>, axes: &Axes<'_>, wide: Range<f64>, lines: &[Line]) -> Drawn {
    if lines.is_empty() {
        return Ok(());
    }
    let high = room(lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y), lines.len());
    let mut chart = chart(area, axes, wide.log_scale(), high)?;
    for (at, line) in lines.iter().enumerate() {
        measured(&mut chart, at, line)?;
    }
    legend(&mut chart)
}

fn rates(area: &Area<'_>, title: &str, lines: &[Line]) -> Drawn {
    let label = |callers: &f64| format!("{callers:.0}");
    let upwards = "million operations a second (logarithmic)";
    let axes = Axes { title, across: "processes (logarithmic)", upwards, labels: 8, label: &label };
    drawn(area, &axes, 0.9..9.0, lines)
}

fn break_even(area: &Area<'_>, lines: &[Line]) -> Drawn {
    let label = |lines: &f64| format!("{lines:.0}");
    let title = "A walk over lines that the home has written";
    let axes = Axes {
        title,
        across: "lines (logarithmic)",
        upwards: "ns (median; logarithmic)",
        labels: 8,
        label: &label,
    };
    drawn(area, &axes, 0.9..600.0, lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::texts;
    use upcall_bench::case::{Mode, Placement};
    use upcall_bench::record::{Label, Turn};
    use upcall_bench::stats::Summary;

    fn record(case: &str, system: &str, ns: f64) -> Record {
        let found = Summary::flat(ns, 500);
        let label = Label {
            suite: "homed",
            case,
            system,
            placement: Placement::TwoCores,
            mode: Mode::Polling,
        };
        label.latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    #[test]
    fn figures_name_ours_and_the_papers() {
        let mut records = Vec::new();
        for op in Op::ALL {
            records.extend([
                record(&op.name(), way::LOCAL, 20.0),
                record(&op.name(), way::LOCAL_UNLOCKED, 20.0),
            ]);
            let remote = [way::ACCESS, way::ACCESS_UNLOCKED, way::READ, way::URGENT, way::INVOKE];
            records.extend(remote.map(|way| record(&op.dirty(), way, 300.0)));
        }
        for way in [way::ACCESS, way::URGENT, way::MUTEX, way::SPIN] {
            records
                .extend(CALLERS.map(|callers| record(&Hot::Counter.record(callers), way, 100.0)));
            records.extend(CHAINS.map(|lines| record(&chain(lines), way, f64::from(lines))));
        }
        let svg = texts(figures(&records));
        let has = |at: usize, names: &[&str]| names.iter().all(|name| svg[at].contains(name));
        assert!(
            svg.len() == 6 && has(0, &["find-last-1000", "access, here", "invocation, Psyche"]),
            "{}",
            svg[0]
        );
        assert!(
            has(1, &["share of locking", "local, Psyche"]) && has(3, &["in neither, here"]),
            "{}",
            svg[1]
        );
        assert!(
            has(4, &["pthread-mutex", "processes"]) && has(5, &["urgent", "lines"]),
            "{}",
            svg[4]
        );
        assert!(svg.iter().all(|svg| !svg.contains("NaN") && !svg.contains("inf")));
    }

    #[test]
    fn nothing_is_not_plotted() {
        assert!(figures(&[]).unwrap_err().to_string().contains("no operations"));
    }
}
