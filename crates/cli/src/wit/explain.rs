//! `upcall wit explain`: shows how the values of each procedure travel, how often they are copied,
//! and how much memory an interface can take, before anything runs.

use crate::call::describe;
use crate::exit::{CommandResult, Exit};
use crate::output::{Columns, FAINT, STRONG, print, print_json, size};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use upcall::Quotas;
use upcall::stub::{Extent, Footprint, Interface, Procedure};
use upcall_idl::Model;
use upcall_idl::model;
use upcall_shm::slot::INLINE;

/// Shows how the values of each procedure travel, how often each is copied, and how much memory
/// clients and servers of an interface can take.
///
/// The values of a call travel in one cache line if its arguments and its results have at most 48
/// bytes each; in an A-stack of the binding if they fit there; in a segment of memory otherwise.
/// Copies have the letters of the paper (LRPC, Table III): A, by the client's stub into shared
/// memory; E, by the server's stub, which checks the value; F, by the client's stub to the place of
/// the result.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct ExplainArgs {
    /// A WIT file, or a folder of them, with the limits beside it.
    file: PathBuf,
    /// Print a JSON array with one object for each interface.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  upcall wit explain wit/files.wit
  upcall wit explain wit/files.wit --json | jq '.[].astacks'

The sizes come from the interface and from the limits beside it: tail, calls, string, list and
values in FILE.toml. The quotas of a server are the default ones (upcall::Quotas). A client gets
no more of anything than is left for other clients.

JSON keys: interface, procedures, astacks, client_bytes, server_quotas.";

/// One interface.
#[derive(Serialize)]
struct Explained {
    interface: String,
    procedures: Vec<ProcedureRow>,
    astacks: Vec<AStackUse>,
    client_bytes: ClientMemory,
    server_quotas: ServerMemory,
}

#[derive(Serialize)]
struct ProcedureRow {
    procedure: String,
    /// Bytes: the fixed part, the room for more, and the maximum under the limits.
    arguments: BlockSize,
    results: BlockSize,
    travels: Travels,
    copies: String,
    /// Maximum number of bytes that a server holds as values for the arguments of one call; 0 if it
    /// holds none.
    values_bytes: u64,
}

