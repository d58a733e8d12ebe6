//! What was done with objects, for `upcall stat` and `upcall top`: operations, the ways that were
//! chosen for them, and what the others would have taken.
//!
//! It stands in the objects' memory, which whoever may write them may have written: it is believed
//! to be numbers and nothing else.

use crate::members::is_there;
use crate::told::{FAINT, STRONG, cell, share, size};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use upcall::home::Counts;
use upcall::home::accounts::{self, Condition, NamedObject, ObjectReading, PeerObject};

/// What was done with one object, since it was made, or within an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ObjectActivity {
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
    /// All of this was done within so long, or else since it was made.
    #[serde(skip)]
    pub interval: Option<Duration>,
    #[serde(flatten)]
    pub done: Ways,
    /// Those who may write it.
    pub holds: Vec<ObjectHold>,
}

/// What one process has done by one hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ObjectHold {
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

impl Each<u64> {
    /// Together.
    pub fn all(&self) -> u64 {
        self.lock.saturating_add(self.look).saturating_add(self.urgent)
    }
}

impl Ways {
    fn of(counts: Counts) -> Self {
        let chosen = Each::of(counts.chosen);
        let all = chosen.all();
        let would = counts.would.map(|ns| ns as f64 / all as f64);
        Self {
            urgent: counts.urgent,
            invoked: counts.invoked,
            chosen,
            would_ns: (all > 0).then(|| Each::of(would)),
        }
    }

