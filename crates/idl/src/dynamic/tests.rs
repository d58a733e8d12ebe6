//! Round trips of any value of any type through a block and through text, and arbitrary bytes as a
//! block.

use super::value::WitValue;
use super::{
    CallArgument, DynamicInterface, MAX_RESULT, MAX_TEXT, MAX_VALUES, ProcedureOutcome, ValueError,
    block, wave,
};
use crate::model::{Model, Type, TypeBody};
use proptest::prelude::*;

/// One type of each kind, nested in each other.
const WIT: &str = "
package test:dynamic;
interface i {
    enum color { red, green, none }
    flags mode { read, write, append-only, f3, f4, f5, f6, f7, some }
    record small { a: u8, b: u64, c: option<u16> }
    record all {
        a: bool, b: u8, c: u16, d: u32, e: u64, f: s8, g: s16, h: s32, i: s64, j: f32, k: f64,
        l: char, m: string,
        bytes: list<u8>, names: list<string>, fixed: list<list<u16, 2>, 3>,
        strings: list<string, 2>,
        maybe: option<option<string>>, either: result<u8, string>, nothing: result,
        some-error: result<_, list<small>>,
        pair: tuple<u8, string, small>, color: color, mode: mode, shape: shape, smalls: list<small>,
    }
    variant shape { dot, circle(f64), named(string), many(list<small>), inf(small), ok }
    resource file { read: func(offset: u64) -> result<tuple<file, all>, shape>; }
    f: func(x: all) -> all;
    g: func(a: u8, b: option<string>, c: option<small>);
    h: func(h: borrow<file>, given: file, s: shape) -> list<option<file>>;
}";

fn interface() -> DynamicInterface {
    DynamicInterface::parse("test:dynamic/i", WIT, "").unwrap()
}

fn number<T>(make: fn(T) -> WitValue<'static>) -> BoxedStrategy<WitValue<'static>>
where
    T: Arbitrary + 'static,
{
    any::<T>().prop_map(make).boxed()
}

/// A strategy for any value of a type. Floats are finite, since NaN is not equal to itself.
fn any_value(model: &'static Model, ty: &'static Type) -> BoxedStrategy<WitValue<'static>> {
    let of = |t: &'static Type| any_value(model, t);
    let maybe = |t: Option<&'static Type>| match t {
        Some(t) => of(t).prop_map(|v| Some(Box::new(v))).boxed(),
        None => Just(None).boxed(),
    };
    match model.resolve(ty) {
        Type::Bool => number(WitValue::Bool),
        Type::U8 => number(WitValue::U8),
        Type::U16 => number(WitValue::U16),
        Type::U32 => number(WitValue::U32),
        Type::U64 => number(WitValue::U64),
        Type::S8 => number(WitValue::S8),
        Type::S16 => number(WitValue::S16),
        Type::S32 => number(WitValue::S32),
        Type::S64 => number(WitValue::S64),
        Type::F32 => (prop::num::f32::NORMAL | prop::num::f32::ZERO | prop::num::f32::INFINITE)
            .prop_map(WitValue::F32)
            .boxed(),
        Type::F64 => {
            (prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::INFINITE)
                .prop_map(WitValue::F64)
                .boxed()
        }
        Type::Char => number(WitValue::Char),
        Type::String => number(WitValue::String),
        Type::List(t) if *model.resolve(t) == Type::U8 => {
            prop::collection::vec(any::<u8>(), 0..20).prop_map(WitValue::Bytes).boxed()
        }
        Type::List(t) => prop::collection::vec(of(t), 0..4).prop_map(WitValue::List).boxed(),
        Type::FixedList(t, n) => {
            prop::collection::vec(of(t), *n as usize).prop_map(WitValue::List).boxed()
        }
        Type::Option(t) => {
            prop::option::of(of(t)).prop_map(|v| WitValue::Option(v.map(Box::new))).boxed()
        }
        Type::Result(ok, err) => (any::<bool>(), maybe(ok.as_deref()), maybe(err.as_deref()))
            .prop_map(|(good, ok, err)| WitValue::Result(if good { Ok(ok) } else { Err(err) }))
            .boxed(),
        Type::Tuple(types) => {
            types.iter().map(of).collect::<Vec<_>>().prop_map(WitValue::Tuple).boxed()
        }
        Type::Own(id) | Type::Borrow(id) => {
            let name = &model.def(*id).name;
            any::<u64>().prop_map(move |n| WitValue::Handle(name, n)).boxed()
        }
        Type::Named(id) => match &model.def(*id).shape {
            TypeBody::Record(fields) => {
                let values: Vec<_> = fields
                    .iter()
                    .map(|f| of(&f.ty).prop_map(move |v| (f.name.as_str(), v)).boxed())
                    .collect();
                values.prop_map(WitValue::Record).boxed()
            }
            TypeBody::Variant(cases) => {
                let each = cases.iter().enumerate().map(|(number, case)| {
                    maybe(case.ty.as_ref())
                        .prop_map(move |v| WitValue::Variant(number, &case.name, v))
                        .boxed()
                });
                prop::strategy::Union::new(each).boxed()
            }
            TypeBody::Enum(labels) => {
                (0..labels.len()).prop_map(move |n| WitValue::Enum(n, &labels[n].name)).boxed()
            }
            TypeBody::Flags(labels) => {
                (0..1_u64 << labels.len()).prop_map(move |bits| wave::flags(labels, bits)).boxed()
            }
            TypeBody::Alias(_) | TypeBody::Resource => unreachable!("resolved above"),
        },
    }
}

