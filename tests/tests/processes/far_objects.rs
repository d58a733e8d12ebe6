//! Objects whose homes are on other hosts: network namespaces that are joined by a switch. Homes
//! and guests are killed, stopped and cut off (Psyche, section 2.1).

use crate::{in_company, in_idle_company, place};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use upcall_net::identity::{HostPermission, IfRevoked};
use upcall_tests::hosts::{Host, Hosts};
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{come_to_rest, connections};

/// A home on the second of two hosts.
struct Scene {
    hosts: Hosts,
    places: [Place; 2],
    home: Party,
    at: String,
}

impl Scene {
    fn new() -> Self {
        let (hosts, places) = (Hosts::new(2), [place(), place()]);
        let (home, at) = make(&places[1], hosts.host(1), "object", 0);
        Self { hosts, places, home, at }
    }

    /// Starts a guest on a host, which has found nothing yet.
    fn start(&self, host: &Host) -> Party {
        self.places[0].start_by(&host.wrapper(), &format!("guest {} 1000", self.at))
    }

    /// Starts a guest on the first host that has found the object.
    fn guest(&self) -> Party {
        let mut guest = self.start(self.hosts.host(0));
        guest.ask("find").expect_ok("finding it");
        guest
    }

    /// A guest whose procedure is held at the home.
    fn holding(&mut self, more: u64) -> Party {
        let before = self.home.ask("begun").numbers("procedures")[0];
        let mut guest = self.guest();
        guest.say(&format!("hold {more}"));
        let home = &mut self.home;
        eventually("the procedure has begun", || {
            match home.ask("begun").numbers("procedures")[0] {
                now if now > before => Ok(()),
                _ => Err("it has not".into()),
            }
        });
        guest
    }

    fn number(&mut self) -> u64 {
        self.home.ask("number").numbers("the number")[0]
    }

    fn end(self, parties: impl IntoIterator<Item = Party>) {
        for mut party in parties.into_iter().chain([self.home]) {
            party.say("leave");
            party.ended();
        }
        self.places.iter().for_each(Place::expect_empty);
    }
}

/// Makes an object whose home is on a host, at a port, or at a free one.
fn make(place: &Place, host: &Host, name: &str, port: u16) -> (Party, String) {
    let line = format!("home {name} {}:{port}", host.address);
    let mut home = place.start_by(&host.wrapper(), &line);
    let at = home.hear().expect_ok("a home's start").swap_remove(0);
    (home, at)
}

fn await_connections(party: &Party, count: usize) {
    eventually("the connections of a process", || match connections(party.pid()) {
        found if found == count => Ok(()),
        found => Err(format!("{found}, not {count}")),
    });
}

#[test]
fn an_object_on_another_host_is_invoked_and_not_accessed() {
    let _company = in_company();
    let mut scene = Scene::new();
    let mut guests = [scene.guest(), scene.guest()];
    let idle = [scene.home.pid(), guests[0].pid()];
    guests.iter_mut().for_each(|guest| guest.say("adds 1000"));
    guests.iter_mut().for_each(|guest| _ = guest.hear().expect_ok("adding"));
    assert_eq!(guests[0].ask("auto 5").numbers("adding"), [2005]);
    guests[0].ask("access").expect_error("OtherHost", &["another host", "`urgent`"]);
    guests[1].ask("fail").expect_error("Panicked", &[]);
    assert_eq!(guests[1].ask("add 0").numbers("adding"), [2005]);
    guests[0].say("hold 10");
    // Urgent requests wait for no procedure.
    assert_eq!(guests[1].ask("add 1").numbers("adding"), [2006]);
    scene.home.ask("release").expect_ok("its release");
    assert_eq!(guests[0].hear().numbers("the procedure"), [2016]);
    assert_eq!(scene.number(), 2016);
    // The test's home polls once a millisecond.
    come_to_rest("a guest", &idle[1..], Duration::from_secs(1), Duration::from_millis(20));
    scene.end(guests);
}

