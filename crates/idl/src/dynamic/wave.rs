//! Converts WAVE text to values, by the model's types. (The other direction needs no types and is
//! done by `wasm-wave`.)
//!
//! `wasm-wave` parses the text into nodes. Which value a node stands for depends on the type, and
//! the types of `wasm-wave` include neither handles nor lists of fixed length.

use super::value::WitValue;
use crate::model::{Model, Type, TypeBody, TypeId};
use wasm_wave::ast::{Node, NodeType};
use wasm_wave::parser::ParserError;
use wasm_wave::untyped::UntypedValue;

/// Reads `text` as a value of `ty`; the error says what is wrong with the text.
pub(super) fn read<'m>(model: &'m Model, ty: &'m Type, text: &str) -> Result<WitValue<'m>, String> {
    // A newline is appended because the parser panics on an empty comment at the very end of the
    // text (wasm-wave 0.263, lex.rs, skip_comment).
    let line = format!("{text}\n");
    let untyped = UntypedValue::parse(&line).map_err(|e| format!("`{text}` is not WAVE: {e}"))?;
    WaveReader { model, text: &line }.value(ty, untyped.node())
}

struct WaveReader<'m, 't> {
    model: &'m Model,
    text: &'t str,
}

impl<'m> WaveReader<'m, '_> {
    fn slice(&self, node: &Node) -> &str {
        self.text.get(node.span()).unwrap_or(self.text)
    }

    fn not(&self, node: &Node, ty: &Type) -> String {
        format!("`{}` is not a {}", self.slice(node), self.model.wit(ty))
    }

    fn value(&self, ty: &'m Type, node: &Node) -> Result<WitValue<'m>, String> {
        let ty = self.model.resolve(ty);
        let text = self.text;
        let no = |_: ParserError| self.not(node, ty);
        Ok(match ty {
            Type::Bool => WitValue::Bool(node.as_bool().map_err(no)?),
            Type::U8 => WitValue::U8(node.as_number(text).map_err(no)?),
            Type::U16 => WitValue::U16(node.as_number(text).map_err(no)?),
            Type::U32 => WitValue::U32(node.as_number(text).map_err(no)?),
            Type::U64 => WitValue::U64(node.as_number(text).map_err(no)?),
            Type::S8 => WitValue::S8(node.as_number(text).map_err(no)?),
            Type::S16 => WitValue::S16(node.as_number(text).map_err(no)?),
            Type::S32 => WitValue::S32(node.as_number(text).map_err(no)?),
            Type::S64 => WitValue::S64(node.as_number(text).map_err(no)?),
            Type::F32 => WitValue::F32(node.as_number(text).map_err(no)?),
            Type::F64 => WitValue::F64(node.as_number(text).map_err(no)?),
            Type::Char => WitValue::Char(node.as_char(text).map_err(no)?),
            Type::String => WitValue::String(node.as_str(text).map_err(no)?.into_owned()),
            Type::List(t) if *self.model.resolve(t) == Type::U8 => self.bytes(t, ty, node)?,
            Type::List(t) => WitValue::List(self.items(t, node.as_list().map_err(no)?)?),
            Type::FixedList(t, count) => {
                let items = self.items(t, node.as_list().map_err(no)?)?;
                if items.len() != *count as usize {
                    return Err(format!(
                        "{} elements are given for {}",
                        items.len(),
                        self.model.wit(ty)
                    ));
                }
                WitValue::List(items)
            }
            Type::Tuple(types) => {
                let nodes = node.as_tuple().map_err(no)?;
                if nodes.len() != types.len() {
                    return Err(format!(
                        "{} members are given for {}",
                        nodes.len(),
                        self.model.wit(ty)
                    ));
                }
                WitValue::Tuple(
                    types
                        .iter()
                        .zip(nodes)
                        .map(|(t, n)| self.value(t, n))
                        .collect::<Result<_, _>>()?,
                )
            }
            Type::Option(t) => WitValue::Option(self.option(t, node, ty)?),
            Type::Result(ok, err) => match node.ty() {
                NodeType::ResultOk | NodeType::ResultErr => match node.as_result().map_err(no)? {
                    Ok(value) => WitValue::Result(Ok(self.payload(ok.as_deref(), value, node)?)),
                    Err(item) => WitValue::Result(Err(self.payload(err.as_deref(), item, node)?)),
                },
                _ => match ok {
                    Some(t) if self.flat(t) => {
                        WitValue::Result(Ok(Some(Box::new(self.value(t, node)?))))
                    }
                    _ => return Err(self.not(node, ty)),
                },
            },
            Type::Own(id) | Type::Borrow(id) => self.handle(*id, node)?,
            Type::Named(id) => self.shape(&self.model.def(*id).shape, ty, node)?,
        })
    }

    /// The elements of a `list<u8>`: numbers, or a text in UTF-8.
    fn bytes(&self, t: &Type, ty: &Type, node: &Node) -> Result<WitValue<'m>, String> {
        let no = |_: ParserError| self.not(node, ty);
        if matches!(node.ty(), NodeType::String | NodeType::MultilineString) {
            let text = node.as_str(self.text).map_err(no)?;
            return Ok(WitValue::Bytes(text.into_owned().into_bytes()));
        }
        let mut bytes = Vec::new();
        for item in node.as_list().map_err(no)? {
            bytes.push(item.as_number(self.text).map_err(|_| self.not(item, t))?);
        }
        Ok(WitValue::Bytes(bytes))
    }

    /// The content of an option type `ty`, whose content is of type `t`.
    fn option(
        &self,
        t: &'m Type,
        node: &Node,
        ty: &Type,
    ) -> Result<Option<Box<WitValue<'m>>>, String> {
        let some = match node.ty() {
            NodeType::OptionNone => return Ok(None),
            NodeType::OptionSome => node.as_option().ok().flatten(),
            // A bare value means `some(value)` where that is unambiguous.
            _ => self.flat(t).then_some(node),
        };
        let some = some.ok_or_else(|| self.not(node, ty))?;
        Ok(Some(Box::new(self.value(t, some)?)))
    }

    /// `name(7)`, or the number alone.
    fn handle(&self, id: TypeId, node: &Node) -> Result<WitValue<'m>, String> {
        let name = self.model.def(id).name.as_str();
        let number = match node.as_variant(self.text) {
            Ok((given, Some(number))) if given == name => number,
            _ => node,
        };
        let number = number.as_number(self.text);
        let wanted = |_| format!("`{}` is not the number of a handle", self.slice(node));
        Ok(WitValue::Handle(name, number.map_err(wanted)?))
    }

    fn items<'n>(
        &self,
        ty: &'m Type,
        nodes: impl Iterator<Item = &'n Node>,
    ) -> Result<Vec<WitValue<'m>>, String> {
        nodes.map(|node| self.value(ty, node)).collect()
    }

    /// Returns `true` if WAVE lets a bare value stand for `some(value)` or `ok(value)`.
    fn flat(&self, ty: &Type) -> bool {
        !matches!(self.model.resolve(ty), Type::Option(_) | Type::Result(..))
    }

    fn payload(
        &self,
        ty: Option<&'m Type>,
        value: Option<&Node>,
        node: &Node,
    ) -> Result<Option<Box<WitValue<'m>>>, String> {
        match (ty, value) {
            (Some(ty), Some(value)) => Ok(Some(Box::new(self.value(ty, value)?))),
            (None, None) => Ok(None),
            (Some(ty), None) => {
                Err(format!("`{}` lacks its {}", self.slice(node), self.model.wit(ty)))
            }
            (None, Some(_)) => Err(format!("`{}` carries no value here", self.slice(node))),
        }
    }

    fn shape(&self, shape: &'m TypeBody, ty: &Type, node: &Node) -> Result<WitValue<'m>, String> {
        let text = self.text;
        let no = |_: ParserError| self.not(node, ty);
        match shape {
            TypeBody::Record(fields) => {
                let mut given: Vec<(&str, &Node)> = node.as_record(text).map_err(no)?.collect();
                let mut values = Vec::new();
                for field in fields {
                    let value = match given.iter().position(|(name, _)| *name == field.name) {
                        Some(at) => self.value(&field.ty, given.swap_remove(at).1)?,
                        None if matches!(self.model.resolve(&field.ty), Type::Option(_)) => {
                            WitValue::Option(None)
                        }
                        None => {
                            return Err(format!(
                                "field `{}` of {} is missing",
                                field.name,
                                self.model.wit(ty)
                            ));
                        }
                    };
                    values.push((field.name.as_str(), value));
                }
                match given.first() {
                    Some((name, _)) => Err(format!("{} has no field `{name}`", self.model.wit(ty))),
                    None => Ok(WitValue::Record(values)),
                }
            }
            TypeBody::Variant(cases) => {
                let (name, value) = node.as_variant(text).map_err(no)?;
                let found = cases.iter().enumerate().find(|(_, case)| case.name == name);
                let (number, case) = found
                    .ok_or_else(|| self.no_case(name, cases.iter().map(|c| c.name.as_str())))?;
                Ok(WitValue::Variant(
                    number,
                    &case.name,
                    self.payload(case.ty.as_ref(), value, node)?,
                ))
            }
            TypeBody::Enum(labels) => {
                let name = node.as_enum(text).map_err(no)?;
                let found = labels.iter().enumerate().find(|(_, label)| label.name == name);
                let (number, label) = found
                    .ok_or_else(|| self.no_case(name, labels.iter().map(|l| l.name.as_str())))?;
                Ok(WitValue::Enum(number, &label.name))
            }
            TypeBody::Flags(labels) => {
                let mut bits = 0_u64;
                for name in node.as_flags(text).map_err(no)? {
                    let at = labels.iter().position(|label| label.name == name);
                    bits |= 1
                        << at.ok_or_else(|| {
                            self.no_case(name, labels.iter().map(|l| l.name.as_str()))
                        })?;
                }
                Ok(flags(labels, bits))
            }
            TypeBody::Alias(ty) => self.value(ty, node),
            TypeBody::Resource => Err(self.not(node, ty)),
        }
    }

    fn no_case<'a>(&self, name: &str, there: impl Iterator<Item = &'a str>) -> String {
        format!("there is no `{name}`, only {}", there.collect::<Vec<_>>().join(", "))
    }
}

/// Flags with the names of the bits that are set.
pub(super) fn flags(labels: &[crate::model::Label], bits: u64) -> WitValue<'_> {
    let set = labels.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
    WitValue::Flags(bits, set.map(|(_, label)| label.name.as_str()).collect())
}