/// Runs a test with random values of `f`'s parameter.
fn with_values(
    cases: u32,
    test: impl Fn(&DynamicInterface, &WitValue<'_>) -> Result<(), TestCaseError>,
) {
    // Strategies own what they use, so the model is leaked.
    let interface: &'static DynamicInterface = Box::leak(Box::new(interface()));
    let ty = &interface.procedure("f").unwrap().params[0].ty;
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&any_value(interface.model(), ty), |value| test(interface, &value));
    result.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn values_go_through_a_block_and_through_text() {
    with_values(150, |i, value| {
        let f = i.procedure("f").unwrap();
        let ty = &f.params[0].ty;
        let text = wasm_wave::to_string(value).unwrap();
        let read = wave::read(i.model(), ty, &text).map_err(TestCaseError::fail)?;
        prop_assert_eq!(&read, value, "{}", text);
        let block = i.encode(f, &[&text]).unwrap();
        prop_assert_eq!(block.len() % 8, 0);
        let mut reader = block::BlockReader::new(i.model(), &block, f.args.size, f.limits).unwrap();
        prop_assert_eq!(&reader.get(ty, 0).unwrap(), value);
        // The argument and the result of `f` have one type, so a block of one is a block of the
        // other.
        prop_assert_eq!(i.decode(f, &block).unwrap(), text);
        Ok(())
    });
}

/// The same for the third-party packages: all types that any of their procedures takes or returns.
#[test]
fn values_of_every_package_go_through_a_block_and_through_text() {
    let packages = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages");
    if !packages.exists() {
        eprintln!("skipped: the published crate does not include tests/packages");
        return;
    }
    let config =
        ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() };
    let mut types = 0;
    for collection in ["spin", "wasi-0.2", "wasi-proposals", "wit-parser"] {
        for entry in std::fs::read_dir(packages.join(collection)).unwrap() {
            let Ok(model) = crate::load(entry.unwrap().path()) else { continue };
            let model: &'static Model = Box::leak(Box::new(model));
            for procedure in model.interfaces.iter().flat_map(|i| &i.procedures) {
                for ty in procedure.params.iter().map(|p| &p.ty).chain(&procedure.result) {
                    types += 1;
                    let mut runner = proptest::test_runner::TestRunner::new(config.clone());
                    let done = runner.run(&any_value(model, ty), |value| {
                        let text = wasm_wave::to_string(&value).unwrap();
                        prop_assert_eq!(
                            &wave::read(model, ty, &text).map_err(TestCaseError::fail)?,
                            &value,
                            "{}",
                            text
                        );
                        let fixed = model.layout(ty).size;
                        let mut writer = block::BlockWriter::new(model, fixed, procedure.limits);
                        writer.put(ty, &value, 0).map_err(TestCaseError::fail)?;
                        let block = writer.finish();
                        let read = block::BlockReader::new(model, &block, fixed, procedure.limits)
                            .and_then(|mut r| r.get(ty, 0));
                        prop_assert_eq!(&read.unwrap(), &value);
                        Ok(())
                    });
                    done.unwrap_or_else(|e| {
                        panic!("{} of {}: {e}", model.wit(ty), procedure.signature)
                    });
                }
            }
        }
    }
    assert!(types > 400, "{types}");
}

