//! A program for tests: a server, a client, an impostor or another role, chosen by its arguments.
#![forbid(unsafe_code)]

use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use std::io::BufRead;
use std::path::Path;
use upcall::{Pacing, Quotas, Server, policy};
use upcall_tests::client;
use upcall_tests::hoard::Hoard;
use upcall_tests::interfaces::{hoard::hoard, latch, other::other, relay, shapes, small, trial};
use upcall_tests::object::{Gate, Latch, Object};
use upcall_tests::outcome::say;
use upcall_tests::relay::Station;
use upcall_tests::shapes::Server as Shapes;
use upcall_tests::{hostile, impostor};

/// Lets tests refuse memory to this process.
#[global_allocator]
static MEMORY: upcall_os::ration::Rationed = upcall_os::ration::Rationed;

fn main() {
    // The program does not outlive its test.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("upcall-party: cannot be set to end with its test: {error}");
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Some(names) = words.first().and_then(|word| word.strip_prefix("without=")) {
        words.remove(0);
        if let Err(error) = upcall_tests::without_kernel::without(names) {
            return say(Err(error));
        }
    }
    if words.first() == Some(&"supervised") {
        words.remove(0);
        if let Err(error) = upcall_tests::shortage::be_supervised() {
            return say(Err(error.into()));
        }
    }
    match words.as_slice() {
        ["client"] => client::run(),
        ["member", name, size, rank, options @ ..] => {
            upcall_tests::member::run(name, size, rank, options)
        }
        ["share", name, options @ ..] => upcall_tests::sharer::run(name, options),
        ["home", name, address] => upcall_tests::far_object::home(name, address),
        ["guest", at, lost] => upcall_tests::far_object::guest(at, lost),
        ["supervise", words @ ..] => upcall_tests::job::supervise(words),
        ["job", words @ ..] => upcall_tests::job::ask(words),
        ["job-member", words @ ..] => upcall_tests::job::member(words),
        ["serve", name, options @ ..] => serve(name, options),
        ["hostile", socket, seed, steps] => hostile(Path::new(socket), seed, steps),
        ["greedy", socket, name] => {
            if let Err(error) = hostile::greedy::run(Path::new(socket), name) {
                say(Err(error));
            }
        }
        ["hostile-server", name, seed] => {
            hostile::server::serve(name, seed.parse().unwrap_or_default())
        }
        ["impostor", name, manner] => impostor::run(name, manner),
        _ => eprintln!(
            "usage: upcall-party [without=CALL,CALL…[!|+]] [supervised] client | member GROUP \
            SIZE RANK [OPTIONS] | share NAME make|find [OPTIONS] | supervise [OPTIONS] -- MEMBER \
            | job WORDS | job-member WORDS | serve NAME [OPTIONS] | hostile SOCKET SEED STEPS | \
            greedy SOCKET NAME | hostile-server NAME SEED | impostor NAME MANNER"
        ),
    }
}

