//! `upcall stat`: what the bindings of this user's servers, the members of its groups and the users
//! of its objects have done, by their own count.

mod bindings;
mod far;
mod made;
mod tables;

use crate::exit::{CommandError, CommandResult, Exit};
use crate::expect::ExpectArgs;
use crate::ls::MOST_IN_OTHERS;
use crate::members::{self, MemberActivity, UserMembers};
use crate::names::{did_you_mean, some_seconds};
use crate::objects::{self, ObjectActivity, UserObjects};
use crate::output::{FAINT, counted, note, print, print_json, println, report, report_all};
use crate::servers::{Silence, SilentServer, SilentServers, note_left};
pub use bindings::{AskedServer, BindingRow, ServerBindings, Total, look_all, rows};
use far::ask_far;
pub use far::{FarBindings, check, is_far, is_of_others, servers_of};
use made::{MadeRow, made, made_lines, made_table};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
pub use tables::time;
use tables::{HeldAmount, held, held_table, sizes, table, total};
use upcall::directory;

/// Shows what bindings, members of groups and objects have done.
///
/// For each binding these are calls, errors, bytes, and time in the server. The command reads the
/// memory in which servers, members and homes count. A server on another machine is asked for what
/// it counts, and answers the clients that it admits.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = long_help())]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub struct StatArgs {
    /// Names of exports, groups and objects on this machine, and addresses of servers and exports
    /// on others, `tcp://HOST:PORT` or `tcp://HOST:PORT/NAME`; all of this machine without a name.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Show the calls of each procedure.
    #[arg(short, long)]
    procedures: bool,
    /// Show how many calls of all bindings carried how many bytes (LRPC's Figure 1).
    #[arg(short, long)]
    sizes: bool,
    /// Show only the sums of local and remote calls.
    #[arg(short, long, conflicts_with_all = ["procedures", "sizes"])]
    total: bool,
    /// Show only the members of groups.
    #[arg(short, long, conflicts_with_all = ["procedures", "sizes", "total"])]
    groups: bool,
    /// Show only objects.
    #[arg(short, long, conflicts_with_all = ["procedures", "sizes", "total", "groups"])]
    objects: bool,
    /// Show only what the clients of each server hold in it, and may hold.
    #[arg(
        long,
        conflicts_with_all = ["procedures", "sizes", "total", "groups", "objects", "interval"]
    )]
    held: bool,
    /// Show only what each server of this machine calls itself: local calls, and calls to servers
    /// on other machines.
    #[arg(
        long,
        conflicts_with_all = ["procedures", "sizes", "total", "groups", "objects", "held"]
    )]
    made: bool,
    /// Show for each object what each process with write access has done.
    #[arg(long, conflicts_with = "total")]
    holds: bool,
    /// With --groups: show for each member of a group what it has sent to each other member.
    #[arg(long, requires = "groups", conflicts_with = "total")]
    pairs: bool,
    /// Count for this time, and show that in place of everything since the binding was made.
    #[arg(short, long, value_name = "SECONDS", value_parser = some_seconds)]
    interval: Option<Duration>,
    #[command(flatten)]
    expect: ExpectArgs,
    /// Print JSON: an array with one object for each binding, or for each row of the table that
    /// another option asks for; with --total one object.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall stat
  upcall stat files --procedures
  upcall stat --interval 1
  upcall stat --expect root
  upcall stat tcp://127.0.0.1:7000 --total
  upcall stat --json | jq '.[] | {name, client, calls}'";

const COLUMNS: &str = "\
Columns of bindings:
  CLIENT, SERVER     processes; the address of a client on another machine than the server
  CALLS, ERRORS      calls, and those of them that ended without a result
  IN, OUT            bytes of arguments and of results
  P50, P99           time in the server that half and 99% of the calls stay below, as a power of
                     two; one call in 64 is measured, from its request to its reply
  SPIN DONATE HAND   shares of calls that the server found by polling; by polling on a processor
  WAKE WAIT NET      that the caller gave it; by waking on the caller's processor, or elsewhere;
                     after other calls; and from another machine

Columns of --made:
  LOCAL, REMOTE      calls that the process has made by the bindings that it has now
  OUT, IN            bytes of arguments and of results of its remote calls

Columns of members (docs/reference/messages.md):
  SENT, TAKEN, WAITING   messages
  BUFFERED           share of the sent messages that went by a buffer
  HELD, LIMIT        memory of buffered messages, and its maximum for this member
  STOPS, REFUSED     how often the member was stopped at its limit; connections, queues and
                     messages that it refused

