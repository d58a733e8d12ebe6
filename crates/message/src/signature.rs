//! Signatures of kinds of messages, for members in languages other than Rust.
//!
//! A signature is a text in the words of [`Payload::signature`](crate::Payload::signature): `()`, a
//! number (`u64 i64 u32 i32 u16 u8 bool f64 f32`), an array (`[u64; 4]`), a tuple
//! (`(u64, (f64, bool))`), `words`, `bytes` or `text`. Members compare their kinds by it, so it has
//! one form, with any spaces in the input removed. It stands for the layout that those types have
//! in Rust (`payload`): a word for each number, narrow ones extended by their sign, floats by their
//! bits.

use std::fmt;

/// Maximum number of words that a signature may name: those of the longest message.
const MOST_WORDS: usize = 1 << 27;

/// Maximum depth of arrays and tuples within each other.
const DEEPEST: usize = 32;

/// A number, in a word of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "Rust's names")]
pub enum Number {
    U64,
    I64,
    U32,
    I32,
    U16,
    U8,
    Bool,
    F64,
    F32,
}

const NUMBERS: [(&str, Number); 9] = [
    ("u64", Number::U64),
    ("i64", Number::I64),
    ("u32", Number::U32),
    ("i32", Number::I32),
    ("u16", Number::U16),
    ("u8", Number::U8),
    ("bool", Number::Bool),
    ("f64", Number::F64),
    ("f32", Number::F32),
];

impl Number {
    /// Its name in Rust.
    pub fn name(self) -> &'static str {
        NUMBERS.iter().find(|(_, number)| *number == self).map_or("", |(name, _)| name)
    }

    /// Returns `true` if a word is such a number.
    #[inline]
    pub fn fits(self, word: u64) -> bool {
        match self {
            Self::U64 | Self::I64 | Self::F64 => true,
            Self::U32 | Self::F32 => u32::try_from(word).is_ok(),
            Self::I32 => i32::try_from(word.cast_signed()).is_ok(),
            Self::U16 => u16::try_from(word).is_ok(),
            Self::U8 => u8::try_from(word).is_ok(),
            Self::Bool => word < 2,
        }
    }
}

/// A payload of a fixed number of words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One number.
    Number(Number),
    /// This number of items of one shape.
    Array(Box<Shape>, usize),
    /// Parts, one after the other; may be empty.
    Tuple(Vec<Shape>),
}

impl Shape {
    /// Number of words; `None` if it exceeds the maximum.
    fn count(&self) -> Option<usize> {
        let count = match self {
            Self::Number(_) => 1,
            Self::Array(item, count) => item.count()?.checked_mul(*count)?,
            Self::Tuple(parts) => parts.iter().try_fold(0_usize, |sum, part| {
                part.count().and_then(|count| sum.checked_add(count))
            })?,
        };
        (count <= MOST_WORDS).then_some(count)
    }

    /// Returns the first word that does not fit, and what it should be.
    fn unfit(&self, words: &mut impl Iterator<Item = u64>) -> Option<(u64, Number)> {
        match self {
            Self::Number(number) => {
                let word = words.next()?;
                if number.fits(word) { None } else { Some((word, *number)) }
            }
            Self::Array(item, count) => {
                let each = if item.count() == Some(0) { 0 } else { *count };
                (0..each).find_map(|_| item.unfit(words))
            }
            Self::Tuple(parts) => parts.iter().find_map(|part| part.unfit(words)),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => f.write_str(number.name()),
            Self::Array(item, count) => write!(f, "[{item}; {count}]"),
            Self::Tuple(parts) => {
                f.write_str("(")?;
                for (at, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if at > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
        }
    }
}

/// The payload of a kind of message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A fixed number of words of this shape.
    Words(Shape),
    /// Any number of words.
    AnyWords,
    /// Any number of bytes.
    Bytes,
    /// Text in UTF-8.
    Text,
}

/// The error for a text that is no signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSignature {
    /// The text.
    pub text: String,
    /// The reason.
    pub why: String,
}

