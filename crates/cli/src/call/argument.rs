//! Arguments of `upcall call`: what is typed, by the type of the parameter.
//!
//! The type decides, so that nothing is ambiguous: `7` is a number for an `s32` and the text "7"
//! for a `string`. What the help says of this is [`HELP`].

use crate::exit::CommandError;
use std::borrow::Cow;
use std::io::Read;
use upcall_idl::dynamic::CallArgument;
use upcall_idl::model::{Model, Type};

/// For `upcall call --help`.
pub const HELP: &str = "\
Arguments, by the type of the parameter:
  string           text as it is, or in double quotes with escapes: Ada, '\"two\\nlines\"'
  list<u8>         text, as for string; hex bytes 0x48656c6c6f; or numbers '[72, 101]'
  char             the character
  resource         _ for the last one returned, or the number of its handle
  everything else  WAVE: 1, true, none, '[1, 2]', '{a: 1, b: \"text\"}', 'some(1)', 'ok(1)'
For each type, @FILE is the contents of a file and @- the standard input. Text that begins with a
double quote, @ or (for bytes) 0x or [ needs quotes: '\"@home\"'. `+` begins the next call of the
same session; a text of this one character is '\"+\"'. Put `--` before text that begins with a dash
and could be an option.";

/// What an argument may be, apart from WAVE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypedForm {
    Text,
    Bytes,
    Handle,
    Wave,
}

/// What a parameter of this type, or an option of it, accepts.
pub fn accepts(model: &Model, ty: &Type) -> TypedForm {
    match model.resolve(ty) {
        Type::String | Type::Char => TypedForm::Text,
        Type::List(of) if *model.resolve(of) == Type::U8 => TypedForm::Bytes,
        Type::Own(_) | Type::Borrow(_) => TypedForm::Handle,
        Type::Option(of) => match model.resolve(of) {
            // WAVE tells none from some(none).
            Type::Option(_) => TypedForm::Wave,
            _ => accepts(model, of),
        },
        _ => TypedForm::Wave,
    }
}

/// Maximum length, in bytes, of what `@FILE` or `@-` stands for.
const MOST_READ: u64 = 1 << 30;

/// Reads all of a file, or fails if it is longer than [`MOST_READ`], as a device without an end is.
fn bounded(file: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MOST_READ + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_READ {
        return Err(std::io::Error::other("it is longer than 1 GiB"));
    }
    Ok(bytes)
}

/// The standard input, which one argument may read.
#[derive(Default)]
pub struct StandardInput {
    is_read: bool,
}

impl StandardInput {
    fn read(&mut self) -> Result<Vec<u8>, CommandError> {
        if std::mem::replace(&mut self.is_read, true) {
            return Err(CommandError::usage("`@-` can be given for one argument only"));
        }
        let read = bounded(std::io::stdin().lock());
        read.map_err(|error| {
            CommandError::failed(format_args!("cannot read the standard input: {error}"))
        })
    }

    /// The contents that `@FILE` or `@-` stands for.
    fn contents(&mut self, file: &str) -> Result<Vec<u8>, CommandError> {
        if file == "-" {
            return self.read();
        }
        std::fs::File::open(file).and_then(bounded).map_err(|error| {
            CommandError::usage(format_args!(
                "cannot read {file}: {error}. `@` stands for a file; write '\"@{file}\"' for the \
                 text itself"
            ))
        })
    }
}

/// The error of a `_` without a resource.
pub fn no_resource() -> CommandError {
    CommandError::usage(
        "`_` is the last resource that was returned, and no call before this one returned one. Put \
         that call first, and `+` between the two",
    )
}

/// Reads what was typed for a parameter. `resource` is the handle that the last call returned.
///
/// # Errors
/// The file cannot be read, or what was typed cannot be a value of the type.
pub fn read<'a>(
    model: &Model,
    ty: &Type,
    typed: &'a str,
    resource: Option<&str>,
    input: &mut StandardInput,
) -> Result<CallArgument<'a>, CommandError> {
    let accepts = accepts(model, ty);
    if typed == "_" && accepts == TypedForm::Handle {
        let handle = resource.ok_or_else(no_resource)?;
        return Ok(CallArgument::Wave(handle.to_string().into()));
    }
    let file = typed.strip_prefix('@');
    let contents = file.map(|file| input.contents(file)).transpose()?;
    let is_option = matches!(model.resolve(ty), Type::Option(_));
    match (accepts, contents) {
        (TypedForm::Bytes, Some(contents)) => Ok(CallArgument::Bytes(contents.into())),
        (TypedForm::Text, Some(contents)) => {
            utf8(contents, typed).map(|text| CallArgument::Text(text.into()))
        }
        (_, Some(contents)) => utf8(contents, typed).map(|text| CallArgument::Wave(text.into())),
        (TypedForm::Text | TypedForm::Bytes, None)
            if typed.starts_with('"')
                || is_option && (typed == "none" || typed.starts_with("some(")) =>
        {
            Ok(CallArgument::Wave(typed.into()))
        }
        // 'c' with quotes that reached this command.
        (TypedForm::Text, None) if typed.starts_with('\'') && is_character(model, ty) => {
            Ok(CallArgument::Wave(typed.into()))
        }
        (TypedForm::Text, None) => Ok(CallArgument::Text(typed.into())),
        (TypedForm::Bytes, None) if typed.starts_with('[') => Ok(CallArgument::Wave(typed.into())),
        (TypedForm::Bytes, None) => match typed.strip_prefix("0x") {
            Some(digits) => hex(digits).map(|bytes| CallArgument::Bytes(bytes.into())),
            None => Ok(CallArgument::Bytes(Cow::Borrowed(typed.as_bytes()))),
        },
        (TypedForm::Handle | TypedForm::Wave, None) => Ok(CallArgument::Wave(typed.into())),
    }
}

