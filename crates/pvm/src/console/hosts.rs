//! The console's commands about hosts: add, delete, conf.

use super::{Console, ConsoleWait, Controls};
use crate::error;
use crate::ops::{OP_ADD_HOSTS, OP_DELETE_HOSTS};
use crate::shown;
use crate::wire::{self, Packet, PacketReader};

/// What happens to hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostChange {
    Add,
    Delete,
}

impl Console {
    /// Adds or deletes hosts. The next command is read when each has joined or gone, or has failed.
    pub(super) fn change_hosts(
        &mut self,
        names: &[String],
        change: HostChange,
        controls: &mut dyn Controls,
    ) {
        let op = match change {
            HostChange::Add => OP_ADD_HOSTS,
            HostChange::Delete => OP_DELETE_HOSTS,
        };
        let count = Packet::default().int(names.len() as i32);
        let question = names.iter().fold(count, |all, name| all.text(&wire::written(name)));
        self.ask(ConsoleWait::Hosts { names: names.to_vec(), change }, op, question, controls);
    }

    /// Prints what has become of hosts, as PVM's console does.
    pub(super) fn hosts_changed(
        &mut self,
        names: &[String],
        change: HostChange,
        code: i32,
        answer: &[u8],
    ) {
        let mut answer = PacketReader::new(answer);
        let head = if change == HostChange::Add { "    DTID" } else { " STATUS" };
        self.say(format!("{} successful\n{:>24} {head}", code.max(0), "HOST"));
        for name in names {
            let status = match (answer.int().unwrap_or(code.min(error::SYS_ERR)), change) {
                (number @ 0.., HostChange::Add) => format!("{number:8x}"),
                (0.., HostChange::Delete) => " deleted".into(),
                (code, _) => shown::error(code).into(),
            };
            self.say(format!("{name:>24} {status}"));
        }
    }

    /// Prints the list of hosts.
    pub(super) fn conf(&mut self, hosts: &[(i32, String)]) {
        let plural = if hosts.len() == 1 { "" } else { "s" };
        self.say(format!(
            "{} host{plural}, 1 data format\n{:>24} {:>8} {:>8} {:>7} {:>10}",
            hosts.len(),
            "HOST",
            "DTID",
            "ARCH",
            "SPEED",
            "DSIG"
        ));
        for (number, host) in hosts {
            let arch = "LINUX64";
            let data = 0x0040_8c41;
            self.say(format!("{host:>24} {number:8x} {arch:>8} {:7} 0x{data:08x}", 1000));
        }
    }
}