impl fmt::Display for BadSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, why } = self;
        write!(
            f,
            "{text:?} does not say what a message carries: {why}; it is one of u64 i64 u32 i32 \
             u16 u8 bool f64 f32, an array [u64; 4], a tuple (u64, f64), (), words, bytes or text"
        )
    }
}

impl std::error::Error for BadSignature {}

/// The error for a payload that does not match its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Its size is wrong.
    Size {
        /// Its size, in bytes.
        found: usize,
        /// The expected size, in bytes; `None` for any number of whole words.
        expected: Option<usize>,
    },
    /// A word is out of the range of its number.
    Word {
        /// The word.
        found: u64,
        /// The expected type.
        expected: Number,
    },
    /// It is not UTF-8.
    Text {
        /// Number of valid bytes at the beginning.
        valid: usize,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { found, expected: Some(expected) } => {
                write!(f, "it has {found} bytes, and should have {expected}")
            }
            Self::Size { found, expected: None } => {
                write!(f, "it has {found} bytes, which are no whole words of 8")
            }
            Self::Word { found, expected } => {
                write!(f, "the word {found:#x} is no {}", expected.name())
            }
            Self::Text { valid } => write!(f, "it is not UTF-8 from byte {valid} on"),
        }
    }
}

impl std::error::Error for Unfit {}

impl Carried {
    /// Parses a signature.
    ///
    /// # Errors
    /// The text is no signature.
    pub fn parse(text: &str) -> Result<Self, BadSignature> {
        let bad = |why: String| BadSignature { text: text.into(), why };
        match text.trim() {
            "words" => return Ok(Self::AnyWords),
            "bytes" => return Ok(Self::Bytes),
            "text" => return Ok(Self::Text),
            _ => {}
        }
        let mut parser = Parser { rest: text };
        let shape = parser.shape(0).map_err(bad)?;
        parser.skip();
        if !parser.rest.is_empty() {
            return Err(bad(format!("{:?} is more than that", parser.rest)));
        }
        if shape.count().is_none() {
            return Err(bad(format!("more than {MOST_WORDS} words")));
        }
        Ok(Self::Words(shape))
    }

    /// Size of the payload, in bytes, if it is fixed.
    pub fn size(&self) -> Option<usize> {
        match self {
            Self::Words(shape) => shape.count().map(|count| count * 8),
            Self::AnyWords | Self::Bytes | Self::Text => None,
        }
    }

    /// Checks a payload.
    ///
    /// # Errors
    /// Returns why the payload does not match.
    #[inline]
    pub fn check(&self, payload: &[u8]) -> Result<(), Unfit> {
        self.check_of_size(self.size(), payload)
    }

    /// Like [`check`](Self::check), where [`size`](Self::size) is known.
    #[inline]
    pub(crate) fn check_of_size(
        &self,
        expected: Option<usize>,
        payload: &[u8],
    ) -> Result<(), Unfit> {
        if expected.is_some_and(|expected| expected != payload.len()) {
            return Err(Unfit::Size { found: payload.len(), expected });
        }
        match self {
            Self::Words(shape) => {
                let (words, _) = payload.as_chunks();
                match shape.unfit(&mut words.iter().map(|word| u64::from_ne_bytes(*word))) {
                    None => Ok(()),
                    Some((found, expected)) => Err(Unfit::Word { found, expected }),
                }
            }
            Self::AnyWords if payload.len().is_multiple_of(8) => Ok(()),
            Self::AnyWords => Err(Unfit::Size { found: payload.len(), expected: None }),
            Self::Bytes => Ok(()),
            Self::Text => match str::from_utf8(payload) {
                Ok(_) => Ok(()),
                Err(error) => Err(Unfit::Text { valid: error.valid_up_to() }),
            },
        }
    }
}

