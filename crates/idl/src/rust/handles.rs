//! Handles inside other values.
//!
//! A type that holds handles has two types in Rust: one for clients, with the structs of their
//! resources, and one for servers. The server's holds the objects themselves (`Arc`) or, where a
//! client lends them for a call, views of them (`Lent`), and has the prefix `Served`. Both have one
//! layout: a handle is a number in place.
//!
//! A client's value is visited before it is sent, so that no handle of another binding is sent as a
//! number that means something else there. It is visited again when the server has answered, since
//! the server then owns the handles that were given away. Such values are passed by value on both
//! sides.
//!
//! The generated code works on a variable `value_`, and shadows it on the way inwards.

use super::names::{camel, camel_part, snake};
use super::{Module, emit, tuple};
use crate::model::{Case, Def, Field, Type, TypeBody, TypeId};

/// The purpose of a visit to a client's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HandleVisit {
    /// Check that every handle belongs to `binding_`.
    Check,
    /// Give up the handles that the server now owns.
    GiveUp,
}

impl Module<'_> {
    /// Returns `true` if a named type has separate forms for clients and servers.
    pub(super) fn is_carrier(&self, def: &Def) -> bool {
        def.holds.any() && matches!(def.shape, TypeBody::Record(_) | TypeBody::Variant(_))
    }

    /// The name of a named type's form for servers.
    pub(super) fn served_name(&self, def: &Def) -> String {
        format!("Served{}", camel_part(&def.name))
    }

    /// The path prefix `super::module::`, for items in another module.
    pub(super) fn prefix(&self, id: TypeId) -> String {
        let home = self.model.def(id).interface;
        if home == self.index { String::new() } else { format!("super::{}::", self.modules[home]) }
    }

    /// The trait that objects of a resource implement, as seen from this module.
    pub(super) fn trait_path(&self, id: TypeId) -> String {
        format!("{}{}", self.prefix(id), self.trait_name(id))
    }

    /// The enum behind a client's handle, as seen from this module.
    fn link_path(&self, id: TypeId) -> String {
        format!("{}link::{}Link", self.prefix(id), self.resource_name(id))
    }

    /// Statements that visit a client's value; `value_` is a reference to it.
    pub(super) fn visit(&self, ty: &Type, visit: HandleVisit) -> String {
        let holds = self.model.holds(ty);
        if !(holds.owned || holds.lent && visit == HandleVisit::Check) {
            return String::new();
        }
        let (iter, reference) =
            if visit == HandleVisit::Check { ("iter", "&") } else { ("iter_mut", "&mut ") };
        match self.model.resolve(ty) {
            Type::Own(_) | Type::Borrow(_) if visit == HandleVisit::Check => {
                "value_.link.handle(binding_)?;".into()
            }
            Type::Own(_) => "value_.link.give_up();".into(),
            Type::List(t) | Type::FixedList(t, _) => {
                format!("for value_ in value_.{iter}() {{ {} }}", self.visit(t, visit))
            }
            Type::Option(t) => {
                format!("if let Some(value_) = value_ {{ {} }}", self.visit(t, visit))
            }
            Type::Result(ok, err) => {
                let arm = |name: &str, side: &Option<Box<Type>>| match side
                    .as_ref()
                    .map(|t| self.visit(t, visit))
                    .filter(|code| !code.is_empty())
                {
                    Some(code) => format!("{name}(value_) => {{ {code} }}"),
                    None => format!("{name}(_) => {{}}"),
                };
                format!("match value_ {{ {} {} }}", arm("Ok", ok), arm("Err", err))
            }
            Type::Tuple(types) => {
                let member = |(number, code): (usize, String)| {
                    format!("{{ let value_ = {reference}value_.{number}; {code} }}")
                };
                let all = types.iter().map(|t| self.visit(t, visit)).enumerate();
                all.filter(|(_, code)| !code.is_empty()).map(member).collect()
            }
            _ if visit == HandleVisit::Check => "value_.check_(binding_)?;".into(),
            _ => "value_.give_up_();".into(),
        }
    }

    /// An expression that converts a client's value to what a server in this domain takes. It fails
    /// for handles of other domains.
    pub(super) fn to_server(&self, ty: &Type) -> String {
        if !self.model.holds(ty).any() {
            return "value_".into();
        }
        let side =
            |t: &Option<Box<Type>>| t.as_ref().map_or("value_".to_owned(), |t| self.to_server(t));
        match self.model.resolve(ty) {
            Type::Own(_) => "::std::sync::Arc::clone(value_.link.server()?)".into(),
            Type::Borrow(_) => {
                "::upcall::Lent::from(::std::sync::Arc::clone(value_.link.server()?))".into()
            }
            Type::Option(t) => format!(
                "match value_ {{ Some(value_) => Some({}), None => None }}",
                self.to_server(t)
            ),
            Type::List(t) => self.list_to_server(t),
            Type::FixedList(t, n) => {
                let list = self.list_to_server(t);
                let same =
                    "Ok(list_) => list_, Err(_) => ::core::unreachable!(\"as many as before\")";
                format!("match <[_; {n}]>::try_from({list}) {{ {same} }}")
            }
            Type::Result(ok, err) => {
                format!(
                    "match value_ {{ Ok(value_) => Ok({}), Err(value_) => Err({}) }}",
                    side(ok),
                    side(err)
                )
            }
            Type::Tuple(types) => self.members(types, |t| self.to_server(t)),
            _ => "value_.to_server_()?".into(),
        }
    }

    fn list_to_server(&self, element: &Type) -> String {
        let each = self.to_server(element);
        format!(
            "{{ let mut list_ = ::std::vec::Vec::new(); for value_ in value_ {{ \
            list_.push({each}); }} list_ }}"
        )
    }

    /// An expression that converts the return value of a server in this domain to what a client
    /// gets: objects become handles.
    pub(super) fn to_client(&self, ty: &Type) -> String {
        if !self.model.holds(ty).any() {
            return "value_".into();
        }
        let side =
            |t: &Option<Box<Type>>| t.as_ref().map_or("value_".to_owned(), |t| self.to_client(t));
        match self.model.resolve(ty) {
            Type::Own(id) | Type::Borrow(id) => {
                format!("{} {{ link: {}::Local(value_) }}", self.path(*id), self.link_path(*id))
            }
            Type::Option(t) | Type::FixedList(t, _) => {
                format!("value_.map(|value_| {})", self.to_client(t))
            }
            Type::List(t) => {
                format!(
                    "value_.into_iter().map(|value_| {}).collect::<{}<_>>()",
                    self.to_client(t),
                    self.std("Vec")
                )
            }
            Type::Result(ok, err) => {
                format!("value_.map(|value_| {}).map_err(|value_| {})", side(ok), side(err))
            }
            Type::Tuple(types) => self.members(types, |t| self.to_client(t)),
            _ => "value_.to_client_()".into(),
        }
    }

    /// An expression for a tuple, with `each` applied to the members.
    fn members(&self, types: &[Type], each: impl Fn(&Type) -> String) -> String {
        let names: Vec<String> = (0..types.len()).map(|n| format!("value_{n}_")).collect();
        let members = types
            .iter()
            .zip(&names)
            .map(|(t, name)| format!("{{ let value_ = {name}; {} }}", each(t)));
        format!("{{ let {} = value_; {} }}", tuple(names.iter().cloned()), tuple(members))
    }

    /// [`Module::visit`] for the parts of a record or variant.
    fn visit_parts(&self, def: &Def, visit: HandleVisit) -> String {
        let reference = if visit == HandleVisit::Check { "&" } else { "&mut " };
        match &def.shape {
            TypeBody::Record(fields) => {
                let parts = fields
                    .iter()
                    .map(|f| (snake(&f.name), self.visit(&f.ty, visit)))
                    .filter(|(_, code)| !code.is_empty());
                parts
                    .map(|(name, code)| {
                        format!("{{ let value_ = {reference}value_.{name}; {code} }}")
                    })
                    .collect()
            }
            TypeBody::Variant(cases) => {
                let name = camel(&def.name);
                let arm = |case: &Case| match case
                    .ty
                    .as_ref()
                    .map(|t| self.visit(t, visit))
                    .filter(|code| !code.is_empty())
                {
                    Some(code) => format!("{name}::{}(value_) => {{ {code} }}", camel(&case.name)),
                    None if case.ty.is_some() => {
                        format!("{name}::{}(_) => {{}}", camel(&case.name))
                    }
                    None => format!("{name}::{} => {{}}", camel(&case.name)),
                };
                format!("match value_ {{ {} }}", cases.iter().map(arm).collect::<String>())
            }
            _ => String::new(),
        }
    }

    /// An expression that converts `value_`, a record or variant in one form, to the other form,
    /// part by part.
    fn converted(&self, def: &Def, from: &str, to: &str, each: impl Fn(&Type) -> String) -> String {
        match &def.shape {
            TypeBody::Record(fields) => {
                let part = |f: &Field| {
                    format!("{0}: {{ let value_ = value_.{0}; {1} }}", snake(&f.name), each(&f.ty))
                };
                format!("{to} {{ {} }}", fields.iter().map(part).collect::<Vec<_>>().join(", "))
            }
            TypeBody::Variant(cases) => {
                let arm = |case: &Case| match &case.ty {
                    Some(ty) => format!(
                        "{from}::{0}(value_) => {to}::{0}({1}),",
                        camel(&case.name),
                        each(ty)
                    ),
                    None => format!("{from}::{0} => {to}::{0},", camel(&case.name)),
                };
                format!("match value_ {{ {} }}", cases.iter().map(arm).collect::<String>())
            }
            _ => String::new(),
        }
    }

    /// Writes the conversions of a record or variant with handles. `client` is its type for
    /// clients.
    pub(super) fn carrier(&mut self, def: &Def, client: &str) {
        let (name, served) = (camel(&def.name), self.served_name(def));
        let result = self.std("Result");
        emit!(self, "impl {client} {{");
        let check = self.visit_parts(def, HandleVisit::Check);
        emit!(
            self,
            "pub(super) fn check_(&self, binding_: &stub::Binding) -> {result}<(), \
            ::upcall::CallError> {{"
        );
        emit!(self, "let value_ = self; {check} Ok(()) }}");
        if def.holds.owned {
            let give_up = self.visit_parts(def, HandleVisit::GiveUp);
            emit!(self, "pub(super) fn give_up_(&mut self) {{ let value_ = self; {give_up} }}");
        }
        let convert = self.converted(def, &name, &served, |t| self.to_server(t));
        emit!(self, "pub(super) fn to_server_(self) -> {result}<{served}, ::upcall::CallError> {{");
        emit!(self, "let value_ = self; Ok({convert}) }} }}");
        if !def.holds.lent {
            let convert = self.converted(def, &served, &name, |t| self.to_client(t));
            emit!(
                self,
                "impl {served} {{ pub(super) fn to_client_(self) -> {name} {{ let value_ = self; \
                {convert} }} }}"
            );
        }
        emit!(self, "impl ::core::fmt::Debug for {served} {{");
        emit!(self, "fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{");
        emit!(self, "f.debug_struct({served:?}).finish_non_exhaustive() }} }}");
    }
}
