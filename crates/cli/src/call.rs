//! `upcall call`: calls any procedure of any interface, by the interface's source that the server
//! hands out.

mod advice;
mod argument;
mod failure;
mod result;

use crate::exit::{CommandError, CommandResult, Exit};
use crate::expect::ExpectArgs;
use crate::names::{advise, deadline};
use crate::output::{FAINT, line, plain, print_json, print_raw, println, report};
use argument::{StandardInput, TypedForm};
use serde::Serialize;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use upcall::BindError;
use upcall::directory::{self, Exported};
use upcall::stub::{Binding, Extent, Interface, Limits, Procedure};
use upcall_idl::dynamic::{CallArgument, DynamicInterface, ProcedureOutcome, WitValue};
use upcall_idl::model;

/// Calls a procedure of a server and prints its result.
///
/// Without a procedure, shows the procedures of NAME and how to call each.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = long_help())]
pub struct CallArgs {
    /// Exported name and procedure, with a dot between: `math.add`, `files.file.read`. On another
    /// machine `tcp://HOST:PORT/math.add`.
    #[arg(value_name = "NAME[.PROCEDURE]")]
    target: String,
    /// The arguments; `+` begins the next call of the same session, in which `_` stands for the
    /// resource that was returned last.
    #[arg(allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
    /// Give up after this time, above 0, which covers binding and the first call; each further call
    /// has the whole time. The server continues a call that it has. Without this option a call has
    /// no deadline, and binding has 5 s.
    #[arg(short, long, value_name = "SECONDS", value_parser = deadline)]
    deadline: Option<Duration>,
    #[command(flatten)]
    expect: ExpectArgs,
    /// Print each result as one line of JSON.
    #[arg(long, conflicts_with = "raw")]
    json: bool,
    /// Write the text or the bytes of the last result unchanged, without quotes or a line end.
    #[arg(short, long)]
    raw: bool,
    /// Show the procedures of NAME and how to call each.
    #[arg(long)]
    help_procedures: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall call greeter.greet Ada
  upcall call math.add 2 3
  upcall call files.open etc + file.read _ 0 16
  upcall call --raw files.open @path.txt + file.read _ 0 1000 | wc -c
  upcall call --json math.join '[\"a\", \"b\"]' | jq -r .result.ok
  upcall call tcp://127.0.0.1:7000/math.add 2 3";

const EXITS: &str = "\
Exits with 1 if a procedure returns its `err`, which is printed; the calls after it are not made.
`upcall --help` lists the other exit codes.";

fn long_help() -> String {
    [EXAMPLES, argument::HELP, result::HELP, EXITS].join("\n\n")
}

/// A procedure of a server, for `--help-procedures --json`.
#[derive(Serialize)]
struct ProcedureHelp {
    procedure: String,
    usage: String,
    example: String,
    docs: Option<String>,
}

/// One call of a session: the procedure's name and the arguments as typed.
struct PlannedCall<'a> {
    name: &'a str,
    procedure: &'a model::ProcedureDefinition,
    typed: &'a [String],
}

pub fn run(args: &CallArgs) -> CommandResult {
    let (name, first) = parts(&args.target);
    let mut budget = Budget { left: args.deadline };
    let exported = budget.ask(args, name, exported)?;
    let parsed = DynamicInterface::parse(&exported.interface, &exported.source, &exported.limits);
    let interface = parsed.map_err(|error| CommandError::new(Exit::Mismatch, error))?;
    if first.is_none() && !args.help_procedures && (!args.arguments.is_empty() || args.raw) {
        return Err(CommandError::usage(format_args!(
            "{name:?} names no procedure: type {name}.PROCEDURE; `upcall call {name}` shows the \
             procedures"
        )));
    }
    let Some(first) = first.filter(|_| !args.help_procedures) else {
        return show_procedures(name, &interface, args.json);
    };
    let planned = plan(name, first, &args.arguments, &interface)?;
    check_raw(args, name, &interface, &planned)?;
    // The arguments of all calls are read before the first procedure runs, so that a wrong one
    // changes nothing.
    let mut input = StandardInput::default();
    let mut prepared = Vec::new();
    for (number, call) in planned.iter().enumerate() {
        prepared.push(call.prepare(name, &interface, number > 0, &mut input)?);
    }
    // All procedures are looked up, and bound, before the first one runs. The command binds once
    // and then ends, so what is leaked here is not leaked twice.
    let descriptors: Vec<_> = planned.iter().map(|call| describe(call.procedure)).collect();
    let wanted = Box::leak(Box::new(Interface {
        id: exported.interface.into(),
        procedures: descriptors.into(),
        parts: vec![].into(),
        source: "".into(),
        limits: "".into(),
    }));
    let binding = budget.ask(args, name, |name, expect| bind(name, wanted, expect))?;
    let (mut resource, mut output) = (None::<String>, Ok(()));
    for (number, (call, prepared)) in planned.iter().zip(&mut prepared).enumerate() {
        let block = prepared.block(call, name, &interface, resource.as_deref())?;
        let deadline = if number == 0 { budget.left } else { args.deadline };
        let reply = binding.with_deadline(deadline).call_block(number as u16, &block);
        let reply = reply.map_err(|error| {
            failure::explain(&format!("{name}.{}", call.name), args.deadline, error)
        })?;
        let value = interface.decode_value(call.procedure, &reply)?;
        resource = value.as_ref().and_then(handle).or(resource);
        // The calls go on if the reader of their results has gone.
        if output.is_ok() {
            output = show(args, call, value.as_ref(), number + 1 == planned.len());
        }
        if value.is_some_and(|value| value.outcome() == ProcedureOutcome::Error) {
            return Ok(Exit::Failed);
        }
    }
    output.map(|()| Exit::Done)
}

