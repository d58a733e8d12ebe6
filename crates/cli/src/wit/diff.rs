//! `upcall wit diff`: what a new version of an interface means for existing programs.

use crate::exit::{CommandResult, Exit};
use crate::output::{FAINT, STRONG, print, print_json};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use upcall_idl::diff::{
    self, Change, Compatibility, Diff, InterfaceDiff, LimitChange, LimitRefusal, Reason,
};

/// Shows which programs a new version of an interface breaks, and why.
///
/// Binding compares each procedure of the client by name and type. The version of the interface,
/// the names of types, and added procedures do not matter. Smaller limits of `string`, `list` or
/// `values` do not prevent a bind, but larger values of old clients are refused. `tail` and `calls`
/// break no program.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct DiffArgs {
    /// The WIT in use: a file, or a folder of files, with the limits beside them.
    old: PathBuf,
    /// The WIT that is to replace OLD.
    new: PathBuf,
    /// Show the types of changed procedures in full, as both sides compare them.
    #[arg(short, long)]
    signatures: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  upcall wit diff old.wit new.wit
  upcall wit diff --signatures old.wit new.wit
  upcall wit diff --json old.wit new.wit | jq .breaks_old_clients

JSON keys: breaks_old_clients, renamed, and interfaces with name, old, new, old_client_new_server,
new_client_old_server (null, or an outcome: binds, mismatch or no-interface) and procedures.

Exits with 0 if old clients run on with a server of NEW, with 1 if something that they do fails,
and with 2 if OLD or NEW cannot be read.";

pub fn run(args: &DiffArgs) -> CommandResult {
    let found = diff::diff(&upcall_idl::load(&args.old)?, &upcall_idl::load(&args.new)?);
    if args.json {
        print_json(&as_json(&found))?;
    } else {
        print(as_text(&found, args.signatures))?;
    }
    Ok(if found.breaks_old_clients() { Exit::Failed } else { Exit::Done })
}

fn as_text(found: &Diff, signatures: bool) -> String {
    let mut out = String::new();
    if let Some((old, new)) = &found.renamed {
        let _ = writeln!(
            out,
            "package {old} is {new} now: binding compares the name, so no interface is the same"
        );
    }
    for interface in &found.interfaces {
        interface_text(&mut out, interface, signatures);
    }
    let breaks =
        if found.breaks_old_clients() { "Old clients break." } else { "Old clients run on." };
    let _ = writeln!(out, "{STRONG}{breaks}{STRONG:#}");
    out
}

fn interface_text(out: &mut String, interface: &InterfaceDiff, signatures: bool) {
    let version = |id: &Option<String>| match id {
        Some(id) => id.split_once('@').map_or("no version", |(_, version)| version).to_owned(),
        None => "not there".to_owned(),
    };
    let (old, new) = (version(&interface.old), version(&interface.new));
    let _ = writeln!(out, "{STRONG}{}{STRONG:#} {old} -> {new}", interface.name);
    let line = |out: &mut String, word: &str, text: &str| {
        let _ = writeln!(out, "  {word:<10} {text}");
    };
    let mut unchanged = 0;
    for procedure in &interface.procedures {
        match &procedure.change {
            Change::Added(_) => line(out, "added", &procedure.name),
            Change::Removed(_) => line(out, "removed", &procedure.name),
            Change::Changed { old, new, reasons } => {
                line(out, "changed", &procedure.name);
                for reason in reasons {
                    line(out, "", &reason.to_string());
                }
                if signatures {
                    line(out, "", &format!("{FAINT}was {old}{FAINT:#}"));
                    line(out, "", &format!("{FAINT}is  {new}{FAINT:#}"));
                }
            }
            Change::Unchanged if procedure.limits.is_empty() => unchanged += 1,
            Change::Unchanged => {
                line(out, "limits", &procedure.name);
                for LimitChange { limit, old, new } in &procedure.limits {
                    let harmless = if matches!(*limit, "string" | "list" | "values") {
                        ""
                    } else {
                        " (breaks no client)"
                    };
                    line(out, "", &format!("{limit}: was {old}, is {new}{harmless}"));
                }
            }
        }
    }
    if unchanged > 0 {
        line(
            out,
            "unchanged",
            &format!("{unchanged} procedure{}", if unchanged == 1 { "" } else { "s" }),
        );
    }
    for (pair, verdict) in [
        ("old client -> new server", &interface.old_to_new),
        ("new client -> old server", &interface.new_to_old),
    ] {
        if let Some(verdict) = verdict {
            let _ = writeln!(out, "  {pair}: {}", verdict_text(verdict));
        }
    }
}