#[test]
fn guests_of_a_killed_home_are_told_and_find_the_next_one() {
    let _company = in_company();
    let mut scene = Scene::new();
    let (mut waits, mut other) = (scene.holding(1), scene.guest());
    scene.home.kill();
    scene.home.ended();
    waits.hear().expect_error("Ended", &["may have run"]);
    other.ask("add 1").expect_error("NotServed.Absent", &["no process listens there"]);
    let port = scene.at.rsplit_once('/').expect("a name").0.rsplit_once(':').expect("a port").1;
    let port = port.parse().expect("a number");
    (scene.home, _) = make(&scene.places[1], scene.hosts.host(1), "object", port);
    for (guest, number) in [(&mut waits, 1), (&mut other, 2)] {
        assert_eq!(guest.ask("add 1").numbers("adding at the next home"), [number]);
    }
    scene.end([waits, other]);
}

#[test]
fn a_killed_guest_harms_nobody() {
    let _company = in_company();
    let mut scene = Scene::new();
    let (mut victim, mut other) = (scene.holding(5), scene.guest());
    other.ask("add 1").expect_ok("adding");
    // A link for ordinary requests, and one of the other guest.
    await_connections(&scene.home, 2);
    victim.kill();
    victim.ended();
    await_connections(&scene.home, 1);
    assert_eq!(other.ask("add 1").numbers("adding beside it"), [2]);
    // What has begun runs to its end.
    scene.home.ask("release").expect_ok("its release");
    eventually("the procedure has run", || match scene.number() {
        7 => Ok(()),
        number => Err(number.to_string()),
    });
    scene.end([other]);
}

#[test]
fn a_stopped_home_lives_and_a_stopped_guest_holds_nobody_up() {
    let _company = in_company();
    let mut scene = Scene::new();
    let (mut hasty, mut waits) = (scene.guest(), scene.guest());
    hasty.ask("add 1").expect_ok("adding");
    hasty.ask("patience 300").expect_ok("patience");
    scene.home.stop();
    hasty.ask("add 1").expect_error("Busy", &["may still be run"]);
    waits.say("add 1");
    // Its kernel gives signs of life for longer than a home may be silent.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(waits.heard(), None);
        std::thread::sleep(Duration::from_millis(50));
    }
    scene.home.signal(Signal::CONT);
    waits.hear().expect_ok("adding at a home that goes on");
    assert_eq!(scene.number(), 3);
    hasty.stop();
    assert_eq!(waits.ask("adds 100").numbers("adding beside a stopped guest"), [103]);
    hasty.signal(Signal::CONT);
    assert_eq!(hasty.ask("add 1").numbers("a guest that goes on"), [104]);
    scene.end([hasty, waits]);
}

#[test]
fn a_link_that_is_cut_for_good_is_noticed_on_both_sides() {
    let _company = in_idle_company();
    let mut scene = Scene::new();
    if !scene.hosts.are_apart() {
        return println!("skipped: cut links, which need hosts of their own");
    }
    let (mut waits, mut idle) = (scene.holding(1), scene.guest());
    idle.ask("add 1").expect_ok("adding");
    scene.hosts.cut(1);
    let begun = Instant::now();
    // The kernel, or the thread of the links, finds no sign of life.
    waits.hear().expect_error("Lost", &["may have run"]);
    println!("noticed after {:.1} s", begun.elapsed().as_secs_f64());
    await_connections(&scene.home, 0);
    scene.hosts.mend(1);
    for guest in [&mut waits, &mut idle] {
        guest.ask("add 1").expect_ok("adding after it was mended");
    }
    assert_eq!(scene.number(), 3);
    // What had begun runs to its end, which its home waits for.
    scene.home.ask("release").expect_ok("its release");
    scene.end([waits, idle]);
}

/// Each home waits for the other, and serves the other while it waits.
#[test]
fn two_homes_on_two_hosts_invoke_each_other() {
    let _company = in_company();
    let mut scene = Scene::new();
    let (mut second, at) = make(&scene.places[0], scene.hosts.host(0), "second", 0);
    for _ in 0..2 {
        scene.home.say(&format!("mutual {at} 500"));
        second.say(&format!("mutual {} 500", scene.at));
        for home in [&mut scene.home, &mut second] {
            home.hear().expect_ok("invoking the other one");
        }
    }
    assert_eq!((scene.number(), second.ask("number").numbers("the number")[0]), (1000, 1000));
    // Procedures back and forth, while the homes' threads invoke each other.
    let mut guest = scene.guest();
    guest.say(&format!("bounce 12 {at} {}", scene.at));
    scene.home.say(&format!("mutual {at} 100"));
    second.say(&format!("mutual {} 100", scene.at));
    assert_eq!(guest.hear().numbers("back and forth"), [12]);
    for home in [&mut scene.home, &mut second] {
        home.hear().expect_ok("invoking the other one");
    }
    assert_eq!(scene.number() + second.ask("number").numbers("the number")[0], 2213);
    scene.end([guest, second]);
}

