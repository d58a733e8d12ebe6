//! Interfaces that are written in Rust: what is refused, at which place and with which advice.
//! `crates/upcall/tests/written.rs` compiles and calls what is accepted.

use proc_macro2::TokenStream;
use std::str::FromStr;
use upcall_idl::written;

/// The errors for `item` under `#[package("a:b")]`, as `line:column: text`. The item begins on line
/// 1, and columns count from 1.
fn refusals(item: &str) -> Vec<String> {
    let tokens = |text: &str| TokenStream::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    match written::expand(tokens("\"a:b\""), tokens(item)) {
        Ok(_) => vec!["accepted".into()],
        Err(errors) => {
            let told = |error: syn::Error| {
                let start = error.span().start();
                format!("{}:{}: {error}", start.line, start.column + 1)
            };
            errors.into_iter().map(told).collect()
        }
    }
}

fn refusal(item: &str) -> String {
    let all = refusals(item);
    assert_eq!(all.len(), 1, "{item}\n{all:#?}");
    all[0].clone()
}

fn check(cases: &[(&str, &str)], around: impl Fn(&str) -> String) {
    for (item, expected) in cases {
        let found = refusal(&around(item));
        assert!(found.starts_with(expected), "{item}\n  gave {found}\n  not  {expected}");
    }
}

#[test]
fn types_are_refused_with_their_place() {
    let cases = [
        ("fn f(&self) -> usize;", "2:16: its size is a matter of the machine: write `u64`"),
        ("fn f(&self, a: &[u8]);", "2:16: bytes stay in memory that the client may still write"),
        (
            "fn f(&self, a: &Vec<u8>);",
            "2:16: a server gets this in another form: write `upcall::Bytes<'_>`",
        ),
        ("fn f(&self, a: &String);", "2:16: a server gets this in another form: write `&str`"),
        (
            "fn f(&self, a: &Vec<String>);",
            "2:16: a server gets this in another form: write `&[..]`",
        ),
        (
            "fn f(&self, a: &u32);",
            "2:16: a server gets this in another form: write the value itself",
        ),
        ("fn f(&self, a: &mut Point);", "2:16: an argument is a copy of the caller's"),
        ("fn f<'a>(&self, a: &'a str);", "2:6: WIT has no generic types"),
        ("fn f(&self, a: &'static str);", "2:17: arguments live as long as the call"),
        ("fn f(&self) -> &str;", "2:16: a value cannot borrow from elsewhere here: write `String`"),
        (
            "fn f(&self, a: Option<&str>);",
            "2:23: a value cannot borrow from elsewhere here: write `String`",
        ),
        ("fn f(&self) -> Option<()>;", "2:23: `()` stands for nothing"),
        (
            "fn f(&self) -> std::io::Result<u8>;",
            "2:16: a macro does not know what error an alias of `Result` has",
        ),
        (
            "fn f(&self, a: std::collections::HashMap<String, u8>);",
            "2:16: WIT has no maps: write `Vec<(K, V)>`",
        ),
        ("fn f(&self, a: Box<u8>);", "2:16: values are copied between domains"),
        ("fn f(&self, a: elsewhere::Thing);", "2:16: `Thing` is not declared in this module"),
        ("fn f(&self, a: impl Into<String>);", "2:16: both sides must know the type"),
        ("fn f(&self, a: [u8; LEN]);", "2:21: the length must be a plain number"),
        ("fn f(&self, a: [u8; 0]);", "2:4: a list of length 0 is not supported: leave it out"),
        ("fn f(&self, a: fn(u8));", "2:16: WIT has no such type"),
        ("fn f(&self, a: Box<dyn Fn(u8)>);", "2:16: values are copied"),
        ("fn f(&self, a: Point<u8>);", "2:21: WIT has no generic types"),
        ("fn f(&self, a: Thing);", "2:16: `Thing` is a trait: write `std::sync::Arc<dyn Thing>`"),
        ("fn f(&self, a: Lent<dyn Thing>);", "2:16: write `&dyn ..`"),
        (
            "fn f(&self, a: &dyn Clone);",
            "2:21: an object's type is `dyn` and one trait of this module",
        ),
        ("fn f(&self, a: Vec<&dyn Thing>);", "2:20: write `upcall::Lent<dyn ..>`"),
        ("fn f(&self, a: &[Arc<dyn Thing>]);", "2:16: what holds objects is passed by value"),
        ("fn f(&self) -> Lent<dyn Thing>;", "2:4: "),
    ];
    let around = |f: &str| {
        format!(
            "mod m {{ #[resource] pub trait Thing {{ fn g(&self); }} pub struct Point {{ x: u8 }} \
            pub trait I {{\n{f} }} }}"
        )
    };
    check(&cases, around);
}

