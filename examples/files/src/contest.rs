//! The same work by each carrier in turn, round by round, so that other load on the machine affects
//! all of them alike.

use crate::proof::{Proof, prove};
use crate::timing::{Operation, Samples, Timed, sorted};
use crate::walk::{Problem, Transport, Walked, reason, walk};
use std::path::Path;
use std::time::{Duration, Instant};

/// A way to carry the calls, without its types.
pub trait Contender {
    /// Its name for people.
    fn name(&self) -> &'static str;

    /// Walks the tree once, timing each call.
    ///
    /// # Errors
    /// As [`walk`].
    fn walk(
        &mut self,
        chunk: u32,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Walked, Samples), Problem>;

    /// Makes `count` small calls for the status of one file, in one go and then once more call by
    /// call.
    ///
    /// # Errors
    /// As [`Transport::stat`].
    fn stat(&mut self, path: &[u8], count: u32) -> Result<Stats, Problem>;

    /// Proves a walk as [`prove`] does.
    ///
    /// # Errors
    /// As [`prove`].
    fn prove(
        &mut self,
        root: &Path,
        chunk: u32,
        directly: &mut Walked,
        through: &Walked,
    ) -> Result<Proof, Problem>;
}

/// The times of small calls.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The time of all calls in one go, without reading the clock in between.
    pub total: Duration,
    /// The time of each call by itself.
    pub each: Vec<Duration>,
}

/// A carrier with its name.
pub struct Named<T> {
    name: &'static str,
    transport: Timed<T>,
}

impl<T: Transport> Named<T> {
    /// Names `transport`.
    pub fn new(name: &'static str, transport: T) -> Self {
        Self { name, transport: Timed::new(transport) }
    }
}

impl<T: Transport> Contender for Named<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn walk(
        &mut self,
        chunk: u32,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Walked, Samples), Problem> {
        self.transport.take();
        let walked = walk(&mut self.transport, chunk, progress)?;
        Ok((walked, self.transport.take()))
    }

    fn stat(&mut self, path: &[u8], count: u32) -> Result<Stats, Problem> {
        let file = self.transport.inner().open(path)?;
        let transport = self.transport.inner();
        for _ in 0..count / 4 {
            transport.stat(&file)?;
        }
        let since = Instant::now();
        for _ in 0..count {
            transport.stat(&file)?;
        }
        let total = since.elapsed();
        self.transport.take();
        for _ in 0..count {
            self.transport.stat(&file)?;
        }
        let each = self.transport.take().of(Operation::Stat).to_vec();
        self.transport.inner().close(file)?;
        Ok(Stats { total, each })
    }

    fn prove(
        &mut self,
        root: &Path,
        chunk: u32,
        directly: &mut Walked,
        through: &Walked,
    ) -> Result<Proof, Problem> {
        prove(self.transport.inner(), root, chunk, directly, through)
    }
}

/// The work to be done.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The directory, as this process sees it.
    pub root: &'a Path,
    /// Number of bytes requested in one read.
    pub chunk: u32,
    /// Number of times that each carrier walks the tree.
    pub rounds: u32,
    /// Number of small calls in each round.
    pub stats: u32,
}

/// The measurements of one carrier.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The carrier's name.
    pub name: &'static str,
    /// Bytes and times of calls of each round's walk.
    pub walks: Vec<(u64, Samples)>,
    /// The small calls of each round.
    pub stats: Vec<Stats>,
}

impl Record {
    /// The times of all calls of the walks, shortest first.
    pub fn walk_calls(&self) -> Vec<Duration> {
        sorted(self.walks.iter().flat_map(|(_, samples)| samples.sorted()).collect())
    }

    /// The times of the walks' calls for one operation, shortest first.
    pub fn calls_of(&self, operation: Operation) -> Vec<Duration> {
        sorted(self.walks.iter().flat_map(|(_, samples)| samples.of(operation)).copied().collect())
    }

    /// The times of all small calls, shortest first.
    pub fn stat_calls(&self) -> Vec<Duration> {
        sorted(self.stats.iter().flat_map(|stats| &stats.each).copied().collect())
    }
}

/// Why a contest failed.
#[derive(Debug)]
pub enum Lost {
    /// A carrier failed.
    Problem(&'static str, Problem),
    /// A carrier delivered something other than what is there.
    Wrong(&'static str, Box<Proof>),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Problem(name, Problem::Refused(error)) => {
                write!(f, "{name}: the server refused: {}", reason(error))
            }
            Self::Problem(name, Problem::Broken(why)) => write!(f, "{name}: {why}"),
            Self::Wrong(name, proof) => {
                writeln!(f, "{name}: {} of the files came through wrong:", proof.wrong.len())?;
                for wrong in proof.wrong.iter().take(10) {
                    writeln!(f, "  {wrong}")?;
                }
                write!(f, "if the tree is being written to, run it again when it is quiet")
            }
        }
    }
}

impl std::error::Error for Lost {}

/// Walks once without timing and proves the result, which also warms the caches. Returns what was
/// found and proved.
///
/// # Errors
/// [`Lost`].
pub fn check(
    contender: &mut dyn Contender,
    plan: &Plan<'_>,
    directly: &mut Walked,
    progress: &mut dyn FnMut(u64),
) -> Result<(Walked, Proof), Lost> {
    let name = contender.name();
    let (walked, _) = contender.walk(plan.chunk, progress).map_err(|e| Lost::Problem(name, e))?;
    let proof = held(contender, plan, directly, &walked)?;
    Ok((walked, proof))
}

/// Runs all rounds. Every walk of every carrier is proved, too. `stage` begins a stage with a name,
/// and returns where to report bytes.
///
/// # Errors
/// [`Lost`].
pub fn run(
    contenders: &mut [Box<dyn Contender>],
    plan: &Plan<'_>,
    directly: &mut Walked,
    mut stage: impl FnMut(&str) -> Box<dyn FnMut(u64)>,
) -> Result<Vec<Record>, Lost> {
    let mut records: Vec<Record> =
        contenders.iter().map(|c| Record { name: c.name(), ..Record::default() }).collect();
    let small = directly.files.iter().find(|f| f.bytes > 0).map(|f| f.path.clone());
    for round in 0..plan.rounds {
        let mut progress = stage(&format!("round {} of {}", round + 1, plan.rounds));
        for turn in 0..contenders.len() {
            // The first carrier of a round finds other caches than the last one, so each is first
            // in turn.
            let at = (turn + round as usize) % contenders.len();
            let contender = contenders[at].as_mut();
            let name = contender.name();
            let (walked, samples) =
                contender.walk(plan.chunk, &mut *progress).map_err(|e| Lost::Problem(name, e))?;
            held(contender, plan, directly, &walked)?;
            records[at].walks.push((walked.bytes(), samples));
        }
        for turn in 0..contenders.len() {
            let at = (turn + round as usize) % contenders.len();
            if let Some(path) = &small {
                let stats = contenders[at].stat(path, plan.stats);
                records[at].stats.push(stats.map_err(|e| Lost::Problem(contenders[at].name(), e))?);
            }
        }
    }
    Ok(records)
}

fn held(
    contender: &mut dyn Contender,
    plan: &Plan<'_>,
    directly: &mut Walked,
    walked: &Walked,
) -> Result<Proof, Lost> {
    let name = contender.name();
    let proof = contender
        .prove(plan.root, plan.chunk, directly, walked)
        .map_err(|e| Lost::Problem(name, e))?;
    if proof.holds() { Ok(proof) } else { Err(Lost::Wrong(name, Box::new(proof))) }
}
