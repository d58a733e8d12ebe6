//! Upcall in the suite `pvm`: compiles tasks, and measures bare switches between user-level
//! processes.

use std::ffi::{CString, OsString};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use upcall_bench::child::Outcome;
use upcall_bench::pvm::child::System;
use upcall_pvm::compiler::{SourceLanguage, command};
use upcall_ulp::{Image, StopReason, Ulp, UlpTurns, Worker, tools};

/// Upcall.
pub struct Upcall;

/// A program that yields forever. After each `turns` turns, where `turns` is its argument, it makes
/// another request instead.
const PROGRAM: &str = "#include <stdlib.h>
#include \"image.h\"
int main(int argc, char **argv)
{
    for (long turns = atol(argv[argc - 1]), counter = 1;; counter++)
        UPVM_ASK(upvm_table(), counter % turns ? UPVM_ASK_YIELD : UPVM_ASK_OWN, 0, 0, 0, 0);
}
";

/// Turns of each ULP in a sample, for few ULPs and for many.
const TURNS: [u32; 2] = [1000, 100];
const FEW: usize = 16;

impl System for Upcall {
    fn compile(args: &[OsString]) -> Outcome<()> {
        let status = command(SourceLanguage::C, args)?.status()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the compiler ended with {status}").into())
        }
    }

    fn switch(count: usize, time: Duration, dir: &Path) -> Outcome<Vec<f64>> {
        let image = image(dir)?;
        let mut worker = Worker::begin()?;
        let turns = TURNS[usize::from(count > FEW)];
        let args = [CString::from(c"turns"), CString::new(turns.to_string())?];
        let mut ulps =
            (0..count).map(|_| Ulp::load(&image, &args, &[])).collect::<Result<Vec<_>, _>>()?;
        let mut turned = UlpTurns::new(&mut worker, &mut ulps);
        let mut at = 0;
        // Each ULP makes its request once in `turns` turns, so all turns have been taken when all
        // have made it.
        let mut all = || {
            for _ in 0..count {
                let (who, why) = turned.go(at).ok_or("it has ended")?;
                if !matches!(why, StopReason::Asks(_)) {
                    return Err(format!("{who}: {why:?}"));
                }
                at = who;
            }
            Ok(())
        };
        all()?;
        let mut samples = Vec::new();
        let first = Instant::now();
        while first.elapsed() < time || samples.len() < 3 {
            let begun = Instant::now();
            all()?;
            samples.push(begun.elapsed().as_nanos() as f64 / f64::from(turns) / count as f64);
        }
        Ok(samples)
    }
}

/// Returns the program, compiled into this folder if it is not there yet.
fn image(dir: &Path) -> Outcome<Image> {
    let program = dir.join("turns");
    if !program.exists() {
        let (source, archive) = (dir.join("turns.c"), dir.join("libupvm.a"));
        fs::write(&source, PROGRAM)?;
        fs::write(&archive, tools::ARCHIVE)?;
        tools::HEADERS.iter().try_for_each(|(name, text)| fs::write(dir.join(name), text))?;
        let mut gcc = Command::new("gcc");
        gcc.args(tools::COMPILING)
            .arg("-O2")
            .arg(source)
            .args(tools::LINKING)
            .arg("-o")
            .arg(&program)
            .arg(archive);
        if !gcc.status()?.success() {
            return Err("gcc failed".into());
        }
    }
    Ok(Image::open(&program)?)
}