/// A hostile server: a valid block with one word replaced, cut short, or both. Decoding returns an
/// error or a value, and never panics.
#[test]
fn a_damaged_block_is_an_error_or_a_value() {
    with_values(40, |i, value| {
        let f = i.procedure("f").unwrap();
        let good = i.encode(f, &[&wasm_wave::to_string(value).unwrap()]).unwrap();
        for at in (0..good.len()).step_by(8) {
            for word in [u64::MAX, 1 << 63, good.len() as u64, 1, 0xd800] {
                let mut bad = good.clone();
                bad[at..at + 8].copy_from_slice(&word.to_le_bytes());
                let _ = i.decode(f, &bad);
            }
            prop_assert!(i.decode(f, &good[..at]).is_err() || at as u64 >= f.results.size);
        }
        Ok(())
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(300)
    })]

    #[test]
    fn any_bytes_are_an_error_or_a_value(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        let i = interface();
        for name in ["f", "h", "file.read"] {
            let _ = i.decode(i.procedure(name).unwrap(), &bytes);
        }
    }

    #[test]
    fn any_text_is_an_error_or_a_value(text in "[a-z0-9\"'({\\[%:,.)}\\]\\\\/-]{0,40}") {
        let i = interface();
        let _ = i.encode(i.procedure("f").unwrap(), &[&text]);
        let _ = i.encode(i.procedure("h").unwrap(), &[&text, &text, &text]);
    }
}

/// Lists that all lie in the same place: a block of 64 KiB that would unfold to 2^36 bytes of text.
#[test]
fn pieces_that_overlap_are_refused() {
    let wit = "package a:b; interface i { f: func() -> list<list<list<u8>>>; }";
    let i = DynamicInterface::parse("a:b/i", wit, "").unwrap();
    let mut block = Vec::new();
    for _ in 0..4096 {
        block.extend(0_u64.to_le_bytes());
        block.extend(4096_u64.to_le_bytes());
    }
    let error = i.decode(i.procedure("f").unwrap(), &block).unwrap_err();
    assert!(error.to_string().contains("more than the block has left"), "{error}");
}

/// A block whose first piece has `count` elements and lies right behind its descriptor.
fn list_block(count: u64, bytes: usize) -> Vec<u8> {
    let mut block = [16, count].map(u64::to_le_bytes).concat();
    block.resize(16 + bytes, 0);
    block
}

/// Names come from the source, and so from the server: a block of 1 MiB would be 1 GiB of text.
#[test]
fn a_text_that_is_too_long_is_refused() {
    let wit = format!(
        "package a:b; interface i {{ enum e {{ {} }} f: func() -> list<e>; }}",
        "x".repeat(1000)
    );
    let i = DynamicInterface::parse("a:b/i", &wit, "").unwrap();
    let f = i.procedure("f").unwrap();
    let error = i.decode(f, &list_block(1 << 20, 1 << 20)).unwrap_err();
    assert_eq!(error, ValueError::TooMuch { what: "bytes of text", limit: MAX_TEXT });
    assert_eq!(i.decode(f, &list_block(1000, 1000)).unwrap().len(), 1002 * 1000);
}

/// Everything that fits in a block as bytes or a string is shown.
#[test]
#[ignore = "long: the longest results"]
fn long_the_longest_bytes_and_strings_are_not_too_long() {
    let i = DynamicInterface::parse(
        "a:b/i",
        "package a:b; interface i { b: func() -> list<u8>; s: func() -> string; }",
        "",
    )
    .unwrap();
    let mut block = list_block((MAX_RESULT - 16) as u64, MAX_RESULT - 16);
    block[16..].fill(1);
    assert_eq!(
        i.decode(i.procedure("s").unwrap(), &block).unwrap().len(),
        2 + 5 * (MAX_RESULT - 16)
    );
    block[16..].fill(255);
    assert_eq!(i.decode(i.procedure("b").unwrap(), &block).unwrap().len(), 5 * (MAX_RESULT - 16));
}

#[test]
#[ignore = "long: as many values as are shown"]
fn long_more_values_than_are_shown_are_refused() {
    let wit = "package a:b; interface i { flags few { a, b, c } f: func() -> list<bool>; g: \
        func() -> list<few>; }";
    let i = DynamicInterface::parse("a:b/i", wit, "").unwrap();
    let too_much = Err(ValueError::TooMuch { what: "values", limit: MAX_VALUES });
    // The list counts as a value too.
    assert_eq!(
        i.decode(i.procedure("f").unwrap(), &list_block(MAX_VALUES as u64, MAX_VALUES)),
        too_much
    );
    assert!(
        i.decode(i.procedure("f").unwrap(), &list_block(MAX_VALUES as u64 - 1, MAX_VALUES - 1))
            .is_ok()
    );
    // Flags that are set count too.
    let mut block = list_block(MAX_VALUES as u64 / 2, MAX_VALUES / 2);
    block[16..].fill(7);
    assert_eq!(i.decode(i.procedure("g").unwrap(), &block), too_much);
}