/// A reference works on each host that it is passed to, on the home's own host through memory.
#[test]
fn references_lead_from_host_to_host() {
    let _company = in_company();
    let mut scene = Scene::new();
    let reference = scene.home.ask("reference").expect_ok("a reference").swap_remove(0);
    let mut far = scene.start(scene.hosts.host(0));
    far.ask(&format!("refer {reference}")).expect_ok("finding it from another host");
    assert_eq!(far.ask("add 3").numbers("adding"), [3]);
    far.ask("access").expect_error("OtherHost", &[]);
    // Passed on by the guest: the home's host knows that it is its own.
    assert_eq!(far.ask("reference").expect_ok("a reference"), [&*reference]);
    let line = format!("guest {} 1000", scene.at);
    let mut near = scene.places[1].start_by(&scene.hosts.host(1).wrapper(), &line);
    near.ask(&format!("refer {reference}")).expect_ok("finding it on its own host");
    assert_eq!(near.ask("access").numbers("access in place"), [3]);
    // Passed on by a guest on the home's own host.
    assert_eq!(near.ask("reference").expect_ok("a reference"), [&*reference]);
    // An object that does not listen has no address elsewhere.
    let (path, _place) = reference.rsplit_once('-').expect("a place");
    let (_address, local) = path.rsplit_once('/').expect("a name");
    let no_address = far.ask(&format!("refer {local}"));
    no_address.expect_error("NoAddress", &["no address", "`listen`"]);
    scene.end([far, near]);
}

fn trust(host: &Host, name: &str, peer: &Host) {
    let own = peer.store.own().expect("an identity");
    let name = name.parse().expect("a host's name");
    let trusted =
        host.store.trust(&name, &own.identity, HostPermission::Both, IfRevoked::TrustAgain);
    trusted.expect("the identity of another host");
}

#[test]
fn strangers_are_no_guests() {
    let _company = in_company();
    let mut scene = Scene::new();
    let [client, server] = [0, 1].map(|number| scene.hosts.host(number));
    let stranger = scene.hosts.stranger(0);
    if scene.hosts.are_apart() {
        // A guest that does not know the home's host sends nothing.
        scene.start(&stranger).ask("find").expect_error("NotProved", &["upcall host trust"]);
        assert_eq!(connections(scene.home.pid()), 0);
    }
    // The home does not know the guest's host.
    trust(&stranger, &server.address, server);
    let own = stranger.store.own().expect("an identity").identity.fingerprint().to_string();
    scene.start(&stranger).ask("find").expect_error("Refused", &[&own, "upcall host trust"]);
    // The trust ends while the guest invokes.
    let mut guest = scene.guest();
    guest.ask("add 1").expect_ok("a trusted guest");
    if scene.hosts.are_apart() {
        server.store.revoke(&client.name()).expect("a trusted host");
        let begun = Instant::now();
        let refused = loop {
            match guest.ask("add 1") {
                Said::Ok(_) => assert!(begun.elapsed() < Duration::from_secs(60)),
                error @ Said::Error { .. } => break error,
            }
        };
        let Said::Error { kind, text } = refused else { panic!("an error") };
        assert!(
            ["Lost", "NotServed"].iter().any(|known| kind.starts_with(known)),
            "{kind}: {text}"
        );
        assert!(text.contains("revoked"), "{text}");
        guest.ask("find").expect_error("Refused", &["revoked"]);
        trust(server, &client.address, client);
        guest.ask("find").expect_ok("a guest that is trusted again");
    }
    let before = scene.number();
    assert_eq!(guest.ask("add 1").numbers("adding"), [before + 1]);
    scene.end([guest]);
}

#[test]
fn without_an_identity_no_home_listens_beyond_this_machine() {
    let _company = in_company();
    let place = place();
    let wrapper = ["env".into(), "UPCALL_HOSTS=/nonexistent".into()];
    let mut home = place.start_by(&wrapper, "home object 0.0.0.0:0");
    home.hear().expect_error("Listen.Unprotected", &["upcall host", "127.0.0.1"]);
    home.ended();
    place.expect_empty();
}
