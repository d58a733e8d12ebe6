//! `upcall`: lists and calls servers, shows what they do, works on interface definitions, runs jobs
//! and PVM programs, and keeps the identities of hosts.
#![deny(unsafe_code)]

mod calibrate;
mod call;
mod completions;
mod environment;
mod exit;
mod expect;
mod host;
mod job;
#[cfg(test)]
mod killed;
mod ls;
mod man;
mod members;
mod names;
mod objects;
mod output;
mod pvm;
mod servers;
mod stat;
mod threads;
mod top;
mod wit;

use crate::exit::{CommandError, CommandResult};
use crate::output::report;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use std::process::ExitCode;

/// Lists servers, calls them by hand, and shows what they do.
#[derive(Parser)]
#[command(name = "upcall", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = help(), after_long_help = format!("{}\n\n{}", help(), exit::help()))]
struct CommandLine {
    /// When to print colours: auto (on terminals, unless NO_COLOR is set), always or never.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        hide_default_value = true
    )]
    color: Colors,
    #[command(subcommand)]
    command: UpcallCommand,
}

/// When to print colours.
#[derive(Clone, Copy, ValueEnum)]
enum Colors {
    Auto,
    Always,
    Never,
}

impl From<Colors> for anstream::ColorChoice {
    fn from(colors: Colors) -> Self {
        match colors {
            Colors::Auto => Self::Auto,
            Colors::Always => Self::Always,
            Colors::Never => Self::Never,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  upcall ls
  upcall call greeter.greet Ada
  upcall threads greeter
  upcall job run --group 4 -- ./sieve";

fn help() -> String {
    format!(
        "{EXAMPLES}\n\n`upcall help COMMAND` shows more of each command, and `upcall help \
         environment` the\nenvironment variables. `upcall --help` lists the exit codes."
    )
}

#[derive(Subcommand)]
enum UpcallCommand {
    Ls(ls::LsArgs),
    Call(call::CallArgs),
    Stat(stat::StatArgs),
    Top(top::TopArgs),
    Threads(threads::ThreadsArgs),
    /// Works on interface definitions, without a server.
    #[command(subcommand, after_help = wit::EXAMPLES)]
    Wit(wit::WitCommand),
    /// Starts, stops and schedules the processes of a group (docs/reference/jobs.md).
    #[command(subcommand, after_help = job::EXAMPLES)]
    Job(job::JobCommand),
    Pvm(pvm::PvmArgs),
    /// Makes and shows the identity of this host, and trusts other hosts (docs/how-to/hosts.md).
    #[command(subcommand, after_help = host::EXAMPLES)]
    Host(host::HostCommand),
    Calibrate(calibrate::CalibrateArgs),
    #[command(visible_alias = "env")]
    Environment(environment::EnvironmentArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let done = match args.split_first() {
        Some((first, rest)) if first == "pvm-member" => pvm::member(rest),
        _ => run(),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => {
            if error != CommandError::OutputClosed {
                report(&error);
            }
            error.exit().into()
        }
    }
}

fn run() -> CommandResult {
    let line = CommandLine::try_parse().unwrap_or_else(|error| job::with_dashes(error).exit());
    anstream::ColorChoice::from(line.color).write_global();
    match line.command {
        UpcallCommand::Ls(args) => ls::run(&args),
        UpcallCommand::Call(args) => call::run(&args),
        UpcallCommand::Stat(args) => stat::run(&args),
        UpcallCommand::Top(args) => top::run(&args),
        UpcallCommand::Threads(args) => threads::run(&args),
        UpcallCommand::Wit(suite) => wit::run(suite),
        UpcallCommand::Job(suite) => job::run(suite),
        UpcallCommand::Pvm(args) => pvm::run(args),
        UpcallCommand::Host(suite) => host::run(suite),
        UpcallCommand::Calibrate(args) => calibrate::run(&args),
        UpcallCommand::Environment(args) => environment::run(&args),
        UpcallCommand::Completions(args) => completions::run(&args, CommandLine::command()),
        UpcallCommand::Man(args) => man::run(&args, CommandLine::command()),
    }
}

/// A lock for tests that keep two processors busy, so that one runs at a time.
#[cfg(test)]
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A compiled interface, for tests that compare it with its source.
#[cfg(test)]
#[allow(dead_code, missing_docs, reason = "only its description is used")]
mod compiled {
    upcall::interface!("src/wit/tests.wit");
}
