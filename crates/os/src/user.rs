//! Users by name.

use crate::group::{text, with_room};
use std::ffi::{CString, c_char};
use std::io;
use std::ptr;

/// The number of the user with this name.
///
/// It is looked up where the system keeps its users (nsswitch.conf(5)).
///
/// # Errors
/// There is no such user (`NotFound`), or the system's list of users cannot be read.
///
/// # Blocks
/// For as long as the system takes; users may be kept on another machine.
pub fn number_of(name: &str) -> io::Result<u32> {
    let wanted = CString::new(name)?;
    let found = look_up(|user, room, found| {
        // SAFETY: `wanted` ends in a zero; `user`, `room` and `found` are valid for writes of the
        // sizes that are passed.
        unsafe { libc::getpwnam_r(wanted.as_ptr(), user, room.as_mut_ptr(), room.len(), found) }
    });
    found?.map(|(number, _)| number).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("there is no user {name:?}"))
    })
}

/// The name of the user with this number; `None` if the system knows none.
///
/// # Blocks
/// As [`number_of`].
pub fn name_of(number: u32) -> Option<String> {
    let found = look_up(|user, room, found| {
        // SAFETY: `user`, `room` and `found` are valid for writes of the sizes that are passed.
        unsafe { libc::getpwuid_r(number, user, room.as_mut_ptr(), room.len(), found) }
    });
    found.ok().flatten().map(|(_, name)| name)
}

/// The number and the name of the user that `ask` finds.
fn look_up(
    mut ask: impl FnMut(&mut libc::passwd, &mut [c_char], &mut *mut libc::passwd) -> i32,
) -> io::Result<Option<(u32, String)>> {
    with_room(|room| {
        let mut user = libc::passwd {
            pw_name: ptr::null_mut(),
            pw_passwd: ptr::null_mut(),
            pw_uid: 0,
            pw_gid: 0,
            pw_gecos: ptr::null_mut(),
            pw_dir: ptr::null_mut(),
            pw_shell: ptr::null_mut(),
        };
        let mut found = ptr::null_mut();
        match ask(&mut user, room, &mut found) {
            0 if found.is_null() => Ok(None),
            // SAFETY: the record was found, so its name is a text in `room` that ends in a zero.
            0 => Ok(Some((user.pw_uid, unsafe { text(user.pw_name) }))),
            error => Err(error),
        }
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_number() {
        assert_eq!(number_of("root").unwrap(), 0);
        assert_eq!(number_of("no such user").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(number_of("a\0b").is_err());
        assert_eq!(name_of(0).as_deref(), Some("root"));
        assert_eq!(name_of(u32::MAX - 7), None);
    }
}
