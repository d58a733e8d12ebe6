//! The result of a call: for people, as JSON, or as bytes.

use crate::output::{plain, write_json_line};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt::{self, Write};
use std::io;
use upcall_idl::dynamic::{MAX_TEXT, ValueError, WitValue};
use upcall_idl::model::{Model, Type};
use upcall_idl::steers;

/// For `upcall call --help`.
pub const HELP: &str = "\
With --json each call prints one line, an object with the keys `procedure` and `result`: numbers,
booleans, texts, arrays (lists, tuples, flags) and objects (records) as JSON has them; bytes as
{\"hex\": …, \"text\": … (if UTF-8)}; an option as its value or null; a result as {\"ok\": …}
or {\"err\": …}; a case of a variant as its name or {NAME: …}; a resource as {\"resource\": …,
\"handle\": …}; NaN and infinities as texts.";

/// The value for people: WAVE, but for bytes, which are text in quotes if they can be read, and
/// hex otherwise.
///
/// # Errors
/// The text is longer than is shown.
pub fn for_people(value: &WitValue<'_>) -> Result<String, ValueError> {
    let mut out = ResultText { text: String::new() };
    let written = write_value(&mut out, value);
    match written {
        Ok(()) => Ok(plain(&out.text)),
        Err(NotShown::Full) => Err(ValueError::TooMuch { what: "bytes of text", limit: MAX_TEXT }),
        Err(NotShown::Value(error)) => Err(error),
    }
}

/// A text of at most [`MAX_TEXT`] bytes. The names in a value are the server's, and each may stand
/// there as often as there are values.
struct ResultText {
    text: String,
}

impl Write for ResultText {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() > MAX_TEXT - self.text.len() {
            return Err(fmt::Error);
        }
        self.text.push_str(more);
        Ok(())
    }
}

enum NotShown {
    Full,
    Value(ValueError),
}

impl From<fmt::Error> for NotShown {
    fn from(_: fmt::Error) -> Self {
        Self::Full
    }
}

impl From<ValueError> for NotShown {
    fn from(error: ValueError) -> Self {
        Self::Value(error)
    }
}

fn write_value(out: &mut ResultText, value: &WitValue<'_>) -> Result<(), NotShown> {
    match value {
        WitValue::Bytes(bytes) => match readable(bytes) {
            Some(text) => out.write_str(&WitValue::String(text.into()).wave()?)?,
            None => {
                out.write_str("0x")?;
                bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
            }
        },
        WitValue::List(items) => write_all(out, "[", items, "]")?,
        WitValue::Tuple(items) => write_all(out, "(", items, ")")?,
        WitValue::Record(fields) if !fields.is_empty() => {
            for (at, (name, value)) in fields.iter().enumerate() {
                write!(out, "{}{name}: ", if at == 0 { "{" } else { ", " })?;
                write_value(out, value)?;
            }
            out.write_str("}")?;
        }
        WitValue::Variant(number, name, Some(payload)) => {
            out.write_str(&WitValue::Variant(*number, name, None).wave()?)?;
            write_payload(out, "", payload)?;
        }
        WitValue::Option(Some(value)) => write_payload(out, "some", value)?,
        WitValue::Result(Ok(Some(value))) => write_payload(out, "ok", value)?,
        WitValue::Result(Err(Some(value))) => write_payload(out, "err", value)?,
        leaf => out.write_str(&leaf.wave()?)?,
    }
    Ok(())
}

fn write_all(
    out: &mut ResultText,
    open: &str,
    items: &[WitValue<'_>],
    close: &str,
) -> Result<(), NotShown> {
    out.write_str(open)?;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.write_str(", ")?;
        }
        write_value(out, item)?;
    }
    out.write_str(close)?;
    Ok(())
}

fn write_payload(out: &mut ResultText, case: &str, value: &WitValue<'_>) -> Result<(), NotShown> {
    write!(out, "{case}(")?;
    write_value(out, value)?;
    out.write_str(")")?;
    Ok(())
}

/// The bytes as text, if a person can read them.
fn readable(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_seen = |c: char| matches!(c, '\n' | '\r' | '\t') || !c.is_control() && !steers(c);
    text.chars().all(is_seen).then_some(text)
}

/// Whether `--raw` can write the result of this type: text or bytes, also within a `result` or an
/// option.
pub fn is_raw(model: &Model, ty: &Type) -> bool {
    match model.resolve(ty) {
        Type::String | Type::Char => true,
        Type::List(of) => *model.resolve(of) == Type::U8,
        Type::Option(of) | Type::Result(Some(of), _) => is_raw(model, of),
        _ => false,
    }
}

