//! What to type: an example of a call for each procedure, and the errors that show it.

use super::argument::{TypedForm, accepts};
use crate::exit::CommandError;
use crate::names::did_you_mean;
use crate::output::quoted;
use upcall_idl::dynamic::{DynamicInterface, ValueError};
use upcall_idl::model::{Model, ProcedureDefinition, Type, TypeBody};

/// Maximum depth of a sample value; a deeper one helps no reader.
const DEPTH: u32 = 4;

/// A call of a procedure as it is typed in a shell: `upcall call math.add 1 1`.
pub fn example(
    name: &str,
    interface: &DynamicInterface,
    procedure: &ProcedureDefinition,
) -> String {
    let model = interface.model();
    let arguments = procedure.params.iter().map(|param| match accepts(model, &param.ty) {
        TypedForm::Text if is_character(model, &param.ty) => "c".into(),
        TypedForm::Text | TypedForm::Bytes => "text".into(),
        TypedForm::Handle => "_".into(),
        TypedForm::Wave => quoted(&sample(model, &param.ty, DEPTH)),
    });
    let call = format!("upcall call {name}.{}", procedure.name);
    arguments.fold(call, |call, argument| format!("{call} {argument}"))
}

fn is_character(model: &Model, ty: &Type) -> bool {
    *model.resolve(ty) == Type::Char
}

