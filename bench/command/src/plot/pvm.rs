//! UPVM's figures on this machine: switches by the number of ULPs, one way by bytes, a hop of a
//! ring and Laplace's Mflops by tasks, beside the paper's own.

use super::{
    Area, Axes, COLOURS, Drawn, GREY, LIGHT, Line, Picture, PlotError, SIZE, Svg, WIDE, chart,
    legend, measured, render, room,
};
use plotters::prelude::*;
use upcall_bench::case::Placement;
use upcall_bench::pvm::case::{BYTES, Case, LAPLACES, RINGS, SAVES, SWITCHES, mflops};
use upcall_bench::pvm::contender::{Contender, How, OURS, PEERS};
use upcall_bench::pvm::paper::{FIGURE_2, FIGURE_3, FIGURE_5, FIGURE_7, SEQUENTIAL, hop_ns};
use upcall_bench::record::Record;

/// Draws the figures of a run. Cases that were not measured are not drawn.
///
/// # Errors
/// See [`PlotError`].
pub fn figures(records: &[Record]) -> Result<Vec<Svg>, PlotError> {
    let as_is: fn(f64) -> f64 = |ns| ns;
    let switch = with_processes(
        lines(records, SWITCHES.map(|ulps| (ulps as f64, Case::Switch(ulps))), as_is),
        records,
    );
    let one_way = lines(records, BYTES.map(|bytes| (place(bytes), Case::OneWay(bytes))), as_is);
    let ring = lines(records, RINGS.map(|tasks| (tasks as f64, Case::Ring(tasks))), as_is);
    let laplace =
        lines(records, LAPLACES.map(|tasks| (tasks as f64, Case::Laplace(tasks))), mflops);
    let shares = shares(records, &laplace);
    let saves = saves(records);

    let us = |us: f64| vec![(SWITCHES[0] as f64, 1e3 * us), (SWITCHES[4] as f64, 1e3 * us)];
    let switch =
        with_papers(switch, |at| us(FIGURE_2[1 + at]), ["ULPs, HP 720", "processes, HP 720"]);
    let one_way = with_papers(
        one_way,
        |at| FIGURE_3.map(|(bytes, ms)| (place(bytes), 1e6 * ms[1 - at])).to_vec(),
        PAPERS,
    );
    let ring = with_papers(
        ring,
        |at| FIGURE_5.map(|(tasks, ms)| (tasks as f64, hop_ns(tasks, ms[1 - at]))).to_vec(),
        PAPERS,
    );
    let papers = |at: usize| {
        FIGURE_7.map(|(tasks, of)| (tasks as f64, 100.0 * of[1 - at] / SEQUENTIAL)).to_vec()
    };
    let shares = with_papers(shares, papers, PAPERS);

    let number = |x: &f64| format!("{x:.0}");
    let bytes = |x: &f64| if *x < 1.0 { "0".to_owned() } else { format!("{x:.0}") };
    let ns = "ns (median; logarithmic)";
    let draw_switch = |area: &Area<'_>| {
        drawn(area, ["From one user-level process to the next", "ULPs", ns], &number, &switch)
    };
    let draw_one_way = |area: &Area<'_>| {
        drawn(
            area,
            ["One way: packed, unpacked, written and checked", "bytes", ns],
            &bytes,
            &one_way,
        )
    };
    let draw_ring = |area: &Area<'_>| drawn(area, ["A hop in a ring", "tasks", ns], &number, &ring);
    let draw_laplace = |area: &Area<'_>| {
        let (left, right) = area.split_horizontally(SIZE.0);
        drawn(&left, ["Laplace, 128 x 128", "tasks", "Mflops (logarithmic)"], &number, &laplace)?;
        let title = ["The same, of one task's on one processor", "tasks", "percent (logarithmic)"];
        if shares.is_empty() { Ok(()) } else { drawn(&right, title, &number, &shares) }
    };
    let draw_saves = |area: &Area<'_>| {
        let title = ["Tasks of 100 KiB: saved, and started again", "tasks", "ms (logarithmic)"];
        drawn(area, title, &number, &saves)
    };
    let pictures = [
        (switch.is_empty(), Picture { name: "pvm-switch.svg", size: SIZE, draw: &draw_switch }),
        (one_way.is_empty(), Picture { name: "pvm-one-way.svg", size: TALL, draw: &draw_one_way }),
        (ring.is_empty(), Picture { name: "pvm-ring.svg", size: TALL, draw: &draw_ring }),
        (
            laplace.is_empty(),
            Picture { name: "pvm-laplace.svg", size: (WIDE.0, TALL.1), draw: &draw_laplace },
        ),
        (saves.is_empty(), Picture { name: "pvm-saves.svg", size: TALL, draw: &draw_saves }),
    ];
    let there: Vec<_> =
        pictures.into_iter().filter_map(|(empty, picture)| (!empty).then_some(picture)).collect();
    if there.is_empty() {
        Err(PlotError::Nothing("cases of several sizes"))
    } else {
        render(&there)
    }
}