/// The time that is left for binding and the first call. Reading arguments takes none of it.
struct Budget {
    left: Option<Duration>,
}

impl Budget {
    /// Runs a step that asks the server, for no longer than the time that is left.
    fn ask<T: Send + 'static>(
        &mut self,
        args: &CallArgs,
        name: &str,
        step: impl FnOnce(&str, &ExpectArgs) -> Result<T, BindError> + Send + 'static,
    ) -> Result<T, CommandError> {
        args.expect.check(name)?;
        let Some(left) = self.left else { return step(name, &args.expect).map_err(advise) };
        let start = Instant::now();
        let (sender, answer) = mpsc::channel();
        let (named, expect) = (name.to_string(), args.expect.clone());
        // A server that does not answer holds this thread until the command ends.
        let asks = move || sender.send(step(&named, &expect));
        std::thread::Builder::new().spawn(asks).map_err(no_thread)?;
        let late =
            || BindError::NoAnswer { name: name.into(), after: args.deadline.unwrap_or(left) };
        let answer = answer.recv_timeout(left).unwrap_or_else(|_| Err(late()));
        self.left = Some(left.saturating_sub(start.elapsed()));
        answer.map_err(advise)
    }
}

/// The error for a step with a deadline, if no thread can be started that waits for the server.
fn no_thread(error: std::io::Error) -> CommandError {
    CommandError::new(
        Exit::Refused,
        format_args!(
            "cannot start the thread that --deadline needs: {error}. End other processes of this \
             user, or leave --deadline out"
        ),
    )
}

fn exported(name: &str, expect: &ExpectArgs) -> Result<Exported, BindError> {
    match expect.is_default() {
        true => directory::exported(name),
        false => directory::exported_expecting(name, &*expect.policy()),
    }
}

fn bind(name: &str, wanted: &'static Interface, expect: &ExpectArgs) -> Result<Binding, BindError> {
    match expect.is_default() {
        true => Binding::bind(name, wanted),
        false => Binding::bind_expecting(name, wanted, &*expect.policy()),
    }
}

fn show_procedures(name: &str, interface: &DynamicInterface, json: bool) -> CommandResult {
    let help = interface.interface().bound().map(|procedure| ProcedureHelp {
        procedure: procedure.name.clone(),
        usage: interface.usage(procedure),
        example: advice::example(name, interface, procedure),
        docs: procedure.docs.as_ref().map(|docs| docs.trim().to_string()),
    });
    let help: Vec<_> = help.collect();
    if json {
        print_json(&help)?;
        return Ok(Exit::Done);
    }
    for procedure in help {
        println(format_args!("{name}.{}", line(&procedure.usage)))?;
        if let Some(docs) = &procedure.docs {
            println(format_args!("  {FAINT}{}{FAINT:#}", plain(docs).replace('\n', "\n  ")))?;
        }
        println(format_args!("  {}", line(&procedure.example)))?;
    }
    Ok(Exit::Done)
}

/// Splits what was typed into calls.
fn plan<'a>(
    name: &str,
    first: &'a str,
    arguments: &'a [String],
    interface: &'a DynamicInterface,
) -> Result<Vec<PlannedCall<'a>>, CommandError> {
    let mut calls = arguments.split(|argument| argument == "+");
    let mut planned = vec![(first, calls.next().unwrap_or_default())];
    for call in calls {
        let (procedure, arguments) = call.split_first().ok_or_else(|| {
            CommandError::usage(
                "a `+` has no procedure after it: name the next procedure, as in `upcall call \
                 files.open etc + file.read _ 0 16`",
            )
        })?;
        planned.push((procedure, arguments));
    }
    let look_up = |(procedure, typed): (&'a str, &'a [String])| {
        let found = interface.procedure(procedure);
        let found = found.map_err(|_| advice::no_procedure(name, procedure, interface))?;
        Ok(PlannedCall { name: procedure, procedure: found, typed })
    };
    planned.into_iter().map(look_up).collect()
}

