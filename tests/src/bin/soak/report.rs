//! The summary of a run, for people and for programs.

use crate::Options;
use crate::book::{Sum, Times};
use crate::killer::Run;
use crate::watch::Leaks;
use std::fmt::Write;

fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// Prints the table.
pub fn print(run: &Run<'_>, leaks: Option<&Leaks>) {
    println!("\n  disturbed                     kills    stops");
    let kinds: std::collections::BTreeSet<&String> =
        run.done.keys().map(|(_, kind)| kind).collect();
    let count = |what: &'static str, kind: &str| {
        run.done.get(&(what, kind.to_string())).copied().unwrap_or(0)
    };
    for kind in kinds {
        println!("    {kind:25} {:8} {:8}", count("kill", kind), count("stop", kind));
    }
    println!("\n  counted");
    for (sum, name) in Sum::ALL {
        println!("    {name:36} {:12}", run.book.sum(sum));
    }
    println!(
        "\n  times (reported only)                 count       median        99 %      99.9 %     \
        longest"
    );
    for times in Times::ALL {
        let (count, longest) = run.book.noted(times);
        let [median, most, nearly_all] =
            [0.5, 0.99, 0.999].map(|share| time(run.book.quantile(times, share)));
        println!(
            "    {:28} {count:12} {median:>12} {most:>11} {nearly_all:>11} {:>11}",
            times.name(),
            time(longest)
        );
    }
    let (longest, what) = &run.watchdog.longest;
    println!(
        "\n  longest wait, stops and late wake-ups not counted: {}, {what}",
        time(longest.as_nanos() as u64)
    );
    println!(
        "  share of the time in which a control thread was late: {:.1} %",
        run.watchdog.lost() * 100.0
    );
    match run.charged {
        Some((before, after)) => {
            println!("  memory of all processes together, at rest: {before} → {after}")
        }
        None => println!(
            "  memory of all processes together: not known, no control group can be made or the \
            run ended early"
        ),
    }
    if let Some(leaks) = leaks {
        println!(
            "\n  at rest, before → after   descriptors      memory files          threads     own \
            memory (KiB)     allocated (bytes)"
        );
        for (before, after) in &leaks.0 {
            let (old, new) = (before.usage, after.usage);
            println!(
                "    {:20} {:>7} → {:<7} {:>7} → {:<7} {:>7} → {:<7} {:>7} → {:<7} {:>9} → {:<9}",
                after.name,
                old.descriptors,
                new.descriptors,
                old.shared,
                new.shared,
                old.threads,
                new.threads,
                before.own,
                after.own,
                before.held,
                after.held
            );
        }
    }
    println!();
}

fn text(words: &str) -> String {
    let mut out = String::from("\"");
    for c in words.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => drop(write!(out, "\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out + "\""
}

fn object(parts: impl IntoIterator<Item = (String, String)>) -> String {
    let parts: Vec<String> =
        parts.into_iter().map(|(key, value)| format!("{}: {value}", text(&key))).collect();
    format!("{{{}}}", parts.join(", "))
}

/// The summary as JSON.
pub fn json(run: &Run<'_>, options: &Options, leaks: Option<&Leaks>) -> String {
    let sums = Sum::ALL.map(|(sum, name)| (name.to_string(), run.book.sum(sum).to_string()));
    let times = Times::ALL.map(|times| {
        let (count, longest) = run.book.noted(times);
        let mut parts = vec![("count".to_string(), count.to_string())];
        for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            parts.push((format!("{name}_ns"), run.book.quantile(times, share).to_string()));
        }
        parts.push(("longest_ns".into(), longest.to_string()));
        (times.name().to_string(), object(parts))
    });
    let disturbed =
        run.done.iter().map(|((what, kind), count)| (format!("{what} {kind}"), count.to_string()));
    let rest = leaks.into_iter().flat_map(|leaks| &leaks.0).map(|(before, after)| {
        let pair = |name: &str, old: u64, new: u64| (name.to_string(), format!("[{old}, {new}]"));
        let (old, new) = (before.usage, after.usage);
        let parts = [
            pair("descriptors", old.descriptors as u64, new.descriptors as u64),
            pair("memory_files", old.shared as u64, new.shared as u64),
            pair("mappings", old.mappings as u64, new.mappings as u64),
            pair("threads", old.threads as u64, new.threads as u64),
            pair("own_kib", before.own, after.own),
            pair("allocated_bytes", before.held, after.held),
        ];
        (after.name.clone(), object(parts))
    });
    let faults: Vec<String> = run.faults.iter().map(|fault| text(fault)).collect();
    object([
        ("seed".to_string(), options.seed.to_string()),
        ("seconds".into(), options.seconds.to_string()),
        ("rate".into(), options.rate.to_string()),
        ("passed".into(), run.faults.is_empty().to_string()),
        ("counted".into(), object(sums)),
        ("times".into(), object(times)),
        ("longest_wait_ns".into(), run.watchdog.longest.0.as_nanos().to_string()),
        ("longest_wait".into(), text(&run.watchdog.longest.1)),
        (
            "charged_kib".into(),
            run.charged.map_or("null".into(), |(before, after)| {
                format!("[{}, {}]", before.all(), after.all())
            }),
        ),
        ("late".into(), format!("{:.4}", run.watchdog.lost())),
        ("disturbed".into(), object(disturbed)),
        ("rest".into(), object(rest)),
        ("faults".into(), format!("[{}]", faults.join(", "))),
    ])
}

/// The command that runs it again.
pub fn again(options: &Options) -> String {
    let program =
        std::env::current_exe().map_or_else(|_| "soak".into(), |path| path.display().to_string());
    let mut line = format!(
        "{program} --seconds {} --seed {} --rate {}",
        options.seconds, options.seed, options.rate
    );
    let _ = write!(line, " --hang {}", options.hang.as_millis());
    if options.parts.len() < Options::PARTS.len() {
        let _ = write!(line, " --only {}", options.parts.join(","));
    }
    if let Some(plant) = &options.plant {
        let _ = write!(line, " --plant {plant}");
    }
    line
}
