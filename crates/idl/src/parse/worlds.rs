//! Worlds: their own declarations, as interfaces.
//!
//! A world says what a WebAssembly component imports and exports. Domains bind to interfaces, so a
//! world that only names interfaces adds nothing. The declarations of a world itself become
//! interfaces under its name. The functions that it exports, which the component's domain would
//! serve, are the interface of that name. The functions that it imports, which its host would
//! serve, are `<world>-imports`. An interface written inside it is `<world>-<name>`, or
//! `<world>-imports-<name>`. Types are placed with the imported functions, if there are any, since
//! both sides may use those.

use super::Lowering;
use crate::error::{Error, Location};
use crate::model::InterfaceDefinition;
use wit_parser::{InterfaceId, TypeDefKind, WorldId, WorldItem};

impl Lowering<'_> {
    pub(super) fn world(&mut self, id: WorldId) {
        let resolve = self.resolve;
        let world = &resolve.worlds[id];
        let imports = world.imports.iter().map(|item| (true, item));
        for (imported, (key, item)) in imports.chain(world.exports.iter().map(|item| (false, item)))
        {
            match item {
                WorldItem::Type { id, .. } => {
                    let done = self.named(*id, 0);
                    self.note(done);
                }
                WorldItem::Function(function) => {
                    let index = self.of_world(id, imported);
                    self.add(index, function);
                }
                WorldItem::Interface { id: inside, .. }
                    if resolve.interfaces[*inside].name.is_none() =>
                {
                    // A declaration included from another world of the package already has its name
                    // from there.
                    if !self.interfaces.contains_key(inside) {
                        let name = resolve.name_world_key(key);
                        self.inside_world(id, imported, &name, *inside);
                        self.whole(*inside);
                    }
                }
                WorldItem::Interface { .. } => {}
            }
            if self.full() {
                return;
            }
        }
    }

    /// The interface of the types that a world declares.
    pub(super) fn types_of_world(&mut self, id: WorldId) -> usize {
        let imported = self.resolve.worlds[id].imports.values().any(|item| match item {
            WorldItem::Function(_) => true,
            WorldItem::Type { id, .. } => {
                matches!(self.resolve.types[*id].kind, TypeDefKind::Resource)
            }
            WorldItem::Interface { .. } => false,
        });
        self.of_world(id, imported)
    }

    /// The interface of the functions that a world imports, or of those that it exports.
    fn of_world(&mut self, id: WorldId, imported: bool) -> usize {
        if let Some(index) = self.worlds.get(&(id, imported)) {
            return *index;
        }
        let world = &self.resolve.worlds[id];
        let name = if imported { format!("{}-imports", world.name) } else { world.name.clone() };
        let (at, docs) = (self.at(world.span), world.docs.contents.clone());
        let index = self.declare(id, name, at, docs);
        self.worlds.insert((id, imported), index);
        index
    }

    /// An interface that is written inside a world.
    fn inside_world(&mut self, id: WorldId, imported: bool, name: &str, inside: InterfaceId) {
        let (world, interface) = (&self.resolve.worlds[id], &self.resolve.interfaces[inside]);
        let side = if imported { "-imports" } else { "" };
        let span = if interface.span.is_known() { interface.span } else { world.span };
        let (at, docs) = (self.at(span), interface.docs.contents.clone());
        let index = self.declare(id, format!("{}{side}-{name}", world.name), at, docs);
        self.interfaces.insert(inside, index);
    }

    fn declare(&mut self, id: WorldId, name: String, at: Location, docs: Option<String>) -> usize {
        let resolve = self.resolve;
        let world = &resolve.worlds[id];
        let package = world.package.unwrap_or(self.package);
        let foreign = (package != self.package).then(|| resolve.packages[package].name.to_string());
        let known = resolve.packages[package].interfaces.contains_key(&name)
            || resolve.packages[package].worlds.contains_key(&name) && name != world.name
            || self.model.interfaces.iter().any(|i| i.name == name && i.foreign == foreign);
        if known {
            let construct = format!(
                "the name `{name}` beside what world `{}` declares, which would have it too",
                world.name
            );
            let error = Error::unsupported(
                &at,
                construct,
                "choose another name, or move what the world declares into an interface",
            );
            self.note::<()>(Err(error));
        }
        self.model.interfaces.push(InterfaceDefinition {
            id: resolve.packages[package].name.interface_id(&name),
            name,
            foreign,
            docs,
            at,
            types: Vec::new(),
            procedures: Vec::new(),
            parts: Vec::new(),
            carried: Vec::new(),
        });
        self.model.interfaces.len() - 1
    }
}
