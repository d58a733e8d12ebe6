//! The server: the traits to implement, the dispatcher that decodes calls, and `export`.

use super::names::snake;
use super::{Module, Passing, RustSide, emit};
use crate::model::{ProcedureDefinition, ProcedureKind, Type, TypeId};

impl Module<'_> {
    pub(super) fn server(&mut self) {
        if self.written.is_none() {
            self.traits();
        }
        emit!(self, "/// `server`, ready to be served under a name.");
        emit!(
            self,
            "#[must_use] pub fn export(server: impl {}) -> ::upcall::Export {{",
            self.server_name()
        );
        emit!(self, "::upcall::Export::new(&INTERFACE, link::Server(server)) }}");
        self.dispatcher();
    }

    fn traits(&mut self) {
        let id = &self.interface().id;
        emit!(self, "/// A server of `{id}`. Calls come from many threads at once.");
        if !self.interface().parts.is_empty() {
            emit!(
                self,
                "///\n/// Its clients call the interfaces that it carries through the same \
                binding: it implements those too."
            );
        }
        let parts: String = self
            .interface()
            .parts
            .iter()
            .map(|part| format!("super::{}::Serve + ", self.modules[part.interface]))
            .collect();
        emit!(
            self,
            "pub trait Serve: {parts}::core::marker::Send + ::core::marker::Sync + 'static {{"
        );
        for (_, procedure) in self.procedures() {
            if !matches!(procedure.kind, ProcedureKind::Method(_)) {
                self.required_method(procedure);
            }
        }
        emit!(self, "}}");
        for id in self.resources() {
            self.resource_trait(id);
        }
    }

    fn resource_trait(&mut self, id: TypeId) {
        let def = self.model.def(id);
        let name = self.trait_name(id);
        emit!(
            self,
            "/// An object behind a handle to `{}`. It is dropped when the client drops the \
            handle, or dies.",
            def.name
        );
        emit!(
            self,
            "pub trait {name}: ::core::any::Any + ::core::marker::Send + ::core::marker::Sync {{"
        );
        for (_, procedure) in self.procedures() {
            if procedure.kind == ProcedureKind::Method(id) {
                self.required_method(procedure);
            }
        }
        emit!(self, "}}");
    }

    fn required_method(&mut self, procedure: &ProcedureDefinition) {
        let mut params = vec!["&self".to_owned()];
        for param in self.params(procedure) {
            params.push(format!(
                "{}: {}",
                snake(&param.name),
                self.param_ty(&param.ty, RustSide::Server)
            ));
        }
        let output = procedure
            .result
            .as_ref()
            .map(|ty| format!(" -> {}", self.ty(ty, RustSide::Server)))
            .unwrap_or_default();
        self.docs(procedure.docs.as_deref(), &format!("`{}`", procedure.signature));
        let name = self.server_method(procedure);
        emit!(self, "fn {name}({}){output};", params.join(", "));
    }

    fn dispatcher(&mut self) {
        let server = self.server_name();
        emit!(self, "impl<S: {server}> stub::Dispatch for link::Server<S> {{");
        emit!(self, "fn dispatch(&self, call: stub::Call<'_>) -> stub::Replied {{");
        let interface = self.interface();
        if interface.parts.is_empty() {
            emit!(self, "run_(&self.0, call.procedure(), call) }} }}");
        } else {
            emit!(self, "match call.procedure() {{");
            let own = interface.procedures.len();
            if own > 0 {
                emit!(self, "number @ 0..{own} => run_(&self.0, number, call),");
            }
            for part in &interface.parts {
                let end = part.first + self.model.interfaces[part.interface].procedures.len();
                if end == part.first {
                    continue;
                }
                let (module, first) = (&self.modules[part.interface], part.first);
                emit!(
                    self,
                    "number @ {first}..{end} => super::{module}::run_(&self.0, number - {first}, \
                    call),"
                );
            }
            emit!(self, "_ => call.unknown(), }} }} }}");
        }
        // Methods are called on objects, so an interface with only methods does not use the server
        // itself.
        let unused = self
            .procedures()
            .all(|(_, procedure)| matches!(procedure.kind, ProcedureKind::Method(_)));
        let name = if unused { "_" } else { "server_" };
        emit!(
            self,
            "#[inline] pub(super) fn run_<S: {server}>({name}: &S, number: u16, call: \
            stub::Call<'_>) -> stub::Replied {{"
        );
        emit!(self, "match number {{");
        for (number, procedure) in self.procedures() {
            self.arm(number, procedure);
        }
        emit!(self, "_ => call.unknown(), }} }}");
    }

    fn arm(&mut self, number: usize, procedure: &ProcedureDefinition) {
        let args = if procedure.params.is_empty() { "_" } else { "args_" };
        emit!(self, "{number} => call.respond(|{args}: &stub::Decoder<'_>| {{");
        let (mut object, mut of) = ("server_".to_owned(), self.server_name());
        if let (ProcedureKind::Method(id), Some(this)) = (procedure.kind, procedure.params.first())
        {
            of = self.trait_name(id);
            emit!(self, "let this_ = args_.borrow::<dyn {of}>({})?;", this.offset);
            object = "&*this_".to_owned();
        }
        // Handles that are given away are taken last, so that none is lost if a later parameter is
        // malformed.
        let (given, others): (Vec<_>, Vec<_>) =
            self.params(procedure).iter().partition(|p| self.model.holds(&p.ty).owned);
        for param in others.into_iter().chain(given) {
            let (name, at) = (snake(&param.name), param.offset);
            let array = self.byte_array(&param.ty);
            match self.pass(&param.ty) {
                Passing::Bytes if self.is_owned(procedure, param) => {
                    emit_let(self, &name, &format!("args_.get::<::std::vec::Vec<u8>>({at})?"));
                }
                Passing::Bytes => emit_let(self, &name, &format!("args_.bytes({at})?")),
                Passing::Borrow(id) => {
                    let path = self.trait_path(id);
                    emit_let(self, &name, &format!("args_.borrow::<dyn {path}>({at})?"));
                }
                Passing::Own(id) => {
                    let path = self.trait_path(id);
                    emit_let(self, &name, &format!("args_.take::<dyn {path}>({at})?"));
                }
                Passing::Reference if array.is_some() => {
                    let len = array.unwrap_or_default();
                    emit!(self, "let mut {name} = [0; {len}]; args_.run_into({at}, &mut {name})?;");
                }
                _ => {
                    let ty: &Type = &param.ty;
                    emit_let(
                        self,
                        &name,
                        &format!("args_.get::<{}>({at})?", self.ty(ty, RustSide::Server)),
                    );
                }
            }
        }
        let mut arguments = vec![object];
        for param in self.params(procedure) {
            let name = snake(&param.name);
            let owned = self.is_owned(procedure, param);
            arguments.push(match self.pass(&param.ty) {
                Passing::Text | Passing::List | Passing::Reference if owned => name,
                Passing::Value | Passing::Bytes | Passing::Own(_) | Passing::Carrier => name,
                Passing::Text | Passing::List | Passing::Reference => format!("&{name}"),
                Passing::Borrow(_) => format!("&*{name}"),
            });
        }
        let call = format!("{of}::{}({})", self.server_method(procedure), arguments.join(", "));
        let mut freed = String::new();
        for param in self.params(procedure) {
            let is_lent =
                matches!(self.pass(&param.ty), Passing::Text | Passing::List | Passing::Reference);
            if is_lent && !self.is_owned(procedure, param) {
                freed += &format!("args_.free({});", snake(&param.name));
            }
        }
        if freed.is_empty() {
            emit!(self, "Ok({call}) }}),");
        } else {
            emit!(self, "let result_ = {call}; {freed} Ok(result_) }}),");
        }
    }
}

impl Module<'_> {
    /// The length of a fixed-length list of bytes.
    fn byte_array(&self, ty: &Type) -> Option<u32> {
        match self.model.resolve(ty) {
            Type::FixedList(of, len) if *self.model.resolve(of) == Type::U8 => Some(*len),
            _ => None,
        }
    }
}

fn emit_let(module: &mut Module<'_>, name: &str, value: &str) {
    emit!(module, "let {name} = {value};");
}