/// Refuses `--raw` for a result that is neither text nor bytes, before anything runs.
fn check_raw(
    args: &CallArgs,
    name: &str,
    interface: &DynamicInterface,
    planned: &[PlannedCall<'_>],
) -> Result<(), CommandError> {
    let Some(last) = planned.last().filter(|_| args.raw) else { return Ok(()) };
    let result = last.procedure.result.as_ref();
    if result.is_some_and(|ty| result::is_raw(interface.model(), ty)) {
        return Ok(());
    }
    let of = result.map_or_else(|| "nothing".into(), |ty| interface.model().wit(ty));
    Err(CommandError::usage(format_args!(
        "--raw writes text and bytes, and {name}.{} returns {of}: leave --raw out, or use --json",
        last.name
    )))
}

/// The arguments of a call, before the first call of the session has run.
struct PreparedCall<'a> {
    arguments: Vec<CallArgument<'a>>,
    /// Indices of the arguments that stand for the last resource.
    awaiting: Vec<usize>,
}

/// The handle that stands for a resource until a call has returned one.
const PLACEHOLDER: &str = "0";

impl<'a> PlannedCall<'a> {
    /// Reads the arguments, and checks that they are values of their types. `follows`: a call
    /// before this one can return the resource that `_` stands for.
    fn prepare(
        &self,
        name: &str,
        interface: &DynamicInterface,
        follows: bool,
        input: &mut StandardInput,
    ) -> Result<PreparedCall<'a>, CommandError> {
        let (params, model) = (&self.procedure.params, interface.model());
        let (mut arguments, mut awaiting) = (Vec::new(), Vec::new());
        let resource = follows.then_some(PLACEHOLDER);
        for (number, (typed, param)) in self.typed.iter().zip(params).enumerate() {
            if typed == "_" && argument::accepts(model, &param.ty) == TypedForm::Handle {
                awaiting.push(number);
            }
            arguments.push(argument::read(model, &param.ty, typed, resource, input)?);
        }
        // Superfluous arguments make the count wrong; their values do not matter.
        let more = self.typed.iter().skip(params.len());
        arguments.extend(more.map(|typed| CallArgument::Wave(typed.as_str().into())));
        self.encode(name, interface, &arguments)?;
        Ok(PreparedCall { arguments, awaiting })
    }

    /// The argument block of the call.
    fn encode(
        &self,
        name: &str,
        interface: &DynamicInterface,
        arguments: &[CallArgument<'_>],
    ) -> Result<Vec<u8>, CommandError> {
        let block = interface.encode_arguments(self.procedure, arguments);
        block.map_err(|error| advice::explain(error, name, interface, self.procedure, self.typed))
    }
}

impl PreparedCall<'_> {
    /// The argument block, with the resource that the last call returned.
    fn block(
        &mut self,
        call: &PlannedCall<'_>,
        name: &str,
        interface: &DynamicInterface,
        resource: Option<&str>,
    ) -> Result<Vec<u8>, CommandError> {
        for &number in &self.awaiting {
            let handle = resource.ok_or_else(argument::no_resource)?;
            self.arguments[number] = CallArgument::Wave(handle.to_string().into());
        }
        call.encode(name, interface, &self.arguments)
    }
}

fn show(
    args: &CallArgs,
    call: &PlannedCall<'_>,
    value: Option<&WitValue<'_>>,
    is_last: bool,
) -> Result<(), CommandError> {
    if args.json {
        return println(result::json_line(call.name, value)?);
    }
    let Some(value) = value else { return Ok(()) };
    if !args.raw {
        return println(result::for_people(value)?);
    }
    match result::raw(value) {
        Some(bytes) if is_last => print_raw(&bytes),
        _ if value.outcome() == ProcedureOutcome::Error => {
            report(format_args!("{} returned {}", call.name, result::for_people(value)?));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The name, and the procedure after its first dot, if there is one. An address before the name has
/// dots of its own.
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

/// The descriptor of a procedure, as a program has it that was compiled from the same source.
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

/// The number of the resource in a result, such as `ok(file(4294967296))`.
fn handle(value: &WitValue<'_>) -> Option<String> {
    match value {
        WitValue::Handle(_, number) => Some(number.to_string()),
        WitValue::Option(Some(value))
        | WitValue::Result(Ok(Some(value)))
        | WitValue::Variant(_, _, Some(value)) => handle(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The interface that `call` makes from a server's source asks for the A-stacks that the
    /// server's list asks for, so that binding takes one exchange.
    #[test]
    fn a_call_by_hand_brings_the_a_stacks_of_a_compiled_program() {
        let compiled = &crate::compiled::tests::INTERFACE;
        let interface =
            DynamicInterface::parse(&compiled.id, &compiled.source, &compiled.limits).unwrap();
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

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: CallArgs,
    }

    /// A server that never answers a binder. Without a deadline the step would not end.
    #[test]
    fn the_deadline_covers_binding() {
        let line = ["call", "--deadline", "0.05", "no-server.greet"];
        let Line { args } = clap::Parser::parse_from(line);
        let (_held, never) = mpsc::channel::<()>();
        let mut budget = Budget { left: args.deadline };
        let bound = budget.ask(&args, "no-server", move |name, _| {
            let _ = never.recv();
            Err::<(), _>(BindError::ServerGone { name: name.into() })
        });
        let error = bound.expect_err("no answer");
        assert!(error.exit() == Exit::Deadline && error.to_string().contains("50ms"), "{error}");
        assert_eq!(budget.left, Some(Duration::ZERO));
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