Columns of objects (docs/reference/objects.md):
  CHANGES            operations under the lock
  URGENT, INVOKED    urgent and ordinary invocations of the home
  AUTO %LOCK %LOOK %URG    operations for which `auto` chose the way, and the share of each way
  LOCK-NS LOOK-NS URG-NS   what one of them takes each way, as measured last, in ns";

const JSON: &str = "\
JSON keys of a binding: name, interface, server (0 on another machine), client (0 on another
machine than the server), address, calls, local, remote, calls_per_s (with --interval), refused,
panicked, unknown, spins, donations, hand_offs, wakes, waits, bytes_in, bytes_out, p50_below_ns,
p99_below_ns, sizes, procedures.
With --made: process, names, calls, local, remote, remote_share, bytes_out, bytes_in.
With --groups: group, id, rank, size, process, sent, taken, waiting, buffered, diversions,
held_bytes, limit_bytes, stops, stopped_s, stopped_for, refused, pairs. With --objects: name, home,
bytes, state, holder, changes, urgent, invoked, chosen, would_ns, holds. With --held: server, names,
kind, held, most, refused. With --total: bindings, calls, local, remote, local_share, remote_share.

Exits with 3 if a NAME is not found.";

fn long_help() -> String {
    [EXAMPLES, COLUMNS, JSON].join("\n\n")
}

/// What the command has found.
#[derive(Default)]
struct StatSources {
    servers: Vec<ServerBindings>,
    far: Vec<FarBindings>,
    /// Servers on other machines that did not answer.
    far_silent: Vec<(String, CommandError)>,
    /// What each server has called itself, at the start of an interval.
    made_before: Vec<[u64; 3]>,
    members: UserMembers,
    objects: UserObjects,
    /// Servers that did not answer, or have ended.
    silent: Vec<SilentServer>,
    /// Number of servers that only `--expect` accepts and that were not asked.
    unasked: usize,
}

impl StatSources {
    fn new(args: &StatArgs) -> Self {
        let (far, far_silent) = ask_far(&args.names);
        let mut found = Self { far, far_silent, ..Self::default() };
        if args.shows_groups() {
            found.members.renew();
        }
        if args.shows_objects() {
            found.objects.renew();
        }
        let sockets = if args.shows_servers() { directory::domains() } else { Vec::new() };
        let silent = SilentServers::new("stat", &args.names);
        for (socket, looked) in sockets.iter().zip(look_all(&sockets, &args.expect)) {
            match looked {
                Some(Ok(server)) => found.servers.push(server),
                Some(Err(error)) => found.silent.push(silent.add(socket, error)),
                None => found.unasked += 1,
            }
        }
        found
    }

    /// The servers that answered, on this machine and on others.
    fn all(&self) -> impl Iterator<Item = &ServerBindings> {
        self.servers.iter().chain(self.far.iter().map(|far| &far.bindings))
    }

    /// The errors of silent servers, apart from those with none of the names that were asked for.
    fn silent<'a>(&'a self, args: &'a StatArgs) -> impl Iterator<Item = &'a CommandError> {
        let far = self.far_silent.iter().map(|(_, error)| error);
        let is_wanted =
            |silent: &SilentServer| silent.names.iter().any(|name| args.names.contains(name));
        let here = self.silent.iter().filter_map(move |silent| match &silent.silence {
            Silence::Failed(error) => (args.names.is_empty() || is_wanted(silent)).then_some(error),
            Silence::Left(left) => is_wanted(silent).then(|| &**left),
        });
        here.chain(far)
    }

    /// Notes which servers were not asked, and what servers of other users have left. `args` may
    /// name one of the latter, which then is an error.
    fn note(&self, args: &StatArgs) {
        if self.unasked > 0 {
            let servers = counted(self.unasked, "server");
            note(format_args!(
                "{servers} of other users were not asked: `stat` asks {MOST_IN_OTHERS} at most"
            ));
        }
        let left = self.silent.iter().filter_map(|silent| match &silent.silence {
            Silence::Left(left) => Some(left),
            Silence::Failed(_) => None,
        });
        note_left(left.filter(|_| args.names.is_empty()));
    }

    fn begin(&mut self) {
        self.servers.iter_mut().for_each(ServerBindings::begin);
        self.made_before = self.servers.iter().map(|server| server.counts.made()).collect();
        self.far.iter_mut().for_each(|far| far.bindings.begin());
        self.members.begin();
        self.objects.begin();
    }

