//! What a machine starts with, and why it did not run.

use crate::error;
use crate::machine::TaskPlacement;
use std::fmt;
use std::path::PathBuf;
use upcall_ulp::{NoWorker, NotShared};

/// What a machine begins with: copies of one program, which know each other as siblings
/// (`pvm_siblings`) and have no parent.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its name: a path, or looked for as PVM and the shell do.
    pub program: String,
    /// Its arguments, without its name.
    pub args: Vec<String>,
    /// How many copies.
    pub copies: usize,
    /// Where programs are looked for first.
    pub folders: Vec<PathBuf>,
    /// In how many processes tasks are to run, this one included.
    pub processes: usize,
    /// And which in which.
    pub place: TaskPlacement,
}

/// Why a machine did not run, or not to its end.
#[derive(Debug)]
pub enum NotRun {
    /// This thread cannot run ULPs.
    Worker(NoWorker),
    /// What all tasks share could not be mapped.
    Shared(NotShared),
    /// The program was not started.
    Program {
        /// Its name.
        name: String,
        /// PVM's code.
        code: i32,
    },
    /// Another process could not be started.
    Process(std::io::Error),
    /// What a console or those who ask from outside need could not be had.
    Desk(std::io::Error),
    /// The processes did not come together.
    Join(upcall_message::JoinError),
    /// All tasks that are left wait, and no task is left that could send.
    Stuck {
        /// Each, and what it waits for.
        tasks: Vec<String>,
    },
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(error) => error.fmt(f),
            Self::Shared(error) => error.fmt(f),
            Self::Process(error) => write!(f, "another process could not be started: {error}"),
            Self::Desk(error) => {
                write!(f, "the console, or waiting for requests from other shells, failed: {error}")
            }
            Self::Join(error) => {
                write!(f, "the processes of the machine did not come together: {error}")
            }
            Self::Program { name, code: error::NO_FILE } => {
                write!(
                    f,
                    "no program {name} that can run as a task: compile it by `upvmcc`, and give \
                     its path, or a name that is in PATH"
                )
            }
            Self::Program { name, code } => {
                write!(f, "{name} could not be started (PVM's error {code}; see above)")
            }
            Self::Stuck { tasks } => {
                write!(f, "all tasks that are left wait for what no task can send:")?;
                tasks.iter().take(20).try_for_each(|task| write!(f, "\n  {task}"))?;
                if tasks.len() > 20 {
                    write!(f, "\n  and {} more", tasks.len() - 20)
                } else {
                    Ok(())
                }
            }
        }
    }
}

impl std::error::Error for NotRun {}
