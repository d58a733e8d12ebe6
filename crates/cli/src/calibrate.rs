//! `upcall calibrate`: what operations on objects take on this machine, for those that choose
//! between the ways (`Homed::auto`).
//!
//! Two threads of this process, each on a processor of the pair, are a home and one who uses its
//! object: what moves between them moves between processes in the same way. Each figure is the
//! median of several rounds, in turns.

use crate::told::{CommandResult, FAINT, STRONG, json};
use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use upcall::home::costs::{self, Calibration, Costs, Pair};
use upcall::home::{DataError, FindError, Homed, Operation, Operations, Place, Procedure};
use upcall_os::processor::CpuSet;

/// Measures what operations on objects take here: under the lock, by the home, and each line that
/// has to move; and keeps it for all that choose between these (docs/objects.md).
///
/// Without a calibration they begin with a guess. The table shows, in ns: an access to a line that
/// is HERE, and to one that the other processor has changed (LINE); having the LOCK and giving it
/// back, alone and where the other had it (FAR); an urgent invocation of a home that polls (URGENT)
/// or sleeps (ASLEEP), and an ordinary one (INVOKE). EVEN is the number of lines from which on an
/// invocation is cheaper than going there.
///
/// It takes about a second for each pair of processors, on which nothing else should run meanwhile.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall calibrate\n  upcall calibrate --show\n  upcall calibrate --pair 0,1 --pair 0,4 --json\n  UPCALL_COSTS=costs.json upcall calibrate"
)]
pub struct CalibrateArgs {
    /// Measure between these two processors, in place of one pair of each kind (that share a core,
    /// a cache, a package or only the machine); may be repeated.
    #[arg(long = "pair", value_name = "N,N", value_parser = pair)]
    pairs: Vec<[u32; 2]>,
    /// Measure nothing, and show what was measured.
    #[arg(long, conflicts_with = "pairs")]
    show: bool,
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<[u32; 2], String> {
    let numbers: Option<Vec<u32>> =
        text.split(',').map(|number| number.trim().parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[first, second]) if first != second => Ok([first, second]),
        _ => Err("give two processors, such as 0,1".into()),
    }
}

