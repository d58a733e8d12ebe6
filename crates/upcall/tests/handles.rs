//! Objects inside records, variants and other compounds, and objects of carried interfaces: through
//! a channel, in the same domain, and from a caller that has only the interface's text.
#![deny(warnings)]
#![forbid(unsafe_code)]

mod carry {
    upcall::interface!("../idl/tests/wit/carry.wit");
}

use carry::atomics::{
    self, Atomics, Both, Choice, Lock, Pair, ServeLock, ServedBoth, ServedChoice, ServedPair,
    ServedView, View,
};
use carry::store::{self, Bucket, ServeBucket, ServedError, Store};
use carry::third::{self, Third};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use upcall::{CallError, Failure, Lent};

/// Buckets that live in the server.
#[derive(Clone, Default)]
struct Server(Arc<AtomicU64>);

struct Pail(String, Arc<AtomicU64>);

impl Drop for Pail {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ServeBucket for Pail {
    fn name(&self) -> String {
        self.0.clone()
    }
    fn type_id(&self) -> u64 {
        self.0.len() as u64
    }
}

impl Server {
    fn pail(&self, name: &str) -> Arc<dyn ServeBucket> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Arc::new(Pail(name.into(), self.0.clone()))
    }
}

impl store::Serve for Server {
    fn new_bucket(&self, name: &str) -> Arc<dyn ServeBucket> {
        self.pail(name)
    }
    fn open(&self, name: &str) -> Result<Arc<dyn ServeBucket>, ServedError> {
        match name {
            "" => Err(ServedError::NoSuch("it has no name".into())),
            "busy" => Err(ServedError::Busy(self.pail("holder"))),
            name => Ok(self.pail(name)),
        }
    }
    fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

struct Holder(Mutex<Arc<dyn ServeBucket>>);

impl ServeLock for Holder {
    fn holder(&self) -> Arc<dyn ServeBucket> {
        self.0.lock().unwrap().clone()
    }
    fn give(&self, to: Option<Arc<dyn ServeBucket>>) -> Option<Arc<dyn ServeBucket>> {
        to.map(|to| std::mem::replace(&mut *self.0.lock().unwrap(), to))
    }
}

impl atomics::Serve for Server {
    fn swap(&self, p: ServedPair) -> ServedPair {
        match p.second {
            Some(second) => {
                ServedPair { first: second, label: p.label + "!", second: Some(p.first) }
            }
            None => ServedPair { label: p.label + "?", ..p },
        }
    }
    fn pick(&self, c: ServedChoice) -> ServedChoice {
        match c {
            ServedChoice::Nothing => ServedChoice::Many(vec![self.pail("new"), self.pail("newer")]),
            ServedChoice::Many(mut all) => {
                all.pop().map_or(ServedChoice::Nothing, ServedChoice::One)
            }
            other => other,
        }
    }
    fn names(&self, all: Vec<Lent<dyn ServeBucket>>) -> Vec<String> {
        all.iter().map(|one| one.name()).collect()
    }
    fn views(&self, v: Vec<ServedView>, r#box: (u8, Option<ServedView>)) -> Vec<String> {
        v.iter().chain(&r#box.1).map(|view| view.of.name().repeat(view.times as usize)).collect()
    }
    fn mixed(
        &self,
        b: ServedBoth,
        last: &dyn ServeBucket,
    ) -> Result<Vec<Arc<dyn ServeBucket>>, String> {
        let lent = b.lent.map(|lent| lent.name()).unwrap_or_default();
        if b.given.is_empty() { Err(lent + &last.name()) } else { Ok(b.given) }
    }
    fn compounds(
        &self,
        a: Option<Arc<dyn ServeBucket>>,
        b: Result<Arc<dyn ServeBucket>, String>,
        c: (u8, Arc<dyn ServeBucket>),
    ) -> Result<(Arc<dyn ServeBucket>, Vec<Arc<dyn ServeBucket>>), ServedError> {
        match b {
            Ok(b) => Ok((c.1, a.into_iter().chain([b]).collect())),
            Err(text) if text.is_empty() => Err(ServedError::Busy(c.1)),
            Err(text) => Err(ServedError::NoSuch(text)),
        }
    }
    fn fixed(&self, [a, b]: [Arc<dyn ServeBucket>; 2]) -> [Arc<dyn ServeBucket>; 2] {
        [b, a]
    }
    fn lock_up(&self, b: Arc<dyn ServeBucket>) -> Arc<dyn ServeLock> {
        Arc::new(Holder(Mutex::new(b)))
    }
    fn count(&self) -> u32 {
        store::Serve::count(self) as u32 + 1000
    }
}

impl third::Serve for Server {
    fn held(&self, l: &dyn ServeLock, p: ServedPair) -> u32 {
        (l.holder().name() + &p.first.name() + &p.label).len() as u32
    }
}

/// Runs one test at a time: the tests count the server's objects.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name(test: &str) -> String {
    format!("carry-{test}-{}", std::process::id())
}

/// Runs `test` with clients through a channel, then in the same domain. Checks each time that no
/// object is left.
fn with_clients(test_name: &str, test: impl Fn(&Atomics, &Store)) {
    let _alone = alone();
    let server = Server::default();
    let running = upcall::Server::new()
        .export(&name(test_name), atomics::export(server.clone()))
        .start()
        .expect("a server");
    let far = Atomics::bind(&name(test_name)).expect("binding");
    for atomics in [far, Atomics::local(server.clone())] {
        let store = Store::from(&atomics);
        test(&atomics, &store);
        assert_eq!(store.count(), Ok(0), "what was made is gone");
        assert_eq!(atomics.count(), Ok(1000), "two procedures of one name, in two interfaces");
    }
    drop(running);
}

#[test]
fn objects_in_records_variants_and_compounds() {
    with_clients("compounds", |atomics, store| {
        let pail = |name: &str| Bucket::new(store, name).expect("a bucket");
        let swapped = atomics
            .swap(Pair {
                first: pail("a"),
                label: "l".into(),
                second: Some(store.open("b").unwrap()),
            })
            .unwrap();
        assert_eq!((swapped.first.name().unwrap(), swapped.label.as_str()), ("b".into(), "l!"));
        assert_eq!(swapped.second.as_ref().unwrap().name().unwrap(), "a");
        assert_eq!(swapped.first.type_id(), Ok(1));
        assert_eq!(store.count(), Ok(2), "given away, and given back");
        let kept = atomics.swap(Pair { second: None, ..swapped }).unwrap();
        assert_eq!(
            (kept.first.name().unwrap(), kept.label.as_str(), kept.second.is_none()),
            ("b".into(), "l!?", true)
        );
        drop((kept, swapped.second));

        let Choice::Many(many) = atomics.pick(Choice::Nothing).unwrap() else { panic!("many") };
        assert_eq!(many.iter().map(|b| b.name().unwrap()).collect::<Vec<_>>(), ["new", "newer"]);
        let Choice::One(one) = atomics.pick(Choice::Many(many)).unwrap() else { panic!("one") };
        assert_eq!((one.name().unwrap(), store.count()), ("newer".into(), Ok(1)));
        let Choice::One(one) = atomics.pick(Choice::One(one)).unwrap() else { panic!("one") };
        let Choice::Text(text) = atomics.pick(Choice::Text("t".into())).unwrap() else {
            panic!("text")
        };
        assert_eq!(text, "t");
        let pair = Pair { first: one, label: "in a case".into(), second: None };
        let Choice::Pair(pair) = atomics.pick(Choice::Pair(pair)).unwrap() else { panic!("pair") };
        assert_eq!(
            (pair.first.name().unwrap(), pair.label.as_str()),
            ("newer".into(), "in a case")
        );

        let (first, rest) =
            atomics.compounds(Some(pail("a")), Ok(pail("b")), (1, pail("c"))).unwrap();
        assert_eq!(first.name().unwrap(), "c");
        assert_eq!(rest.iter().map(|b| b.name().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
        match atomics.compounds(None, Err("why".into()), (1, pail("c"))) {
            Err(Failure::Returned(store::Error::NoSuch(text))) => assert_eq!(text, "why"),
            other => panic!("{other:?}"),
        }
        match atomics.compounds(None, Err(String::new()), (1, pail("c"))) {
            Err(Failure::Returned(store::Error::Busy(holder))) => {
                assert_eq!(holder.name().unwrap(), "c")
            }
            other => panic!("{other:?}"),
        }
        match store.open("busy") {
            Err(Failure::Returned(error @ store::Error::Busy(_))) => {
                assert!(error.to_string().starts_with("busy: Bucket"))
            }
            other => panic!("{other:?}"),
        }
        let [b, a] = atomics.fixed([pail("a"), pail("b")]).unwrap();
        assert_eq!((a.name().unwrap(), b.name().unwrap()), ("a".into(), "b".into()));
    });
}

#[test]
fn what_is_lent_stays_the_clients() {
    with_clients("lent", |atomics, store| {
        let (a, b) = (store.open("a").unwrap(), store.open("b").unwrap());
        assert_eq!(atomics.names(vec![&a, &b, &a]).unwrap(), ["a", "b", "a"]);
        let views = vec![View { of: &a, times: 2 }, View { of: &b, times: 3 }];
        assert_eq!(
            atomics.views(views, (1, Some(View { of: &b, times: 1 }))).unwrap(),
            ["aa", "bbb", "b"]
        );
        match atomics.mixed(Both { given: vec![], lent: Some(&a) }, &b) {
            Err(Failure::Returned(text)) => assert_eq!(text, "ab"),
            other => panic!("{other:?}"),
        }
        let c = store.open("c").unwrap();
        let given = atomics.mixed(Both { given: vec![a, c], lent: Some(&b) }, &b).unwrap();
        assert_eq!(given.iter().map(|b| b.name().unwrap()).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!((b.name().unwrap(), store.count()), ("b".into(), Ok(3)));

        let lock: Lock = atomics.lock_up(b).unwrap();
        assert_eq!(lock.holder().unwrap().name().unwrap(), "b");
        assert!(lock.give(None).unwrap().is_none());
        let before = lock.give(given.into_iter().next()).unwrap().unwrap();
        assert_eq!(
            (before.name().unwrap(), lock.holder().unwrap().name().unwrap()),
            ("b".into(), "a".into())
        );
    });
}

#[test]
fn handles_of_another_binding_are_refused_before_anything_is_sent() {
    let _alone = alone();
    let server = Server::default();
    let _running = upcall::Server::new()
        .export(&name("foreign"), atomics::export(server.clone()))
        .start()
        .expect("a server");
    let (one, two) =
        (Atomics::bind(&name("foreign")).unwrap(), Atomics::bind(&name("foreign")).unwrap());
    let here = Atomics::local(server.clone());
    let of = |client: &Atomics| Store::from(client).open("x").unwrap();
    for (client, other) in [(&one, &two), (&one, &here), (&here, &one)] {
        let lent = of(other);
        assert_eq!(client.names(vec![&of(client), &lent]), Err(CallError::ForeignHandle));
        let pair = Pair { first: of(client), label: "l".into(), second: Some(of(other)) };
        assert!(matches!(client.swap(pair), Err(CallError::ForeignHandle)));
        assert!(matches!(
            client.pick(Choice::Many(vec![of(other)])),
            Err(CallError::ForeignHandle)
        ));
        assert!(matches!(client.fixed([of(client), of(other)]), Err(CallError::ForeignHandle)));
        let foreign = Err(Failure::Call(CallError::ForeignHandle));
        assert_eq!(
            client.mixed(Both { given: vec![], lent: Some(&lent) }, &of(client)).map(|_| ()),
            foreign
        );
        drop(lent);
        assert_eq!(server.0.load(Ordering::SeqCst), 0, "what was not sent was released");
    }
}

#[test]
fn an_interface_carries_what_it_uses_through_others() {
    let _alone = alone();
    let server = Server::default();
    let running = upcall::Server::new()
        .export(&name("third"), third::export(server.clone()))
        .start()
        .expect("a server");
    for third in [Third::bind(&name("third")).unwrap(), Third::local(server.clone())] {
        let (atomics, store) = (Atomics::from(&third), Store::from(&third));
        let lock = atomics.lock_up(store.open("abc").unwrap()).unwrap();
        let pair = Pair {
            first: Store::from(&atomics).open("de").unwrap(),
            label: "f".into(),
            second: None,
        };
        assert_eq!(third.held(&lock, pair), Ok(6));
        // A clone with a deadline also has it in the clients of carried interfaces.
        assert_eq!(
            Store::from(&third.with_deadline(Some(std::time::Duration::from_secs(20)))).count(),
            Ok(1)
        );
        drop(lock);
        assert_eq!(store.count(), Ok(0));
    }
    // The same objects, from the text alone.
    let (_, exports) = upcall::directory::list_named(&name("third")).unwrap();
    let exported = exports.into_iter().find(|exported| exported.name == name("third")).unwrap();
    let interface = upcall_idl::dynamic::DynamicInterface::parse(
        &exported.interface,
        &exported.source,
        &exported.limits,
    )
    .unwrap();
    let names: Vec<_> =
        interface.interface().bound().map(|p| (p.name.clone(), p.signature.clone())).collect();
    assert_eq!(exported.procedures, names);
    let binding = upcall_rpc::Binding::bind(&name("third"), &third::INTERFACE).unwrap();
    let call = |procedure: &str, arguments: &[&str]| {
        let number = names.iter().position(|(name, _)| name == procedure).unwrap();
        let procedure = interface.procedure(procedure).unwrap();
        let block = binding
            .call_block(number as u16, &interface.encode(procedure, arguments).unwrap())
            .unwrap();
        interface.decode(procedure, &block).unwrap()
    };
    let bucket = call("test:carry/store.open", &["\"abc\""]);
    let number = bucket
        .strip_prefix("ok(bucket(")
        .and_then(|rest| rest.strip_suffix("))"))
        .expect("a handle");
    assert_eq!(call("test:carry/store.bucket.name", &[number]), "\"abc\"");
    let pair = format!("{{first: {number}, label: \"l\", second: none}}");
    assert_eq!(call("test:carry/atomics.swap", &[&pair]).split("label").nth(1), Some(": \"l?\"}"));
    drop((running, binding));
}

/// A client that invents handles, or gives one object away twice, gains nothing, and the server
/// goes on.
#[test]
fn forged_handles_inside_values_are_refused() {
    let _alone = alone();
    let server = Server::default();
    let _running = upcall::Server::new()
        .export(&name("forged"), atomics::export(server.clone()))
        .start()
        .expect("a server");
    let wit = &atomics::INTERFACE;
    let interface =
        upcall_idl::dynamic::DynamicInterface::parse(&wit.id, &wit.source, &wit.limits).unwrap();
    let binding = upcall_rpc::Binding::bind(&name("forged"), &atomics::INTERFACE).unwrap();
    let call = |procedure: &str, arguments: &[&str]| {
        let number =
            atomics::INTERFACE.procedures.iter().position(|p| p.name == procedure).unwrap();
        let procedure = interface.procedure(procedure).unwrap();
        let block =
            binding.call_block(number as u16, &interface.encode(procedure, arguments).unwrap())?;
        Ok::<_, CallError>(interface.decode(procedure, &block).unwrap())
    };
    let make = || {
        let made = call("test:carry/store.bucket.constructor", &["\"abc\""]).unwrap();
        made.strip_prefix("bucket(")
            .and_then(|rest| rest.strip_suffix(')'))
            .expect("a handle")
            .to_owned()
    };
    let (pail, given) = (make(), make());
    let lock = call("lock-up", &[&given]).unwrap();
    let lock = lock
        .strip_prefix("lock(")
        .and_then(|rest| rest.strip_suffix(')'))
        .expect("a handle")
        .to_owned();
    let next = (pail.parse::<u64>().unwrap() + (1 << 32)).to_string();
    for forged in ["0", "18446744073709551615", &given, &next, &lock] {
        for (procedure, arguments) in [
            ("names", vec![format!("[{pail}, {forged}]")]),
            ("views", vec![format!("[{{of: {forged}, times: 1}}]"), "(1, none)".into()]),
            ("pick", vec![format!("one({forged})")]),
            ("fixed", vec![format!("[{forged}, {forged}]")]),
            ("mixed", vec![format!("{{given: [], lent: some({forged})}}"), pail.clone()]),
            ("lock.give", vec![lock.clone(), format!("some({forged})")]),
        ] {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            assert_eq!(
                call(procedure, &arguments),
                Err(CallError::NoSuchHandle),
                "{procedure} {arguments:?}"
            );
        }
    }
    assert_eq!(
        call("names", &[&format!("[{pail}, {pail}]")]),
        Ok("[\"abc\", \"abc\"]".into()),
        "what is lent may be lent twice"
    );
    assert_eq!(
        call("fixed", &[&format!("[{pail}, {pail}]")]),
        Err(CallError::NoSuchHandle),
        "what is given is given once"
    );
    assert_eq!(call("names", &[&format!("[{pail}]")]), Err(CallError::NoSuchHandle), "and is gone");
    drop(binding);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while server.0.load(Ordering::SeqCst) > 0 && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(server.0.load(Ordering::SeqCst), 0, "with the binding its objects go");
}

/// A value with random objects in it, as their names.
#[derive(Clone, Debug)]
enum Tree {
    Nothing,
    One(String),
    Many(Vec<String>),
    Text(String),
    Pair(String, String, Option<String>),
}

fn any_tree() -> impl Strategy<Value = Tree> {
    let name = || "[a-z]{0,40}";
    prop_oneof![
        Just(Tree::Nothing),
        name().prop_map(Tree::One),
        prop::collection::vec(name(), 0..20).prop_map(Tree::Many),
        name().prop_map(Tree::Text),
        (name(), name(), prop::option::of(name())).prop_map(|(a, b, c)| Tree::Pair(a, b, c)),
    ]
}

#[test]
fn random_values_with_objects_arrive_whole_and_leave_nothing() {
    let cases = (any_tree(), any_tree());
    with_clients("random", |atomics, store| {
        let make = |name: &String| Bucket::new(store, name).unwrap();
        let choice = |tree: &Tree| match tree {
            Tree::Nothing => Choice::Nothing,
            Tree::One(name) => Choice::One(make(name)),
            Tree::Many(names) => Choice::Many(names.iter().map(make).collect()),
            Tree::Text(text) => Choice::Text(text.clone()),
            Tree::Pair(a, label, b) => Choice::Pair(Pair {
                first: make(a),
                label: label.clone(),
                second: b.as_ref().map(make),
            }),
        };
        let config =
            ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
        let done = proptest::test_runner::TestRunner::new(config).run(&cases, |(tree, other)| {
            let _kept = choice(&other);
            let back = atomics.pick(choice(&tree)).unwrap();
            let name = |bucket: &Bucket| bucket.name().unwrap();
            match (&tree, &back) {
                (Tree::Nothing, Choice::Many(new)) => prop_assert_eq!(new.len(), 2),
                (Tree::One(sent), Choice::One(got)) => prop_assert_eq!(sent, &name(got)),
                (Tree::Many(sent), Choice::Nothing) => prop_assert!(sent.is_empty()),
                (Tree::Many(sent), Choice::One(got)) => {
                    let got = name(got);
                    prop_assert_eq!(sent.last(), Some(&got))
                }
                (Tree::Text(sent), Choice::Text(got)) => prop_assert_eq!(sent, got),
                (Tree::Pair(a, label, b), Choice::Pair(got)) => {
                    let got = (name(&got.first), got.label.clone(), got.second.as_ref().map(name));
                    prop_assert_eq!((a.clone(), label.clone(), b.clone()), got);
                }
                other => prop_assert!(false, "{:?}", other),
            }
            Ok(())
        });
        done.unwrap_or_else(|e| panic!("{e}"));
    });
}
