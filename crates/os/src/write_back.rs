//! Files on their way to the disk.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Lets the kernel begin to write a range of a file to the disk, and does not wait for that.
///
/// A later `fsync` then has less to wait for. Nothing else depends on it: a file system that cannot
/// do this does nothing.
pub fn begin(file: &File, at: u64, bytes: u64) {
    let (Ok(at), Ok(bytes)) = (at.try_into(), bytes.try_into()) else { return };
    // SAFETY: the descriptor is open as long as the borrowed file, and the call takes no address.
    _ = unsafe { libc::sync_file_range(file.as_raw_fd(), at, bytes, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_file_is_as_it_was_whatever_the_range() {
        let name = format!("upcall-write-back-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut file = File::create(&path).unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        for (at, bytes) in [(0, 100_000), (50_000, 1 << 40), (1 << 40, 1), (u64::MAX, u64::MAX)] {
            begin(&file, at, bytes);
        }
        let (reader, _writer) = std::io::pipe().unwrap();
        begin(&File::from(std::os::fd::OwnedFd::from(reader)), 0, 1);
        let mut found = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut found).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(found, [7; 100_000]);
    }
}
