//! The client: a struct for the interface and one for each resource.
//!
//! Each has two ways to its server, chosen when it is made: through a binding, or, in the same domain, as a plain call
//! of the trait. The match on it is the only branch a call makes in generated code.

use super::names::snake;
use super::{Module, Pass, Side, emit, tuple};
use crate::model::{Holds, Procedure, ProcedureKind, Type, TypeId};

/// What a method is called on.
struct Receiver {
    /// The expression that is the link.
    link: String,
    /// The link's enum.
    kind: String,
    /// For methods: the handle goes first.
    object: bool,
}

impl Module<'_> {
    pub(super) fn client(&mut self) {
        self.interface_client();
        for id in self.resources() {
            self.resource_client(id);
        }
    }

    fn interface_client(&mut self) {
        let name = self.client_name();
        let id = &self.interface().id;
        let result = self.std("Result");
        self.docs(self.interface().docs.as_deref(), &format!("A client of `{id}`."));
        emit!(self, "#[derive(Clone)] pub struct {name} {{ link: link::Bound }}");
        emit!(self, "impl {name} {{");
        emit!(self, "/// Binds to the server that exports this interface as `name`.\n///");
        emit!(
            self,
            "/// # Errors\n/// [`BindError`](::upcall::BindError): no such server, not permitted, or another version of a procedure."
        );
        emit!(self, "pub fn bind(name: &str) -> {result}<Self, ::upcall::BindError> {{");
        emit!(self, "Ok(Self {{ link: link::Bound::Remote(stub::Binding::bind(name, &INTERFACE)?) }}) }}");
        emit!(self, "/// Binds to a server in this domain. Calls are plain function calls.");
        emit!(self, "#[must_use] pub fn local(server: impl Serve) -> Self {{");
        emit!(self, "Self {{ link: link::Bound::Local(::std::sync::Arc::new(server)) }} }}");
        emit!(self, "/// Sets how kernel threads that call spend the wait; user-level threads follow their scheduler.");
        emit!(self, "pub fn set_pacing(&self, pacing: ::upcall::Pacing) {{");
        emit!(self, "if let link::Bound::Remote(binding) = &self.link {{ binding.set_pacing(pacing); }} }}");
        emit!(
            self,
            "/// Whether calls can still go through; once `false`, always so: then bind again. In the same domain they always can."
        );
        emit!(self, "#[must_use] pub fn is_open(&self) -> bool {{");
        emit!(self, "match &self.link {{ link::Bound::Remote(binding) => binding.is_open(), link::Bound::Local(_) => true }} }}");
        self.variants();
        for (number, procedure) in self.procedures() {
            if matches!(procedure.kind, ProcedureKind::Free | ProcedureKind::Static(_)) {
                let receiver = Receiver { link: "self.link".into(), kind: "link::Bound".into(), object: false };
                self.method(number, procedure, "&self", &receiver);
            }
        }
        emit!(self, "}}");
        self.debug_impl(&name);
    }

    /// The methods that give the same client with other terms.
    fn variants(&mut self) {
        let duration = "::core::option::Option<::core::time::Duration>";
        for (term, ty, says) in [
            (
                "deadline",
                duration,
                "with a deadline for each call made by this clone, or by what it returns, after which the call is aborted; `None`: none",
            ),
            (
                "abandon",
                "&::upcall::Abandon",
                "whose calls, made by this clone, or by what it returns, are given up when `abandon` says so",
            ),
            (
                "hand_off",
                "::upcall::HandOff",
                "with a say in when each call made by this clone, or by what it returns, gives its processor to a server that sleeps",
            ),
            (
                "shortage",
                "::upcall::Shortage",
                "with a say in what calls made by this clone, or by what it returns, do when all A-stacks are in use",
            ),
        ] {
            emit!(self, "/// The same client, {says}.");
            emit!(self, "/// Calls in the same domain know nothing of it.");
            emit!(self, "#[must_use] pub fn with_{term}(&self, {term}: {ty}) -> Self {{");
            emit!(
                self,
                "match &self.link {{ link::Bound::Remote(binding) => Self {{ link: link::Bound::Remote(binding.with_{term}({term})) }},"
            );
            emit!(self, "link::Bound::Local(_) => self.clone() }} }}");
        }
    }

    fn resource_client(&mut self, id: TypeId) {
        let def = self.model.def(id);
        let name = self.resource_name(id);
        let result = self.std("Result");
        self.docs(def.docs.as_deref(), &format!("`{}`", def.name));
        emit!(self, "///\n/// A handle to an object in the server. Dropping it lets the server drop the object.");
        emit!(self, "pub struct {name} {{ link: link::{name}Link }}");
        emit!(self, "impl {name} {{");
        for (number, procedure) in self.procedures() {
            if procedure.kind == ProcedureKind::Constructor(id) {
                let mut server = snake(&self.interface().name);
                if procedure.params.iter().any(|p| snake(&p.name) == server) {
                    server.push('_');
                }
                let receiver = Receiver { link: format!("{server}.link"), kind: "link::Bound".into(), object: false };
                let first = format!("{server}: &{}", self.client_name());
                self.method(number, procedure, &first, &receiver);
            } else if procedure.kind == ProcedureKind::Method(id) {
                let receiver = Receiver { link: "self.link".into(), kind: format!("link::{name}Link"), object: true };
                self.method(number, procedure, "&self", &receiver);
            }
        }
        emit!(self, "}}");
        emit!(self, "impl ::core::ops::Drop for {name} {{ fn drop(&mut self) {{");
        emit!(self, "if let link::{name}Link::Remote {{ binding, handle, owned: true }} = &self.link {{");
        emit!(self, "binding.release(*handle); }} }} }}");
        self.debug_impl(&name);
        emit!(self, "impl stub::Layout for {name} {{");
        emit!(self, "const SIZE: usize = 8; const ALIGN: usize = 8; const FIXED: bool = true; }}");
        emit!(self, "impl stub::Get for {name} {{");
        emit!(self, "fn get(d: &stub::Decoder<'_>, at: usize) -> {result}<Self, stub::Malformed> {{");
        emit!(self, "let handle = <stub::Handle as stub::Get>::get(d, at)?;");
        emit!(self, "match d.binding() {{");
        emit!(self, "Some(binding) => Ok(Self {{ link: link::{name}Link::Remote {{ binding, handle, owned: true }} }}),");
        emit!(self, "None => Err(stub::Malformed::NoSuchHandle {{ handle: handle.0 }}), }} }} }}");
    }

    fn debug_impl(&mut self, name: &str) {
        emit!(self, "impl ::core::fmt::Debug for {name} {{");
        emit!(self, "fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{");
        emit!(self, "f.debug_struct({name:?}).finish_non_exhaustive() }} }}");
    }

    /// One procedure as the caller sees it.
    fn method(&mut self, number: usize, procedure: &Procedure, receiver_param: &str, receiver: &Receiver) {
        let result = self.std("Result");
        let params = self.params(procedure);
        let mut signature = vec![receiver_param.to_owned()];
        for param in params {
            let mutable = if matches!(self.pass(&param.ty), Pass::Own(_)) { "mut " } else { "" };
            signature.push(format!("{mutable}{}: {}", snake(&param.name), self.param_ty(&param.ty, Side::Client)));
        }
        let returned = procedure.result.as_ref().map(|ty| self.model.resolve(ty));
        let whole = procedure.result.as_ref().map_or("()".to_owned(), |ty| self.ty(ty, Side::Client));
        let side = |t: &Option<Box<Type>>| t.as_ref().map_or("()".to_owned(), |t| self.ty(t, Side::Client));
        let flat = match returned {
            Some(Type::Result(ok, err)) => Some((ok.as_deref(), err.as_deref(), side(ok), side(err))),
            _ => None,
        };
        let output = match &flat {
            Some((_, _, ok, err)) => format!("{result}<{ok}, ::upcall::Failure<{err}>>"),
            None => format!("{result}<{whole}, ::upcall::CallError>"),
        };
        self.docs(procedure.docs.as_deref(), &format!("`{}`", procedure.signature));
        let fn_name = self.client_method(procedure);
        emit!(self, "pub fn {fn_name}({}) -> {output} {{", signature.join(", "));
        emit!(self, "match &{} {{", receiver.link);
        self.remote_arm(number, procedure, receiver, &whole, flat.is_some());
        self.local_arm(procedure, receiver, flat.as_ref().map(|(ok, err, ..)| (*ok, *err)));
        emit!(self, "}} }}");
    }

    fn remote_arm(&mut self, number: usize, procedure: &Procedure, receiver: &Receiver, whole: &str, flat: bool) {
        let mut members = Vec::new();
        let mut given = Vec::new();
        if receiver.object {
            emit!(self, "{}::Remote {{ binding: binding_, handle: handle_, .. }} => {{", receiver.kind);
            members.push("*handle_".to_owned());
        } else {
            emit!(self, "{}::Remote(binding_) => {{", receiver.kind);
        }
        for param in self.params(procedure) {
            let name = snake(&param.name);
            match self.pass(&param.ty) {
                Pass::Own(_) => {
                    members.push(format!("{name}.link.handle(binding_)?"));
                    given.push(name);
                }
                Pass::Borrow(_) => members.push(format!("{name}.link.handle(binding_)?")),
                _ => members.push(name),
            }
        }
        let call = format!("binding_.call::<_, {whole}>({number}, &{})", tuple(members.into_iter()));
        let flatten = "{ Ok(Ok(value_)) => Ok(value_), Ok(Err(error_)) => Err(::upcall::Failure::Returned(error_)), \
                       Err(error_) => Err(::upcall::Failure::Call(error_)) }";
        if given.is_empty() {
            if flat {
                emit!(self, "match {call} {flatten} }}");
            } else {
                emit!(self, "{call} }}");
            }
            return;
        }
        // The objects are the server's once it has answered. Before that they are released like any other.
        emit!(self, "let reply_ = {call};");
        emit!(self, "if reply_.is_ok() {{");
        for name in given {
            emit!(self, "{name}.link.give_up();");
        }
        emit!(self, "}}");
        if flat {
            emit!(self, "match reply_ {flatten} }}");
        } else {
            emit!(self, "reply_ }}");
        }
    }

    fn local_arm(&mut self, procedure: &Procedure, receiver: &Receiver, flat: Option<(Option<&Type>, Option<&Type>)>) {
        emit!(self, "{}::Local(server_) => {{", receiver.kind);
        let mut arguments = Vec::new();
        for param in self.params(procedure) {
            let name = snake(&param.name);
            arguments.push(match self.pass(&param.ty) {
                Pass::Bytes => format!("::upcall::Bytes::from({name})"),
                Pass::Own(_) => format!("::std::sync::Arc::clone({name}.link.server()?)"),
                Pass::Borrow(_) => format!("&**{name}.link.server()?"),
                _ => name,
            });
        }
        let call = format!("server_.{}({})", self.server_method(procedure), arguments.join(", "));
        match flat {
            Some((ok, err)) => {
                let convert = |ty: Option<&Type>, value: &str| match ty {
                    Some(ty) => self.to_client(ty, value),
                    None => value.to_owned(),
                };
                let (ok, err) = (convert(ok, "value_"), convert(err, "error_"));
                emit!(self, "match {call} {{ Ok(value_) => Ok({ok}),");
                emit!(self, "Err(error_) => Err(::upcall::Failure::Returned({err})) }} }}");
            }
            None => {
                let converted = match &procedure.result {
                    Some(ty) => self.to_client(ty, &call),
                    None => call,
                };
                emit!(self, "Ok({converted}) }}");
            }
        }
    }

    /// Turns what a server in this domain returned into what a client gets: objects into handles.
    fn to_client(&self, ty: &Type, value: &str) -> String {
        if self.model.holds(ty) == Holds::Nothing {
            return value.to_owned();
        }
        match self.model.resolve(ty) {
            Type::Own(id) | Type::Borrow(id) => {
                let name = self.resource_name(*id);
                format!("{name} {{ link: link::{name}Link::Local({value}) }}")
            }
            Type::Option(t) | Type::FixedList(t, _) => format!("{value}.map(|value_| {})", self.to_client(t, "value_")),
            Type::List(t) => {
                let each = self.to_client(t, "value_");
                format!("{value}.into_iter().map(|value_| {each}).collect::<{}<_>>()", self.std("Vec"))
            }
            Type::Result(ok, err) => {
                let side = |t: &Option<Box<Type>>| t.as_ref().map_or("value_".to_owned(), |t| self.to_client(t, "value_"));
                format!("{value}.map(|value_| {}).map_err(|value_| {})", side(ok), side(err))
            }
            Type::Tuple(types) => {
                let names: Vec<String> = (0..types.len()).map(|n| format!("value_{n}_")).collect();
                let members = types.iter().zip(&names).map(|(t, n)| self.to_client(t, n));
                format!("{{ let {} = {value}; {} }}", tuple(names.iter().cloned()), tuple(members))
            }
            _ => value.to_owned(),
        }
    }

    /// Where calls go. In a module of its own, whose names no WIT name can meet.
    pub(super) fn link(&mut self) {
        emit!(self, "/// Where calls go: to another domain, or to a server in this one.");
        emit!(self, "mod link {{ use ::upcall::stub; use ::std::sync::Arc;");
        emit!(self, "#[derive(Clone)] pub(super) enum Bound {{");
        emit!(self, "Remote(stub::Binding), Local(Arc<dyn super::Serve>) }}");
        emit!(self, "pub(super) struct Server<S>(pub(super) S);");
        for id in self.resources() {
            let name = self.resource_name(id);
            let server = self.trait_name(id);
            emit!(self, "pub(super) enum {name}Link {{");
            emit!(self, "Remote {{ binding: stub::Binding, handle: stub::Handle, owned: bool }},");
            emit!(self, "Local(Arc<dyn super::{server}>) }}");
            emit!(self, "impl {name}Link {{");
            emit!(self, "/// The handle, if it belongs to this very binding.");
            emit!(self, "pub(super) fn handle(&self, to: &stub::Binding) -> Result<stub::Handle, ::upcall::CallError> {{");
            emit!(self, "match self {{ Self::Remote {{ binding, handle, .. }} if binding.same(to) => Ok(*handle),");
            emit!(self, "_ => Err(::upcall::CallError::ForeignHandle) }} }}");
            emit!(self, "/// The object, if it is in this domain.");
            emit!(self, "pub(super) fn server(&self) -> Result<&Arc<dyn super::{server}>, ::upcall::CallError> {{");
            emit!(
                self,
                "match self {{ Self::Local(server) => Ok(server), Self::Remote {{ .. }} => Err(::upcall::CallError::ForeignHandle) }} }}"
            );
            emit!(self, "/// The object is the server's now: nothing to release.");
            emit!(self, "pub(super) fn give_up(&mut self) {{");
            emit!(self, "if let Self::Remote {{ owned, .. }} = self {{ *owned = false; }} }} }}");
        }
        emit!(self, "}}");
    }
}
