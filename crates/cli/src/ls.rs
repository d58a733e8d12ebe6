//! `upcall ls`: the servers of this user, of all users, or on other machines, and their exports.

mod far;

use self::far::{ObjectRow, objects_table};
use crate::exit::{CommandError, CommandResult, Exit};
use crate::expect::ExpectArgs;
use crate::output::{
    Columns, FAINT, STRONG, cell, counted, line, note, print, print_json, println, report_all,
};
use crate::servers::{LeftBehind, Silence, SilentServer, SilentServers, ask_all, note_left};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use upcall::BindError;
use upcall::directory::{self, Exported, Peer};
use upcall::policy;

/// Lists servers: names, interfaces, processes, numbers of clients.
///
/// Without an address, lists the servers in this user's folder of names (docs/reference/names.md),
/// and names the shared objects there, which `upcall stat --objects` lists.
/// With addresses, lists what the servers there export to clients from other machines, and the
/// shared objects of homes there that this user may invoke. Their processes are not known here.
/// With `--hosts`, lists those of trusted hosts as well, at the addresses that `upcall host trust
/// --address` has set.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub struct LsArgs {
    /// Addresses of servers, or of homes of objects, on other machines, `tcp://HOST:PORT`.
    #[arg(value_name = "ADDRESS")]
    servers: Vec<String>,
    /// Show each interface's procedures with their types.
    #[arg(short, long)]
    procedures: bool,
    /// List the servers in all folders of names that this user can see, with user and folder.
    #[arg(short, long, conflicts_with = "servers")]
    all: bool,
    /// List the servers and objects of all trusted hosts as well, at their addresses.
    #[arg(long, conflicts_with_all = ["servers", "names"])]
    hosts: bool,
    #[command(flatten)]
    expect: ExpectArgs,
    /// Print a JSON array with one object for each export, and for each shared object.
    #[arg(long, conflicts_with = "names")]
    json: bool,
    /// Print only names, one on each line; asks no server.
    #[arg(long, conflicts_with_all = ["servers", "procedures"])]
    names: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall ls
  upcall ls --all
  upcall ls --expect root --procedures
  upcall ls --hosts
  upcall ls --json | jq '.[].name'
  upcall ls tcp://127.0.0.1:7000";

const JSON: &str = "\
JSON: an array of objects with the keys name, interface, clients (bound now), procedures (pairs of
name and signature); for servers on this machine, pid, program, user and folder; and for servers
that `--hosts` finds, host. After these, shared objects with the keys name, shape (of the type, as
in references), operations (their number; absent if the home runs none now), and host.";

#[derive(Serialize)]
struct LsRow {
    /// The name that a client binds.
    name: String,
    interface: String,
    #[serde(flatten)]
    here: Option<Here>,
    /// The trusted host of a server that `--hosts` has found.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    clients: u32,
    procedures: Vec<(String, String)>,
}

/// A row as JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Shown<'a> {
    Export(&'a LsRow),
    Object(&'a ObjectRow),
}

/// The place of a server on this machine.
#[derive(Clone, Serialize)]
struct Here {
    /// The process; absent if it is in a PID namespace that is not visible here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    program: String,
    user: u32,
    folder: String,
}

impl LsRow {
    fn new(
        Exported { name, interface, clients, procedures, .. }: Exported,
        here: Option<Here>,
    ) -> Self {
        Self { name, interface, here, host: None, clients, procedures }
    }
}

impl Here {
    fn new(peer: &Peer, folder: &Path) -> Self {
        let pid = Some(peer.pid).filter(|pid| *pid != 0);
        let program = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        let program = program.map_or_else(|| "?".into(), |name| name.trim().into());
        Self { pid, program, user: peer.uid, folder: folder.display().to_string() }
    }
}

/// The exports that were found, and the errors of servers that did not answer.
#[derive(Default)]
struct Listing {
    rows: Vec<LsRow>,
    /// The objects of homes on other machines.
    objects: Vec<ObjectRow>,
    silent: Vec<CommandError>,
    /// What servers of other users have left that have ended.
    left: Vec<LeftBehind>,
    /// Number of servers that gave no list in folders that this process does not use, which is no
    /// failure.
    elsewhere: usize,
    /// Number of servers of other users that refuse this user.
    refusing: usize,
    /// Number of servers in other folders that were not asked.
    skipped: usize,
    /// Number of servers in this process's folder that only `--expect` accepts and that were not
    /// asked.
    unasked: usize,
    /// Trusted hosts of which no address is known.
    without_address: Vec<String>,
}

/// Sockets of servers that gave no list, with the reasons, and the number of servers that were not
/// asked.
type Unanswered = (Vec<(PathBuf, BindError)>, usize);

/// Maximum number of servers of other users that are asked in one folder. Another user can have any
/// number of sockets there.
pub const MOST_IN_OTHERS: usize = 64;

/// Time after which no more servers of other users are asked, in seconds.
const TIME_FOR_OTHERS: Duration = Duration::from_secs(10);

/// Maximum length, in bytes, of the list of a server of another user.
pub const MOST_FROM_OTHERS: usize = 1 << 20;

/// How the servers of one folder are asked.
struct Asking<'a> {
    folder: &'a Path,
    accepts: &'a policy::Policy,
    /// Maximum length, in bytes, of the list of one server.
    most: usize,
    /// The time after which no more servers are asked.
    until: Option<Instant>,
}

