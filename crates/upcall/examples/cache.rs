//! A cache that processes share: a table of a million entries of 100 bytes, under keys of this
//! machine, in the memory of one home process.
//!
//! Each caller is a process. It works on the table in place under its lock (`access`), or reads it
//! without the lock (`read`). Or it has the home do the operation: between other work (`urgent`),
//! or in a thread there (`invoke`). `auto` chooses the way that is measured to take the least time.
//! Every value is checked against its key. `cache --help` lists the arguments. `upcall-bench cache`
//! compares the same with Redis and Memcached (docs/performance/cache.md).
#![forbid(unsafe_code)]

#[path = "cache/entries.rs"]
pub mod entries;

use entries::{Keys, Random, check, value};
use std::error::Error;
use std::fmt;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use upcall::home::{
    Blob, DataError, Homed, Map, MapAt, Operation, Operations, Procedure, Text, Verdict,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The shared table.
pub type Table = Map<Text, Blob>;

/// The value of a key, if it has one.
pub struct Get;

impl Operation for Get {
    type Of = Table;
    type Args<'a> = &'a str;
    type Reply = Option<Vec<u8>>;
    const NAME: &'static str = "get";
    const LOOKS: bool = true;

    fn run(table: MapAt<'_, Text, Blob>, key: &str) -> Result<Option<Vec<u8>>, DataError> {
        table.get(key)?.map(|at| at.get()).transpose()
    }
}

/// Sets the value of a key. Returns whether it had one.
pub struct Put;

impl Operation for Put {
    type Of = Table;
    type Args<'a> = (&'a str, &'a [u8]);
    type Reply = bool;
    const NAME: &'static str = "put";

    fn run(table: MapAt<'_, Text, Blob>, (key, value): (&str, &[u8])) -> Result<bool, DataError> {
        table.insert(key, value)
    }
}

/// Like [`Get`], as a thread of the home, which could do more than one operation and wait in
/// between.
pub struct LongGet;

impl Procedure for LongGet {
    type Of = Table;
    type Args<'a> = &'a str;
    type Reply = Option<Vec<u8>>;
    const NAME: &'static str = "long-get";

    fn run(table: &Homed<Table>, key: &str) -> Result<Option<Vec<u8>>, String> {
        table.perform::<Get>(key).map_err(|error| error.to_string())
    }
}

/// See [`LongGet`].
pub struct LongPut;

impl Procedure for LongPut {
    type Of = Table;
    type Args<'a> = (&'a str, &'a [u8]);
    type Reply = bool;
    const NAME: &'static str = "long-put";

    fn run(table: &Homed<Table>, entry: (&str, &[u8])) -> Result<bool, String> {
        table.perform::<Put>(entry).map_err(|error| error.to_string())
    }
}

/// The operations that the home runs for others.
pub fn operations() -> Operations<Table> {
    Operations::new()
        .operation::<Get>()
        .operation::<Put>()
        .procedure::<LongGet>()
        .procedure::<LongPut>()
}

/// Creates an empty table called `name`, with room for `entries` entries. If a process dies while
/// it changes the table, the table is as before or as after that change, so it is kept.
pub fn create(name: &str, entries: usize) -> Outcome<Homed<Table>> {
    // An entry needs room for its key and value, the blocks around them, and its places in two
    // tables while one grows into the other.
    let room = (1 << 20) + 1024 * entries as u64;
    Ok(Homed::<Table>::create(name).room(room).repair(|_, _| Verdict::Keep).with(|_| Ok(()))?)
}

/// How an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the caller, under the table's lock.
    Access,
    /// By the caller, without the lock. Gets only.
    Read,
    /// By the home, between its other work.
    Urgent,
    /// By a thread of the home.
    Invoke,
    /// By whichever of the first three currently takes the least time.
    Auto,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 5] = [Self::Access, Self::Read, Self::Urgent, Self::Invoke, Self::Auto];

    /// Its name on the command line and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::Read => "read",
            Self::Urgent => "urgent",
            Self::Invoke => "invoke",
            Self::Auto => "auto",
        }
    }
}

/// A caller's handle to the table.
pub struct Cache {
    table: Homed<Table>,
    /// The value that was read last.
    found: Vec<u8>,
}