/// Processor time that the calling thread has used, in nanoseconds.
fn processor_time() -> u64 {
    let text =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts it");
    text.split(' ').next().and_then(|time| time.parse().ok()).expect("a number")
}

/// Compares elements of types with some 5000 members to elements of types with two. If decoding
/// each element walked over the members of its type, the first would take some hundred times as
/// long.
#[test]
fn a_type_is_laid_out_once_and_not_for_each_element() {
    const COUNT: usize = 1 << 20;
    const TIMES: u64 = 20;
    let cases: String = (0..5000).map(|n| format!(", c{n}(u8)")).collect();
    // A tuple has at most 16 members, which may be tuples.
    let tuple = (0..3)
        .fold("u8".to_string(), |member, _| format!("tuple<{}>", vec![member; 16].join(", ")));
    let wit = format!(
        "package a:b; interface i {{ variant v {{ zero{cases} }} variant w {{ zero, one(u8) }}
        large: func() -> list<v>; small: func() -> list<w>;
        wide: func() -> list<result<list<{tuple}>>>;
        narrow: func() -> list<result<list<tuple<u8, u8>>>>; }}"
    );
    let i = DynamicInterface::parse("a:b/i", &wit, "").unwrap();
    let time = |procedure: &str, count: usize, bytes: usize, begins: &str| {
        let begun = processor_time();
        let text =
            i.decode(i.procedure(procedure).unwrap(), &list_block(count as u64, bytes)).unwrap();
        // The two brackets are as long as a comma and a space, which the last element lacks.
        assert!(
            text.starts_with(begins) && text.len() == count * (begins.len() - 1),
            "{procedure}: {} bytes",
            text.len()
        );
        processor_time() - begun
    };
    let (large, small) =
        (time("large", COUNT, 4 * COUNT, "[zero, "), time("small", COUNT, 4 * COUNT, "[zero, "));
    assert!(large < small * TIMES, "{large} ns, and {small} ns for a type with two members");
    let (wide, narrow) = (
        time("wide", COUNT / 4, 6 * COUNT, "[ok([]), "),
        time("narrow", COUNT / 4, 6 * COUNT, "[ok([]), "),
    );
    assert!(wide < narrow * TIMES, "{wide} ns, and {narrow} ns for a type with two members");
}

#[test]
fn handles_and_options_may_be_short() {
    let i = interface();
    let h = i.procedure("h").unwrap();
    let block = i.encode(h, &["7", "file(8)", "circle(1.5)"]).unwrap();
    assert_eq!((block[0], block[8], block[16]), (7, 8, 1));
    // Trailing options, a bare value for `some(..)`, and an omitted field.
    let g = i.procedure("g").unwrap();
    assert_eq!(i.encode(g, &["1"]), i.encode(g, &["1", "none", "none"]));
    assert_eq!(
        i.encode(g, &["1", "\"x\"", "{a: 1, b: 2}"]),
        i.encode(g, &["1", "some(\"x\")", "some({a: 1, b: 2, c: none})"])
    );
    let mut result = vec![0; 16 + 16];
    result[..8].copy_from_slice(&16_u64.to_le_bytes());
    result[8] = 1;
    (result[16], result[24]) = (1, 9);
    assert_eq!(i.decode(h, &result).unwrap(), "[some(file(9))]");
    assert_eq!(
        i.usage(h),
        "h(h: borrow<file>, given: own<file>, s: shape) -> list<option<own<file>>>"
    );
}

