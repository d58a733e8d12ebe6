//! `upcall calibrate`: measures the time of operations on objects on this machine, for
//! `Homed::auto`, which chooses between the ways.
//!
//! Two threads of this process, each on a processor of the pair, are a home and a user of its
//! object. Cache lines move between them as between two processes. Each figure is the median of
//! several rounds, in turns.

use crate::exit::{CommandError, CommandResult, Exit};
use crate::output::{FAINT, STRONG, note, print, print_json, println};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use upcall::home::costs::{self, Calibration, Costs, Pair};
use upcall::home::{DataError, FindError, Homed, Operation, Operations, Place, Procedure};
use upcall_os::processor::CpuSet;

/// Measures the time of operations on objects on this machine (docs/reference/objects.md).
///
/// Programs use the result to choose between the ways of running an operation. Without a
/// calibration they start with a guess. The measurement takes about a second
/// for each pair of processors; nothing else should run on them.
///
/// Columns, in ns: an access to a line that is in the own cache (HERE), or that the other processor
/// has changed (LINE); taking and releasing the LOCK alone, and after the other processor had it
/// (FAR); an urgent invocation of a home that polls (URGENT) or sleeps (ASLEEP), and an ordinary
/// one (INVOKE). EVEN is the number of lines from which on an invocation is cheaper than an access.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    /// Measure between these two processors; may be repeated. By default, one pair of each kind:
    /// with a common core, cache, package, or machine.
    #[arg(long = "pair", value_name = "N,N", value_parser = pair)]
    pairs: Vec<[u32; 2]>,
    /// Show the last measurement in place of a new one.
    #[arg(long, conflicts_with = "pairs")]
    show: bool,
    /// Print one JSON object with the keys machine, checked (a build with debug assertions) and
    /// pairs.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall calibrate
  upcall calibrate --show
  upcall calibrate --pair 0,1 --json
  UPCALL_COSTS=costs.json upcall calibrate";

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
            println(format_args!("{FAINT}from {}{FAINT:#}", costs::file()?.display()))?;
        }
        return Ok(Exit::Done);
    }
    let mut measured = Vec::new();
    for [first, second] in chosen(&args.pairs)? {
        if !args.json {
            note(format_args!("processors {first} and {second} ..."));
        }
        let share = shares(first, second).into();
        let costs = between(first, second).map_err(CommandError::failed)?;
        measured.push(Pair { processors: [first, second], share, costs });
    }
    let calibration =
        Calibration { machine: costs::machine(), checked: cfg!(debug_assertions), pairs: measured };
    let file = calibration.store()?;
    show(&calibration, args.json)?;
    if !args.json {
        println(format_args!("{FAINT}kept in {}{FAINT:#}", file.display()))?;
        if calibration.checked {
            println(format_args!(
                "{FAINT}This is a build with debug assertions, which slow everything down. Builds \
                 without them ignore the result.{FAINT:#}"
            ))?;
        }
    }
    Ok(Exit::Done)
}

/// The pairs to measure: those that were given, or one of each kind.
fn chosen(given: &[[u32; 2]]) -> Result<Vec<[u32; 2]>, CommandError> {
    let allowed = CpuSet::allowed()?;
    let pairs = if given.is_empty() {
        kinds(&allowed.iter().map(|at| at as u32).collect::<Vec<_>>())
    } else {
        given.to_vec()
    };
    if let Some(missing) = pairs.iter().flatten().find(|&&at| !allowed.contains(at as usize)) {
        let all = allowed.iter().map(|at| at.to_string()).collect::<Vec<_>>().join(", ");
        return Err(CommandError::usage(format_args!(
            "this process may not run on processor {missing}: choose two of {all}"
        )));
    }
    if pairs.is_empty() {
        return Err(CommandError::failed(
            "there is nothing to measure: this process may run on one processor only, and objects \
             are shared between two. Programs use a guess without a calibration",
        ));
    }
    Ok(pairs)
}

fn show(calibration: &Calibration, as_json: bool) -> Result<(), CommandError> {
    if as_json {
        return print_json(calibration);
    }
    let mut out = format!(
        "{}\n{STRONG}{:10} {:8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}{STRONG:#}\n",
        calibration.machine,
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
        out += &format!(
            "{:10} {share:8} {hit:7.1} {line:7.1} {lock:7.1} {lock_far:7.0} {urgent:7.0} \
             {asleep:7.0} {invoke:7.0} {:6.1}\n",
            format!("{first}, {second}"),
            costs.even()
        );
    }
    print(out)
}

/// The processors in a list such as `0-3,8`, as the kernel writes it.
fn listed(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// The nearest thing that two processors share, as the kernel reports it.
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

/// One pair of each kind. The first pair usually consists of neighbours.
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

/// An operation that does next to nothing.
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

/// A procedure that does nothing, run as if it could block.
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
/// Number of cache lines that one processor changes and the other then reads. Each line holds the
/// index of the next.
const LINES: usize = 256;
/// Number of operations in a round. Tests check that each is measured, not how precisely.
const TIMES: u32 = if cfg!(test) { 200 } else { 2000 };
const SLEEPS: u32 = 20;
/// Maximum number of attempts to find the object, each of which takes some seconds.
const TRIES: u32 = 5;
/// Maximum time that a home sleeps before it checks whether the round has ended.
const LOOK: Duration = Duration::from_millis(50);

#[repr(align(128))]
#[derive(Default)]
struct CacheLine(AtomicU64);

/// An error that can be sent between threads.
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

/// The turns of the two threads, which act alternately.
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

    /// Releases every thread that waits for a turn.
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
                // The other thread would wait forever.
                both[0].end();
            }
            done
        });
        let done = caller_side(first, &name, lines, both, ready);
        if done.is_err() {
            both[1].end();
        }
        let lock = home_side.join().map_err(|_| "the home's thread panicked")?;
        Ok(Costs { lock: lock?, ..done? })
    })
}

/// Runs the home's side. Returns the time of the lock alone.
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
        // The lock alone; then the lines and the lock, which the other side fetches.
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
        // The home serves urgent invocations until the other side has finished.
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
    // A walk in an order that no processor predicts.
    let mut at = 0;
    for _ in 0..lines.len() {
        let next = (at + 97) % lines.len();
        lines[at].0.store(next as u64, Ordering::Relaxed);
        at = next;
    }
}

/// Follows the lines, and changes each. Returns the time of an access.
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

/// Finds the object. The home's clerk may be late on a busy machine.
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
    fn every_figure_is_measured() {
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
