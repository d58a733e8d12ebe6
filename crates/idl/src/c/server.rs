//! The server: the struct of functions that a program fills in, and the dispatcher that decodes
//! calls.

use super::client::CPassing;
use super::names::{NameScope, parameter, snake};
use super::{CGenerator, CSide};
use crate::model::{ProcedureDefinition, ProcedureKind, Type};
use std::fmt::Write;

/// How a server gets an argument.
enum ArgumentForm {
    /// A `list<u8>` that is a parameter by itself: a view.
    Bytes,
    Value,
}

/// The switch over the procedures' numbers, of which `arms` has one case each.
fn switch(arms: &str) -> String {
    if arms.is_empty() {
        "    (void)functions_;\n    upcall_call_fail(call_, \"there is no such procedure\");\n"
            .to_owned()
    } else {
        format!(
            "    switch (number_) {{\n{arms}        default: upcall_call_fail(call_, \"there \
                is no such procedure\"); break;\n    }}\n"
        )
    }
}

/// The check that member `name` of the struct `server` is set. `has` says what the interface has,
/// and `set` what belongs into the member.
fn null_check(server: &str, name: &str, has: &str, set: &str) -> String {
    format!(
        "    if (f_->{name} == NULL) return upcall_misuse(error_, \"the interface {has}: set \
        `.{name}` of the {server} to its {set}\");\n"
    )
}

/// Dispatches calls of carried interfaces to their own functions. Each of `parts` has its member,
/// its prefix, the number of its first procedure, and its number of procedures.
fn carried(server: &str, parts: &[(String, String, usize, usize)]) -> String {
    let mut carried = String::new();
    for (name, other, first, count) in parts {
        if *count > 0 {
            let _ = writeln!(
                carried,
                "    if (number_ >= {first} && number_ < {}) {{\n        dispatch_{other}(((const \
                {server} *)functions_)->{name}, number_ - {first}, call_);\n        return;\n    \
                }}",
                first + count
            );
        }
    }
    carried
}

/// The code that takes a procedure's parameters from a call.
struct ParameterCode {
    /// Declarations of the variables that hold the parameters.
    head: String,
    /// Statements that read the parameters; those that are given away come last.
    gets: String,
    late: String,
    /// The arguments that the procedure is called with.
    arguments: Vec<String>,
}

