//! `upcall host`: the identity of this host, and the hosts that it trusts.

mod confirm;

use crate::exit::{CommandError, CommandResult, Exit};
use crate::names::did_you_mean;
use crate::output::{Columns, FAINT, STRONG, counted, note, print, print_json, println, quoted};
use clap::Subcommand;
use confirm::{Answer, ask};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use upcall_net::identity::{
    Fingerprint, HostName, HostPermission, HostStore, IdentityCertificate, IdentityError,
    IfRevoked, OwnHost, TrustList,
};

pub const EXAMPLES: &str = "\
Examples:
  upcall host init
  upcall host show --pem > alpha.pem
  upcall host trust beta beta.pem --yes
  upcall host list";

/// The subcommands of `upcall host`.
#[derive(Subcommand)]
pub enum HostCommand {
    Init(HostInitArgs),
    Show(HostShowArgs),
    Trust(HostTrustArgs),
    List(HostListArgs),
    Renew(HostRenewArgs),
    Revoke(HostRevokeArgs),
}

/// Makes the identity of this user on this host, with a first host key.
///
/// The identity lasts ten years and the host key 90 days, so run `upcall host renew` regularly.
/// Both lie in UPCALL_HOSTS, or in ~/.config/upcall/hosts.
#[derive(clap::Args)]
#[command(after_help = INIT_EXAMPLES)]
pub struct HostInitArgs {
    /// Name of this host, for a person to read; by default the machine's name.
    name: Option<HostName>,
}

const INIT_EXAMPLES: &str = "\
Examples:
  upcall host init
  upcall host init alpha
  UPCALL_HOSTS=$PWD/hosts upcall host init alpha";

/// Prints the identity of this host.
#[derive(clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct HostShowArgs {
    /// Print the certificate of the identity, which another host trusts. It is no secret.
    #[arg(long)]
    pem: bool,
}

const SHOW_EXAMPLES: &str = "\
Examples:
  upcall host show
  upcall host show --pem > alpha.pem";

/// Trusts the identity of another host, or changes what a trusted host may do.
///
/// Prints the fingerprint and asks for a confirmation. Compare it with what `upcall host show`
/// prints on the other host. Programs that run notice the change.
#[derive(clap::Args)]
#[command(after_help = TRUST_EXAMPLES)]
pub struct HostTrustArgs {
    /// Name for the other host: 1 to 64 letters, digits, dots, hyphens and underscores.
    name: HostName,
    /// What `upcall host show --pem` prints on the other host; `-` is the standard input.
    file: PathBuf,
    /// The fingerprint that the identity must have; asks for no confirmation then.
    #[arg(long, value_name = "SHA256:HASH")]
    fingerprint: Option<Fingerprint>,
    /// What the other host may do: call servers of this user, serve calls from here, or both.
    #[arg(long, value_name = "call|serve|both", default_value = "both")]
    may: HostPermission,
    /// Ask for no confirmation.
    #[arg(long)]
    yes: bool,
    /// Trust the identity although it was revoked.
    #[arg(long)]
    again: bool,
}

const TRUST_EXAMPLES: &str = "\
Examples:
  upcall host trust beta beta.pem --yes
  upcall host trust beta beta.pem --fingerprint SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU
  cat beta.pem | upcall host trust beta - --yes --may serve";

/// Lists this host and the hosts that it trusts.
///
/// EXPIRES is the last day of the host key of this host, and of the identities of the others.
#[derive(clap::Args)]
#[command(after_help = LIST_EXAMPLES, after_long_help = format!("{LIST_EXAMPLES}\n\n{LIST_JSON}"))]
pub struct HostListArgs {
    /// Print a JSON array with one object for each host.
    #[arg(long)]
    json: bool,
}

const LIST_EXAMPLES: &str = "\
Examples:
  upcall host list
  upcall host list --json | jq -r '.[].name'";

const LIST_JSON: &str = "\
JSON: an array of objects with the keys name, own (true for this host), may (an array of `call`
and `serve`), fingerprint, expires (a time in UTC, or null without a host key) and revoked.";

/// Replaces the host key of this host and its certificate, for 90 days.
///
/// The identity stays, so no other host notices. Programs that run take the new key for new
/// connections.
#[derive(clap::Args)]
#[command(after_help = RENEW_EXAMPLES)]
pub struct HostRenewArgs {}

const RENEW_EXAMPLES: &str = "\
Examples:
  upcall host renew
  upcall host renew && upcall host show";

/// Trusts another host no more, and remembers its identity as revoked.
///
/// Programs that run refuse its new connections at once, resumed ones as well.
#[derive(clap::Args)]
#[command(after_help = REVOKE_EXAMPLES)]
pub struct HostRevokeArgs {
    /// Name of the other host, as `upcall host list` shows it.
    name: HostName,
}

const REVOKE_EXAMPLES: &str = "\
Examples:
  upcall host revoke beta
  upcall host revoke beta && upcall host list";

/// Time before the end of a certificate in which the command warns.
const SOON: Duration = Duration::from_secs(30 * 86_400);

