//! Text of `help`: PVM's commands in PVM's form, with notes where ours differ.

/// A command: its name, its purpose, its syntax, and notes.
pub(super) struct ConsoleCommand {
    pub(super) name: &'static str,
    does: &'static str,
    syntax: &'static str,
    more: &'static str,
}

const fn command(
    name: &'static str,
    does: &'static str,
    syntax: &'static str,
    more: &'static str,
) -> ConsoleCommand {
    ConsoleCommand { name, does, syntax, more }
}

pub(super) const COMMANDS: [ConsoleCommand; 31] = [
    command(
        "add",
        "Add hosts to virtual machine",
        "add hostname ...",
        "A hostname may have a number of processes: hostname:4. The machine was started with \
         --rendezvous.\nThe next command is read when the hosts have joined, or have failed.\n",
    ),
    command("alias", "Define/list command aliases", "alias [name command args ...]", ""),
    command(
        "checkpoint",
        "Save the machine in a file (not in PVM)",
        "checkpoint file",
        "The machine goes on. `upcall pvm restart file` starts it again from the file, without \
         its console\nand the console's jobs.\n",
    ),
    command("conf", "List virtual machine configuration", "conf", ""),
    command(
        "delete",
        "Delete hosts from virtual machine",
        "delete hostname ...",
        "Their tasks end.\n",
    ),
    command("echo", "Echo arguments", "echo [arg ...]", ""),
    command("export", "Add environment variables to spawn export list", "export [varname ...]", ""),
    command("getopt", "Display PVM options of the console", "getopt [what]", ""),
    command("halt", "End the virtual machine, with all tasks", "halt", ""),
    command("help", "Print helpful information about a command", "help [command]", ""),
    command("id", "Print console task id", "id", ""),
    command(
        "jobs",
        "Display list of running jobs",
        "jobs [-l]",
        "Options:  -l   give long listing\n",
    ),
    command(
        "kill",
        "Terminate tasks",
        "kill [-c] tid ...",
        "Options:  -c   kill children of tid\n",
    ),
    command(
        "migrate",
        "Move a task to another process (not in PVM)",
        "migrate tid rank",
        "The next command is read when the task runs there, or stays.\n",
    ),
    command("mstat", "Show status of hosts", "mstat name ...", ""),
    command("names", "List message mailbox names", "names [pattern]", ""),
    command(
        "ps",
        "List tasks",
        "ps [-alsx]",
        "Options:  -a       all hosts, which are listed in any case
          -l       long (show parent and process id)
          -s       what each task does (not in PVM)
          -x       also show the console
FLAG values:
  f   task process is child of the machine
  c   task connected to the machine
",
    ),
    command("pstat", "Show status of tasks", "pstat tid ...", ""),
    command("put", "Add entry to message mailbox", "put name flags text", ""),
    command(
        "quit",
        "Exit console",
        "quit",
        "The machine ends with its last task, or at once if none is left. Output is shown until \
         then.\nThe end of the input has the same effect.\n",
    ),
    command(
        "reset",
        "Kill all tasks, delete leftover mboxes",
        "reset",
        "reset info    Delete orphaned persistent mbox entries\nSyntax:  reset info [class]\n",
    ),
    command("setenv", "Display or set environment variables", "setenv [name [value]]", ""),
    command("setopt", "Set PVM options of the console", "setopt what value", ""),
    command("sig", "Send signal to task", "sig signum task ...", ""),
    command(
        "spawn",
        "Spawn task",
        "spawn [options] file [arg ...]",
        "Options:  -(count)         number of tasks, default is 1
          -(host)          spawn on host, default is any
          -(ARCH)          spawn on hosts of ARCH
          -:(wd)           working directory: must be the console's, which all tasks have
          ->               show output of the job here
          ->(file)         redirect output of job to file
          ->>(file)        append output of job to file
Without ->, output goes to the error stream, each line with its task's id.
-? (debugger) and -@ (trace) are not implemented yet.
",
    ),
    command(
        "tickle",
        "Show what the machine knows",
        "tickle how",
        "How:\n  2   what each task does\n  4   mailboxes\n",
    ),
    command("trace", "Set/display trace event mask", "trace", "Traces are not implemented yet.\n"),
    command("unalias", "Undefine command alias", "unalias name ...", ""),
    command(
        "unexport",
        "Remove environment variables from spawn export list",
        "unexport [varname ...]",
        "",
    ),
    command("version", "Show libpvm version", "version", ""),
    command("?", "The same as help", "? [command]", ""),
];

/// Help for all commands, or for one. `None`: there is no such command.
pub(super) fn help(name: Option<&str>) -> Option<String> {
    let one = |name: &str| COMMANDS.iter().find(|command| command.name == name);
    let command = one(name.unwrap_or("help"))?;
    let mut text = format!(
        "{:<11} {}\nSyntax:  {}\n{}",
        command.name, command.does, command.syntax, command.more
    );
    if name.is_none() {
        text += "Commands are:\n";
        let listed = COMMANDS.iter().filter(|command| command.name != "?");
        text.extend(listed.map(|command| format!("  {:<11} {}\n", command.name, command.does)));
    }
    Some(text)
}