#[test]
fn functions_are_refused_with_their_place() {
    let many = format!(
        "fn f(&self, {});",
        (0..17).map(|n| format!("p{n}: u8")).collect::<Vec<_>>().join(", ")
    );
    let cases = [
        ("fn f(&mut self);", "1:16: calls come from many threads at once"),
        ("fn f(self: Arc<Self>);", "1:16: calls come from many threads at once"),
        ("fn f(a: u8);", "1:16: calls come from many threads at once"),
        ("fn f();", "1:14: it is called on the server"),
        ("async fn f(&self);", "1:11: a call blocks only the thread that makes it"),
        ("unsafe fn f(&self);", "1:11: another domain calls this"),
        ("fn f<T>(&self, a: T);", "1:16: WIT has no generic types"),
        ("fn f(&self, (a, b): (u8, u8));", "1:23: a parameter has a name"),
        ("fn f(&self, _: u8);", "1:23: a parameter has a name"),
        ("type T;", "1:11: an interface has functions only"),
        ("fn readAll(&self);", "1:14: WIT's names are words"),
        ("fn _f(&self);", "1:14: WIT's names are words"),
        ("fn f(&self, größe: u8);", "1:23: WIT's names are words"),
        ("fn f(&self); fn f(&self);", "1:27: two things of this interface are called `f`"),
        ("#[cfg(unix)] fn f(&self);", "1:11: an interface is the same in every build"),
        ("#[limits(calls)] fn f(&self);", "1:25: write #[limits("),
        ("#[limits(size = 1)] fn f(&self);", "1:20: `size` is not a limit"),
        ("#[limits(calls = 0)] fn f(&self);", "1:20: `0` is not a number of calls"),
        ("fn f(&self, a: Point);", "1:26: `Point` cannot be seen from here"),
        (many.as_str(), "1:14: a procedure with more than 16 parameters"),
        ("", "1:7: a trait without functions"),
    ];
    check(&cases, |f| format!("trait I {{ {f} }}"));
}

#[test]
fn items_are_refused_with_their_place() {
    let cases = [
        ("pub struct P(u8);", "2:12: WIT's records have fields with names"),
        ("pub struct P;", "2:12: WIT's records have fields with names"),
        ("pub struct P {}", "2:12: WIT's records have at least one field"),
        ("pub struct P<T> { a: T }", "2:14: WIT has no generic types"),
        ("pub struct P { #[cfg(unix)] a: u8 }", "2:16: an interface is the same in every build"),
        ("pub struct P { a: Box<P> }", "2:19: values are copied"),
        ("pub struct P { a: Vec<P> }", "2:16: "),
        (
            "pub struct P { a: std::sync::Arc<dyn O> }\n#[resource] pub trait O { fn f(&self); }",
            "2:19: objects stand in no struct",
        ),
        ("pub struct HTTPError { a: u8 }", "2:12: WIT's names are words"),
        ("pub enum E { A = 1 }", "2:18: WIT numbers cases from 0 on"),
        ("pub enum E { A(u8, u8) }", "2:15: a case carries one value in WIT: write a tuple"),
        ("pub enum E { A { b: u8 } }", "2:16: a case carries one value in WIT: declare a struct"),
        ("pub enum E {}", "2:10: WIT has no enums without cases"),
        ("#[flags] pub enum E { A(u8) }", "2:19: a flag is there or is not"),
        ("#[flags] #[derive(Debug)] pub enum E { A }", "2:10: flags become a struct"),
        ("pub type R<T> = Result<T, u8>;", "2:12: WIT has no generic types"),
        ("pub trait J { fn g(&self); }", "2:11: a module is one interface"),
        (
            "#[resource] #[limits(calls = 1)] pub trait J { fn g(&self); }",
            "2:13: limits stand at the interface's trait",
        ),
        ("pub struct F { a: u8 }", "1:26: two things of this interface are called `f`"),
        ("#[resource] pub trait O { fn f(&self, a: u8, a: u8); }", "2:30: "),
        (
            "pub struct IClient { a: u8 }",
            "2:12: the name `i-client` beside what else becomes `IClient`",
        ),
    ];
    check(&cases, |item| format!("mod m {{ pub trait I {{ fn f(&self); }}\n{item} }}"));
    check(
        &[
            ("struct S;", "1:1: this is neither a module nor a trait"),
            ("mod m;", "1:1: a macro sees no other file"),
            (
                "mod m { pub struct S { a: u8 } }",
                "1:5: a module is one interface, and has one trait for it",
            ),
        ],
        str::to_owned,
    );
}

/// All errors are reported at once, so that the author need not compile once for each.
#[test]
fn everything_that_is_wrong_is_told() {
    let all = refusals(
        "mod m { pub struct A(u8); pub trait I { fn f(&self, a: usize); fn g(self); } pub enum B \
        {} }",
    );
    assert_eq!(all.len(), 4, "{all:#?}");
}

#[test]
fn a_package_has_a_name() {
    for (package, expected) in [
        ("", "the attribute takes the package's name"),
        ("files", "the attribute takes the package's name"),
        ("\"a b\"", "this is no package's name"),
        ("\"a\"", "1:1: "),
        ("\"a:b@x\"", "1:1: "),
    ] {
        let item = TokenStream::from_str("trait I { fn f(&self); }").unwrap();
        let error = written::expand(TokenStream::from_str(package).unwrap(), item).unwrap_err();
        let start = error.span().start();
        let found = format!("{}:{}: {error}", start.line, start.column + 1);
        assert!(found.contains(expected), "{package}: {found}");
    }
}

/// Full paths of names from the standard library and from this one are accepted, and so are the
/// other items that may be in an interface's module.
#[test]
fn what_else_may_be_there() {
    let item = "mod m { use std::sync::Arc; const LEN: usize = 3; fn helper() {}
        impl P { fn new() -> Self { todo!() } }
        pub struct P { a: std::option::Option<std::string::String>, b: self::E }
        pub enum E { A, B(std::vec::Vec<u8>) }
        /** Block.
            Comment. */
        pub trait Iface: Sized2 {
            fn f(&self, b: upcall::Bytes<'_>) -> std::result::Result<(), P> { Ok(()) } } }";
    assert_eq!(refusals(item), ["accepted"]);
}
