//! Several hosts on one machine: network namespaces that are joined by a switch, with an identity
//! each.
//!
//! That needs root. Without it the hosts are one, at its loopback address, and tests that cut links
//! are left out, loudly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use upcall_net::identity::{HostName, HostPermission, HostStore, IfRevoked};

/// Some hosts, which exist until this is dropped.
pub struct Hosts {
    all: Vec<Host>,
    /// The namespace of the switch, if the hosts are namespaces.
    switch: Option<String>,
    folder: tempfile::TempDir,
}

/// A host.
pub struct Host {
    /// Its address, which is also the name under which the others trust it.
    pub address: String,
    /// Its files.
    pub store: HostStore,
    namespace: Option<String>,
}

impl Host {
    /// The command that runs another one on this host.
    pub fn wrapper(&self) -> Vec<String> {
        let store = format!("UPCALL_HOSTS={}", self.store.folder().display());
        let address = format!("UPCALL_TEST_ADDRESS={}", self.address);
        let inside = self.namespace.iter().flat_map(|name| ["ip", "netns", "exec", name]);
        inside.chain(["env", &store, &address]).map(str::to_string).collect()
    }

    /// The name under which the others trust it.
    ///
    /// # Panics
    /// Never: addresses are valid names.
    pub fn name(&self) -> HostName {
        self.address.parse().expect("a host's name")
    }
}

impl Hosts {
    /// Makes hosts that trust each other.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn new(count: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let switch = make_switch(count);
        let all: Vec<Host> = (0..count)
            .map(|number| Host {
                address: match &switch {
                    Some(_) => address(number),
                    None => "127.0.0.1".into(),
                },
                store: store(folder.path(), number),
                namespace: switch.as_ref().map(|switch| format!("{switch}-{number}")),
            })
            .collect();
        let hosts = Self { all, switch, folder };
        hosts.introduce();
        hosts
    }

    /// Each host trusts all others.
    fn introduce(&self) {
        for (number, host) in self.all.iter().enumerate() {
            for (other, peer) in self.all.iter().enumerate().filter(|&(other, _)| other != number) {
                let own = peer.store.own().expect("an identity");
                // Hosts that are one have one address, so the first of them has the name.
                let name = match &self.switch {
                    None if number > 1 || other > 1 => format!("other-{other}"),
                    _ => peer.address.clone(),
                };
                let name = name.parse().expect("a host's name");
                let may = HostPermission::Both;
                let trusted = host.store.trust(&name, &own.identity, may, IfRevoked::Refuse);
                trusted.expect("the identity of another host");
            }
        }
    }

    /// Returns `true` if links can be cut.
    pub fn are_apart(&self) -> bool {
        self.switch.is_some()
    }

    /// A host.
    pub fn host(&self, number: usize) -> &Host {
        &self.all[number]
    }

    /// A host that no other trusts, at the same place as `number`.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn stranger(&self, number: usize) -> Host {
        let Host { address, namespace, .. } = &self.all[number];
        let store = store(self.folder.path(), 100 + number);
        Host { address: address.clone(), namespace: namespace.clone(), store }
    }

    /// Cuts the cable of a host: what is sent to it, and what it sends, is lost without a word.
    ///
    /// # Panics
    /// If the hosts are not apart.
    pub fn cut(&self, number: usize) {
        self.set_port(number, "down");
    }

    /// Mends the cable of a host.
    ///
    /// # Panics
    /// If the hosts are not apart.
    pub fn mend(&self, number: usize) {
        self.set_port(number, "up");
    }

    /// Cuts two hosts off from each other, without a word: all others still reach both. Only two
    /// hosts at a time can be apart from each other.
    ///
    /// # Panics
    /// If the hosts are not apart.
    pub fn part(&self, one: usize, other: usize) {
        [one, other].iter().for_each(|number| self.isolate(*number, "on"));
    }

    /// Lets two hosts reach each other again.
    ///
    /// # Panics
    /// If the hosts are not apart.
    pub fn reunite(&self, one: usize, other: usize) {
        [one, other].iter().for_each(|number| self.isolate(*number, "off"));
    }

    /// The switch moves nothing from one isolated port to another.
    fn isolate(&self, number: usize, state: &str) {
        let switch = self.switch.as_ref().expect("hosts that are apart");
        let port = format!("port{number}");
        let words = ["-n", switch, "link", "set", &port, "type", "bridge_slave", "isolated", state];
        assert!(ip(&words), "the port of host {number}");
    }

    fn set_port(&self, number: usize, state: &str) {
        let switch = self.switch.as_ref().expect("hosts that are apart");
        let port = format!("port{number}");
        assert!(ip(&["-n", switch, "link", "set", &port, state]), "the cable of host {number}");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let Some(switch) = &self.switch else { return };
        for host in &self.all {
            if let Some(name) = &host.namespace {
                ip(&["netns", "del", name]);
            }
        }
        ip(&["netns", "del", switch]);
    }
}

fn address(number: usize) -> String {
    format!("10.77.0.{}", number + 1)
}

fn store(folder: &Path, number: usize) -> HostStore {
    let store = HostStore::at(folder.join(format!("hosts-{number}")));
    let name = format!("host-{number}").parse().expect("a host's name");
    store.init(&name).expect("a new identity");
    store
}

/// Makes a switch and the namespaces that it joins. Returns the switch's namespace; `None` if this
/// machine forbids that.
fn make_switch(count: usize) -> Option<String> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    forget_the_dead();
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let switch = format!("upcall-{}-{number}", std::process::id());
    if !ip(&["netns", "add", &switch]) {
        println!("skipped: hosts as network namespaces, which need root: they are one here");
        return None;
    }
    let made = ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"])
        && ip(&["-n", &switch, "link", "set", "bridge", "up"])
        && (0..count).all(|number| make_host(&switch, number));
    assert!(made, "network namespaces that are joined by a switch");
    Some(switch)
}

fn make_host(switch: &str, number: usize) -> bool {
    let (name, port) = (format!("{switch}-{number}"), format!("port{number}"));
    let address = format!("{}/24", address(number));
    ip(&["netns", "add", &name])
        && ip(&[
            "-n", switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns",
            &name,
        ])
        && ip(&["-n", switch, "link", "set", &port, "master", "bridge", "up"])
        && ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])
        && ip(&["-n", &name, "link", "set", "eth0", "up"])
        && ip(&["-n", &name, "link", "set", "lo", "up"])
}

/// Removes namespaces of tests that were killed.
fn forget_the_dead() {
    let all = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for name in all.filter_map(|entry| entry.file_name().into_string().ok()) {
        let pid = name.strip_prefix("upcall-").and_then(|rest| rest.split('-').next());
        let is_gone = |pid: &str| {
            pid.parse::<u32>().is_ok() && !PathBuf::from(format!("/proc/{pid}")).exists()
        };
        if pid.is_some_and(is_gone) {
            ip(&["netns", "del", &name]);
        }
    }
}

/// Runs `ip`. Returns `true` if it succeeds.
fn ip(words: &[&str]) -> bool {
    let output = Command::new("ip").args(words).output();
    output.is_ok_and(|output| {
        if !output.status.success() {
            println!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        output.status.success()
    })
}
