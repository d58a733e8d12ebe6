//! Several hosts on one machine: network namespaces that are joined by a switch or by a network of
//! a test's own, with an identity each.
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
    /// The namespace of the switch, if one joins the hosts.
    switch: Option<String>,
    folder: tempfile::TempDir,
}

/// Network namespaces that hosts will be. They are removed on drop.
struct Namespaces {
    names: Vec<String>,
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
    /// Makes hosts that trust each other, joined by a switch.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn new(count: usize) -> Self {
        let Some(namespaces) = Namespaces::make(count) else {
            return Self::of((0..count).map(|_| None), None);
        };
        let switch = namespaces.switch();
        assert!(make_switch(&switch, &namespaces.names), "namespaces that are joined by a switch");
        Self::of(namespaces.take().into_iter().map(Some), Some(switch))
    }

    /// Makes hosts that trust each other, and whose network is `join`'s: it gives each of these
    /// namespaces a device `eth0`. Returns `None`, and says so, if this machine forbids that.
    ///
    /// # Panics
    /// If only a part can be made.
    pub fn joined_by<T>(
        count: usize,
        join: impl FnOnce(&[String]) -> std::io::Result<T>,
    ) -> Option<(Self, T)> {
        let namespaces = Namespaces::make(count)?;
        let network = match join(&namespaces.names) {
            Ok(network) => network,
            Err(error) => {
                println!("skipped: hosts that are joined by a network of a test's own: {error}");
                return None;
            }
        };
        let mut all = namespaces.names.iter().enumerate();
        assert!(all.all(|(number, name)| set_up(name, number)), "addresses of the hosts");
        Some((Self::of(namespaces.take().into_iter().map(Some), None), network))
    }

    fn of(namespaces: impl Iterator<Item = Option<String>>, switch: Option<String>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let host = |(number, namespace): (usize, Option<String>)| Host {
            address: match &namespace {
                Some(_) => address(number),
                None => "127.0.0.1".into(),
            },
            store: store(folder.path(), number),
            namespace,
        };
        let all = namespaces.enumerate().map(host).collect();
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
                let name = match &peer.namespace {
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
        self.all.iter().all(|host| host.namespace.is_some())
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
    /// If no switch joins the hosts.
    pub fn cut(&self, number: usize) {
        self.set_port(number, "down");
    }

    /// Mends the cable of a host.
    ///
    /// # Panics
    /// If no switch joins the hosts.
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
        let switch = self.switch.as_ref().expect("hosts that a switch joins");
        let port = format!("port{number}");
        assert!(ip(&["-n", switch, "link", "set", &port, state]), "the cable of host {number}");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let namespaces = self.all.iter().filter_map(|host| host.namespace.as_ref());
        namespaces.chain(&self.switch).for_each(|name| _ = ip(&["netns", "del", name]));
    }
}

impl Namespaces {
    /// Makes them, without a network. Returns `None`, and says so, if this machine forbids that.
    fn make(count: usize) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        forget_the_dead();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |host| format!("upcall-{}-{number}-{host}", std::process::id());
        let mut made = Self { names: Vec::new() };
        for host in 0..count {
            if !ip(&["netns", "add", &name(host)]) {
                assert!(host == 0, "as many namespaces as hosts");
                println!(
                    "skipped: hosts as network namespaces, which need root: they are one here"
                );
                return None;
            }
            made.names.push(name(host));
        }
        Some(made)
    }

    /// The name for the namespace of their switch.
    fn switch(&self) -> String {
        let (first, _) = self.names[0].rsplit_once('-').expect("the number of a host");
        first.into()
    }

    /// Their names, for an owner that removes them.
    fn take(mut self) -> Vec<String> {
        std::mem::take(&mut self.names)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| _ = ip(&["netns", "del", name]));
    }
}

/// The address of a host that is a namespace.
pub fn address(number: usize) -> String {
    format!("10.77.0.{}", number + 1)
}

fn store(folder: &Path, number: usize) -> HostStore {
    let store = HostStore::at(folder.join(format!("hosts-{number}")));
    let name = format!("host-{number}").parse().expect("a host's name");
    store.init(&name).expect("a new identity");
    store
}

/// Makes a switch that joins these namespaces. Returns `true` if that succeeds.
fn make_switch(switch: &str, namespaces: &[String]) -> bool {
    ip(&["netns", "add", switch])
        && ip(&["-n", switch, "link", "add", "bridge", "type", "bridge"])
        && ip(&["-n", switch, "link", "set", "bridge", "up"])
        && namespaces.iter().enumerate().all(|(number, name)| plug_in(switch, name, number))
}

/// Connects a host with the switch. Returns `true` if that succeeds.
fn plug_in(switch: &str, namespace: &str, number: usize) -> bool {
    let port = format!("port{number}");
    let pair = ["type", "veth", "peer", "name", "eth0", "netns", namespace];
    ip(&[&["-n", switch, "link", "add", &port], &pair[..]].concat())
        && ip(&["-n", switch, "link", "set", &port, "master", "bridge", "up"])
        && set_up(namespace, number)
}

/// Gives a host its address. Returns `true` if that succeeds.
fn set_up(namespace: &str, number: usize) -> bool {
    let address = format!("{}/24", address(number));
    ip(&["-n", namespace, "address", "add", &address, "dev", "eth0"])
        && ip(&["-n", namespace, "link", "set", "eth0", "up"])
        && ip(&["-n", namespace, "link", "set", "lo", "up"])
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
