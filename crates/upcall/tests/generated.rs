//! The generated code compiles without a warning, and calls through it work: within the domain,
//! through a channel, and from a caller that has only the interface's text.
#![deny(warnings)]
#![forbid(unsafe_code)]

mod generated {
    upcall::interface!("../idl/tests/wit/all.wit");
}
mod small {
    upcall::interface!("../idl/tests/wit/files.wit");
}

mod inline {
    upcall::interface!(
        r#"
        package demo:greeter@1.0.0;
        interface greeter { greet: func(name: string) -> string; }
        "#
    );
}

use generated::all::{
    self, All, Color, Deep, Many, Mode, Node, Numbers, Odd, Place, Serve, ServeNode, ServeToken,
    Shape, Token,
};
use generated::types::Error;
use std::sync::Arc;
use upcall::{Bytes, CallError, Failure};

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

/// Runs `test` with a client in the server's domain and with one at the other end of a channel.
fn both_ways(name: &str, test: impl Fn(&All)) {
    test(&All::local(Server));
    let name = format!("generated-{name}-{}", std::process::id());
    let running = upcall::Server::new().export(&name, all::export(Server)).start().unwrap();
    test(&All::bind(&name).unwrap());
    drop(running);
}

fn deep() -> Deep {
    Deep {
        name: "deep".into(),
        points: vec![Place { x: 1.0, y: -2.0 }, Place { x: 0.5, y: 4.0 }],
        maybe: Some("maybe".into()),
        grid: [[1, 2], [3, 4], [5, 6]],
        pair: (7, "pair".into()),
        one: (8,),
        outcome: Err("outcome".into()),
        nothing: Err(()),
        mode: Mode::READ | Mode::APPEND_ONLY,
        names: vec!["a".into(), String::new(), "ccc".into()],
        raw: (0..=255).collect(),
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

#[test]
fn values_go_and_come_back() {
    both_ways("values", |all| {
        all.null().unwrap();
        assert_eq!(all.add(2, 3).unwrap(), 5);
        assert_eq!(all.bytes(b"abc").unwrap(), b"abc");
        let long: Vec<u8> = (0..100_000).map(|i| i as u8).collect();
        assert_eq!(all.bytes(&long).unwrap(), long);
        assert_eq!(all.fixed(&[9; 32]).unwrap(), [9; 32]);
        assert_eq!(all.get_numbers(&numbers()).unwrap(), numbers());
        assert_eq!(all.get_deep(&deep()).unwrap(), deep());
        let odd = Odd { r#type: 1, self_: 2, record: "r".into(), a1_b2: true };
        assert_eq!(all.get_odd(&odd, 3, "binding", &["server".into()]).unwrap(), odd);
        for shape in [
            Shape::Dot,
            Shape::Circle(1.5),
            Shape::Polygon(vec![Place { x: 1.0, y: 2.0 }; 100]),
            Shape::Named(deep()),
            Shape::Small(9),
        ] {
            assert_eq!(all.get_shape(&shape).unwrap(), Some(shape));
        }
        assert_eq!(
            all.r#move(&Place { x: 1.0, y: 2.0 }, &(1.0, 1.0)).unwrap(),
            Place { x: 2.0, y: 3.0 }
        );
        assert_eq!(all.total(&[1, 2, 3]).unwrap(), 6);
        let modes = (Mode::READ | Mode::APPEND_ONLY, Many::F16);
        assert_eq!(all.modes(modes.0, modes.1).unwrap(), modes);
    });
}

#[test]
fn errors_come_back_as_what_they_are() {
    both_ways("errors", |all| {
        assert!(matches!(all.bind_("x"), Err(Failure::Returned(e)) if e == "x"));
        assert_eq!(all.just_ok().unwrap(), 1);
        assert!(matches!(all.bare(), Err(Failure::Returned(()))));
        assert!(matches!(all.node_root(), Err(Failure::Returned(Error::NotFound))));
        assert_eq!(Error::NotFound.to_string(), "not-found");
        assert_eq!(format!("{all:?}"), "All { .. }");
    });
    assert_eq!(format!("{:?}", Mode::READ | Mode::APPEND_ONLY), "{read, append-only}");
    assert_eq!((!(Mode::READ | Mode::APPEND_ONLY), Mode::from_bits(8)), (Mode::WRITE, None));
}

#[test]
fn objects_go_back_and_forth() {
    both_ways("objects", |all| {
        let node = Node::new(all, "leaf", Color::Red).unwrap();
        assert_eq!(node.name().unwrap(), "leaf");
        assert_eq!(node.r#type(Mode::READ).unwrap(), Color::Red);
        assert!(matches!(node.r#type(Mode::empty()), Err(Failure::Returned(Error::Busy))));
        let child = node.children().unwrap().pop().unwrap();
        assert!(!node.same(&child).unwrap());
        assert!(node.same(&node).unwrap());
        assert_eq!(node.adopt(child).unwrap(), 5);
        assert!(node.first().unwrap().is_none());
        assert_eq!(node.pair().unwrap().0.name().unwrap(), "pair");
        assert_eq!(all.find("x").unwrap().unwrap().name().unwrap(), "x");
        assert!(Token::new(all).unwrap().new_().unwrap());
        all.node_merge(node, &all.find("y").unwrap().unwrap()).unwrap();
    });
}

/// A client refuses to send another client's handle.
#[test]
fn a_handle_stays_with_its_client() {
    let names = ["one", "two"].map(|n| format!("generated-foreign-{n}-{}", std::process::id()));
    let server = upcall::Server::new()
        .export(&names[0], all::export(Server))
        .export(&names[1], all::export(Server));
    let running = server.start().unwrap();
    let clients =
        [All::local(Server), All::bind(&names[0]).unwrap(), All::bind(&names[1]).unwrap()];
    for (i, one) in clients.iter().enumerate() {
        for (j, other) in clients.iter().enumerate() {
            let node = Node::new(one, "one", Color::Red).unwrap();
            let same = node.same(&Node::new(other, "other", Color::Red).unwrap());
            let expected = i == j;
            assert_eq!(same.is_ok(), expected, "{i} {j}");
            assert!(expected || matches!(same, Err(CallError::ForeignHandle)));
        }
    }
    drop(running);
}

/// Two implementations of the layout: straight-line code here, a walk over the model there.
#[test]
fn a_caller_that_knows_only_the_text_is_understood() {
    let name = format!("generated-text-{}", std::process::id());
    let running = upcall::Server::new().export(&name, all::export(Server)).start().unwrap();
    let binding = upcall::stub::Binding::bind(&name, &all::INTERFACE).unwrap();
    let interface = upcall_idl::dynamic::DynamicInterface::parse(
        &all::INTERFACE.id,
        &all::INTERFACE.source,
        &all::INTERFACE.limits,
    )
    .unwrap();
    let call = |name: &str, arguments: &[&str]| {
        let number = all::INTERFACE.procedures.iter().position(|p| p.name == name).unwrap();
        let procedure = interface.procedure(name).unwrap();
        let compiled = &all::INTERFACE.procedures[number];
        assert_eq!(
            (compiled.signature.as_ref(), compiled.hash),
            (procedure.signature.as_str(), procedure.hash)
        );
        let block = interface.encode(procedure, arguments).unwrap_or_else(|e| panic!("{e}"));
        interface.decode(procedure, &binding.call_block(number as u16, &block).unwrap()).unwrap()
    };
    assert_eq!(call("null", &[]), "");
    assert_eq!(call("add", &["2", "3"]), "5");
    assert_eq!(call("find", &["\"\""]), "err(not-found)");
    assert_eq!(
        call("modes", &["{read, append-only}", "{f3, f16}"]),
        "({read, append-only}, {f3, f16})"
    );
    let numbers = "{a: 1, b: 2, c: 3, d: 18446744073709551615, e: -1, f: -2, g: -3, h: \
        -9223372036854775808, i: 1.5, j: -2.5, \
                   k: true, l: 'x'}";
    assert_eq!(call("get-numbers", &[numbers]), numbers);
    let deep = "{name: \"deep\", points: [{x: 1, y: -2}], maybe: some(\"maybe\"), grid: [[1, 2], \
        [3, 4], [5, 6]], \
                pair: (7, \"pair\"), one: (8), outcome: err(\"outcome\"), nothing: err, mode: \
                {write}, names: [\"a\", \"\", \"ccc\"], \
                raw: [1, 2, 3]}";
    assert_eq!(call("get-deep", &[deep]), deep);
    for shape in ["dot", "circle(1.5)", "polygon([{x: 1, y: 2}, {x: 3, y: 4}])", "small(9)"] {
        assert_eq!(call("get-shape", &[shape]), format!("some({shape})"));
    }
    let node = call("node.constructor", &["\"leaf\"", "blue"]);
    assert!(node.starts_with("node("), "{node}");
    assert_eq!(call("node.name", &[&node]), "\"leaf\"");
    assert_eq!(call("node.type", &[&node, "{read}"]), "ok(blue)");
    drop(running);
}

#[test]
fn descriptors_say_what_the_procedures_are() {
    let names: Vec<&str> = all::INTERFACE.procedures.iter().map(|p| &*p.name).collect();
    assert!(
        names.contains(&"node.constructor")
            && names.contains(&"node.root")
            && names.contains(&"add")
    );
    let add = all::INTERFACE.procedures.iter().find(|p| p.name == "add").unwrap();
    assert_eq!(
        (&*add.signature, add.args.fixed, add.results.fixed, add.calls),
        ("add: func(a: u32, b: u32) -> u32", 8, 8, 5)
    );
    assert_eq!(small::files::INTERFACE.id, "demo:files/files@1.0.0");
    assert_eq!(inline::greeter::INTERFACE.procedures[0].name, "greet");
    let _ = all::export(Server);
}