const PAPERS: [&str; 2] = ["UPVM, HP 720", "PVM, HP 720"];
/// Size of a figure with a key of a dozen lines.
const TALL: (u32, u32) = (SIZE.0 * 5 / 4, SIZE.1 * 3 / 2);
/// Additional colours, for more systems than there are common ones.
const MORE: [RGBColor; 3] = [RGBColor(0, 170, 200), RGBColor(225, 160, 0), RGBColor(100, 60, 200)];

/// Returns the horizontal position of a number of bytes. 0 has no place on a logarithmic axis, and
/// is drawn at 1/2.
fn place(bytes: usize) -> f64 {
    if bytes == 0 { 0.5 } else { bytes as f64 }
}

/// Adds a line of the time of two processes on this machine.
fn with_processes(mut lines: Vec<Line>, records: &[Record]) -> Vec<Line> {
    let found = records.iter().find(|record| record.case == Case::SwitchProcess.name());
    if let Some(record) = found.filter(|_| !lines.is_empty()) {
        let points = [SWITCHES[0], SWITCHES[4]].map(|ulps| (ulps as f64, record.p50_ns)).to_vec();
        lines.push(Line { name: "processes, by pipes".to_owned(), colour: COLOURS[1], points });
    }
    lines
}

/// Returns Mflops in percent of those of one task of the same system on one processor.
fn shares(records: &[Record], laplace: &[Line]) -> Vec<Line> {
    let alone = |name: &str| {
        // Only systems on one processor have a single task.
        let system = if name.starts_with("upcall") { "upcall" } else { name };
        let record =
            records.iter().find(|r| r.system == system && r.case == Case::Laplace(1).name())?;
        Some(mflops(record.p50_ns))
    };
    let of = |line: &Line| {
        let alone = alone(&line.name)?;
        let points =
            line.points.iter().map(|&(tasks, mflops)| (tasks, 100.0 * mflops / alone)).collect();
        Some(Line { name: line.name.clone(), colour: line.colour, points })
    };
    laplace.iter().filter_map(of).collect()
}

/// Returns a line for each system with more than one of these cases.
fn lines<const N: usize>(
    records: &[Record],
    cases: [(f64, Case); N],
    figure: fn(f64) -> f64,
) -> Vec<Line> {
    let all = OURS.into_iter().chain(PEERS).filter(|one| one.takes_part(Case::Ring(2)));
    let line = |(one, colour): (Contender, RGBColor)| {
        let found = |case: Case| {
            let name = case.name();
            records
                .iter()
                .find(|r| r.system == one.name && r.placement == one.placement && r.case == name)
        };
        let points =
            cases.iter().filter_map(|(x, case)| Some((*x, figure(found(*case)?.p50_ns)))).collect();
        let two = one.placement == Placement::TwoCores && matches!(one.how, How::Pvm { .. });
        Line {
            name: format!("{}{}", one.name, if two { ", two cores" } else { "" }),
            colour,
            points,
        }
    };
    all.zip(COLOURS.into_iter().chain(MORE).cycle())
        .map(line)
        .filter(|line| line.points.len() > 1)
        .collect()
}