impl CGenerator<'_> {
    fn taken(&self, ty: &Type) -> ArgumentForm {
        match self.model.resolve(ty) {
            Type::List(t) if *self.model.resolve(t) == Type::U8 => ArgumentForm::Bytes,
            _ => ArgumentForm::Value,
        }
    }

    pub(super) fn server(&mut self, index: usize) {
        let (interface, prefix) = (self.interface(index), self.prefixes[index].clone());
        let server = self.names.take(format!("{prefix}_server_t"));
        let export = self.names.take(format!("{prefix}_export"));
        let mut scope = NameScope::default();
        scope.take("context".into());
        let mut members =
            String::from("    /* What every function gets first. */\n    void *context;\n");
        let mut checks = String::new();
        let mut parts = Vec::new();
        for part in &interface.parts {
            let other = self.prefixes[part.interface].clone();
            let name = scope.take(super::names::member(&other));
            let _ = writeln!(
                members,
                "    /* The functions of {}, which this one carries. */",
                self.interface(part.interface).id
            );
            let _ = writeln!(members, "    const {other}_server_t *{name};");
            let has = format!("carries {}", self.interface(part.interface).id);
            checks.push_str(&null_check(&server, &name, &has, "functions"));
            let _ = writeln!(
                checks,
                "    if (check_{other}(f_->{name}, error_) != UPCALL_OK) return UPCALL_MISUSE;"
            );
            parts.push((name, other, part.first, self.interface(part.interface).procedures.len()));
        }
        let mut arms = String::new();
        for (number, procedure) in interface.procedures.iter().enumerate() {
            let name =
                scope.take(super::names::member(&self.procedure_name(procedure).replace('_', "-")));
            members.push_str(&self.docs(procedure.docs.as_deref(), &procedure.signature, "    "));
            let params = self.server_params(index, procedure);
            let _ = writeln!(members, "    void (*{name})({});", params.join(", "));
            let has = format!("has the procedure `{}`", procedure.name);
            checks.push_str(&null_check(&server, &name, &has, "function"));
            let serve = self.serve(index, number, procedure, &server, &name);
            let _ = writeln!(
                arms,
                "        case {number}: {serve}((const {server} *)functions_, call_); break;"
            );
        }
        let carried = carried(&server, &parts);
        let _ = writeln!(
            self.functions,
            "\n/*\n * A server of {}. Functions are called by any of the server's threads. \
            Results are written to `result`, which is zeroed before; what they point\n * to must \
            live until the call has been answered: arguments do, what upcall_call_alloc gives, \
            and what never goes away. Values of resources and `upcall_bytes` are good\n * until \
            the function returns; objects that are given to it (`served`) until it gives them up \
            or away.\n */\ntypedef struct {server} {{\n{members}}} {server};\n\n\
             /* Exports the interface as `name`: ASCII letters, digits, dots, underscores and \
             hyphens, at most 64. `functions` must live as long as the server; none may be NULL. \
             */\n\
             upcall_status {export}(upcall_server *server, const char *name, const {server} \
             *functions, upcall_error *error);\n",
            interface.id
        );
        let switch = switch(&arms);
        let shared = self.linkage(index);
        let _ = writeln!(
            self.bodies,
            "static void dispatch_{prefix}(const void *functions_, uint32_t number_, upcall_call \
            *call_) {{\n    (void)number_;\n{carried}{switch}}}\n\n\
             static upcall_status check_{prefix}(const {server} *f_, upcall_error *error_) \
             {{\n    (void)error_;\n    (void)f_;\n{checks}    return UPCALL_OK;\n}}\n\n\
             {shared}upcall_status {export}(upcall_server *server, const char *name, const \
             {server} *functions, upcall_error *error) {{\n\
             \x20   if (functions != NULL && check_{prefix}(functions, error) != UPCALL_OK) \
             return UPCALL_MISUSE;\n\
             \x20   return upcall_server_export(server, name, &interface_{prefix}, functions, \
             dispatch_{prefix}, error);\n}}\n"
        );
    }

    fn server_params(&mut self, index: usize, procedure: &ProcedureDefinition) -> Vec<String> {
        let mut params = vec!["void *context".to_owned(), "upcall_call *call".to_owned()];
        for (position, param) in procedure.params.iter().enumerate() {
            if matches!(procedure.kind, ProcedureKind::Method(_)) && position == 0 {
                params.push("void *self".into());
                continue;
            }
            let name = parameter(&param.name);
            params.push(match self.taken(&param.ty) {
                ArgumentForm::Bytes => format!("const upcall_bytes *{name}"),
                ArgumentForm::Value => self.declaration(&param.ty, CSide::Server, index, &name),
            });
        }
        if let Some(ty) = &procedure.result {
            params.push(self.variable(ty, CSide::Server, index, "*result"));
        }
        params
    }

    /// Declares a procedure's parameters, and reads them.
    fn arguments(&mut self, index: usize, procedure: &ProcedureDefinition) -> ParameterCode {
        let (mut head, mut gets, mut late) = (String::new(), String::new(), String::new());
        let mut arguments = vec!["f_->context".to_owned(), "call_".to_owned()];
        for (position, param) in procedure.params.iter().enumerate() {
            let method = matches!(procedure.kind, ProcedureKind::Method(_)) && position == 0;
            let variable =
                if method { "self_".to_owned() } else { format!("{}_", parameter(&param.name)) };
            let variable = format!("a{position}_{variable}");
            let place = if param.offset == 0 {
                "fixed_".to_owned()
            } else {
                format!("fixed_ + {}", param.offset)
            };
            let (declared, get) = match self.taken(&param.ty) {
                ArgumentForm::Bytes => (
                    format!("const upcall_bytes *{variable} = NULL"),
                    format!("if (!upcall_read_bytes(r_, {place}, &{variable})) goto end_;"),
                ),
                ArgumentForm::Value => {
                    let get = self.get(
                        &param.ty,
                        CSide::Server,
                        index,
                        (&place, &variable),
                        ("r_", "goto end_"),
                    );
                    (self.variable(&param.ty, CSide::Server, index, &variable), get)
                }
            };
            let _ = writeln!(head, "    {declared};");
            // Handles that are given away are taken last, so that none is lost if a later parameter
            // is malformed.
            let _ = writeln!(
                if self.model.holds(&param.ty).owned { &mut late } else { &mut gets },
                "    {get}"
            );
            arguments.push(match self.pass(&param.ty) {
                CPassing::Pointer => format!("&{variable}"),
                CPassing::Value => variable,
            });
        }
        ParameterCode { head, gets, late, arguments }
    }

    /// Writes the function that decodes and serves the calls of one procedure.
    fn serve(
        &mut self,
        index: usize,
        number: usize,
        procedure: &ProcedureDefinition,
        server: &str,
        member: &str,
    ) -> String {
        let prefix = self.prefixes[index].clone();
        let name = self.names.take(format!("serve_{prefix}_{}", snake(member)));
        let ParameterCode { mut head, gets, late, mut arguments } =
            self.arguments(index, procedure);
        if let Some(ty) = &procedure.result {
            let result = self.variable(ty, CSide::Server, index, "result_");
            let _ = writeln!(head, "    {result};");
            arguments.push("&result_".into());
        }
        let (args, results) = (procedure.args.size, procedure.results.size);
        let mut body = String::new();
        if args > 0 {
            let _ = write!(
                body,
                "    upcall_reader *r_ = upcall_call_reader(call_);\n{}",
                self.fixed("", "fixed_", args, "")
            );
        }
        let _ = write!(
            body,
            "{}    upcall_writer w_;\n{head}",
            self.fixed("zero", "results_", results, "")
        );
        if procedure.result.is_some() {
            body.push_str("    memset(&result_, 0, sizeof result_);\n");
        }
        if args > 0 {
            let _ = write!(
                body,
                "    if (!upcall_read(r_, 0, fixed_, {args})) goto end_;\n{gets}{late}    \
                upcall_call_accept(call_);\n"
            );
        }
        let _ = writeln!(
            body,
            "    f_->{member}({});\n    if (upcall_call_failed(call_)) goto end_;",
            arguments.join(", ")
        );
        let _ = writeln!(
            body,
            "    upcall_write_begin(&w_, results_, {results}, &procedures_{prefix}[{number}], \
            NULL);"
        );
        if let Some(ty) = &procedure.result {
            let put = self.put(ty, CSide::Server, index, ("results_", "result_"), "&w_");
            let _ = writeln!(body, "    {put}");
        }
        body.push_str("    upcall_call_reply(call_, &w_);\nend_:\n");
        for (name, size) in [("fixed_", args), ("results_", results)] {
            if size > 16 << 10 {
                let _ = writeln!(body, "    free({name});");
            }
        }
        body.push_str("    return;\n");
        let _ = writeln!(
            self.bodies,
            "static void {name}(const {server} *f_, upcall_call *call_) {{\n{body}}}\n"
        );
        name
    }
}
