//! Two hosts and a controller on one machine: network namespaces that are joined by a switch. Each
//! has files of its own at the same paths, by mount namespaces.

use crate::skip;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names and addresses of the hosts. The last one is the controller.
const HOSTS: [(&str, &str); 3] = [("n1", "10.78.0.1"), ("n2", "10.78.0.2"), ("ctl", "10.78.0.3")];

/// The hosts, which exist until this is dropped.
pub struct ApartHosts {
    switch: String,
    table: PathBuf,
}

impl ApartHosts {
    /// Makes them. Returns `None`, and says so, if this machine forbids that.
    ///
    /// # Panics
    /// If only a part can be made.
    pub fn new(folder: &Path) -> Option<Self> {
        let switch = format!("upcall-{}-slurm", std::process::id());
        if !ip(&["netns", "add", &switch]) {
            skip(format_args!("hosts as network namespaces, which need root"));
            return None;
        }
        let hosts = Self { switch, table: folder.join("etc-hosts") };
        let lines = HOSTS.map(|(name, address)| format!("{address} {name}\n")).concat();
        std::fs::write(&hosts.table, format!("127.0.0.1 localhost\n{lines}")).expect("a file");
        let switch = &*hosts.switch;
        let made = ip(&["-n", switch, "link", "add", "bridge", "type", "bridge"])
            && ip(&["-n", switch, "link", "set", "bridge", "up"])
            && HOSTS.iter().all(|(name, address)| hosts.add(name, address));
        assert!(made, "network namespaces that are joined by a switch");
        Some(hosts)
    }

    fn add(&self, name: &str, address: &str) -> bool {
        let (switch, host) = (&*self.switch, self.namespace(name));
        let address = format!("{address}/24");
        let pair = ["type", "veth", "peer", "name", "eth0", "netns", &host];
        ip(&["netns", "add", &host])
            && ip(&[&["-n", switch, "link", "add", name], &pair[..]].concat())
            && ip(&["-n", switch, "link", "set", name, "master", "bridge", "up"])
            && ip(&["-n", &host, "address", "add", &address, "dev", "eth0"])
            && ip(&["-n", &host, "link", "set", "eth0", "up"])
            && ip(&["-n", &host, "link", "set", "lo", "up"])
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.switch)
    }

    /// The words that run a command on a host, with a folder of its own at `own`. Its process is
    /// that of the command.
    pub fn wrapper(&self, name: &str, own: &Path) -> Vec<String> {
        let net = format!("--net=/run/netns/{}", self.namespace(name));
        let script = format!(
            "mount --bind {} /etc/hosts && mount -t tmpfs none {} && exec \"$@\"",
            self.table.display(),
            own.display()
        );
        let words = ["nsenter", &net, "unshare", "-m", "--propagation", "private", "sh", "-c"];
        words.into_iter().map(String::from).chain([script, "on".into()]).collect()
    }
}

impl Drop for ApartHosts {
    fn drop(&mut self) {
        for (name, _) in HOSTS {
            ip(&["netns", "del", &self.namespace(name)]);
        }
        ip(&["netns", "del", &self.switch]);
    }
}

/// The address of a host.
pub fn address(name: &str) -> &'static str {
    let found = HOSTS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no host {name}")).1
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