/// A value of a type in WAVE.
fn sample(model: &Model, ty: &Type, depth: u32) -> String {
    let Some(depth) = depth.checked_sub(1) else { return "…".into() };
    let of = |ty: &Type| sample(model, ty, depth);
    match model.resolve(ty) {
        Type::Bool => "true".into(),
        Type::F32 | Type::F64 => "1.5".into(),
        Type::Char => "'c'".into(),
        Type::String => "\"text\"".into(),
        Type::List(item) if *model.resolve(item) == Type::U8 => "\"text\"".into(),
        Type::List(item) => format!("[{}]", of(item)),
        Type::FixedList(item, count) => {
            let shown = (*count).min(3) as usize;
            let more = if *count > 3 { ", …" } else { "" };
            format!("[{}{more}]", vec![of(item); shown].join(", "))
        }
        Type::Tuple(items) => format!("({})", items.iter().map(of).collect::<Vec<_>>().join(", ")),
        Type::Option(item) => format!("some({})", of(item)),
        Type::Result(Some(ok), _) => format!("ok({})", of(ok)),
        Type::Result(None, _) => "ok".into(),
        Type::Named(id) => match &model.def(*id).shape {
            TypeBody::Record(fields) => {
                let fields =
                    fields.iter().map(|field| format!("{}: {}", field.name, of(&field.ty)));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
            TypeBody::Variant(cases) => cases.first().map_or_else(String::new, |case| {
                let payload = case.ty.as_ref().map(|ty| format!("({})", of(ty)));
                format!("{}{}", case.name, payload.unwrap_or_default())
            }),
            TypeBody::Enum(labels) => labels.first().map_or_else(String::new, |l| l.name.clone()),
            TypeBody::Flags(labels) => {
                format!("{{{}}}", labels.first().map_or("", |label| label.name.as_str()))
            }
            TypeBody::Alias(ty) => of(ty),
            TypeBody::Resource => "1".into(),
        },
        _ => "1".into(),
    }
}

/// The error of arguments that do not fit, with an example of the call.
pub fn explain(
    error: ValueError,
    name: &str,
    interface: &DynamicInterface,
    procedure: &ProcedureDefinition,
    typed: &[String],
) -> CommandError {
    let example = example(name, interface, procedure);
    let type_this = format!("Type for example: {example}");
    let text = match &error {
        ValueError::Count { given, .. } => {
            let takes = takes(interface.model(), procedure);
            let split = match split_at(typed) {
                Some(first) => format!(
                    ". The shell has split the value that begins with `{first}`: put it in single \
                     quotes"
                ),
                None => String::new(),
            };
            let usage = interface.usage(procedure);
            let given = if *given == 1 { "1 was".into() } else { format!("{given} were") };
            format!("{usage} takes {takes}, and {given} given{split}. {type_this}")
        }
        ValueError::Argument { parameter, expected, .. }
            if is_open(procedure, parameter, typed) =>
        {
            format!(
                "argument `{parameter}` is a {expected}, and its double quote is not closed. The \
                 shell takes quotes away and splits at spaces: put the whole value in single \
                 quotes, such as '\"two words\"'. {type_this}"
            )
        }
        ValueError::Argument { parameter, expected, found } => {
            // WAVE's words for a bare word where a text in double quotes is needed.
            let unquoted = if expected.contains("string") && !found.contains('"') {
                ". Texts within a value are in double quotes, and the whole in single quotes"
            } else {
                ""
            };
            format!("argument `{parameter}` is a {expected}: {found}{unquoted}. {type_this}")
        }
        _ => return error.into(),
    };
    CommandError::usage(text)
}

/// How many arguments a procedure takes. Options at the end may be left out.
fn takes(model: &Model, procedure: &ProcedureDefinition) -> String {
    let most = procedure.params.len();
    let is_option = |ty: &Type| matches!(model.resolve(ty), Type::Option(_));
    let left_out = procedure.params.iter().rev().take_while(|param| is_option(&param.ty)).count();
    match (most - left_out, left_out) {
        (1, 0) => "1 argument".into(),
        (_, 0) => format!("{most} arguments"),
        (0, 1) => "no argument or 1".into(),
        (least, 1) => format!("{least} or {most} arguments"),
        (least, _) => format!("{least} to {most} arguments"),
    }
}

/// The first word of a value that spaces have split: it has more brackets opened than closed, or a
/// double quote that is not closed.
fn split_at(typed: &[String]) -> Option<&String> {
    let count = |word: &str, set: &str| word.chars().filter(|c| set.contains(*c)).count();
    let has_open = |word: &str| count(word, "[{(") > count(word, ")}]") || has_open_quote(word);
    typed.iter().find(|word| has_open(word))
}

/// Returns `true` if a double quote is not closed in what was typed for a parameter.
fn is_open(procedure: &ProcedureDefinition, parameter: &str, typed: &[String]) -> bool {
    let at = procedure.params.iter().position(|param| param.name == parameter);
    at.and_then(|at| typed.get(at)).is_some_and(|text| has_open_quote(text))
}

/// Returns `true` if a double quote is not closed in a text in WAVE. A single quote may be an
/// apostrophe, and the name of a file (`@FILE`) is no WAVE.
fn has_open_quote(text: &str) -> bool {
    if text.starts_with('@') {
        return false;
    }
    let (mut open, mut is_escaped) = (None, false);
    for c in text.chars() {
        match open {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(quote) if c == quote => open = None,
            None if c == '"' || c == '\'' => open = Some(c),
            _ => {}
        }
    }
    open == Some('"')
}

/// Proposes the procedures of resources that have the name that was typed: `counter.add` for `add`.
fn of_resource(typed: &str, there: &[&str]) -> Option<String> {
    let has_name = |name: &&&str| name.rsplit_once('.').is_some_and(|(_, last)| last == typed);
    let quoted = |name: &&str| format!("\"{name}\"");
    let named: Vec<_> = there.iter().filter(has_name).map(quoted).collect();
    (!named.is_empty()).then(|| format!(". Did you mean {}?", named.join(" or ")))
}

/// The error for a procedure that the interface lacks.
pub fn no_procedure(name: &str, typed: &str, interface: &DynamicInterface) -> CommandError {
    let there: Vec<&str> = interface.interface().bound().map(|p| p.name.as_str()).collect();
    let similar =
        of_resource(typed, &there).unwrap_or_else(|| did_you_mean(typed, there.iter().copied()));
    let advice = match similar {
        none if none.is_empty() => format!(". It has {}", there.join(", ")),
        advice => advice,
    };
    let id = &interface.interface().id;
    CommandError::new(
        crate::exit::Exit::NotFound,
        format_args!("{name:?} ({id}) has no procedure `{typed}`{advice}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "package a:b; interface i {
        record point { x: s32, name: string }
        enum color { red, green }
        flags mode { read, write }
        variant shape { named(string), dot }
        resource file { read: func(offset: u64) -> list<u8>; }
        add: func(a: s32, b: s32) -> s32;
        join: func(words: list<string>);
        all: func(p: point, c: color, m: mode, s: shape, t: tuple<bool, f64>, o: option<u8>,
                  r: result<string>, n: result, l: list<u16, 2>, b: list<u8>, k: char);
        open: func(path: string, mode: option<string>);
        seek: func(to: option<u64>, start: option<u64>, back: option<bool>);
        sync: func(all: option<bool>);
        mid: func(first: option<u8>, last: u8);
    }";

    fn interface() -> DynamicInterface {
        DynamicInterface::parse("a:b/i", SOURCE, "").unwrap()
    }

    fn error(procedure: &str, typed: &[&str]) -> String {
        let interface = interface();
        let procedure = interface.procedure(procedure).unwrap();
        let error = interface.encode(procedure, typed).unwrap_err();
        let typed: Vec<String> = typed.iter().map(|word| word.to_string()).collect();
        explain(error, "i", &interface, procedure, &typed).to_string()
    }

    #[test]
    fn an_example_is_what_a_shell_takes() {
        let interface = interface();
        for (procedure, shown) in [
            ("add", "upcall call i.add 1 1"),
            ("join", "upcall call i.join '[\"text\"]'"),
            ("file.read", "upcall call i.file.read _ 1"),
            (
                "all",
                "upcall call i.all '{x: 1, name: \"text\"}' red '{read}' 'named(\"text\")' \
                 '(true, 1.5)' 'some(1)' 'ok(\"text\")' ok '[1, 1]' text c",
            ),
        ] {
            let procedure = interface.procedure(procedure).unwrap();
            assert_eq!(example("i", &interface, procedure), shown);
        }
    }

    #[test]
    fn every_sample_is_a_value_of_its_type() {
        let interface = interface();
        let all = interface.procedure("all").unwrap();
        for param in &all.params {
            let wave = sample(interface.model(), &param.ty, DEPTH);
            let read = interface.encode(
                interface.procedure("all").unwrap(),
                &all.params
                    .iter()
                    .map(|of| sample(interface.model(), &of.ty, DEPTH))
                    .collect::<Vec<_>>()
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>(),
            );
            assert!(read.is_ok(), "{}: {wave}: {read:?}", param.name);
        }
    }

    #[test]
    fn a_wrong_argument_is_answered_with_what_to_type() {
        let add = error("add", &["1"]);
        assert!(add.contains("takes 2 arguments, and 1 was given. Type for example"), "{add}");
        let wrong = error("add", &["1", "two"]);
        assert!(wrong.contains("`b` is a s32: `two` is not a s32. Type"), "{wrong}");
        let split = error("join", &["[a,", "b]"]);
        assert!(split.contains("The shell has split the value that begins with `[a,`"), "{split}");
        let unquoted = error("join", &["[a, b]"]);
        assert!(
            unquoted.contains("double quotes") && unquoted.ends_with("'[\"text\"]'"),
            "{unquoted}"
        );
        let missing = no_procedure("i", "ad", &interface()).to_string();
        assert_eq!(missing, "\"i\" (a:b/i) has no procedure `ad`. Did you mean \"add\"?");
        let method = no_procedure("i", "read", &interface()).to_string();
        assert!(method.ends_with("no procedure `read`. Did you mean \"file.read\"?"), "{method}");
        assert_eq!(
            of_resource("get", &["get.a", "a.get", "b.get", "forget"]),
            Some(". Did you mean \"a.get\" or \"b.get\"?".into())
        );
        let other = no_procedure("i", "subtract", &interface()).to_string();
        assert!(other.contains("It has ") && other.contains("file.read"), "{other}");
    }

    #[test]
    fn options_at_the_end_may_be_left_out() {
        for (procedure, typed, takes) in [
            ("open", &[][..], "takes 1 or 2 arguments, and 0 were given"),
            ("open", &["\"a\"", "\"r\"", "\"x\""], "takes 1 or 2 arguments, and 3 were given"),
            ("seek", &["1", "1", "true", "1"], "takes 0 to 3 arguments"),
            ("sync", &["true", "true"], "takes no argument or 1, and 2 were given"),
            // An option before an argument that must be given.
            ("mid", &["1"], "takes 2 arguments, and 1 was given"),
            ("file.read", &["1"], "takes 2 arguments"),
        ] {
            let text = error(procedure, typed);
            assert!(text.contains(takes), "{text}");
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_is_answered_with_how_to_quote() {
        for (procedure, typed, part) in [
            ("open", &["\"a"][..], "`path` is a string, and its double quote is not closed"),
            ("open", &["\"a\"", "\"r\\\""], "`mode` is a option<string>, and its double quote"),
            ("join", &["[\"it's"], "`words` is a list<string>, and its double quote"),
        ] {
            let text = error(procedure, typed);
            assert!(text.contains(part) && text.contains("whole value in single quotes"), "{text}");
        }
        // The shell has split a text at its space.
        let split = error("open", &["\"two", "words\"", "\"r\""]);
        assert!(split.contains("split the value that begins with `\"two`"), "{split}");
        for (text, open) in
            [("\"a\"", false), ("'\"'", false), ("it's", false), ("", false), ("[\"a", true)]
        {
            assert_eq!(has_open_quote(text), open, "{text}");
        }
    }

    #[test]
    fn an_apostrophe_or_the_name_of_a_file_hides_no_reason() {
        for typed in ["it's", "@it's.wave", "@\"a.wave"] {
            let text = error("add", &["1", typed]);
            assert!(text.contains("`b` is a s32: ") && !text.contains("quote"), "{text}");
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (text, word) in [("a-1", "a-1"), ("", "''"), ("a b", "'a b'"), ("it's", "'it'\\''s'")] {
            assert_eq!(quoted(text), word);
        }
    }
}
