//! Servers and clients on several hosts that prove themselves to each other.

use crate::{alone, in_company, in_idle_company, place};
use std::time::{Duration, Instant};
use upcall_net::identity::{HostPermission, IfRevoked};
use upcall_tests::hosts::{Host, Hosts};
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::connections;

/// A server on the second of two hosts.
struct Scene {
    place: Place,
    hosts: Hosts,
    server: Party,
    name: String,
}

impl Scene {
    fn new(options: &str) -> Self {
        let (place, hosts) = (place(), Hosts::new(2));
        let (server, name) = serve(&place, hosts.host(1), options);
        Self { place, hosts, server, name }
    }

    /// Starts a client on a host, which is not bound yet.
    fn start(&self, host: &Host) -> Party {
        self.place.start_by(&host.wrapper(), "client")
    }

    /// Starts a client on the first host, and binds it.
    fn client(&self) -> Party {
        let mut client = self.start(self.hosts.host(0));
        client.ask(&format!("bind {}", self.name)).expect_ok("binding");
        client
    }
}

/// Starts a server on a host. Also returns the name by which other hosts bind it.
pub fn serve(place: &Place, host: &Host, options: &str) -> (Party, String) {
    let serve = format!("serve trial tcp-hosts {options}");
    let mut server = place.start_by(&host.wrapper(), &serve);
    let address = server.hear().expect_ok("a server's start").swap_remove(0);
    (server, format!("tcp://{address}/trial"))
}

fn trust(host: &Host, name: &str, peer: &Host) {
    let own = peer.store.own().expect("an identity");
    let name = name.parse().expect("a host's name");
    let trusted =
        host.store.trust(&name, &own.identity, HostPermission::Both, IfRevoked::TrustAgain);
    trusted.expect("the identity of another host");
}

#[test]
fn who_is_not_trusted_is_refused_and_told_why() {
    let _company = in_company();
    let scene = Scene::new("");
    let pid = scene.server.pid();
    let (bind, [client, server]) =
        (format!("bind {}", scene.name), [0, 1].map(|number| scene.hosts.host(number)));
    let refused = |host: &Host, error: &str, parts: &[&str]| {
        scene.start(host).ask(&bind).expect_error(error, parts);
    };
    // A client that does not know the server sends nothing.
    let stranger = scene.hosts.stranger(0);
    if scene.hosts.are_apart() {
        refused(&stranger, "NotProved", &["no trusted host is called", "upcall host trust"]);
    }
    // The server does not know the client.
    trust(&stranger, &server.address, server);
    let own = stranger.store.own().expect("an identity").identity.fingerprint().to_string();
    refused(&stranger, "Denied", &[&own, "upcall host trust"]);
    // Another server has taken the address of a trusted one.
    let impostor = scene.hosts.stranger(1);
    let elsewhere = place();
    let (_other, name) = serve(&elsewhere, &impostor, "");
    let mut honest = scene.start(client);
    honest.ask(&format!("bind {name}")).expect_error("NotProved", &["SHA256:"]);
    // A trusted client is let in, and until it is revoked.
    honest.ask(&bind).expect_ok("a trusted client");
    let name = client.name();
    server.store.revoke(&name).expect("a trusted host");
    eventually("the connection of the revoked host is gone", || match connections(pid) {
        0 => Ok(()),
        more => Err(format!("{more} connections")),
    });
    honest.ask("add 2 3").expect_error("Failed", &["revoked", "closed the connection"]);
    refused(client, "Denied", &["revoked"]);
    trust(server, &client.address, client);
    refused_no_more(&mut scene.start(client), &bind);
}

