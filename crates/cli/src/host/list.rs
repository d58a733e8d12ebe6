//! `upcall host list`.

use super::{day, second};
use crate::exit::{CommandResult, Exit};
use crate::output::{Columns, FAINT, STRONG, counted, note, print, print_json, println};
use serde::Serialize;
use std::time::{Duration, SystemTime};
use upcall_net::identity::{
    HostAddress, HostPermission, HostStore, IdentityError, OwnHost, TrustList,
};

/// Lists this host and the hosts that it trusts.
///
/// EXPIRES is the last day of the host key of this host, and of the identities of the others.
/// ADDRESS is where servers of the others listen, as `upcall host trust --address` has set it.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub struct HostListArgs {
    /// Print a JSON array with one object for each host.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall host list
  upcall host list --json | jq -r '.[].name'";

const JSON: &str = "\
JSON: an array of objects with the keys name, own (true for this host), may (an array of `call`
and `serve`), fingerprint, expires (a time in UTC, or null without a host key), revoked and
addresses.";

/// Time before the end of a certificate in which the command warns.
const SOON: Duration = Duration::from_secs(30 * 86_400);

#[derive(Serialize)]
struct HostRow {
    name: String,
    own: bool,
    may: Vec<&'static str>,
    fingerprint: String,
    expires: Option<String>,
    /// A trusted host whose identity is revoked, as a killed `upcall host revoke` may leave it.
    revoked: bool,
    addresses: Vec<String>,
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
        addresses: Vec::new(),
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
            addresses: host.addresses.iter().map(HostAddress::to_string).collect(),
            at: Some(at),
        }
    });
    own.into_iter().chain(others).collect()
}

pub fn run(store: &HostStore, args: &HostListArgs) -> CommandResult {
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
    let heads = ["NAME", "MAY", "FINGERPRINT", "EXPIRES", "ADDRESS"].map(String::from);
    let cells = |row: &HostRow| {
        let may = match (row.own, row.revoked) {
            (true, _) => "this host".into(),
            (_, true) => "nothing (revoked)".into(),
            _ => row.may.join(", "),
        };
        let at = match row.addresses.is_empty() {
            true => "-".into(),
            false => row.addresses.join(", "),
        };
        let until = row.at.map_or("-".into(), day);
        [row.name.clone(), may, row.fingerprint.clone(), until, at]
    };
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let columns = Columns::new(cells.iter().chain([&heads]), [false; 5]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_comes_thirty_days_before_the_end() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let row = |own, seconds| HostRow {
            name: "beta".into(),
            own,
            may: Vec::new(),
            fingerprint: String::new(),
            expires: None,
            revoked: false,
            addresses: Vec::new(),
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
