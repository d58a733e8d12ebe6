//! URPC's Table I on this machine, beside the paper's, and the cost of a growing number of threads,
//! of Upcall and the peers.

use super::{
    Area, Axes, Bars, COLOURS, Drawn, GREY, LIGHT, Line, Picture, PlotError, SIZE, Svg, WIDE, bars,
    chart, legend, measured, render, room,
};
use plotters::prelude::*;
use std::ops::Range;
use upcall_bench::record::Record;
use upcall_bench::suite::Peers;
use upcall_bench::threads::Contender;
use upcall_bench::threads::case::Case;

/// Extracts a figure that a record may lack.
type Figure = fn(&Record) -> Option<f64>;
const NS: Figure = |record| Some(record.p50_ns);
const FIRST_NS: Figure = |record| record.first_ns;
/// Bytes of a thread. The figure is 0 if the system's memory existed before it began, which has no
/// place on a logarithmic axis.
const BYTES: Figure = |record| record.bytes_each.filter(|&bytes| bytes > 0.0);

/// Draws the figures of a run. Cases that were not measured are not drawn.
///
/// # Errors
/// See [`PlotError`].
pub fn figures(records: &[Record]) -> Result<Vec<Svg>, PlotError> {
    let is_alive = |case| matches!(case, Case::Alive(_));
    let is_yield = |case| matches!(case, Case::Yield(_));
    let (again, first) = (lines(records, is_alive, NS), lines(records, is_alive, FIRST_NS));
    let (memory, turns) = (lines(records, is_alive, BYTES), lines(records, is_yield, NS));
    let groups = operations(records);

    let alive = |area: &Area<'_>| -> Drawn {
        let (left, right) = area.split_horizontally(SIZE.0);
        let unit = "ns a thread (median; logarithmic)";
        // A common range, so that the two can be compared.
        let range = ranges(again.iter().chain(&first), again.len());
        growth(
            &left,
            "Threads alive: to start and end one, again",
            "threads alive at once",
            unit,
            &again,
            &range,
        )?;
        growth(
            &right,
            "The same, the first time in a process",
            "threads alive at once",
            unit,
            &first,
            &range,
        )
    };
    let bytes = |area: &Area<'_>| {
        let range = ranges(memory.iter(), memory.len());
        let title = "Memory of a process by threads alive, for each of them";
        growth(
            area,
            title,
            "threads alive at once",
            "bytes a thread (logarithmic)",
            &memory,
            &range,
        )
    };
    let turn = |area: &Area<'_>| {
        let range = ranges(turns.iter(), turns.len());
        growth(
            area,
            "Yield by the number of threads in turn",
            "threads ready",
            "ns a yield (median; logarithmic)",
            &turns,
            &range,
        )
    };
    let table = |area: &Area<'_>| table(area, &groups);
    let pictures = [
        (groups.is_empty(), Picture { name: "threads-table.svg", size: WIDE, draw: &table }),
        (again.is_empty(), Picture { name: "threads-alive.svg", size: WIDE, draw: &alive }),
        (memory.is_empty(), Picture { name: "threads-memory.svg", size: SIZE, draw: &bytes }),
        (turns.is_empty(), Picture { name: "threads-yield.svg", size: SIZE, draw: &turn }),
    ];
    let there: Vec<_> =
        pictures.into_iter().filter_map(|(empty, picture)| (!empty).then_some(picture)).collect();
    if there.is_empty() { Err(PlotError::Nothing("operations of threads")) } else { render(&there) }
}

/// Returns all possible systems, each with its colour in every figure: Upcall, the peers, the
/// floor.
fn systems() -> impl Iterator<Item = (&'static str, RGBColor)> {
    let names = ["upcall"].into_iter().chain(Peers::<Contender>::All.names());
    names.zip(COLOURS.into_iter().cycle()).chain([("limit", LIGHT)])
}

/// Returns a line for each system: the figure of those cases by their number of threads.
fn lines(records: &[Record], is_meant: fn(Case) -> bool, of: Figure) -> Vec<Line> {
    let point = |record: &Record| {
        let case = Case::named(&record.case).filter(|&case| is_meant(case))?;
        Some((case.threads() as f64, of(record)?))
    };
    let line = |(system, colour): (&str, RGBColor)| {
        let mut points: Vec<_> =
            records.iter().filter(|record| record.system == system).filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: system.to_owned(), colour, points }
    };
    // One point shows no growth; the floor of a yield has two threads only.
    systems().map(line).filter(|line| line.points.len() > 1).collect()
}

/// Returns the horizontal and the vertical range of the lines.
fn ranges<'a>(
    lines: impl Iterator<Item = &'a Line> + Clone,
    keys: usize,
) -> (Range<f64>, Range<f64>) {
    let points = lines.flat_map(|line| &line.points);
    let most = points.clone().map(|&(x, _)| x).fold(1.0, f64::max);
    let least = points.clone().map(|&(x, _)| x).fold(most, f64::min);
    (least / 1.5..most * 1.5, room(points.map(|&(_, y)| y), keys))
}

fn growth(
    area: &Area<'_>,
    title: &str,
    across: &str,
    unit: &str,
    lines: &[Line],
    (wide, high): &(Range<f64>, Range<f64>),
) -> Drawn {
    let label = |threads: &f64| format!("{threads:.0}");
    let axes = Axes { title, across, upwards: unit, labels: 8, label: &label };
    let mut chart = chart(area, &axes, wide.clone().log_scale(), high.clone())?;
    for (at, line) in lines.iter().enumerate() {
        measured(&mut chart, at, line)?;
    }
    legend(&mut chart)
}