impl Cache {
    /// Finds the table called `name`.
    pub fn find(name: &str) -> Outcome<Self> {
        Ok(Self { table: Homed::find(name)?, found: Vec::new() })
    }

    /// The value of a key.
    pub fn get(&mut self, way: Way, key: &str) -> Outcome<&[u8]> {
        let Self { table, found } = self;
        let none = || format!("nothing is under {key:?}");
        match way {
            Way::Access => *found = table.perform::<Get>(key)?.ok_or_else(none)?,
            Way::Urgent => *found = table.urgent::<Get>(key)?.ok_or_else(none)?,
            Way::Invoke => *found = table.invoke::<LongGet>(key)?.ok_or_else(none)?,
            Way::Auto => *found = table.auto::<Get>(key)?.ok_or_else(none)?,
            // The closure may run several times if another process changes the table at the same
            // time.
            Way::Read => table
                .read(|table| {
                    found.clear();
                    table.get(key)?.map(|at| at.append_to(found)).transpose()
                })?
                .ok_or_else(none)?,
        }
        Ok(found)
    }

    /// Sets the value of a key.
    pub fn put(&self, way: Way, key: &str, value: &[u8]) -> Outcome<()> {
        match way {
            Way::Access => self.table.perform::<Put>((key, value))?,
            Way::Urgent => self.table.urgent::<Put>((key, value))?,
            Way::Invoke => self.table.invoke::<LongPut>((key, value))?,
            Way::Auto => self.table.auto::<Put>((key, value))?,
            Way::Read => return Err("a look changes nothing: put by another way".into()),
        };
        Ok(())
    }
}

/// The callers' operations: the percentage of puts; the others are gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mix(u64);

impl Mix {
    const GETS: Self = Self(0);
    const PUTS: Self = Self(100);

    /// The ways to run the mix. `read` is one if there are gets; puts then use `access`.
    fn ways(self) -> impl Iterator<Item = Way> {
        Way::ALL.into_iter().filter(move |way| self != Self::PUTS || *way != Way::Read)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::GETS => f.pad("get"),
            Self::PUTS => f.pad("put"),
            Self(percent) => f.pad(&format!("put-{percent}%")),
        }
    }
}

/// The arguments of the command line.
struct Plan {
    entries: usize,
    callers: usize,
    /// The mixes, run one after the other.
    mixes: Vec<Mix>,
    /// `true` if a thread of the home puts all the time.
    busy: bool,
    /// Number of rounds. In each, every way gets an equal part of its time.
    rounds: u32,
    /// Time for each way, in all rounds together.
    time: Duration,
    json: bool,
}

const HELP: &str = "A table of a million entries that processes share: get and put in all ways.

Usage: cache [--entries N] [--callers N] [--puts PERCENT] [--busy] [--rounds N] [--ms N] [--json]

  --entries N   in the table (1000000)
  --callers N   processes that use it at once (2)
  --puts N      so many percent of the operations are puts, in place of gets and then puts;
                beside looks, puts go by access
  --busy        a thread of the home puts at the same time, as fast as it can
  --rounds N    all ways take turns, so many times; rates are medians of the rounds (5)
  --ms N        so long each way is measured, in all rounds together (1000)
  --json        records in place of a table
  --help        this

Examples:
  cargo run --release -p upcall --example cache
  cargo run --release -p upcall --example cache -- --entries 100000 --callers 1 --ms 200
  cargo run --release -p upcall --example cache -- --callers 3 --puts 10 --rounds 9
  cargo run --release -p upcall --example cache -- --callers 1 --busy
  cargo run --release -p upcall --example cache -- --callers 8 --json > cache.json";

