//! Interfaces that are written in Rust, called in the same domain, through a channel, and next to
//! an interface that is compiled from the generated WIT.
#![deny(warnings)]
#![allow(missing_docs, clippy::result_unit_err)]
#![expect(clippy::too_many_arguments, reason = "procedures with a parameter of each type")]
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use upcall::{Bytes, CallError, Failure};
use upcall_idl::dynamic::DynamicInterface;

/// Every construct that can be written.
#[upcall::package("test:written@1.2.3")]
pub mod shop {
    use std::sync::Arc;
    use upcall::{Bytes, Lent};

    /// What a shop does.
    ///
    /// ```
    /// not Rust
    /// ```
    #[limits(string = "4KiB", calls = 3)]
    pub trait Shop {
        /// Does nothing.
        fn null(&self);
        fn add(&self, a: u32, b: u32) -> u32;
        fn swap_numbers(&self, n: &Numbers) -> Numbers;
        /// Values, where they are asked for.
        #[limits(tail = "16KiB", calls = 8)]
        fn values(
            &self,
            name: String,
            list: Vec<u16>,
            bytes: Vec<u8>,
            item: Item,
            pair: (u8, String),
            maybe: Option<Item>,
        ) -> Item;
        fn views(
            &self,
            name: &str,
            list: &[u16],
            bytes: Bytes<'_>,
            item: &Item,
            pair: &(u8, String),
            maybe: &Option<Item>,
        ) -> u64;
        fn grid(&self, grid: &[[u8; 2]; 3]) -> [[u8; 2]; 3];
        fn other_rights(&self, rights: Rights, colour: Colour) -> (Rights, Colour);
        fn find(&self, shape: Shape) -> Result<Shape, Error>;
        fn bare(&self, yes: bool) -> Result<(), ()>;
        fn fails(&self) -> Result<(), String> {
            Err("as written".into())
        }
        fn r#type(&self, r#use: Key) -> Key;
        fn open(&self, name: &str) -> Result<Arc<dyn Basket>, Error>;
        fn close(&self, basket: Arc<dyn Basket>) -> u32;
        fn both(&self, baskets: Vec<Lent<dyn Basket>>) -> Option<Arc<dyn Basket>>;
    }

    /// What things are put into.
    #[resource]
    pub trait Basket {
        fn put(&self, item: Item) -> u32;
        fn same(&self, other: &dyn Basket) -> bool;
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Numbers {
        pub a: u8,
        pub b: u16,
        pub c: u32,
        pub d: u64,
        pub e: i8,
        pub f: i16,
        pub g: i32,
        pub h: i64,
        pub i: f32,
        pub j: f64,
        pub k: bool,
        pub l: char,
    }

    /// One thing.
    #[derive(Clone, Debug, PartialEq, Default)]
    pub struct Item {
        /// What it is called.
        pub name: String,
        pub r#type: Option<Colour>,
        pub tags: Vec<(Key, String)>,
        pub a1_b2: [u8; 4],
    }

    impl Item {
        pub fn called(name: &str) -> Self {
            Self { name: name.into(), ..Self::default() }
        }
    }

    /// Not `Copy`, and with no `PartialOrd`: what is not asked for is not there.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Colour {
        Red,
        /// Like the sky.
        Blue,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub enum Shape {
        Dot,
        Circle(f64),
        Named(Item),
        Many(Vec<Result<Colour, ()>>),
    }

    #[derive(Debug, PartialEq)]
    pub enum Error {
        NotFound,
        Other(String),
    }

    /// What may be done.
    #[flags]
    pub enum Rights {
        /// May read.
        Read,
        AppendOnly,
    }