    /// How many `auto` has run, the shares of each way, and what each would take.
    pub fn cells(&self) -> [String; 7] {
        let Each { lock, look, urgent } = self.chosen;
        let all = self.chosen.all();
        let ns = |of: fn(&Each<f64>) -> f64| {
            self.would_ns.as_ref().map_or_else(|| "-".into(), |each| format!("{:.0}", of(each)))
        };
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
pub struct UserObjects {
    known: BTreeMap<String, KnownObject>,
    /// Those that cannot be looked at, and what is wrong with them.
    pub silent: BTreeMap<String, (NamedObject, String)>,
}

struct KnownObject {
    named: NamedObject,
    object: PeerObject,
    before: ObjectReading,
}

impl UserObjects {
    /// Looks who is there. Asks nothing of homes, which may be stopped.
    pub fn renew(&mut self) {
        let there = accounts::objects();
        let is_same = |name: &String, named: &NamedObject| {
            there.get(name) == Some(named) && is_there(named.home)
        };
        self.known.retain(|name, known| is_same(name, &known.named));
        self.silent.retain(|name, (named, _)| is_same(name, named));
        for (name, named) in there {
            if self.known.contains_key(&name) || self.silent.contains_key(&name) {
                continue;
            }
            let home = named.home;
            match accounts::of(home, &name) {
                Ok(Some(object)) => {
                    // It counts from now on.
                    let before = object.read();
                    self.known.insert(name, KnownObject { named, object, before });
                }
                // It has been let go of, or its home has ended.
                Ok(None) => {}
                Err(_) if !is_there(home) => {}
                Err(error) => {
                    let error = format!(
                        "process {home} is the home of object {name}, and cannot be looked at (/proc/{home}/fd): {error}"
                    );
                    self.silent.insert(name, (named, error));
                }
            }
        }
    }

    /// Counts from now on.
    pub fn begin(&mut self) {
        self.read(&[], None);
    }

    /// What was done with those of these names, or all: since the last such moment, so long ago, or
    /// since they were made. The next begins now.
    pub fn read(&mut self, names: &[String], interval: Option<Duration>) -> Vec<ObjectActivity> {
        let rows = self.known.iter_mut().map(|(name, known)| {
            let now = known.object.read();
            let row = row(
                name,
                known.named.home,
                &now,
                interval.map(|interval| (&known.before, interval)),
            );
            known.before = now;
            row
        });
        let rows: Vec<_> = rows.collect();
        rows.into_iter().filter(|row| names.is_empty() || names.contains(&row.name)).collect()
    }
}

impl ObjectActivity {
    /// How many of so many that is in a second.
    pub fn per_s(&self, count: u64) -> f64 {
        self.interval.map_or(0.0, |interval| count as f64 / interval.as_secs_f64())
    }
}

fn row(
    name: &str,
    home: u32,
    now: &ObjectReading,
    since: Option<(&ObjectReading, Duration)>,
) -> ObjectActivity {
    let (changes, counts) = match since {
        Some((before, _)) => {
            (now.changes.saturating_sub(before.changes), now.all().since(before.all()))
        }
        None => (now.changes, now.all()),
    };
    let interval = since.map(|(_, interval)| interval);
    ObjectActivity {
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
        interval,
        done: Ways::of(counts),
        holds: now
            .holds
            .iter()
            .map(|(process, counts)| ObjectHold { process: *process, done: Ways::of(*counts) })
            .collect(),
    }
}

const HEADS: [&str; 14] = [
    "OBJECT", "HOME", "HOLDS", "SIZE", "CHANGES", "URGENT", "INVOKED", "AUTO", "%LOCK", "%LOOK",
    "%URG", "LOCK-NS", "LOOK-NS", "URG-NS",
];

/// A line for each object, and, where it is wanted, one for each hold.
pub fn table(rows: &[ObjectActivity], with_holds: bool) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let heads = HEADS.map(|head| match head {
        "CHANGES" if rows.iter().any(|row| row.changes_per_s.is_some()) => "CHANGES/S".to_string(),
        head => head.into(),
    });
    let widths: Vec<usize> = (0..HEADS.len())
        .map(|at| {
            cells
                .iter()
                .map(|row| row[at].chars().count())
                .chain([heads[at].len()])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let line =
        |row: &[String]| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(at, (text, &width))| {
                if at == 0 { format!("{text:width$}") } else { format!("{text:>width$}") }
            });
            cells.collect::<Vec<_>>().join("  ")
        };
    let mut out = format!("{STRONG}{}  STATE{STRONG:#}\n", line(&heads));
    for (row, cells) in rows.iter().zip(&cells) {
        let held = row
            .holder
            .map_or_else(String::new, |process| format!(", in an operation of {process}"));
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

fn cells(row: &ObjectActivity) -> Vec<String> {
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
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
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
        let _alone = crate::ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let name = format!("shown-{}", std::process::id());
        let home = Homed::<u64>::create(&name).with(|_| Ok(())).unwrap();
        let away = Homed::<u64>::find(&name).unwrap();
        (0..10_000).for_each(|_| _ = away.auto::<Add>(1).unwrap());
        let mut objects = UserObjects::default();
        objects.renew();
        let own = [name.clone()];
        let [row] = &objects.read(&own, None)[..] else { panic!("{:?}", objects.silent) };
        assert!(
            (row.home, row.state, row.holds.len()) == (std::process::id(), "whole", 2),
            "{row:?}"
        );
        assert!(
            row.changes >= 10_000
                && row.done.chosen.lock > 1000
                && row.done.would_ns.unwrap().lock >= 1.0,
            "{row:?}"
        );
        let text =
            anstream::adapter::strip_str(&table(std::slice::from_ref(row), true)).to_string();
        assert!(
            text.contains("100%") && text.contains("by lock") && text.contains(" whole"),
            "{text}"
        );
        assert!(json(row).unwrap().contains("\"would_ns\""));
        objects.begin();
        (0..5).for_each(|_| _ = home.auto::<Add>(1).unwrap());
        let [row] = &objects.read(&own, Some(Duration::from_secs(1)))[..] else { panic!("one") };
        assert_eq!((row.changes, row.changes_per_s), (5, Some(5.0)));
        assert!(objects.read(&["another".into()], None).is_empty());
    }

    /// Who is started for another test: the name of its object.
    const HOME_OF: &str = "UPCALL_TEST_HOME_OF";

    #[test]
    fn a_home_in_an_operation() {
        let Ok(name) = std::env::var(HOME_OF) else { return };
        let home = Homed::<u64>::create(&name).with(|_| Ok(())).unwrap();
        (0..99).for_each(|_| _ = home.access(|number| Add::run(number, 1)).unwrap());
        let said = |_: Place<'_, u64>| {
            println!("\nis in it");
            std::io::stdin().read_line(&mut String::new()).unwrap();
            Ok(())
        };
        home.access(said).unwrap();
    }

    #[test]
    fn a_stopped_home_is_asked_nothing_and_one_that_was_killed_is_forgotten() {
        let name = format!("stopped-{}", std::process::id());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["objects::tests::a_home_in_an_operation", "--exact", "--nocapture"])
            .env(HOME_OF, &name);
        let mut home = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(home.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "is in it"));
        let stopped =
            Command::new("kill").args(["-STOP", &home.id().to_string()]).status().unwrap();
        assert!(stopped.success());
        let mut objects = UserObjects::default();
        let own = [name];
        objects.renew();
        let [row] = &objects.read(&own, None)[..] else { panic!("{:?}", objects.silent) };
        assert!(
            row.changes >= 99 && (row.home, row.holder) == (home.id(), Some(home.id())),
            "{row:?}"
        );
        objects.renew();
        let [row] = &objects.read(&own, Some(Duration::from_secs(2)))[..] else {
            panic!("{:?}", objects.silent)
        };
        assert_eq!((row.changes, row.per_s(row.changes), row.per_s(10)), (0, 0.0, 5.0));
        home.kill().unwrap();
        home.wait().unwrap();
        objects.renew();
        assert!(objects.read(&own, None).is_empty() && !objects.silent.contains_key(&own[0]));
    }

    #[test]
    fn another_object_under_the_name_counts_from_its_own_beginning() {
        let own = [format!("again-{}", std::process::id())];
        let mut objects = UserObjects::default();
        for changes in [500, 7] {
            let home = Homed::<u64>::create(&own[0]).with(|_| Ok(())).unwrap();
            (0..changes).for_each(|_| _ = home.access(|number| Add::run(number, 1)).unwrap());
            objects.renew();
            let [row] = &objects.read(&own, None)[..] else { panic!("{:?}", objects.silent) };
            assert!((changes..changes + 10).contains(&row.changes), "{row:?}");
        }
        objects.renew();
        assert!(objects.read(&own, None).is_empty());
    }

    #[test]
    fn nonsense_is_some_numbers() {
        let wild = ObjectActivity {
            done: Ways { urgent: u64::MAX, chosen: Each::of([u64::MAX; 3]), ..Ways::default() },
            changes: u64::MAX,
            ..ObjectActivity::default()
        };
        assert!(table(&[wild], true).contains("100%"));
    }
}
