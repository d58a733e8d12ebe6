//! Time and memory of simulated hosts by their number.

use super::{
    Area, Axes, COLOURS, Drawn, LIGHT, Line, Picture, PlotError, SIZE, Svg, WIDE, chart, legend,
    measured, render, room,
};
use plotters::prelude::*;
use upcall_bench::links::case::Case;
use upcall_bench::record::Record;

/// Extracts a figure of a case that a record may lack.
type Figure = fn(Case, &Record) -> Option<f64>;

/// Draws the figures of a run.
///
/// # Errors
/// See [`PlotError`].
pub fn figures(records: &[Record]) -> Result<Vec<Svg>, PlotError> {
    let time = lines(records, "processor time", |case, record| {
        Some(record.p50_ns * case.messages() as f64 / 1e9)
    });
    let memory = lines(records, "peak memory of the process", |_, record| {
        Some(record.peak_kib? as f64 / 1024.0)
    });
    if time.is_empty() || memory.is_empty() {
        return Err(PlotError::Nothing("two numbers of hosts"));
    }
    let draw = |area: &Area<'_>| -> Drawn {
        let (left, right) = area.split_horizontally(SIZE.0);
        growth(&left, "Hosts whose links are cut: time of a run", "s (logarithmic)", &time)?;
        growth(&right, "The same: memory", "MiB (logarithmic)", &memory)
    };
    render(&[Picture { name: "links-growth.svg", size: WIDE, draw: &draw }])
}

/// Returns the line of a figure by the number of hosts, and the line of proportional growth. One
/// point shows no growth.
fn lines(records: &[Record], name: &str, of: Figure) -> Vec<Line> {
    let point = |case: Case| {
        let record = records.iter().find(|record| record.case == case.name())?;
        Some((f64::from(case.hosts()), of(case, record)?))
    };
    let points: Vec<_> = Case::ALL.into_iter().filter_map(point).collect();
    let [(first, _), .., (last, most)] = points[..] else { return Vec::new() };
    let each = most / last;
    let line = |name: &str, colour, points| Line { name: name.to_owned(), colour, points };
    let as_hosts = vec![(first, first * each), (last, most)];
    vec![line(name, COLOURS[0], points), line("in proportion to the hosts", LIGHT, as_hosts)]
}

fn growth(area: &Area<'_>, title: &str, unit: &str, lines: &[Line]) -> Drawn {
    let points = || lines.iter().flat_map(|line| &line.points);
    let across = |most: f64, &(x, _): &(f64, f64)| most.max(x);
    let (least, most) =
        (points().map(|(x, _)| *x).fold(f64::MAX, f64::min), points().fold(1.0, across));
    let label = |hosts: &f64| format!("{hosts:.0}");
    let axes = Axes { title, across: "hosts", upwards: unit, labels: 8, label: &label };
    let high = room(points().map(|(_, y)| *y), lines.len());
    let mut chart = chart(area, &axes, (least / 1.5..most * 1.5).log_scale(), high)?;
    for (at, line) in lines.iter().enumerate() {
        measured(&mut chart, at, line)?;
    }
    legend(&mut chart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::texts;
    use upcall_bench::case::{Mode, Placement};
    use upcall_bench::record::{Label, Turn};
    use upcall_bench::stats::Summary;

    fn record(case: Case) -> Record {
        let (found, name) = (Summary::flat(2e3, 5), case.name());
        let (placement, mode) = (Placement::OneCore, Mode::Polling);
        let label = Label { suite: "links", case: &name, system: "upcall", placement, mode };
        let peak_kib = Some(1024 * u64::from(case.hosts()));
        Record { peak_kib, ..label.latency(&[Turn { found, lines: (140.0, 140.0) }]) }
    }

    #[test]
    fn growth_is_drawn_by_the_number_of_hosts() {
        let records = Case::ALL.map(record);
        let svg = texts(figures(&records));
        assert_eq!(svg.len(), 1);
        for text in ["100000", "peak memory", "processor time", "in proportion"] {
            assert!(svg[0].contains(text), "{text}: {}", svg[0]);
        }
        assert!(!svg[0].contains("NaN"));
        let found = lines(&records, "memory", |_, record| record.peak_kib.map(|kib| kib as f64));
        assert_eq!(found[0].points[..2], [(10.0, 10_240.0), (100.0, 102_400.0)]);
        assert_eq!(found[1].points, [(10.0, 10_240.0), (100_000.0, 102_400_000.0)]);
    }

    #[test]
    fn one_number_of_hosts_is_not_plotted() {
        let error = figures(&[record(Case::ALL[0])]).unwrap_err().to_string();
        assert!(error.contains("no two numbers of hosts"), "{error}");
    }
}
