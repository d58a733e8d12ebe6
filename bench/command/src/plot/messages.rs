//! UDM's section 5 on this machine: Figure 7, real and simulated, Table 6, and Table 5's two paths,
//! beside the paper's figures.

use super::{
    Area, Axes, Bars, COLOURS, Drawn, GREY, LIGHT, Line, Picture, PlotError, SIZE, Svg, WIDE, bars,
    chart, legend, measured, render, room,
};
use plotters::prelude::*;
use upcall_bench::messages::own::paper::{
    GROUPS, HANDLER, INTERVALS, KNEE, TABLE_5, TABLE_6, figure_7, multiple, percent,
};
use upcall_bench::record::Record;

/// Draws the figures of a run. Cases that were not measured are not drawn.
///
/// # Errors
/// See [`PlotError`].
pub fn figures(records: &[Record]) -> Result<Vec<Svg>, PlotError> {
    let (shares, workloads, paths) =
        ([true, false].map(|real| shares(records, real)), workloads(records), paths(records));
    let figure = |area: &Area<'_>| {
        let (left, right) = area.split_horizontally(SIZE.0);
        synth(&left, "For real: a handler of 10 µs, two processors", &shares[0])?;
        synth(&right, "Simulated: the paper's times, four processors", &shares[1])
    };
    let table = |area: &Area<'_>| {
        let (left, right) = area.split_horizontally(SIZE.0);
        let names = TABLE_6.map(|row| format!("Tpuz, {}", row.other));
        bars(
            &left,
            "Two jobs in turns, to one after the other",
            "multiple of batch (logarithmic)",
            &names,
            &workloads[0],
        )?;
        bars(
            &right,
            "Messages of Tpuz that were buffered",
            "percent (logarithmic; 0.001 or less at the floor)",
            &names,
            &workloads[1],
        )
    };
    let two = |area: &Area<'_>| {
        let names = ["direct", "buffered, sender", "buffered, receiver", "buffered, both"]
            .map(str::to_owned);
        bars(
            area,
            "A null message, direct and buffered",
            "multiple of direct (logarithmic)",
            &names,
            &paths,
        )
    };
    let pictures = [
        (
            shares.iter().all(Vec::is_empty),
            Picture { name: "messages-figure-7.svg", size: WIDE, draw: &figure },
        ),
        (
            workloads[0].len() < 4,
            Picture { name: "messages-table-6.svg", size: WIDE, draw: &table },
        ),
        (paths.is_empty(), Picture { name: "messages-table-5.svg", size: SIZE, draw: &two }),
    ];
    let there: Vec<_> =
        pictures.into_iter().filter_map(|(empty, picture)| (!empty).then_some(picture)).collect();
    if there.is_empty() {
        Err(PlotError::Nothing("experiments of UDM's: synth-N, tpuz or buffered"))
    } else {
        render(&there)
    }
}

/// Lower bound of the figures: 0 has no place on a logarithmic axis.
const LEAST: f64 = 0.01;

/// Returns, for each N, the percentage of buffered messages by the send interval.
fn shares(records: &[Record], real: bool) -> Vec<Line> {
    let line = |(group, colour)| {
        let point = |interval| {
            Some((interval as f64, percent(records, &figure_7(real, group, interval))?.max(LEAST)))
        };
        Line {
            name: format!("synth-{group}"),
            colour,
            points: INTERVALS.into_iter().filter_map(point).collect(),
        }
    };
    GROUPS.into_iter().zip(COLOURS).map(line).filter(|line| !line.points.is_empty()).collect()
}

fn synth(area: &Area<'_>, title: &str, lines: &[Line]) -> Drawn {
    if lines.is_empty() {
        return Ok(());
    }
    let axes = Axes {
        title,
        across: "send interval, in cycles of which a handler takes 750",
        upwards: "percent buffered (logarithmic; 0.01 or less at the floor)",
        labels: 8,
        label: &|cycles| format!("{cycles:.0}"),
    };
    // A common range, so that the two can be compared.
    let high = LEAST..room([LEAST, 100.0].into_iter(), GROUPS.len() + 1).end;
    let mut chart = chart(area, &axes, 0.0..INTERVALS[INTERVALS.len() - 1] as f64 + 150.0, high)?;
    let knee = DashedLineSeries::new(
        [(KNEE as f64, LEAST), (KNEE as f64, 100.0)],
        6,
        5,
        GREY.stroke_width(1),
    );
    let name = format!("UDM: handler and buffering, {HANDLER} + {}", KNEE - HANDLER);
    chart
        .draw_series(knee)?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], GREY.stroke_width(1)));
    for (at, line) in lines.iter().enumerate() {
        measured(&mut chart, at, line)?;
    }
    legend(&mut chart)
}

