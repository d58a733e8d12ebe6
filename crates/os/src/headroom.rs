//! How much memory is left: on the machine, and in the cgroups of this process.

use crate::cgroup;
use std::fs;
use std::path::Path;

/// The memory that is left of some total, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes that can be had without taking them from another process.
    pub left: u64,
    /// Total number of bytes.
    pub of: u64,
}

impl Headroom {
    /// Returns `true` if a sixteenth or less is left.
    pub fn is_low(self) -> bool {
        self.left <= self.of / 16
    }

    fn share(self) -> f64 {
        self.left as f64 / self.of.max(1) as f64
    }
}

/// The headroom where it is tightest; `None` if the kernel does not report it.
///
/// It considers the machine, and those cgroups (cgroup v2) from this process's upwards that have
/// a limit. Takes some 30 µs.
pub fn headroom() -> Option<Headroom> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let groups = cgroup::own().into_iter().flat_map(|own| of_groups(&own));
    machine.into_iter().chain(groups).min_by(|a, b| a.share().total_cmp(&b.share()))
}

/// The memory that this process can have, in bytes.
///
/// It is the machine's, or the least of the limits of its cgroups, of either version. A limit that
/// the kernel does not report is not considered.
pub fn limit() -> u64 {
    all().map(|headroom| headroom.of).min().unwrap_or(u64::MAX)
}

fn all() -> impl Iterator<Item = Headroom> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let groups = cgroup::own().into_iter().flat_map(|own| of_groups(&own));
    let first = cgroup::memory()
        .map(|(limit, used)| Headroom { left: limit.saturating_sub(used), of: limit });
    machine.into_iter().chain(groups).chain(first)
}

/// A number of proc_meminfo(5), which is in KiB, in bytes.
fn in_meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn of_machine(text: &str) -> Option<Headroom> {
    Some(Headroom { left: in_meminfo(text, "MemAvailable")?, of: in_meminfo(text, "MemTotal")? })
}

/// Bytes that this process can have without taking them from other processes.
///
/// They are what the machine has left, or the least that its cgroups have left, of either version.
/// A limit that the kernel does not report is not considered.
pub fn available() -> u64 {
    all().map(|headroom| headroom.left).min().unwrap_or(u64::MAX)
}

fn of_groups(own: &Path) -> Vec<Headroom> {
    own.ancestors()
        .take_while(|folder| folder.join("cgroup.procs").exists())
        .filter_map(of_group)
        .collect()
}

/// The headroom of a cgroup; `None` if it has no limit.
fn of_group(folder: &Path) -> Option<Headroom> {
    let number =
        |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max" is not a number.
    let of = number("memory.max")?;
    let used = number("memory.current")?;
    // The kernel drops unused pages of files before it ends a process.
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let inactive = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok());
    Some(Headroom { left: of.saturating_sub(used.saturating_sub(inactive.unwrap_or(0))), of })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_what_is_left() {
        let found = headroom().unwrap();
        assert!(found.left > 0 && found.left <= found.of, "{found:?}");
        assert!(available() > 1 << 20);
        assert!(limit() >= 1 << 20 && limit() <= found.of.max(limit()));
    }

    #[test]
    fn a_sixteenth_is_little() {
        let of = |left| Headroom { left, of: 1600 }.is_low();
        assert_eq!([of(0), of(100), of(101), of(1600)], [true, true, false, false]);
    }

    #[test]
    fn what_the_machine_says_is_understood() {
        let text = "MemTotal:       16 kB\nMemFree: 1 kB\nMemAvailable:    8 kB\n";
        assert_eq!(of_machine(text), Some(Headroom { left: 8192, of: 16384 }));
        assert_eq!(
            (of_machine("MemTotal: 16 kB"), of_machine("MemTotal: x kB\nMemAvailable: 1")),
            (None, None)
        );
    }

    #[test]
    fn groups_with_a_limit_are_found_up_to_the_top() {
        let top = std::env::temp_dir().join(format!("upcall-headroom-{}", std::process::id()));
        let write =
            |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        let (outer, inner) = (top.join("outer"), top.join("outer/inner"));
        fs::create_dir_all(&inner).unwrap();
        [&outer, &inner].iter().for_each(|folder| write(folder, "cgroup.procs", ""));
        write(&inner, "memory.max", "max\n");
        write(&inner, "memory.current", "5\n");
        write(&outer, "memory.max", "1000\n");
        write(&outer, "memory.current", "900\n");
        assert_eq!(of_groups(&inner), [Headroom { left: 100, of: 1000 }]);
        write(&outer, "memory.stat", "anon 3\ninactive_file 300\nactive_file 4\n");
        assert_eq!(of_groups(&inner), [Headroom { left: 400, of: 1000 }]);
        write(&outer, "memory.current", "2000\n");
        write(&inner, "memory.max", "10\n");
        assert_eq!(
            of_groups(&inner),
            [Headroom { left: 5, of: 10 }, Headroom { left: 0, of: 1000 }]
        );
        fs::remove_dir_all(&top).unwrap();
    }
}
