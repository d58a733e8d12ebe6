//! `upcall call`: calls any procedure of any interface, by what its server says of it.

use crate::told::{CommandResult, FAINT, line, plain};
use std::process::ExitCode;
use std::time::Duration;
use upcall::directory;
use upcall::stub::{Binding, Extent, Interface, Limits, Procedure};
use upcall_idl::dynamic::ProcedureOutcome;
use upcall_idl::{dynamic, model};

/// The exit code when a procedure returned an error that it declares. 1 stands for a call that
/// failed, 2 for arguments of the command that make no sense.
const DECLARED: u8 = 3;

/// Calls NAME.PROCEDURE with arguments in WAVE, and prints the result in WAVE.
///
/// More calls of the same session follow behind `+`; in them `_` stands for the last resource that
/// was returned.
///
/// Exits with 0 if all procedures did what was asked; with 3 if one returned an error that it
/// declares, `err(...)`, which is printed, and then the calls behind it are not made; with 1 if a
/// call failed.
#[derive(clap::Args)]
#[command(
    after_help = "WAVE writes values as WIT types them: 1, true, 'c', \"text\", [1, 2], {a: 1}, some(1), ok(1).\n\n\
    Examples:\n  upcall call math.add 2 3\n  upcall call files.root\n  \
    upcall call files.open '[101, 116, 99]' + file.read _ 0 16\n  upcall call files --help-procedures\n  \
    upcall call tcp://127.0.0.1:7000/math.add 2 3"
)]
pub struct CallArgs {
    /// The exported name and the procedure, with a dot between: `math.add`, `files.file.read`. On
    /// another machine `tcp://HOST:PORT/math.add`.
    target: String,
    /// The arguments, one WAVE value each; `+` begins the next call.
    #[arg(allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// Give up a call that takes longer; the server goes on with it. Without this a call takes as
    /// long as its server lets it.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    deadline: Option<Duration>,
    /// Show the procedures of NAME and how to call them.
    #[arg(long)]
    help_procedures: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let given = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    given.ok_or_else(|| "give seconds, such as 2 or 0.5".into())
}