pub fn run(command: HostCommand) -> CommandResult {
    let store = HostStore::find()?;
    match command {
        HostCommand::Init(args) => init(&store, args),
        HostCommand::Show(args) => show(&store, &args),
        HostCommand::Trust(args) => trust(&store, &args),
        HostCommand::List(args) => list(&store, &args),
        HostCommand::Renew(HostRenewArgs {}) => {
            print_own(&store.renew()?)?;
            Ok(Exit::Done)
        }
        HostCommand::Revoke(args) => revoke(&store, &args.name),
    }
}

fn init(store: &HostStore, args: HostInitArgs) -> CommandResult {
    let name = match args.name {
        Some(name) => name,
        None => machine_name()?,
    };
    print_own(&store.init(&name)?)?;
    note(format_args!(
        "Next: give what `upcall host show --pem` prints to another host, and run `upcall host \
         trust {name} FILE` there."
    ));
    Ok(Exit::Done)
}

/// The machine's name, if it can be one of a host.
fn machine_name() -> Result<HostName, CommandError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    name.trim().parse().map_err(|error| {
        CommandError::usage(format_args!("the name of this machine cannot be used: {error}"))
    })
}

fn print_own(own: &OwnHost) -> Result<(), CommandError> {
    let OwnHost { name, identity, expires } = own;
    let until = match expires {
        Some(at) => format!("host key until {}", day(*at)),
        None => "no host key: run `upcall host renew`".into(),
    };
    println(format_args!("{name}  {}  {FAINT}{until}{FAINT:#}", identity.fingerprint()))
}

fn show(store: &HostStore, args: &HostShowArgs) -> CommandResult {
    let own = store.own()?;
    match args.pem {
        true => print(own.identity.pem())?,
        false => print_own(&own)?,
    }
    Ok(Exit::Done)
}

/// Maximum length of a certificate as PEM, in bytes.
const LONGEST_PEM: u64 = 64 << 10;

/// Reads the file that a command line names, or the standard input.
fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    let mut text = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().lock().take(LONGEST_PEM).read_to_end(&mut text),
        false => File::open(path).and_then(|file| file.take(LONGEST_PEM).read_to_end(&mut text)),
    };
    read.map_err(|error| {
        let text = format!("cannot read {}: {error}", path.display());
        CommandError::new(Exit::of_file(&error), text)
    })?;
    Ok(text)
}

fn trust(store: &HostStore, args: &HostTrustArgs) -> CommandResult {
    let certificate = IdentityCertificate::from_pem(&read(&args.file)?)?;
    let (name, found) = (&args.name, certificate.fingerprint());
    match args.fingerprint {
        Some(expected) if expected != found => {
            return Err(CommandError::failed(format_args!(
                "the identity in {} is {found}, not {expected}: ask the other host's user which \
                 one is right",
                args.file.display()
            )));
        }
        None if !args.yes => confirm(args, found)?,
        _ => {}
    }
    let if_revoked = if args.again { IfRevoked::TrustAgain } else { IfRevoked::Refuse };
    store.trust(name, &certificate, args.may, if_revoked)?;
    println(format_args!("{name}  {found}  {FAINT}may {}{FAINT:#}", args.may))?;
    Ok(Exit::Done)
}

/// Asks on the terminal whether the fingerprint is the right one.
fn confirm(args: &HostTrustArgs, found: Fingerprint) -> Result<(), CommandError> {
    let HostTrustArgs { name, file, .. } = args;
    let question = format!("Trust {name} with the identity {found}, may {}?", args.may);
    match ask(&question) {
        Answer::Yes => Ok(()),
        Answer::No => {
            Err(CommandError::failed(format_args!("{name} is not trusted, as you chose")))
        }
        Answer::NoTerminal => {
            let file = quoted(&file.to_string_lossy());
            Err(CommandError::usage(format_args!(
                "there is no terminal to confirm the identity {found}: compare it with the other \
                 host's, then run `upcall host trust {name} {file} --fingerprint {found}`"
            )))
        }
    }
}