impl Listing {
    /// The servers in folders of names. `own` is the folder of this process.
    fn of_folders(folders: &[PathBuf], own: Option<&PathBuf>, expect: &ExpectArgs) -> Self {
        let mut listing = Self::default();
        for folder in folders.iter().filter(|folder| Some(*folder) == own) {
            listing.ask_own(folder, expect);
        }
        let until = Instant::now() + TIME_FOR_OTHERS;
        // Reading the exports of another user's server is harmless within these bounds.
        for folder in folders.iter().filter(|folder| Some(*folder) != own) {
            let sockets = directory::domains_in(folder);
            let accepts = &policy::any_user();
            let asking = Asking { folder, accepts, most: MOST_FROM_OTHERS, until: Some(until) };
            let (failed, left_out) = listing.ask_others(&asking, &sockets);
            listing.skipped += left_out;
            failed.into_iter().for_each(|(_, error)| listing.add_error(error.into()));
        }
        listing
    }

    /// Asks the servers in the folder of this process. Servers that only `expect` accepts get the
    /// bounds for other users.
    fn ask_own(&mut self, folder: &Path, expect: &ExpectArgs) {
        let silent = SilentServers::new("ls", &[]);
        let sockets = directory::domains_in(folder);
        let accepts = &policy::own_user_or_root();
        let asking = Asking { folder, accepts, most: directory::MOST_LISTED, until: None };
        let (failed, _) = self.ask(&asking, &sockets);
        let mut expected = Vec::new();
        for (socket, error) in failed {
            match error {
                BindError::WrongUser { found, .. } if expect.names(found) => expected.push(socket),
                error => self.add_silent(silent.add(&socket, error)),
            }
        }
        let (accepts, until) = (&*expect.policy(), Some(Instant::now() + TIME_FOR_OTHERS));
        let asking = Asking { folder, accepts, most: MOST_FROM_OTHERS, until };
        let (failed, left_out) = self.ask_others(&asking, &expected);
        self.unasked += left_out;
        for (socket, error) in failed {
            self.add_silent(silent.add(&socket, error));
        }
    }

    /// Adds a server in the folder of this process.
    fn add_silent(&mut self, server: SilentServer) {
        match server.silence {
            Silence::Failed(error) => self.silent.push(error),
            Silence::Left(left) => self.left.push(left),
        }
    }

    /// Like [`Self::ask`], for servers of other users: asks a bounded number of them.
    fn ask_others(&mut self, asking: &Asking<'_>, sockets: &[PathBuf]) -> Unanswered {
        let (asked, rest) = sockets.split_at(sockets.len().min(MOST_IN_OTHERS));
        let (failed, late) = self.ask(asking, asked);
        (failed, late + rest.len())
    }

