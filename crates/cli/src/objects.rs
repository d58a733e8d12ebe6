//! The operations on objects, for `upcall stat` and `upcall top`: their number, the ways that were
//! chosen for them, and the time that the other ways would have taken.
//!
//! The counts are in the objects' memory. Any process that may write an object may have written
//! them, so they may be any numbers.

use crate::members::is_there;
use crate::output::{Columns, FAINT, STRONG, cell, share, size};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use upcall::home::Counts;
use upcall::home::accounts::{self, Condition, NamedObject, ObjectReading, PeerObject};

/// The operations on one object, since it was made or in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ObjectActivity {
    pub name: String,
    /// The process that is its home.
    pub home: u32,
    /// Bytes of the object's data. Only the parts that were touched take memory.
    pub bytes: u64,
    /// `whole`, `torn` or `poisoned`.
    pub state: &'static str,
    /// The process in an operation on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<u32>,
    /// Operations under the object's lock, by all ways.
    pub changes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes_per_s: Option<f64>,
    /// The length of the interval; `None` if the counts are since the object was made.
    #[serde(skip)]
    pub interval: Option<Duration>,
    #[serde(flatten)]
    pub done: Ways,
    /// The processes that may write the object.
    pub holds: Vec<ObjectHold>,
}

/// The operations of one process by one hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ObjectHold {
    pub process: u32,
    #[serde(flatten)]
    pub done: Ways,
}

/// Operations by the ways in which they were run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ways {
    /// Urgent and ordinary invocations.
    pub urgent: u64,
    pub invoked: u64,
    /// The choices of `auto`: under the lock, a look without it, an urgent invocation.
    pub chosen: Each<u64>,
    /// The time that one of those operations takes each way, in ns, as measured last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_ns: Option<Each<f64>>,
}

/// A value for each way between which `auto` chooses.
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
    /// The sum of all ways.
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

    /// The operations that `auto` has run, the share of each way, and the time of each way.
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
    /// The objects that cannot be read, and why.
    pub silent: BTreeMap<String, (NamedObject, String)>,
}

struct KnownObject {
    named: NamedObject,
    object: PeerObject,
    before: ObjectReading,
}

impl UserObjects {
    /// Finds new objects and forgets those whose homes have ended. Asks nothing of homes, which may
    /// be stopped.
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
                    // The interval of a new object starts here.
                    let before = object.read();
                    self.known.insert(name, KnownObject { named, object, before });
                }
                // The object was dropped, or its home has ended.
                Ok(None) => {}
                Err(_) if !is_there(home) => {}
                Err(error) => {
                    let error = format!(
                        "process {home} is the home of object {name}, which cannot be read \
                         (/proc/{home}/fd): {error}"
                    );
                    self.silent.insert(name, (named, error));
                }
            }
        }
    }

    /// Starts an interval.
    pub fn begin(&mut self) {
        self.read(&[], None);
    }

    /// The operations on the objects `names`, or on all objects if there are none: in the interval
    /// of this length, or since they were made. The next interval starts here.
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
    /// A count of the interval for each second.
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

const HEADS: [&str; 15] = [
    "OBJECT", "HOME", "HOLDS", "SIZE", "CHANGES", "URGENT", "INVOKED", "AUTO", "%LOCK", "%LOOK",
    "%URG", "LOCK-NS", "LOOK-NS", "URG-NS", "STATE",
];

/// The table of objects, with a line for each hold if `with_holds` is set.
pub fn table(rows: &[ObjectActivity], with_holds: bool) -> String {
    let each_second = rows.iter().any(|row| row.changes_per_s.is_some());
    let heads = HEADS.map(|head| match head {
        "CHANGES" if each_second => "CHANGES/S".to_string(),
        head => head.into(),
    });
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let right = std::array::from_fn(|at| at > 0 && at + 1 < HEADS.len());
    let columns = Columns::new(cells.iter().chain([&heads]), right);
    let mut out = format!("{STRONG}{}{STRONG:#}\n", columns.line(&heads));
    for (row, cells) in rows.iter().zip(&cells) {
        out += &format!("{}\n", columns.line(cells));
        for hold in row.holds.iter().filter(|_| with_holds) {
            let [all, lock, look, urgent, ..] = hold.done.cells();
            out += &format!(
                "  {FAINT}process {}: {} urgent, {} ordinary invocations; auto {all}: {lock} by \
                 lock, {look} by look, {urgent} urgent{FAINT:#}\n",
                hold.process, hold.done.urgent, hold.done.invoked
            );
        }
    }
    out
}

fn cells(row: &ObjectActivity) -> [String; HEADS.len()] {
    let held =
        row.holder.map_or_else(String::new, |process| format!(", in an operation of {process}"));
    let [all, lock, look, urgent, lock_ns, look_ns, urgent_ns] = row.done.cells();
    [
        cell(&row.name),
        row.home.to_string(),
        row.holds.len().to_string(),
        size(row.bytes),
        row.changes_per_s.map_or_else(|| row.changes.to_string(), |rate| format!("{rate:.0}")),
        row.done.urgent.to_string(),
        row.done.invoked.to_string(),
        all,
        lock,
        look,
        urgent,
        lock_ns,
        look_ns,
        urgent_ns,
        format!("{}{held}", row.state),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::killed::Killed;
    use crate::output::json;
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
    fn operations_are_shown_in_all_and_for_an_interval() {
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

    /// The name of the object, for the process that another test starts.
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
        let home = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // A stopped process does not notice that its input ends.
        let mut home = Killed(home);
        let mut lines = BufReader::new(home.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "is in it"));
        let stopped =
            Command::new("kill").args(["-STOP", &home.0.id().to_string()]).status().unwrap();
        assert!(stopped.success());
        let mut objects = UserObjects::default();
        let own = [name];
        objects.renew();
        let [row] = &objects.read(&own, None)[..] else { panic!("{:?}", objects.silent) };
        assert!(
            row.changes >= 99 && (row.home, row.holder) == (home.0.id(), Some(home.0.id())),
            "{row:?}"
        );
        objects.renew();
        let [row] = &objects.read(&own, Some(Duration::from_secs(2)))[..] else {
            panic!("{:?}", objects.silent)
        };
        assert_eq!((row.changes, row.per_s(row.changes), row.per_s(10)), (0, 0.0, 5.0));
        drop(home);
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
