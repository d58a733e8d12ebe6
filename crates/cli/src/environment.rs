//! The environment variables that Upcall reads: one table for the help and for
//! docs/reference/environment.md.

use crate::exit::{CommandResult, Exit};
use crate::output::{FAINT, STRONG, line, print, print_json};
use serde::Serialize;

/// A variable, and what reads it for what.
pub struct Variable {
    pub name: &'static str,
    /// Programs that read the variable.
    pub read_by: &'static str,
    pub meaning: &'static str,
}

const fn variable(name: &'static str, read_by: &'static str, meaning: &'static str) -> Variable {
    Variable { name, read_by, meaning }
}

pub const VARIABLES: [Variable; 51] = [
    variable(
        "UPCALL_DIR",
        "all programs",
        "folder of names, an absolute path; servers and clients find each other there",
    ),
    variable(
        "XDG_RUNTIME_DIR",
        "all programs",
        "without UPCALL_DIR, the folder of names is `upcall` in this folder",
    ),
    variable(
        "UPCALL_HOSTS",
        "upcall host, links",
        "folder of this host's identity and of trusted hosts, an absolute path",
    ),
    variable(
        "XDG_CONFIG_HOME",
        "upcall host, links",
        "without UPCALL_HOSTS, that folder is `upcall/hosts` here, or in ~/.config",
    ),
    variable(
        "UPCALL_COSTS",
        "upcall calibrate, objects",
        "file with the measured times of operations on objects",
    ),
    variable(
        "XDG_CACHE_HOME",
        "upcall calibrate, objects, upvmcc",
        "folder of caches, in place of ~/.cache",
    ),
    variable(
        "HOME",
        "all programs",
        "home folder: for ~/.upcall (names), ~/.config, ~/.cache, ~/.pvmrc and ~/pvm3",
    ),
    variable(
        "UPCALL_GROUP",
        "members of a job",
        "name of the group; set by `upcall job run` and `job member`",
    ),
    variable(
        "UPCALL_SIZE",
        "members of a job",
        "number of members; set by `upcall job run` and `job member`",
    ),
    variable(
        "UPCALL_RANK",
        "members of a job",
        "rank of this member, from 0; set by `upcall job run` and `job member`",
    ),
    variable(
        "UPCALL_LIMIT",
        "members of a job",
        "bytes that the group may buffer; set by `upcall job run --limit`",
    ),
    variable(
        "UPCALL_RENDEZVOUS",
        "members of a job",
        "address at which members on several hosts meet; set by `upcall job member`",
    ),
    variable("SLURM_PROCID", "upcall job member", "rank of this task in its step of Slurm"),
    variable("SLURM_STEP_NUM_TASKS", "upcall job member", "number of tasks of the step"),
    variable("SLURM_NTASKS", "upcall job member", "the same, in older versions of Slurm"),
    variable("SLURM_JOB_ID", "upcall job member", "number of the job, for the group's name"),
    variable("SLURM_STEP_ID", "upcall job member", "number of the step, for the group's name"),
    variable(
        "SLURM_STEP_NODELIST",
        "upcall job member",
        "hosts of the step; members meet on the first",
    ),
    variable(
        "SLURM_JOB_NODELIST",
        "upcall job member",
        "hosts of the job, if those of the step are unknown",
    ),
    variable("SLURM_STEP_NUM_NODES", "upcall job member", "number of hosts of the step"),
    variable(
        "OMPI_COMM_WORLD_RANK",
        "upcall job member",
        "rank of a process of Open MPI's `mpirun`",
    ),
    variable("OMPI_COMM_WORLD_SIZE", "upcall job member", "number of processes of `mpirun`"),
    variable(
        "PMIX_NAMESPACE",
        "upcall job member",
        "name of the job of `mpirun`, for the group's name",
    ),
    variable("PMI_RANK", "upcall job member", "rank of a process of another `mpiexec`"),
    variable("PMI_SIZE", "upcall job member", "number of processes of `mpiexec`"),
    variable(
        "JOB_COMPLETION_INDEX",
        "upcall job member",
        "rank of a pod of an indexed job of Kubernetes",
    ),
    variable(
        "UPCALL",
        "PVM programs",
        "path of the command `upcall` that runs a PVM program started by itself",
    ),
    variable(
        "UPVM_STACK",
        "upcall pvm",
        "size of each task's stack, as 64M; without it `ulimit -s`",
    ),
    variable("UPVM_MEMORY", "upcall pvm", "size of each task's addresses, as 4G; without it 1G"),
    variable("UPVM_CC", "upvmcc", "C compiler, in place of gcc"),
    variable("UPVM_CXX", "upvmc++", "C++ compiler, in place of g++"),
    variable("UPVM_FC", "upvmf77, upvmf90", "Fortran compiler, in place of gfortran"),
    variable(
        "PVM_EXPORT",
        "PVM programs, upcall pvm",
        "names of variables that spawned tasks get, with colons between them",
    ),
    variable("PVM_TMP", "PVM programs", "folder of temporary files, as pvm_getopt reports it"),
    variable("PVM_RSH", "PVM programs", "remote shell, as PVM reports it"),
    variable(
        "HOSTNAME",
        "upcall job member",
        "name of the pod, in Kubernetes; for the group's name",
    ),
    variable("PATH", "upcall pvm, upcall job", "folders in which programs are looked for"),
    variable(
        "UPCALL_BENCH_AMPI",
        "upcall-bench",
        "folder in which bench/peers/ampi.sh has built AMPI, a peer of the suite `pvm`",
    ),
    variable("NO_COLOR", "upcall, upcall-bench", "if set and not empty, no colours"),
    variable(
        "CLICOLOR_FORCE",
        "upcall",
        "if set and not 0, colours also where the output is no terminal",
    ),
    variable("CLICOLOR", "upcall", "if 0, no colours"),
    variable("TERM", "upcall", "kind of terminal; `dumb` has no colours"),
    variable("RUST_BACKTRACE", "Rust programs", "if 1, a panic prints a backtrace"),
    variable(
        "UPCALL_FAULT",
        "tests",
        "point at which a program built for tests ends; other builds ignore it",
    ),
    variable(
        "UPCALL_PVM_NAMES",
        "tests",
        "`lent`: processes name tasks from each other's numbers; other builds ignore it",
    ),
    variable(
        "UPCALL_PVM_SHUFFLE",
        "tests",
        "microseconds between random moves of tasks, and a seed (500,7); other builds ignore it",
    ),
    variable(
        "UPCALL_PVM_FAULT",
        "tests",
        "step of a move at which a process ends or stops (1:Take:kill); other builds ignore it",
    ),
    variable(
        "UPCALL_PVM_CONTENTS",
        "tests",
        "how the memory of tasks that move arrives (sent, or read); other builds ignore it",
    ),
    variable(
        "UPCALL_PVM_BENT",
        "tests",
        "process that bends the tasks that leave it, and a seed (1:7); other builds ignore it",
    ),
    variable(
        "UPCALL_PVM_SAVED",
        "tests",
        "bytes that a task of another host may have in a checkpoint; other builds ignore it",
    ),
    variable(
        "UPCALL_PVM_TMPFILE",
        "tests",
        "no: checkpoints as on a file system without unnamed files; other builds ignore it",
    ),
];

