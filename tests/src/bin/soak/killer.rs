//! The supervisor: starts all roles, disturbs them at random, restarts them, and judges the run.

use crate::Options;
use crate::book::{Book, GROUPS, MEMBERS, Phase, SLOTS, SlotWord, Sum, Times};
use crate::charged::{Charged, Memory};
use crate::client::CALLERS;
use crate::report;
use crate::watch::{self, Leaks, Watchdog};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use upcall_tests::dice::Dice;
use upcall_tests::now;
use upcall_tests::party::{Party, Said};
use upcall_tests::place::Place;

/// Settings of the C library with which a process returns freed memory to the system. The client of
/// the hostile server frees values of up to several MiB in many threads, and would keep up to 64
/// MiB in each arena, which would hide a leak.
const RETURNS_MEMORY: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "2"),
    ("MALLOC_TRIM_THRESHOLD_", "262144"),
    ("MALLOC_MMAP_THRESHOLD_", "262144"),
];

/// The command to the client of the hostile server: call it for a second.
const ENDURE: &str = "endure other 1000";

/// Longest time in which all processes have to finish what is under way. It exceeds the longest
/// patience of a run of `make test` (60 s), whose report says more.
const LONGEST_REST: Duration = Duration::from_secs(120);

/// Longest time that the client of the hostile server may take for its second.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// How a role ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Never disturbed.
    Spared,
    /// Stopped, but never killed.
    Stopped,
    /// Stopped and killed.
    Killed,
    /// Ends by itself, again and again.
    Brief,
}

/// A role, and the process that plays it.
pub struct Actor {
    /// Its name in the report.
    pub name: String,
    words: String,
    /// Its slot in the record.
    pub slot: usize,
    /// How it ends.
    pub fate: Fate,
    /// Its group, if its death ends that group.
    group: Option<usize>,
    /// Its group, if it is a member of one.
    pub talks: Option<usize>,
    pub party: Option<Party>,
    /// Whether it was killed and the kernel has not ended it yet.
    pub dying: bool,
    /// When a stop ends, and whether the process is killed then.
    stopped: Option<(Instant, bool)>,
    lives: u64,
}

impl Actor {
    /// The process that plays the role now; 0 if there is none.
    pub fn pid(&self) -> u32 {
        self.party.as_ref().map_or(0, Party::pid)
    }

    /// Number of processes that have begun to play the role.
    pub fn begun(&self) -> u64 {
        self.lives
    }
}

/// A run.
pub struct Run<'a> {
    options: &'a Options,
    pub book: Book,
    path: String,
    pub place: Place,
    pub actors: Vec<Actor>,
    dice: Dice,
    start: Instant,
    /// Number of kills and stops, by the kind of the victim.
    pub done: BTreeMap<(&'static str, String), u64>,
    /// The killer's last choices, for the text of a failure.
    choices: Vec<String>,
    pub faults: Vec<String>,
    next: Instant,
    live: bool,
    pub watchdog: Watchdog,
    /// The memory charged to all processes together at rest, before and after.
    pub charged: Option<(Memory, Memory)>,
    /// Whether the client of the hostile server has nothing to do.
    endure_rests: bool,
    /// When it last finished its second.
    endured: Instant,
}

/// Runs everything.
pub fn run(options: &Options) -> ExitCode {
    match attempt(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::too_many_lines, reason = "steps of one run, each of which needs those before")]