    /// Asks the servers on other machines again, at the end of an interval. A server that does not
    /// answer is silent from now on.
    fn renew(&mut self) {
        let asked = std::thread::scope(|scope| {
            let ask = |mut far: FarBindings| scope.spawn(|| far.renew().map(|()| far));
            let started: Vec<_> =
                self.far.drain(..).map(|far| (far.at.clone(), ask(far))).collect();
            let answer = started.into_iter().map(|(at, asked)| (at, asked.join()));
            answer.collect::<Vec<_>>()
        });
        for (at, answer) in asked {
            match answer.expect("no panic") {
                Ok(far) => self.far.push(far),
                Err(error) => self.far_silent.push((at, error.into())),
            }
        }
    }
}

/// The rows of all tables.
struct AllRows {
    bindings: Vec<BindingRow>,
    /// What each of the servers that are shown has called itself.
    made: Vec<MadeRow>,
    members: Vec<MemberActivity>,
    objects: Vec<ObjectActivity>,
    /// Whether all servers answered that have the names that were asked for.
    complete: bool,
}

impl AllRows {
    fn new(found: &mut StatSources, args: &StatArgs) -> Self {
        let members = found.members.read(&args.names, args.interval);
        let objects = found.objects.read(&args.names, args.interval);
        let here = found.servers.iter_mut().flat_map(|server| rows(server, &[], args.interval));
        let mut bindings: Vec<_> = here.collect();
        let mut made = made(&found.servers, &found.made_before, &bindings);
        let shown = |row: &MadeRow| args.names.is_empty() || row.exports(&args.names);
        made.retain(shown);
        bindings.retain(|row| args.names.is_empty() || args.names.contains(&row.name));
        let far = found.far.iter_mut();
        bindings.extend(far.flat_map(|far| rows(&mut far.bindings, &args.names, args.interval)));
        bindings.sort_by(|a, b| (&a.name, b.calls, a.client).cmp(&(&b.name, a.calls, b.client)));
        let complete = found.silent(args).next().is_none();
        Self { bindings, made, members, objects, complete }
    }

    /// The errors for names that nothing has. The names of silent servers are not among them.
    fn unknown(&self, found: &StatSources, args: &StatArgs, folder: &Path) -> Vec<CommandError> {
        let exported: Vec<String> = found
            .all()
            .flat_map(|server| server.procedures.keys().map(|name| server.full(name)))
            .collect();
        let known: BTreeSet<&String> = exported
            .iter()
            .chain(self.bindings.iter().map(|row| &row.name))
            .chain(self.members.iter().map(|row| &row.group))
            .chain(self.objects.iter().map(|row| &row.name))
            .chain(found.silent.iter().flat_map(|silent| &silent.names))
            .collect();
        // A server on another machine is named by itself, and its error if it gave no answer.
        let is_server = |name: &str| {
            let is_one = |at: &str| name == at || name.strip_suffix('/') == Some(at);
            let silent = |at: &str| {
                is_one(at) || name.strip_prefix(at).is_some_and(|rest| rest.starts_with('/'))
            };
            found.far.iter().any(|far| is_one(&far.at))
                || found.far_silent.iter().any(|(at, _)| silent(at))
        };
        let unknown = args.names.iter();
        let unknown = unknown.filter(|name| !known.contains(name) && !is_server(name));
        unknown.map(|name| args.unknown(name, &known, folder)).collect()
    }

    fn show(&self, args: &StatArgs, folder: &Path) -> Result<(), CommandError> {
        if args.made && args.json {
            print_json(&self.made)
        } else if args.made {
            print(made_table(&self.made))
        } else if args.total {
            total(&Total::of(&self.bindings), args.json)
        } else if !args.json {
            show_tables(self, args, folder)
        } else if args.groups {
            print_json(&self.members)
        } else if args.objects {
            print_json(&self.objects)
        } else {
            print_json(&self.bindings)
        }
    }
}

pub fn run(args: &StatArgs) -> CommandResult {
    args.check()?;
    let folder = directory::folder()?;
    directory::sweep();
    let mut found = StatSources::new(args);
    found.note(args);
    if args.held {
        show_held(&found, args, &folder)?;
        let unknown = AllRows::new(&mut found, args).unknown(&found, args, &folder);
        return Ok(report_all(found.silent(args).chain(&unknown)));
    }
    if let Some(interval) = args.interval {
        found.begin();
        std::thread::sleep(interval);
        found.renew();
    }
    let rows = AllRows::new(&mut found, args);
    let unknown = rows.unknown(&found, args, &folder);
    // There is nothing to show of names that are unknown, or of servers that are silent.
    let silent: BTreeSet<&String> = found.silent.iter().flat_map(|silent| &silent.names).collect();
    let seen = |name: &&String| {
        !silent.contains(name) && !found.far_silent.iter().any(|(at, _)| name.starts_with(at))
    };
    let shown = args.names.iter().filter(seen).count();
    if args.json || args.names.is_empty() || unknown.len() < shown {
        rows.show(args, &folder)?;
    }
    for server in found.all().filter(|server| server.counts.uncounted() > 0) {
        report(format_args!(
            "{} has made {} bindings that it does not count",
            server.shown(),
            server.counts.uncounted()
        ));
    }
    let unseen = found.members.silent.values();
    let unseen = unseen.chain(found.objects.silent.values().map(|(_, error)| error));
    let unseen: Vec<_> = unseen.map(|error| CommandError::new(Exit::Refused, error)).collect();
    Ok(report_all(found.silent(args).chain(&unseen).chain(&unknown)))
}

