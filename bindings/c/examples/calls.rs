//! What a call costs a client in C, compared to one in Rust. Both call one server in Rust, in
//! turns, so that both see the same machine. `make bench-c` runs this.
//!
//! There are three processes: the server polls on a processor of its own, and the clients take
//! turns on another. The results are medians of the rounds.
#![forbid(unsafe_code)]

use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;
use upcall::Pacing;

#[allow(dead_code)]
#[path = "../tests/rust/mod.rs"]
mod rust;

const CALLS: u32 = 20_000;
const ROUNDS: usize = 301;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[1..] {
        ["server", name] => Ok(rust::server(name).pacing(Pacing::Poll).run()?),
        ["client", name] => client(name),
        [prefix] => measure(Path::new(prefix)),
        _ => Err("give the folder that libupcall is installed in".into()),
    }
}

fn client(name: &str) -> Result<(), Box<dyn Error>> {
    let every = rust::every::Every::bind(name)?;
    every.set_pacing(Pacing::Poll);
    for line in std::io::stdin().lines() {
        line?;
        let start = Instant::now();
        for _ in 0..CALLS {
            every.null()?;
        }
        let middle = Instant::now();
        for i in 0..CALLS {
            assert_eq!(every.add(black_box(i), 1)?, i + 1);
        }
        let each = |ns: u128| ns as f64 / f64::from(CALLS);
        println!(
            "{:.2} {:.2}",
            each((middle - start).as_nanos()),
            each(middle.elapsed().as_nanos())
        );
    }
    Ok(())
}

/// A process on a processor of its own, which is killed when this is dropped.
struct Party(Child);

impl Drop for Party {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Party {
    fn start(processor: &str, program: &Path, arguments: &[&str]) -> std::io::Result<Self> {
        let mut command = Command::new("taskset");
        command.args(["-c", processor]).arg(program).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map(Self)
    }

    fn ends(&mut self) -> (ChildStdin, BufReader<ChildStdout>) {
        let (input, output) = (self.0.stdin.take(), self.0.stdout.take());
        (input.expect("it is piped"), BufReader::new(output.expect("it is piped")))
    }
}

fn compile(prefix: &Path, folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let code = upcall_idl::generate_c(here.join("tests/languages/every.wit"), "every")?;
    std::fs::write(folder.join("every.h"), code.header)?;
    std::fs::write(folder.join("every.c"), code.source)?;
    let program = folder.join("calls");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O2", "-I"])
        .arg(prefix.join("include"))
        .arg("-I")
        .arg(folder)
        .arg(here.join("examples/calls.c"));
    gcc.arg(folder.join("every.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(prefix.join("lib"))
        .args(["-lupcall", "-Wl,-rpath"]);
    let run = gcc.arg(prefix.join("lib").canonicalize()?).output()?;
    if run.status.success() {
        Ok(program)
    } else {
        Err(String::from_utf8_lossy(&run.stderr).into())
    }
}

fn measure(prefix: &Path) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let (name, this) = (format!("calls-{}", std::process::id()), std::env::current_exe()?);
    let c = compile(prefix, folder.path())?;
    let _server = Party::start("1", &this, &["server", &name])?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut parties =
        [Party::start("0", &this, &["client", &name])?, Party::start("0", &c, &[&name])?];
    let mut ends = parties.each_mut().map(Party::ends);
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    for round in 0..ROUNDS {
        // The order alternates, and the first rounds warm up.
        for party in [round % 2, 1 - round % 2] {
            let (input, output) = &mut ends[party];
            input.write_all(b"go\n")?;
            let mut line = String::new();
            output.read_line(&mut line)?;
            let found: Vec<f64> =
                line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            for (call, time) in found.into_iter().enumerate().filter(|_| round >= 10) {
                times[party][call].push(time);
            }
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let [mut rust, mut c] = times;
    for (call, name) in ["null", "add"].into_iter().enumerate() {
        let mut ratios: Vec<f64> =
            c[call].iter().zip(&rust[call]).map(|(c, rust)| c / rust).collect();
        let (rust, c) = (median(&mut rust[call]), median(&mut c[call]));
        println!(
            "{name}: Rust {rust:.1} ns, C {c:.1} ns, {:.3} of medians, {:.3} median of rounds",
            c / rust,
            median(&mut ratios)
        );
    }
    Ok(())
}