/// What a server counts is for the hosts that it admits.
#[test]
fn a_server_tells_other_hosts_what_it_counts() {
    let _company = in_company();
    let scene = Scene::new("");
    let at = scene.name.trim_end_matches("/trial");
    let mut client = scene.client();
    client.ask("nulls 7").expect_ok("calls");
    let mut near = scene.start(scene.hosts.host(1));
    near.ask("bind trial").expect_ok("a client on the server's host");
    near.ask("nulls 3").expect_ok("calls");
    let mut other = scene.start(scene.hosts.host(0));
    let counts = |client: &mut Party| client.ask(&format!("counts {at}")).numbers("counts");
    assert_eq!(counts(&mut other), [2, 3, 7]);
    client.ask("nulls 5").expect_ok("calls");
    assert_eq!(counts(&mut other), [2, 3, 12]);
    // A host that is not trusted learns nothing.
    let stranger = scene.hosts.stranger(0);
    trust(&stranger, &scene.hosts.host(1).address, scene.hosts.host(1));
    let said = scene.start(&stranger).ask(&format!("counts {at}"));
    said.expect_error("Denied", &["upcall host trust"]);
    // The trust ends while the server is asked again and again.
    let (server, name) = (scene.hosts.host(1), scene.hosts.host(0).name());
    server.store.revoke(&name).expect("a trusted host");
    let start = Instant::now();
    let refused = loop {
        match client.ask("null") {
            Said::Ok(_) => assert!(start.elapsed() < Duration::from_secs(60), "it is still served"),
            error => break error,
        }
    };
    refused.expect_error("Failed", &["was revoked here"]);
    other.ask(&format!("counts {at}")).expect_error("Denied", &["was revoked here"]);
}

fn refused_no_more(client: &mut Party, bind: &str) {
    client.ask(bind).expect_ok("a client that is trusted again");
    assert_eq!(client.ask("add 2 3").numbers("a call"), [5]);
}

/// A new host key needs no new trust, and no program needs a restart.
#[test]
fn keys_are_replaced_while_programs_run() {
    let _company = in_company();
    let scene = Scene::new("");
    let mut before = scene.client();
    for number in [0, 1] {
        scene.hosts.host(number).store.renew().expect("a new host key");
    }
    assert_eq!(scene.client().ask("add 2 3").numbers("after both have new keys"), [5]);
    assert_eq!(before.ask("add 2 3").numbers("an earlier connection"), [5]);
}

#[test]
fn a_link_that_is_cut_ends_its_calls_on_both_sides() {
    let _company = in_idle_company();
    let scene = Scene::new("");
    if !scene.hosts.are_apart() {
        return println!("skipped: cut links, which need hosts of their own");
    }
    let mut client = scene.client();
    client.ask("open 3").expect_ok("objects");
    assert_eq!(connections(scene.server.pid()), 1);
    scene.hosts.cut(1);
    let start = Instant::now();
    let said = client.ask("add 2 3");
    println!("noticed after {:.1} s", start.elapsed().as_secs_f64());
    said.expect_error("Failed", &["no sign of life for 5 s"]);
    eventually("the server has noticed, too", || match connections(scene.server.pid()) {
        0 => Ok(()),
        more => Err(format!("{more} connections")),
    });
    scene.hosts.mend(1);
    let mut again = scene.client();
    assert_eq!(again.ask("add 2 3").numbers("after it was mended"), [5]);
    eventually("the objects of the lost client are gone", || {
        let things = again.ask("things").numbers("things");
        if things == [3, 3] { Ok(()) } else { Err(format!("{things:?}")) }
    });
}

#[test]
fn a_killed_server_and_a_killed_client_are_noticed_between_hosts() {
    let _alone = alone();
    let scene = Scene::new("");
    let (mut client, other) = (scene.client(), scene.client());
    client.ask("storm 4 20").expect_ok("a storm");
    other.kill();
    eventually("the killed client is gone", || match connections(scene.server.pid()) {
        1 => Ok(()),
        more => Err(format!("{more} connections")),
    });
    scene.server.kill();
    let start = Instant::now();
    client.hear_within(Duration::from_secs(60)).expect_ok("the storm's end");
    println!("every caller returned within {:?}", start.elapsed());
}
