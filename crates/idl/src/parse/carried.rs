//! Interfaces that others carry.
//!
//! A handle is a number in the table of one binding, and a binding is to one interface. Everything
//! that can be done with an object of another interface must therefore go through the same binding:
//! `use streams.{input-stream}` in `filesystem` is useful only if `input-stream.read` can be called
//! there. Likewise, if only a free function of its interface makes an object, the object can be
//! passed on only if that function can be called there too. So an interface whose procedures take
//! or return objects of other interfaces carries all the procedures of those interfaces: they are
//! bound and served with its own, and numbered after them. An interface that is both carried and
//! exported by itself has separate objects in each.

use super::{Lowering, MAX_PROCEDURES};
use crate::error::Error;
use crate::model::{CarriedInterface, Model, ProcedureDefinition, Type, TypeBody};
use crate::signature;
use std::collections::BTreeSet;

/// Maximum number of interfaces that an interface carries. Each is copied into every interface that
/// carries it, and a definition from another domain must not be able to use up memory that way.
const MAX_PARTS: usize = 64;

impl Lowering<'_> {
    /// Finds the interfaces that each interface carries, and adds those of other packages to the
    /// model.
    pub(super) fn carry(&mut self) {
        let mut homes = Homes::default();
        let mut uses: Vec<BTreeSet<usize>> = Vec::new();
        let mut open: Vec<usize> =
            (0..self.model.interfaces.len()).filter(|i| !self.is_foreign(*i)).collect();
        let mut seen: BTreeSet<usize> = open.iter().copied().collect();
        while let Some(interface) = open.pop() {
            let found = homes.of(&self.model, interface);
            for home in &found {
                if seen.insert(*home) {
                    // The declarations of another package's world have no procedures here.
                    let id = self
                        .interfaces
                        .iter()
                        .find(|(_, index)| **index == *home)
                        .map(|(id, _)| *id);
                    id.into_iter().for_each(|id| self.whole(id));
                    open.push(*home);
                }
            }
            uses.resize(self.model.interfaces.len(), BTreeSet::new());
            uses[interface] = found;
        }
        for interface in 0..self.model.interfaces.len() {
            if self.full() {
                return;
            }
            match reached(&uses, interface) {
                Some(carried) => self.carry_in(interface, carried),
                None => {
                    let at = &self.model.interfaces[interface].at;
                    let construct = format!(
                        "an interface that carries more than {MAX_PARTS} others by their resources"
                    );
                    let error = Error::unsupported(
                        at,
                        construct,
                        "use fewer resources of others, or move some together",
                    );
                    self.note::<()>(Err(error));
                }
            }
        }
    }

    fn is_foreign(&self, interface: usize) -> bool {
        self.model.interfaces[interface].foreign.is_some()
    }

    fn carry_in(&mut self, interface: usize, carried: Vec<usize>) {
        for other in carried {
            let home = &self.model.interfaces[other];
            let prefix = home.id.split('@').next().unwrap_or(&home.id);
            let named = |p: &ProcedureDefinition| {
                let signature = format!("{prefix}.{}", p.signature);
                ProcedureDefinition {
                    name: format!("{prefix}.{}", p.name),
                    hash: signature::hash(&signature),
                    signature,
                    ..p.clone()
                }
            };
            let procedures: Vec<ProcedureDefinition> = home.procedures.iter().map(named).collect();
            for procedure in &procedures {
                let done = self.written(procedure);
                self.note(done);
            }
            let this = &mut self.model.interfaces[interface];
            this.parts.push(CarriedInterface {
                interface: other,
                first: this.procedures.len() + this.carried.len(),
            });
            this.carried.extend(procedures);
            if self.full() {
                return;
            }
        }
        if self.model.interfaces[interface].bound().count() > MAX_PROCEDURES {
            self.too_many(interface);
        }
    }
}

/// Everything that an interface uses, directly or through others, without itself; `None` if that is
/// too much.
fn reached(uses: &[BTreeSet<usize>], from: usize) -> Option<Vec<usize>> {
    let mut order = vec![from];
    let mut at = 0;
    while at < order.len() {
        for next in uses.get(order[at]).into_iter().flatten() {
            if !order.contains(next) {
                order.push(*next);
            }
        }
        at += 1;
        if order.len() > MAX_PARTS + 1 {
            return None;
        }
    }
    order.remove(0);
    Some(order)
}

/// For each type of the model examined so far, the interfaces whose objects are in it.
#[derive(Default)]
struct Homes(Vec<BTreeSet<usize>>);

impl Homes {
    /// The interfaces whose objects the procedures of `interface` take or return.
    fn of(&mut self, model: &Model, interface: usize) -> BTreeSet<usize> {
        // The table lists each type after the types that it is made of.
        for def in &model.types[self.0.len()..] {
            let mut own = BTreeSet::new();
            let mut add = |ty: &Type| collect(model, &self.0, ty, &mut own);
            match &def.shape {
                TypeBody::Record(fields) => fields.iter().for_each(|f| add(&f.ty)),
                TypeBody::Variant(cases) => {
                    cases.iter().filter_map(|c| c.ty.as_ref()).for_each(add)
                }
                TypeBody::Alias(ty) => add(ty),
                TypeBody::Enum(_) | TypeBody::Flags(_) | TypeBody::Resource => {}
            }
            self.0.push(own);
        }
        let mut all = BTreeSet::new();
        for procedure in &model.interfaces[interface].procedures {
            for ty in procedure.params.iter().map(|p| &p.ty).chain(&procedure.result) {
                collect(model, &self.0, ty, &mut all);
            }
        }
        all.remove(&interface);
        all
    }
}

fn collect(model: &Model, known: &[BTreeSet<usize>], ty: &Type, into: &mut BTreeSet<usize>) {
    // This is already more than can be carried.
    if into.len() > MAX_PARTS {
        return;
    }
    match ty {
        Type::Own(id) | Type::Borrow(id) => {
            into.insert(model.def(*id).interface);
        }
        Type::Named(id) => into.extend(&known[id.0]),
        Type::List(t) | Type::FixedList(t, _) | Type::Option(t) => collect(model, known, t, into),
        Type::Result(ok, err) => {
            [ok, err].into_iter().flatten().for_each(|t| collect(model, known, t, into))
        }
        Type::Tuple(types) => types.iter().for_each(|t| collect(model, known, t, into)),
        _ => {}
    }
}
