//! What a scheduler tells the processes that it starts, by environment variables.
//!
//! # Design
//! - A process has its rank and the number of processes from the innermost program that started it:
//!   Open MPI's `mpirun`, another `mpiexec` (PMI), Slurm's `srun`, or an indexed job of Kubernetes,
//!   in this order. An `mpirun` within an allocation of Slurm starts more processes than Slurm.
//! - All processes of a group have to come to the same result, so nothing else of this process
//!   decides between schedulers: not its rank, for example.
//! - Only Slurm says on which hosts the processes run, so only there is the address derived.
//!
//! Variables come as a function, so that tests need no environment.

use super::nodelist::first_host;
use std::fmt;
use std::str::FromStr;

const OMPI_RANK: &str = "OMPI_COMM_WORLD_RANK";
const OMPI_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
const NAMESPACE: &str = "PMIX_NAMESPACE";
const PMI_RANK: &str = "PMI_RANK";
const PMI_SIZE: &str = "PMI_SIZE";
const SLURM_RANK: &str = "SLURM_PROCID";
const STEP_SIZE: &str = "SLURM_STEP_NUM_TASKS";
const SLURM_SIZE: &str = "SLURM_NTASKS";
const JOB: &str = "SLURM_JOB_ID";
const STEP: &str = "SLURM_STEP_ID";
const STEP_HOSTS: &str = "SLURM_STEP_NODELIST";
const JOB_HOSTS: &str = "SLURM_JOB_NODELIST";
const NODES: &str = "SLURM_STEP_NUM_NODES";
const INDEX: &str = "JOB_COMPLETION_INDEX";
const POD: &str = "HOSTNAME";

/// The first port that a job of Slurm may get, and the number of such ports.
const FIRST_PORT: u16 = 20_000;
const PORTS: u64 = 10_000;

/// Distance between the ports of two steps of a job.
const STEP_PORTS: u64 = 61;

/// The first of the numbers that Slurm gives to steps in which `srun` starts no tasks, such as the
/// script of a batch job.
const SPECIAL_STEPS: u64 = 0xffff_fff0;

/// Maximum length of a group's name, in characters.
const LONGEST_NAME: usize = 64;

/// The program that started this process as one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    OpenMpi,
    Pmi,
    Slurm,
    Kubernetes,
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI",
            Self::Pmi => "mpiexec (PMI)",
            Self::Slurm => "Slurm",
            Self::Kubernetes => "Kubernetes",
        })
    }
}

/// What a scheduler tells a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerTerms {
    pub scheduler: Option<Scheduler>,
    pub rank: Option<usize>,
    pub size: Option<usize>,
    pub group: Option<String>,
    /// The first host on which the processes run.
    pub host: Option<String>,
    /// The port that follows from the job's number.
    pub port: Option<u16>,
    /// The number of hosts on which the processes run.
    pub hosts: Option<usize>,
}

/// A variable of a scheduler that makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub enum SchedulerError {
    /// The variable has this value.
    Nonsense { variable: &'static str, found: String },
    /// Slurm has started this process as the script or the shell of a job, with none beside it.
    Alone,
}

impl fmt::Display for SchedulerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nonsense { variable, found } => write!(
                f,
                "{variable}={found} makes no sense: the scheduler sets this variable; otherwise \
                 remove it, or give --rank, --size, --group and --at"
            ),
            Self::Alone => f.write_str(
                "Slurm has started this process alone, as a job's script or shell: put `srun` \
                 before `upcall job member`",
            ),
        }
    }
}