#[test]
fn errors_name_the_argument_and_what_is_wrong() {
    let i = interface();
    let error = |name: &str, arguments: &[&str]| {
        i.encode(i.procedure(name).unwrap(), arguments).unwrap_err().to_string()
    };
    assert_eq!(error("g", &["300"]), "argument `a`: `300` is not a u8; give a u8 in WAVE");
    assert_eq!(
        error("g", &["1", "2"]),
        "argument `b`: `2` is not a string; give a option<string> in WAVE"
    );
    assert_eq!(
        error("g", &["1", "none", "{a: 1}"]),
        "argument `c`: field `b` of small is missing; give a option<small> in WAVE"
    );
    assert_eq!(
        error("g", &["1", "none", "{a: 1, b: 2, d: 3}"]),
        "argument `c`: small has no field `d`; give a option<small> in WAVE"
    );
    assert!(error("g", &["(1"]).starts_with("argument `a`: `(1` is not WAVE: "));
    assert_eq!(
        error("h", &["1", "2", "square"]),
        "argument `s`: there is no `square`, only dot, circle, named, many, inf, ok; give a shape \
        in WAVE"
    );
    assert_eq!(
        error("h", &["file(x)", "2", "dot"]),
        "argument `h`: `file(x)` is not the number of a handle; give a borrow<file> in WAVE"
    );
    assert_eq!(
        error("g", &[]),
        "0 arguments were given for g(a: u8, b: option<string>, c: option<small>)"
    );
    assert!(error("file.read", &[]).ends_with("the first argument is the number of the handle"));
    assert!(
        i.procedure("nope")
            .unwrap_err()
            .to_string()
            .contains("has no procedure `nope`; it has file.read, f, g, h")
    );
}

#[test]
fn a_comment_may_end_an_argument() {
    let i = DynamicInterface::parse("a:b/i", "package a:b; interface i { f: func(x: u8); }", "")
        .unwrap();
    let f = i.procedure("f").unwrap();
    for text in ["7 //", "7 // seven", "// seven\n7", "7//\n"] {
        assert_eq!(i.encode(f, &[text]).unwrap(), [7], "{text:?}");
    }
    for text in ["//", "/", "7 /", "//\n"] {
        assert!(i.encode(f, &[text]).is_err(), "{text:?}");
    }
}

#[test]
fn what_is_over_the_limit_is_not_encoded() {
    let i = DynamicInterface::parse("test:dynamic/i", WIT, "[limits]\nstring = 3\n").unwrap();
    let error = i.encode(i.procedure("g").unwrap(), &["1", "\"four\""]).unwrap_err();
    assert!(error.to_string().contains("it has 4 bytes, more than the limit of 3"), "{error}");
}

#[test]
fn text_and_bytes_are_given_as_they_are() {
    let source = "package a:b; interface i {
        f: func(text: string, bytes: list<u8>, c: char, maybe: option<list<u8>>);
        g: func(n: u8); r: func() -> result<list<u8>, string>; }";
    let i = DynamicInterface::parse("a:b/i", source, "").unwrap();
    let (f, g) = (i.procedure("f").unwrap(), i.procedure("g").unwrap());
    let text = |text: &str| CallArgument::Text(text.to_string().into());
    let bytes = |bytes: &[u8]| CallArgument::Bytes(bytes.to_vec().into());
    let given = i.encode_arguments(f, &[text("a\"b"), bytes(b"xy"), text("é"), bytes(&[1])]);
    let wave = i.encode(f, &["\"a\\\"b\"", "[120, 121]", "'é'", "some([1])"]).unwrap();
    assert_eq!(given, Ok(wave));
    // In WAVE, a text is also a list of its bytes.
    let quoted = i.encode(f, &["\"\"", "\"xy\"", "'é'", "\"x\""]).unwrap();
    let numbers = i.encode(f, &["\"\"", "[120, 121]", "'é'", "[120]"]).unwrap();
    assert_eq!(quoted, numbers);
    for (procedure, arguments, part) in [
        (f, &[text(""), text("x")][..], "the text `x` is given; give a list<u8>"),
        (f, &[bytes(&[1, 2])], "2 bytes are given; give a string"),
        (f, &[text(""), bytes(&[]), text("ab")], "`ab` is not one character"),
        (g, &[text("7")], "the text `7` is given; give a u8"),
    ] {
        let error = i.encode_arguments(procedure, arguments).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let r = i.procedure("r").unwrap();
    let block = |case: u8| [&[case, 0, 0, 0, 0, 0, 0, 0], &[0; 16][..]].concat();
    for (case, outcome) in [(0, ProcedureOutcome::Done), (1, ProcedureOutcome::Error)] {
        let block = block(case);
        let value = i.decode_value(r, &block).unwrap().unwrap();
        assert_eq!(value.outcome(), outcome);
        assert_eq!(i.decode_outcome(r, &block).unwrap(), (value.wave().unwrap(), outcome));
    }
    assert_eq!(i.decode_value(g, &[]), Ok(None));
}
