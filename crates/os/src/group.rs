//! Groups of users by name.

use std::ffi::{CString, c_char};
use std::io;
use std::ptr;

/// Maximum size of a group's record that is read, in bytes.
const MOST_BYTES: usize = 1 << 20;

/// The number of the group with this name.
///
/// It is looked up where the system keeps its groups (nsswitch.conf(5)).
///
/// # Errors
/// There is no such group (`NotFound`), or the system's list of groups cannot be read.
///
/// # Blocks
/// For as long as the system takes; groups may be kept on another machine.
pub fn number_of(name: &str) -> io::Result<u32> {
    let wanted = CString::new(name)?;
    let mut room: Vec<c_char> = vec![0; 1024];
    loop {
        let mut group = libc::group {
            gr_name: ptr::null_mut(),
            gr_passwd: ptr::null_mut(),
            gr_gid: 0,
            gr_mem: ptr::null_mut(),
        };
        let mut found = ptr::null_mut();
        // SAFETY: `wanted` ends in a zero; `group`, `room` and `found` are valid for writes of the
        // sizes that are passed.
        let error = unsafe {
            libc::getgrnam_r(
                wanted.as_ptr(),
                &raw mut group,
                room.as_mut_ptr(),
                room.len(),
                &raw mut found,
            )
        };
        match error {
            0 if found.is_null() => {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("there is no group {name:?}"),
                ));
            }
            0 => return Ok(group.gr_gid),
            libc::ERANGE if room.len() < MOST_BYTES => room.resize(room.len() * 2, 0),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name() {
        assert_eq!(number_of("root").unwrap(), 0);
        assert_eq!(number_of("no such group").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(number_of("a\0b").is_err());
    }
}
