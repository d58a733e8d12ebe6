//! Lengths and counts: the TOML file beside a `.wit` file.
//!
//! WIT has no place for such numbers and no user-defined attributes, so they are in a file of the
//! same name with the extension `.toml` (for a folder `wit/store`, in `wit/store.toml`). All of it
//! is optional; the keys are shown at the head of `lib.rs`. The innermost table takes precedence.

use crate::error::{Error, Location};
use crate::layout::round_up;
use crate::model::{Model, Param, ProcedureDefinition, Type};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// Default maximum length of a string (in bytes) and of a list (in elements): enough for 1 GiB in
/// one call.
pub const DEFAULT_LENGTH: u64 = 1 << 30;
/// Default maximum memory of a server for the arguments of one call as values of its own, in bytes.
pub const DEFAULT_VALUES: u64 = 16 << 20;
/// Default room for a tail, in bytes.
pub const DEFAULT_TAIL: u32 = 1024;
/// Default number of simultaneous calls that are first permitted (LRPC, section 3.1, also uses
/// five).
pub const DEFAULT_CALLS: u16 = 5;
/// Maximum tail of an A-stack, in bytes. A longer one is taken for a mistake.
pub const MAX_TAIL: u64 = 1 << 30;

/// The limits of one procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub string: u64,
    pub list: u64,
    pub values: u64,
    pub tail: u32,
    pub calls: u16,
}

/// The path of the limits file for `wit`, whether it exists or not.
pub(crate) fn path_beside(wit: &Path) -> PathBuf {
    if wit.is_dir() {
        let mut name = wit.file_name().unwrap_or_default().to_owned();
        name.push(".toml");
        wit.with_file_name(name)
    } else {
        wit.with_extension("toml")
    }
}

/// One table of the file. A `None` is decided by the enclosing table.
#[derive(Clone, Copy, Debug, Default)]
struct LimitTable {
    string: Option<u64>,
    list: Option<u64>,
    values: Option<u64>,
    tail: Option<u32>,
    calls: Option<u16>,
}

/// The table of one interface.
#[derive(Debug, Default)]
struct Section {
    at: Location,
    given: LimitTable,
    procedures: BTreeMap<String, (Location, LimitTable)>,
}

/// The limits file, read and checked, except for the names in it, whose check needs the model.
#[derive(Debug, Default)]
pub(crate) struct LimitsFile {
    text: String,
    all: LimitTable,
    interfaces: BTreeMap<String, Section>,
}