    pub type Key = u64;
}

#[upcall::package("test:plain")]
pub trait PlainThing {
    fn hello(&self, name: &str, times: Option<u32>) -> String;
}

/// The same interface, compiled from the generated WIT.
mod compiled {
    upcall::interface!("../upcall/tests/wit/shop.wit");
}

use shop::{
    Basket, BasketClient, Colour, Error, Item, Key, Numbers, Rights, Shape, Shop, ShopClient,
};

struct Corner(Arc<AtomicU32>);
struct Pannier(String, Arc<AtomicU32>);

impl Drop for Pannier {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Basket for Pannier {
    fn put(&self, item: Item) -> u32 {
        item.name.len() as u32
    }
    fn same(&self, other: &dyn Basket) -> bool {
        other.put(Item::called(&self.0)) == self.0.len() as u32
    }
}

impl Corner {
    fn basket(&self, name: &str) -> Arc<dyn Basket> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Arc::new(Pannier(name.into(), self.0.clone()))
    }
}

impl Shop for Corner {
    fn null(&self) {}
    fn add(&self, a: u32, b: u32) -> u32 {
        a + b
    }
    fn swap_numbers(&self, n: &Numbers) -> Numbers {
        *n
    }
    fn values(
        &self,
        name: String,
        list: Vec<u16>,
        bytes: Vec<u8>,
        item: Item,
        pair: (u8, String),
        maybe: Option<Item>,
    ) -> Item {
        let name = format!("{name} {} {} {} {}", list.len(), bytes.len(), pair.1, maybe.is_some());
        Item { name, ..item }
    }
    fn views(
        &self,
        name: &str,
        list: &[u16],
        bytes: Bytes<'_>,
        item: &Item,
        pair: &(u8, String),
        maybe: &Option<Item>,
    ) -> u64 {
        let parts = [
            name.len(),
            list.len(),
            bytes.len(),
            item.name.len(),
            pair.1.len(),
            usize::from(maybe.is_some()),
        ];
        parts.into_iter().sum::<usize>() as u64
    }
    fn grid(&self, grid: &[[u8; 2]; 3]) -> [[u8; 2]; 3] {
        *grid
    }
    fn other_rights(&self, rights: Rights, colour: Colour) -> (Rights, Colour) {
        (!rights, colour)
    }
    fn find(&self, shape: Shape) -> Result<Shape, Error> {
        match shape {
            Shape::Dot => Err(Error::Other("a dot".into())),
            shape => Ok(shape),
        }
    }
    fn bare(&self, yes: bool) -> Result<(), ()> {
        yes.then_some(()).ok_or(())
    }
    fn r#type(&self, r#use: Key) -> Key {
        r#use + 1
    }
    fn open(&self, name: &str) -> Result<Arc<dyn Basket>, Error> {
        if name.is_empty() { Err(Error::NotFound) } else { Ok(self.basket(name)) }
    }
    fn close(&self, basket: Arc<dyn Basket>) -> u32 {
        basket.put(Item::called("x"))
    }
    fn both(&self, baskets: Vec<upcall::Lent<dyn Basket>>) -> Option<Arc<dyn Basket>> {
        (baskets.len() == 2).then(|| self.basket("both"))
    }
}

fn numbers() -> Numbers {
    Numbers {
        a: 1,
        b: 2,
        c: 3,
        d: u64::MAX,
        e: -1,
        f: -2,
        g: -3,
        h: i64::MIN,
        i: 1.5,
        j: -2.5,
        k: true,
        l: '\u{1F600}',
    }
}

fn item() -> Item {
    Item {
        name: "thing".into(),
        r#type: Some(Colour::Blue),
        tags: vec![(1, "one".into()), (2, String::new())],
        a1_b2: [1, 2, 3, 4],
    }
}

