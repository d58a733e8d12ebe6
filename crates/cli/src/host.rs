//! `upcall host`: the identity of this host, and the hosts that it trusts.

mod confirm;
mod list;
mod ping;

use crate::exit::{CommandError, CommandResult, Exit};
use crate::names::did_you_mean;
use crate::output::{FAINT, note, print, println, quoted};
use clap::Subcommand;
use confirm::{Answer, ask};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use upcall_net::identity::{
    Fingerprint, HostAddress, HostName, HostPermission, HostStore, IdentityCertificate,
    IdentityError, IfRevoked, OwnHost, TrustList,
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
    List(list::HostListArgs),
    Ping(ping::HostPingArgs),
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
/// prints on the other host. Programs that run notice the change. Without a FILE, the identity of a
/// trusted host stays, and only the options that are given change.
#[derive(clap::Args)]
#[command(after_help = TRUST_EXAMPLES)]
pub struct HostTrustArgs {
    /// Name for the other host: 1 to 64 letters, digits, dots, hyphens and underscores.
    name: HostName,
    /// What `upcall host show --pem` prints on the other host; `-` is the standard input.
    file: Option<PathBuf>,
    /// The fingerprint that the identity must have; asks for no confirmation then.
    #[arg(long, value_name = "SHA256:HASH")]
    fingerprint: Option<Fingerprint>,
    /// What the other host may do: call servers of this user, serve calls from here, or both. With
    /// a FILE, `both` unless given.
    #[arg(long, value_name = "call|serve|both")]
    may: Option<HostPermission>,
    /// Where a server of the other host listens. Can be repeated; replaces the addresses that were
    /// given before. `tcp://NAME:PORT` leads there, and `upcall ls --hosts` asks there.
    #[arg(long = "address", value_name = "HOST:PORT")]
    addresses: Vec<HostAddress>,
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
  upcall host trust beta --address 10.0.0.2:7000 --may serve
  upcall host trust beta beta.pem --fingerprint SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU
  cat beta.pem | upcall host trust beta - --yes --may serve";

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

pub fn run(command: HostCommand) -> CommandResult {
    let store = HostStore::find()?;
    match command {
        HostCommand::Init(args) => init(&store, args),
        HostCommand::Show(args) => show(&store, &args),
        HostCommand::Trust(args) => trust(&store, &args),
        HostCommand::List(args) => list::run(&store, &args),
        HostCommand::Ping(args) => ping::run(&args),
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
    let (certificate, known) = match &args.file {
        Some(file) => (IdentityCertificate::from_pem(&read(file)?)?, HostPermission::default()),
        None => known_host(store, &args.name)?,
    };
    let (name, found, may) = (&args.name, certificate.fingerprint(), args.may.unwrap_or(known));
    let what = args.file.as_ref().map_or("trusted".into(), |file| file.display().to_string());
    match args.fingerprint {
        Some(expected) if expected != found => {
            return Err(CommandError::failed(format_args!(
                "the identity in {what} is {found}, not {expected}: ask the other host's user \
                 which one is right"
            )));
        }
        // The identity of a trusted host was confirmed before.
        None if !args.yes && args.file.is_some() => confirm(args, found, may)?,
        _ => {}
    }
    let if_revoked = if args.again { IfRevoked::TrustAgain } else { IfRevoked::Refuse };
    let addresses = Some(args.addresses.clone()).filter(|all| !all.is_empty());
    store.trust_at(name, &certificate, may, if_revoked, addresses)?;
    println(format_args!("{name}  {found}  {FAINT}may {may}{FAINT:#}"))?;
    Ok(Exit::Done)
}

/// The identity of a trusted host, and what it may do.
fn known_host(
    store: &HostStore,
    name: &HostName,
) -> Result<(IdentityCertificate, HostPermission), CommandError> {
    let list = store.list()?;
    match list.host(name) {
        Some(host) => Ok((host.certificate.clone(), host.may)),
        None => Err(no_such_host(&list, name, ", or give the FILE of its identity")),
    }
}

/// The error for a name that no trusted host has.
fn no_such_host(list: &TrustList, name: &HostName, or: &str) -> CommandError {
    let advice = did_you_mean(name.as_str(), list.hosts().map(|host| host.name.as_str()));
    let advice = if advice.is_empty() { ": see `upcall host list`".into() } else { advice };
    let text = format!("no trusted host is called {name}{advice}{or}");
    CommandError::new(Exit::NotFound, text)
}

/// Asks on the terminal whether the fingerprint is the right one.
fn confirm(
    args: &HostTrustArgs,
    found: Fingerprint,
    may: HostPermission,
) -> Result<(), CommandError> {
    let (name, file) = (&args.name, args.file.as_deref().unwrap_or(Path::new("-")));
    let question = format!("Trust {name} with the identity {found}, may {may}?");
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
            no_such_host(&store.list().unwrap_or_default(), name, "")
        }
        error => error.into(),
    })?;
    println(format_args!("{name}  {revoked}  {FAINT}revoked{FAINT:#}"))?;
    Ok(Exit::Done)
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
    use std::time::Duration;

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
}
