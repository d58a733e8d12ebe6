//! Objects that are passed on: a call returns a reference to one, and a message takes the reference
//! to another member.

use std::time::Duration;
use upcall::home::{Homed, Map, Reference, Text};
use upcall::message::{GroupBuilder, Handlers};

upcall::interface!(
    r#"
    package tests:registry@1.0.0;
    interface registry {
        hits: func() -> string;
    }
    "#
);

type Hits = Map<Text, u64>;

/// Serves the reference of the home as text.
struct Registry(String);

impl registry::Serve for Registry {
    fn hits(&self) -> String {
        self.0.clone()
    }
}

#[test]
fn an_object_goes_through_a_call_and_a_message() {
    let name = format!("passed-{}", std::process::id());
    let home = Homed::<Hits>::create(&name).with(|hits| hits.insert("/", 1).map(drop)).unwrap();
    let server = upcall::Server::new()
        .export(&name, registry::export(Registry(home.reference().to_string())))
        .start()
        .unwrap();
    let client = registry::Registry::bind(&name).unwrap();
    let hits: Reference<Hits> = client.hits().unwrap().parse().unwrap();
    assert_eq!(hits, home.reference());
    hits.find().unwrap().access(|hits| hits.entry("/")?.update(|count| count + 1)).unwrap();
    let joins = |rank| {
        let mut handlers = Handlers::new();
        let object = handlers.kind::<[u8]>("object");
        let joining = GroupBuilder::new(&name, 2).rank(rank).within(Duration::from_secs(60));
        (joining.join(handlers).unwrap(), object)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (group, object) = joins(1);
            let mut passed = None;
            while passed.is_none() {
                let took = group.receive(|message| passed = message.get(object));
                if took.is_err() {
                    group.wait(None);
                }
            }
            let text = String::from_utf8(passed.unwrap()).unwrap();
            let hits = text.parse::<Reference<Hits>>().unwrap().find().unwrap();
            hits.access(|hits| hits.entry("/")?.update(|count| count + 1)).unwrap();
        });
        let (group, object) = joins(0);
        group.send(1, object, hits.to_string().as_bytes()).unwrap();
    });
    assert_eq!(home.access(|hits| hits.entry("/")?.get()).unwrap(), 3);
    drop(client);
    server.stop();
}