#[derive(Serialize)]
struct BlockSize {
    fixed: u32,
    tail: u32,
    most: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Travels {
    /// In one cache line each way.
    Slot,
    /// In an A-stack of this size.
    AStack(u32),
}

#[derive(Serialize)]
struct AStackUse {
    bytes: u32,
    count: u16,
    procedures: Vec<String>,
}

#[derive(Serialize)]
struct ClientMemory {
    channel: usize,
    astacks_of_a_binding: usize,
    kept_segments: usize,
}

#[derive(Serialize)]
struct ServerMemory {
    calls: usize,
    stacks_bytes: usize,
    client_objects: usize,
    client_mapped_bytes: usize,
    client_results_bytes: usize,
    client_values_bytes: usize,
    client_unfilled_bytes: usize,
    all_objects: usize,
    all_mapped_bytes: usize,
    all_results_bytes: usize,
    all_values_bytes: usize,
    all_unfilled_bytes: usize,
}

pub fn run(args: &ExplainArgs) -> CommandResult {
    let model = upcall_idl::load(&args.file)?;
    let own = model.interfaces.iter().filter(|interface| interface.foreign.is_none());
    let explained: Vec<_> = own.map(|interface| explain(&model, interface)).collect();
    if args.json {
        print_json(&explained)?;
        return Ok(Exit::Done);
    }
    print(explained.iter().map(as_text).collect::<String>())?;
    Ok(Exit::Done)
}

/// The interface as a program has it that was compiled from the definition.
fn interface_of(interface: &model::InterfaceDefinition) -> Interface {
    Interface {
        id: interface.id.clone().into(),
        procedures: interface.bound().map(describe).collect(),
        parts: Default::default(),
        source: "".into(),
        limits: "".into(),
    }
}

fn explain(model: &Model, interface: &model::InterfaceDefinition) -> Explained {
    let compiled = interface_of(interface);
    let plan = compiled.plan();
    let class_of = |procedure: &Procedure| plan.class_for(procedure.astack_bytes());
    let rows = interface.bound().zip(&*compiled.procedures).map(|(described, procedure)| {
        let (args, results) = model.longest(described);
        let block =
            |extent: Extent, most: u64| BlockSize { fixed: extent.fixed, tail: extent.tail, most };
        ProcedureRow {
            procedure: described.name.clone(),
            arguments: block(procedure.args, args),
            results: block(procedure.results, results),
            travels: class_of(procedure)
                .map_or(Travels::Slot, |class| Travels::AStack(plan.classes()[class].size)),
            copies: copies(model, described),
            values_bytes: if model.copies_arguments(described) {
                procedure.limits.values
            } else {
                0
            },
        }
    });
    let mut sharing: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for procedure in &*compiled.procedures {
        class_of(procedure)
            .into_iter()
            .for_each(|class| sharing.entry(class).or_default().push(procedure.name.to_string()));
    }
    let classes = sharing.into_iter().map(|(class, procedures)| {
        let class = plan.classes()[class];
        AStackUse { bytes: class.size, count: class.count, procedures }
    });
    let Footprint { channel, astacks, kept_segments } = compiled.footprint();
    let values =
        compiled.procedures.iter().map(|procedure| procedure.limits.values).max().unwrap_or(0);
    let Quotas { calls, client, all, .. } = Quotas::default().with_values(values);
    Explained {
        interface: interface.id.clone(),
        procedures: rows.collect(),
        astacks: classes.collect(),
        client_bytes: ClientMemory { channel, astacks_of_a_binding: astacks, kept_segments },
        server_quotas: ServerMemory {
            calls,
            stacks_bytes: calls.saturating_mul(upcall::thread::DEFAULT_WORK_STACK_SIZE),
            client_objects: client.objects,
            client_mapped_bytes: client.bytes,
            client_results_bytes: client.results,
            client_values_bytes: client.values,
            client_unfilled_bytes: client.unfilled,
            all_objects: all.objects,
            all_mapped_bytes: all.bytes,
            all_results_bytes: all.results,
            all_values_bytes: all.values,
            all_unfilled_bytes: all.unfilled,
        },
    }
}

/// The copies of each parameter, `name A` or `name AE`, and of the result, `F`.
fn copies(model: &Model, procedure: &model::ProcedureDefinition) -> String {
    let param = |param: &model::Param| {
        // The server's stub copies and checks every value that it interprets.
        format!("{} {}", param.name, if model.is_used_in_place(param) { "A" } else { "AE" })
    };
    let mut all: Vec<_> = procedure.params.iter().map(param).collect();
    all.extend(procedure.result.iter().map(|_| "result F".to_string()));
    all.join(", ")
}

fn as_text(explained: &Explained) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{STRONG}{}{STRONG:#}", explained.interface);
    procedures_as_text(&mut out, explained);
    limits_as_text(&mut out, explained);
    out
}

fn procedures_as_text(out: &mut String, explained: &Explained) {
    let heads = ["procedure", "arguments", "results", "travels in", "copies"].map(String::from);
    let cells: Vec<[String; 5]> = explained.procedures.iter().map(cells).collect();
    let columns = Columns::new(cells.iter().chain([&heads]), [false; 5]);
    let _ = writeln!(out, "  {FAINT}{}{FAINT:#}", columns.line(&heads));
    for row in &cells {
        let _ = writeln!(out, "  {}", columns.line(row));
    }
    for class in &explained.astacks {
        let _ = writeln!(
            out,
            "  {} A-stacks of {}: {}",
            class.count,
            size(class.bytes.into()),
            class.procedures.join(", ")
        );
    }
    let mut limited: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for row in explained.procedures.iter().filter(|row| row.values_bytes > 0) {
        limited.entry(row.values_bytes).or_default().push(&row.procedure);
    }
    for (bytes, procedures) in limited {
        let _ = writeln!(
            out,
            "  at most {} of values in the server for one call: {}",
            size(bytes),
            procedures.join(", ")
        );
    }
}

/// The memory of a binding, of a client and of a server.
fn limits_as_text(out: &mut String, explained: &Explained) {
    let ClientMemory { channel, astacks_of_a_binding, kept_segments } = explained.client_bytes;
    let memory = [astacks_of_a_binding, channel, kept_segments].map(|bytes| size(bytes as u64));
    let server = &explained.server_quotas;
    let held = |objects: usize, bytes: [usize; 4]| {
        let [mapped, results, values, unfilled] = bytes.map(|bytes| size(bytes as u64));
        format!(
            "{objects} objects, {mapped} mapped, {unfilled} of it without pages, {results} of \
             results not fetched, {values} of values"
        )
    };
    let lines = [
        ("a binding", format!("{} of A-stacks, address space until it is used", memory[0])),
        (
            "a client",
            format!(
                "{} for the channel, once for 64 bindings; at most {} of segments kept for later",
                memory[1], memory[2]
            ),
        ),
        (
            "a server",
            format!(
                "at most {} calls at once, {} of stacks, address space until it is used",
                server.calls,
                size(server.stacks_bytes as u64)
            ),
        ),
        (
            "  one client",
            held(
                server.client_objects,
                [
                    server.client_mapped_bytes,
                    server.client_results_bytes,
                    server.client_values_bytes,
                    server.client_unfilled_bytes,
                ],
            ),
        ),
        (
            "  all clients",
            held(
                server.all_objects,
                [
                    server.all_mapped_bytes,
                    server.all_results_bytes,
                    server.all_values_bytes,
                    server.all_unfilled_bytes,
                ],
            ),
        ),
    ];
    for (whose, what) in lines {
        let _ = writeln!(out, "  {whose:13} {what}");
    }
}

fn cells(row: &ProcedureRow) -> [String; 5] {
    let travels = match row.travels {
        Travels::Slot => "one line".to_string(),
        Travels::AStack(bytes) => format!("A-stack of {}", size(bytes.into())),
    };
    [row.procedure.clone(), block(&row.arguments), block(&row.results), travels, row.copies.clone()]
}

/// `16 B + 1 KiB, at most 2 GiB`: the fixed part, the room for more, and the maximum.
fn block(block: &BlockSize) -> String {
    let fixed = size(block.fixed.into());
    match block.tail {
        0 => fixed,
        tail if u64::from(tail) + u64::from(block.fixed) >= block.most.next_multiple_of(8) => {
            format!("{fixed} + {}", size(tail.into()))
        }
        tail => format!("{fixed} + {}, at most {}", size(tail.into()), size(block.most)),
    }
}

const _: () = assert!(INLINE == 48, "the help says so");

#[cfg(test)]
mod tests {
    use super::*;

    /// The explanation is of the interface that a program compiled from the same file has.
    #[test]
    fn the_compiled_interface_is_the_one_that_is_explained() {
        let model =
            upcall_idl::load(concat!(env!("CARGO_MANIFEST_DIR"), "/src/wit/tests.wit")).unwrap();
        let (explained, compiled) =
            (interface_of(&model.interfaces[0]), &crate::compiled::tests::INTERFACE);
        assert_eq!(explained.plan(), compiled.plan());
        assert_eq!(explained.footprint(), compiled.footprint());
        for (explained, compiled) in explained.procedures.iter().zip(&*compiled.procedures) {
            assert_eq!(
                (explained.args, explained.results, explained.calls),
                (compiled.args, compiled.results, compiled.calls)
            );
            assert_eq!((explained.hash, explained.limits), (compiled.hash, compiled.limits));
        }
    }
}
