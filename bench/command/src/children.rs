//! The children of a run: this program again, as one system of a suite. The harness passes their
//! arguments.

use crate::{cache, homed, hosts, links, messages, own, pvm, rpc, threads, urpc};
use std::ffi::OsString;
use std::process::ExitCode;
use upcall_bench::child::Entry;

/// Runs the child that the first argument names. Returns `None` if it names none.
pub fn run(args: &[OsString]) -> Option<ExitCode> {
    let (name, rest) = args.split_first()?;
    let rest = rest.to_vec();
    Some(match name.to_str()? {
        "bench-child" => child(rest),
        "bench-threads" => threads_child(rest),
        "bench-urpc" => urpc_child(rest),
        "bench-messages" => messages_child(rest),
        "bench-own-messages" => own_messages_child(rest),
        "bench-homed" => homed_child(rest),
        "bench-cache" => cache_child(rest),
        "bench-pvm" => pvm_child(rest),
        "bench-hosts" => hosts_child(rest),
        "bench-links" => links_child(rest),
        "bench-job" => own_jobs_child(own::paper::job, &rest),
        "bench-member" => own_jobs_child(|words| own::paper::member(words).map(|()| 0), &rest),
        _ => return None,
    })
}

/// Runs a child of the suites `rpc` and `lrpc`.
fn child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut systems = upcall_bench::rpc::SYSTEMS.to_vec();
    systems.extend([
        Entry::of::<rpc::Upcall<rpc::AsTold>>(),
        Entry::of::<rpc::Upcall<rpc::ByDefault>>(),
        Entry::of::<rpc::Upcall<rpc::OneByDefault>>(),
    ]);
    upcall_bench::child::child_main(args, &systems)
}

/// Runs a child of the suite `threads`.
fn threads_child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    use upcall_bench::threads::{SYSTEMS, child};
    let mut systems = SYSTEMS.to_vec();
    systems.push(child::Entry::of::<threads::Upcall>());
    child::child_main(args, &systems)
}

/// Runs a child of the suite `urpc`.
fn urpc_child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    upcall_bench::urpc::child::child_main::<urpc::Upcall>(args)
}

/// Runs a child of the suite `messages`.
fn messages_child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    use upcall_bench::messages::{SYSTEMS, child};
    let mut systems = SYSTEMS.to_vec();
    systems.push(child::Entry::of::<messages::Messages>());
    child::child_main(args, &systems)
}

/// Runs a child of the suite `cache`.
fn cache_child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    use upcall_bench::cache::{STORES, child};
    let mut stores = STORES.to_vec();
    stores.push(child::Entry::of::<cache::Upcall>());
    child::child_main(args, &stores)
}

/// Runs a child of the suite `pvm`.
fn pvm_child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    upcall_bench::pvm::child::child_main::<pvm::Upcall>(args)
}

/// Runs a child of the suite `hosts`.
fn hosts_child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    use upcall_bench::hosts::child::{Entry, child_main};
    child_main(args, &[Entry::of::<hosts::limit::Limit>(), Entry::of::<hosts::Upcall>()])
}

/// Runs a child of the suite `links`.
fn links_child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    upcall_bench::links::child::child_main(args, links::simulate)
}

/// Runs a child of the suite `messages` for one of Upcall's own cases.
fn own_messages_child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    upcall_bench::messages::own::child::child_main(args, own::measure)
}

/// Runs a child of the suite `homed`.
fn homed_child(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    upcall_bench::homed::child::child_main(args, homed::measure)
}

/// Runs a job of such a child, or a member of it.
fn own_jobs_child(
    run: impl Fn(&[String]) -> Result<u8, Box<dyn std::error::Error + Send + Sync>>,
    args: &[OsString],
) -> ExitCode {
    let args: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    run(&args).map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
}
