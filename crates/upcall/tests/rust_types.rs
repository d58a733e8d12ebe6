//! What WIT types become in Rust: the table of docs/reference/wit.md. The compiler does the check.
#![deny(warnings)]
#![forbid(unsafe_code)]

upcall::interface!(
    "package test:types;
     interface types {
         record point { x: u32, y: u32 }
         variant shape { dot, circle(u32) }
         enum color { red, green }
         flags rights { read, write }
         resource door { name: func() -> string; }
         record with-door { door: own<door> }

         open: func() -> door;
         pass-numbers: func(a: bool, b: char, c: u8, d: s64, e: f32) -> s64;
         pass-text: func(a: string) -> string;
         pass-bytes: func(a: list<u8>) -> list<u8>;
         pass-texts: func(a: list<string>) -> list<string>;
         pass-four: func(a: list<u16, 4>) -> list<u16, 4>;
         pass-option: func(a: option<string>) -> option<string>;
         pass-tuple: func(a: tuple<u8, string>) -> tuple<u8, string>;
         pass-outcome: func(a: result<u8, string>) -> result<u8, string>;
         pass-nothing: func() -> result;
         pass-record: func(a: point) -> point;
         pass-variant: func(a: shape) -> shape;
         pass-enum: func(a: color) -> color;
         pass-flags: func(a: rights) -> rights;
         pass-own: func(a: door) -> door;
         pass-borrow: func(a: borrow<door>) -> string;
         pass-borrows: func(a: list<borrow<door>>) -> u32;
         pass-carrier: func(a: with-door) -> with-door;
     }"
);

use std::sync::Arc;
use types::{Color, Door, Point, Rights, ServeDoor, ServedWithDoor, Shape, Types, WithDoor};
use upcall::{Bytes, CallError, Failure, Lent};

struct Server;

struct Wooden;

impl ServeDoor for Wooden {
    fn name(&self) -> String {
        "wooden".into()
    }
}

impl types::Serve for Server {
    fn open(&self) -> Arc<dyn ServeDoor> {
        Arc::new(Wooden)
    }
    fn pass_numbers(&self, _a: bool, _b: char, _c: u8, d: i64, _e: f32) -> i64 {
        d
    }
    fn pass_text(&self, a: &str) -> String {
        a.to_owned()
    }
    fn pass_bytes(&self, a: Bytes<'_>) -> Vec<u8> {
        a.to_vec()
    }
    fn pass_texts(&self, a: &[String]) -> Vec<String> {
        a.to_vec()
    }
    fn pass_four(&self, a: &[u16; 4]) -> [u16; 4] {
        *a
    }
    fn pass_option(&self, a: &Option<String>) -> Option<String> {
        a.clone()
    }
    fn pass_tuple(&self, a: &(u8, String)) -> (u8, String) {
        a.clone()
    }
    fn pass_outcome(&self, a: &Result<u8, String>) -> Result<u8, String> {
        a.clone()
    }
    fn pass_nothing(&self) -> Result<(), ()> {
        Ok(())
    }
    fn pass_record(&self, a: &Point) -> Point {
        *a
    }
    fn pass_variant(&self, a: &Shape) -> Shape {
        *a
    }
    fn pass_enum(&self, a: Color) -> Color {
        a
    }
    fn pass_flags(&self, a: Rights) -> Rights {
        a
    }
    fn pass_own(&self, a: Arc<dyn ServeDoor>) -> Arc<dyn ServeDoor> {
        a
    }
    fn pass_borrow(&self, a: &dyn ServeDoor) -> String {
        a.name()
    }
    fn pass_borrows(&self, a: Vec<Lent<dyn ServeDoor>>) -> u32 {
        a.len() as u32
    }
    fn pass_carrier(&self, a: ServedWithDoor) -> ServedWithDoor {
        a
    }
}

/// Every procedure of the client, with the types of its parameters and its result.
#[allow(clippy::type_complexity)]
fn client(types: &Types, door: Door) -> Result<(), CallError> {
    let number: i64 = types.pass_numbers(true, 'a', 1, -2, 0.5)?;
    assert_eq!(number, -2);
    let text: String = types.pass_text("text")?;
    let bytes: Vec<u8> = types.pass_bytes(text.as_bytes())?;
    let texts: Vec<String> = types.pass_texts(&[text])?;
    let four: [u16; 4] = types.pass_four(&[1, 2, 3, 4])?;
    let option: Option<String> = types.pass_option(&Some("text".to_owned()))?;
    let tuple: (u8, String) = types.pass_tuple(&(1, "text".to_owned()))?;
    let outcome: Result<u8, Failure<String>> = types.pass_outcome(&Ok(3));
    let nothing: Result<(), Failure<()>> = types.pass_nothing();
    let record: Point = types.pass_record(&Point { x: 1, y: 2 })?;
    let variant: Shape = types.pass_variant(&Shape::Circle(5))?;
    let one: Color = types.pass_enum(Color::Green)?;
    let flags: Rights = types.pass_flags(Rights::READ)?;
    assert_eq!((bytes, texts, four[3]), (b"text".to_vec(), vec!["text".to_owned()], 4));
    assert_eq!((option.as_deref(), tuple.1.as_str()), (Some("text"), "text"));
    assert!(matches!((outcome, nothing), (Ok(3), Ok(()))));
    assert_eq!((record.y, variant, one, flags), (2, Shape::Circle(5), Color::Green, Rights::READ));
    let lent: String = types.pass_borrow(&door)?;
    let number: u32 = types.pass_borrows(vec![&door, &door])?;
    assert_eq!((lent.as_str(), number), ("wooden", 2));
    let own: Door = types.pass_own(door)?;
    let carrier: WithDoor = types.pass_carrier(WithDoor { door: own })?;
    assert_eq!(carrier.door.name()?, "wooden");
    Ok(())
}

#[test]
fn types_are_those_of_the_table() {
    let name = format!("rust-types-{}", std::process::id());
    let _server = upcall::Server::new().export(&name, types::export(Server)).start().unwrap();
    let types = Types::bind(&name).unwrap();
    client(&types, types.open().unwrap()).unwrap();
    assert!(matches!(
        types.pass_outcome(&Err("no".into())),
        Err(Failure::Returned(text)) if text == "no"
    ));
}
