//! Calls of interfaces that are known only at run time, with arguments and results as text.
//!
//! A server hands out the WIT source of what it exports. From that source, a procedure's name, and
//! arguments in WAVE (the text form that the component model defines for values),
//! [`DynamicInterface`] makes the argument block that a compiled stub would have made, and turns
//! the result block back into WAVE. `upcall call` is built on this module.
//!
//! Neither the source nor the result is trusted: both come from another domain. The source is
//! bounded in length and depth before it is parsed. In a result, every length, discriminant,
//! character and flag is checked, and no byte of a tail counts twice. A result that is too large
//! for a human to read is refused rather than printed: the block, the values in it, and their text
//! each have a limit, since the text repeats names of the source as often as the block says.
//!
//! Handles print as `file(7)`: the resource's name and the number, the nearest form that is valid
//! WAVE. As an argument, the number alone is accepted.

mod block;
#[cfg(test)]
mod tests;
mod value;
mod wave;

use crate::error::{Error, Location};
use crate::limits::LimitsFile;
use crate::model::{Model, ProcedureDefinition, ProcedureKind, Type};
use crate::parse;
use std::borrow::Cow;
use std::fmt;
pub use value::WitValue;
use wasm_wave::writer::WriterError;

/// Maximum length of a source text, in bytes.
pub const MAX_SOURCE: usize = 1 << 20;

/// Maximum length of a result block that is converted to text, in bytes.
pub const MAX_RESULT: usize = 16 << 20;

/// Maximum number of values in a result that is converted to text, not counting the bytes of a
/// `list<u8>`.
pub const MAX_VALUES: usize = 4 << 20;

/// Maximum length of the text of a result, in bytes. Any string and any `list<u8>` that fits in a
/// block fits in it.
pub const MAX_TEXT: usize = 8 * MAX_RESULT;

/// An interface that was compiled from text at run time.
///
/// ```
/// use upcall_idl::dynamic::DynamicInterface;
///
/// let source = "package demo:math; interface math { add: func(a: u32, b: u32) -> u32; }";
/// let math = DynamicInterface::parse("demo:math/math", source, "")?;
/// let add = math.procedure("add")?;
///
/// let arguments = math.encode(add, &["2", "3"])?;
/// assert_eq!(arguments, [2, 0, 0, 0, 3, 0, 0, 0]);
/// assert_eq!(math.decode(add, &5_u32.to_le_bytes())?, "5");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DynamicInterface {
    model: Model,
    index: usize,
}

/// Compiles a source text and the text of the TOML file beside it, which may be empty. Error
/// messages call the source `of`.
///
/// # Errors
/// As for [`load`](crate::load), and if a text is longer than [`MAX_SOURCE`].
pub fn model(of: &str, source: &str, limits: &str) -> Result<Model, Error> {
    let file = format!("source of {of}");
    if source.len() > MAX_SOURCE || limits.len() > MAX_SOURCE {
        let construct = format!("a source text of more than {MAX_SOURCE} bytes");
        let whole = Location { file, line: 0, column: 0 };
        return Err(Error::unsupported(
            &whole,
            construct,
            "the server should split its interfaces",
        ));
    }
    parse::parse(
        &parse::WitSource::Text(&file, source),
        &LimitsFile::parse(&format!("limits of {of}"), limits)?,
    )
}

