//! What was done with objects, for `upcall stat`: operations, the ways that were chosen for them, and what the others would have taken.
//!
//! It stands in the objects' memory, which whoever may write them may have written: it is believed to be numbers and nothing else.

use crate::stat::share;
use crate::told::cell;
use crate::{FAINT, STRONG, size};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use upcall::home::Counts;
use upcall::home::accounts::{self, Condition, ObjectReading, PeerObject};

/// What was done with one object, since it was made, or within an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Object {
    pub name: String,
    /// The process that is its home.
    pub home: u32,
    /// Bytes of its data, of which only what is touched takes memory.
    pub bytes: u64,
    /// `whole`, `torn` or `poisoned`.
    pub state: &'static str,
    /// The process in an operation on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<u32>,
    /// Operations under its lock, in whatever way they came.
    pub changes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes_per_s: Option<f64>,
    #[serde(flatten)]
    pub done: Ways,
    /// Those who may write it.
    pub holds: Vec<Hold>,
}

/// What one process has done by one hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Hold {
    pub process: u32,
    #[serde(flatten)]
    pub done: Ways,
}

/// By which ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ways {
    /// Urgent and ordinary invocations.
    pub urgent: u64,
    pub invoked: u64,
    /// What `auto` has chosen: under the lock, a look without it, an urgent invocation.
    pub chosen: Each<u64>,
    /// What one of those operations would take each way, in ns, as it was measured last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_ns: Option<Each<f64>>,
}

/// One for each way between which `auto` chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Each<T> {
    pub lock: T,
    pub look: T,
    pub urgent: T,
}

impl<T> Each<T> {
    fn of([lock, look, urgent]: [T; 3]) -> Self {
        Self { lock, look, urgent }
    }
}

impl Ways {
    fn of(counts: Counts) -> Self {
        let all = counts.chosen.iter().fold(0, |all: u64, &one| all.saturating_add(one));
        let would = counts.would.map(|ns| ns as f64 / all as f64);
        Self {
            urgent: counts.urgent,
            invoked: counts.invoked,
            chosen: Each::of(counts.chosen),
            would_ns: (all > 0).then(|| Each::of(would)),
        }
    }

    /// How many `auto` has run, the shares of each way, and what each would take.
    fn cells(&self) -> [String; 7] {
        let Each { lock, look, urgent } = self.chosen;
        let all = lock.saturating_add(look).saturating_add(urgent);
        let ns = |of: fn(&Each<f64>) -> f64| self.would_ns.as_ref().map_or_else(|| "-".into(), |each| format!("{:.0}", of(each)));
        [
            all.to_string(),
            share(lock, all),
            share(look, all),
            share(urgent, all),
            ns(|each| each.lock),
            ns(|each| each.look),
            ns(|each| each.urgent),
        ]
    }
}

/// All objects of this user's processes.
#[derive(Default)]
pub struct Objects {
    known: BTreeMap<String, (u32, PeerObject, Option<ObjectReading>)>,
    /// What is wrong with those that cannot be looked at.
    pub silent: Vec<String>,
}

impl Objects {
    /// Those that are there now.
    pub fn look() -> Self {
        let mut found = Self::default();
        for (name, home) in accounts::objects() {
            match accounts::of(home, &name) {
                Ok(Some(object)) => _ = found.known.insert(name, (home, object, None)),
                // It has been let go of, or its home has ended.
                Ok(None) => {}
                Err(_) if !Path::new("/proc").join(home.to_string()).exists() => {}
                Err(error) => found.silent.push(format!(
                    "process {home} is the home of object {name}, and cannot be looked at (/proc/{home}/fd): {error}"
                )),
            }
        }
        found
    }

    /// Counts from now on.
    pub fn begin(&mut self) {
        self.known.values_mut().for_each(|(_, object, before)| *before = Some(object.read()));
    }

    /// What was done with those of these names, or all: since that moment, so long ago, or since they were made.
    pub fn read(&self, names: &[String], interval: Option<Duration>) -> Vec<Object> {
        let wanted = self.known.iter().filter(|(name, _)| names.is_empty() || names.contains(name));
        wanted.map(|(name, (home, object, before))| row(name, *home, &object.read(), before.as_ref(), interval)).collect()
    }
}

fn row(name: &str, home: u32, now: &ObjectReading, before: Option<&ObjectReading>, interval: Option<Duration>) -> Object {
    let all = |reading: &ObjectReading| reading.all();
    let changes = now.changes.saturating_sub(before.map_or(0, |before| before.changes));
    Object {
        name: name.into(),
        home,
        bytes: now.bytes,
        state: match now.condition {
            Condition::Whole => "whole",
            Condition::Torn => "torn",
            Condition::Poisoned => "poisoned",
        },
        holder: now.holder,
        changes,
        changes_per_s: interval.map(|interval| (changes as f64 / interval.as_secs_f64()).round()),
        done: Ways::of(all(now).since(before.map(all).unwrap_or_default())),
        holds: now.holds.iter().map(|(process, counts)| Hold { process: *process, done: Ways::of(*counts) }).collect(),
    }
}