fn revoke(store: &HostStore, name: &HostName) -> CommandResult {
    let revoked = store.revoke(name).map_err(|error| match error {
        IdentityError::NotTrusted { .. } => {
            let list = store.list().unwrap_or_default();
            let advice = did_you_mean(name.as_str(), list.hosts().map(|host| host.name.as_str()));
            let advice = if advice.is_empty() { ": see `upcall host list`".into() } else { advice };
            let text = format!("no trusted host is called {name}{advice}");
            CommandError::new(Exit::NotFound, text)
        }
        error => error.into(),
    })?;
    println(format_args!("{name}  {revoked}  {FAINT}revoked{FAINT:#}"))?;
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct HostRow {
    name: String,
    own: bool,
    may: Vec<&'static str>,
    fingerprint: String,
    expires: Option<String>,
    /// A trusted host whose identity is revoked, as a killed `upcall host revoke` may leave it.
    revoked: bool,
    #[serde(skip)]
    at: Option<SystemTime>,
}

fn rows(own: Option<&OwnHost>, list: &TrustList) -> Vec<HostRow> {
    let own = own.map(|OwnHost { name, identity, expires }| HostRow {
        name: name.to_string(),
        own: true,
        may: Vec::new(),
        fingerprint: identity.fingerprint().to_string(),
        expires: expires.map(second),
        revoked: false,
        at: *expires,
    });
    let others = list.hosts().map(|host| {
        let (fingerprint, at) = (host.certificate.fingerprint(), host.certificate.expires());
        HostRow {
            name: host.name.to_string(),
            own: false,
            may: match host.may {
                HostPermission::Call => vec!["call"],
                HostPermission::Serve => vec!["serve"],
                HostPermission::Both => vec!["call", "serve"],
            },
            fingerprint: fingerprint.to_string(),
            expires: Some(second(at)),
            revoked: list.revoked().contains(&fingerprint),
            at: Some(at),
        }
    });
    own.into_iter().chain(others).collect()
}

fn list(store: &HostStore, args: &HostListArgs) -> CommandResult {
    let own = match store.own() {
        Ok(own) => Some(own),
        Err(IdentityError::Missing { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let rows = rows(own.as_ref(), &store.list()?);
    if args.json {
        print_json(&rows)?;
    } else if rows.is_empty() {
        println(format_args!(
            "{FAINT}this host has no identity in {}, and trusts no host (`upcall host init` makes \
             an identity){FAINT:#}",
            store.folder().display()
        ))?;
    } else {
        print(table(&rows))?;
    }
    let now = SystemTime::now();
    rows.iter().filter_map(|row| warning(row, now)).for_each(note);
    Ok(Exit::Done)
}

fn table(rows: &[HostRow]) -> String {
    let heads = ["NAME", "MAY", "FINGERPRINT", "EXPIRES"].map(String::from);
    let cells = |row: &HostRow| {
        let may = match (row.own, row.revoked) {
            (true, _) => "this host".into(),
            (_, true) => "nothing (revoked)".into(),
            _ => row.may.join(", "),
        };
        [row.name.clone(), may, row.fingerprint.clone(), row.at.map_or("-".into(), day)]
    };
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let columns = Columns::new(cells.iter().chain([&heads]), [false; 4]);
    let mut out = format!("{STRONG}{}{STRONG:#}\n", columns.line(&heads));
    cells.iter().for_each(|cells| out += &format!("{}\n", columns.line(cells)));
    out
}

/// What to do about a certificate that has expired or will soon.
fn warning(row: &HostRow, now: SystemTime) -> Option<String> {
    let HostRow { name, own, at, .. } = row;
    let todo = match own {
        true => "run `upcall host renew`".into(),
        false => format!("make a new identity on {name}, and trust it here"),
    };
    let Some(at) = *at else { return Some(format!("{name} has no host key: {todo}")) };
    let what = if *own { "the host key of this host" } else { "the identity of" };
    let what = if *own { what.to_owned() } else { format!("{what} {name}") };
    match at.duration_since(now) {
        Ok(left) if left >= SOON => None,
        Ok(left) => {
            let days = counted((left.as_secs() / 86_400) as usize, "day");
            Some(format!("{what} expires in {days}: {todo}"))
        }
        Err(_) => Some(format!("{what} has expired: {todo}")),
    }
}

/// `2027-02-27`, in UTC.
fn day(at: SystemTime) -> String {
    second(at).split('T').next().unwrap_or_default().into()
}

/// `2027-02-27T10:00:00Z`.
fn second(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let at = time::OffsetDateTime::from_unix_timestamp(i64::try_from(since).unwrap_or(i64::MAX));
    match at {
        Ok(at) => {
            let (hour, minute, second) = at.to_hms();
            format!("{}T{hour:02}:{minute:02}:{second:02}Z", at.date())
        }
        Err(_) => "never".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn times_are_those_of_utc() {
        assert_eq!(second(at(0)), "1970-01-01T00:00:00Z");
        assert_eq!(second(at(951_782_399)), "2000-02-28T23:59:59Z");
        assert_eq!(day(at(951_782_400)), "2000-02-29");
        assert_eq!(day(at(253_402_300_799)), "9999-12-31");
        assert_eq!(day(at(253_402_300_800)), "never");
    }

    #[test]
    fn a_warning_comes_thirty_days_before_the_end() {
        let row = |own, seconds| HostRow {
            name: "beta".into(),
            own,
            may: Vec::new(),
            fingerprint: String::new(),
            expires: None,
            revoked: false,
            at: Some(at(seconds)),
        };
        let now = at(1_000_000);
        let warned = |own, left: u64| warning(&row(own, 1_000_000 + left), now);
        assert_eq!(warned(true, 30 * 86_400), None);
        let soon = warned(true, 30 * 86_400 - 1).unwrap();
        assert!(soon.contains("expires in 29 days: run `upcall host renew`"), "{soon}");
        assert!(warning(&row(true, 999_999), now).unwrap().contains("has expired"));
        let other = warned(false, 86_400).unwrap();
        assert!(other.contains("identity of beta expires in 1 day: make"), "{other}");
    }
}
