//! The client: a struct for the interface and one for each resource.
//!
//! Each has two ways to its server, chosen when it is made: through a binding, or, in the same
//! domain, as a plain call of the trait. The match on it is the only branch a call makes in
//! generated code.

use super::handles::HandleVisit;
use super::names::snake;
use super::{Module, Passing, RustSide, emit, tuple};
use crate::model::{ProcedureDefinition, ProcedureKind, Type, TypeId};

/// The receiver of a client's method.
struct MethodReceiver {
    /// The expression for the link.
    link: String,
    /// The link's enum.
    kind: String,
    /// `true` for methods, which pass the handle first.
    object: bool,
}

impl Module<'_> {
    pub(super) fn client(&mut self) {
        self.interface_client();
        for id in self.resources() {
            self.resource_client(id);
        }
    }

    /// The functions that make a client `name` of a server in another domain.
    fn binding_functions(&mut self, name: &str, result: &str) {
        emit!(self, "/// Binds to the server that exports this interface as `name`.\n///");
        emit!(
            self,
            "/// # Errors\n/// [`BindError`](::upcall::BindError): no such server, not permitted, \
            or another version of a procedure."
        );
        emit!(self, "pub fn bind(name: &str) -> {result}<Self, ::upcall::BindError> {{");
        emit!(
            self,
            "Ok(Self {{ link: link::Bound::Remote(stub::Binding::bind(name, &INTERFACE)?) }}) }}"
        );
        emit!(
            self,
            "/// Binds like `bind`, and waits for at most `limit` while no server serves \
            `name`.\n///"
        );
        emit!(
            self,
            "/// # Errors\n/// [`BindError`](::upcall::BindError): as `bind`; at the limit, such \
            as `NoSuchName`."
        );
        emit!(
            self,
            "pub fn bind_wait(name: &str, limit: ::core::time::Duration) -> {result}<Self, \
            ::upcall::BindError> {{"
        );
        emit!(
            self,
            "Ok(Self {{ link: link::Bound::Remote(stub::Binding::bind_wait(name, &INTERFACE, \
            ::core::option::Option::None, limit)?) }}) }}"
        );
        emit!(
            self,
            "/// Binds to a server that `policy` accepts, in place of one of this user or root:"
        );
        emit!(self, "/// `{name}::expect(upcall::policy::users([1001])).bind(name)`.");
        emit!(
            self,
            "#[must_use] pub fn expect(policy: impl ::std::ops::Fn(&::upcall::Peer) -> \
            {result}<(), ::std::string::String>"
        );
        emit!(
            self,
            "+ ::core::marker::Send + ::core::marker::Sync + 'static) -> ::upcall::Binder<Self> {{"
        );
        emit!(
            self,
            "stub::Binder::new(&INTERFACE, |binding| Self {{ link: link::Bound::Remote(binding) \
            }}, policy) }}"
        );
    }

    fn interface_client(&mut self) {
        let name = self.client_name();
        let id = &self.interface().id;
        let result = self.std("Result");
        self.docs(self.interface().docs.as_deref(), &format!("A client of `{id}`."));
        emit!(self, "#[derive(Clone)] pub struct {name} {{ pub(super) link: link::Bound }}");
        emit!(self, "impl {name} {{");
        self.binding_functions(&name, &result);
        emit!(self, "/// Binds to a server in this domain. Calls are plain function calls.");
        emit!(self, "#[must_use] pub fn local(server: impl {}) -> Self {{", self.server_name());
        emit!(self, "Self {{ link: link::Bound::Local(::std::sync::Arc::new(server)) }} }}");
        emit!(
            self,
            "/// Sets how kernel threads that call spend the wait; user-level threads follow \
            their scheduler."
        );
        emit!(self, "pub fn set_pacing(&self, pacing: ::upcall::Pacing) {{");
        emit!(
            self,
            "if let link::Bound::Remote(binding) = &self.link {{ binding.set_pacing(pacing); }} }}"
        );
        emit!(
            self,
            "/// Whether calls can still go through; once `false`, always so: then bind again. In \
            the same domain they always can."
        );
        emit!(self, "#[must_use] pub fn is_open(&self) -> bool {{");
        emit!(
            self,
            "match &self.link {{ link::Bound::Remote(binding) => binding.is_open(), \
            link::Bound::Local(_) => true }} }}"
        );
        self.variants();
        for (number, procedure) in self.procedures() {
            if matches!(procedure.kind, ProcedureKind::Free | ProcedureKind::Static(_)) {
                let receiver = MethodReceiver {
                    link: "self.link".into(),
                    kind: "link::Bound".into(),
                    object: false,
                };
                self.method(number, procedure, "&self", &receiver);
            }
        }
        emit!(self, "}}");
        self.debug_impl(&name);
        for part in &self.interface().parts {
            self.part_client(&name, part.interface);
        }
    }

    /// The client of a carried interface, made from the client of the interface that carries it.
    fn part_client(&mut self, name: &str, part: usize) {
        let module = &self.modules[part];
        let carried = Module { index: part, text: String::new(), ..*self }.client_name();
        emit!(self, "/// The same binding, for the procedures of an interface that it carries.");
        emit!(
            self,
            "impl ::core::convert::From<&{name}> for super::{module}::{carried} {{ fn \
            from(client: &{name}) -> Self {{"
        );
        emit!(self, "use super::{module}::{{INTERFACE, link::Bound}};");
        emit!(self, "Self {{ link: match &client.link {{");
        emit!(
            self,
            "link::Bound::Remote(binding) => Bound::Remote(binding.part(&INTERFACE).expect(\"what \
            carries this one, too\")),"
        );
        emit!(
            self,
            "link::Bound::Local(server) => Bound::Local(::std::sync::Arc::clone(server) as _) }} \
            }} }} }}"
        );
    }

    /// The methods that return the same client with other call options.
    fn variants(&mut self) {
        let duration = "::core::option::Option<::core::time::Duration>";
        for (term, ty, says) in [
            (
                "deadline",
                duration,
                "with a deadline for each of its calls, after which the call is aborted. `None` \
                means none.",
            ),
            ("cancel", "&::upcall::CancelToken", "whose calls the token can cancel."),
            (
                "hand_off",
                "::upcall::HandOff",
                "with another rule for when a call gives its processor to a server that sleeps.",
            ),
            (
                "when_full",
                "::upcall::WhenFull",
                "with another rule for calls that find all A-stacks in use.",
            ),
        ] {
            emit!(self, "/// Returns the same client, {says}");
            emit!(self, "///");
            emit!(
                self,
                "/// Resources that it returns have the same terms. A local client ignores them."
            );
            emit!(self, "#[must_use] pub fn with_{term}(&self, {term}: {ty}) -> Self {{");
            emit!(
                self,
                "match &self.link {{ link::Bound::Remote(binding) => Self {{ link: \
                link::Bound::Remote(binding.with_{term}({term})) }},"
            );
            emit!(self, "link::Bound::Local(_) => ::core::clone::Clone::clone(self) }} }}");
        }
    }

    fn resource_client(&mut self, id: TypeId) {
        let def = self.model.def(id);
        let name = self.resource_name(id);
        let result = self.std("Result");
        self.docs(def.docs.as_deref(), &format!("`{}`", def.name));
        emit!(
            self,
            "///\n/// A handle to an object in the server. Dropping it lets the server drop the \
            object."
        );
        emit!(self, "pub struct {name} {{ pub(super) link: link::{name}Link }}");
        emit!(self, "impl {name} {{");
        for (number, procedure) in self.procedures() {
            if procedure.kind == ProcedureKind::Constructor(id) {
                let mut server = snake(&self.interface().name);
                if procedure.params.iter().any(|p| snake(&p.name) == server) {
                    server.push('_');
                }
                let receiver = MethodReceiver {
                    link: format!("{server}.link"),
                    kind: "link::Bound".into(),
                    object: false,
                };
                let first = format!("{server}: &{}", self.client_name());
                self.method(number, procedure, &first, &receiver);
            } else if procedure.kind == ProcedureKind::Method(id) {
                let receiver = MethodReceiver {
                    link: "self.link".into(),
                    kind: format!("link::{name}Link"),
                    object: true,
                };
                self.method(number, procedure, "&self", &receiver);
            }
        }
        emit!(self, "}}");
        emit!(self, "impl ::core::ops::Drop for {name} {{ fn drop(&mut self) {{");
        emit!(
            self,
            "if let link::{name}Link::Remote {{ binding, handle, owned: true }} = &self.link {{"
        );
        emit!(self, "binding.release(*handle); }} }} }}");
        self.debug_impl(&name);
        emit!(self, "impl stub::Layout for {name} {{");
        emit!(self, "const SIZE: usize = 8; const ALIGN: usize = 8; const FIXED: bool = true; }}");
        emit!(self, "impl stub::Put for {name} {{ fn tail(&self) -> usize {{ 0 }}");
        emit!(
            self,
            "fn put(&self, e: &mut stub::Encoder<'_>, at: usize) {{ \
            stub::Put::put(&self.link.number(), e, at); }} }}"
        );
        emit!(self, "impl stub::Get for {name} {{");
        emit!(
            self,
            "fn get(d: &stub::Decoder<'_>, at: usize) -> {result}<Self, stub::Malformed> {{"
        );
        emit!(self, "let handle = <stub::Handle as stub::Get>::get(d, at)?;");
        emit!(self, "match d.part(&INTERFACE) {{");
        emit!(
            self,
            "Some(binding) => Ok(Self {{ link: link::{name}Link::Remote {{ binding, handle, \
            owned: true }} }}),"
        );
        emit!(self, "None => Err(stub::Malformed::NoSuchHandle {{ handle: handle.0 }}), }} }} }}");
    }

    fn debug_impl(&mut self, name: &str) {
        emit!(self, "impl ::core::fmt::Debug for {name} {{");
        emit!(self, "fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{");
        emit!(self, "f.debug_struct({name:?}).finish_non_exhaustive() }} }}");
    }

    /// One procedure of the client.
    fn method(
        &mut self,
        number: usize,
        procedure: &ProcedureDefinition,
        receiver_param: &str,
        receiver: &MethodReceiver,
    ) {
        let result = self.std("Result");
        let params = self.params(procedure);
        let mut signature = vec![receiver_param.to_owned()];
        for param in params {
            let mutable = if self.model.holds(&param.ty).owned { "mut " } else { "" };
            signature.push(format!(
                "{mutable}{}: {}",
                snake(&param.name),
                self.param_ty(&param.ty, RustSide::Client)
            ));
        }
        let returned = procedure.result.as_ref().map(|ty| self.model.resolve(ty));
        let whole =
            procedure.result.as_ref().map_or("()".to_owned(), |ty| self.ty(ty, RustSide::Client));
        let side = |t: &Option<Box<Type>>| {
            t.as_ref().map_or("()".to_owned(), |t| self.ty(t, RustSide::Client))
        };
        let flat = match returned {
            Some(Type::Result(ok, err)) => {
                Some((ok.as_deref(), err.as_deref(), side(ok), side(err)))
            }
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

    fn remote_arm(
        &mut self,
        number: usize,
        procedure: &ProcedureDefinition,
        receiver: &MethodReceiver,
        whole: &str,
        flat: bool,
    ) {
        let mut members = Vec::new();
        let mut given = Vec::new();
        if receiver.object {
            emit!(
                self,
                "{}::Remote {{ binding: binding_, handle: handle_, .. }} => {{",
                receiver.kind
            );
            members.push("*handle_".to_owned());
        } else {
            emit!(self, "{}::Remote(binding_) => {{", receiver.kind);
        }
        for param in self.params(procedure) {
            let name = snake(&param.name);
            match self.pass(&param.ty) {
                Passing::Own(_) => {
                    members.push(format!("{name}.link.handle(binding_)?"));
                    given.push(format!("{name}.link.give_up();"));
                }
                Passing::Carrier => {
                    let check = self.visit(&param.ty, HandleVisit::Check);
                    emit!(self, "{{ let value_ = &{name}; {check} }}");
                    let give_up = self.visit(&param.ty, HandleVisit::GiveUp);
                    if !give_up.is_empty() {
                        given.push(format!("{{ let value_ = &mut {name}; {give_up} }}"));
                    }
                    members.push(format!("&{name}"));
                }
                Passing::Borrow(_) => members.push(format!("{name}.link.handle(binding_)?")),
                _ => members.push(name),
            }
        }
        let call =
            format!("binding_.call::<_, {whole}>({number}, &{})", tuple(members.into_iter()));
        let flatten = "{ Ok(Ok(value_)) => Ok(value_), Ok(Err(error_)) => \
            Err(::upcall::Failure::Returned(error_)), \
                       Err(error_) => Err(::upcall::Failure::Call(error_)) }";
        if given.is_empty() {
            if flat {
                emit!(self, "match {call} {flatten} }}");
            } else {
                emit!(self, "{call} }}");
            }
            return;
        }
        // Once the server has answered, the objects belong to it. Before that they are released
        // like any other.
        emit!(self, "let reply_ = {call};");
        emit!(self, "if reply_.is_ok() {{");
        for give_up in given {
            emit!(self, "{give_up}");
        }
        emit!(self, "}}");
        if flat {
            emit!(self, "match reply_ {flatten} }}");
        } else {
            emit!(self, "reply_ }}");
        }
    }

    fn local_arm(
        &mut self,
        procedure: &ProcedureDefinition,
        receiver: &MethodReceiver,
        flat: Option<(Option<&Type>, Option<&Type>)>,
    ) {
        emit!(self, "{}::Local(server_) => {{", receiver.kind);
        let of = match procedure.kind {
            ProcedureKind::Method(id) => self.trait_name(id),
            _ => self.server_name(),
        };
        let mut arguments = vec!["&**server_".to_owned()];
        for param in self.params(procedure) {
            let name = snake(&param.name);
            let owned = self.is_owned(procedure, param);
            arguments.push(match self.pass(&param.ty) {
                Passing::Text | Passing::Bytes | Passing::List | Passing::Reference if owned => {
                    format!("::std::borrow::ToOwned::to_owned({name})")
                }
                Passing::Bytes => format!("::upcall::Bytes::from({name})"),
                Passing::Own(_) => format!("::std::sync::Arc::clone({name}.link.server()?)"),
                Passing::Borrow(_) => format!("&**{name}.link.server()?"),
                Passing::Carrier => {
                    format!("{{ let value_ = {name}; {} }}", self.to_server(&param.ty))
                }
                _ => name,
            });
        }
        let call = format!("{of}::{}({})", self.server_method(procedure), arguments.join(", "));
        match flat {
            Some((ok, err)) => {
                let convert =
                    |ty: Option<&Type>| ty.map_or("value_".to_owned(), |ty| self.to_client(ty));
                let (ok, err) = (convert(ok), convert(err));
                emit!(self, "match {call} {{ Ok(value_) => Ok({ok}),");
                emit!(self, "Err(value_) => Err(::upcall::Failure::Returned({err})) }} }}");
            }
            None => {
                let converted = match &procedure.result {
                    Some(ty) if self.model.holds(ty).any() => {
                        format!("{{ let value_ = {call}; {} }}", self.to_client(ty))
                    }
                    _ => call,
                };
                emit!(self, "Ok({converted}) }}");
            }
        }
    }

    /// The link: where calls go. It is in a module of its own, whose names cannot clash with WIT
    /// names.
    pub(super) fn link(&mut self) {
        emit!(self, "/// Where calls go: to another domain, or to a server in this one.");
        emit!(self, "pub(super) mod link {{ use ::upcall::stub; use ::std::sync::Arc;");
        emit!(self, "#[derive(Clone)] pub enum Bound {{");
        emit!(self, "Remote(stub::Binding), Local(Arc<dyn super::{}>) }}", self.server_name());
        emit!(self, "pub struct Server<S>(pub S);");
        for id in self.resources() {
            let name = self.resource_name(id);
            let server = self.trait_name(id);
            emit!(self, "pub enum {name}Link {{");
            emit!(self, "Remote {{ binding: stub::Binding, handle: stub::Handle, owned: bool }},");
            emit!(self, "Local(Arc<dyn super::{server}>) }}");
            emit!(self, "impl {name}Link {{");
            emit!(self, "/// The handle, if it belongs to this very binding.");
            emit!(
                self,
                "pub fn handle(&self, to: &stub::Binding) -> Result<stub::Handle, \
                ::upcall::CallError> {{"
            );
            emit!(
                self,
                "match self {{ Self::Remote {{ binding, handle, .. }} if binding.same(to) => \
                Ok(*handle),"
            );
            emit!(self, "_ => Err(::upcall::CallError::ForeignHandle) }} }}");
            emit!(self, "/// The object, if it is in this domain.");
            emit!(
                self,
                "pub fn server(&self) -> Result<&Arc<dyn super::{server}>, ::upcall::CallError> {{"
            );
            emit!(
                self,
                "match self {{ Self::Local(server) => Ok(server), Self::Remote {{ .. }} => \
                Err(::upcall::CallError::ForeignHandle) }} }}"
            );
            emit!(
                self,
                "/// The handle's number; none that a server gives out for an object in this \
                domain."
            );
            emit!(self, "pub fn number(&self) -> stub::Handle {{");
            emit!(
                self,
                "match self {{ Self::Remote {{ handle, .. }} => *handle, Self::Local(_) => \
                stub::Handle(0) }} }}"
            );
            emit!(self, "/// The object is the server's now: nothing to release.");
            emit!(self, "pub fn give_up(&mut self) {{");
            emit!(self, "if let Self::Remote {{ owned, .. }} = self {{ *owned = false; }} }} }}");
        }
        emit!(self, "}}");
    }
}