impl Plan {
    /// Parses the arguments; `None` asks for the help text.
    fn of(mut words: impl Iterator<Item = String>) -> Outcome<Option<Self>> {
        let mixes = vec![Mix::GETS, Mix::PUTS];
        let time = Duration::from_secs(1);
        let mut plan = Self {
            entries: 1_000_000,
            callers: 2,
            mixes,
            busy: false,
            rounds: 5,
            time,
            json: false,
        };
        while let Some(word) = words.next() {
            let mut number = || -> Outcome<usize> {
                let said = words
                    .next()
                    .and_then(|number| number.parse().ok())
                    .filter(|number| *number > 0);
                said.ok_or_else(|| format!("{word} takes a number above 0; see --help").into())
            };
            match word.as_str() {
                "--entries" => plan.entries = number()?,
                "--callers" => plan.callers = number()?,
                "--puts" => {
                    let percent = words
                        .next()
                        .and_then(|number| number.parse().ok())
                        .filter(|percent| *percent <= 100);
                    plan.mixes =
                        vec![
                            Mix(percent.ok_or("--puts takes a number from 0 to 100; see --help")?),
                        ];
                }
                "--busy" => plan.busy = true,
                "--rounds" => plan.rounds = u32::try_from(number()?)?,
                "--ms" => plan.time = Duration::from_millis(number()? as u64),
                "--json" => plan.json = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("{word} means nothing here; see --help").into()),
            }
        }
        Ok(Some(plan))
    }
}

/// Number of quantiles that a caller reports.
const PARTS: usize = 1000;

/// The results of one caller, or of all.
#[derive(Debug, Default)]
struct Tally {
    done: u64,
    /// Operations per second of all callers together, in each round.
    rates: Vec<f64>,
    /// Each caller's quantiles, in ns.
    ns: Vec<u64>,
}

impl Tally {
    fn quantile(&self, part: usize) -> u64 {
        self.ns[(self.ns.len() - 1) * part / PARTS]
    }

    /// A caller's report: operations, total time, and quantiles.
    fn told(samples: &mut [u64], time: Duration) -> String {
        samples.sort_unstable();
        let quantiles = (0..=PARTS).map(|part| samples[(samples.len() - 1) * part / PARTS]);
        let words = [samples.len() as u64, time.as_nanos() as u64].into_iter().chain(quantiles);
        words.map(|word| word.to_string()).collect::<Vec<_>>().join(" ")
    }

    /// The median of the rounds.
    fn per_s(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_unstable_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    fn begin_round(&mut self) {
        self.rates.push(0.0);
    }

    fn add(&mut self, told: &str) -> Option<()> {
        let mut words = told.split_whitespace().map(|word| word.parse::<u64>().ok());
        let (done, time) = (words.next()??, words.next()??);
        self.done += done;
        *self.rates.last_mut()? += done as f64 * 1e9 / time as f64;
        self.ns.extend(words.collect::<Option<Vec<_>>>()?);
        self.ns.sort_unstable();
        self.ns.len().is_multiple_of(PARTS + 1).then_some(())
    }
}

/// A caller's process: each input line names a mix, a way and a time, and is answered by a line.
fn caller(name: &str, entries: usize, seed: u64) -> Outcome<()> {
    let (keys, mut cache, mut random) = (Keys::find(entries)?, Cache::find(name)?, Random(seed));
    println!("ready");
    for line in stdin().lines() {
        let line = line?;
        let [percent, way, ms] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(line.into());
        };
        let percent: usize = percent.parse()?;
        let way = Way::ALL.into_iter().find(|one| one.name() == way).ok_or("no such way")?;
        let put_way = if way == Way::Read { Way::Access } else { way };
        let (time, mut samples, mut spent) =
            (Duration::from_millis(ms.parse()?), Vec::new(), Duration::ZERO);
        let mut next: Vec<(usize, String, bool)> = Vec::new();
        while spent < time {
            // Formatted before the clock starts: a caller has its key at hand.
            next.clear();
            next.extend((0..256).map(|_| {
                let number = random.below(keys.len());
                (number, keys.get(number).to_owned(), random.below(100) < percent)
            }));
            let begun = Instant::now();
            let mut last = begun;
            for (number, key, puts) in &next {
                if *puts {
                    cache.put(put_way, key, &value(*number, samples.len() as u64))?;
                } else {
                    check(*number, cache.get(way, key)?)?;
                }
                let now = Instant::now();
                samples.push((now - last).as_nanos() as u64);
                last = now;
            }
            spent += last - begun;
        }
        println!("{}", Tally::told(&mut samples, spent));
    }
    Ok(())
}

