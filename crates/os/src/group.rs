//! Groups of users by name.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::ptr;

/// Maximum size of a group's or user's record that is read, in bytes.
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
    let found = look_up(|group, room, found| {
        // SAFETY: `wanted` ends in a zero; `group`, `room` and `found` are valid for writes of the
        // sizes that are passed.
        unsafe { libc::getgrnam_r(wanted.as_ptr(), group, room.as_mut_ptr(), room.len(), found) }
    });
    found?.map(|(number, _)| number).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("there is no group {name:?}"))
    })
}

/// The name of the group with this number; `None` if the system knows none.
///
/// # Blocks
/// As [`number_of`].
pub fn name_of(number: u32) -> Option<String> {
    let found = look_up(|group, room, found| {
        // SAFETY: `group`, `room` and `found` are valid for writes of the sizes that are passed.
        unsafe { libc::getgrgid_r(number, group, room.as_mut_ptr(), room.len(), found) }
    });
    found.ok().flatten().map(|(_, name)| name)
}

/// The number and the name of the group that `ask` finds.
fn look_up(
    mut ask: impl FnMut(&mut libc::group, &mut [c_char], &mut *mut libc::group) -> i32,
) -> io::Result<Option<(u32, String)>> {
    with_room(|room| {
        let mut group = libc::group {
            gr_name: ptr::null_mut(),
            gr_passwd: ptr::null_mut(),
            gr_gid: 0,
            gr_mem: ptr::null_mut(),
        };
        let mut found = ptr::null_mut();
        match ask(&mut group, room, &mut found) {
            0 if found.is_null() => Ok(None),
            // SAFETY: the record was found, so its name is a text in `room` that ends in a zero.
            0 => Ok(Some((group.gr_gid, unsafe { text(group.gr_name) }))),
            error => Err(error),
        }
    })
}

/// The text that ends in a zero at `from`.
///
/// # Safety
/// There is such a text, and no thread changes it during the call.
pub(crate) unsafe fn text(from: *const c_char) -> String {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_string_lossy().into_owned()
}

/// Calls `ask` with more and more room for a record until the record fits. `ask` returns what it
/// found, or the number of the system's error.
pub(crate) fn with_room<T>(mut ask: impl FnMut(&mut [c_char]) -> Result<T, i32>) -> io::Result<T> {
    let mut room: Vec<c_char> = vec![0; 1024];
    loop {
        match ask(&mut room) {
            Ok(found) => return Ok(found),
            Err(libc::ERANGE) if room.len() < MOST_BYTES => room.resize(room.len() * 2, 0),
            Err(libc::EINTR) => {}
            Err(error) => return Err(io::Error::from_raw_os_error(error)),
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
        assert_eq!(name_of(0).as_deref(), Some("root"));
        assert_eq!(name_of(u32::MAX - 7), None);
    }
}