/// The bytes that `--raw` writes. `None`: the value is an `err`, or of another type.
pub fn raw(value: &WitValue<'_>) -> Option<Vec<u8>> {
    match value {
        WitValue::String(text) => Some(text.clone().into_bytes()),
        WitValue::Char(c) => Some(c.to_string().into_bytes()),
        WitValue::Bytes(bytes) => Some(bytes.clone()),
        WitValue::Option(None) => Some(Vec::new()),
        WitValue::Option(Some(value)) | WitValue::Result(Ok(Some(value))) => raw(value),
        _ => None,
    }
}

/// One call and its result as a line of JSON.
///
/// # Errors
/// The line is longer than is shown.
pub fn json_line(procedure: &str, value: Option<&WitValue<'_>>) -> Result<String, ValueError> {
    let mut out = ResultBytes(Vec::new());
    let row = Row { procedure, result: value.map(AsJson) };
    write_json_line(&mut out, &row)
        .map_err(|_| ValueError::TooMuch { what: "bytes of JSON", limit: MAX_TEXT })?;
    Ok(String::from_utf8_lossy(&out.0).into_owned())
}

struct ResultBytes(Vec<u8>);

impl io::Write for ResultBytes {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if more.len() > MAX_TEXT - self.0.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(serde::Serialize)]
struct Row<'a> {
    procedure: &'a str,
    result: Option<AsJson<'a>>,
}

/// The value as [`HELP`] says.
struct AsJson<'a>(&'a WitValue<'a>);