pub fn run(args: &CalibrateArgs) -> CommandResult {
    if args.show {
        let read = Calibration::load()?;
        show(&read, args.json)?;
        if !args.json {
            anstream::println!("{FAINT}from {}{FAINT:#}", costs::file()?.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let allowed = CpuSet::allowed()?;
    let pairs = if args.pairs.is_empty() {
        kinds(&allowed.iter().map(|at| at as u32).collect::<Vec<_>>())
    } else {
        args.pairs.clone()
    };
    if let Some(missing) = pairs.iter().flatten().find(|&&at| !allowed.contains(at as usize)) {
        let all = allowed.iter().map(|at| at.to_string()).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "this process may not run on processor {missing}, but on {all}: choose of these"
        )
        .into());
    }
    if pairs.is_empty() {
        return Err("this process may run on one processor only, and objects are shared between two: there is nothing to measure. Without a calibration a guess is used".into());
    }
    let mut measured = Vec::new();
    for [first, second] in pairs {
        if !args.json {
            anstream::eprintln!("{FAINT}processors {first} and {second} ...{FAINT:#}");
        }
        let share = shares(first, second).into();
        measured.push(Pair {
            processors: [first, second],
            share,
            costs: between(first, second).map_err(|error| error.to_string())?,
        });
    }
    let calibration =
        Calibration { machine: costs::machine(), checked: cfg!(debug_assertions), pairs: measured };
    let file = calibration.store()?;
    show(&calibration, args.json)?;
    if !args.json {
        anstream::println!("{FAINT}kept in {}{FAINT:#}", file.display());
        if calibration.checked {
            anstream::println!(
                "{FAINT}This is a build with debug assertions, which takes longer for everything: builds without do not go by it{FAINT:#}"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(calibration: &Calibration, as_json: bool) -> Result<(), serde_json::Error> {
    if as_json {
        println!("{}", json(calibration)?);
        return Ok(());
    }
    println!("{}", calibration.machine);
    anstream::println!(
        "{STRONG}{:10} {:8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}{STRONG:#}",
        "PROCESSORS",
        "SHARE",
        "HERE",
        "LINE",
        "LOCK",
        "FAR",
        "URGENT",
        "ASLEEP",
        "INVOKE",
        "EVEN"
    );
    for Pair { processors: [first, second], share, costs } in &calibration.pairs {
        let Costs { hit, line, lock, lock_far, urgent, asleep, invoke } = costs;
        println!(
            "{:10} {share:8} {hit:7.1} {line:7.1} {lock:7.1} {lock_far:7.0} {urgent:7.0} {asleep:7.0} {invoke:7.0} {:6.1}",
            format!("{first}, {second}"),
            costs.even()
        );
    }
    Ok(())
}

/// The processors in a list of the kernel's, such as `0-3,8`.
fn listed(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// What two processors share, as the kernel says: the nearest.
fn shares(first: u32, second: u32) -> &'static str {
    let read = |path: &str| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu{first}/{path}")).unwrap_or_default()
    };
    let together = |path: &str| listed(&read(path)).contains(&second);
    let last_cache = (0..8)
        .rev()
        .map(|at| format!("cache/index{at}/shared_cpu_list"))
        .find(|path| !read(path).is_empty());
    if together("topology/thread_siblings_list") {
        "core"
    } else if last_cache.is_some_and(|path| together(&path)) {
        "cache"
    } else if together("topology/core_siblings_list") {
        "package"
    } else {
        "machine"
    }
}

/// One pair of each kind, of which the first is that of neighbours as a rule.
fn kinds(allowed: &[u32]) -> Vec<[u32; 2]> {
    let mut found = BTreeMap::new();
    let Some((&first, others)) = allowed.split_first() else { return Vec::new() };
    for &other in others {
        let order = match shares(first, other) {
            "cache" => 0,
            "package" => 1,
            "core" => 2,
            _ => 3,
        };
        found.entry(order).or_insert([first, other]);
    }
    found.into_values().collect()
}

/// Nothing, at the home.
struct Nothing;

impl Operation for Nothing {
    type Of = u64;
    type Args<'a> = ();
    type Reply = ();
    const NAME: &'static str = "nothing";

    fn run(number: Place<'_, u64>, (): ()) -> Result<(), DataError> {
        number.update(|number| number + 1).map(drop)
    }
}

/// The same, as one that might block.
struct IdleProcedure;

impl Procedure for IdleProcedure {
    type Of = u64;
    type Args<'a> = ();
    type Reply = ();
    const NAME: &'static str = "idle";

    fn run(_: &Homed<u64>, (): ()) -> Result<(), String> {
        Ok(())
    }
}

const ROUNDS: usize = 9;
/// So many lines are changed at one processor, and then read at the other, each of which says where
/// the next one is.
const LINES: usize = 256;
/// Operations of a round. Tests look whether each is measured, not how well.
const TIMES: u32 = if cfg!(test) { 200 } else { 2000 };
const SLEEPS: u32 = 20;
/// So often the object is looked for, each time for some seconds.
const TRIES: u32 = 5;
/// So long a home sleeps before it looks whether more is to come.
const LOOK: Duration = Duration::from_millis(50);

#[repr(align(128))]
#[derive(Default)]
struct CacheLine(AtomicU64);

/// A failure on another thread, too.
type CalibrateError = Box<dyn std::error::Error + Send + Sync>;

fn each(
    times: u32,
    mut what: impl FnMut() -> Result<(), CalibrateError>,
) -> Result<f64, CalibrateError> {
    let begun = Instant::now();
    (0..times).try_for_each(|_| what())?;
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(times))
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The threads' turns: one of them does something, and then the other one, which finds what that
/// has left.
struct TurnCounter(AtomicU64);

impl TurnCounter {
    fn wait(&self, turn: u64) {
        while self.0.load(Ordering::Acquire) < turn {
            std::hint::spin_loop();
        }
    }

    fn pass(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Nobody waits for it any more.
    fn end(&self) {
        self.0.store(u64::MAX / 2, Ordering::Release);
    }
}

/// Measures between two processors.
fn between(first: u32, second: u32) -> Result<Costs, CalibrateError> {
    let home =
        Homed::<u64>::create(&format!("calibrate-{}", std::process::id())).with(|_| Ok(()))?;
    let name = home.name().to_string();
    let lines: Vec<CacheLine> = (0..LINES).map(|_| CacheLine::default()).collect();
    let both = [TurnCounter(AtomicU64::new(0)), TurnCounter(AtomicU64::new(0))];
    let ready = Barrier::new(2);
    thread::scope(|scope| {
        let (lines, both, ready) = (&lines, &both, &ready);
        let home_side = scope.spawn(move || {
            let done = home_side(second, &home, lines, both, ready);
            if done.is_err() {
                // The other one would wait for ever.
                both[0].end();
            }
            done
        });
        let done = caller_side(first, &name, lines, both, ready);
        if done.is_err() {
            both[1].end();
        }
        let lock = home_side.join().map_err(|_| "the home's thread has panicked")?;
        Ok(Costs { lock: lock?, ..done? })
    })
}

/// Returns what the lock takes alone.
fn home_side(
    second: u32,
    home: &Homed<u64>,
    lines: &[CacheLine],
    both: &[TurnCounter; 2],
    ready: &Barrier,
) -> Result<f64, CalibrateError> {
    let [turns, over] = both;
    let begun = CpuSet::only(second as usize).confine();
    let serving = home.serve(Operations::new().operation::<Nothing>().procedure::<IdleProcedure>());
    ready.wait();
    begun?;
    let (serving, mut locks, mut turn) = (serving?, Vec::new(), 0);
    for _ in 0..ROUNDS {
        // The lock alone; then the lines and the lock, for the other one to fetch.
        locks.push(each(TIMES, || Ok(home.access(|_| Ok(()))?))?);
        dirty(lines);
        turn += 1;
        turns.pass();
        over.wait(turn);
        for _ in 0..TIMES / 10 {
            home.access(|number| number.update(|number| number + 1))?;
            turn += 1;
            turns.pass();
            over.wait(turn);
        }
        // What is urgent is served until the other one has had enough.
        turn += 1;
        turns.pass();
        while over.0.load(Ordering::Acquire) < turn {
            if serving.poll() == 0 {
                serving.wait(Some(LOOK));
            }
        }
    }
    Ok(median(locks))
}

fn dirty(lines: &[CacheLine]) {
    // A walk in an order that no processor guesses.
    let mut at = 0;
    for _ in 0..lines.len() {
        let next = (at + 97) % lines.len();
        lines[at].0.store(next as u64, Ordering::Relaxed);
        at = next;
    }
}

/// Follows the lines, and changes each.
fn walk(lines: &[CacheLine]) -> f64 {
    let begun = Instant::now();
    let mut at = 0;
    for _ in 0..lines.len() {
        let line = &lines[at % lines.len()].0;
        let next = line.load(Ordering::Relaxed);
        line.store(next, Ordering::Relaxed);
        at = next as usize;
    }
    std::hint::black_box(at);
    begun.elapsed().as_nanos() as f64 / lines.len() as f64
}

/// Its home's clerk may come late where others have all processors.
fn find(name: &str) -> Result<Homed<u64>, FindError> {
    (1..TRIES).find_map(|_| Homed::find(name).ok()).map_or_else(|| Homed::find(name), Ok)
}

fn caller_side(
    first: u32,
    name: &str,
    lines: &[CacheLine],
    [turns, over]: &[TurnCounter; 2],
    ready: &Barrier,
) -> Result<Costs, CalibrateError> {
    let begun = CpuSet::only(first as usize).confine();
    let away = find(name);
    ready.wait();
    begun?;
    let away = away?;
    let mut found: [Vec<f64>; 6] = Default::default();
    let clock = median((0..101).map(|_| Instant::now().elapsed().as_nanos() as f64).collect());
    let mut turn = 0;
    let mut next = || {
        turn += 1;
        turns.wait(turn);
    };
    for _ in 0..ROUNDS {
        next();
        found[1].push(walk(lines));
        found[0].push(median((0..5).map(|_| walk(lines)).collect()));
        over.pass();
        let mut far = Vec::new();
        for _ in 0..TIMES / 10 {
            next();
            let begun = Instant::now();
            away.access(|number| number.update(|number| number + 1))?;
            far.push((begun.elapsed().as_nanos() as f64 - clock).max(0.0));
            over.pass();
        }
        found[2].push(median(far));
        next();
        for _ in 0..100 {
            away.urgent::<Nothing>(())?;
        }
        found[3].push(each(TIMES, || Ok(away.urgent::<Nothing>(())?))?);
        found[5].push(each(TIMES, || Ok(away.invoke::<IdleProcedure>(())?))?);
        let mut asleep = Vec::new();
        for _ in 0..SLEEPS {
            thread::sleep(Duration::from_millis(1));
            let begun = Instant::now();
            away.urgent::<Nothing>(())?;
            asleep.push(begun.elapsed().as_nanos() as f64);
        }
        found[4].push(median(asleep));
        over.pass();
    }
    let [hit, line, lock_far, urgent, asleep, invoke] = found.map(median);
    Ok(Costs { hit, line, lock: 0.0, lock_far, urgent, asleep, invoke })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(listed("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!((listed("7"), listed("")), (vec![7], vec![]));
        assert_eq!((pair("0,1"), pair("3, 2").unwrap()), (Ok([0, 1]), [3, 2]));
        assert!(
            pair("0").is_err()
                && pair("1,1").is_err()
                && pair("0,1,2").is_err()
                && pair("a,b").is_err()
        );
    }

    #[test]
    fn what_is_measured_is_sound() {
        let _alone = crate::ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let allowed: Vec<u32> = CpuSet::allowed().unwrap().iter().map(|at| at as u32).collect();
        let pairs = kinds(&allowed);
        assert_eq!(pairs.is_empty(), allowed.len() < 2);
        for [first, second] in pairs {
            let costs = between(first, second).unwrap();
            let all = [
                costs.hit,
                costs.line,
                costs.lock,
                costs.lock_far,
                costs.urgent,
                costs.asleep,
                costs.invoke,
            ];
            assert!(all.iter().all(|ns| (0.1..1e9).contains(ns)), "{costs:?}");
        }
    }
}
