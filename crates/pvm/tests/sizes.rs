//! The sizes of tasks' stacks and of their memory: by option, by variable, by the shell's limit.

mod command;

use command::upcall;
use std::path::Path;
use std::process::{Command, Output};

struct Sizes(tempfile::TempDir);

impl Sizes {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/sizes.c");
        let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
        upvmcc.args(["-O1", "-w", "-o"]).arg(folder.path().join("sizes")).arg(source);
        let done = upvmcc.output().unwrap();
        assert!(done.status.success(), "{}", said(&done));
        Self(folder)
    }

    /// Runs `ulimit -s LIMIT`, and then the program with this many MiB of its stack.
    fn run(&self, limit: &str, variable: &str, options: &str, deep: u32) -> Output {
        self.run_with(limit, &[("UPVM_STACK", variable)], options, [deep, 1])
    }

    /// The same with these variables, and with so many MiB of stack and heap.
    fn run_with(
        &self,
        limit: &str,
        variables: &[(&str, &str)],
        options: &str,
        used: [u32; 2],
    ) -> Output {
        let mut shell = Command::new("timeout");
        shell.args([
            "60",
            "sh",
            "-c",
            "ulimit -S -s $LIMIT; exec $UPCALL pvm run $OPTIONS ./sizes $0 $1",
        ]);
        shell.args(used.map(|mib| mib.to_string())).current_dir(self.0.path());
        shell.env("LIMIT", limit).env("OPTIONS", options).env("UPCALL", upcall());
        shell.env_remove("UPVM_STACK").env_remove("UPVM_MEMORY");
        shell.envs(variables.iter().copied().filter(|(_, value)| !value.is_empty()));
        shell.output().unwrap()
    }
}

fn said(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

#[test]
fn all_tasks_of_a_machine_have_stacks_of_the_size_that_was_chosen() {
    let sizes = Sizes::new();
    // In several processes, the others get the size from the first.
    let apart = "-s 64M -n 2 --procs 2 --place interleave";
    for (limit, variable, options, frames) in [
        ("8192", "", "-s 64M", 32),
        ("8192", "", apart, 32),
        ("8192", "1M", "--as-processes=4 --stack=64M", 32),
        ("8192", "64M", "", 32),
        ("65536", "", "--procs 2", 32),
        ("8192", "", "", 7),
    ] {
        let done = sizes.run(limit, variable, options, frames);
        let said = said(&done);
        assert!(done.status.success() && said.contains("32 MiB") == (frames == 32), "{said}");
    }
    for (limit, variable, options) in
        [("8192", "64M", "-s 1M"), ("65536", "1M", ""), ("1024", "", "")]
    {
        let done = sizes.run(limit, variable, options, 4);
        let said = said(&done);
        assert_eq!(done.status.code(), Some(128 + 11), "{said}");
        assert!(said.contains("at the end of its stack"), "{said}");
    }
}

#[test]
fn a_size_that_is_not_possible_is_refused_with_what_is() {
    let sizes = Sizes::new();
    for (variable, options) in
        [("", "-s 1G"), ("", "-s 63K"), ("", "-s huge"), ("513M", ""), ("8", "")]
    {
        let done = sizes.run("8192", variable, options, 1);
        let said = said(&done);
        assert!(!done.status.success() && said.contains("from 64K to 512M"), "{said}");
        assert_ne!(said.contains("UPVM_STACK"), variable.is_empty(), "{said}");
    }
    // What is given with the command counts.
    assert!(sizes.run("8192", "nothing", "-s 8M", 1).status.success());
}

#[test]
fn a_task_has_as_much_memory_as_was_chosen() {
    let sizes = Sizes::new();
    let apart = "--memory 3G -n 2 --procs 2 --place interleave";
    for (variable, options, works) in [
        ("", "--memory 3G", true),
        ("", apart, true),
        ("3G", "", true),
        ("", "", false),
        ("3G", "--memory 1G", false),
    ] {
        let done = sizes.run_with("8192", &[("UPVM_MEMORY", variable)], options, [1, 1500]);
        assert_eq!(done.status.code(), Some(i32::from(!works)), "{options}: {}", said(&done));
    }
    for (variable, options) in [("0", ""), ("2000G", ""), ("", "--memory 1025G")] {
        let done = sizes.run_with("8192", &[("UPVM_MEMORY", variable)], options, [1, 1]);
        let said = said(&done);
        assert!(!done.status.success() && said.contains("from 1G to 1024G"), "{said}");
        assert_ne!(said.contains("UPVM_MEMORY"), variable.is_empty(), "{said}");
    }
    // With so much for each there is room for few.
    let done = sizes.run_with("8192", &[], "--memory 1024G -n 15", [1, 1]);
    assert!(said(&done).contains("all 14 places for tasks are taken"), "{}", said(&done));
}
