//! Jobs: parties that are supervisors, ask supervisors, or are members.

use crate::now;
use crate::outcome::{Outcome, done, say};
use crate::party::Said;
use std::cell::Cell;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall::message::{Event, GroupBuilder, Handlers, RunError};
use upcall_job::{Happening, Job, JobSchedule, OnDeath, SuspendMethod};

/// Runs a job. The words are options, `--`, and the arguments of its members, which run this
/// program too. Reports events, and finally the job's exit code.
pub fn supervise(words: &[&str]) {
    let say_error =
        |error: &(dyn std::error::Error + 'static)| println!("{}", Said::error(error).to_line());
    let Some(at) = words.iter().position(|word| *word == "--") else {
        return say(Err("a `--` is missing".into()));
    };
    let (options, member) = (&words[..at], &words[at + 1..]);
    let program = match member {
        ["program", program, ..] => program.into(),
        _ => std::env::current_exe().unwrap_or_default(),
    };
    let mut job = Job::new(0, program).arguments(member);
    for option in options {
        let (option, value) = option.split_once('=').unwrap_or((option, ""));
        let ms = || Duration::from_millis(value.parse().unwrap_or(1000));
        job = match (option, value) {
            ("size", size) => job.size(size.parse().unwrap_or(0)),
            ("name", name) => job.named(name),
            ("go-on", _) => job.on_death(OnDeath::GoOn),
            ("grace", _) => job.grace(ms()),
            ("label", _) => job.label(true),
            ("input", _) => job.input(true),
            ("no-pin", _) => job.pin(false),
            ("schedule", "batch") => job.schedule(JobSchedule::Batch),
            ("schedule", "gang") => job.schedule(JobSchedule::Gang),
            ("schedule", "co") => job.schedule(JobSchedule::Co),
            ("slice", _) => job.slice(ms()),
            ("way", "freezer") => job.way(SuspendMethod::Freezer),
            ("way", _) => job.way(SuspendMethod::Signals),
            _ => return say(Err(format!("unknown option {option:?}").into())),
        };
    }
    let ran = job.run(|what| match what {
        Happening::Started { .. } => println!("ok started"),
        Happening::Died { .. } => println!("ok died {what}"),
        _ => {}
    });
    match ran {
        Ok(code) => println!("ok code {code}"),
        Err(error) => say_error(&error),
    }
}

/// Sends requests to supervisors.
pub fn ask(words: &[&str]) {
    let asked = match words {
        ["stop", name] => upcall_job::stop(name),
        ["cont", name] => upcall_job::cont(name),
        ["kill", name] => upcall_job::kill(name),
        // For each job: its name, its state, whether it leads, and its members' processes.
        _ => {
            let (jobs, silent) = upcall_job::list();
            for job in jobs {
                let pids: Vec<String> =
                    job.members.iter().map(|member| member.pid.to_string()).collect();
                println!(
                    "ok {} {:?} {} {}",
                    job.name,
                    job.state,
                    if job.leads { "leads" } else { "-" },
                    pids.join(" ")
                );
            }
            silent.into_iter().next().map_or(Ok(()), Err)
        }
    };
    match asked {
        Ok(()) => println!("ok"),
        Err(error) => println!("{}", Said::error(&error).to_line()),
    }
}

/// Runs a member of a job.
pub fn member(words: &[&str]) {
    say(play(words));
}

fn play(words: &[&str]) -> Outcome {
    match words {
        ["exchange", count] => exchange(count.parse()?),
        ["work", path] => work(Path::new(path)),
        ["hold"] => hold(),
        // Records when it ran, until `ms` milliseconds have passed.
        ["spin", ms, path] => {
            let end = Instant::now() + Duration::from_millis(ms.parse()?);
            spin(|| Instant::now() >= end, path)
        }
        // The same until the file `path` exists.
        ["spin-until", path] => spin(|| Path::new(path).exists(), path),
        // The same on the first processor only.
        ["spin-first-until", path] if std::env::var("UPCALL_RANK")? != "0" => {
            while !Path::new(path).exists() {
                std::thread::sleep(Duration::from_millis(100));
            }
            done()
        }
        ["spin-first-until", path] => spin(|| Path::new(path).exists(), path),
        ["sleep"] => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        ["exit", code] => std::process::exit(code.parse()?),
        ["echo"] => {
            let text = std::io::read_to_string(std::io::stdin())?;
            Ok(vec!["read".into(), text.trim().into()])
        }
        _ => Err(format!("no such member: {words:?}").into()),
    }
}

/// Sends `count` messages to each other member, and takes as many.
fn exchange(count: u64) -> Outcome {
    let mut handlers = Handlers::new();
    let data = handlers.kind::<u64>("data");
    let taken = Rc::new(Cell::new(0));
    handlers.on(data, {
        let taken = taken.clone();
        move |_, _, number: u64| taken.set(taken.get() + number)
    });
    let group = GroupBuilder::from_environment()?.join(handlers)?;
    let others = || (0..group.size()).filter(|&rank| rank != group.rank());
    for number in 0..count {
        others().try_for_each(|to| group.send(to, data, &number))?;
    }
    let all = (group.size() as u64 - 1) * count * (count - 1) / 2;
    group.run_until(|| taken.get() == all)?;
    group.barrier()?;
    Ok(vec!["exchanged".into(), group.rank().to_string()])
}

/// Runs rounds of floods, barriers and reductions until the file `path` exists. A file beside it
/// has the number of rounds so far.
fn work(path: &Path) -> Outcome {
    const BURST: u64 = 500;
    let mut handlers = Handlers::new();
    let data = handlers.kind::<u64>("data");
    let taken = Rc::new(Cell::new(0));
    handlers.on(data, {
        let taken = taken.clone();
        move |_, _, round: u64| taken.set(taken.get() + round)
    });
    let group = GroupBuilder::from_environment()?.join(handlers)?;
    let (own, others) = (group.rank(), group.size() as u64 - 1);
    for round in 1.. {
        for _ in 0..BURST {
            (0..group.size())
                .filter(|&rank| rank != own)
                .try_for_each(|to| group.send(to, data, &round))?;
        }
        group.barrier()?;
        if own == 0 {
            std::fs::write(path.with_extension("rounds"), round.to_string())?;
        }
        if group.reduce(u64::from(own == 0 && path.exists()), u64::max)? == 1 {
            let all = others * BURST * round * (round + 1) / 2;
            group.run_until(|| taken.get() == all)?;
            group.barrier()?;
            return Ok(vec!["worked".into(), own.to_string(), round.to_string()]);
        }
    }
    Err("all numbers of rounds are used up".into())
}

/// Stays in the group, and reports which members leave it.
fn hold() -> Outcome {
    let group = GroupBuilder::from_environment()?.join(Handlers::new())?;
    println!("ok in {} {}", group.rank(), std::process::id());
    loop {
        if let Err(RunError::Lost(Event::Ended { rank })) = group.run_until(|| false) {
            println!("ok missed {} {rank}", group.rank());
        }
    }
}

fn spin(is_over: impl Fn() -> bool, path: &str) -> Outcome {
    let (mut last, mut asked) = (now(), now());
    let mut ran = vec![[last, last]];
    while last < asked + 1_000_000 || !is_over() {
        if last >= asked + 1_000_000 {
            asked = last;
        }
        let at = now();
        // Longer than the time between most readings of the clock, shorter than any turn: on a busy
        // machine the leader may come late, and end the next turn 100 µs later.
        if at > last + 20_000 {
            ran.push([at, at]);
        }
        ran.last_mut().expect("one at least")[1] = at;
        last = at;
    }
    let rank = std::env::var("UPCALL_RANK")?;
    let mut file = std::fs::File::create(format!("{path}.{rank}"))?;
    ran.iter().try_for_each(|[from, to]| writeln!(file, "{from} {to}"))?;
    done()
}