const HEADS: [&str; 14] = [
    "OBJECT", "HOME", "HOLDS", "SIZE", "CHANGES", "URGENT", "INVOKED", "AUTO", "%LOCK", "%LOOK", "%URG", "LOCK-NS", "LOOK-NS",
    "URG-NS",
];

/// A line for each object, and, where it is wanted, one for each hold.
pub fn table(rows: &[Object], with_holds: bool) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let heads = HEADS.map(|head| match head {
        "CHANGES" if rows.iter().any(|row| row.changes_per_s.is_some()) => "CHANGES/S".to_string(),
        head => head.into(),
    });
    let widths: Vec<usize> = (0..HEADS.len())
        .map(|at| cells.iter().map(|row| row[at].chars().count()).chain([heads[at].len()]).max().unwrap_or(0))
        .collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(at, (text, &width))| if at == 0 { format!("{text:width$}") } else { format!("{text:>width$}") });
        cells.collect::<Vec<_>>().join("  ")
    };
    let mut out = format!("{STRONG}{}  STATE{STRONG:#}\n", line(&heads));
    for (row, cells) in rows.iter().zip(&cells) {
        let held = row.holder.map_or_else(String::new, |process| format!(", in an operation of {process}"));
        out += &format!("{}  {}{held}\n", line(cells), row.state);
        for hold in row.holds.iter().filter(|_| with_holds) {
            let [all, lock, look, urgent, ..] = hold.done.cells();
            out += &format!(
                "  {FAINT}process {}: {} urgent, {} ordinary invocations; auto {all}: {lock} by lock, {look} by look, {urgent} urgent{FAINT:#}\n",
                hold.process, hold.done.urgent, hold.done.invoked
            );
        }
    }
    out
}

fn cells(row: &Object) -> Vec<String> {
    let own = [
        cell(&row.name),
        row.home.to_string(),
        row.holds.len().to_string(),
        size(row.bytes),
        row.changes_per_s.map_or_else(|| row.changes.to_string(), |rate| format!("{rate:.0}")),
        row.done.urgent.to_string(),
        row.done.invoked.to_string(),
    ];
    own.into_iter().chain(row.done.cells()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::told::json;
    use upcall::home::{DataError, Homed, Operation, Place};

    struct Add;

    impl Operation for Add {
        type Of = u64;
        type Args<'a> = u64;
        type Reply = u64;
        const NAME: &'static str = "add";

        fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
            number.update(|number| number + more)
        }
    }

    #[test]
    fn what_was_done_is_shown_and_within_an_interval_what_is_new() {
        let _alone = crate::bench::ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let name = format!("shown-{}", std::process::id());
        let home = Homed::<u64>::create(&name).with(|_| Ok(())).unwrap();
        let away = Homed::<u64>::find(&name).unwrap();
        (0..10_000).for_each(|_| _ = away.auto::<Add>(1).unwrap());
        let mut objects = Objects::look();
        let own = [name.clone()];
        let [row] = &objects.read(&own, None)[..] else { panic!("{:?}", objects.silent) };
        assert!((row.home, row.state, row.holds.len()) == (std::process::id(), "whole", 2), "{row:?}");
        assert!(row.changes >= 10_000 && row.done.chosen.lock > 1000 && row.done.would_ns.unwrap().lock >= 1.0, "{row:?}");
        let text = anstream::adapter::strip_str(&table(std::slice::from_ref(row), true)).to_string();
        assert!(text.contains("100%") && text.contains("by lock") && text.contains(" whole"), "{text}");
        assert!(json(row).unwrap().contains("\"would_ns\""));
        objects.begin();
        (0..5).for_each(|_| _ = home.auto::<Add>(1).unwrap());
        let [row] = &objects.read(&own, Some(Duration::from_secs(1)))[..] else { panic!("one") };
        assert_eq!((row.changes, row.changes_per_s), (5, Some(5.0)));
        assert!(objects.read(&["another".into()], None).is_empty());
    }

    #[test]
    fn nonsense_is_some_numbers() {
        let wild = Object {
            done: Ways { urgent: u64::MAX, chosen: Each::of([u64::MAX; 3]), ..Ways::default() },
            changes: u64::MAX,
            ..Object::default()
        };
        assert!(table(&[wild], true).contains("100%"));
    }
}