impl LimitsFile {
    /// Reads the limits file beside `wit`; no limits if it does not exist.
    pub(crate) fn beside(wit: &Path) -> Result<(Self, Option<PathBuf>), Error> {
        let path = path_beside(wit);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok((Self::parse(&path.display().to_string(), &text)?, Some(path))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok((Self::default(), None)),
            Err(e) => {
                Err(Error::file("read", &path, &e, "make it a readable UTF-8 text, or remove it"))
            }
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, Error> {
        let reader = LimitsReader { file, text };
        let table = DeTable::parse(text).map_err(|e| {
            let start = e.span().map_or(0, |s| s.start);
            let advice = "write [limits], or [<interface>], and below it key = number";
            Error::Limits {
                at: reader.at(start),
                found: format!(
                    "this is not TOML: {}",
                    e.message().lines().collect::<Vec<_>>().join(" ")
                ),
                advice: unquoted(text, start).unwrap_or_else(|| advice.to_owned()),
            }
        })?;
        let mut limits = Self { text: text.to_owned(), ..Self::default() };
        for (name, value) in table.get_ref() {
            let section = reader.section(name, value)?;
            if name.get_ref() == "limits" {
                if let Some((procedure, (at, _))) = section.procedures.first_key_value() {
                    return Err(Error::Limits {
                        at: at.clone(),
                        found: format!("[limits] holds a table `{procedure}`"),
                        advice: format!("name the interface: [<interface>.\"{procedure}\"]"),
                    });
                }
                limits.all = section.given;
            } else {
                limits.interfaces.insert(name.get_ref().to_string(), section);
            }
        }
        Ok(limits)
    }

    /// The limits of a procedure.
    pub(crate) fn of(&self, interface: &str, procedure: &str) -> Chosen {
        let section = self.interfaces.get(interface);
        let own = section
            .and_then(|s| s.procedures.get(procedure))
            .map(|(_, given)| *given)
            .unwrap_or_default();
        let around = section.map(|s| s.given).unwrap_or_default();
        Chosen {
            string: own.string.or(around.string).or(self.all.string).unwrap_or(DEFAULT_LENGTH),
            list: own.list.or(around.list).or(self.all.list).unwrap_or(DEFAULT_LENGTH),
            values: own.values.or(around.values).or(self.all.values).unwrap_or(DEFAULT_VALUES),
            tail: own.tail.or(around.tail).or(self.all.tail).unwrap_or(DEFAULT_TAIL),
            calls: own.calls.or(around.calls).or(self.all.calls).unwrap_or(DEFAULT_CALLS),
        }
    }

    /// Refuses tables for interfaces and procedures that do not exist: a limit under a misspelt
    /// name would have no effect.
    pub(crate) fn check_names(&self, model: &Model) -> Result<(), Error> {
        let own = || model.interfaces.iter().filter(|i| i.foreign.is_none());
        for (name, section) in &self.interfaces {
            let Some(interface) = own().find(|i| i.name == *name) else {
                return Err(Error::Limits {
                    at: section.at.clone(),
                    found: format!("there is no interface `{name}`"),
                    advice: format!(
                        "there is: limits (for all), {}",
                        listed(own().map(|i| i.name.as_str()))
                    ),
                });
            };
            for (procedure, (at, _)) in &section.procedures {
                if !interface.procedures.iter().any(|p| p.name == *procedure) {
                    return Err(Error::Limits {
                        at: at.clone(),
                        found: format!("interface `{name}` has no procedure `{procedure}`"),
                        advice: format!(
                            "it has: {}",
                            listed(interface.procedures.iter().map(|p| p.name.as_str()))
                        ),
                    });
                }
            }
        }
        Ok(())
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Reads the tables, and reports errors with their places.
struct LimitsReader<'a> {
    file: &'a str,
    text: &'a str,
}

impl LimitsReader<'_> {
    fn at(&self, offset: usize) -> Location {
        Location::of_offset(self.file, self.text, offset)
    }

    fn section(
        &self,
        name: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Section, Error> {
        let at = self.at(name.span().start);
        let DeValue::Table(table) = value.get_ref() else {
            return Err(Error::Limits {
                at,
                found: format!("`{}` stands outside of any table", name.get_ref()),
                advice: "put it below [limits], or below [<interface>]".to_owned(),
            });
        };
        let mut section = Section { at, ..Section::default() };
        for (key, value) in table {
            if let DeValue::Table(inner) = value.get_ref() {
                let mut given = LimitTable::default();
                for (key, value) in inner {
                    self.number(&mut given, key, value)?;
                }
                section
                    .procedures
                    .insert(key.get_ref().to_string(), (self.at(key.span().start), given));
            } else {
                self.number(&mut section.given, key, value)?;
            }
        }
        Ok(section)
    }

    fn number(
        &self,
        given: &mut LimitTable,
        key: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), Error> {
        let bounded = |most: u64, unit: &str| {
            let number = match value.get_ref() {
                DeValue::Integer(n) => {
                    u64::from_str_radix(&n.as_str().replace('_', ""), n.radix()).ok()
                }
                DeValue::String(text) => size(text),
                _ => None,
            };
            number.filter(|n| (1..=most).contains(n)).ok_or_else(|| Error::Limits {
                at: self.at(value.span().start),
                found: format!(
                    "`{}` is not a number of {unit} from 1 to {most}",
                    &self.text[value.span()]
                ),
                advice: match value.get_ref() {
                    DeValue::String(text) if has_unknown_unit(text) => {
                        format!("the units are {UNITS}, as in {} = \"4KiB\"", key.get_ref())
                    }
                    _ => format!("write {0} = 4096, or {0} = \"4KiB\"", key.get_ref()),
                },
            })
        };
        match key.get_ref().as_ref() {
            "string" => given.string = Some(bounded(u64::MAX, "bytes")?),
            "list" => given.list = Some(bounded(u64::MAX, "elements")?),
            "values" => given.values = Some(bounded(u64::MAX, "bytes")?),
            "tail" => given.tail = u32::try_from(round_up(bounded(MAX_TAIL, "bytes")?, 8)).ok(),
            "calls" => given.calls = u16::try_from(bounded(u64::from(u16::MAX), "calls")?).ok(),
            other => {
                return Err(Error::Limits {
                    at: self.at(key.span().start),
                    found: format!("`{other}` is not a limit"),
                    advice: "the limits are: string, list, values, tail, calls; a procedure is a \
                        table, [<interface>.\"<name>\"]"
                        .to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// The units, for error texts.
const UNITS: &str = "KiB, MiB and GiB";

/// `"64KiB"`, `"1 MiB"`, `"512"`.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = parts(text);
    digits.parse::<u64>().ok()?.checked_mul(bytes(unit)?)
}

/// The number in front of a unit, and the unit.
fn parts(text: &str) -> (&str, &str) {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    (digits, text[digits.len()..].trim())
}

/// The number of bytes of a unit.
fn bytes(unit: &str) -> Option<u64> {
    match unit {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    }
}

/// Returns `true` for a number with a unit that is none of [`UNITS`].
fn has_unknown_unit(text: &str) -> bool {
    let (digits, unit) = parts(text);
    digits.parse::<u64>().is_ok() && bytes(unit).is_none()
}

/// What to write in place of a number with a unit that is not in quotes, such as `tail = 64KiB`, in
/// the line with the byte `at`.
fn unquoted(text: &str, at: usize) -> Option<String> {
    let (before, after) = text.split_at_checked(at)?;
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    let end = after.find('\n').map_or(text.len(), |end| at + end);
    let (key, value) = text[start..end].split('#').next()?.split_once('=')?;
    let (key, value) = (key.trim(), value.trim());
    let (digits, unit) = parts(value);
    let is_unit = !unit.is_empty() && unit.chars().all(|c| c.is_ascii_alphabetic());
    if !is_unit || digits.parse::<u64>().is_err() {
        return None;
    }
    Some(match bytes(unit) {
        Some(_) => format!("write {key} = \"{value}\""),
        None => format!("the units are {UNITS}, in quotes, as in {key} = \"4KiB\""),
    })
}

impl Model {
    /// Returns `true` if a server copies arguments of no fixed size. Then the limit `values` counts
    /// for the procedure.
    #[must_use]
    pub fn copies_arguments(&self, procedure: &ProcedureDefinition) -> bool {
        let is_copied =
            |param: &Param| !self.is_used_in_place(param) && !self.layout(&param.ty).fixed;
        procedure.params.iter().any(is_copied)
    }

    /// Returns `true` for bytes, which a server uses in place because it does not interpret them.
    #[must_use]
    pub fn is_used_in_place(&self, param: &Param) -> bool {
        matches!(self.resolve(&param.ty), Type::List(of) if *self.resolve(of) == Type::U8)
    }

    /// Maximum number of bytes that the arguments and the results of a procedure can take under its
    /// limits; `u64::MAX` if the number overflows.
    #[must_use]
    pub fn longest(&self, procedure: &ProcedureDefinition) -> (u64, u64) {
        let limits = procedure.limits;
        let chosen = Chosen {
            string: limits.string,
            list: limits.list,
            values: limits.values,
            tail: 0,
            calls: 0,
        };
        let block = |fixed: u64, types: &mut dyn Iterator<Item = &Type>| {
            types.fold(fixed, |sum, ty| sum.saturating_add(self.longest_tail(ty, &chosen)))
        };
        let args = block(procedure.args.size, &mut procedure.params.iter().map(|param| &param.ty));
        (args, block(procedure.results.size, &mut procedure.result.iter()))
    }

    /// Maximum number of bytes that a value of `ty` can take in the tail under the limits. Each
    /// piece of a tail is rounded up to 8.
    pub(crate) fn longest_tail(&self, ty: &Type, limits: &Chosen) -> u64 {
        use crate::model::TypeBody;
        if self.layout(ty).fixed {
            return 0;
        }
        let of = |t: &Type| self.longest_tail(t, limits);
        let up = |n: u64| n.checked_next_multiple_of(8).unwrap_or(u64::MAX);
        match ty {
            Type::String => up(limits.string),
            Type::List(t) => {
                let each = self.layout(t).size;
                up(limits.list.saturating_mul(each))
                    .saturating_add(limits.list.saturating_mul(of(t)))
            }
            Type::FixedList(t, count) => of(t).saturating_mul(u64::from(*count)),
            Type::Option(t) => of(t),
            Type::Result(ok, err) => {
                [ok, err].into_iter().flatten().map(|t| of(t)).max().unwrap_or(0)
            }
            Type::Tuple(types) => types.iter().fold(0, |sum, t| sum.saturating_add(of(t))),
            Type::Named(id) => match &self.def(*id).shape {
                TypeBody::Record(fields) => {
                    fields.iter().fold(0, |sum, f| sum.saturating_add(of(&f.ty)))
                }
                TypeBody::Variant(cases) => {
                    cases.iter().filter_map(|c| c.ty.as_ref()).map(of).max().unwrap_or(0)
                }
                TypeBody::Alias(t) => of(t),
                TypeBody::Enum(_) | TypeBody::Flags(_) | TypeBody::Resource => 0,
            },
            _ => 0,
        }
    }
}