/// A caller, as the home sees it. It ends when its input is closed, which dropping this does.
struct Caller {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Caller {
    fn start(name: &str, entries: usize, number: usize) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["caller", name, &entries.to_string(), &number.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (to, from) =
            (process.stdin.take().ok_or("no input")?, process.stdout.take().ok_or("no output")?);
        Ok(Self { process, to, from: BufReader::new(from) })
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        let length = self.from.read_line(&mut line)?;
        if length == 0 { Err("a caller has ended; what it says is above".into()) } else { Ok(line) }
    }
}

/// Makes the callers work in each way in turn. Each round reverses the order of the previous one.
fn measure(plan: &Plan, callers: &mut [Caller], rows: &mut [(Mix, Way, Tally)]) -> Outcome<()> {
    let time = (plan.time / plan.rounds).max(Duration::from_millis(1));
    for round in 1..=plan.rounds {
        for (mix, way, tally) in &mut *rows {
            eprintln!("round {round} of {}: {mix} by {} for {time:?}", plan.rounds, way.name());
            for caller in &mut *callers {
                writeln!(caller.to, "{} {} {}", mix.0, way.name(), time.as_millis())?;
            }
            tally.begin_round();
            for caller in &mut *callers {
                let told = caller.line()?;
                tally.add(&told).ok_or_else(|| format!("a caller has said {told:?}"))?;
            }
        }
        rows.reverse();
    }
    if plan.rounds % 2 == 1 {
        rows.reverse();
    }
    Ok(())
}

/// The busy thread of the home: puts until `over` is set. Returns the number of puts.
fn work(table: &Homed<Table>, keys: &Keys, over: &AtomicBool) -> Outcome<u64> {
    let (mut random, mut done) = (Random(7), 0);
    while !over.load(Ordering::Relaxed) {
        let number = random.below(keys.len());
        table.perform::<Put>((keys.get(number), &value(number, done)))?;
        done += 1;
    }
    Ok(done)
}

/// Prints the measurements. `busy` is the home's own operations per second.
fn report(plan: &Plan, about: &str, busy: Option<f64>, rows: &[(Mix, Way, Tally)]) {
    if !plan.json {
        println!("{about}; {} callers", plan.callers);
        if let Some(per_s) = busy {
            println!("a thread of the home put {per_s:.0} a second meanwhile");
        }
        println!("\n{:16}{:>10}{:>10}{:>10}{:>14}", "", "median ns", "99 %", "99.9 %", "a second");
    }
    let mut records = Vec::new();
    for (mix, way, tally) in rows {
        let [p50, p99, p999] = [500, 990, 999].map(|part| tally.quantile(part));
        if !plan.json {
            println!(
                "{:16}{p50:>10}{p99:>10}{p999:>10}{:>14.0}",
                format!("{mix} {}", way.name()),
                tally.per_s()
            );
        }
        records.push(format!(
            "{{\"case\":\"{mix}\",\"system\":\"upcall-{}\",\"callers\":{},\"entries\":{},\
             \"busy\":{},\"p50_ns\":{p50},\"p99_ns\":{p99},\"p999_ns\":{p999},\
             \"per_s\":{:.1},\"samples\":{}}}",
            way.name(),
            plan.callers,
            plan.entries,
            plan.busy,
            tally.per_s(),
            tally.done
        ));
    }
    if plan.json {
        println!("[\n{}\n]", records.join(",\n"));
    }
}

/// The home: fills the table, serves it, and has callers use it.
fn home(plan: &Plan) -> Outcome<()> {
    let keys = Keys::find(plan.entries)?;
    let name = format!("cache-{}", std::process::id());
    let table = create(&name, plan.entries)?;
    let begun = Instant::now();
    for number in 0..keys.len() {
        table.access(|table| table.insert(keys.get(number), &value(number, 0)))?;
        if (number + 1) % 1_000_000 == 0 {
            eprintln!("{} of {} entries", number + 1, keys.len());
        }
    }
    let each = begun.elapsed().as_nanos() / keys.len() as u128;
    let about = format!(
        "{} entries ({}), {} MiB, filled in {each} ns each",
        keys.len(),
        keys.source,
        table.used()? >> 20
    );
    let _served = table.serve_in_background(operations())?;
    let callers = (0..plan.callers).map(|number| Caller::start(&name, plan.entries, number));
    let mut callers = callers.collect::<Outcome<Vec<_>>>()?;
    callers.iter_mut().try_for_each(|caller| caller.line().map(drop))?;
    let mut rows: Vec<_> = plan
        .mixes
        .iter()
        .flat_map(|&mix| mix.ways().map(move |way| (mix, way, Tally::default())))
        .collect();
    let (over, own) = (AtomicBool::new(false), plan.busy.then(|| table.try_clone()).transpose()?);
    let (keys, over) = (&keys, &over);
    let begun = Instant::now();
    let of_the_home = std::thread::scope(|scope| {
        let work = own.map(|own| scope.spawn(move || work(&own, keys, over)));
        let measured = measure(plan, &mut callers, &mut rows);
        over.store(true, Ordering::Relaxed);
        let done = work.map_or(Ok(0), |work| {
            work.join().map_err(|_| "the busy thread of the home has panicked")?
        });
        measured.and(done)
    })?;
    let busy = plan.busy.then(|| of_the_home as f64 / begun.elapsed().as_secs_f64());
    report(plan, &about, busy, &rows);
    for Caller { mut process, to, from } in callers {
        drop((to, from));
        if !process.wait()?.success() {
            return Err("a caller has ended badly".into());
        }
    }
    // Nothing came, nothing went, and all of it is well.
    if table.read(|table| table.len())? != plan.entries as u64 {
        return Err("the table has lost entries, or won some".into());
    }
    Ok(table.check()?)
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name, entries, number] = &words[..]
        && first == "caller"
    {
        return caller(name, entries.parse()?, number.parse::<u64>()? + 1);
    }
    if let Some(plan) = Plan::of(words.into_iter())? {
        return home(&plan);
    }
    println!("{HELP}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_finds_what_each_way_has_put() {
        let table = create(&format!("cache-test-{}", std::process::id()), 1000).unwrap();
        let _served = table.serve_in_background(operations()).unwrap();
        let mut cache = Cache::find(table.name()).unwrap();
        for (version, way) in Way::ALL.into_iter().enumerate() {
            let put = cache.put(way, "a", &value(1, version as u64));
            assert_eq!(put.is_err(), way == Way::Read);
            cache.put(Way::Access, "b", &value(2, version as u64)).unwrap();
            for way in Way::ALL {
                check(1, cache.get(way, "a").unwrap()).unwrap();
                assert_eq!(cache.get(way, "b").unwrap(), value(2, version as u64));
                assert!(cache.get(way, "c").unwrap_err().to_string().contains("under \"c\""));
            }
        }
    }

