//! Clients, their asynchronous views, and servers.

use super::names::{client_method, docstring, parameter, part_attribute, served_method};
use super::{PythonGenerator, PythonSide, TypePosition, put};
use crate::model::{ProcedureDefinition, ProcedureKind, Type, TypeId};

/// The class that a method is written for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MethodOwner {
    Client,
    View,
    Server,
}

impl<'a> PythonGenerator<'a> {
    pub(super) fn classes(&mut self, index: usize) {
        let interface = self.interface(index);
        let [client, view, server] = self.clients[&index].clone();
        for id in self.resources_of(index) {
            self.resource(index, id);
        }
        let about =
            docstring(interface.docs.as_deref().unwrap_or(&format!("`{}`.", interface.id)), "    ");
        put(&mut self.text, 0, format!("\n\nclass {client}(_upcall.Client):"));
        put(&mut self.text, 1, &about);
        let own = |kind: ProcedureKind| !matches!(kind, ProcedureKind::Method(_));
        self.body(
            index,
            MethodOwner::Client,
            &|kind| own(kind) && !matches!(kind, ProcedureKind::Constructor(_)),
            Some(&view),
        );

        put(&mut self.text, 0, format!("\n\nclass {view}(_aio.Client):"));
        put(&mut self.text, 1, docstring(&format!("`{client}` for asyncio."), "    "));
        self.body(index, MethodOwner::View, &own, None);

        put(&mut self.text, 0, format!("\n\nclass {server}(_upcall.Serve):"));
        put(&mut self.text, 1, &about);
        for part in &interface.parts {
            let procedures = &self.interface(part.interface).procedures;
            if procedures.iter().any(|procedure| own(procedure.kind)) {
                let [.., other] = &self.clients[&part.interface];
                let line =
                    format!("\n    {}: {other}", part_attribute(self.model, index, part.interface));
                put(&mut self.text, 0, line);
                let says = format!(
                    "Who serves `{}`, which this interface carries; unless this object does.",
                    self.interface(part.interface).id
                );
                put(&mut self.text, 1, docstring(&says, "    "));
            }
        }
        self.body(index, MethodOwner::Server, &own, None);
        for (what, name) in [("", &client), ("@async", &view), ("@served", &server)] {
            self.declared.push((format!("{}{what}", interface.id), name.clone()));
            self.all.push(name.clone());
        }
    }

    fn resource(&mut self, index: usize, id: TypeId) {
        let def = self.model.def(id);
        let (name, server, view) = (
            self.named[&(id, PythonSide::Client)].clone(),
            self.named[&(id, PythonSide::Server)].clone(),
            self.views[&id].clone(),
        );
        let about = docstring(def.docs.as_deref().unwrap_or(&format!("`{}`.", def.name)), "    ");
        put(&mut self.text, 0, format!("\n\nclass {name}(_upcall.Resource):"));
        put(&mut self.text, 1, &about);
        let client = |kind| {
            matches!(
                kind,
                ProcedureKind::Method(other) | ProcedureKind::Constructor(other) if other == id
            )
        };
        let method = |kind| kind == ProcedureKind::Method(id);
        self.body(index, MethodOwner::Client, &client, Some(&view));

        put(&mut self.text, 0, format!("\n\nclass {view}(_aio.Resource):"));
        put(&mut self.text, 1, docstring(&format!("`{name}` for asyncio."), "    "));
        self.body(index, MethodOwner::View, &method, None);

        put(&mut self.text, 0, format!("\n\nclass {server}(_upcall.ServeResource):"));
        put(&mut self.text, 1, &about);
        self.body(index, MethodOwner::Server, &method, None);
        for (what, name) in [("", name), ("@async", view), ("@served", server)] {
            self.declare(id, what, name.clone());
            self.all.push(name);
        }
    }

    /// Writes the methods of a class. The engine makes the client's methods at run time; they are
    /// written here for readers and type checkers.
    fn body(
        &mut self,
        index: usize,
        form: MethodOwner,
        has: &dyn Fn(ProcedureKind) -> bool,
        view: Option<&str>,
    ) {
        let procedures: Vec<&'a ProcedureDefinition> =
            self.interface(index).procedures.iter().filter(|one| has(one.kind)).collect();
        let name = |procedure: &ProcedureDefinition| match form {
            MethodOwner::Server => served_method(self.model, index, procedure),
            _ => client_method(self.model, index, procedure),
        };
        let names: Vec<String> = procedures.iter().map(|procedure| name(procedure)).collect();
        self.hide(names.iter().cloned());
        let depth = if form == MethodOwner::Server { 1 } else { 2 };
        if depth == 2 && (view.is_some() || !procedures.is_empty()) {
            put(&mut self.text, 0, "\n    if _t.TYPE_CHECKING:");
        }
        if let Some(view) = view {
            put(&mut self.text, 0, "");
            put(&mut self.text, depth, format!("@property\n        def aio(self) -> {view}:"));
            put(&mut self.text, depth + 1, docstring("The same, for asyncio.", ""));
            put(&mut self.text, depth + 1, "raise NotImplementedError");
        }
        for (procedure, name) in procedures.iter().zip(names) {
            self.method(index, procedure, name, form, depth);
        }
        self.hidden.clear();
    }

    fn method(
        &mut self,
        index: usize,
        procedure: &'a ProcedureDefinition,
        mut name: String,
        form: MethodOwner,
        depth: usize,
    ) {
        let (side, model) = (
            if form == MethodOwner::Server { PythonSide::Server } else { PythonSide::Client },
            self.model,
        );
        let mut params = vec!["self".to_owned()];
        let makes =
            matches!(procedure.kind, ProcedureKind::Constructor(_)) && form == MethodOwner::Client;
        if makes {
            name = "__init__".into();
            params.extend([format!("client: {}", self.clients[&index][0]), "/".into()]);
        }
        for param in self.params(procedure) {
            params.push(format!(
                "{}: {}",
                parameter(&param.name),
                self.ty(&param.ty, side, TypePosition::Param)
            ));
        }
        let returned = |ty: Option<&Type>| {
            ty.map_or("None".to_owned(), |ty| self.ty(ty, side, TypePosition::Returned))
        };
        let mut fails = None;
        let mut result = match procedure.result.as_ref().map(|ty| model.resolve(ty)) {
            Some(Type::Result(ok, err)) => {
                fails = Some(
                    err.as_ref()
                        .map_or("None".to_owned(), |ty| self.ty(ty, side, TypePosition::Inside)),
                );
                returned(ok.as_deref())
            }
            _ => returned(procedure.result.as_ref()),
        };
        if makes {
            result = "None".into();
        } else if form == MethodOwner::Server {
            result = format!("_upcall.MaybeAsync[{result}]");
        }
        let mut docs = procedure
            .docs
            .as_deref()
            .map_or(format!("`{}`.", procedure.name), |docs| docs.trim().to_owned());
        if let Some(error) = fails {
            docs.push_str(&format!(
                "\n\nRaises:\n    upcall.Err[{error}]: what the procedure returned as its error."
            ));
        }
        put(&mut self.text, 0, "");
        if form == MethodOwner::Server {
            put(&mut self.text, depth, "@_abc.abstractmethod");
        }
        let keyword = if form == MethodOwner::View { "async def" } else { "def" };
        put(&mut self.text, depth, format!("{keyword} {name}({}) -> {result}:", params.join(", ")));
        put(&mut self.text, depth + 1, docstring(&docs, &"    ".repeat(depth + 1)));
        if form != MethodOwner::Server {
            put(&mut self.text, depth + 1, "raise NotImplementedError");
        }
    }
}
