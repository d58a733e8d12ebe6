//! Where two signatures of one procedure differ, in the names that the author of the WIT gave.
//!
//! A signature has all named types written out, so one field added to a record changes every
//! procedure that uses the record. The walk follows both models at once and reports at the nearest
//! named type. It ignores what signatures ignore: a type that was renamed, or replaced by another
//! of the same parts, is not a reason.

use crate::model::{Field, Label, Model, Param, ProcedureDefinition, Type, TypeBody, TypeId};
use std::collections::HashSet;
use std::fmt;

/// One place where two signatures differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// `record point`, `record point, field \`x\``, `parameter \`path\``, `result`.
    pub place: String,
    /// ``field `z` added: s32``, `was u32, is u64`.
    pub change: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.change)
    }
}

/// Explains why two procedures of one name have different signatures.
pub(super) fn between(
    old: (&Model, &ProcedureDefinition),
    new: (&Model, &ProcedureDefinition),
) -> Vec<Reason> {
    let mut walk = Walk { old: old.0, new: new.0, seen: HashSet::new(), reasons: Vec::new() };
    let params = |p: &ProcedureDefinition| {
        p.params.iter().map(|Param { name, ty, .. }| (name.clone(), Some(ty.clone()))).collect()
    };
    let (before, after): (MemberList, MemberList) = (params(old.1), params(new.1));
    walk.members(&format!("procedure {}", old.1.name), None, "parameter", &before, &after);
    match (&old.1.result, &new.1.result) {
        (Some(a), Some(b)) => walk.types("result", a, b),
        (None, Some(b)) => walk.say("result", format!("added: {}", walk.new.wit(b))),
        (Some(a), None) => walk.say("result", format!("removed: {}", walk.old.wit(a))),
        (None, None) => {}
    }
    walk.reasons
}

/// Fields, cases, flags or parameters.
type MemberList = Vec<(String, Option<Type>)>;

struct Walk<'a> {
    old: &'a Model,
    new: &'a Model,
    /// Pairs of named types that were already compared. Their differences are reported once.
    seen: HashSet<(TypeId, TypeId)>,
    reasons: Vec<Reason>,
}

