//! A run of a suite: its turns, rounds and medians.
//!
//! Systems that are compared take turns, A B C A B C …, and the cache line is probed between turns.
//! The figures are medians over the rounds, so that a move of the processors by the host, or one
//! unlucky layout of a process, decides nothing.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::case::Placement;
use crate::error::RunError;
use crate::like::Like;
use crate::line;
use crate::place::{self, Cpus};
use crate::process::ChildError;
use crate::progress::Progress;
use crate::record::Turn;
use crate::report::Report;
use crate::suite::{Only, Options};

/// A run in progress.
pub struct Run<'a> {
    /// The program that runs the children of this crate and of Upcall.
    pub exe: &'a Path,
    /// `true` for a shorter run, to try the suite and not for figures.
    pub quick: bool,
    /// The part of the suite that is measured.
    pub only: &'a Only,
    /// The first two processors that this process may run on.
    pub cpus: Cpus,
    /// All processors that this process may run on.
    pub allowed: Vec<usize>,
    /// Folder for the files of children.
    pub dir: &'a Path,
    /// Set when the run has to end.
    pub interrupted: &'a AtomicBool,
    /// The findings so far.
    pub report: Report,
    pub(crate) progress: Progress,
    /// The latest probe of the line.
    line_ns: Option<f64>,
    /// Number of folders handed out.
    folders: u32,
}

/// A measurement that is repeated in each round, with its turns so far.
#[derive(Debug, Clone)]
pub struct Series<K, T> {
    /// The measurement.
    pub of: K,
    /// Its turns.
    pub turns: Vec<Turn<T>>,
    /// Maximum number of turns.
    pub most: usize,
}

impl<K, T> Series<K, T> {
    /// Creates a series without turns.
    pub fn of(of: K) -> Series<K, T> {
        Series { of, turns: Vec::new(), most: usize::MAX }
    }

    /// Returns `true` if the series has no further turn.
    pub fn is_out(&self) -> bool {
        self.turns.len() >= self.most
    }

    /// Ends the series.
    pub fn leave(&mut self) {
        self.most = 0;
    }
}

/// How many rounds there are.
pub struct Rounds {
    /// Maximum number of rounds.
    pub most: usize,
    /// Time for all rounds. There is at least one round.
    pub time: Duration,
    /// Part of the run that the rounds take, in percent.
    pub part: Range<u32>,
}

impl Rounds {
    /// A fixed number of rounds.
    pub fn count(most: usize, part: Range<u32>) -> Rounds {
        Rounds { most, time: Duration::MAX, part }
    }
}

/// Progress texts of a turn.
pub struct Said {
    /// Shown always; without a terminal on a line of its own.
    pub what: String,
    /// Shown on a terminal only.
    pub detail: String,
    /// Prefix of an error; may be empty.
    pub fault: String,
}

