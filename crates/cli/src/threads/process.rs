//! The information of `/proc` about a process: its state, its kernel threads, and the files that it
//! maps.

use super::error::InspectError;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A part of a process's address space to which a file, or the kernel's own code (`[vdso]`), is
/// mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedRange {
    pub start: u64,
    pub end: u64,
    /// The offset in the file.
    pub offset: u64,
    pub executable: bool,
    /// Identifies the file, together with the path.
    pub inode: u64,
    pub path: PathBuf,
}

/// The range in one line of `/proc/PID/maps`; `None` if the range has no name.
fn mapping(line: &str) -> Option<MappedRange> {
    // Five words with one space after each; the path is the rest, and may contain spaces.
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let (flags, offset, _device) = (words.next()?, words.next()?, words.next()?);
    let inode = words.next()?.parse().ok()?;
    let path = words.next()?.trim_start();
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end, offset) = (hex(start)?, hex(end)?, hex(offset)?);
    let named = path.starts_with('/') || path == "[vdso]";
    (named && start < end).then(|| MappedRange {
        start,
        end,
        offset,
        executable: flags.contains('x'),
        inode,
        path: path.into(),
    })
}

/// A process, as `/proc` described it a moment ago.
pub struct TargetProcess {
    pub pid: u32,
    /// The name of the program.
    pub program: String,
    pub mappings: Vec<MappedRange>,
    /// The process is in another PID namespace, where its threads have other numbers.
    foreign_numbers: bool,
}

impl TargetProcess {
    pub fn find(pid: u32) -> Result<Self, InspectError> {
        let status = Status::read(&format!("/proc/{pid}/status"))
            .map_err(|error| InspectError::kernel(pid, "read the status", error))?;
        if matches!(status.state, 'Z' | 'X') && lives(pid).is_empty() {
            return Err(InspectError::Ended(pid));
        }
        let maps = fs::read(format!("/proc/{pid}/maps"))
            .map_err(|error| InspectError::kernel(pid, "read the memory map", error))?;
        let mappings = String::from_utf8_lossy(&maps).lines().filter_map(mapping).collect();
        Ok(Self { pid, program: status.name, mappings, foreign_numbers: status.numbers.len() > 1 })
    }

    /// Opens a file that the process maps. The file may be in another mount namespace, and may have
    /// been deleted or replaced since.
    pub fn open(&self, mapping: &MappedRange) -> io::Result<File> {
        let MappedRange { start, end, path, .. } = mapping;
        // The mapping itself is always the right file, but needs CAP_CHECKPOINT_RESTORE.
        let by_mapping = format!("/proc/{}/map_files/{start:x}-{end:x}", self.pid);
        let exe = PathBuf::from(format!("/proc/{}/exe", self.pid));
        if let Ok(file) = File::open(by_mapping) {
            return Ok(file);
        }
        if fs::read_link(&exe).is_ok_and(|link| link == *path) {
            return File::open(exe);
        }
        if path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)") {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the file was deleted or replaced since",
            ));
        }
        let inside = path.strip_prefix("/").unwrap_or(path);
        File::open(Path::new(&format!("/proc/{}/root", self.pid)).join(inside))
    }

    /// The kernel threads of the process now.
    pub fn tasks(&self) -> io::Result<Vec<u32>> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// Returns `true` if kernel thread `tid` has ended and only its number is left.
    pub fn is_dead(&self, tid: u32) -> bool {
        Status::read(&format!("/proc/{}/task/{tid}/status", self.pid))
            .map_or(true, |status| matches!(status.state, 'Z' | 'X'))
    }

    /// Returns `true` if kernel thread `tid` waits in a system call that nothing interrupts.
    pub fn is_uninterruptible(&self, tid: u32) -> bool {
        Status::read(&format!("/proc/{}/task/{tid}/status", self.pid))
            .is_ok_and(|status| status.state == 'D')
    }

    /// The name of kernel thread `tid`, as the kernel has it: at most 15 bytes.
    pub fn name_of(&self, tid: u32) -> Option<String> {
        let name = fs::read(format!("/proc/{}/task/{tid}/comm", self.pid)).ok()?;
        Some(String::from_utf8_lossy(&name).trim_end().into())
    }

    /// The tracer of kernel thread `tid`; 0 if there is none.
    pub fn tracer(&self, tid: u32) -> u32 {
        Status::read(&format!("/proc/{}/task/{tid}/status", self.pid))
            .map_or(0, |status| status.tracer)
    }

    /// The number of kernel thread `tid` in the process's own PID namespace.
    pub fn own_number(&self, tid: u32) -> u32 {
        if !self.foreign_numbers {
            return tid;
        }
        let status = Status::read(&format!("/proc/{}/task/{tid}/status", self.pid));
        status.ok().and_then(|status| status.numbers.last().copied()).unwrap_or(tid)
    }
}

/// The kernel threads of `pid` that have not ended.
fn lives(pid: u32) -> Vec<u32> {
    let process =
        TargetProcess { pid, program: String::new(), mappings: Vec::new(), foreign_numbers: false };
    process.tasks().unwrap_or_default().into_iter().filter(|&tid| !process.is_dead(tid)).collect()
}

/// The fields of a `status` file that are used.
struct Status {
    name: String,
    state: char,
    tracer: u32,
    /// The numbers of the thread, from this PID namespace to the thread's own.
    numbers: Vec<u32>,
}

impl Status {
    fn read(path: &str) -> io::Result<Self> {
        let text = fs::read(path)?;
        let text = String::from_utf8_lossy(&text);
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
        Ok(Self {
            name: field("Name:").into(),
            state: field("State:").chars().next().unwrap_or('?'),
            tracer: field("TracerPid:").parse().unwrap_or(0),
            numbers: field("NSpid:")
                .split_whitespace()
                .filter_map(|number| number.parse().ok())
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_map() {
        let line = "5581a0-5581b000 r-xp 00036000 fe:00 1573 /a folder/pro gram (deleted)";
        let found = mapping(line).expect("a file");
        assert_eq!(
            (found.start, found.end, found.offset, found.inode),
            (0x5581a0, 0x5581b000, 0x36000, 1573)
        );
        assert!(found.executable && found.path == Path::new("/a folder/pro gram (deleted)"));
        for nothing in [
            "7f00-7f10 rw-p 00000000 00:00 0 ",
            "7f00-7f10 rw-p 00000000 00:00 0 [heap]",
            "7f10-7f00 r--p 0 00:00 1 /x",
            "",
            "x-y",
        ] {
            assert_eq!(mapping(nothing), None, "{nothing:?}");
        }
    }
}
