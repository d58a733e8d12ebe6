//! Servers on other hosts, which are one machine here, as the commands show and reach them.

use crate::host::Host;
use crate::scene::{Place, Served};
use crate::shell::is_there;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

/// A server on the host beta, and the hosts alpha, which beta trusts, and gamma, which it does not.
struct Scene<'a> {
    alpha: Host<'a>,
    gamma: Host<'a>,
    _server: Served,
    /// Where the server listens.
    address: String,
    /// What the hosts call it.
    at: String,
}

impl<'a> Scene<'a> {
    fn new(place: &'a Place, beta: &'a Place) -> Self {
        let [alpha, beta_host, gamma] = [(place, "alpha"), (beta, "beta"), (place, "gamma")]
            .map(|(at, name)| Host::new(at, name));
        beta_host.done(&["trust", "a", &alpha.pem(), "--yes"]);
        let (server, address) = beta.program_on("serve", &beta_host.folder());
        let port = address.rsplit_once(':').expect("a port").1;
        let at = format!("tcp://beta:{port}");
        for host in [&alpha, &gamma] {
            host.done(&["trust", "beta", &beta_host.pem(), "--yes", "--address", &address]);
        }
        Self { alpha, gamma, _server: server, address, at }
    }
}

/// Runs another command than `upcall host` on a host.
fn run(host: &Host<'_>, arguments: &[&str]) -> (i32, String, String) {
    let mut command = host.place.upcall(arguments);
    let output = command.env("UPCALL_HOSTS", host.folder()).output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let Output { status, stdout, stderr } = output;
    println!("    upcall {}\n{}", arguments.join(" "), String::from_utf8_lossy(&stderr));
    (status.code().expect("an exit code"), text(stdout), text(stderr))
}

fn json(host: &Host<'_>, arguments: &[&str]) -> Value {
    let (code, out, error) = run(host, arguments);
    assert_eq!(code, 0, "{arguments:?}: {error}");
    serde_json::from_str(&out).expect("JSON")
}

#[test]
fn servers_of_trusted_hosts_are_listed_called_and_counted() {
    let (place, there) = (Place::new(), Place::new());
    let scene = Scene::new(&place, &there);
    let (alpha, name) = (&scene.alpha, format!("{}/far", scene.at));
    let (_near, _) = place.program("math");
    // The name of a host leads to its address, which no resolver knows.
    let (code, out, error) = run(alpha, &["call", &format!("{name}.add"), "2", "3"]);
    assert_eq!((code, out.trim()), (0, "5"), "{error}");
    // Beside the names of this machine.
    let all = json(alpha, &["ls", "--hosts", "--json"]);
    let rows = all.as_array().expect("an array").iter();
    let rows: Vec<_> = rows.map(|row| (row["name"].as_str(), row["host"].as_str())).collect();
    assert_eq!(rows, [(Some("math"), None), (Some(&*name), Some("beta"))]);
    let (code, out, error) = run(alpha, &["ls", "--hosts"]);
    assert!(code == 0 && out.contains(&name) && out.contains("math"), "{out}{error}");
    assert_eq!(run(alpha, &["ls", &scene.at]).0, 0);
    let counts = json(alpha, &["stat", "--total", "--json", &scene.at]);
    assert_eq!(counts["remote"], counts["calls"]);
    // The addresses stay until others are given.
    alpha.done(&["trust", "beta", "--may", "serve"]);
    let list: Value = serde_json::from_str(&alpha.done(&["list", "--json"])).expect("JSON");
    let of = |key: &str| list[1][key][0].as_str().expect("text").to_string();
    assert_eq!((of("addresses"), of("may")), (scene.address.clone(), "serve".into()));
    assert!(alpha.done(&["list"]).contains(&scene.address));
    let error = alpha.fails(&["trust", "bta", "--may", "serve"], 3);
    assert!(error.contains("\"beta\"?") && error.contains("FILE"), "{error}");
    assert!(alpha.fails(&["trust", "beta", "--address", "beta"], 2).contains("HOST:PORT"));
}

/// A client elsewhere learns by asking what `stat` reads on the server's machine.
#[test]
fn a_server_tells_what_it_counts() {
    let (place, here) = (Place::new(), Place::new());
    let (server, address) = place.program("serve");
    let (at, name) = (format!("tcp://{address}"), format!("tcp://{address}/far"));
    let (near, _) = place.program("far");
    let (_far, _) = place.program(&name);
    let sums = |all: &Value| {
        let rows = all.as_array().expect("an array").iter();
        let mut rows: Vec<_> = rows
            .map(|row| {
                ["client", "local", "remote"].map(|key| row[key].as_u64().expect("a number"))
            })
            .collect();
        rows.sort_unstable();
        rows
    };
    let there = here.json(&["stat", "--json", &at]);
    assert_eq!(sums(&there), [[0, 0, 3], [near.0.id().into(), 3, 0]]);
    assert_eq!(sums(&there), sums(&place.json(&["stat", "--json"])));
    assert_eq!((&there[0]["name"], &there[0]["server"]), (&name.as_str().into(), &0.into()));
    assert_eq!(there[0]["procedures"], serde_json::json!({"add": 3}));
    let (_, said, _) = here.run(&["stat", "--total", &name]);
    assert_eq!(said, "6 calls of 2 bindings: 50% local, 50% remote (3 and 3)\n");
    let kinds = |held: Value| {
        let rows = held.as_array().expect("an array").iter();
        rows.map(|row| row["kind"].clone()).collect::<Vec<_>>()
    };
    let held = here.json(&["stat", "--held", "--json", &at]);
    assert_eq!(kinds(held), kinds(place.json(&["stat", "--held", "--json"])));
    let (done, said, error) = here.run(&["stat", "--interval", "0.1", "--procedures", &at]);
    assert!(done && said.contains(&name) && said.contains("none remote"), "{said}{error}");
    let (done, _, error) = here.run(&["stat", &format!("{at}/fra")]);
    assert!(!done && error.contains("exports nothing") && error.contains("far\"?"), "{error}");
    // Beside names of this machine.
    let (done, said, error) = place.run(&["stat", "far", &at]);
    let (lines, far) = (said.lines().count(), said.matches(&name).count());
    assert!(done && (lines, far) == (6, 2), "{said}{error}");
    drop(server);
    let (done, said, error) = here.run(&["stat", &name]);
    assert!(!done && said.is_empty() && error.lines().count() == 1, "{said}{error}");
    assert!(error.contains("is it started") && error.contains(&address), "{error}");
}