fn attempt(options: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    let program = std::env::current_exe()?;
    let program: &'static str = Box::leak(program.to_string_lossy().into_owned().into_boxed_str());
    let place = Place::new(program);
    std::fs::create_dir(place.path().join("tmp"))?;
    let charged = Charged::enter();
    // The file stays open for the processes that have yet to open it.
    let (book, record, path) = Book::create()?;
    (0..GROUPS).for_each(|group| book.epoch(group).store((group as u64) << 32 | 1, SeqCst));
    println!(
        "soak: seed {}, {} s, {} disturbances a second, {}",
        options.seed,
        options.seconds,
        options.rate,
        options.parts.join(", ")
    );
    let mut run = Run {
        options,
        book,
        path,
        place,
        actors: Vec::new(),
        dice: Dice::new(options.seed),
        start: Instant::now(),
        done: BTreeMap::new(),
        choices: Vec::new(),
        faults: Vec::new(),
        next: Instant::now(),
        live: std::io::stdout().is_terminal(),
        watchdog: Watchdog::start(options.hang),
        charged: None,
        endure_rests: false,
        endured: Instant::now(),
    };
    run.cast();
    let warm = Duration::from_secs((options.seconds / 5).clamp(2, 10));
    let outside = watch::outside();
    run.play(warm);
    let before = run.rest();
    let charged_before = charged.as_ref().and_then(|charged| charged.memory(&record));
    run.book.forget_times();
    run.watchdog.forget();
    let length = Duration::from_secs(options.seconds);
    let mut after = None;
    if run.faults.is_empty() {
        run.book.set_phase(Phase::Work);
        run.endure_again();
        (0..GROUPS).for_each(|group| run.raise_epoch(group));
        run.play(length.saturating_sub(run.start.elapsed()).max(Duration::from_secs(2)));
        run.faults.extend(run.endures_too_long());
        after = Some(run.rest());
        run.charged =
            charged_before.zip(charged.as_ref().and_then(|charged| charged.memory(&record)));
    }
    let leaks = after.map(|after| Leaks::between(before, after));
    run.faults.extend(leaks.iter().flat_map(Leaks::faults));
    run.faults.extend(run.charged.and_then(watch::charged_too_much));
    run.faults.extend(run.book.check_all().into_iter().map(|wrong| format!("ledger: {wrong}")));
    run.close();
    run.faults.extend(watch::left_outside(&outside));
    let complaints = run.book.sum(Sum::Complaints);
    if complaints != 0 && run.faults.is_empty() {
        run.faults.push(format!("{complaints} complaints were counted, and none was heard"));
    }
    run.clear_line();
    report::print(&run, leaks.as_ref());
    if let Some(path) = &options.json {
        let json = report::json(&run, options, leaks.as_ref());
        if path == "-" { println!("{json}") } else { std::fs::write(path, json + "\n")? }
    }
    if run.faults.is_empty() {
        println!("soak: passed");
        return Ok(true);
    }
    println!("soak: FAILED, {} faults", run.faults.len());
    run.faults.iter().take(40).for_each(|fault| println!("  {fault}"));
    println!("  the killer's last choices: {}", run.choices.join("; "));
    println!("  again: {}", report::again(options));
    Ok(false)
}