impl Walk<'_> {
    fn say(&mut self, place: &str, change: String) {
        self.reasons.push(Reason { place: place.to_owned(), change });
    }

    fn types(&mut self, place: &str, a: &Type, b: &Type) {
        if let (Type::Named(i), Type::Named(j)) = (a, b) {
            return self.named(place, *i, *j);
        }
        if let Type::Named(i) = a
            && let TypeBody::Alias(target) = &self.old.def(*i).shape
        {
            return self.types(place, target, b);
        }
        if let Type::Named(j) = b
            && let TypeBody::Alias(target) = &self.new.def(*j).shape
        {
            return self.types(place, a, target);
        }
        match (a, b) {
            (Type::List(a), Type::List(b)) | (Type::Option(a), Type::Option(b)) => {
                self.types(place, a, b)
            }
            (Type::FixedList(s, n), Type::FixedList(t, m)) if n == m => self.types(place, s, t),
            (Type::Result(ok, err), Type::Result(ok2, err2))
                if ok.is_some() == ok2.is_some() && err.is_some() == err2.is_some() =>
            {
                for (s, t) in ok.iter().zip(ok2).chain(err.iter().zip(err2)) {
                    self.types(place, s, t);
                }
            }
            (Type::Tuple(s), Type::Tuple(t)) if s.len() == t.len() => {
                for (s, t) in s.iter().zip(t) {
                    self.types(place, s, t);
                }
            }
            // Only a resource's name counts; its methods are separate procedures.
            (Type::Own(i), Type::Own(j)) | (Type::Borrow(i), Type::Borrow(j))
                if self.old.def(*i).name == self.new.def(*j).name => {}
            (a, b) if a == b && !matches!(a, Type::Own(_) | Type::Borrow(_)) => {}
            (a, b) => self.differ(place, a, b),
        }
    }

    fn named(&mut self, place: &str, i: TypeId, j: TypeId) {
        let (old, new) = (self.old, self.new);
        let (a, b) = (old.def(i), new.def(j));
        let place_of = |word: &str| {
            if a.name == b.name {
                format!("{word} {}", a.name)
            } else {
                format!("{word} {} (was {})", b.name, a.name)
            }
        };
        match (&a.shape, &b.shape) {
            (TypeBody::Alias(s), TypeBody::Alias(t)) if a.name == b.name => {
                if self.seen.insert((i, j)) {
                    self.types(&place_of("type"), s, t);
                }
            }
            (TypeBody::Alias(s), _) => self.types(place, s, &Type::Named(j)),
            (_, TypeBody::Alias(t)) => self.types(place, &Type::Named(i), t),
            (TypeBody::Record(s), TypeBody::Record(t)) => {
                let fields = |all: &[Field]| {
                    all.iter().map(|f| (f.name.clone(), Some(f.ty.clone()))).collect::<MemberList>()
                };
                self.members(&place_of("record"), Some((i, j)), "field", &fields(s), &fields(t));
            }
            (TypeBody::Variant(s), TypeBody::Variant(t)) => {
                let cases = |all: &[crate::model::Case]| {
                    all.iter().map(|c| (c.name.clone(), c.ty.clone())).collect::<MemberList>()
                };
                self.members(&place_of("variant"), Some((i, j)), "case", &cases(s), &cases(t));
            }
            (TypeBody::Enum(s), TypeBody::Enum(t)) => {
                self.members(&place_of("enum"), Some((i, j)), "case", &labels(s), &labels(t));
            }
            (TypeBody::Flags(s), TypeBody::Flags(t)) => {
                self.members(&place_of("flags"), Some((i, j)), "flag", &labels(s), &labels(t));
            }
            _ => self.differ(place, &Type::Named(i), &Type::Named(j)),
        }
    }

    fn differ(&mut self, place: &str, a: &Type, b: &Type) {
        let change = format!("was {}, is {}", described(self.old, a), described(self.new, b));
        self.say(place, change);
    }

    /// Compares named members; both names and order count.
    fn members(
        &mut self,
        place: &str,
        pair: Option<(TypeId, TypeId)>,
        word: &str,
        old: &MemberList,
        new: &MemberList,
    ) {
        if pair.is_some_and(|pair| !self.seen.insert(pair)) {
            return;
        }
        let typed = |model: &Model, ty: &Option<Type>| {
            ty.as_ref().map(|t| format!(": {}", model.wit(t))).unwrap_or_default()
        };
        for (name, ty) in old.iter().filter(|(name, _)| !new.iter().any(|(other, _)| other == name))
        {
            self.say(place, format!("{word} `{name}` removed{}", typed(self.old, ty)));
        }
        for (name, ty) in new.iter().filter(|(name, _)| !old.iter().any(|(other, _)| other == name))
        {
            self.say(place, format!("{word} `{name}` added{}", typed(self.new, ty)));
        }
        let kept = |from: &MemberList, other: &MemberList| -> Vec<String> {
            let all = from.iter().map(|(name, _)| name);
            all.filter(|name| other.iter().any(|(o, _)| o == *name)).cloned().collect()
        };
        let (before, after) = (kept(old, new), kept(new, old));
        if before != after {
            self.say(
                place,
                format!(
                    "{word}s in another order: was {}, is {}",
                    before.join(", "),
                    after.join(", ")
                ),
            );
        }
        for (name, b) in new {
            let Some((_, a)) = old.iter().find(|(other, _)| other == name) else { continue };
            let inside = if pair.is_some() {
                format!("{place}, {word} `{name}`")
            } else {
                format!("{word} `{name}`")
            };
            match (a, b) {
                (Some(a), Some(b)) => self.types(&inside, a, b),
                (None, Some(b)) => {
                    self.say(&inside, format!("carries a value now: {}", self.new.wit(b)))
                }
                (Some(a), None) => {
                    self.say(&inside, format!("carries no value any more: was {}", self.old.wit(a)))
                }
                (None, None) => {}
            }
        }
    }
}

fn labels(all: &[Label]) -> MemberList {
    all.iter().map(|l| (l.name.clone(), None)).collect()
}

/// `record point`, `list<u8>`.
fn described(model: &Model, ty: &Type) -> String {
    let word = match ty {
        Type::Named(id) => match model.def(*id).shape {
            TypeBody::Record(_) => "record ",
            TypeBody::Variant(_) => "variant ",
            TypeBody::Enum(_) => "enum ",
            TypeBody::Flags(_) => "flags ",
            TypeBody::Resource => "resource ",
            TypeBody::Alias(_) => "",
        },
        _ => "",
    };
    format!("{word}{}", model.wit(ty))
}