/// Lists the environment variables that Upcall reads, with their values here.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", help()))]
pub struct EnvironmentArgs {
    /// Print a JSON array with one object for each variable: name, read_by, meaning, and value
    /// (null if not set).
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall environment
  upcall environment --json | jq -r '.[] | select(.value) | .name'";

#[derive(Serialize)]
struct VariableRow {
    name: &'static str,
    read_by: &'static str,
    meaning: &'static str,
    value: Option<String>,
}

pub fn run(args: &EnvironmentArgs) -> CommandResult {
    let rows = VARIABLES.iter().map(|Variable { name, read_by, meaning }| VariableRow {
        name,
        read_by,
        meaning,
        value: std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
    });
    let rows: Vec<_> = rows.collect();
    if args.json {
        print_json(&rows)?;
        return Ok(Exit::Done);
    }
    let shown = rows.iter().map(|row| {
        let value = row.value.as_ref().map(|value| format!("={}", line(value)));
        let (value, VariableRow { name, read_by, meaning, .. }) = (value.unwrap_or_default(), row);
        format!("{STRONG}{name}{STRONG:#}{value}\n    {meaning} {FAINT}({read_by}){FAINT:#}\n")
    });
    print(shown.collect::<String>())?;
    Ok(Exit::Done)
}

/// The table for the help.
pub fn help() -> String {
    let rows = VARIABLES.iter().map(|Variable { name, read_by, meaning }| {
        format!("  {name}\n      {meaning} ({read_by})\n")
    });
    format!("Variables:\n{}", rows.collect::<String>()).trim_end().into()
}