/// An argument of a dynamic call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallArgument<'a> {
    /// A value of any type in WAVE.
    Wave(Cow<'a, str>),
    /// The characters of a `string`, of a `char`, or of an option of these, without quotes.
    Text(Cow<'a, str>),
    /// The bytes of a `list<u8>`, or of an option of it.
    Bytes(Cow<'a, [u8]>),
}

/// Whether a procedure succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcedureOutcome {
    /// The procedure succeeded.
    Done,
    /// The procedure returned the error that its type declares: the `err` of a `result`.
    Error,
}

impl DynamicInterface {
    /// Compiles `source` and selects the interface `id` (`namespace:package/name@version`) from it.
    /// `limits` is the text of the TOML file, or empty.
    ///
    /// # Errors
    /// As for [`load`](crate::load), and if the source has no such interface.
    pub fn parse(id: &str, source: &str, limits: &str) -> Result<Self, Error> {
        let whole = || Location { file: format!("source of {id}"), line: 0, column: 0 };
        let model = model(id, source, limits)?;
        match model.interfaces.iter().position(|i| i.id == id && i.foreign.is_none()) {
            Some(index) => Ok(Self { model, index }),
            None => {
                let there: Vec<&str> = model.interfaces.iter().map(|i| i.id.as_str()).collect();
                Err(Error::Wit {
                    at: whole(),
                    message: format!("it has no interface `{id}`, only {}", there.join(", ")),
                })
            }
        }
    }

    /// The interface's entry in the model.
    #[must_use]
    pub fn interface(&self) -> &crate::model::InterfaceDefinition {
        &self.model.interfaces[self.index]
    }

    /// The whole model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The procedure `name`: `open`, `file.read`, `file.constructor`.
    ///
    /// # Errors
    /// [`ValueError::NoProcedure`], with the names that exist.
    pub fn procedure(&self, name: &str) -> Result<&ProcedureDefinition, ValueError> {
        let found = self.interface().bound().find(|p| p.name == name);
        found.ok_or_else(|| ValueError::NoProcedure {
            name: name.to_owned(),
            interface: self.interface().id.clone(),
            there: self.interface().bound().map(|p| p.name.clone()).collect(),
        })
    }

    /// One line that shows how to call it: `file.read(self: file, offset: u64) -> list<u8>`.
    #[must_use]
    pub fn usage(&self, procedure: &ProcedureDefinition) -> String {
        let params: Vec<String> = procedure
            .params
            .iter()
            .map(|p| format!("{}: {}", p.name, self.model.wit(&p.ty)))
            .collect();
        let result = procedure
            .result
            .as_ref()
            .map(|ty| format!(" -> {}", self.model.wit(ty)))
            .unwrap_or_default();
        format!("{}({}){result}", procedure.name, params.join(", "))
    }

    /// Makes the argument block for a call from one WAVE text per parameter. A method's first
    /// argument is the handle. Trailing options may be omitted, and are then `none`, as in WAVE.
    ///
    /// # Errors
    /// A [`ValueError`] that names the parameter and its type.
    pub fn encode(
        &self,
        procedure: &ProcedureDefinition,
        arguments: &[&str],
    ) -> Result<Vec<u8>, ValueError> {
        let arguments: Vec<_> =
            arguments.iter().map(|text| CallArgument::Wave(Cow::Borrowed(text))).collect();
        self.encode_arguments(procedure, &arguments)
    }

    /// Makes the argument block for a call as [`encode`](Self::encode) does, from arguments that
    /// need not be WAVE.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode), and [`ValueError::Argument`] if text or bytes are given for
    /// a parameter of another type.
    pub fn encode_arguments(
        &self,
        procedure: &ProcedureDefinition,
        arguments: &[CallArgument<'_>],
    ) -> Result<Vec<u8>, ValueError> {
        if arguments.len() > procedure.params.len() {
            return Err(self.wrong_number(procedure, arguments.len()));
        }
        let mut values = Vec::new();
        for (index, param) in procedure.params.iter().enumerate() {
            let value = match arguments.get(index) {
                Some(argument) => self
                    .value(&param.ty, argument)
                    .map_err(|found| self.argument(&param.name, &param.ty, found))?,
                None if matches!(self.model.resolve(&param.ty), Type::Option(_)) => {
                    WitValue::Option(None)
                }
                None => return Err(self.wrong_number(procedure, arguments.len())),
            };
            values.push(value);
        }
        let mut block = block::BlockWriter::new(&self.model, procedure.args.size, procedure.limits);
        for (param, value) in procedure.params.iter().zip(&values) {
            block
                .put(&param.ty, value, param.offset)
                .map_err(|found| self.argument(&param.name, &param.ty, found))?;
        }
        Ok(block.finish())
    }

    /// Converts the result in `block` to WAVE; an empty text if the procedure returns nothing.
    ///
    /// # Errors
    /// - [`ValueError::Malformed`]: the block does not match the interface. The server is of
    ///   another version or broken.
    /// - [`ValueError::TooLong`] and [`ValueError::TooMuch`]: the result exceeds [`MAX_RESULT`],
    ///   [`MAX_VALUES`] or [`MAX_TEXT`].
    pub fn decode(
        &self,
        procedure: &ProcedureDefinition,
        block: &[u8],
    ) -> Result<String, ValueError> {
        self.decode_outcome(procedure, block).map(|(text, _)| text)
    }

    /// Converts the result in `block` to WAVE, and returns whether it is the error that the
    /// procedure declares.
    ///
    /// # Errors
    /// As [`DynamicInterface::decode`].
    pub fn decode_outcome(
        &self,
        procedure: &ProcedureDefinition,
        block: &[u8],
    ) -> Result<(String, ProcedureOutcome), ValueError> {
        let Some(value) = self.decode_value(procedure, block)? else {
            return Ok((String::new(), ProcedureOutcome::Done));
        };
        Ok((value.wave()?, value.outcome()))
    }

    /// Reads the result in `block`; `None` if the procedure returns nothing.
    ///
    /// # Errors
    /// As [`DynamicInterface::decode`].
    pub fn decode_value<'m>(
        &'m self,
        procedure: &'m ProcedureDefinition,
        block: &[u8],
    ) -> Result<Option<WitValue<'m>>, ValueError> {
        let Some(ty) = &procedure.result else { return Ok(None) };
        if block.len() > MAX_RESULT {
            return Err(ValueError::TooLong { len: block.len(), limit: MAX_RESULT });
        }
        let mut reader =
            block::BlockReader::new(&self.model, block, procedure.results.size, procedure.limits)?;
        reader.get(ty, 0).map(Some)
    }

    fn value<'m>(
        &'m self,
        ty: &'m Type,
        argument: &CallArgument<'_>,
    ) -> Result<WitValue<'m>, String> {
        let ty = self.model.resolve(ty);
        match (argument, ty) {
            (CallArgument::Wave(text), _) => wave::read(&self.model, ty, text),
            (_, Type::Option(inner)) => {
                Ok(WitValue::Option(Some(Box::new(self.value(inner, argument)?))))
            }
            (CallArgument::Text(text), Type::String) => Ok(WitValue::String(text.to_string())),
            (CallArgument::Text(text), Type::Char) => {
                let mut chars = text.chars();
                match (chars.next(), chars.next()) {
                    (Some(only), None) => Ok(WitValue::Char(only)),
                    _ => Err(format!("`{text}` is not one character")),
                }
            }
            (CallArgument::Bytes(bytes), Type::List(of)) if *self.model.resolve(of) == Type::U8 => {
                Ok(WitValue::Bytes(bytes.to_vec()))
            }
            (CallArgument::Text(text), _) => Err(format!("the text `{text}` is given")),
            (CallArgument::Bytes(bytes), _) => Err(format!("{} bytes are given", bytes.len())),
        }
    }

    fn argument(&self, parameter: &str, ty: &Type, found: String) -> ValueError {
        ValueError::Argument {
            parameter: parameter.to_owned(),
            expected: self.model.wit(ty),
            found,
        }
    }

    fn wrong_number(&self, procedure: &ProcedureDefinition, given: usize) -> ValueError {
        let object = matches!(procedure.kind, ProcedureKind::Method(_));
        ValueError::Count { given, usage: self.usage(procedure), object }
    }
}