    /// Asks servers of one folder at the same time, and adds what they export.
    fn ask(&mut self, asking: &Asking<'_>, sockets: &[PathBuf]) -> Unanswered {
        let Asking { folder, accepts, most, until } = *asking;
        let (mut failed, mut late) = (Vec::new(), 0);
        let answers = ask_all(sockets, |socket| {
            let in_time = until.is_none_or(|until| Instant::now() < until);
            in_time.then(|| directory::list_expecting(socket, accepts, most))
        });
        for (socket, answer) in sockets.iter().zip(answers) {
            match answer {
                Some(Ok((peer, exports))) => {
                    let here = Here::new(&peer, folder);
                    let rows = exports.into_iter().map(|e| LsRow::new(e, Some(here.clone())));
                    self.rows.extend(rows);
                }
                Some(Err(error)) => failed.push((socket.clone(), error)),
                None => late += 1,
            }
        }
        (failed, late)
    }

    /// Counts a server of a folder that this process does not use.
    fn add_error(&mut self, error: CommandError) {
        match error.exit() {
            Exit::Refused => self.refusing += 1,
            // Folders of other users keep the sockets of servers that have ended.
            Exit::NotFound => {}
            _ => self.elsewhere += 1,
        }
    }

    /// Notes which servers were not asked, gave no list, or have ended.
    fn note(&self) {
        note_left(&self.left);
        if self.elsewhere > 0 {
            let servers = counted(self.elsewhere, "server");
            note(format_args!("{servers} in folders of others gave no list of exports"));
        }
        if self.skipped > 0 {
            let servers = counted(self.skipped, "server");
            note(format_args!(
                "{servers} in folders of others were not asked: set UPCALL_DIR to one of these \
                 folders"
            ));
        }
        if self.unasked > 0 {
            let servers = counted(self.unasked, "server");
            note(format_args!(
                "{servers} of other users were not asked: `ls` asks {MOST_IN_OTHERS} at most, for \
                 {} s",
                TIME_FOR_OTHERS.as_secs()
            ));
        }
        if !self.without_address.is_empty() {
            let (hosts, count) = (&self.without_address, self.without_address.len());
            let named = hosts[..count.min(MOST_OBJECTS)].join(", ");
            let more = if count > MOST_OBJECTS { ", …" } else { "" };
            note(format_args!(
                "{} not asked, because no address is known: {named}{more} (see `upcall host trust \
                 --address`)",
                counted(count, "trusted host")
            ));
        }
        if self.refusing > 0 {
            let servers = counted(self.refusing, "server");
            note(format_args!("{servers} of other users did not let this user list exports"));
        }
    }
}

/// The folders that the command lists.
fn folders(all: bool) -> Result<Vec<PathBuf>, CommandError> {
    Ok(if all { directory::folders() } else { vec![directory::folder()?] })
}

pub fn run(args: &LsArgs) -> CommandResult {
    if args.names {
        let names = folders(args.all)?.into_iter().flat_map(|folder| directory::names_in(&folder));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names.dedup();
        print(names.iter().map(|name| format!("{}\n", line(name))).collect::<String>())?;
        return Ok(Exit::Done);
    }
    args.servers.iter().try_for_each(|server| args.expect.check(server))?;
    let mut listing = if args.servers.is_empty() {
        let folders = folders(args.all)?;
        directory::sweep();
        Listing::of_folders(&folders, directory::folder().ok().as_ref(), &args.expect)
    } else {
        Listing::of_addresses(&args.servers)
    };
    if args.hosts {
        listing.ask_hosts()?;
    }
    listing.rows.sort_by(|a, b| {
        let folder = |row: &LsRow| row.here.as_ref().map(|here| here.folder.clone());
        (&a.name, folder(a)).cmp(&(&b.name, folder(b)))
    });
    listing.objects.sort_by(|a, b| a.name.cmp(&b.name));
    let (rows, objects) = (&listing.rows, &listing.objects);
    let tables = [
        (!rows.is_empty()).then(|| table(rows, args.procedures, args.all)),
        (!objects.is_empty()).then(|| objects_table(objects)),
    ];
    let tables: Vec<String> = tables.into_iter().flatten().collect();
    if args.json {
        let rows = rows.iter().map(Shown::Export);
        print_json(&rows.chain(objects.iter().map(Shown::Object)).collect::<Vec<_>>())?;
    } else if !tables.is_empty() {
        print(tables.join("\n"))?;
    } else if listing.silent.is_empty() {
        println(format_args!("{FAINT}{}{FAINT:#}", nothing(args)?))?;
    }
    listing.note();
    if !args.json && args.servers.is_empty() {
        own_objects().iter().for_each(note);
    }
    Ok(report_all(&listing.silent))
}