/// Writes the one form of the signature.
impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words(shape) => shape.fmt(f),
            Self::AnyWords => f.write_str("words"),
            Self::Bytes => f.write_str("bytes"),
            Self::Text => f.write_str("text"),
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, sign: char) -> bool {
        self.skip();
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, sign: char) -> Result<(), String> {
        if self.eat(sign) {
            Ok(())
        } else {
            Err(format!("{sign:?} is missing before {:?}", self.rest))
        }
    }

    fn word(&mut self) -> &str {
        self.skip();
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn shape(&mut self, depth: usize) -> Result<Shape, String> {
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} arrays and tuples within each other"));
        }
        if self.eat('(') {
            let mut parts = Vec::new();
            while !self.eat(')') {
                parts.push(self.shape(depth + 1)?);
                if !self.eat(',') {
                    self.expect(')')?;
                    break;
                }
            }
            return Ok(Shape::Tuple(parts));
        }
        if self.eat('[') {
            let item = self.shape(depth + 1)?;
            self.expect(';')?;
            let count = self.word();
            let count = count
                .parse()
                .ok()
                .filter(|count| *count <= MOST_WORDS)
                .ok_or(format!("{count:?} is no length"))?;
            self.expect(']')?;
            return Ok(Shape::Array(Box::new(item), count));
        }
        let word = self.word();
        let number = NUMBERS
            .iter()
            .find(|(name, _)| *name == word)
            .map(|(_, number)| Shape::Number(*number));
        number.ok_or(format!("there is no {word:?} among them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;

    fn same<T: Payload + ?Sized>(size: Option<usize>) {
        let text = T::signature();
        let carried = Carried::parse(&text).unwrap();
        assert_eq!((carried.to_string(), carried.size()), (text, size));
    }

    #[test]
    fn signatures_of_rusts_types_are_understood() {
        same::<()>(Some(0));
        same::<u64>(Some(8));
        same::<f32>(Some(8));
        same::<bool>(Some(8));
        same::<(u64,)>(Some(8));
        same::<[i32; 5]>(Some(40));
        same::<((u8, i64), [[u16; 2]; 3], ())>(Some(64));
        same::<[u64]>(None);
        same::<[u8]>(None);
        same::<str>(None);
    }

    #[test]
    fn there_is_one_form() {
        for text in ["(u64,[i32;2],())", " ( u64 , [ i32 ; 2 ] , ( ) , ) "] {
            assert_eq!(Carried::parse(text).unwrap().to_string(), "(u64, [i32; 2], ())");
        }
    }

    #[test]
    fn what_is_none_is_told() {
        let all = [
            ("", "\"\""),
            ("u46", "u46"),
            ("(u64", "missing"),
            ("[u64]", "';'"),
            ("[u64; x]", "length"),
            ("[u64; -1]", "length"),
            ("u64 u64", "more than that"),
            ("(words)", "words"),
            ("[[u64; 100000]; 100000]", "134217728"),
        ];
        for (text, part) in all {
            let error = Carried::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let deep = format!("{}{}", "(".repeat(100), ")".repeat(100));
        assert!(Carried::parse(&deep).unwrap_err().why.contains("within"));
    }

    #[test]
    fn payloads_are_checked() {
        let bytes =
            |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let check = |text: &str, payload: &[u8]| Carried::parse(text).unwrap().check(payload);
        assert_eq!(check("()", &[]), Ok(()));
        assert_eq!(check("()", &[0]), Err(Unfit::Size { found: 1, expected: Some(0) }));
        assert_eq!(check("[(); 100]", &[]), Ok(()));
        let minus = i64::from(i32::MIN).cast_unsigned();
        assert_eq!(check("(i32, bool, [u8; 2])", &bytes(&[minus, 1, 255, 0])), Ok(()));
        for (text, word, expected) in [
            ("i32", 1 << 31, Number::I32),
            ("u32", 1 << 32, Number::U32),
            ("u16", 1 << 16, Number::U16),
            ("u8", 256, Number::U8),
            ("bool", 2, Number::Bool),
            ("f32", 1 << 32, Number::F32),
        ] {
            assert_eq!(check(text, &bytes(&[word])), Err(Unfit::Word { found: word, expected }));
        }
        assert_eq!(check("words", &[0; 16]), Ok(()));
        assert_eq!(check("words", &[0; 15]), Err(Unfit::Size { found: 15, expected: None }));
        assert_eq!(check("text", "aß".as_bytes()), Ok(()));
        assert_eq!(check("text", b"a\xff"), Err(Unfit::Text { valid: 1 }));
    }
}