/// Runs `test` with a client in the server's domain and with one at the other end of a channel; all
/// objects are gone afterwards.
fn both_ways(name: &str, test: impl Fn(&ShopClient)) {
    let alive = Arc::new(AtomicU32::new(0));
    test(&ShopClient::local(Corner(alive.clone())));
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    let name = format!("written-{name}-{}", std::process::id());
    let running =
        upcall::Server::new().export(&name, shop::export(Corner(alive.clone()))).start().unwrap();
    test(&ShopClient::bind(&name).unwrap());
    running.stop();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn values_go_and_come_back() {
    both_ways("values", |shop| {
        shop.null().unwrap();
        assert_eq!(shop.add(2, 3).unwrap(), 5);
        assert_eq!(shop.swap_numbers(&numbers()).unwrap(), numbers());
        let back = shop
            .values("n", &[1, 2], &[0; 3000], &item(), &(1, "p".into()), &Some(item()))
            .unwrap();
        assert_eq!(back, Item { name: "n 2 3000 p true".into(), ..item() });
        assert_eq!(
            shop.views("four", &[1, 2], b"abc", &item(), &(1, "p".into()), &None).unwrap(),
            4 + 2 + 3 + 5 + 1
        );
        assert_eq!(shop.grid(&[[1, 2], [3, 4], [5, 6]]).unwrap(), [[1, 2], [3, 4], [5, 6]]);
        assert_eq!(
            shop.other_rights(Rights::READ, Colour::Blue).unwrap(),
            (Rights::APPEND_ONLY, Colour::Blue)
        );
        for shape in
            [Shape::Circle(1.5), Shape::Named(item()), Shape::Many(vec![Ok(Colour::Red), Err(())])]
        {
            assert_eq!(shop.find(&shape).unwrap(), shape);
        }
        assert!(matches!(
            shop.find(&Shape::Dot),
            Err(Failure::Returned(Error::Other(text))) if text == "a dot"
        ));
        assert!(shop.bare(true).is_ok() && matches!(shop.bare(false), Err(Failure::Returned(()))));
        assert!(matches!(shop.fails(), Err(Failure::Returned(text)) if text == "as written"));
        assert_eq!(shop.r#type(7).unwrap(), 8);
    });
}

#[test]
fn objects_go_back_and_forth() {
    both_ways("objects", |shop| {
        let (one, other): (BasketClient, BasketClient) =
            (shop.open("one").unwrap(), shop.open("other").unwrap());
        assert_eq!(one.put(&item()).unwrap(), 5);
        assert!(one.same(&other).unwrap());
        assert!(shop.both(vec![&one]).unwrap().is_none());
        assert_eq!(shop.both(vec![&one, &other]).unwrap().unwrap().put(&item()).unwrap(), 5);
        assert_eq!(shop.close(one).unwrap(), 1);
        assert!(matches!(shop.open(""), Err(Failure::Returned(Error::NotFound))));
    });
}

#[test]
fn limits_hold() {
    let limits = |name: &str| {
        shop::INTERFACE.procedures.iter().find(|p| p.name == name).map(|p| (p.calls, p.args.tail))
    };
    assert_eq!((limits("null"), limits("values")), (Some((3, 0)), Some((8, 16 << 10))));
    assert_eq!(
        shop::LIMITS,
        "[shop]\nstring = \"4KiB\"\ncalls = 3\n[shop.\"values\"]\ntail = \"16KiB\"\ncalls = 8\n"
    );
    let name = format!("written-limits-{}", std::process::id());
    let running =
        upcall::Server::new().export(&name, shop::export(Corner(Arc::default()))).start().unwrap();
    let client = ShopClient::bind(&name).unwrap();
    assert!(client.open(&"x".repeat(4096)).is_ok());
    assert!(matches!(
        client.open(&"x".repeat(4097)),
        Err(Failure::Call(CallError::TooLong { .. }))
    ));
    drop(client);
    running.stop();
}

/// The file is the WIT that the macro generates, and compiles to the same interface, so the file is
/// enough to build a client. `UPDATE_SNAPSHOTS=1` rewrites it.
#[test]
fn the_wit_means_what_was_written() {
    for (file, text) in [
        ("shop.wit", shop::WIT),
        ("shop.toml", shop::LIMITS),
        ("plain-thing.wit", plain_thing::WIT),
    ] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wit").join(file);
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "{}", path.display());
    }
    let told = |i: &'static upcall::stub::Interface| {
        i.procedures
            .iter()
            .map(|p| (p.signature.as_ref(), p.hash, p.args, p.results, p.calls))
            .collect::<Vec<_>>()
    };
    let (written, compiled) = (told(&shop::INTERFACE), told(&compiled::shop::INTERFACE));
    assert!(
        written.len() == 16 && written.iter().all(|procedure| compiled.contains(procedure)),
        "{written:#?}\n{compiled:#?}"
    );
    assert_eq!(
        (shop::INTERFACE.source.as_ref(), shop::INTERFACE.limits.as_ref()),
        (shop::WIT, shop::LIMITS)
    );
    let again = DynamicInterface::parse(&shop::INTERFACE.id, shop::WIT, shop::LIMITS).unwrap();
    for procedure in shop::INTERFACE.procedures.iter() {
        let back = again.procedure(&procedure.name).unwrap();
        assert_eq!(
            (back.signature.as_str(), back.hash),
            (procedure.signature.as_ref(), procedure.hash)
        );
    }
}