/// Maximum number of objects or hosts that are named. Another user can enter any number of
/// objects.
const MOST_OBJECTS: usize = 8;

/// Names the shared objects in the folder of this process, and the command that lists them. `None`
/// if there are none.
fn own_objects() -> Option<String> {
    let all = upcall_directory::names::objects();
    if all.is_empty() {
        return None;
    }
    let named: Vec<&str> = all.keys().take(MOST_OBJECTS).map(String::as_str).collect();
    let more = match all.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let objects = counted(all.len(), "shared object");
    Some(format!("{objects}: {}{more} (see `upcall stat --objects`)", named.join(", ")))
}

/// What is said if there is no server.
fn nothing(args: &LsArgs) -> Result<String, CommandError> {
    if !args.servers.is_empty() {
        return Ok(format!("nothing is exported at {}", line(&args.servers.join(", "))));
    }
    if args.all {
        return Ok("no server runs that this user can see".into());
    }
    let folder = directory::folder()?;
    let hosts = if args.hosts { ", nor on a trusted host" } else { "" };
    Ok(format!("no server runs in {}{hosts} (--all lists other folders)", folder.display()))
}

fn table(rows: &[LsRow], procedures: bool, all: bool) -> String {
    const HEADS: [&str; 7] =
        ["NAME", "INTERFACE", "PROCESS", "CLIENTS", "PROGRAM", "USER", "FOLDER"];
    let cells = |row: &LsRow| {
        let here = row.here.as_ref();
        let shown = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let place = |text: Option<String>| if all { shown(text) } else { String::new() };
        [
            cell(&row.name),
            cell(&row.interface),
            shown(here.and_then(|here| here.pid).map(|pid| pid.to_string())),
            row.clients.to_string(),
            shown(here.map(|here| cell(&here.program))),
            place(here.map(|here| here.user.to_string())),
            place(here.map(|here| line(&here.folder))),
        ]
    };
    let heads = HEADS.map(|head| match head {
        "USER" | "FOLDER" if !all => String::new(),
        head => head.into(),
    });
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let right = [false, false, true, true, false, false, false];
    let columns = Columns::new(cells.iter().chain([&heads]), right);
    let mut out = format!("{STRONG}{}{STRONG:#}\n", columns.line(&heads));
    for (row, cells) in rows.iter().zip(&cells) {
        out += &format!("{}\n", columns.line(cells));
        if procedures {
            for (_, signature) in &row.procedures {
                out += &format!("  {FAINT}{}{FAINT:#}\n", line(signature));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::WIDEST;
    use crate::output::tests::{STEERING, is_clean};

    fn row(name: &str, interface: &str) -> LsRow {
        let (name, interface) = (name.into(), interface.into());
        let (here, host) = (None, None);
        LsRow { name, interface, here, host, clients: 0, procedures: Vec::new() }
    }

    /// A server chooses its texts. `format!` panics for a width above 65535.
    #[test]
    fn long_texts_are_cut_before_they_widen_a_column() {
        let rows = [
            row("files", "a:b/c"),
            row("long", &"é".repeat(100_000)),
            row("wide", &"é".repeat(WIDEST)),
        ];
        let shown = table(&rows, false, false);
        assert!(shown.contains(&format!("long   {}…  ", "é".repeat(WIDEST - 1))), "{shown}");
        assert!(shown.contains(&format!("wide   {}  ", "é".repeat(WIDEST))), "{shown}");
        assert!(shown.contains(&format!("files  {:WIDEST$}  ", "a:b/c")), "{shown}");
    }

    #[test]
    fn nothing_that_a_server_says_steers_the_terminal() {
        let row = LsRow {
            procedures: vec![(STEERING.into(), STEERING.into())],
            ..row(STEERING, STEERING)
        };
        let shown = anstream::adapter::strip_str(&table(&[row], true, false)).to_string();
        assert!(is_clean(&shown) && shown.matches("a?[2Jb?31mc?d?e?f?g?h").count() == 3, "{shown}");
    }
}