/// The command is ended by its key as soon as the terminal shows a binding.
#[test]
fn top_shows_servers_elsewhere() {
    if !is_there("script") {
        return;
    }
    let (place, here) = (Place::new(), Place::new());
    let (_server, address) = place.program("serve");
    let (_far, _) = place.program(&format!("tcp://{address}/far"));
    let line = format!(
        "stty rows 24 cols 200; exec timeout --foreground 60 {} top --interval 0.1 tcp://{address}",
        env!("CARGO_BIN_EXE_upcall")
    );
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
    script.env("UPCALL_DIR", here.names()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut top = Served(script.spawn().expect("the command starts"));
    let mut input = top.0.stdin.take().expect("a pipe");
    let mut output = top.0.stdout.take().expect("a pipe");
    let (mut shown, mut bytes) = (Vec::new(), [0; 4096]);
    let has = |shown: &[u8], text: &str| shown.windows(text.len()).any(|at| at == text.as_bytes());
    while !has(&shown, "tcp://127.0.0.1") {
        let count = output.read(&mut bytes).expect("a terminal");
        assert!(count > 0, "it has ended: {}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&bytes[..count]);
    }
    input.write_all(b"q").expect("a reader");
    let _ = std::io::copy(&mut output, &mut std::io::sink());
    drop(input);
    assert!(top.0.wait().expect("its own child").success());
}

/// A process that is a server shows what it has called itself, on this machine and on others.
#[test]
fn a_server_shows_what_it_has_called() {
    let place = Place::new();
    let (_server, address) = place.program("serve");
    let none = place.json(&["stat", "--made", "--json"]);
    assert_eq!((&none[0]["calls"], &none[0]["remote_share"]), (&0.into(), &Value::Null));
    let (relay, _) = place.program(&format!("relay tcp://{address}/far"));
    let made = place.json(&["stat", "--made", "--json", "relay"]);
    let row = &made[0];
    assert_eq!(made.as_array().map(Vec::len), Some(1));
    assert_eq!(row["process"], relay.0.id());
    let counts = ["calls", "local", "remote"].map(|key| row[key].as_u64().expect("a number"));
    assert_eq!((counts, &row["remote_share"]), ([4, 1, 3], &0.75.into()));
    assert!(row["bytes_out"].as_u64() >= Some(3 * 8), "{row}");
    let (_, said, _) = place.run(&["stat", "--made"]);
    assert!(said.lines().count() == 3 && said.contains(" 75% "), "{said}");
    let (_, said, _) = place.run(&["stat"]);
    let line = format!("process {} has made 4 calls: 25% local, 75% remote", relay.0.id());
    assert!(said.contains(&line), "{said}");
    let during = place.json(&["stat", "--made", "--json", "--interval", "0.1", "relay"]);
    assert_eq!((&during[0]["calls"], &during[0]["remote"]), (&0.into(), &0.into()));
    let at = format!("tcp://{address}");
    let (done, _, error) = place.run(&["stat", "--made", &at]);
    assert!(!done && error.contains("another machine"), "{error}");
}

#[test]
fn a_host_that_is_not_trusted_learns_nothing() {
    let (place, there) = (Place::new(), Place::new());
    let scene = Scene::new(&place, &there);
    let name = format!("{}/far", scene.at);
    let call = format!("{name}.add");
    let first: [&[&str]; 5] = [
        &["ls", &scene.at],
        &["ls", "--hosts", "--json"],
        &["stat", &scene.at],
        &["stat", "--held", &name],
        &["call", &call, "2", "3"],
    ];
    for arguments in first {
        let (code, out, error) = run(&scene.gamma, arguments);
        assert_eq!(code, 4, "{arguments:?}: {out}");
        assert!(out.is_empty() || out == "[]\n", "{arguments:?}: {out}");
        assert!(error.contains("upcall host trust"), "{arguments:?}: {error}");
    }
}

/// The others are listed all the same.
#[test]
fn hosts_that_do_not_answer_are_named() {
    let (place, there) = (Place::new(), Place::new());
    let scene = Scene::new(&place, &there);
    let alpha = &scene.alpha;
    // One takes connections and never answers, and one is gone.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let mut named = Vec::new();
    for (name, address) in [("silent", silent.local_addr().expect("an address")), ("gone", gone)] {
        let other = Host::new(&there, name);
        alpha.done(&["trust", name, &other.pem(), "--yes", "--address", &address.to_string()]);
        named.push(format!("{name}:{}", address.port()));
    }
    let nowhere = Host::new(&there, "nowhere");
    alpha.done(&["trust", "nowhere", &nowhere.pem(), "--yes"]);
    let (code, out, error) = run(alpha, &["ls", "--hosts"]);
    assert!(code != 0 && out.contains(&format!("{}/far", scene.at)), "{out}{error}");
    for part in named.iter().map(String::as_str).chain(["1 trusted host not asked", "nowhere"]) {
        assert!(error.contains(part), "{part}: {error}");
    }
}