fn verdict_text(verdict: &Compatibility) -> String {
    match verdict {
        Compatibility::NoInterface => {
            "fails at bind: the server does not export the interface".into()
        }
        Compatibility::Mismatch(procedures) => {
            format!("fails at bind with `Mismatch`: {}", procedures.join(", "))
        }
        Compatibility::Binds(refused) if refused.is_empty() => "runs".into(),
        Compatibility::Binds(refused) => {
            let is_quota = |refusal: &&LimitRefusal| refusal.limit == "values";
            let errors = match refused.iter().filter(is_quota).count() {
                0 => "`Refused`",
                all if all == refused.len() => "`Quota`",
                _ => "`Refused` or `Quota`",
            };
            format!(
                "binds; {errors} at run time:{}",
                refused.iter().map(refusal_text).collect::<String>()
            )
        }
    }
}

fn refusal_text(refusal: &LimitRefusal) -> String {
    let LimitRefusal { procedure, limit, within, client, server } = refusal;
    let what = match *limit {
        "string" => format!("strings of more bytes than {server} in the {within}"),
        "list" => format!("lists of more elements than {server} in the {within}"),
        _ => format!("{within} of which the server copies more than {server} bytes (`values`)"),
    };
    format!("\n    {procedure}: {what} are refused; the client's limit is {client}")
}

fn as_json(found: &Diff) -> Value {
    json!({
        "breaks_old_clients": found.breaks_old_clients(),
        "renamed": found.renamed.as_ref().map(|(old, new)| json!({ "old": old, "new": new })),
        "interfaces": found.interfaces.iter().map(interface_json).collect::<Vec<_>>(),
    })
}

fn interface_json(interface: &InterfaceDiff) -> Value {
    let limits = |all: &[LimitChange]| -> Value {
        all.iter().map(|l| json!({ "limit": l.limit, "old": l.old, "new": l.new })).collect()
    };
    let procedures = interface.procedures.iter().map(|procedure| {
        let name = &procedure.name;
        match &procedure.change {
            Change::Unchanged => {
                let limits = limits(&procedure.limits);
                json!({ "name": name, "change": "unchanged", "limits": limits })
            }
            Change::Added(new) => json!({ "name": name, "change": "added", "new": new }),
            Change::Removed(old) => json!({ "name": name, "change": "removed", "old": old }),
            Change::Changed { old, new, reasons } => {
                let reason = |r: &Reason| json!({ "place": r.place, "change": r.change });
                let reasons: Value = reasons.iter().map(reason).collect();
                json!({
                    "name": name,
                    "change": "changed",
                    "old": old,
                    "new": new,
                    "reasons": reasons,
                })
            }
        }
    });
    json!({
        "name": interface.name,
        "old": interface.old,
        "new": interface.new,
        "old_client_new_server": interface.old_to_new.as_ref().map(verdict_json),
        "new_client_old_server": interface.new_to_old.as_ref().map(verdict_json),
        "procedures": procedures.collect::<Vec<_>>(),
    })
}

fn verdict_json(verdict: &Compatibility) -> Value {
    match verdict {
        Compatibility::NoInterface => json!({ "outcome": "no-interface" }),
        Compatibility::Mismatch(procedures) => {
            json!({ "outcome": "mismatch", "procedures": procedures })
        }
        Compatibility::Binds(refused) => {
            let each = |r: &LimitRefusal| {
                json!({
                    "procedure": r.procedure,
                    "limit": r.limit,
                    "within": r.within,
                    "client": r.client,
                    "server": r.server,
                })
            };
            json!({ "outcome": "binds", "refused": refused.iter().map(each).collect::<Vec<_>>() })
        }
    }
}