/// Converts the value to WAVE, if that takes at most `limit` bytes.
fn text(value: &WitValue<'_>, limit: usize) -> Result<String, ValueError> {
    let mut bounded = Bounded { text: String::new(), limit };
    let written = wasm_wave::writer::Writer::new(&mut bounded).write_value(value);
    match written {
        Ok(()) => Ok(bounded.text),
        Err(WriterError::Io(_)) => Err(ValueError::TooMuch { what: "bytes of text", limit }),
        Err(other) => Err(ValueError::Malformed { at: 0, found: other.to_string() }),
    }
}

/// A text with a maximum length in bytes.
struct Bounded {
    text: String,
    limit: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() > self.limit - self.text.len() {
            return Err(fmt::Error);
        }
        self.text.push_str(more);
        Ok(())
    }
}

/// Why text could not be converted to a block, or a block to text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueError {
    /// The interface has no such procedure.
    NoProcedure {
        /// The name that was asked for.
        name: String,
        /// The interface that lacks it.
        interface: String,
        /// The names that exist.
        there: Vec<String>,
    },
    /// The number of arguments is wrong.
    Count {
        /// Number of arguments given.
        given: usize,
        /// How the procedure is called.
        usage: String,
        /// The procedure is a method, whose first argument is a handle.
        object: bool,
    },
    /// An argument does not fit its parameter.
    Argument {
        /// The parameter.
        parameter: String,
        /// The parameter's type.
        expected: String,
        /// What is wrong with the argument.
        found: String,
    },
    /// The block breaks the layout rules at this offset.
    Malformed {
        /// The offset from the start of the block, in bytes.
        at: u64,
        /// What was found there.
        found: String,
    },
    /// The result block is too long to be converted to text.
    TooLong {
        /// Length of the block, in bytes.
        len: usize,
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// The result has too many values, or its text is too long.
    TooMuch {
        /// What there is too much of: values, or bytes of text.
        what: &'static str,
        /// The maximum.
        limit: usize,
    },
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcedure { name, interface, there } => {
                write!(f, "{interface} has no procedure `{name}`; it has {}", there.join(", "))
            }
            Self::Count { given, usage, object } => {
                let handle =
                    if *object { "; the first argument is the number of the handle" } else { "" };
                write!(f, "{given} arguments were given for {usage}{handle}")
            }
            Self::Argument { parameter, expected, found } => {
                write!(f, "argument `{parameter}`: {found}; give a {expected} in WAVE")
            }
            Self::Malformed { at, found } => {
                write!(
                    f,
                    "the result is malformed at byte {at}: {found}; the server does not keep to \
                    its interface"
                )
            }
            Self::TooLong { len, limit } => {
                write!(
                    f,
                    "the result has {len} bytes, more than the {limit} that are shown as text; \
                    use a compiled client"
                )
            }
            Self::TooMuch { what, limit } => {
                write!(
                    f,
                    "the result has more than {limit} {what}, the most that is shown; use a \
                    compiled client"
                )
            }
        }
    }
}

impl std::error::Error for ValueError {}
