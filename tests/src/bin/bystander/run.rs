//! The supervisor: gives each case its turns, and collects what the bystanders measured.

use crate::Options;
use crate::case::{Case, Clients, What};
use crate::report::{self, Figures};
use crate::stand::{self, Sample};
use std::error::Error;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use upcall_bench::{line, place::Cpus};
use upcall_tests::group::Group;
use upcall_tests::now;
use upcall_tests::party::Party;
use upcall_tests::place::Place;
use upcall_tests::usage::memory;

/// Longest wait for an answer of a party.
const PATIENCE: Duration = Duration::from_secs(120);

/// Memory that a run leaves to the machine, in bytes.
const LEFT: u64 = 2 << 30;

/// Longest time until the memory of ended clients is free.
const FREED: Duration = Duration::from_secs(60);

/// The measurements of all turns of a case.
#[derive(Debug)]
pub struct Measured {
    /// The case.
    pub case: &'static Case,
    /// The times of the bystander's operations at the library's server, in nanoseconds.
    pub upcall: Vec<u64>,
    /// The lateness with which the kernel woke that bystander, in nanoseconds.
    pub sleeper: Vec<u64>,
    /// The times of the exchanges with the bare server, in nanoseconds.
    pub bare: Vec<u64>,
    /// Maximum growth of the memory charged to the server since before the turn, in bytes.
    pub grew: u64,
    /// Round trips of a cache line before the turns.
    pub lines: Vec<f64>,
}

struct Run<'a> {
    options: &'a Options,
    place: Place,
    server: Party,
    group: Group,
    socket: String,
    stands: [Party; 2],
    cpus: Option<Cpus>,
    clients: u64,
}