/// Returns lines of checkpoints and restarts in one process and in two, and of plain writes of as
/// many bytes, in milliseconds.
fn saves(records: &[Record]) -> Vec<Line> {
    let line = |at: usize, name: &str, system: &str, case: fn(usize) -> Case, of: Of| {
        let found = |tasks: usize| {
            let case = case(tasks).name();
            records.iter().find(|record| record.system == system && record.case == case)
        };
        let point = |tasks: usize| Some((tasks as f64, of(found(tasks)?)? / 1e6));
        let points = SAVES.into_iter().filter_map(point).collect();
        Line { name: name.to_owned(), colour: COLOURS[at], points }
    };
    let (median, plain): (Of, Of) = (|record| Some(record.p50_ns), |record| record.memcpy_ns);
    let all = [
        line(0, "checkpoint", "upcall", Case::Checkpoint, median),
        line(1, "checkpoint, two processes", "upcall-2", Case::Checkpoint, median),
        line(2, "restart", "upcall", Case::Restart, median),
        line(3, "restart, two processes", "upcall-2", Case::Restart, median),
        line(4, "a plain write of as many bytes", "upcall", Case::Checkpoint, plain),
    ];
    all.into_iter().filter(|line| line.points.len() > 1).collect()
}

/// A figure that not all records have.
type Of = fn(&Record) -> Option<f64>;

/// Appends the paper's two lines, if there are any lines.
fn with_papers(
    mut lines: Vec<Line>,
    points: impl Fn(usize) -> Vec<(f64, f64)>,
    names: [&str; 2],
) -> Vec<Line> {
    if !lines.is_empty() {
        let papers = [GREY, LIGHT].into_iter().zip(names).enumerate();
        lines.extend(papers.map(|(at, (colour, name))| Line {
            name: name.to_owned(),
            colour,
            points: points(at),
        }));
    }
    lines
}

fn drawn(
    area: &Area<'_>,
    [title, across, upwards]: [&str; 3],
    label: &dyn Fn(&f64) -> String,
    lines: &[Line],
) -> Drawn {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (least, most) = points()
        .fold((f64::MAX, 1.0), |(least, most): (f64, f64), (x, _)| (least.min(*x), most.max(*x)));
    let axes = Axes { title, across, upwards, labels: 8, label };
    // The key is above the lines that extend far to the right.
    let rights = lines
        .iter()
        .filter(|line| line.points.last().is_some_and(|(x, _)| *x > most.sqrt() * 1.5))
        .count();
    let tall = area.dim_in_pixel().1 > SIZE.1;
    let high = room(
        points().map(|(_, y)| *y),
        if rights < 4 {
            0
        } else if tall {
            lines.len() * 2 / 3
        } else {
            lines.len()
        },
    );
    let mut chart = chart(area, &axes, (least / 1.3..most * 1.3).log_scale(), high)?;
    for (at, line) in lines.iter().enumerate() {
        measured(&mut chart, at, line)?;
    }
    legend(&mut chart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::texts;
    use upcall_bench::record::{Label, Turn};
    use upcall_bench::stats::Summary;

    #[test]
    fn figures_name_ours_the_peers_and_the_papers() {
        let mut records = Vec::new();
        for one in OURS.into_iter().chain(PEERS) {
            for case in Case::all().filter(|case| one.takes_part(*case)) {
                let found = Summary::flat(90.0, 5);
                let label = Label {
                    suite: "pvm",
                    case: &case.name(),
                    system: one.name,
                    placement: one.placement,
                    mode: one.mode,
                };
                records.push(label.latency(&[Turn { found, lines: (140.0, 140.0) }]));
            }
        }
        let svg = texts(figures(&records));
        assert_eq!(svg.len(), 5);
        assert!(
            svg[0].contains("processes, HP 720")
                && svg[0].contains("processes, by pipes")
                && svg[0].contains("upcall"),
            "{}",
            svg[0]
        );
        assert!(
            svg[4].contains("restart, two processes") && svg[4].contains("checkpoint"),
            "{}",
            svg[4]
        );
        for svg in &svg[1..4] {
            assert!(
                ["upcall-2", "pvm-direct", "openmpi-yield", "UPVM, HP 720"]
                    .iter()
                    .all(|name| svg.contains(name)),
                "{svg}"
            );
        }
        assert!(
            svg[1].contains("mpich")
                && svg[2].contains("upcall-2-interleave")
                && svg[2].contains("pvm, two cores")
        );
        assert!(svg.iter().all(|svg| !svg.contains("NaN") && !svg.contains("inf")));
    }

    #[test]
    fn nothing_is_not_plotted() {
        assert!(figures(&[]).unwrap_err().to_string().contains("no cases of several sizes"));
    }
}
