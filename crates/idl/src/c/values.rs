//! Functions that write values into a block, read them, and free them.
//!
//! Numbers are written and read in place, with the functions of `upcall.h`. Every other type has
//! functions of its own, which are generated when the first procedure needs them, after those of
//! the type's parts.

use super::names::member;
use super::{CGenerator, CSide};
use crate::layout::{choice, discriminant_size, flags_size, sequence};
use crate::model::{Label, Type, TypeBody, TypeId};
use std::fmt::Write;

/// What a function does with values of a type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Helper {
    Put,
    Get,
    Free,
}

/// The position of a part: `at`, `at + 8`.
fn at(base: &str, offset: u64) -> String {
    if offset == 0 { base.to_owned() } else { format!("{base} + {offset}") }
}

/// The source of a value: the reader, and the statement that leaves the function if the value
/// cannot be read.
pub(super) type From<'a> = (&'a str, &'a str);

/// A part of a value: its type, its offset, and its C expression relative to the pointer `v`.
type ValuePart = (Type, u64, String);

impl CGenerator<'_> {
    /// Converts `value` to the unsigned number that is written for it; `None` if the type is not
    /// written as a number.
    pub(super) fn number(&self, ty: &Type, value: &str) -> Option<String> {
        match self.model.resolve(ty) {
            Type::Bool => Some(format!("{value} ? 1 : 0")),
            Type::U8 | Type::U16 | Type::U32 | Type::Char | Type::U64 => Some(value.to_owned()),
            Type::S8 | Type::S16 | Type::S32 | Type::S64 => {
                Some(format!("(uint{}_t){value}", self.model.layout(ty).size * 8))
            }
            Type::Named(id)
                if matches!(self.model.def(*id).shape, TypeBody::Enum(_) | TypeBody::Flags(_)) =>
            {
                Some(value.to_owned())
            }
            _ => None,
        }
    }

    /// A statement that writes `value` at `place` through the writer `w`.
    pub(super) fn put(
        &mut self,
        ty: &Type,
        side: CSide,
        home: usize,
        (place, value): (&str, &str),
        w: &str,
    ) -> String {
        if let Some(number) = self.number(ty, value) {
            return format!("upcall_put_{}({place}, {number});", self.model.layout(ty).size);
        }
        match self.model.resolve(ty).clone() {
            Type::F32 => format!("upcall_put_f32({place}, {value});"),
            Type::F64 => format!("upcall_put_f64({place}, {value});"),
            Type::String => format!("upcall_put_string({w}, {place}, {value});"),
            Type::Own(_) if side == CSide::Client => {
                format!("upcall_write_own({w}, {place}, (upcall_resource *){value});")
            }
            Type::Own(_) => format!("upcall_put_object({w}, {place}, (upcall_object *){value});"),
            Type::Borrow(_) => {
                format!("upcall_write_lent({w}, {place}, (const upcall_resource *){value});")
            }
            Type::List(t) if self.number_name(&t).is_some() => {
                let stride = self.model.layout(&t).size;
                format!("upcall_put_list({w}, {place}, {value}.data, {value}.len, {stride});")
            }
            _ => {
                let name = self.helper(Helper::Put, ty, side, home);
                format!("{name}({w}, {place}, &{value});")
            }
        }
    }

    /// A statement that reads the value at `place` into `value`, and makes its function return
    /// `false` if there is none.
    pub(super) fn get(
        &mut self,
        ty: &Type,
        side: CSide,
        home: usize,
        (place, value): (&str, &str),
        (r, otherwise): From<'_>,
    ) -> String {
        let plain =
            |function: &str, cast: &str| format!("{value} = {cast}upcall_get_{function}({place});");
        let check = |call: String| format!("if (!{call}) {otherwise};");
        match self.model.resolve(ty).clone() {
            Type::U8 => plain("1", ""),
            Type::S8 => plain("1", "(int8_t)"),
            Type::U16 => plain("2", ""),
            Type::S16 => plain("2", "(int16_t)"),
            Type::U32 => plain("4", ""),
            Type::S32 => plain("4", "(int32_t)"),
            Type::U64 => plain("8", ""),
            Type::S64 => plain("8", "(int64_t)"),
            Type::F32 => plain("f32", ""),
            Type::F64 => plain("f64", ""),
            Type::Bool => check(format!("upcall_get_bool({r}, {place}, &{value})")),
            Type::Char => check(format!("upcall_get_char({r}, {place}, &{value})")),
            Type::String => check(format!("upcall_read_string({r}, {place}, &{value})")),
            _ => {
                let name = self.helper(Helper::Get, ty, side, home);
                check(format!("{name}({r}, {place}, &{value})"))
            }
        }
    }

    /// Returns `true` if a client's value has anything to free.
    pub(super) fn owns(&self, ty: &Type) -> bool {
        !self.model.layout(ty).fixed || self.model.holds(ty).owned
    }

    /// A statement that frees what `value` owns; empty if it owns nothing.
    pub(super) fn free(&mut self, ty: &Type, home: usize, value: &str) -> String {
        if !self.owns(ty) {
            return String::new();
        }
        match self.model.resolve(ty).clone() {
            Type::String => format!("upcall_string_free(&{value});"),
            Type::Own(id) => format!("{}({value});", self.resources[&id].drop),
            Type::List(t) if self.number_name(&t).is_some() => {
                format!("upcall_list_{}_free(&{value});", self.number_name(&t).unwrap_or_default())
            }
            _ => {
                let name = self.helper(Helper::Free, ty, CSide::Client, home);
                format!("{name}(&{value});")
            }
        }
    }

    /// The helper function for a type, generated at its first use.
    fn helper(&mut self, helper: Helper, ty: &Type, side: CSide, home: usize) -> String {
        // Every use of a named type is written in the same way.
        let ty = self.normal(ty);
        let home = if let Type::Named(id) = ty { self.model.def(id).interface } else { home };
        let lists = matches!(&ty, Type::List(t) if self.number_name(t).is_some());
        let c = match ty {
            Type::Own(_) => self.ty(&ty, side, home).trim_end_matches(" *").to_owned(),
            Type::Borrow(_) => {
                format!(
                    "{}_lent",
                    self.ty(&ty, CSide::Client, home)
                        .trim_start_matches("const ")
                        .trim_end_matches(" *")
                )
            }
            _ => self.ty(&ty, side, home),
        };
        if let Some(name) = self.helpers.get(&(helper, c.clone())) {
            return name.clone();
        }
        let stem = c.strip_suffix("_t").unwrap_or(&c).to_owned();
        let wanted = match helper {
            Helper::Put => format!("put_{stem}"),
            Helper::Get => format!("get_{stem}"),
            Helper::Free => format!("{stem}_free"),
        };
        let name = self.names.take(wanted);
        self.helpers.insert((helper, c), name.clone());
        let variable = match helper {
            Helper::Free => self.variable(&ty, side, home, "*v_"),
            _ => self.variable(&ty, side, home, "*v_"),
        };
        let (head, body) = match helper {
            Helper::Put => {
                let body = self.put_body(&ty, side, home);
                (
                    format!(
                        "static void {name}(upcall_writer *w_, uint8_t *at_, const {variable})"
                    ),
                    format!("    (void)w_;\n    (void)at_;\n    (void)v_;\n{body}"),
                )
            }
            Helper::Get => {
                let body =
                    if lists { self.get_numbers(&ty) } else { self.get_body(&ty, side, home) };
                (
                    format!(
                        "static bool {name}(upcall_reader *r_, const uint8_t *at_, {variable})"
                    ),
                    format!(
                        "    (void)r_;\n    (void)at_;\n    (void)v_;\n{body}    return true;\n"
                    ),
                )
            }
            Helper::Free => {
                let body = self.free_body(&ty, home);
                let _ = writeln!(
                    self.functions,
                    "/* Frees what a result owns, resources included; not the struct itself. \
                    */\nvoid {name}({variable});"
                );
                (format!("{}void {name}({variable})", self.linkage(home)), body)
            }
        };
        let _ = writeln!(self.bodies, "{head} {{\n{body}}}\n");
        name
    }

    /// The parts of a type whose values have all parts at once.
    fn parts(&self, ty: &Type) -> Option<Vec<ValuePart>> {
        match ty {
            Type::Tuple(types) => {
                let (offsets, _) = sequence(types.iter().map(|t| self.model.layout(t)));
                let part = |((number, t), offset): ((usize, &Type), u64)| {
                    (t.clone(), offset, format!("v_->f{number}"))
                };
                Some(types.iter().enumerate().zip(offsets).map(part).collect())
            }
            Type::Named(id) => match &self.model.def(*id).shape {
                TypeBody::Record(fields) => {
                    let (offsets, _) = self.model.record(fields);
                    let part = |(field, offset): (&crate::model::Field, u64)| {
                        (field.ty.clone(), offset, format!("v_->{}", member(&field.name)))
                    };
                    Some(fields.iter().zip(offsets).map(part).collect())
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The cases of a type whose values have one case at a time: the size of the discriminant, the
    /// offset of the values, and the C names of discriminant and values.
    #[allow(clippy::type_complexity)]
    fn cases(&self, ty: &Type) -> Option<(u64, u64, &'static str, Vec<(Option<Type>, String)>)> {
        match ty {
            Type::Option(t) => {
                let (offset, _) = choice(2, [self.model.layout(t)]);
                Some((
                    1,
                    offset,
                    "is_some",
                    vec![(None, String::new()), (Some((**t).clone()), "v_->value".into())],
                ))
            }
            Type::Result(ok, err) => {
                let (offset, _) =
                    choice(2, [ok, err].into_iter().flatten().map(|t| self.model.layout(t)));
                let case = |t: &Option<Box<Type>>, name: &str| {
                    (t.as_deref().cloned(), format!("v_->as.{name}"))
                };
                Some((1, offset, "is_err", vec![case(ok, "ok"), case(err, "err")]))
            }
            Type::Named(id) => match &self.model.def(*id).shape {
                TypeBody::Variant(cases) => {
                    let (offset, _) = self.model.variant(cases);
                    let all =
                        cases.iter().map(|c| (c.ty.clone(), format!("v_->as.{}", member(&c.name))));
                    Some((discriminant_size(cases.len()), offset, "tag", all.collect()))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// A switch over the cases, each with the statements that `each` returns for it.
    fn switch(
        &mut self,
        on: &str,
        cases: Vec<(Option<Type>, String)>,
        mut each: impl FnMut(&mut Self, &Type, &str) -> String,
    ) -> String {
        let mut arms = String::new();
        for (number, (ty, value)) in cases.iter().enumerate() {
            let code = ty.as_ref().map(|ty| each(self, ty, value)).unwrap_or_default();
            if !code.is_empty() {
                let _ = writeln!(arms, "        case {number}: {code} break;");
            }
        }
        if arms.is_empty() {
            String::new()
        } else {
            format!("    switch ({on}) {{\n{arms}        default: break;\n    }}\n")
        }
    }

    fn put_body(&mut self, ty: &Type, side: CSide, home: usize) -> String {
        if let Some(parts) = self.parts(ty) {
            return parts
                .into_iter()
                .map(|(t, offset, value)| {
                    format!(
                        "    {}\n",
                        self.put(&t, side, home, (&at("at_", offset), &value), "w_")
                    )
                })
                .collect();
        }
        if let Some((size, offset, tag, cases)) = self.cases(ty) {
            let count = cases.len();
            let number =
                if tag == "tag" { "v_->tag".to_owned() } else { format!("v_->{tag} ? 1 : 0") };
            let place = at("at_", offset);
            let switch = self.switch(&format!("(int)(v_->{tag})"), cases, |this, t, value| {
                this.put(t, side, home, (&place, value), "w_")
            });
            let _ = count;
            return format!("    upcall_put_{size}(at_, {number});\n{switch}");
        }
        match ty {
            Type::List(t) | Type::FixedList(t, _) => {
                let stride = self.model.layout(t).size;
                let (start, count) = match ty {
                    Type::FixedList(_, n) => {
                        ("    uint8_t *run_ = at_;\n".to_owned(), n.to_string())
                    }
                    _ => (
                        format!(
                            "    uint8_t *run_ = upcall_put_run(w_, at_, v_->len, {stride});\n    \
                            if (run_ == NULL) return;\n"
                        ),
                        "v_->len".to_owned(),
                    ),
                };
                let each = self.put(
                    t,
                    side,
                    home,
                    (&format!("run_ + i_ * {stride}"), "v_->data[i_]"),
                    "w_",
                );
                format!(
                    "{start}    for (size_t i_ = 0; i_ < {count}; i_++) {{\n        {each}\n    \
                    }}\n"
                )
            }
            _ => String::new(),
        }
    }

    /// Reads a list of numbers, which is copied as a whole. Each element is checked if not every
    /// number is valid.
    fn get_numbers(&mut self, ty: &Type) -> String {
        let Type::List(t) = ty else { return String::new() };
        let (stride, c) = (self.model.layout(t).size, self.ty(t, CSide::Client, 0));
        let mut text = format!(
            "    const void *data_ = NULL;\n    if (!upcall_read_piece(r_, at_, {stride}, &data_, \
            &v_->len)) return false;\n    v_->data = (const {c} *)data_;\n"
        );
        let test = match self.number_name(t) {
            Some("bool") => {
                "bool one_; if (!upcall_get_bool(r_, (const uint8_t *)data_ + i_, &one_)) return \
                false;"
            }
            Some("char") => {
                "uint32_t one_; if (!upcall_get_char(r_, (const uint8_t *)data_ + i_ * 4, &one_)) \
                return false;"
            }
            _ => return text,
        };
        let _ = writeln!(
            text,
            "    for (size_t i_ = 0; i_ < v_->len; i_++) {{\n        {test}\n    }}"
        );
        text
    }

    fn get_body(&mut self, ty: &Type, side: CSide, home: usize) -> String {
        let fail = "return false";
        if let Some(parts) = self.parts(ty) {
            return parts
                .into_iter()
                .map(|(t, offset, value)| {
                    format!(
                        "    {}\n",
                        self.get(&t, side, home, (&at("at_", offset), &value), ("r_", fail))
                    )
                })
                .collect();
        }
        if let Some((size, offset, tag, cases)) = self.cases(ty) {
            let count = cases.len();
            let mut text = if tag == "tag" {
                let check = self.in_range("v_->tag", count, size);
                format!("    v_->tag = upcall_get_{size}(at_);\n{check}")
            } else {
                format!("    if (!upcall_get_bool(r_, at_, &v_->{tag})) return false;\n")
            };
            let place = at("at_", offset);
            text += &self.switch(&format!("(int)(v_->{tag})"), cases, |this, t, value| {
                this.get(t, side, home, (&place, value), ("r_", fail))
            });
            return text;
        }
        match ty {
            Type::FixedList(t, n) => {
                let stride = self.model.layout(t).size;
                let place = format!("at_ + i_ * {stride}");
                let each = self.get(t, side, home, (&place, "v_->data[i_]"), ("r_", fail));
                format!("    for (size_t i_ = 0; i_ < {n}; i_++) {{\n        {each}\n    }}\n")
            }
            Type::List(t) => self.get_list(t, side, home),
            Type::Own(id) if side == CSide::Client => self.get_resource(*id),
            Type::Own(id) => {
                let (kind, c) = (self.kind(*id), self.named[&(*id, side)].clone());
                format!(
                    "    upcall_object *object_ = NULL;\n    if (!upcall_read_object(r_, at_, \
                    &{kind}, &object_)) return false;\n    *v_ = ({c} *)object_;\n"
                )
            }
            Type::Borrow(id) => {
                let kind = self.kind(*id);
                format!("    if (!upcall_read_lent(r_, at_, &{kind}, v_)) return false;\n")
            }
            Type::Named(id) => match &self.model.def(*id).shape {
                TypeBody::Enum(labels) => {
                    let size = discriminant_size(labels.len());
                    format!(
                        "    *v_ = upcall_get_{size}(at_);\n{}",
                        self.in_range("*v_", labels.len(), size)
                    )
                }
                TypeBody::Flags(labels) => self.get_flags(labels),
                _ => String::new(),
            },
            _ => String::new(),
        }
    }

    fn get_list(&mut self, element: &Type, side: CSide, home: usize) -> String {
        let stride = self.model.layout(element).size;
        let c = self.variable(element, side, home, "*");
        let place = format!("run_ + i_ * {stride}");
        let each = self.get(element, side, home, (&place, "items_[i_]"), ("r_", "return false"));
        format!(
            "    const void *data_ = NULL;\n    const uint8_t *run_;\n    {c}items_;\n    \
            v_->data = NULL;\n\
             \x20   if (!upcall_read_piece(r_, at_, {stride}, &data_, &v_->len)) return \
             false;\n    if (v_->len == 0) return true;\n\
             \x20   run_ = (const uint8_t *)data_;\n    items_ = ({c})upcall_read_alloc(r_, \
             v_->len, sizeof *items_);\n    if (items_ == NULL) return false;\n\
             \x20   for (size_t i_ = 0; i_ < v_->len; i_++) {{\n        {each}\n    }}\n    \
             v_->data = items_;\n    upcall_read_release(r_, data_);\n"
        )
    }

    fn get_resource(&mut self, id: TypeId) -> String {
        let def = self.model.def(id);
        let (interface, c) = (
            super::literal(&self.interface(def.interface).id),
            self.named[&(id, CSide::Client)].clone(),
        );
        format!(
            "    upcall_resource *resource_ = NULL;\n    if (!upcall_read_resource(r_, at_, \
            {interface}, &resource_)) return false;\n    *v_ = ({c} *)resource_;\n"
        )
    }

    fn in_range(&self, value: &str, count: usize, size: u64) -> String {
        // A number of which every value is valid is not tested: compilers warn that the test is
        // always true.
        if count as u64 == 1 << (size * 8) {
            return String::new();
        }
        format!("    if ({value} >= {count}) return upcall_read_fault(r_, {value}, {count});\n")
    }

    fn get_flags(&self, labels: &[Label]) -> String {
        let size = flags_size(labels.len()).unwrap_or(8);
        let read = format!("    *v_ = upcall_get_{size}(at_);\n");
        if labels.len() as u64 == size * 8 {
            return read;
        }
        format!(
            "{read}    if (*v_ >> {0} != 0) return upcall_read_fault(r_, *v_, {0});\n",
            labels.len()
        )
    }

    fn free_body(&mut self, ty: &Type, home: usize) -> String {
        if let Some(parts) = self.parts(ty) {
            let lines: Vec<String> =
                parts.into_iter().map(|(t, _, value)| self.free(&t, home, &value)).collect();
            return lines
                .into_iter()
                .filter(|line| !line.is_empty())
                .map(|line| format!("    {line}\n"))
                .collect();
        }
        if let Some((_, _, tag, cases)) = self.cases(ty) {
            return self.switch(&format!("(int)(v_->{tag})"), cases, |this, t, value| {
                this.free(t, home, value)
            });
        }
        match ty {
            Type::FixedList(t, n) => {
                let each = self.free(t, home, "v_->data[i_]");
                format!("    for (size_t i_ = 0; i_ < {n}; i_++) {{\n        {each}\n    }}\n")
            }
            Type::List(t) => {
                let mut text = String::new();
                if self.owns(t) {
                    let c = self.variable(t, CSide::Client, home, "*");
                    let each = self.free(t, home, "items_[i_]");
                    text = format!(
                        "    {c}items_ = ({c})(uintptr_t)v_->data;\n    for (size_t i_ = 0; i_ < \
                        v_->len; i_++) {{\n        {each}\n    }}\n"
                    );
                }
                format!(
                    "{text}    free((void *)(uintptr_t)v_->data);\n    v_->data = NULL;\n    \
                    v_->len = 0;\n"
                )
            }
            _ => String::new(),
        }
    }

    /// The address that distinguishes a server's objects of this type from others.
    pub(super) fn kind(&mut self, id: TypeId) -> String {
        let name = self.named[&(id, CSide::Server)].clone();
        let kind = format!("kind_{}", name.strip_suffix("_t").unwrap_or(&name));
        if self.kinds.insert(id) {
            // The address for a shared resource must be the same in all packages, no matter which
            // copy of the function is linked.
            let _ = match self.linkage(self.model.def(id).interface) {
                "" => writeln!(self.statics, "static const char {kind} = 0;\n"),
                shared => writeln!(
                    self.statics,
                    "extern const char {kind};\n{shared}const char {kind} = 0;\n"
                ),
            };
        }
        kind
    }
}
