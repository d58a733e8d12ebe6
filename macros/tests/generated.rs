//! The generated code compiles without a warning, and a client in the server's own domain works.
#![deny(warnings)]
#![forbid(unsafe_code)]

// Generated code names the runtime `::upcall`; here that is a mock with the same traits.
extern crate self as upcall;
#[path = "mock/mod.rs"]
mod mock;
pub use mock::*;

mod generated {
    upcall_macros::interface!("../idl/tests/wit/all.wit");
}
mod small {
    upcall_macros::interface!("../idl/tests/wit/files.wit");
}

mod inline {
    upcall_macros::interface!(
        r#"
        package demo:greeter@1.0.0;
        interface greeter { greet: func(name: string) -> string; }
        "#
    );
}

use generated::all::{self, All, Color, Deep, Many, Mode, Node, Numbers, Odd, Place, Serve, ServeNode, ServeToken, Shape, Token};
use generated::types::Error;
use std::sync::Arc;

struct Server;
struct Leaf(String, Color);
struct Coin;

impl ServeToken for Coin {
    fn new(&self) -> bool {
        true
    }
}

impl ServeNode for Leaf {
    fn name(&self) -> String {
        self.0.clone()
    }
    fn r#type(&self, mode: Mode) -> Result<Color, Error> {
        if mode.contains(Mode::READ) { Ok(self.1) } else { Err(Error::Busy) }
    }
    fn children(&self) -> Vec<Arc<dyn ServeNode>> {
        vec![Arc::new(Leaf("child".into(), self.1))]
    }
    fn first(&self) -> Option<Arc<dyn ServeNode>> {
        None
    }
    fn pair(&self) -> (Arc<dyn ServeNode>, u32) {
        (Arc::new(Leaf("pair".into(), self.1)), 7)
    }
    fn adopt(&self, child: Arc<dyn ServeNode>) -> Result<u32, Error> {
        Ok(child.name().len() as u32)
    }
    fn same(&self, other: &dyn ServeNode) -> bool {
        other.name() == self.0
    }
}

impl Serve for Server {
    fn new_node(&self, name: &str, color: Color) -> Arc<dyn ServeNode> {
        Arc::new(Leaf(name.into(), color))
    }
    fn node_root(&self) -> Result<Arc<dyn ServeNode>, Error> {
        Err(Error::NotFound)
    }
    fn node_merge(&self, _: Arc<dyn ServeNode>, _: &dyn ServeNode) {}
    fn new_token(&self) -> Arc<dyn ServeToken> {
        Arc::new(Coin)
    }
    fn null(&self) {}
    fn add(&self, a: u32, b: u32) -> u32 {
        a + b
    }
    fn get_numbers(&self, n: &Numbers) -> Numbers {
        *n
    }
    fn get_odd(&self, o: &Odd, _: u8, _: &str, _: &[String]) -> Odd {
        o.clone()
    }
    fn get_deep(&self, d: &Deep) -> Deep {
        d.clone()
    }
    fn get_shape(&self, s: &Shape) -> Option<Shape> {
        Some(s.clone())
    }
    fn modes(&self, m: Mode, n: Many) -> (Mode, Many) {
        (m, n)
    }
    fn total(&self, list: &[generated::types::Id]) -> u64 {
        list.iter().sum()
    }
    fn r#move(&self, p: &Place, by: &(f32, f32)) -> Place {
        Place { x: p.x + by.0, y: p.y + by.1 }
    }
    fn bytes(&self, data: Bytes<'_>) -> Vec<u8> {
        data.to_vec()
    }
    fn fixed(&self, data: &[u8; 32]) -> [u8; 32] {
        *data
    }
    fn bind(&self, name: &str) -> Result<(), String> {
        Err(name.into())
    }
    fn just_ok(&self) -> Result<u8, ()> {
        Ok(1)
    }
    fn bare(&self) -> Result<(), ()> {
        Err(())
    }
    fn find(&self, name: &str) -> Result<Option<Arc<dyn ServeNode>>, Error> {
        match name {
            "" => Err(Error::NotFound),
            name => Ok(Some(Arc::new(Leaf(name.into(), Color::Blue)))),
        }
    }
}

#[test]
fn a_local_client_calls_the_trait() {
    let all = All::local(Server);
    all.null().unwrap();
    assert_eq!(all.add(2, 3).unwrap(), 5);
    assert_eq!(all.bytes(b"abc").unwrap(), b"abc");
    assert!(matches!(all.bind_("x"), Err(Failure::Returned(e)) if e == "x"));
    assert!(matches!(all.node_root(), Err(Failure::Returned(Error::NotFound))));
    assert_eq!(all.r#move(&Place { x: 1.0, y: 2.0 }, &(1.0, 1.0)).unwrap(), Place { x: 2.0, y: 3.0 });
    assert_eq!(all.total(&[1, 2, 3]).unwrap(), 6);
    let modes = (Mode::READ | Mode::APPEND_ONLY, Many::F16);
    assert_eq!(all.modes(modes.0, modes.1).unwrap(), modes);
    assert_eq!(format!("{:?}", modes.0), "{read, append-only}");
    assert_eq!((!modes.0, Mode::from_bits(8)), (Mode::WRITE, None));
}

#[test]
fn objects_go_back_and_forth() {
    let all = All::local(Server);
    let node = Node::new(&all, "leaf", Color::Red).unwrap();
    assert_eq!(node.name().unwrap(), "leaf");
    assert_eq!(node.r#type(Mode::READ).unwrap(), Color::Red);
    assert!(matches!(node.r#type(Mode::empty()), Err(Failure::Returned(Error::Busy))));
    let child = node.children().unwrap().pop().unwrap();
    assert!(!node.same(&child).unwrap());
    assert_eq!(node.adopt(child).unwrap(), 5);
    assert!(node.first().unwrap().is_none());
    assert_eq!(node.pair().unwrap().0.name().unwrap(), "pair");
    assert_eq!(all.find("x").unwrap().unwrap().name().unwrap(), "x");
    assert!(Token::new(&all).unwrap().new_().unwrap());
    all.node_merge(node, &all.find("y").unwrap().unwrap()).unwrap();
    assert_eq!(format!("{all:?} {}", Error::NotFound), "All { .. } not-found");
}

#[test]
fn descriptors_say_what_the_procedures_are() {
    let names: Vec<&str> = all::INTERFACE.procedures.iter().map(|p| &*p.name).collect();
    assert!(names.contains(&"node.constructor") && names.contains(&"node.root") && names.contains(&"add"));
    let add = all::INTERFACE.procedures.iter().find(|p| p.name == "add").unwrap();
    assert_eq!((&*add.signature, add.args.fixed, add.results.fixed, add.calls), ("add: func(a: u32, b: u32) -> u32", 8, 8, 5));
    assert_eq!(small::files::INTERFACE.id, "demo:files/files@1.0.0");
    assert_eq!(inline::greeter::INTERFACE.procedures[0].name, "greet");
    let _ = all::export(Server);
}