/// A client compiled from the file calls a server written in Rust, without access to its source.
#[test]
fn who_has_the_file_can_call() {
    let alive = Arc::new(AtomicU32::new(0));
    let name = format!("written-file-{}", std::process::id());
    let running =
        upcall::Server::new().export(&name, shop::export(Corner(alive.clone()))).start().unwrap();
    let client = compiled::shop::Shop::bind(&name).unwrap();
    let item = compiled::shop::Item {
        name: "thing".into(),
        r#type: None,
        tags: vec![(7, "x".into())],
        a1_b2: [9; 4],
    };
    assert_eq!(
        client.find(&compiled::shop::Shape::Named(item.clone())).unwrap(),
        compiled::shop::Shape::Named(item.clone())
    );
    assert_eq!(client.open("b").unwrap().put(&item).unwrap(), 5);
    drop(client);
    running.stop();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

/// Names that mean something to the generated code, items of other modules, and nothing public: a
/// program is free to choose the content of its own module.
mod narrow {
    use super::*;

    #[allow(dead_code)]
    type Vec = std::collections::VecDeque<u8>;

    #[upcall::package("test:narrow")]
    mod inner {
        #[allow(unused_imports)]
        use super::*;

        /** Of names. */
        pub(super) trait Names {
            fn string(
                &self,
                option: String2,
                result: &Result2,
                server: u8,
                binding: u8,
                value: u8,
                args: u8,
            ) -> String2;
            fn bind(&self, name: &str, call: u8) -> Result<u8, Error>;
            fn is_open(&self) -> bool;
        }
        #[derive(Clone, Debug)]
        pub(super) struct String2 {
            text: std::string::String,
            pub(super) r#match: std::vec::Vec<[Option<u16>; 2]>,
        }
        #[derive(Clone, Debug)]
        pub(super) enum Result2 {
            Ok(String2),
            Err,
        }
        #[derive(Debug)]
        pub(super) enum Error {
            None,
        }
        impl Default for String2 {
            fn default() -> Self {
                Self { text: "default".into(), r#match: vec![[Some(1), None]] }
            }
        }
        impl std::fmt::Display for Error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("no name")
            }
        }
    }

    struct Namer;

    impl inner::Names for Namer {
        fn string(
            &self,
            option: inner::String2,
            _: &inner::Result2,
            a: u8,
            b: u8,
            c: u8,
            d: u8,
        ) -> inner::String2 {
            assert_eq!([a, b, c, d], [1, 2, 3, 4]);
            option
        }
        fn bind(&self, name: &str, call: u8) -> Result<u8, inner::Error> {
            if name.is_empty() { Err(inner::Error::None) } else { Ok(call) }
        }
        fn is_open(&self) -> bool {
            false
        }
    }

    #[test]
    fn names_do_not_get_in_each_others_way() {
        let name = format!("written-narrow-{}", std::process::id());
        let running = upcall::Server::new().export(&name, inner::export(Namer)).start().unwrap();
        let client = inner::NamesClient::bind(&name).unwrap();
        let back = client
            .string(
                &inner::String2::default(),
                &inner::Result2::Ok(inner::String2::default()),
                1,
                2,
                3,
                4,
            )
            .unwrap();
        assert_eq!(back.r#match, [[Some(1), None]]);
        assert!(client.string(&back, &inner::Result2::Err, 1, 2, 3, 4).is_ok());
        assert!(matches!(
            client.bind_("", 7),
            Err(Failure::Returned(error)) if error.to_string() == "no name"
        ));
        assert_eq!(
            (client.bind_("x", 7).unwrap(), client.is_open_().unwrap(), client.is_open()),
            (7, false, true)
        );
        running.stop();
    }
}

struct Hello;

impl PlainThing for Hello {
    fn hello(&self, name: &str, times: Option<u32>) -> String {
        format!("{}{name}", "hello ".repeat(times.unwrap_or(1) as usize))
    }
}

#[test]
fn a_trait_by_itself_is_an_interface_too() {
    let name = format!("written-plain-{}", std::process::id());
    let running = upcall::Server::new().export(&name, plain_thing::export(Hello)).start().unwrap();
    let client = plain_thing::PlainThingClient::bind(&name).unwrap();
    assert_eq!(client.hello("Ada", &Some(2)).unwrap(), "hello hello Ada");
    assert_eq!(
        plain_thing::PlainThingClient::local(Hello).hello("Ada", &None).unwrap(),
        "hello Ada"
    );
    running.stop();
}