impl Run<'_> {
    #[expect(clippy::too_many_lines, reason = "one entry for each role")]
    fn cast(&mut self) {
        use Fate::{Brief, Killed, Spared, Stopped};
        let has = |part: &str| self.options.has(part);
        let mut cast: Vec<(String, String, Fate, Option<usize>)> = Vec::new();
        let calls = has("calls") || has("hostile");
        if calls {
            cast.push((
                "steady".into(),
                "serve steady trial two without-spares".into(),
                Spared,
                None,
            ));
            cast.push(("bystander".into(), "bystander 0 steady=0=steady".into(), Spared, None));
        }
        if has("calls") {
            cast.push(("server-a".into(), "serve a".into(), Killed, None));
            cast.push(("server-b".into(), "serve b two".into(), Killed, None));
            for client in 0..3 {
                let lane = 1 + client * CALLERS;
                cast.push((
                    format!("client-{client}"),
                    format!("call {lane} steady=0=steady a=2 b=3"),
                    Killed,
                    None,
                ));
            }
        }
        if has("group") {
            for rank in 0..MEMBERS {
                let fate = if rank == 0 { Stopped } else { Killed };
                cast.push((
                    format!("member-{rank}"),
                    format!("member {} 0 {rank}", 20 + rank),
                    fate,
                    Some(0),
                ));
            }
        }
        if has("home") {
            let home = cast.len();
            cast.push(("home".into(), "home object".into(), Killed, None));
            for guest in 0..3 {
                cast.push((
                    format!("guest-{guest}"),
                    format!("guest {} object {home}", 30 + guest),
                    Killed,
                    None,
                ));
            }
        }
        if has("hostile") {
            cast.push(("hostile-client".into(), "hostile".into(), Brief, None));
            cast.push(("hostile-server".into(), "hostile-server other".into(), Killed, None));
            cast.push(("endures".into(), "endure".into(), Spared, None));
            for rank in 0..crate::member::HOSTILE {
                cast.push((
                    format!("beside-{rank}"),
                    format!("member {} 1 {rank}", 24 + rank),
                    Spared,
                    None,
                ));
            }
            cast.push(("hostile-member".into(), "hostile-member 1".into(), Brief, Some(1)));
        }
        assert!(cast.len() <= SLOTS, "more roles than the record has places");
        for (slot, (name, words, fate, group)) in cast.into_iter().enumerate() {
            let talks = match words.split(' ').collect::<Vec<_>>()[..] {
                ["member", _, group, _] | ["hostile-member", group] => group.parse().ok(),
                _ => None,
            };
            let (party, dying, stopped, lives) = (None, false, None, 0);
            self.actors.push(Actor {
                name,
                words,
                slot,
                fate,
                group,
                talks,
                party,
                dying,
                stopped,
                lives,
            });
        }
    }

    /// Runs the load and the killer for this time, or until a fault is found.
    fn play(&mut self, length: Duration) {
        let end = Instant::now() + length;
        self.next = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end && self.faults.is_empty() {
            self.start_all();
            self.step();
            if Instant::now() >= self.next {
                self.choose();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The periodic work, every few milliseconds: reports, ends, stops that are over, and the
    /// watchdog.
    fn step(&mut self) {
        for at in 0..self.actors.len() {
            self.hear(at);
            self.reap(at);
            let actor = &mut self.actors[at];
            match actor.stopped {
                Some((until, kill)) if Instant::now() >= until => {
                    if kill {
                        self.kill(at);
                    } else {
                        self.go_on(at);
                    }
                }
                _ => {}
            }
        }
        self.look();
        if self.live {
            let sum = |sum| self.book.sum(sum);
            let count = |what: &str| {
                self.done
                    .iter()
                    .filter(|((kind, _), _)| *kind == what)
                    .map(|(_, count)| count)
                    .sum::<u64>()
            };
            print!(
                "\r\x1b[K{:4} s | {} kills, {} stops | {} requests, {} failed | {} messages, {} \
                groups | {} complaints ",
                self.start.elapsed().as_secs(),
                count("kill"),
                count("stop"),
                sum(Sum::Answered),
                sum(Sum::Unknown) + sum(Sum::NotRun),
                sum(Sum::Taken),
                sum(Sum::Epochs),
                sum(Sum::Complaints),
            );
            let _ = std::io::stdout().flush();
        }
    }

    /// Runs the watchdog's check, which also precedes each change that the watchdog has to know of.
    fn look(&mut self) {
        self.faults.extend(self.watchdog.look(&self.book, &self.actors));
    }

    fn clear_line(&self) {
        if self.live {
            print!("\r\x1b[K");
        }
    }

    fn start_all(&mut self) {
        for at in 0..self.actors.len() {
            let slot = self.actors[at].slot;
            if self.actors[at].party.is_some() {
                continue;
            }
            let words = match self.actors[at].words.as_str() {
                "hostile" => {
                    let pid = self.book.slot(0, SlotWord::Pid).load(SeqCst);
                    let own = format!("domain.{pid}.");
                    let Some(socket) = self
                        .place
                        .sockets()
                        .into_iter()
                        .find(|path| path.to_string_lossy().contains(&own))
                    else {
                        continue;
                    };
                    format!("hostile {} 400", socket.display())
                }
                words => words.to_string(),
            };
            let seed =
                Dice::new(self.options.seed ^ (slot as u64) << 32 ^ self.actors[at].lives).any();
            let mut command =
                self.place.command(&format!("role {} {slot} {seed} {words}", self.path));
            command.env("TMPDIR", self.place.path().join("tmp"));
            if let Some(plant) = &self.options.plant {
                command.env("SOAK_PLANT", plant);
            }
            let name = self.actors[at].name.clone();
            if name == "endures" {
                command.envs(RETURNS_MEMORY);
            }
            self.book.disturb_slot(slot);
            let mut party = Party::start(command, &name);
            // The steady server is ready before any client calls it.
            if name == "steady" {
                party.hear().expect_ok("the steady server's start");
            }
            if name == "endures" {
                party.say(ENDURE);
            }
            self.actors[at].party = Some(party);
            self.actors[at].lives += 1;
        }
    }

    /// Returns the fault if the client of the hostile server takes too long for its second.
    fn endures_too_long(&self) -> Option<String> {
        let silent = self.endured.elapsed();
        let is_there = self.actors.iter().any(|actor| actor.name == "endures");
        (is_there && silent > LONGEST_SILENCE).then(|| {
            format!("hang: the client of the hostile server has said nothing for {silent:?}")
        })
    }

    /// Commands the client of the hostile server to call it for another second, if the client
    /// rests.
    fn endure_again(&mut self) {
        let rests = std::mem::take(&mut self.endure_rests);
        let party = self
            .actors
            .iter_mut()
            .filter(|actor| actor.name == "endures")
            .find_map(|actor| actor.party.as_mut());
        if rests && let Some(party) = party {
            party.say(ENDURE);
        }
    }

    /// Reads an actor's complaints, and what a hostile peer has done.
    fn hear(&mut self, at: usize) {
        while let Some(said) = self.actors[at].party.as_mut().and_then(Party::heard) {
            self.note(at, said);
        }
    }

    fn note(&mut self, at: usize, said: Said) {
        let actor = &mut self.actors[at];
        let pid = actor.party.as_ref().map_or(0, Party::pid);
        match said {
            Said::Error { kind, text } => {
                let time = self.start.elapsed().as_secs_f64();
                self.faults
                    .push(format!("{time:.3} s, {} (process {pid}): {kind}: {text}", actor.name));
            }
            Said::Ok(words) => {
                let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
                match (actor.name.as_str(), numbers.as_slice()) {
                    ("hostile-client" | "hostile-member", [steps, ..]) => {
                        self.book.add(Sum::HostileSteps, *steps)
                    }
                    ("endures", [_, calls, ..]) => {
                        self.book.add(Sum::Endured, *calls);
                        (self.endure_rests, self.endured) = (true, Instant::now());
                        if self.book.phase() == Phase::Work {
                            self.endure_again();
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Checks whether a process has ended, and whether it was meant to.
    fn reap(&mut self, at: usize) {
        let actor = &mut self.actors[at];
        let Some(party) = &mut actor.party else { return };
        if party.lives() {
            return;
        }
        let status = party.ended();
        if actor.dying {
            self.book.note(Times::Ending, now().saturating_sub(self.book.died(party.pid())));
        }
        let expected = actor.dying || actor.fate == Fate::Brief;
        if !expected {
            let time = self.start.elapsed().as_secs_f64();
            let pid = party.pid();
            self.faults.push(format!(
                "{time:.3} s, {} (process {pid}) has ended by itself: {status}",
                actor.name
            ));
        }
        // What the process wrote before its end is read as well.
        while let Some(said) = self.actors[at].party.as_mut().and_then(Party::try_hear) {
            self.note(at, said);
        }
        let actor = &mut self.actors[at];
        (actor.party, actor.dying, actor.stopped) = (None, false, None);
        if let (Fate::Brief, Some(group)) = (actor.fate, actor.group) {
            self.raise_epoch(group);
        }
    }

    /// Makes the killer's next choice. It draws the same number of random numbers in each state of
    /// the victim, so that the same seed makes the same choices.
    fn choose(&mut self) {
        let victims: Vec<usize> = (0..self.actors.len())
            .filter(|at| matches!(self.actors[*at].fate, Fate::Stopped | Fate::Killed))
            .collect();
        let pick = self.dice.below(victims.len().max(1) as u64) as usize;
        let [action, length, then_kill, pause] =
            [100, 1000, 5, 2_000_000 / self.options.rate].map(|end| self.dice.below(end));
        self.next += Duration::from_micros(pause);
        let Some(&at) = victims.get(pick) else { return };
        let (kills, actor) = (action < 60, &self.actors[at]);
        // Most stops are short; one in ten is long enough that waiting peers fall asleep.
        let length = if length % 10 == 0 { 300 + length } else { length / 5 };
        let may_kill = actor.fate == Fate::Killed;
        let choice = if kills && may_kill {
            format!("kill {}", actor.name)
        } else {
            let then = if then_kill == 0 && may_kill { ", then kill" } else { "" };
            format!("stop {} for {length} ms{then}", actor.name)
        };
        if self.options.trace {
            self.clear_line();
            println!("{:8.3} s  {choice}", self.start.elapsed().as_secs_f64());
        }
        if self.choices.len() == 12 {
            self.choices.remove(0);
        }
        self.choices.push(choice);
        if actor.party.is_none() || actor.dying {
            return;
        }
        if kills && may_kill {
            self.kill(at);
        } else if actor.stopped.is_none() {
            self.stop(at, Duration::from_millis(length), then_kill == 0 && may_kill);
        }
    }

    fn count(&mut self, what: &'static str, at: usize) {
        let kind = self.actors[at].name.split('-').next().unwrap_or_default().to_string();
        *self.done.entry((what, kind)).or_default() += 1;
    }

    fn kill(&mut self, at: usize) {
        let actor = &mut self.actors[at];
        let Some(party) = &actor.party else { return };
        if actor.dying {
            return;
        }
        // First the record, then the signal: a peer that gets an error must find the death in the
        // record.
        if self.options.plant.as_deref() != Some("claim") {
            self.book.dies(party.pid());
        }
        self.book.disturb_slot(actor.slot);
        party.signal(Signal::KILL);
        (actor.dying, actor.stopped) = (true, None);
        let group = actor.group;
        self.count("kill", at);
        group.into_iter().for_each(|group| self.raise_epoch(group));
    }

    fn raise_epoch(&self, group: usize) {
        let epoch = self.book.epoch(group).load(SeqCst) + 1;
        self.book.clear_epoch(epoch);
        self.book.epoch(group).store(epoch, SeqCst);
    }

    fn stop(&mut self, at: usize, length: Duration, then_kill: bool) {
        self.look();
        let actor = &mut self.actors[at];
        let Some(party) = &actor.party else { return };
        self.book.stops(party.pid());
        self.book.disturb_slot(actor.slot);
        party.signal(Signal::STOP);
        actor.stopped = Some((Instant::now() + length, then_kill));
        self.count("stop", at);
    }

    fn go_on(&mut self, at: usize) {
        self.look();
        let actor = &mut self.actors[at];
        actor.stopped = None;
        let Some(party) = &actor.party else { return };
        self.book.disturb_slot(actor.slot);
        self.book.goes_on(party.pid());
        party.signal(Signal::CONT);
    }

    /// Makes all processes finish what is under way, ends those that may be killed, and returns
    /// what the others use then.
    fn rest(&mut self) -> Vec<watch::State> {
        self.book.set_phase(Phase::Rest);
        (0..self.actors.len()).for_each(|at| self.go_on(at));
        let start = Instant::now();
        while watch::is_busy(&self.book) && self.faults.is_empty() && start.elapsed() < LONGEST_REST
        {
            self.step();
            std::thread::sleep(Duration::from_millis(2));
        }
        if start.elapsed() >= LONGEST_REST && watch::is_busy(&self.book) {
            self.faults.push(format!(
                "hang: no process was disturbed for {LONGEST_REST:?}, and callers still wait"
            ));
        }
        self.objects_are_dropped();
        for at in 0..self.actors.len() {
            let actor = &self.actors[at];
            if matches!(actor.fate, Fate::Killed | Fate::Brief) {
                if let Some(party) = &actor.party {
                    self.book.dies(party.pid());
                    party.signal(Signal::KILL);
                }
                self.actors[at].dying = true;
            }
        }
        while self.actors.iter().any(|actor| actor.dying && actor.party.is_some()) {
            (0..self.actors.len()).for_each(|at| self.reap(at));
            std::thread::sleep(Duration::from_millis(2));
        }
        self.actors.iter_mut().for_each(|actor| actor.dying = false);
        // By then hostile connections and what the dead had are dealt with.
        watch::settled(&self.book, &self.actors)
    }

    /// Waits until each living server has dropped all objects of the resting clients.
    fn objects_are_dropped(&mut self) {
        let start = Instant::now();
        while self.faults.is_empty() {
            let mut open = Vec::new();
            for actor in self
                .actors
                .iter()
                .filter(|actor| actor.words.starts_with("serve") && actor.party.is_some())
            {
                let [made, dropped] = [SlotWord::Opened, SlotWord::Dropped]
                    .map(|word| self.book.slot(actor.slot, word).load(SeqCst));
                if made != dropped {
                    open.push(format!(
                        "{} has made {made} objects and dropped {dropped}",
                        actor.name
                    ));
                }
            }
            if open.is_empty() {
                return;
            }
            if start.elapsed() > Duration::from_secs(10) {
                return self
                    .faults
                    .push(format!("objects: all clients rest, and {}", open.join("; ")));
            }
            self.step();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends all processes, and checks what they have left behind.
    fn close(&mut self) {
        for actor in &mut self.actors {
            if let Some(party) = &mut actor.party {
                if self.faults.is_empty() {
                    party.ended();
                } else {
                    party.signal(Signal::KILL);
                }
            }
            actor.party = None;
        }
        let command = self.place.command(&format!("role {} {} 0 sweep", self.path, SLOTS - 1));
        Party::start(command, "sweep").ended();
        if !self.faults.is_empty() {
            return;
        }
        let start = Instant::now();
        loop {
            let left = watch::left_inside(&self.place);
            if left.is_empty() {
                return;
            }
            if start.elapsed() > Duration::from_secs(5) {
                self.faults.extend(left);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