/// Runs a hostile client, reports the outcome, and dies without closing anything.
fn hostile(socket: &Path, seed: &str, steps: &str) {
    match (seed.parse(), steps.parse()) {
        (Ok(seed), Ok(steps)) => say(hostile::walk(socket, seed, steps)),
        _ => say(Err("a seed and steps are numbers".into())),
    }
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Serves `name`, and its small interface under `name.small`, until standard input ends.
#[expect(clippy::too_many_lines, reason = "one arm for each option, and for each command")]
fn serve(name: &str, options: &[&str]) {
    let object = Object::default();
    let hoard = Hoard::default();
    let gate = Gate::default();
    let (small, counts) = (Object(object.0.clone()), object.0.clone());
    let name = if name == "EMPTY" { "" } else { name };
    let mut server = Server::new();
    server = match options {
        [.., "blocks", "latch"] => {
            server.export(name, latch::export(Latch::that_blocks(gate.clone())))
        }
        [.., "latch"] => server.export(name, latch::export(Latch::default())),
        [.., "relay"] => server.export(name, relay::export(Station::default())),
        [.., "shapes"] => server
            .export(name, trial::export(object))
            .export(&format!("{name}.shapes"), shapes::export(Shapes)),
        [.., "hoard"] => server
            .export(name, hoard::export(hoard.clone()))
            .export(&format!("{name}.small"), small::export(small)),
        [.., "other"] => server.export(name, other::export(object)),
        _ => server
            .export(name, trial::export(object))
            .export(&format!("{name}.small"), small::export(small)),
    };
    let mut quotas = Quotas::default();
    for option in options {
        match option.split_once('=').map(|(kind, most)| (kind, most.parse().unwrap_or(0))) {
            Some(("calls", most)) => quotas.calls = most,
            Some(("spares", most)) => server = server.spare_processors(most),
            Some(("descriptors", most)) => quotas.all.descriptors = most,
            Some(("mappings", most)) => quotas.all.mappings = most,
            Some(("results", most)) => quotas.client.results = most,
            Some(("all-results", most)) => quotas.all.results = most,
            Some(("unfilled", most)) => quotas.client.unfilled = most,
            Some(("values", most)) => quotas.client.values = most,
            Some(("objects", most)) => quotas.client.objects = most,
            _ => {}
        }
        server = match option.split_once('=') {
            Some(("mode", mode)) => server.mode(u32::from_str_radix(mode, 8).unwrap_or(0)),
            Some(("group", group)) => match group.parse::<u32>() {
                Ok(number) => server.group(number),
                Err(_) => server.group(group),
            },
            Some(("admit", "any")) => server.policy(policy::any_user()),
            Some(("admit", users)) => {
                server.policy(policy::users(users.split(',').flat_map(str::parse)))
            }
            Some(("admit-group", group)) => server.policy(policy::groups(group.parse())),
            _ => server,
        };
        server = match *option {
            "poll" => server.pacing(Pacing::Poll),
            "sleep" => server.pacing(Pacing::Sleep),
            // Memory that takes the kernel some time to free.
            "ballast" => {
                std::mem::forget(vec![1_u8; 512 << 20]);
                server
            }
            "two" => server.processors(2),
            "tcp" => server.listen("127.0.0.1:0"),
            "tcp-hosts" => server.listen(&format!("{}:0", own_address())),
            "tcp-everywhere" => server.listen("0.0.0.0:0"),
            // For clients that request anything, and make objects and calls panic all the time.
            "wary" => {
                counts.be_wary();
                std::panic::set_hook(Box::new(|_| {}));
                server
            }
            "mortal" => {
                counts.be_mortal();
                server
            }
            "refuse" => {
                server.policy(|peer| Err(format!("process {} is not on the list", peer.pid)))
            }
            _ => server,
        };
    }
    let running = match server.quotas(quotas).start() {
        Ok(running) => running,
        Err(error) => return say(Err(error.into())),
    };
    say(Ok(running.addresses().iter().map(ToString::to_string).collect()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["spare-descriptors", count] => {
                say(client::spare_descriptors(count.parse().unwrap_or(0)))
            }
            // Calls from the server's own process, on a kernel thread that does not serve.
            words @ ["go", ..] => say(upcall_tests::relay::go(words)),
            // Revokes the bindings of a process to a name.
            ["revoke", pid, name] => {
                let revoked = running
                    .revoke(|binding| binding.name == *name && Ok(binding.pid) == pid.parse());
                say(Ok(vec![revoked.to_string()]));
            }
            // Releases blocked handlers without a call.
            ["let-out", count] => {
                gate.let_out(count.parse().unwrap_or(0));
                say(Ok(Vec::new()));
            }
            // Reports the number of bindings to a name.
            ["clients", name] => say(upcall::directory::exported(name)
                .map(|exported| vec![exported.clients.to_string()])
                .map_err(Into::into)),
            ["fault", text] if upcall_os::fault::arm(text) => say(Ok(Vec::new())),
            ["copied"] => say(Ok(client::copied_since(None))),
            // Reports the number of calls under way of the greedy clients.
            ["inside"] => say(Ok(vec![hoard::Serve::inside(&hoard).to_string()])),
            ["read-singly"] => say(Ok(client::read_singly())),
            ["crossings"] => say(Ok(client::crossings())),
            ["without", names] => say(upcall_tests::without_kernel::without(names)),
            words @ ["refuse-memory" | "permit-memory", ..] => say(client::ration(words)),
            ["without-memory"] => say(client::no_more_memory()),
            ["held"] => {
                let held = upcall_os::ration::held();
                say(Ok(vec![held.blocks.to_string(), held.bytes.to_string()]));
            }
            _ => say(Err(format!("unknown command {line:?}").into())),
        }
    }
    drop(running);
}

/// The address of this host, which its tests give in the environment.
fn own_address() -> String {
    std::env::var("UPCALL_TEST_ADDRESS").expect("the address of this host")
}