    #[test]
    fn what_callers_tell_is_put_together() {
        let mut tally = Tally::default();
        tally.begin_round();
        tally.add(&Tally::told(&mut [3, 1, 2], Duration::from_nanos(6))).unwrap();
        tally.add(&Tally::told(&mut [1; 500], Duration::from_nanos(500))).unwrap();
        assert_eq!((tally.done, tally.quantile(0), tally.quantile(990)), (503, 1, 2));
        for time in [500, 5] {
            tally.begin_round();
            tally.add(&Tally::told(&mut [1; 5], Duration::from_nanos(time))).unwrap();
        }
        assert!(
            (tally.per_s() - 1e9).abs() < 1.0
                && tally.add("1 2 x").is_none()
                && tally.add("1 2 3").is_none()
        );
    }

    #[test]
    fn plans_are_read() {
        let of = |words: &str| Plan::of(words.split_whitespace().map(str::to_owned));
        let plan = of("--entries 10 --callers 3 --ms 7 --json").unwrap().unwrap();
        assert_eq!(
            (plan.entries, plan.callers, plan.time.as_millis(), plan.json),
            (10, 3, 7, true)
        );
        assert_eq!((plan.mixes, plan.busy, plan.rounds), (vec![Mix::GETS, Mix::PUTS], false, 5));
        let plan = of("--puts 10 --busy --rounds 3").unwrap().unwrap();
        assert_eq!((plan.mixes[0].ways().count(), plan.busy, plan.rounds), (5, true, 3));
        assert_eq!((&*format!("{}", plan.mixes[0]), Mix::PUTS.ways().count()), ("put-10%", 4));
        assert!(
            of("--json --help").unwrap().is_none()
                && of("--callers 0").is_err()
                && of("--bulk").is_err()
        );
        assert!(of("--puts 101").is_err() && of("--puts").is_err() && of("--rounds 0").is_err());
    }
}