/// Returns the times of each system, in nanoseconds.
fn operations(records: &[Record]) -> Vec<Bars> {
    let bars = |(system, colour): (&str, RGBColor)| {
        let height = |(at, case): (usize, Case)| {
            let record = records
                .iter()
                .find(|record| record.system == system && record.case == case.name())?;
            Some((at, record.p50_ns))
        };
        Bars {
            name: system.to_owned(),
            colour,
            heights: Case::TABLE.into_iter().enumerate().filter_map(height).collect(),
        }
    };
    systems().map(bars).filter(|bars| !bars.heights.is_empty()).collect()
}

/// Returns Upcall's times in procedure calls, and the paper's.
fn multiples(ours: &Bars) -> Vec<Bars> {
    let call = ours
        .heights
        .iter()
        .find(|(at, _)| Case::TABLE[*at] == Case::ProcedureCall)
        .map(|&(_, ns)| ns);
    let paper = |of: fn((f64, f64)) -> f64| {
        let heights = Case::TABLE
            .into_iter()
            .enumerate()
            .filter_map(|(at, case)| Some((at, of(case.paper()?))));
        heights.collect()
    };
    let found = call.map(|call| Bars {
        name: "upcall, here".to_owned(),
        colour: ours.colour,
        heights: ours.heights.iter().map(|&(at, ns)| (at, ns / call)).collect(),
    });
    let urpc = Bars {
        name: "URPC's threads, Firefly".to_owned(),
        colour: GREY,
        heights: paper(|(urpc, _)| urpc),
    };
    let taos = Bars {
        name: "Taos's threads, Firefly".to_owned(),
        colour: LIGHT,
        heights: paper(|(_, taos)| taos),
    };
    found.into_iter().chain([urpc, taos]).collect()
}

fn table(area: &Area<'_>, groups: &[Bars]) -> Drawn {
    let (left, right) = area.split_horizontally(WIDE.0 * 3 / 5);
    let names = Case::TABLE.map(Case::name);
    bars(&left, "Operations of threads", "ns (median; logarithmic)", &names, groups)?;
    match groups.iter().find(|bars| bars.name == "upcall") {
        Some(ours) => bars(
            &right,
            "Ours and the paper's, in procedure calls",
            "multiple (logarithmic)",
            &names,
            &multiples(ours),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use upcall_bench::case::{Mode, Placement};
    use upcall_bench::record::{Label, Turn};
    use upcall_bench::stats::Summary;

    fn record(case: Case, system: &str, ns: f64) -> Record {
        let found = Summary::flat(ns, 5);
        let name = case.name();
        let label = Label {
            suite: "threads",
            case: &name,
            system,
            placement: Placement::OneCore,
            mode: Mode::Polling,
        };
        let alive = case.is_alive();
        let (bytes_each, first_ns) = (alive.then_some(8192.0), alive.then_some(3.0 * ns));
        Record { bytes_each, first_ns, ..label.latency(&[Turn { found, lines: (140.0, 140.0) }]) }
    }

    fn drawn(records: &[Record]) -> Vec<(&'static str, String)> {
        let figures = figures(records).unwrap();
        figures.into_iter().map(|figure| (figure.name, figure.text)).collect()
    }

    #[test]
    fn lines_are_of_systems_by_number_of_threads() {
        let of = |system| {
            [1_000, 10, 100_000]
                .map(move |threads| record(Case::Alive(threads), system, threads as f64))
        };
        let records: Vec<_> = of("go")
            .into_iter()
            .chain(of("upcall"))
            .chain([record(Case::Yield(2), "limit", 3.0)])
            .collect();
        let lines = lines(&records, |case| matches!(case, Case::Alive(_)), FIRST_NS);
        let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["upcall", "go"]);
        assert_eq!(lines[0].points, [(10.0, 30.0), (1e3, 3e3), (1e5, 3e5)]);
    }

    #[test]
    fn every_figure_is_drawn() {
        let cases = Case::TABLE
            .into_iter()
            .chain(Case::READY.map(Case::Yield))
            .chain(Case::ALIVE.map(Case::Alive));
        let of = |system: &'static str, ns: f64| {
            cases.clone().map(move |case| record(case, system, ns)).collect::<Vec<_>>()
        };
        let svg = drawn(&[of("upcall", 5.0), of("tokio", 70.0), of("limit", 2.0)].concat());
        let names: Vec<_> = svg.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            ["threads-table.svg", "threads-alive.svg", "threads-memory.svg", "threads-yield.svg"]
        );
        for (name, svg) in &svg {
            assert!(
                svg.starts_with("<svg") && svg.contains("tokio") && !svg.contains("NaN"),
                "{name}: {svg}"
            );
        }
        assert!(
            Case::TABLE.iter().all(|case| svg[0].1.contains(&case.name()))
                && svg[0].1.contains("Firefly")
        );
        assert!(svg[1].1.contains("1000000") && svg[3].1.contains("10000"));
    }

    #[test]
    fn what_was_not_measured_is_not_drawn() {
        let svg = drawn(&[record(Case::Fork, "go", 200.0), record(Case::Alive(10), "go", 200.0)]);
        assert_eq!(svg.len(), 1);
        assert!(svg[0].0 == "threads-table.svg" && !svg[0].1.contains("Firefly"), "{}", svg[0].1);
        let error = figures(&[]).unwrap_err().to_string();
        assert!(error.contains("nothing to plot"), "{error}");
    }
}
