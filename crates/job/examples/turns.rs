//! The cost of turns, and how far apart the members of one job are switched.
//!
//! Two jobs compute, in turn as gangs with slices of 10 ms and as a batch.
//!
//! `cargo run --release -p upcall-job --example turns -- [ROUNDS [STEPS]]`, on an otherwise idle
//! machine.
#![forbid(unsafe_code)]

use std::process::{Child, Command};
use std::time::{Duration, Instant};
use upcall_job::{Job, JobSchedule, SuspendMethod};

type Spans = Vec<[u64; 2]>;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["member", steps, path] => member(steps.parse().expect("a number"), path),
        ["job", kind, way, steps, path] => {
            let kind = if kind == "gang" { JobSchedule::Gang } else { JobSchedule::Batch };
            let way =
                if way == "freezer" { SuspendMethod::Freezer } else { SuspendMethod::Signals };
            let job =
                Job::new(2, std::env::current_exe().expect("this program")).schedule(kind).way(way);
            let ran = job.arguments(["member", steps, path]).run(|_| ());
            std::process::exit(ran.map_or_else(|error| panic!("{error}"), i32::from));
        }
        [] => measure(10, "60000"),
        [rounds] => measure(rounds.parse().expect("a number of rounds"), "60000"),
        [rounds, steps, ..] => measure(rounds.parse().expect("a number of rounds"), steps),
    }
}

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Computes, and records when it ran: more than 1 ms between two steps is a pause.
fn member(steps: u64, path: &str) {
    let mut state = 1_u64;
    let mut spans = vec![[now(); 2]];
    for _ in 0..steps {
        for _ in 0..8000 {
            state =
                std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        let at = now();
        match spans.last_mut() {
            Some(last) if at < last[1] + 1_000_000 => last[1] = at,
            _ => spans.push([at, at]),
        }
    }
    let text: String = spans.iter().map(|[from, to]| format!("{from} {to}\n")).collect();
    std::fs::write(format!("{path}.{}", std::env::var("UPCALL_RANK").unwrap_or_default()), text)
        .expect("writing");
}

fn spans(path: &str, rank: usize) -> Spans {
    let text =
        std::fs::read_to_string(format!("{path}.{rank}")).expect("what a member has written");
    let pair = |line: &str| {
        line.split_once(' ').map(|(a, b)| [a, b].map(|number| number.parse().expect("a number")))
    };
    text.lines().filter_map(pair).collect()
}

fn both(kind: &str, way: &str, steps: &str, folder: &str) -> Duration {
    let start = Instant::now();
    let job = |which: &str| -> Child {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["job", kind, way, steps, &format!("{folder}/{kind}.{which}")])
            .env("UPCALL_DIR", format!("{folder}/names"));
        command.spawn().expect("a job starts")
    };
    for mut job in ["a", "b"].map(job) {
        assert!(job.wait().expect("its end").success());
    }
    start.elapsed()
}

fn shown(mut micros: Vec<f64>) -> String {
    micros.sort_by(f64::total_cmp);
    if micros.is_empty() {
        return "none".into();
    }
    let at = |part: f64| micros[(micros.len() as f64 * part) as usize];
    format!("median {:.0}, p90 {:.0} µs", at(0.5), at(0.9))
}

fn measure(rounds: usize, steps: &str) {
    let folder = std::env::temp_dir().join(format!("upcall-turns-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let folder = folder.display().to_string();
    for way in ["signals", "freezer"] {
        let (mut ratios, mut begins, mut ends, mut gaps) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut together, mut best) = (0, [f64::MAX; 2]);
        for round in 0..rounds {
            let order = if round % 2 == 0 { ["gang", "batch"] } else { ["batch", "gang"] };
            let times = order.map(|kind| (kind, both(kind, way, steps, &folder).as_secs_f64()));
            let of = |kind| times.iter().find(|time| time.0 == kind).map_or(0.0, |time| time.1);
            ratios.push(of("gang") / of("batch"));
            best = [best[0].min(of("gang")), best[1].min(of("batch"))];
            let jobs = ["a", "b"]
                .map(|job| [0, 1].map(|rank| spans(&format!("{folder}/gang.{job}"), rank)));
            for [first, second] in &jobs {
                // Two spans are of the same turn if they differ by less than a third of it.
                for (side, skews) in [(0, &mut begins), (1, &mut ends)] {
                    let nearest = |at: u64| second.iter().map(|span| span[side].abs_diff(at)).min();
                    skews.extend(
                        first
                            .iter()
                            .filter_map(|span| nearest(span[side]))
                            .filter(|&skew| skew < 3_000_000),
                    );
                }
            }
            let [a, b] = jobs.map(|ranks| ranks.concat());
            together += a
                .iter()
                .flat_map(|x| b.iter().map(move |y| x[1].min(y[1]).saturating_sub(x[0].max(y[0]))))
                .sum::<u64>();
            for (ours, theirs) in [(&a, &b), (&b, &a)] {
                let last =
                    |at: u64| theirs.iter().map(|span| span[1]).filter(|&end| end <= at).max();
                gaps.extend(
                    ours.iter()
                        .filter_map(|span| Some(span[0] - last(span[0])?))
                        .filter(|&gap| gap < 3_000_000),
                );
            }
        }
        let micros = |times: Vec<u64>| shown(times.into_iter().map(|ns| ns as f64 / 1e3).collect());
        ratios.sort_by(f64::total_cmp);
        println!(
            "{way}: gang to batch {:.3} (of the fastest {:.3}); {:.3} s",
            ratios[rounds / 2],
            best[0] / best[1],
            best[1]
        );
        println!("  skew at the begin of a turn: {}; at its end: {}", micros(begins), micros(ends));
        println!(
            "  from the last step of one job to the first of the next: {}; \
             both ran for {together} ns",
            micros(gaps)
        );
    }
    let _ = std::fs::remove_dir_all(folder);
}
