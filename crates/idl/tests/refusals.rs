//! What is refused, with the place and the advice.

use upcall_idl::dynamic::DynamicInterface;

/// The error for a definition with the interface body `body`, which is on line 3 of the text.
fn refusal(body: &str) -> String {
    let wit = format!("package a:b;\ninterface i {{\n{body}\n}}");
    match DynamicInterface::parse("a:b/i", &wit, "") {
        Ok(_) => format!("accepted: {body}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn constructs_are_refused_with_their_place() {
    let cases: &[(&str, &str)] = &[
        ("f: func() -> future<u8>;", "3:14: `future` is not supported: return the value"),
        ("f: func() -> stream<u8>;", "3:14: `stream` is not supported: return a resource"),
        ("f: func(a: stream);", "3:12: `stream` is not supported"),
        (
            "f: func(a: map<string, u8>);",
            "3:12: `map` is not supported: use list<tuple<key, value>>",
        ),
        ("f: func() -> error-context;", "3:1: `error-context` is not supported: return a string"),
        ("\nrecord r {\n  a: u8,\n  b: error-context,\n}", "6:3: `error-context`"),
        ("f: async func();", "accepted"),
        ("f: async func() -> stream<u8>;", "3:20: `stream`"),
        ("f: func(a: list<u8, 0>);", "3:12: a list of length 0 is not supported"),
        (
            "resource r;\nrecord x { h: r }\nvariant y { a, b(list<x>) }\nf: func(a: y) -> \
            option<y>;",
            "accepted",
        ),
        ("resource r;\nrecord x { h: borrow<r> }\nf: func(a: list<x>);", "accepted"),
        (
            "type t = list<list<u64, 65536>, 65536>;",
            "3:6: a type of more than 268435456 bytes in place",
        ),
        ("record serve { a: u8 }\nf: func();", "accepted"), // only the generator minds
    ];
    for (body, expected) in cases {
        let found = refusal(body);
        assert!(found.contains(expected), "{body}\n  gave {found}\n  not  {expected}");
    }
}

#[test]
fn what_the_parser_refuses_has_a_place_too() {
    let cases = [
        ("f: func(", "4:1: "),
        ("f: func(a: nothing);", "3:12: "),
        ("record r { a: r }", "3:15: "),
        ("use missing.{x};", "3:5: "),
        ("resource r;\nf: func() -> borrow<r>;", "4:1: "),
    ];
    for (body, expected) in cases {
        let found = refusal(body);
        assert!(
            found.contains(&format!("source of a:b/i:{expected}")),
            "{body}\n  gave {found}\n  not {expected}"
        );
    }
}

#[test]
fn what_the_parser_refuses_has_advice() {
    let rule = "is not a name in WIT: names are lower case, with hyphens between their words";
    let cases = [
        ("f: func() -> String;", "3:14: `String` ", "; the text type is `string`"),
        ("greet_error: func();", "3:1: `greet_error` ", "; write `greet-error`"),
        ("f: func(userName: u8);", "3:9: `userName` ", "; write `user-name`"),
        ("record %Item { a: u8 }", "3:8: `Item` ", "; write `item`"),
        ("record item { a--b: u8 }", "3:15: `a--b` ", "; write `a-b`"),
        ("/* é */ enum e { Red }", "3:19: `Red` ", "; write `red`"),
    ];
    for (body, begin, end) in cases {
        let found = refusal(body);
        let expected = format!("source of a:b/i:{begin}{rule}{end}");
        assert_eq!(found, expected, "{body}");
    }
    let cases = [
        ("f: func(from: string);", "; to use this word as a name, write `%from`"),
        ("record r { type: u8 }", "; to use this word as a name, write `%type`"),
        ("enum e { list }", "; to use this word as a name, write `%list`"),
        ("f: func(a: i32);", "`i32` does not exist; write `s32`"),
        ("f: func() -> bytes;", "`bytes` does not exist; write `list<u8>`"),
        ("f: func() -> nothing;", "`nothing` does not exist"),
    ];
    for (body, end) in cases {
        let found = refusal(body);
        assert!(found.ends_with(end), "{body}\n  gave {found}\n  not {end}");
    }
}

#[test]
fn a_package_without_its_semicolon_is_named() {
    for package in ["package demo:hello", "package demo:hello@1.0.0"] {
        let wit = format!("// First; comment.\n{package}\n\n/// A greeter.\ninterface i {{}}");
        let found = DynamicInterface::parse("demo:hello/i", &wit, "").unwrap_err().to_string();
        let expected = format!(
            "source of demo:hello/i:5:1: expected `;` or `{{` after `{package}`, found keyword \
             `interface`"
        );
        assert_eq!(found, expected);
    }
    let wit = "package demo:hello;\ninterface i\nrecord r { a: u8 }";
    let found = DynamicInterface::parse("demo:hello/i", wit, "").unwrap_err().to_string();
    assert!(found.ends_with("expected '{', found keyword `record`"), "{found}");
}

#[test]
fn too_many_of_something_is_refused() {
    let params = |n: usize| (0..n).map(|i| format!("p{i}: u8")).collect::<Vec<_>>().join(", ");
    assert!(refusal(&format!("f: func({});", params(16))).starts_with("accepted"));
    assert!(
        refusal(&format!("f: func({});", params(17)))
            .contains("3:1: a procedure with more than 16 parameters")
    );
    assert!(
        refusal(&format!("resource r {{ f: func({}); }}", params(16))).contains("`self` counts")
    );
    let tuple = format!("type t = tuple<{}>;", vec!["u8"; 17].join(", "));
    assert!(
        refusal(&tuple).contains("3:6: a tuple of more than 16 members"),
        "{}",
        refusal(&tuple)
    );
    let flags = (0..65).map(|i| format!("c{i}")).collect::<Vec<_>>().join(", ");
    // The parser is stricter than the layout, which has room for 64.
    assert!(refusal(&format!("flags f {{ {flags} }}")).contains("cannot have more than 32 flags"));
    let many = (0..1001).map(|i| format!("p{i}: func();")).collect::<String>();
    assert!(refusal(&many).contains("more than 1000 procedures"), "{}", refusal(&many));
}

/// The cost of a definition from another domain must be bounded by its length.
#[test]
fn hostile_definitions_end_quickly() {
    let nested = format!("type t = {}u8{};", "list<".repeat(30_000), ">".repeat(30_000));
    assert!(refusal(&nested).contains("nested more than 48 deep"));
    // Nesting without `<`: a chain of names.
    let mut chain = "type t0 = u8;".to_owned();
    for i in 1..20_000 {
        chain.push_str(&format!("record t{i} {{ a: t{} }}", i - 1));
    }
    assert!(refusal(&chain).contains("nested more than 48 deep"));
    // Each type is twice as long as the last: exponential when written out.
    let mut doubling = "type t0 = list<u8>;".to_owned();
    for i in 1..15 {
        doubling.push_str(&format!("type t{i} = tuple<list<t{0}>, list<t{0}>>;", i - 1));
    }
    doubling.push_str("f: func(a: t14);");
    assert!(refusal(&doubling).contains("bytes to write out"), "{}", refusal(&doubling));
    let long = "//".to_owned() + &"x".repeat(2 << 20);
    assert!(refusal(&long).contains("a source text of more than"));
}

#[test]
fn what_a_world_declares_are_interfaces() {
    let told = |world: &str, interface: &str| {
        let wit = format!(
            "package a:b@1.0.0;\ninterface i {{ f: func(); type t = u8; }}\nworld w {{\n{world}\n}}"
        );
        let found = DynamicInterface::parse(&format!("a:b/{interface}@1.0.0"), &wit, "")
            .map_err(|e| e.to_string())?;
        Ok::<_, String>(found.interface().bound().map(|p| p.signature.clone()).collect::<Vec<_>>())
    };
    let only = |text: &str| Ok(vec![text.to_owned()]);
    assert_eq!(told("import i; export i;", "i"), only("f: func()"));
    let error = told("import i; export i;", "w").unwrap_err();
    assert!(error.contains("it has no interface `a:b/w@1.0.0`, only a:b/i@1.0.0"), "{error}");
    let both = "use i.{t}; record r { a: t } import g: func(r: r); export g: func() -> r;";
    assert_eq!(told(both, "w"), only("g: func() -> record{a: u8}"));
    assert_eq!(told(both, "w-imports"), only("g: func(r: record{a: u8})"));
    let inside = "import x: interface { f: func(); } export x: interface { f: func() -> u8; }";
    assert_eq!(
        (told(inside, "w-imports-x"), told(inside, "w-x")),
        (only("f: func()"), only("f: func() -> u8"))
    );
    let resource = "resource q { go: func(); } export h: func() -> q;";
    let carried = ["h: func() -> own<q>", "a:b/w-imports.q.go: func(self: borrow<q>)"]
        .map(String::from)
        .to_vec();
    assert_eq!(told(resource, "w"), Ok(carried));
    // Included declarations become the world's own, also from another package.
    let included = "resource q { go: func(); } export h: func() -> q; }\nworld v { include w;";
    let foreign = "include c:d/u; }\n package c:d { world u { resource q { go: func(); } export \
        h: func() -> q; }";
    for (world, text) in [("w", included), ("v", included), ("w", foreign)] {
        let carried = format!("a:b/{world}-imports.q.go: func(self: borrow<q>)");
        assert_eq!(told(text, world), Ok(vec!["h: func() -> own<q>".into(), carried]));
    }
    let error = told("import f: func();\n}\ninterface w-imports {", "i").unwrap_err();
    assert!(error.contains("3:7: the name `w-imports` beside what world `w` declares"), "{error}");
}

#[test]
fn an_interface_carries_those_whose_objects_it_takes_or_gives() {
    let wit = "package a:b@1.0.0;
        interface h { resource r { go: func() -> u8; } record x { r: r } make: func() -> r; }
        interface i { use h.{r as q}; f: func(a: borrow<q>); }
        interface j { use h.{x}; use i.{q}; record unused { q: q } g: func() -> list<x>; }
        interface k { use h.{r}; f: func(); }";
    let bound = |interface: &str| {
        let i = DynamicInterface::parse(&format!("a:b/{interface}@1.0.0"), wit, "").unwrap();
        i.interface().bound().map(|p| p.signature.clone()).collect::<Vec<_>>()
    };
    let carried = ["a:b/h.r.go: func(self: borrow<r>) -> u8", "a:b/h.make: func() -> own<r>"];
    assert_eq!(bound("i"), [&["f: func(a: borrow<r>)"], &carried[..]].concat());
    assert_eq!(
        bound("j"),
        [&["g: func() -> list<record{r: own<r>}>"], &carried[..]].concat(),
        "by way of a record"
    );
    assert_eq!(bound("k"), ["f: func()"], "the name alone carries nothing");
}

#[test]
fn what_is_carried_keeps_the_limits_that_it_has_at_home() {
    let wit = "package a:b;
        interface h { resource r { put: func(s: string); } }
        interface i { use h.{r}; use c:d/h.{r as other};
            f: func(a: borrow<r>, b: borrow<other>, s: string); }
        package c:d { interface h { resource r { put: func(s: string); } } }";
    let i = DynamicInterface::parse(
        "a:b/i",
        wit,
        "[limits]\nstring = 50\n[h]\nstring = 10\n[i]\nstring = 20\n",
    )
    .unwrap();
    let limits: Vec<_> =
        i.interface().bound().map(|p| (p.name.as_str(), p.limits.string)).collect();
    assert_eq!(
        limits,
        [("f", 20), ("a:b/h.r.put", 10), ("c:d/h.r.put", 50)],
        "a table is for an interface of the package"
    );
}

#[test]
fn what_is_lent_is_not_given_back() {
    for ty in ["borrow<r>", "list<borrow<r>>", "x", "result<u8, option<x>>"] {
        let found =
            refusal(&format!("resource r;\nrecord x {{ h: borrow<r> }}\nf: func() -> {ty};"));
        // The parser itself refuses the simpler cases.
        assert!(found.contains("5:1: ") && found.contains("borrow"), "{ty}: {found}");
    }
}

/// A carried interface is copied into every interface that carries it.
#[test]
fn too_much_that_is_carried_is_refused() {
    let mut chain = "package a:b; interface i0 { resource r0; f: func(); }".to_owned();
    for n in 1..3000 {
        let before = n - 1;
        chain.push_str(&format!(
            "interface i{n} {{ use i{before}.{{r{before}}}; resource r{n}; f: func(a: \
            borrow<r{before}>); }}"
        ));
    }
    let error = DynamicInterface::parse("a:b/i1", &chain, "").unwrap_err().to_string();
    assert!(error.contains("an interface that carries more than 64 others"), "{error}");
    let long = format!(
        "record r {{ {} }}",
        (0..900).map(|n| format!("a-long-name-of-field-{n}: string, ")).collect::<String>()
    );
    let many = (0..1000).map(|n| format!("p{n}: func(a: r) -> r;")).collect::<String>();
    let more = (0..2).map(|n| format!("interface i{n} {{ {long} {many} }}")).collect::<String>();
    let error = DynamicInterface::parse("a:b/i0", &format!("package a:b; {more}"), "")
        .unwrap_err()
        .to_string();
    assert!(error.contains("take more than 67108864 bytes to write out"), "{error}");
}

#[test]
fn the_generator_refuses_names_that_meet() {
    let generate = |name: &str, body: &str| {
        let folder = std::env::temp_dir().join(format!("upcall-idl-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("i.wit");
        std::fs::write(&file, format!("package a:b;\ninterface i {{\n{body}\n}}")).unwrap();
        let result = upcall_idl::generate(&file).map(|g| g.code).map_err(|e| e.to_string());
        std::fs::remove_dir_all(&folder).unwrap();
        result
    };
    let error = generate("trait", "record serve { a: u8 }\nf: func();").unwrap_err();
    assert!(
        error.contains("i.wit:3:8: the name `serve` beside what else becomes `Serve`"),
        "{error}"
    );
    let error = generate("new", "resource r { constructor(); }\nnew-r: func();").unwrap_err();
    assert!(error.contains("becomes `new_r`"), "{error}");
    let error = generate("static", "resource set { pacing: static func(); }").unwrap_err();
    assert!(error.contains("becomes `set_pacing`"), "{error}");
    let error = generate(
        "served",
        "resource r;\nrecord a { r: r }\nrecord served-a { b: u8 }\nf: func(a: a);",
    )
    .unwrap_err();
    assert!(
        error.contains("i.wit:5:8: the name `served-a` beside what else becomes `ServedA`"),
        "{error}"
    );
    // An interface and a type may have one name: the client then gets another name.
    let code = generate("client", "record i { a: u8 }\nf: func() -> i;").unwrap();
    assert!(code.contains("pub struct IClient"), "{code}");
}

fn limits(toml: &str) -> Result<DynamicInterface, String> {
    let wit = "package a:b; interface i { f: func(a: string) -> list<u8>; g: func(); resource r { \
        h: func(a: string); } }";
    DynamicInterface::parse("a:b/i", wit, toml).map_err(|e| e.to_string())
}

#[test]
fn limits_are_taken_from_the_nearest_table() {
    let i = limits(
        "[limits]\nstring = \"64KiB\"\ncalls = 7\n[i]\nlist = 0x10\n[i.\"r.h\"]\ntail = \
            4_096\nstring = 9000\n",
    )
    .unwrap();
    let of = |name: &str| i.procedure(name).unwrap().limits;
    assert_eq!((of("f").string, of("f").list, of("f").calls), (65536, 16, 7));
    // The room is limited to what the longest value can take: 16 elements.
    assert_eq!((of("f").args_tail, of("f").results_tail), (1024, 16));
    assert_eq!((of("r.h").string, of("r.h").args_tail, of("r.h").results_tail), (9000, 4096, 0));
    assert_eq!((of("g").args_tail, of("g").calls), (0, 7));
}

#[test]
fn limits_that_are_wrong_are_refused_with_their_place() {
    let cases = [
        ("[limits\n", "1:8: this is not TOML: "),
        ("string = 1", "1:1: `string` stands outside of any table; put it below [limits]"),
        (
            "[limits]\nstrin = 1",
            "2:1: `strin` is not a limit; the limits are: string, list, values, tail, calls",
        ),
        ("[limits]\nstring = 0", "2:10: `0` is not a number of bytes from 1 to"),
        ("[limits]\nstring = -5", "2:10: `-5` is not a number"),
        (
            "[limits]\n\ntail = \"2GiB\"",
            "3:8: `\"2GiB\"` is not a number of bytes from 1 to 1073741824; write tail = 4096",
        ),
        ("[limits]\ntail = \"64 kilobytes\"", "2:8: `\"64 kilobytes\"` is not a number"),
        (
            "[limits]\ntail = \"2G\"",
            "2:8: `\"2G\"` is not a number of bytes from 1 to 1073741824; the units are KiB, MiB \
             and GiB, as in tail = \"4KiB\"",
        ),
        ("[limits]\ncalls = 70000", "2:9: `70000` is not a number of calls from 1 to 65535"),
        ("[limits]\ncalls = 1.5", "2:9: `1.5` is not a number"),
        ("[limits]\ncalls = 1\ncalls = 2", "3:1: this is not TOML: duplicate key"),
        ("[limits.\"f\"]\ncalls = 1", "1:9: [limits] holds a table `f`; name the interface"),
        ("[j]\ncalls = 1", "1:2: there is no interface `j`; there is: limits (for all), i"),
        ("[i.x]\ncalls = 1", "1:4: interface `i` has no procedure `x`; it has: "),
        ("[i.f]\nspeed = 1", "2:1: `speed` is not a limit"),
    ];
    for (toml, expected) in cases {
        let found = limits(toml).map(|_| ()).unwrap_err();
        assert!(
            found.contains(&format!("limits of a:b/i:{expected}")),
            "{toml}\n  gave {found}\n  not  {expected}"
        );
    }
}

#[test]
fn a_number_with_a_unit_that_is_not_in_quotes_is_shown_in_quotes() {
    for (toml, place, advice) in [
        ("[limits]\ntail = 64KiB", ":2:", "; write tail = \"64KiB\""),
        ("[limits]\n  tail=64 MiB # room\ncalls = 1", ":2:", "; write tail = \"64 MiB\""),
        ("[i.f]\nvalues = 2G\n", ":2:", "; the units are KiB, MiB and GiB, in quotes"),
        ("[i.f]\nvalues = many\n", ":2:", "; write [limits], or [<interface>], and below it"),
        ("[i.f]\nvalues = 1 2\n", ":2:", "; write [limits], or [<interface>], and below it"),
    ] {
        let found = limits(toml).map(|_| ()).unwrap_err();
        assert!(found.contains("this is not TOML: "), "{toml}: {found}");
        assert!(found.contains(place) && found.contains(advice), "{toml}: {found}");
    }
}

#[test]
fn files_that_are_not_there() {
    let error = upcall_idl::load("/nowhere/x.wit").unwrap_err();
    assert_eq!(
        format!("{error:?}"),
        "cannot read /nowhere/x.wit: No such file or directory (os error 2); name a .wit file, or \
        a folder of them"
    );
}