/// Returns run times as multiples of batch, and shares of Tpuz's messages that were buffered:
/// Upcall's and the paper's.
fn workloads(records: &[Record]) -> [Vec<Bars>; 2] {
    use upcall_bench::messages::own::paper::{MESSAGES, Row, table_6};
    type Of = fn(&Row) -> (f64, [u64; 2]);
    let ways: [(&str, Of, [RGBColor; 2]); 2] =
        [("gang", |row| row.gang, [COLOURS[0], LIGHT]), ("co", |row| row.co, [COLOURS[1], GREY])];
    let of = |name: String, colour, figure: &dyn Fn(&Row) -> Option<f64>| {
        let heights: Vec<_> =
            TABLE_6.iter().enumerate().filter_map(|(at, row)| Some((at, figure(row)?))).collect();
        (!heights.is_empty()).then_some(Bars { name, colour, heights })
    };
    let (mut times, mut shares) = (Vec::new(), Vec::new());
    for (schedule, _, [colour, _]) in ways {
        times.extend(of(format!("{schedule}, here"), colour, &|row| {
            multiple(records, true, row.other, schedule)
        }));
        let share = |row: &Row| {
            Some(percent(records, &table_6(true, row.other, schedule))?.max(LEAST / 10.0))
        };
        shares.extend(of(format!("{schedule}, here"), colour, &share));
    }
    for ((schedule, ..), colour) in ways.into_iter().zip([COLOURS[2], COLOURS[3]]) {
        times.extend(of(format!("{schedule}, simulated"), colour, &|row| {
            multiple(records, false, row.other, schedule)
        }));
        let share = |row: &Row| {
            Some(percent(records, &table_6(false, row.other, schedule))?.max(LEAST / 10.0))
        };
        shares.extend(of(format!("{schedule}, simulated"), colour, &share));
    }
    for (schedule, paper, [_, colour]) in ways {
        times.extend(of(format!("{schedule}, UDM"), colour, &|row| Some(paper(row).0)));
        let share = |row: &Row| {
            Some((100.0 * paper(row).1[0] as f64 / MESSAGES[0] as f64).max(LEAST / 10.0))
        };
        shares.extend(of(format!("{schedule}, UDM"), colour, &share));
    }
    [times, shares]
}

/// Returns the time of a buffered message as a multiple of a direct one's.
fn paths(records: &[Record]) -> Vec<Bars> {
    let ns =
        |case: &str| records.iter().find(|record| record.case == case).map(|record| record.p50_ns);
    let found = || {
        let direct = ns("direct-0")?;
        let parts = [ns("buffered-0-sender")?, ns("buffered-0-receiver")?, ns("buffered-0")?];
        Some([direct].into_iter().chain(parts).map(|ns| ns / direct).enumerate().collect())
    };
    let Some(heights) = found() else { return Vec::new() };
    let [insert, take, direct] = TABLE_5;
    let paper = [direct, insert, take, insert + take].map(|cycles| cycles / direct);
    vec![
        Bars { name: "upcall, here".to_owned(), colour: COLOURS[0], heights },
        Bars {
            name: "UDM, FUGU".to_owned(),
            colour: GREY,
            heights: paper.into_iter().enumerate().collect(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::texts;
    use upcall_bench::case::{Mode, Placement};
    use upcall_bench::messages::own::paper::{OTHERS, SCHEDULES, table_6};
    use upcall_bench::record::{Label, Turn};
    use upcall_bench::stats::Summary;

    fn record(case: &str, ns: f64, buffered: Option<u64>) -> Record {
        let found = Summary::flat(ns, 500);
        let label = Label {
            suite: "messages",
            case,
            system: "upcall",
            placement: Placement::TwoCores,
            mode: Mode::Polling,
        };
        Record { buffered, ..label.latency(&[Turn { found, lines: (140.0, 140.0) }]) }
    }

    #[test]
    fn figures_name_ours_and_the_papers() {
        let mut records = Vec::new();
        for group in GROUPS {
            for real in [true, false] {
                records.extend(INTERVALS.map(|interval| {
                    record(&figure_7(real, group, interval), 5.0, Some(interval % 7))
                }));
            }
        }
        for (other, schedule) in
            OTHERS.into_iter().flat_map(|other| SCHEDULES.map(|schedule| (other, schedule)))
        {
            for real in [true, false] {
                records.push(record(&table_6(real, other, schedule), 90.0, Some(3)));
            }
        }
        let paths = [
            ("direct-0", 14.0),
            ("buffered-0", 34.0),
            ("buffered-0-sender", 20.0),
            ("buffered-0-receiver", 14.0),
        ];
        records.extend(paths.map(|(case, ns)| record(case, ns, None)));
        let svg = texts(figures(&records));
        let has = |at: usize, names: &[&str]| names.iter().all(|name| svg[at].contains(name));
        assert!(svg.len() == 3 && has(0, &["synth-1000", "Simulated", "750 + 234"]), "{}", svg[0]);
        assert!(
            has(1, &["Tpuz, synth-10", "gang, here", "co, simulated", "co, UDM"])
                && has(2, &["buffered, both", "UDM, FUGU"])
        );
        assert!(svg.iter().all(|svg| !svg.contains("NaN") && !svg.contains("inf")));
    }

    #[test]
    fn nothing_is_not_plotted() {
        assert!(figures(&[]).unwrap_err().to_string().contains("no experiments"));
    }
}
