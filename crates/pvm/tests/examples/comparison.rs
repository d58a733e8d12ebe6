//! Runs the cases of a table in two ways and reports the differences.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use crate::cases::{Case, Program, Table};
use crate::normal::{self, Outcome};
use crate::packages;

/// The name of a folder of programs, and a function that runs a case there.
pub type Way<'a> = (&'a str, &'a dyn Fn(&Case, &Path) -> Outcome);

/// One comparison runs at a time: each keeps the processors busy, and all install the same
/// packages.
static ONE: Mutex<()> = Mutex::new(());

pub struct Comparison {
    table: Table,
    dir: TempDir,
    faults: Vec<String>,
    /// Programs that one of the compilers rejected. Their cases are left out.
    refused: Vec<String>,
    _one: MutexGuard<'static, ()>,
}

impl Comparison {
    /// `None`, after printing the reason, if there is no real PVM.
    pub fn of(table: Table) -> Option<Self> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = packages::missing() {
            println!("skipped: {reason}");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("upcall-pvm").tempdir().expect("a folder");
        packages::unpack(dir.path());
        let comparison = Self { table, dir, faults: Vec::new(), refused: Vec::new(), _one: one };
        ["real", "ours"]
            .iter()
            .for_each(|folder| fs::create_dir(comparison.folder(folder)).expect("a folder"));
        Some(comparison)
    }

    /// The folder of one kind of programs.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn fault(&mut self, text: String) {
        self.faults.push(text);
    }

    /// Compiles all programs into a folder.
    pub fn compile(
        &mut self,
        into: &str,
        compile: impl Fn(&Program, &[PathBuf], &Path) -> Result<(), String>,
    ) {
        let folder = self.folder(into);
        for program in &self.table.programs {
            if let Err(words) =
                compile(program, &packages::sources(program, self.dir.path()), &folder)
            {
                self.faults.push(format!("{into}: {} does not compile:\n{words}", program.name));
                self.refused.push(program.name.clone());
            }
        }
    }

    /// Runs all cases.
    pub fn run(&mut self, [one, other]: [Way<'_>; 2]) {
        if self.table.cases.is_empty() {
            println!("no case: UPCALL_PVM_CASES names none of this table");
        }
        for case in &self.table.cases {
            if self.refused.iter().any(|program| case.uses(program)) {
                println!("    {}: not run", case.name);
                continue;
            }
            let [was, is] = [one, other].map(|(folder, run)| {
                let folder = self.folder(folder);
                let outcome = run(case, &folder);
                normal::lines(&outcome, case, &folder.display().to_string())
            });
            if std::env::var_os("UPCALL_PVM_SHOW").is_some() {
                println!("--- {}\n{}", case.name, was.join("\n"));
            }
            let differences = normal::differences(&was, &is);
            println!(
                "    {}: {}",
                case.name,
                if differences.is_some() { "differs" } else { "the same" }
            );
            if let Some(differences) = differences {
                let why =
                    if case.why.is_empty() { String::new() } else { format!(" ({})", case.why) };
                self.faults
                    .push(format!("{}{why}, - {} + {}:\n{differences}", case.name, one.0, other.0));
            }
        }
    }

    /// # Panics
    /// If anything differed.
    pub fn end(self) {
        assert!(
            self.faults.is_empty(),
            "{} faults\n\n{}",
            self.faults.len(),
            self.faults.join("\n")
        );
    }
}
