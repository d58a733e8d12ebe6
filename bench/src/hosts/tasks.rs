//! PVM's tasks on both hosts, by Upcall and by Debian's PVM.
//!
//! The programs are those of the suite `pvm`. The first task is on the client's host, and the tasks
//! of a ring are on each host in turn. A script ([`There`]) starts the processes of the server's
//! host. Each turn starts its own tasks; PVM's daemons stay.
//!
//! The daemon of the client's host is the first process of a namespace of processes, to which all
//! that the two daemons start belongs. So none of it outlives the harness.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::case::Contender;
use super::network::{ADDRESSES, Network, Side, surround};
use super::there::There;
use crate::case::{Mode, Placement};
use crate::error::RunError;
use crate::process::ChildError;
use crate::pvm::case::Case;
use crate::pvm::contender::{self, How};
use crate::pvm::machine::{Machine, Span};
use crate::pvm::programs::Programs;
use crate::pvm::run::{confined, times};
use crate::run::Run;
use crate::stats::Summary;

/// Port at which Upcall's processes meet, on the client's host.
const PORT: u16 = 7740;

/// Runs the turns of PVM's tasks.
pub(super) struct Tasks<'a> {
    upcall: &'a Path,
    network: &'a Network,
    programs: Programs,
    /// Those that have a program.
    contenders: Vec<contender::Contender>,
    /// The script that runs a command on the server's host.
    there: &'a There,
    /// PVM's virtual machine, if it is running.
    machine: Option<Machine>,
    /// Approximate duration of a turn's measurement.
    time: Duration,
}

impl<'a> Tasks<'a> {
    /// Compiles the programs of `contenders`. Those for which that fails take no part, and the
    /// report says so.
    ///
    /// # Errors
    /// Files cannot be written to the run's folder.
    pub(super) fn of(
        contenders: &[Contender],
        upcall: &'a Path,
        network: &'a Network,
        there: &'a There,
        run: &mut Run<'_>,
    ) -> Result<Tasks<'a>, RunError> {
        let (placement, mode) = (Placement::TwoCores, Mode::Parked);
        let of = |one: &Contender| {
            Some(contender::Contender { name: one.name, how: one.tasks?, placement, mode })
        };
        let mut contenders = contenders.iter().filter_map(of).collect();
        let programs = Programs::of(&mut contenders, run.exe, run.dir)?;
        run.report.notes.extend(programs.notes.iter().cloned());
        run.report.failures.extend(programs.failures.iter().cloned());
        let time = Duration::from_millis(if run.quick { 20 } else { 300 });
        Ok(Tasks { upcall, network, programs, contenders, there, machine: None, time })
    }

    /// Runs a turn of the contender with this name; `None` if it takes no part.
    ///
    /// # Errors
    /// The program failed, hung, or printed something unexpected.
    pub(super) fn take(
        &mut self,
        name: &str,
        case: Case,
        run: &Run<'_>,
    ) -> Result<Option<Summary>, ChildError> {
        let Some(contender) = self.contenders.iter().find(|one| one.name == name) else {
            return Ok(None);
        };
        let command = self.command(contender.how, case, run);
        let found = command.and_then(|command| times(command, name, case, self.time, run));
        if found.is_err() {
            // Tasks that are left would disturb the next ones.
            self.machine = None;
        }
        found.map(Some)
    }

    /// Returns the command of a turn.
    fn command(&mut self, how: How, case: Case, run: &Run<'_>) -> Result<Command, ChildError> {
        let network = self.network;
        let here = |program: &Path| {
            confined(network.command(Side::Client, run.exe), &[run.cpus.first], program)
        };
        let seconds = self.time.as_secs_f64().to_string();
        let words = case.words().into_iter().flatten();
        let words = words.chain(["--seconds".to_owned(), seconds]);
        let (program, folder) = (self.programs.program(how), self.programs.folder(how));
        let mut command = match how {
            How::Pvm { direct } => {
                let machine = match self.machine.take() {
                    Some(machine) => machine,
                    None => self.machine(&folder, here, run)?,
                };
                let mut command = here(&program);
                command.args(words).args(["--apart"]).args(direct.then_some("--direct"));
                machine.variables(&mut command);
                self.machine = Some(machine);
                command.current_dir(folder);
                command
            }
            _ => {
                let mut command = here(self.upcall);
                command.args(["pvm", "run", "--place=interleave"]);
                let [own, other] = ADDRESSES;
                command.args(["--host", other, "--rendezvous", &format!("{own}:{PORT}")]);
                let with = format!("{} {{host}}", There::RELATIVE);
                command.args(["--with", &with]).current_dir(run.dir);
                command.arg("--upcall").arg(self.upcall).arg(program).args(words);
                command
            }
        };
        surround(&mut command, Side::Client, run.dir);
        Ok(command)
    }

    /// Starts PVM's virtual machine.
    fn machine(
        &self,
        programs: &Path,
        here: impl Fn(&Path) -> Command,
        run: &Run<'_>,
    ) -> Result<Machine, ChildError> {
        let daemon = |program: &Path| {
            let mut command = here(Path::new("unshare"));
            command.args(["--pid", "--fork", "--kill-child"]).arg(program);
            command
        };
        let span = Span::Two { addresses: ADDRESSES, rsh: self.there.path() };
        Machine::start(daemon, span, programs, &run.dir.join("pvm-here"), run.interrupted)
    }
}