/// Reads variables.
struct SchedulerVariables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl SchedulerVariables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|text| !text.is_empty())
    }

    fn number<N: FromStr>(&self, variable: &'static str) -> Result<Option<N>, SchedulerError> {
        let Some(found) = self.text(variable) else { return Ok(None) };
        match found.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(SchedulerError::Nonsense { variable, found }),
        }
    }

    fn open_mpi(&self) -> Result<SchedulerTerms, SchedulerError> {
        Ok(SchedulerTerms {
            scheduler: Some(Scheduler::OpenMpi),
            rank: self.number(OMPI_RANK)?,
            size: self.number(OMPI_SIZE)?,
            group: self.text(NAMESPACE).map(|name| group_name("pmix", &name)),
            ..SchedulerTerms::default()
        })
    }

    fn pmi(&self) -> Result<SchedulerTerms, SchedulerError> {
        Ok(SchedulerTerms {
            scheduler: Some(Scheduler::Pmi),
            rank: self.number(PMI_RANK)?,
            size: self.number(PMI_SIZE)?,
            ..SchedulerTerms::default()
        })
    }

    fn slurm_size(&self) -> Result<Option<usize>, SchedulerError> {
        match self.number(STEP_SIZE)? {
            Some(size) => Ok(Some(size)),
            None => self.number(SLURM_SIZE),
        }
    }

    fn slurm(&self) -> Result<SchedulerTerms, SchedulerError> {
        let job: Option<u64> = self.number(JOB)?;
        let step: Option<u64> = self.number(STEP)?;
        let step = step.filter(|step| *step < SPECIAL_STEPS).ok_or(SchedulerError::Alone)?;
        let of_hosts = [STEP_HOSTS, JOB_HOSTS];
        let list = of_hosts.iter().find_map(|&name| Some((name, self.text(name)?)));
        let host = match list {
            None => None,
            Some((variable, found)) => match first_host(&found) {
                Some(host) => Some(host),
                None => return Err(SchedulerError::Nonsense { variable, found }),
            },
        };
        Ok(SchedulerTerms {
            scheduler: Some(Scheduler::Slurm),
            rank: self.number(SLURM_RANK)?,
            size: self.slurm_size()?,
            group: job.map(|job| group_name("slurm", &format!("{job}.{step}"))),
            host,
            port: job.map(|job| port(job, step)),
            hosts: self.number(NODES)?,
        })
    }

    fn kubernetes(&self) -> Result<SchedulerTerms, SchedulerError> {
        let rank: Option<usize> = self.number(INDEX)?;
        // A pod is called as its job, with its index.
        let end = rank.map(|rank| format!("-{rank}")).unwrap_or_default();
        let group = self.text(POD).and_then(|pod| Some(pod.strip_suffix(&end)?.to_owned()));
        let group = group.map(|job| group_name("kubernetes", &job));
        let scheduler = Some(Scheduler::Kubernetes);
        Ok(SchedulerTerms { scheduler, rank, group, ..SchedulerTerms::default() })
    }
}

/// What the scheduler that started a process with these variables tells it.
///
/// # Errors
/// A variable makes no sense.
pub fn terms(variable: &dyn Fn(&str) -> Option<String>) -> Result<SchedulerTerms, SchedulerError> {
    let variables = SchedulerVariables(variable);
    let is_set = |name| variables.text(name).is_some();
    if is_set(OMPI_RANK) {
        return variables.open_mpi();
    }
    // `srun --mpi=pmi2` sets the variables of both, with the same numbers. The name of the group
    // and the address come from Slurm then.
    let of_pmi = variables.number(PMI_SIZE)?;
    if is_set(PMI_RANK) && (!is_set(SLURM_RANK) || of_pmi != variables.slurm_size()?) {
        return variables.pmi();
    }
    if is_set(SLURM_RANK) {
        return variables.slurm();
    }
    if is_set(INDEX) {
        return variables.kubernetes();
    }
    Ok(SchedulerTerms::default())
}

/// The port of a step of a job: jobs that follow each other have different ones.
fn port(job: u64, step: u64) -> u16 {
    let number = job.wrapping_add(step.wrapping_mul(STEP_PORTS)) % PORTS;
    FIRST_PORT + number as u16
}

/// A group's name that begins with the scheduler's: the end of `name`, with a hyphen for each
/// character that no name may have.
fn group_name(scheduler: &str, name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = name.chars().map(kept).collect();
    let most = LONGEST_NAME - scheduler.len() - 1;
    format!("{scheduler}-{}", &name[name.len().saturating_sub(most)..])
}

#[cfg(test)]
mod tests;