impl Serialize for AsJson<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            WitValue::Bool(value) => to.serialize_bool(*value),
            WitValue::U8(value) => to.serialize_u8(*value),
            WitValue::U16(value) => to.serialize_u16(*value),
            WitValue::U32(value) => to.serialize_u32(*value),
            WitValue::U64(value) => to.serialize_u64(*value),
            WitValue::S8(value) => to.serialize_i8(*value),
            WitValue::S16(value) => to.serialize_i16(*value),
            WitValue::S32(value) => to.serialize_i32(*value),
            WitValue::S64(value) => to.serialize_i64(*value),
            WitValue::F32(value) if value.is_finite() => to.serialize_f32(*value),
            WitValue::F64(value) if value.is_finite() => to.serialize_f64(*value),
            // JSON has no number for these.
            WitValue::F32(value) => to.collect_str(value),
            WitValue::F64(value) => to.collect_str(value),
            WitValue::Char(value) => to.collect_str(value),
            WitValue::String(text) => to.serialize_str(text),
            WitValue::Bytes(bytes) => {
                let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
                    let _ = write!(hex, "{byte:02x}");
                    hex
                });
                let mut map = to.serialize_map(None)?;
                map.serialize_entry("hex", &hex)?;
                if let Ok(text) = std::str::from_utf8(bytes) {
                    map.serialize_entry("text", text)?;
                }
                map.end()
            }
            WitValue::List(items) | WitValue::Tuple(items) => {
                to.collect_seq(items.iter().map(AsJson))
            }
            WitValue::Record(fields) => {
                to.collect_map(fields.iter().map(|(name, value)| (name, AsJson(value))))
            }
            WitValue::Enum(_, name) | WitValue::Variant(_, name, None) => to.serialize_str(name),
            WitValue::Variant(_, name, Some(value)) => to.collect_map([(name, AsJson(value))]),
            WitValue::Option(None) => to.serialize_none(),
            // Otherwise some(none) and none would be the same.
            WitValue::Option(Some(value)) if matches!(**value, WitValue::Option(_)) => {
                to.collect_map([("some", AsJson(value))])
            }
            WitValue::Option(Some(value)) => AsJson(value).serialize(to),
            WitValue::Result(Ok(value)) => to.collect_map([("ok", value.as_deref().map(AsJson))]),
            WitValue::Result(Err(value)) => to.collect_map([("err", value.as_deref().map(AsJson))]),
            WitValue::Flags(_, names) => to.collect_seq(names),
            WitValue::Handle(name, number) => {
                let mut map = to.serialize_map(None)?;
                map.serialize_entry("resource", name)?;
                map.serialize_entry("handle", number)?;
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::{STEERING, is_clean};

    fn some(value: WitValue<'static>) -> Option<Box<WitValue<'static>>> {
        Some(Box::new(value))
    }

    fn text(text: &str) -> WitValue<'static> {
        WitValue::String(text.into())
    }

    #[test]
    fn bytes_are_text_if_they_can_be_read() {
        for (value, shown) in [
            (WitValue::Bytes(b"Format: \"a\"\n".to_vec()), "\"Format: \\\"a\\\"\\n\""),
            (WitValue::Bytes(vec![]), "\"\""),
            (WitValue::Bytes(vec![0, 255]), "0x00ff"),
            (WitValue::Bytes(STEERING.as_bytes()[..2].to_vec()), "0x611b"),
            (WitValue::Result(Ok(some(WitValue::Bytes(vec![7])))), "ok(0x07)"),
            (WitValue::List(vec![WitValue::Bytes(b"a".to_vec()); 2]), "[\"a\", \"a\"]"),
            (WitValue::Tuple(vec![WitValue::U8(1), text("x")]), "(1, \"x\")"),
            (
                WitValue::Record(vec![("a", WitValue::Bool(true)), ("b", text(""))]),
                "{a: true, b: \"\"}",
            ),
            (WitValue::Option(some(WitValue::Option(None))), "some(none)"),
            (WitValue::Variant(0, "some", some(WitValue::U8(1))), "%some(1)"),
            (WitValue::Result(Err(None)), "err"),
            (WitValue::Handle("file", 7), "file(7)"),
            (WitValue::Flags(1, vec!["read"]), "{read}"),
            (WitValue::S32(-3), "-3"),
        ] {
            assert_eq!(for_people(&value).as_deref(), Ok(shown));
        }
        assert!(is_clean(&for_people(&text(STEERING)).unwrap()));
    }

    #[test]
    fn json_has_one_form_for_each_type() {
        for (value, json) in [
            (WitValue::U64(u64::MAX), "18446744073709551615"),
            (WitValue::F64(f64::INFINITY), "\"inf\""),
            (WitValue::F32(1.5), "1.5"),
            (WitValue::Char('é'), "\"é\""),
            (WitValue::Bytes(b"/".to_vec()), "{\"hex\":\"2f\",\"text\":\"/\"}"),
            (WitValue::Bytes(vec![255]), "{\"hex\":\"ff\"}"),
            (WitValue::Record(vec![("a", WitValue::U8(1))]), "{\"a\":1}"),
            (WitValue::Tuple(vec![WitValue::U8(1), text("x")]), "[1,\"x\"]"),
            (WitValue::Enum(0, "red"), "\"red\""),
            (WitValue::Variant(0, "dot", None), "\"dot\""),
            (WitValue::Variant(0, "named", some(text("x"))), "{\"named\":\"x\"}"),
            (WitValue::Option(None), "null"),
            (WitValue::Option(some(WitValue::U8(1))), "1"),
            (WitValue::Option(some(WitValue::Option(None))), "{\"some\":null}"),
            (WitValue::Result(Ok(None)), "{\"ok\":null}"),
            (WitValue::Result(Err(some(text("no")))), "{\"err\":\"no\"}"),
            (WitValue::Flags(1, vec!["read"]), "[\"read\"]"),
            (WitValue::Handle("file", 7), "{\"resource\":\"file\",\"handle\":7}"),
        ] {
            let line = format!("{{\"procedure\":\"p\",\"result\":{json}}}");
            assert_eq!(json_line("p", Some(&value)), Ok(line));
        }
        assert_eq!(json_line("p", None).as_deref(), Ok("{\"procedure\":\"p\",\"result\":null}"));
        assert!(is_clean(&json_line("p", Some(&text(STEERING))).unwrap()));
    }

    #[test]
    fn raw_has_the_bytes_of_a_text_or_of_an_ok() {
        let bytes = || WitValue::Bytes(vec![0, 255]);
        for (value, written) in [
            (bytes(), Some(vec![0, 255])),
            (text("é"), Some("é".into())),
            (WitValue::Result(Ok(some(bytes()))), Some(vec![0, 255])),
            (WitValue::Result(Err(some(text("no")))), None),
            (WitValue::Option(None), Some(vec![])),
            (WitValue::U8(1), None),
        ] {
            assert_eq!(raw(&value), written);
        }
    }

    #[test]
    fn a_value_that_unfolds_without_end_is_refused() {
        let name = "x".repeat(MAX_TEXT / 4);
        let record = WitValue::Record(vec![(name.as_str(), WitValue::U8(1))]);
        let value = WitValue::List(vec![record; 5]);
        assert!(matches!(for_people(&value), Err(ValueError::TooMuch { .. })));
        assert!(matches!(json_line("p", Some(&value)), Err(ValueError::TooMuch { .. })));
    }
}
