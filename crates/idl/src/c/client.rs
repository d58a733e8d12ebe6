//! The client of an interface, and of its resources.

use super::names::{parameter, snake};
use super::{CGenerator, CSide};
use crate::model::{Param, ProcedureDefinition, ProcedureKind, Type, TypeBody, TypeId};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Number of bytes of values that fit in the message itself.
const INLINE: u64 = 48;

/// Size in bytes above which a fixed part is allocated on the heap instead of the stack.
const LARGE: u64 = 16 << 10;

/// The names of the functions that a resource has besides its procedures.
pub(super) struct ResourceNames {
    pub(super) drop: String,
    served_new: String,
    served_value: String,
    served_drop: String,
}

/// How C passes an argument.
pub(super) enum CPassing {
    Value,
    Pointer,
}

impl CGenerator<'_> {
    pub(super) fn name_resource(&mut self, id: TypeId) {
        let def = self.model.def(id);
        let (prefix, name) = (self.prefixes[def.interface].clone(), snake(&def.name));
        let names = ResourceNames {
            drop: self.names.take(format!("{prefix}_{name}_drop")),
            served_new: self.names.take(format!("{prefix}_served_{name}_new")),
            served_value: self.names.take(format!("{prefix}_served_{name}_value")),
            served_drop: self.names.take(format!("{prefix}_served_{name}_drop")),
        };
        self.resources.insert(id, names);
    }

    pub(super) fn pass(&self, ty: &Type) -> CPassing {
        match self.model.resolve(ty) {
            Type::FixedList(..) | Type::Option(_) | Type::Result(..) | Type::Tuple(_) => {
                CPassing::Pointer
            }
            Type::Named(id) => match self.model.def(*id).shape {
                TypeBody::Record(_) | TypeBody::Variant(_) => CPassing::Pointer,
                _ => CPassing::Value,
            },
            _ => CPassing::Value,
        }
    }

    /// Declares a parameter of a client's or a server's function.
    pub(super) fn declaration(
        &mut self,
        ty: &Type,
        side: CSide,
        home: usize,
        name: &str,
    ) -> String {
        match self.pass(ty) {
            CPassing::Value => self.variable(ty, side, home, name),
            CPassing::Pointer => {
                format!("const {}", self.variable(ty, side, home, &format!("*{name}")))
            }
        }
    }

    pub(super) fn client(&mut self, index: usize) {
        let (interface, prefix) = (self.interface(index), self.prefixes[index].clone());
        let client = self.names.take(format!("{prefix}_client_t"));
        let bind = self.names.take(format!("{prefix}_bind"));
        let expecting = self.names.take(format!("{prefix}_bind_expecting"));
        let waiting = self.names.take(format!("{prefix}_bind_wait"));
        let on = self.names.take(format!("{prefix}_bind_on"));
        let unbind = self.names.take(format!("{prefix}_unbind"));
        let base = self.names.take(format!("{prefix}_base"));
        let of = self.names.take(format!("{prefix}_of"));
        let from = self.names.take(format!("{prefix}_from"));
        let about = self.docs(interface.docs.as_deref(), &interface.id, "");
        let _ = writeln!(
            self.functions,
            "/* ---- {} ---- */\n\n{about}typedef struct {client} {client};\n\n\
             /* Binds to the server that exports the interface as `name`. NULL: no such server, \
             not permitted, or another version of a procedure. */\n\
             {client} *{bind}(const char *name, upcall_error *error);\n\
             /* The same to a server that `accepts` accepts, in place of one of this user or \
             root. NULL there: as {bind}. */\n\
             {client} *{expecting}(const char *name, const upcall_accepts *accepts, upcall_error \
             *error);\n\
             /* Waits for at most `nanoseconds` while no server serves `name`, and binds. \
             `accepts` may be NULL. */\n\
             {client} *{waiting}(const char *name, const upcall_accepts *accepts, uint64_t \
             nanoseconds,\n    upcall_error *error);\n\
             /* Binds on these terms; NULL there: as {bind}. */\n\
             {client} *{on}(const char *name, const upcall_bind_terms *terms, upcall_error \
             *error);\n\
             /* Gives the client up; NULL is allowed. */\n\
             static inline void {unbind}({client} *client) {{ upcall_client_free((upcall_client \
             *)client); }}\n\
             /* For upcall_client_set_.. and upcall_client_copy, and back. */\n\
             static inline upcall_client *{base}(const {client} *client) {{ return (upcall_client \
             *)(uintptr_t)client; }}\n\
             static inline {client} *{of}(upcall_client *client) {{ return ({client} *)client; }}\n\
             /* Another client, by way of one whose interface carries this one. */\n\
             {client} *{from}(const upcall_client *carrier, upcall_error *error);\n",
            interface.id
        );
        let id = super::literal(&interface.id);
        let shared = self.linkage(index);
        let _ = writeln!(
            self.bodies,
            "{shared}{client} *{bind}(const char *name, upcall_error *error) {{\n    return \
            ({client} *)upcall_bind(name, &interface_{prefix}, error);\n}}\n\n\
             {shared}{client} *{expecting}(const char *name, const upcall_accepts *accepts, \
             upcall_error *error) {{\n    return ({client} *)upcall_bind_expecting(name, \
             &interface_{prefix}, accepts, error);\n}}\n\n\
             {shared}{client} *{waiting}(const char *name, const upcall_accepts *accepts, \
             uint64_t nanoseconds,\n    upcall_error *error) {{\n    \
             return ({client} *)upcall_bind_wait(name, &interface_{prefix}, accepts, nanoseconds, \
             error);\n}}\n\n\
             {shared}{client} *{on}(const char *name, const upcall_bind_terms *terms, \
             upcall_error *error) {{\n    return ({client} *)upcall_bind_on(name, \
             &interface_{prefix}, terms, error);\n}}\n\n\
             {shared}{client} *{from}(const upcall_client *carrier, upcall_error *error) {{\n    \
             return ({client} *)upcall_client_part(carrier, {id}, error);\n}}\n"
        );
        for id in self.resources_of(index) {
            self.resource(id, &prefix);
        }
        for (number, procedure) in interface.procedures.iter().enumerate() {
            self.procedure(index, number, procedure, &client);
        }
    }

    fn resource(&mut self, id: TypeId, prefix: &str) {
        let (client, served) =
            (self.named[&(id, CSide::Client)].clone(), self.named[&(id, CSide::Server)].clone());
        let name = &self.model.def(id).name;
        let ResourceNames { drop, served_new, served_value, served_drop } = &self.resources[&id];
        let _ = writeln!(
            self.functions,
            "/* Gives a `{name}` of {prefix} up, so that the server drops it; NULL is allowed. */\n\
             static inline void {drop}({client} *resource) {{ \
             upcall_resource_drop((upcall_resource *)resource); }}\n\
             /* In a server: an object to give away, with what the procedures get as `self`, and \
             what is called once when nobody holds it any more, on any thread; `drop` may be \
             NULL. */\n\
             {served} *{served_new}(void *value, void (*drop)(void *value));\n\
             /* The value of an object that was given to the server. */\n\
             static inline void *{served_value}(const {served} *object) {{ return \
             upcall_object_value((const upcall_object *)object); }}\n\
             /* Gives up an object that the server holds. */\n\
             static inline void {served_drop}({served} *object) {{ \
             upcall_object_drop((upcall_object *)object); }}\n"
        );
        let (served_new, kind) = (served_new.clone(), self.kind(id));
        let shared = self.linkage(self.model.def(id).interface);
        let _ = writeln!(
            self.bodies,
            "{shared}{served} *{served_new}(void *value, void (*drop)(void *value)) {{\n    \
            return ({served} *)upcall_object_new(&{kind}, value, drop);\n}}\n"
        );
    }

    fn procedure(
        &mut self,
        index: usize,
        number: usize,
        procedure: &ProcedureDefinition,
        client: &str,
    ) {
        let prefix = self.prefixes[index].clone();
        let name = format!("{prefix}_{}", self.procedure_name(procedure));
        let name = self.names.take(name);
        let method = matches!(procedure.kind, ProcedureKind::Method(_));
        let mut params = Vec::new();
        let mut values = Vec::new();
        for (position, param) in procedure.params.iter().enumerate() {
            let (declared, value) = if method && position == 0 {
                (self.declaration(&param.ty, CSide::Client, index, "self"), "self".to_owned())
            } else {
                let name = parameter(&param.name);
                let value = if matches!(self.pass(&param.ty), CPassing::Pointer) {
                    format!("(*{name})")
                } else {
                    name.clone()
                };
                (self.declaration(&param.ty, CSide::Client, index, &name), value)
            };
            params.push(declared);
            values.push(value);
        }
        let on = if method {
            "upcall_resource_client((const upcall_resource *)self)".to_owned()
        } else {
            params.insert(0, format!("const {client} *client"));
            "(const upcall_client *)client".to_owned()
        };
        if let Some(ty) = &procedure.result {
            params.push(self.variable(ty, CSide::Client, index, "*result"));
        }
        params.push("upcall_error *error".into());
        let head = format!("upcall_status {name}({})", params.join(", "));
        let docs = self.docs(procedure.docs.as_deref(), &procedure.signature, "");
        let mut frees = String::new();
        if let Some(ty) = procedure.result.clone().filter(|ty| self.owns(ty)) {
            // Generates the function for callers, so its declaration precedes the procedure's.
            frees = self.free(&ty, index, "(*result)");
        }
        let note = if frees.is_empty() {
            String::new()
        } else {
            let call = frees.replace("&(*result)", "result").replace("(*result)", "*result");
            format!("/* The result is freed by `{}`. */\n", call.trim_end_matches(';'))
        };
        let _ = writeln!(self.functions, "{docs}{note}{head};");
        let holds = procedure
            .params
            .iter()
            .enumerate()
            .any(|(at, param)| !(method && at == 0) && self.model.holds(&param.ty).any());
        let words = !holds
            && procedure.args.fixed
            && procedure.args.size <= INLINE
            && procedure.results.fixed
            && procedure.results.size <= INLINE
            && !procedure.result.as_ref().is_some_and(|ty| self.model.holds(ty).any());
        let body = if words {
            self.by_words(index, number, procedure, &on, &values)
        } else {
            self.by_block((index, number), procedure, &on, &values, &name)
        };
        let shared = self.linkage(index);
        let _ = writeln!(self.bodies, "{shared}{head} {{\n{body}}}\n");
    }

    /// Generates the body of a call whose values all fit in the message.
    fn by_words(
        &mut self,
        index: usize,
        number: usize,
        procedure: &ProcedureDefinition,
        on: &str,
        values: &[String],
    ) -> String {
        // The call does not read bytes that were never written. But the padding between arguments
        // is sent, and a server may answer with fewer bytes than it should.
        let zero = if procedure.args.size.max(procedure.results.size) > 8 { " = {0}" } else { "" };
        let mut body =
            format!("    uint64_t words_[UPCALL_WORDS]{zero};\n    upcall_status status_;\n");
        let method = matches!(procedure.kind, ProcedureKind::Method(_));
        let whole = if method { None } else { self.whole_words(procedure, values) };
        if zero.is_empty() && whole.as_ref().is_none_or(Vec::is_empty) {
            body.push_str("    words_[0] = 0;\n");
        }
        let written = whole.unwrap_or_else(|| {
            let put = |(position, (param, value)): (usize, (&Param, &String))| {
                if method && position == 0 {
                    return "words_[0] = upcall_resource_number((const upcall_resource *)self);"
                        .to_owned();
                }
                let place = format!("(uint8_t *)words_ + {}", param.offset);
                self.put(&param.ty, CSide::Client, index, (&place, value), "NULL")
            };
            procedure.params.iter().zip(values).enumerate().map(put).collect()
        });
        for statement in written {
            let _ = writeln!(body, "    {statement}");
        }
        let _ = writeln!(
            body,
            "    status_ = upcall_invoke_words({on}, {number}, words_, {}, error);",
            procedure.args.size
        );
        if let Some(ty) = &procedure.result {
            let get = self.get(
                ty,
                CSide::Client,
                index,
                ("(const uint8_t *)words_", "(*result)"),
                ("NULL", "return upcall_bad_reply(error)"),
            );
            let _ = writeln!(body, "    if (status_ == UPCALL_OK) {{\n        {get}\n    }}");
        }
        body.push_str("    return status_;\n");
        body
    }

    /// Statements that write all-numeric arguments, one whole word at a time. Parts that are
    /// written separately must leave the processor's store buffer before they can be read as one
    /// word.
    fn whole_words(
        &self,
        procedure: &ProcedureDefinition,
        values: &[String],
    ) -> Option<Vec<String>> {
        let mut words = BTreeMap::<u64, Vec<String>>::new();
        for (param, value) in procedure.params.iter().zip(values) {
            let (number, shift) = (self.number(&param.ty, value)?, param.offset % 8 * 8);
            let part = if shift == 0 {
                format!("(uint64_t)({number})")
            } else {
                format!("(uint64_t)({number}) << {shift}")
            };
            words.entry(param.offset / 8).or_default().push(part);
        }
        Some(
            words
                .into_iter()
                .map(|(at, parts)| format!("words_[{at}] = {};", parts.join(" | ")))
                .collect(),
        )
    }

    fn by_block(
        &mut self,
        (index, number): (usize, usize),
        procedure: &ProcedureDefinition,
        on: &str,
        values: &[String],
        name: &str,
    ) -> String {
        let prefix = self.prefixes[index].clone();
        let size = procedure.args.size;
        let (mut read, mut result, mut sized, mut late) = ("NULL".to_owned(), "NULL", "0", false);
        if let Some(ty) = &procedure.result {
            read = self.names.take(format!("read_{name}"));
            (result, sized, late) = ("result", "sizeof *result", self.model.holds(ty).owned);
            let block = self.fixed("const", "fixed_", procedure.results.size, "false");
            let variable = self.variable(ty, CSide::Client, index, "*result");
            let pointer = variable.trim_end_matches("result").to_owned();
            let get =
                self.get(ty, CSide::Client, index, ("fixed_", "(*result)"), ("r_", "goto bad_"));
            let (bytes, free) = (
                procedure.results.size,
                if procedure.results.size > LARGE { "    free(fixed_);\n" } else { "" },
            );
            let bad = if get.contains("goto") || bytes > 0 {
                format!("bad_:\n{free}    return false;\n")
            } else {
                String::new()
            };
            let _ = writeln!(
                self.bodies,
                "static bool {read}(upcall_reader *r_, void *result_) {{\n{block}    {variable} = \
                ({pointer})result_;\n    if (!upcall_read(r_, 0, fixed_, {bytes})) goto \
                bad_;\n    {get}\n{free}    return true;\n{bad}}}\n"
            );
        }
        let mut body = self.fixed(
            "zero",
            "args_",
            size,
            "upcall_misuse(error, \"no memory for the arguments\")",
        );
        body.push_str("    upcall_writer w_;\n");
        if size > LARGE {
            body.push_str("    upcall_status status_;\n");
        }
        let _ = writeln!(
            body,
            "    upcall_write_begin(&w_, args_, {size}, &procedures_{prefix}[{number}], {on});"
        );
        for (param, value) in procedure.params.iter().zip(values) {
            let place = if param.offset == 0 {
                "args_".to_owned()
            } else {
                format!("args_ + {}", param.offset)
            };
            let code = self.put(&param.ty, CSide::Client, index, (&place, value), "&w_");
            let _ = writeln!(body, "    {code}");
        }
        let call =
            format!("upcall_invoke({on}, {number}, &w_, {read}, {result}, {sized}, {late}, error)");
        if size > LARGE {
            let _ = writeln!(body, "    status_ = {call};\n    free(args_);\n    return status_;");
        } else {
            let _ = writeln!(body, "    return {call};");
        }
        body
    }

    /// Declares a buffer for a fixed part.
    pub(super) fn fixed(&self, what: &str, name: &str, size: u64, otherwise: &str) -> String {
        if size > LARGE {
            return format!(
                "    uint8_t *{name} = (uint8_t *)calloc(1, {size});\n    if ({name} \
                == NULL) return {otherwise};\n"
            )
            .replace("return ;", "return;");
        }
        let zero = if what == "zero" { " = {0}" } else { "" };
        format!("    uint8_t {name}[{}]{zero};\n", size.max(1))
    }
}