pub fn run(args: &CallArgs) -> CommandResult {
    let (name, first) = parts(&args.target);
    let exported = directory::exported(name)?;
    let interface =
        dynamic::DynamicInterface::parse(&exported.interface, &exported.source, &exported.limits)?;
    let Some(first) = first.filter(|_| !args.help_procedures) else {
        for procedure in interface.interface().bound() {
            println!("{name}.{}", line(&interface.usage(procedure)));
            if let Some(docs) = &procedure.docs {
                anstream::println!(
                    "  {FAINT}{}{FAINT:#}",
                    plain(docs.trim()).replace('\n', "\n  ")
                );
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    let mut calls = args.arguments.split(|argument| argument == "+");
    let mut planned = vec![(first, calls.next().unwrap_or_default())];
    for call in calls {
        let (procedure, arguments) =
            call.split_first().ok_or("a `+` without a procedure behind it")?;
        planned.push((procedure, arguments));
    }
    // All of them are looked up, and bound, before the first one runs.
    let procedures =
        planned.iter().map(|(name, _)| interface.procedure(name)).collect::<Result<Vec<_>, _>>()?;
    let descriptors = procedures.iter().map(|procedure| describe(procedure)).collect::<Vec<_>>();
    // One call of this program binds once: the leak ends with it.
    let wanted = Box::leak(Box::new(Interface {
        id: exported.interface.into(),
        procedures: descriptors.into(),
        parts: vec![].into(),
        source: "".into(),
        limits: "".into(),
    }));
    let binding = Binding::bind(name, wanted)?.with_deadline(args.deadline);
    let mut resource = None;
    for (number, (procedure, (_, arguments))) in procedures.iter().zip(&planned).enumerate() {
        let (result, outcome) =
            call(&interface, &binding, number as u16, procedure, arguments, resource.as_deref())?;
        resource = handle(&result).or(resource);
        if !result.is_empty() {
            println!("{}", plain(&result));
        }
        if outcome == ProcedureOutcome::Error {
            return Ok(ExitCode::from(DECLARED));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The name, and the procedure behind its first dot, if there is one. An address before the name
/// has dots of its own.
fn parts(target: &str) -> (&str, Option<&str>) {
    let address = target.find("://").map_or(0, |at| at + 3);
    let name = if address == 0 {
        0
    } else {
        target[address..].find('/').map_or(target.len(), |at| address + at)
    };
    match target[name..].find('.') {
        Some(dot) => (&target[..name + dot], Some(&target[name + dot + 1..])),
        None => (target, None),
    }
}

/// A procedure as a program has it that is compiled from the same source.
pub fn describe(procedure: &model::ProcedureDefinition) -> Procedure {
    let extent = |(fixed, tail): (u64, u32)| Extent {
        fixed: u32::try_from(fixed).unwrap_or(u32::MAX),
        tail,
    };
    let [args, results] = procedure.blocks().map(extent);
    let limits = &procedure.limits;
    Procedure {
        name: procedure.name.clone().into(),
        signature: procedure.signature.clone().into(),
        hash: procedure.hash,
        args,
        results,
        calls: limits.calls,
        limits: Limits { string: limits.string, list: limits.list, values: limits.values },
    }
}

fn call(
    interface: &dynamic::DynamicInterface,
    binding: &Binding,
    number: u16,
    procedure: &model::ProcedureDefinition,
    arguments: &[String],
    resource: Option<&str>,
) -> Result<(String, ProcedureOutcome), Box<dyn std::error::Error>> {
    let texts = arguments.iter().map(|argument| match (argument.as_str(), resource) {
        ("_", Some(handle)) => Ok(handle),
        ("_", None) => Err(format!(
            "`_` in the arguments of {}, but no call before it returned a resource",
            procedure.name
        )),
        (text, _) => Ok(text),
    });
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let block = interface.encode(procedure, &texts)?;
    Ok(interface.decode_outcome(procedure, &binding.call_block(number, &block)?)?)
}

/// The number of the resource in a result: `ok(file(4294967296))`.
fn handle(result: &str) -> Option<String> {
    let inner = &result[result.rfind('(')? + 1..];
    let number = &inner[..inner.find(')')?];
    number.parse::<u64>().ok().map(|number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `call` makes of a server's source needs the A-stacks that its list asks for, so that
    /// binding takes one exchange.
    #[test]
    fn a_call_by_hand_brings_the_a_stacks_of_a_compiled_program() {
        let compiled = &crate::compiled::tests::INTERFACE;
        let interface =
            dynamic::DynamicInterface::parse(&compiled.id, &compiled.source, &compiled.limits)
                .unwrap();
        let described: Vec<_> = interface.interface().bound().map(describe).collect();
        assert_eq!(described.len(), compiled.procedures.len());
        assert!(compiled.procedures.iter().any(|procedure| procedure.astack_bytes() > 0));
        for (described, compiled) in described.iter().zip(&*compiled.procedures) {
            assert_eq!(
                (described.args, described.results, described.calls),
                (compiled.args, compiled.results, compiled.calls)
            );
            assert_eq!((described.hash, described.limits), (compiled.hash, compiled.limits));
        }
    }

    #[test]
    fn the_procedure_is_behind_the_name() {
        for (target, name, procedure) in [
            ("math.add", "math", Some("add")),
            ("files.file.read", "files", Some("file.read")),
            ("files", "files", None),
            ("tcp://10.0.0.1:7000/math.add", "tcp://10.0.0.1:7000/math", Some("add")),
            ("tcp://[::1]:7000/files.file.read", "tcp://[::1]:7000/files", Some("file.read")),
            ("tcp://10.0.0.1:7000/math", "tcp://10.0.0.1:7000/math", None),
            ("tcp://10.0.0.1:7000", "tcp://10.0.0.1:7000", None),
        ] {
            assert_eq!(parts(target), (name, procedure));
        }
    }
}
