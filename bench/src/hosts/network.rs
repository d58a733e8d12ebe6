//! Two hosts on one machine: network namespaces, joined by a pair of virtual devices.
//!
//! That needs root and the command `ip`. The namespaces exist until a [`Network`] is dropped. Those
//! of a killed run are removed when the next run begins.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

/// The addresses of the client's host and the server's.
pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// The device that leads to the other host, on both hosts.
pub const DEVICE: &str = "eth0";

/// Prefix of the names of namespaces. The harness's process id and a number follow.
const PREFIX: &str = "upcall-bench-";

/// Folder in which the command `ip` keeps namespaces.
const FOLDER: &str = "/run/netns";

/// Chooses CUBIC, Linux's default, to control congestion. A machine may have another default, as
/// BBR. That paces packets by timers, which cost much in a virtual machine.
const CONTROL: &str = "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control";

/// See the module.
pub struct Network {
    names: [String; 2],
}

/// A host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The client's.
    Client,
    /// The server's.
    Server,
}

impl Side {
    /// The role's name on the command line.
    pub fn name(self) -> &'static str {
        ["client", "server"][self as usize]
    }
}

impl Network {
    /// Makes the two hosts.
    ///
    /// # Errors
    /// The reason why this machine has none.
    pub fn make() -> Result<Network, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".to_owned());
        }
        forget_the_dead();
        let names = [0, 1].map(|number| format!("{PREFIX}{}-{number}", std::process::id()));
        // Dropped if a step fails, with what was made.
        let network = Network { names };
        let [client, server] = &network.names;
        for name in &network.names {
            ip(["netns", "add", name])?;
            ip(["netns", "exec", name, "sh", "-c", CONTROL])?;
        }
        let pair = ["type", "veth", "peer", "name", DEVICE, "netns", server];
        ip(["-n", client, "link", "add", DEVICE].into_iter().chain(pair))?;
        for (name, address) in network.names.iter().zip(ADDRESSES) {
            ip(["-n", name, "address", "add", &format!("{address}/24"), "dev", DEVICE])?;
            ip(["-n", name, "link", "set", "lo", "up"])?;
            ip(["-n", name, "link", "set", DEVICE, "up"])?;
        }
        Ok(network)
    }

    /// The command that runs a program on a host. `ip` becomes the program, so the process that is
    /// started is the program's.
    pub fn command(&self, side: Side, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side as usize]]).arg(program);
        command
    }

    /// Returns the host of a process; `None` if the process has ended, or is on neither.
    pub fn side(&self, process: u32) -> Option<Side> {
        let namespace = |path: String| {
            fs::metadata(path).map(|namespace| (namespace.dev(), namespace.ino())).ok()
        };
        let own = namespace(format!("/proc/{process}/ns/net"))?;
        let of = |side: Side| namespace(format!("{FOLDER}/{}", self.names[side as usize]));
        [Side::Client, Side::Server].into_iter().find(|&side| of(side) == Some(own))
    }
}

/// Folder of a host's identity, in the run's folder.
pub fn identity(dir: &Path, side: Side) -> PathBuf {
    dir.join(format!("identity-{}", side.name()))
}

/// Sets a command's environment: each host has its identity and its names for itself, in the run's
/// folder. Without a backtrace the reason of an error is the last line.
pub fn surround(command: &mut Command, side: Side, dir: &Path) {
    command
        .env("UPCALL_HOSTS", identity(dir, side))
        .env("UPCALL_DIR", dir.join(format!("names-{}", side.name())))
        .env("RUST_BACKTRACE", "0");
}

impl Drop for Network {
    fn drop(&mut self) {
        // A namespace that was never made cannot be removed, which is no fault.
        self.names.iter().for_each(|name| drop(ip(["netns", "del", name])));
    }
}

/// Removes the namespaces of killed runs.
fn forget_the_dead() {
    let all = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    for name in all.filter_map(|entry| entry.file_name().into_string().ok()) {
        if harness(&name).is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            drop(ip(["netns", "del", &name]));
        }
    }
}

/// Returns the process id of the harness that made a namespace.
fn harness(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

fn ip(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<(), String> {
    let mut command = Command::new("ip");
    let output = command.args(words).stdin(Stdio::null()).output();
    let failed = |why: &str| format!("{command:?}: {why}").replace('"', "");
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(failed(String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(failed("not on the path; install it (Debian: apt-get install iproute2)"))
        }
        Err(error) => Err(failed(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_names_its_harness() {
        assert_eq!(harness("upcall-bench-17-1"), Some(17));
        assert_eq!([harness("upcall-17-1"), harness("upcall-bench-x-1")], [None, None]);
    }
}
