//! Rust's server and client of the test of languages.

upcall::interface!("tests/languages/every.wit");

use every::{
    Color, Deep, Every, Family, Found, Mode, Node, Numbers, Serve, ServeNode, ServedFamily,
    ServedFound, Shape,
};
use more::More;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use types::{Error, Point};
use upcall::{Bytes, CallError, CancelToken, Failure, Lent};

/// Number of live nodes.
#[derive(Clone, Default)]
pub struct Counts(Arc<AtomicU32>);

impl Counts {
    pub fn alive(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    fn leaf(&self, name: &str, color: Color) -> Arc<dyn ServeNode> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Arc::new(Leaf(name.into(), color, self.clone()))
    }
}

struct Leaf(String, Color, Counts);

impl Drop for Leaf {
    fn drop(&mut self) {
        self.2.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ServeNode for Leaf {
    fn name(&self) -> String {
        self.0.clone()
    }
    fn color(&self) -> Color {
        self.1
    }
    fn children(&self) -> Vec<Arc<dyn ServeNode>> {
        (0..3).map(|_| self.2.leaf("child", Color::Green)).collect()
    }
    fn adopt(&self, child: Arc<dyn ServeNode>) -> Result<u32, Error> {
        Ok(child.name().len() as u32)
    }
    fn same(&self, other: &dyn ServeNode) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

#[derive(Clone)]
struct Server(Counts);

impl Serve for Server {
    fn new_node(&self, name: &str, color: Color) -> Arc<dyn ServeNode> {
        self.0.leaf(name, color)
    }
    fn node_root(&self) -> Result<Arc<dyn ServeNode>, Error> {
        Err(Error::NotFound)
    }
    fn null(&self) {}
    fn add(&self, a: u32, b: u32) -> u32 {
        a + b
    }
    fn get_numbers(&self, n: &Numbers) -> Numbers {
        *n
    }
    fn get_deep(&self, d: &Deep) -> Deep {
        d.clone()
    }
    fn get_shape(&self, s: &Shape) -> Option<Shape> {
        Some(s.clone())
    }
    fn bytes(&self, data: Bytes<'_>) -> Vec<u8> {
        data.to_vec()
    }
    fn fixed(&self, data: &[u8; 32]) -> [u8; 32] {
        *data
    }
    fn total(&self, values: &[u64]) -> u64 {
        values.iter().sum()
    }
    fn bind(&self, name: &str) -> Result<(), String> {
        Err(name.into())
    }
    fn bare(&self) -> Result<(), ()> {
        Err(())
    }
    fn swap(&self, f: ServedFamily) -> ServedFamily {
        let label = f.label.repeat(2);
        match f.child {
            Some(child) => ServedFamily { parent: child, label, child: Some(f.parent) },
            None => ServedFamily { label, ..f },
        }
    }
    fn find(&self, many: u32) -> ServedFound {
        match many {
            0 => ServedFound::None,
            1 => ServedFound::One(self.0.leaf("one", Color::Red)),
            many => ServedFound::Many((0..many).map(|_| self.0.leaf("many", Color::Red)).collect()),
        }
    }
    fn names(&self, all: Vec<Lent<dyn ServeNode>>) -> Vec<String> {
        all.iter().map(|node| node.name()).collect()
    }
    fn alive(&self) -> u32 {
        self.0.alive()
    }
    fn late(&self, milliseconds: u32) -> Arc<dyn ServeNode> {
        std::thread::sleep(Duration::from_millis(milliseconds.into()));
        self.0.leaf("late", Color::Blue)
    }
    fn fail(&self) {
        std::panic::resume_unwind(Box::new("as asked"));
    }
    fn die(&self) {
        std::process::exit(0);
    }
}

impl more::Serve for Server {
    fn rename(&self, n: &dyn ServeNode, name: &str) -> Arc<dyn ServeNode> {
        self.0.leaf(name, n.color())
    }
}

/// A server of `every`, for measurements.
#[allow(dead_code)]
pub fn server(name: &str) -> upcall::Server {
    upcall::Server::new().export(name, every::export(Server(Counts::default())))
}

/// Serves with two processors, as the server in C does.
pub fn serve(names: &[String; 2]) -> (upcall::Running, Counts) {
    serve_by(upcall::Server::new(), names)
}

/// The same with a given server.
pub fn serve_by(server: upcall::Server, [every, more]: &[String; 2]) -> (upcall::Running, Counts) {
    let counts = Counts::default();
    let server = server.processors(2).export(every, every::export(Server(counts.clone())));
    (server.export(more, more::export(Server(counts.clone()))).start().unwrap(), counts)
}

fn deep() -> Deep {
    Deep {
        name: "deep".into(),
        points: vec![Point { x: 1.0, y: -2.0 }, Point { x: 0.5, y: 4.0 }],
        maybe: Some("maybe".into()),
        grid: [[1, 2], [3, 4], [5, 6]],
        pair: (7, "pair".into()),
        outcome: Err("outcome".into()),
        nothing: Err(()),
        mode: Mode::READ | Mode::APPEND_ONLY,
        names: vec!["a".into(), String::new(), "ccc".into()],
        raw: (0..5000).map(|n| n as u8).collect(),
        letters: vec!['ß', '\u{1F600}'],
        truths: vec![true, false, true],
    }
}

/// Does what the client in C does.
pub fn client([name, other]: &[String; 2]) {
    let every = Every::bind(name).unwrap();
    every.null().unwrap();
    assert_eq!(every.add(2, 3), Ok(5));
    let numbers = Numbers {
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
    };
    assert_eq!(every.get_numbers(&numbers), Ok(numbers));
    assert_eq!(every.get_deep(&deep()), Ok(deep()));
    for shape in [Shape::Dot, Shape::Circle(0.25), Shape::Named(deep()), Shape::Small(9)] {
        assert_eq!(every.get_shape(&shape), Ok(Some(shape)));
    }
    for len in [0, 3, 900, 100_000, 3_000_000, 100_000] {
        let data = vec![7; len];
        assert_eq!(every.bytes(&data), Ok(data));
    }
    assert_eq!((every.fixed(&[9; 32]), every.total(&[1, 2, 3])), (Ok([9; 32]), Ok(6)));
    assert_eq!(every.bind_("x"), Err(Failure::Returned("x".into())));
    assert!(matches!(
        every.bind_(&"x".repeat(101)),
        Err(Failure::Call(CallError::TooLong { len: 101, .. }))
    ));
    assert_eq!(every.bare(), Err(Failure::Returned(())));
    assert!(matches!(every.node_root(), Err(Failure::Returned(Error::NotFound))));
    assert_eq!(every.fail(), Err(CallError::Panicked("as asked".into())));
    objects(&every, other);
    let start = Instant::now();
    let hasty = every.with_deadline(Some(Duration::from_millis(200)));
    assert!(matches!(hasty.late(800), Err(CallError::Aborted { sent: true })));
    let word = CancelToken::new();
    word.cancel();
    assert!(matches!(every.with_cancel(&word).late(150), Err(CallError::Aborted { .. })));
    std::thread::sleep(Duration::from_millis(900));
    while every.alive().unwrap() > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "late nodes are dropped");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn objects(every: &Every, other: &str) {
    let node = Node::new(every, "leaf", Color::Blue).unwrap();
    assert_eq!((node.name().unwrap().as_str(), node.color()), ("leaf", Ok(Color::Blue)));
    assert_eq!(node.same(&node), Ok(true));
    let mut children = node.children().unwrap();
    assert_eq!(node.same(&children[1]), Ok(false));
    let third = children.remove(2);
    assert_eq!(node.adopt(children.remove(0)), Ok(5));
    drop(children);
    assert_eq!(every.alive(), Ok(2));
    let family =
        every.swap(Family { parent: node, label: "ab".into(), child: Some(third) }).unwrap();
    let child = family.child.unwrap();
    assert_eq!((family.label.as_str(), child.name().unwrap().as_str()), ("abab", "leaf"));
    assert_eq!(every.names(vec![&family.parent, &child]), Ok(vec!["child".into(), "leaf".into()]));
    assert!(matches!(
        every.find(100),
        Ok(Found::Many(all)) if all.len() == 100 && every.alive() == Ok(102)
    ));
    drop((family.parent, child));
    let more = More::bind(other).unwrap();
    let old = Node::new(&Every::from(&more), "old", Color::Green).unwrap();
    assert_eq!(more.rename(&old, "new").unwrap().name().unwrap(), "new");
    drop(old);
    assert_eq!(every.alive(), Ok(0));
}
