//! Measures the cost of ULPs.
//!
//! That is loading and starting one, switching from one to the next, and memory:
//! `cargo run --release -p upcall-ulp --example switch [COUNT …]`.

use std::error::Error;
use std::ffi::CString;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};
use upcall_ulp::{Image, StopReason, Ulp, UlpTurns, Worker, tools};

/// A program that yields for ever, and now and then asks for something else.
const PROGRAM: &str = "#include \"image.h\"
int counter;
int main(void)
{
    for (;; counter++)
        UPVM_ASK(upvm_table(), counter % 1000 ? UPVM_ASK_YIELD : UPVM_ASK_OWN, 0, 0, 0, 0);
}
";
/// Number of turns of each ULP, of which the first asks.
const TURNS: usize = 1000;

fn compile(folder: &Path) -> Result<Image, Box<dyn Error>> {
    let (source, archive, program) =
        (folder.join("turns.c"), folder.join("libupvm.a"), folder.join("turns"));
    fs::write(&source, PROGRAM)?;
    fs::write(&archive, tools::ARCHIVE)?;
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/image");
    let mut gcc = Command::new("gcc");
    gcc.args(tools::COMPILING).args(["-O2", "-I", env!("OUT_DIR"), "-I", image]).arg(source);
    let done = gcc.args(tools::LINKING).arg("-o").arg(&program).arg(archive).status()?;
    if done.success() { Ok(Image::open(&program)?) } else { Err("gcc failed".into()) }
}

/// Memory that this process has to itself, in KiB.
fn resident() -> Result<f64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn turn(worker: &mut Worker, ulp: &mut Ulp) -> Result<(), String> {
    match worker.resume(ulp) {
        StopReason::Asks(_) => {
            ulp.answer(1);
            Ok(())
        }
        other => Err(format!("{other:?}")),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let counts =
        env::args().skip(1).map(|count| count.parse()).collect::<Result<Vec<usize>, _>>()?;
    let counts = if counts.is_empty() { vec![1, 16, 256, 1000, 4000] } else { counts };
    let folder = tempfile::tempdir()?;
    let image = compile(folder.path())?;
    let mut worker = Worker::begin()?;
    println!(
        "{:>7} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "ULPs", "load, µs", "start, µs", "turn, ns", "by host", "KiB each"
    );
    for count in counts {
        let before = resident()?;
        let begun = Instant::now();
        let load = |_| Ulp::load(&image, &[CString::from(c"turns")], &[]);
        let mut ulps = (0..count).map(load).collect::<Result<Vec<_>, _>>()?;
        let loaded = begun.elapsed();
        let begun = Instant::now();
        ulps.iter_mut().try_for_each(|ulp| turn(&mut worker, ulp))?;
        let started = begun.elapsed();
        let mut times = Vec::new();
        let mut turns = UlpTurns::new(&mut worker, &mut ulps);
        let (rounds, mut at) = ((500 / count).max(1), 0);
        for _ in 0..9 {
            let begun = Instant::now();
            for _ in 0..rounds * count {
                let (who, why) = turns.go(at).ok_or("the ULP has ended")?;
                at = who;
                if !matches!(why, StopReason::Asks(_)) {
                    return Err(format!("{who}: {why:?}").into());
                }
            }
            times.push(begun.elapsed().as_nanos() as f64 / (rounds * count * TURNS) as f64);
        }
        drop(turns);
        let mut by_host = Vec::new();
        for _ in 0..9 {
            let rounds = 1 + 200_000 / count;
            let begun = Instant::now();
            for _ in 0..rounds {
                ulps.iter_mut().try_for_each(|ulp| turn(&mut worker, ulp))?;
            }
            by_host.push(begun.elapsed().as_nanos() as f64 / (rounds * count) as f64);
        }
        by_host.sort_by(f64::total_cmp);
        times.sort_by(f64::total_cmp);
        let each = |time: std::time::Duration| time.as_nanos() as f64 / count as f64 / 1e3;
        println!(
            "{count:>7} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.0}",
            each(loaded),
            each(started),
            times[times.len() / 2],
            by_host[by_host.len() / 2],
            (resident()? - before) / count as f64
        );
    }
    drop(folder);
    std::process::exit(0)
}