fn is_character(model: &Model, ty: &Type) -> bool {
    match model.resolve(ty) {
        Type::Char => true,
        Type::Option(of) => *model.resolve(of) == Type::Char,
        _ => false,
    }
}

fn utf8(contents: Vec<u8>, typed: &str) -> Result<String, CommandError> {
    String::from_utf8(contents).map_err(|error| {
        CommandError::usage(format_args!(
            "{typed} is not UTF-8 text (byte {}), which this parameter takes",
            error.utf8_error().valid_up_to()
        ))
    })
}

fn hex(digits: &str) -> Result<Vec<u8>, CommandError> {
    let pair = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok().filter(|text| text.len() == 2)?;
        text.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(text)?;
        u8::from_str_radix(text, 16).ok()
    };
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(pair).collect();
    bytes.ok_or_else(|| {
        CommandError::usage(format_args!(
            "`0x{digits}` is not pairs of hex digits. Write '\"0x{digits}\"' for the text itself"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use upcall_idl::dynamic;

    fn model() -> Model {
        let source = "package a:b; interface i { resource file { }
            f: func(text: string, bytes: list<u8>, c: char, maybe: option<string>,
                    nested: option<option<string>>, file: borrow<file>, n: s32, all: list<string>,
                    block: option<list<u8>>, letter: option<char>); }";
        dynamic::model("a test", source, "").unwrap()
    }

    fn typed(parameter: &str, text: &str) -> Result<CallArgument<'static>, CommandError> {
        let model = model();
        let params = &model.interfaces[0].procedures.iter().find(|p| p.name == "f").unwrap().params;
        let ty = &params.iter().find(|param| param.name == parameter).unwrap().ty;
        let text = Box::leak(text.to_string().into_boxed_str());
        read(&model, ty, text, None, &mut StandardInput::default())
    }

    fn wave(text: &str) -> CallArgument<'static> {
        CallArgument::Wave(text.to_string().into())
    }

    fn text(text: &str) -> CallArgument<'static> {
        CallArgument::Text(text.to_string().into())
    }

    fn bytes(bytes: &[u8]) -> CallArgument<'static> {
        CallArgument::Bytes(bytes.to_vec().into())
    }

    #[test]
    fn the_type_decides_what_a_word_is() {
        for (parameter, word, argument) in [
            ("text", "Ada", text("Ada")),
            ("text", "7", text("7")),
            ("text", "", text("")),
            ("text", "_", text("_")),
            ("text", "0x41", text("0x41")),
            ("text", "[a]", text("[a]")),
            ("text", "none", text("none")),
            ("text", "'", text("'")),
            ("text", "\"@x\\n\"", wave("\"@x\\n\"")),
            ("bytes", "etc", bytes(b"etc")),
            ("bytes", "0x48656C6c6f", bytes(b"Hello")),
            ("bytes", "0x", bytes(b"")),
            ("bytes", "[1, 2]", wave("[1, 2]")),
            ("bytes", "\"0x41\"", wave("\"0x41\"")),
            ("bytes", "_", bytes(b"_")),
            ("c", "c", text("c")),
            ("c", "'c'", wave("'c'")),
            ("maybe", "Ada", text("Ada")),
            ("maybe", "none", wave("none")),
            ("maybe", "some(\"none\")", wave("some(\"none\")")),
            ("maybe", "\"none\"", wave("\"none\"")),
            ("nested", "some(none)", wave("some(none)")),
            ("letter", "x", text("x")),
            ("letter", "'x'", wave("'x'")),
            ("block", "0xff", bytes(&[255])),
            ("block", "none", wave("none")),
            ("file", "7", wave("7")),
            ("n", "-2", wave("-2")),
            ("all", "[\"a\"]", wave("[\"a\"]")),
        ] {
            assert_eq!(typed(parameter, word), Ok(argument), "{parameter}: {word}");
        }
    }

    #[test]
    fn a_file_is_read_for_any_type() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, contents: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, contents).unwrap();
            format!("@{}", path.display())
        };
        let (name, all, binary) =
            (file("name", b"Ada\n"), file("all", b"[\"a\"]\n"), file("b", &[0, 255]));
        assert_eq!(typed("text", &name), Ok(text("Ada\n")));
        assert_eq!(typed("bytes", &binary), Ok(bytes(&[0, 255])));
        assert_eq!(typed("all", &all), Ok(wave("[\"a\"]\n")));
        for (parameter, word, part) in [
            ("text", binary.as_str(), "is not UTF-8 text (byte 1)"),
            ("text", "@/no/such", "cannot read /no/such"),
            ("text", "@/no/such", "'\"@/no/such\"'"),
        ] {
            let error = typed(parameter, word).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_explained() {
        for (word, part) in [("0x4", "pairs of hex digits"), ("0x+1", "'\"0x+1\"'"), ("0xé", "0xé")]
        {
            let error = typed("bytes", word).unwrap_err();
            assert!(error.to_string().contains(part), "{word}: {error}");
        }
        let error = typed("file", "_").unwrap_err().to_string();
        assert!(error.contains("no call before this one"), "{error}");
    }

    #[test]
    fn the_standard_input_is_read_once() {
        let mut input = StandardInput { is_read: true };
        let error = input.contents("-").unwrap_err();
        assert!(error.to_string().contains("one argument only"), "{error}");
    }
}