/// Shows what servers hold for their clients.
fn show_held(found: &StatSources, args: &StatArgs, folder: &Path) -> Result<(), CommandError> {
    let rows: Vec<HeldAmount> = found.all().flat_map(|server| held(server, &args.names)).collect();
    if args.json {
        print_json(&rows)
    } else if rows.is_empty() && args.names.is_empty() && found.silent(args).next().is_none() {
        println(format_args!("{FAINT}no server runs in {}{FAINT:#}", folder.display()))
    } else if rows.is_empty() {
        Ok(())
    } else {
        print(held_table(&rows))
    }
}

/// Shows a table for each kind of rows that there are, or a line that says that there are none.
fn show_tables(all: &AllRows, args: &StatArgs, folder: &Path) -> Result<(), CommandError> {
    let AllRows { bindings, made, members, objects, complete } = all;
    let none = match (bindings.is_empty(), members.is_empty(), objects.is_empty()) {
        (true, true, _) if args.groups => Some("no process is a member of a group"),
        (true, _, true) if args.objects => Some("no process is the home of an object"),
        (true, true, true) if *complete => Some("no client is bound"),
        _ => None,
    };
    if let Some(none) = none {
        match args.is_of_others() {
            true => println(format_args!("{FAINT}{none} there{FAINT:#}"))?,
            false => println(format_args!("{FAINT}{none} in {}{FAINT:#}", folder.display()))?,
        }
    }
    if !bindings.is_empty() {
        print(format_args!("{}{}", table(bindings, args), made_lines(made)))?;
        if args.sizes {
            print(sizes(bindings))?;
        }
    }
    if !members.is_empty() {
        let between = if bindings.is_empty() { "" } else { "\n" };
        let table = members::table(members, args.pairs, args.interval.is_some());
        print(format_args!("{between}{table}"))?;
    }
    if !objects.is_empty() {
        let between = if bindings.is_empty() && members.is_empty() { "" } else { "\n" };
        print(format_args!("{between}{}", objects::table(objects, args.holds)))?;
    }
    Ok(())
}

impl StatArgs {
    /// The error for a name that none of the servers, groups and objects has that were looked at.
    fn unknown(&self, name: &str, known: &BTreeSet<&String>, folder: &Path) -> CommandError {
        let kind = match (self.shows_servers(), self.shows_groups(), self.shows_objects()) {
            (true, true, _) => "server exports, no group and no object has",
            (true, false, _) => "server exports",
            (_, true, _) => "group has",
            _ => "object has",
        };
        let advice = did_you_mean(name, known.iter().map(|known| known.as_str()));
        if is_far(name) {
            let text = format!("the server there exports nothing with the name {name:?}{advice}");
            return CommandError::new(Exit::NotFound, text);
        }
        let folder = folder.display();
        let text = format!("no {kind} the name {name:?} in {folder}{advice}");
        CommandError::new(Exit::NotFound, text)
    }

    /// Checks the names of other machines, and that the options go with them.
    ///
    /// # Errors
    /// One is no address, or an option is about this machine.
    fn check(&self) -> Result<(), CommandError> {
        check(&self.names)?;
        let Some(far) = self.names.iter().find(|name| is_far(name)) else { return Ok(()) };
        if self.groups || self.objects || self.holds || self.made {
            return Err(CommandError::usage(format_args!(
                "{far:?} is on another machine, and this option shows what is counted in that \
                 machine's memory: run `upcall stat` there, for example by ssh"
            )));
        }
        self.expect.check(far)
    }

    /// Returns `true` if only servers on other machines are asked for.
    fn is_of_others(&self) -> bool {
        is_of_others(&self.names)
    }

    fn shows_servers(&self) -> bool {
        !self.groups && !self.objects && !self.is_of_others()
    }

    fn shows_groups(&self) -> bool {
        if self.is_of_others() {
            return false;
        }
        self.groups || !self.objects && !self.json && !self.total && !self.held && !self.made
    }

    fn shows_objects(&self) -> bool {
        if self.is_of_others() {
            return false;
        }
        self.objects || !self.groups && !self.json && !self.total && !self.held && !self.made
    }
}