impl<'a> Run<'a> {
    /// Creates the run that `options` request, with files in `dir`.
    pub(crate) fn new<P>(
        options: &'a Options<P>,
        dir: &'a Path,
        interrupted: &'a AtomicBool,
    ) -> Result<Run<'a>, RunError> {
        Ok(Run {
            exe: &options.exe,
            quick: options.quick,
            only: &options.only,
            cpus: Cpus::allowed().map_err(RunError::System)?,
            allowed: place::allowed().map_err(RunError::System)?,
            dir,
            interrupted,
            report: Report::default(),
            progress: Progress::new(),
            line_ns: None,
            folders: 0,
        })
    }

    /// Returns the path of a new folder for a pair of children, which creates it.
    pub fn folder(&mut self) -> PathBuf {
        self.folders += 1;
        self.dir.join(self.folders.to_string())
    }

    /// Returns the second process's processor. The first process has the first one.
    pub fn other(&self, placement: Placement) -> usize {
        self.cpus.second.filter(|_| placement == Placement::TwoCores).unwrap_or(self.cpus.first)
    }

    /// Returns `true` if there are enough processors for a placement. Otherwise adds a note to the
    /// report.
    pub fn has_room(&mut self, placement: Placement) -> bool {
        let room = placement != Placement::TwoCores || self.cpus.second.is_some();
        let note = "this process may use one processor only: nothing of two-cores was measured";
        if !room && !self.report.notes.iter().any(|said| said == note) {
            self.report.notes.push(note.to_owned());
        }
        room
    }

    /// Returns the finding, or `None` for an error, which is added to the report after `what`.
    ///
    /// # Errors
    /// The run was interrupted.
    pub fn unless_failed<T>(
        &mut self,
        what: &str,
        found: Result<T, ChildError>,
    ) -> Result<Option<T>, RunError> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(ChildError::Interrupted) => Err(RunError::Interrupted),
            Err(error) => {
                let colon = if what.is_empty() { "" } else { ": " };
                self.report.failures.push(format!("{what}{colon}{error}"));
                Ok(None)
            }
        }
    }

    /// Runs a turn between two probes of the line. A finding of `None` is neither a turn nor a
    /// failure.
    ///
    /// # Errors
    /// The run was interrupted.
    pub fn turn<T>(
        &mut self,
        fault: &str,
        measure: impl FnOnce(&mut Self) -> Result<Option<T>, ChildError>,
    ) -> Result<Option<Turn<T>>, RunError> {
        let before = self.line_ns.unwrap_or_else(|| line::round_trip_ns(&self.cpus));
        let found = measure(self);
        let after = line::round_trip_ns(&self.cpus);
        self.line_ns = Some(after);
        let found = self.unless_failed(fault, found)?.flatten();
        Ok(found.map(|found| Turn { found, lines: (before, after) }))
    }

    /// Runs a turn of each series that has not ended, for `rounds`. A series without a finding
    /// ends. Returns the number of rounds.
    ///
    /// # Errors
    /// The run was interrupted.
    pub fn rounds<K, T>(
        &mut self,
        rounds: &Rounds,
        series: &mut [Series<K, T>],
        say: impl Fn(usize, &K) -> Said,
        mut measure: impl FnMut(&mut Self, &mut K) -> Result<Option<T>, ChildError>,
    ) -> Result<usize, RunError> {
        let Range { start, end } = rounds.part;
        let (begun, count, mut done) = (Instant::now(), series.len(), 0);
        while done < rounds.most && series.iter().any(|one| !one.is_out()) {
            for (at, one) in series.iter_mut().enumerate().filter(|(_, one)| !one.is_out()) {
                let turns = (done * count + at) as f64 / (rounds.most * count) as f64;
                let spent = begun.elapsed().as_secs_f64() / rounds.time.as_secs_f64();
                let part = turns.max(spent).min(1.0);
                self.progress.percent = start + (f64::from(end - start) * part) as u32;
                let Said { what, detail, fault } = say(done + 1, &one.of);
                self.progress.say(&what, &detail);
                match self.turn(&fault, |run| measure(run, &mut one.of))? {
                    Some(turn) => one.turns.push(turn),
                    None => one.leave(),
                }
            }
            done += 1;
            let spent = begun.elapsed();
            if spent + spent / done as u32 > rounds.time {
                break;
            }
        }
        Ok(done)
    }

    /// Keeps only the turns that may be compared, if the host moved the processors between turns.
    /// Adds a note to the report after `what`, which may be empty.
    pub fn leave_like<'s, K: 's, T: 's>(
        &mut self,
        what: &str,
        series: impl IntoIterator<Item = &'s mut Series<K, T>>,
    ) {
        let mut turns: Vec<_> = series.into_iter().map(|one| &mut one.turns).collect();
        let lines = |turns: &[&mut Vec<Turn<T>>]| -> Vec<Vec<(f64, f64)>> {
            turns.iter().map(|turns| turns.iter().map(|turn| turn.lines).collect()).collect()
        };
        let before = lines(&turns);
        let like = Like::of(&before);
        turns.iter_mut().for_each(|turns| turns.retain(|turn| like.has(turn.lines)));
        let after = lines(&turns);
        let count = |lines: &[Vec<(f64, f64)>]| lines.iter().map(Vec::len).sum::<usize>();
        let (all, left) = (count(&before), count(&after));
        let (least, most) = Like::span(before.iter().flatten());
        let colon = if what.is_empty() { "" } else { ": " };
        let moved = format!("{what}{colon}the line took {least:.0} to {most:.0} ns");
        if left < all {
            let (from, to) = Like::span(after.iter().flatten());
            self.report.notes.push(format!(
                "{moved}; only the {left} of {all} turns beside {from:.0} to {to:.0} ns count"
            ));
        } else if like.moved() {
            self.report.notes.push(format!("{moved}, and unlike turns are compared"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::NoPeer;

    fn with_run(body: impl FnOnce(&mut Run<'_>)) {
        let options = Options::<NoPeer>::of("/nowhere".into());
        let interrupted = AtomicBool::new(false);
        body(&mut Run::new(&options, Path::new("/nowhere"), &interrupted).unwrap());
    }

    fn said(_: usize, of: &&str) -> Said {
        Said { what: String::new(), detail: String::new(), fault: (*of).to_owned() }
    }

    fn failed(who: &str) -> ChildError {
        ChildError::Call { who: who.to_owned(), what: "no".to_owned() }
    }

    #[test]
    fn series_have_turns_until_they_are_out() {
        with_run(|run| {
            let mut series = ["good", "bad", "absent", "short"].map(Series::of);
            series[3].most = 2;
            let measure = |_: &mut Run<'_>, of: &mut &str| match *of {
                "bad" => Err(failed("child")),
                "absent" => Ok(None),
                _ => Ok(Some(7)),
            };
            let done = run.rounds(&Rounds::count(3, 0..100), &mut series, said, measure).unwrap();
            let turns = series.each_ref().map(|one| one.turns.len());
            assert_eq!((done, turns), (3, [3, 0, 0, 2]));
            assert_eq!(run.report.failures, ["bad: child: no"]);
            let no_time = Rounds { most: 3, time: Duration::ZERO, part: 0..100 };
            let one = run.rounds(&no_time, &mut series[..1], said, |_, _| Ok(Some(7)));
            assert_eq!((one.unwrap(), series[0].turns.len()), (1, 4));
            let ended = run.turn::<()>("", |_| Err(ChildError::Interrupted));
            assert!(matches!(ended, Err(RunError::Interrupted)));
        });
    }

    #[test]
    fn turns_of_one_placement_are_left() {
        with_run(|run| {
            let turn = |line| Turn { found: (), lines: (line, line) };
            let mut series = ["a", "b"].map(Series::of);
            series[0].turns = [100.0, 400.0, 110.0].map(turn).into();
            series[1].turns = [105.0, 100.0].map(turn).into();
            run.leave_like("two-cores", &mut series);
            assert_eq!(series.map(|one| one.turns.len()), [2, 2]);
            let note = "two-cores: the line took 100 to 400 ns; only the 4 of 5 turns beside 100 \
                to 110 ns count";
            assert_eq!(run.report.notes, [note]);
            assert!(run.has_room(Placement::OneCore) && run.folder() != run.folder());
        });
    }
}