/// Measures everything, and reports it.
pub fn run(options: &Options) -> ExitCode {
    match measure(options).and_then(|all| {
        let figures: Vec<Figures> =
            all.iter().flat_map(|measured| Figures::of(measured, options.poll)).collect();
        report::print(&figures);
        options.json.as_ref().map_or(Ok(()), |path| report::write(&figures, path))
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bystander: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<Vec<Measured>, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let program: &'static str = Box::leak(program.to_string_lossy().into_owned().into_boxed_str());
    let place = Place::new(program);
    let mut server = place.start(if options.poll { "role serve poll" } else { "role serve" });
    server.hear().expect_ok("a server");
    let socket =
        place.sockets().pop().ok_or("the server has no socket")?.to_string_lossy().into_owned();
    let stands = ["call", "bind"].map(|way| {
        let mut stand = place.start(&format!("role stand {way}"));
        stand.hear().expect_ok("a bystander");
        stand
    });
    let group = Group::around(
        server.pid(),
        1 << 40,
        "memory by a control group; the server's own account is used",
    );
    let cpus = Cpus::allowed().ok();
    let mut run =
        Run { options, place, server, group, socket, stands, cpus, clients: options.clients };
    run.fit()?;
    let mut all: Vec<Measured> = options.only.iter().map(|case| Measured::new(case)).collect();
    for round in 1..=options.rounds {
        for measured in &mut all {
            eprint!("\rround {round} of {}: {:14}", options.rounds, measured.case.name);
            run.turn(measured)?;
        }
    }
    eprint!("\r{:40}\r", "");
    Ok(all)
}

impl Measured {
    fn new(case: &'static Case) -> Self {
        Self {
            case,
            upcall: Vec::new(),
            sleeper: Vec::new(),
            bare: Vec::new(),
            grew: 0,
            lines: Vec::new(),
        }
    }
}

impl Run<'_> {
    /// Limits the number of dying clients to what the machine has memory for.
    fn fit(&mut self) -> Result<(), Box<dyn Error>> {
        let room =
            (meminfo("MemAvailable:")? * 1024).saturating_sub(LEFT) / (self.options.segment << 20);
        if self.clients > room
            && self.options.only.iter().any(|case| case.clients == Clients::Deaths)
        {
            eprintln!(
                "bystander: the machine has memory for {room} clients with such a segment, not {}",
                self.clients
            );
            self.clients = room.max(1);
        }
        Ok(())
    }

    fn turn(&mut self, measured: &mut Measured) -> Result<(), Box<dyn Error>> {
        measured.lines.push(self.cpus.as_ref().map_or(f64::NAN, line::round_trip_ns));
        self.upcall(measured)?;
        self.bare(measured)
    }

    fn start(&self, kind: &str, count: u64) -> Vec<Party> {
        let words = format!("role load {} {kind} {}", self.socket, self.options.segment);
        let mut parties: Vec<_> = (0..count).map(|_| self.place.start(&words)).collect();
        parties.iter_mut().for_each(|party| drop(party.hear_within(PATIENCE).expect_ok(kind)));
        parties
    }

    /// The memory charged to the server, in bytes.
    fn charged(&self) -> u64 {
        if self.group.exists() {
            return self.group.charged();
        }
        let (all, shared) = memory(self.server.pid());
        (all - shared) * 1024
    }

    fn upcall(&mut self, measured: &mut Measured) -> Result<(), Box<dyn Error>> {
        let before = self.charged();
        self.group.forget_peak();
        let mut length = Duration::from_secs(self.options.seconds);
        let (kind, count) = match measured.case.clients {
            Clients::Load(kind, count) => (kind, count as u64),
            Clients::Deaths => ("holds", self.clients),
        };
        let parties = self.start(kind, count);
        if measured.case.clients == Clients::Deaths {
            // The kernel takes up to 0.3 s to free 1 GiB, and other programs run too.
            length += Duration::from_millis(count * self.options.segment);
        }
        let way = usize::from(measured.case.what == What::Bind);
        self.stands[way].say(&length.as_millis().to_string());
        let span = match measured.case.clients {
            Clients::Load(..) => (0, u64::MAX),
            Clients::Deaths => self.kill(&parties)?,
        };
        let said = self.stands[way].hear_within(PATIENCE + length).numbers("the bystander");
        measured.grew =
            measured.grew.max(self.group.peak().max(self.charged()).saturating_sub(before));
        drop(parties);
        let samples =
            Sample::all(&said).into_iter().filter(|sample| (span.0..span.1).contains(&sample.at));
        for Sample { late, took, .. } in samples {
            measured.upcall.push(took);
            measured.sleeper.push(late);
        }
        Ok(())
    }

    /// Kills all parties. Returns when that was, and when their memory was free.
    fn kill(&self, parties: &[Party]) -> Result<(u64, u64), Box<dyn Error>> {
        std::thread::sleep(Duration::from_millis(50));
        let held = meminfo("Shmem:")?;
        let expected = parties.len() as u64 * self.options.segment * 1024;
        let (at, start) = (now(), Instant::now());
        for party in parties {
            party.kill();
        }
        while meminfo("Shmem:")? + expected * 99 / 100 > held {
            if start.elapsed() > FREED {
                return Err("the memory of dead clients was not freed".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok((at, now()))
    }

    fn bare(&self, measured: &mut Measured) -> Result<(), Box<dyn Error>> {
        let case = measured.case;
        if case.clients == Clients::Deaths {
            return Ok(());
        }
        let program = std::env::current_exe()?;
        let start = |words: &[&str]| -> Result<Ending, Box<dyn Error>> {
            let mut command = Command::new(&program);
            Ok(Ending(
                command
                    .arg("role")
                    .args(words)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()?,
            ))
        };
        let mut server = start(if case.busy { &["bare", "busy"] } else { &["bare"] })?;
        let _beside: Vec<Ending> =
            case.beside.iter().map(|role| start(&["bare", role])).collect::<Result<_, _>>()?;
        let (mut to, mut from) =
            server.0.stdin.take().zip(server.0.stdout.take()).ok_or("no pipes")?;
        // One exchange allocates all that the server needs on first use.
        stand::bare(Duration::from_millis(1), case.what, &mut to, &mut from)?;
        let samples =
            stand::bare(Duration::from_secs(self.options.seconds), case.what, &mut to, &mut from)?;
        measured.bare.extend(samples.iter().map(|sample| sample.took));
        Ok(())
    }
}

/// A process that is killed when the value is dropped.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A line of /proc/meminfo, in KiB.
fn meminfo(name: &str) -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find(|line| line.starts_with(name))
        .ok_or_else(|| format!("no {name} in /proc/meminfo"))?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
