//! The control group (cgroup v2) that this process is in.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the cgroup; `None` if version 2 is not mounted.
pub fn own() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    folder_of(path, &mounts)
}

/// Memory limit and use of this process's cgroup of version 1, in bytes.
///
/// `None` if there is none.
///
/// The limit is the smallest of the cgroup's own and those around it.
pub fn memory() -> Option<(u64, u64)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.split_once(":memory:")).map(|(_, path)| path)?;
    let mounted = Path::new("/sys/fs/cgroup/memory");
    // In a container, the mounted folder may be that of our own cgroup.
    let folders = [mounted.join(own.trim_start_matches('/')), mounted.into()];
    folders.iter().find_map(|folder| {
        let stat = fs::read_to_string(folder.join("memory.stat")).ok()?;
        let number = |name: &str| {
            stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let used = fs::read_to_string(folder.join("memory.usage_in_bytes"))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()?;
        // The kernel drops unused pages of files before it ends a process.
        let idle = number("total_inactive_file ").unwrap_or(0);
        Some((number("hierarchical_memory_limit ")?, used.saturating_sub(idle)))
    })
}

/// The folder of a cgroup, by proc_pid_mountinfo(5).
fn folder_of(path: &str, mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if !kind.starts_with("cgroup2 ") {
            return None;
        }
        let mut words = mount.split(' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        let below = path.strip_prefix(root.trim_end_matches('/'))?;
        Some(Path::new(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroup_is_found() {
        let mounts = "36 25 0:31 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro\n\
            37 36 0:32 / /sys/fs/cgroup/unified rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(folder_of("/", mounts), Some("/sys/fs/cgroup/unified/".into()));
        assert_eq!(folder_of("/a/b", mounts), Some("/sys/fs/cgroup/unified/a/b".into()));
        let part = "37 36 0:32 /box /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(folder_of("/box/a", part), Some("/sys/fs/cgroup/a".into()));
        assert_eq!(folder_of("/elsewhere", part), None);
        assert_eq!(folder_of("/", "36 25 0:31 / /sys ro - sysfs sysfs ro\n"), None);
    }
}
