//! Members that join after a group has formed. `include/upcall_message.h` documents the functions.

use crate::error::{CError, Problem, Status, guard_status, text};
use crate::group::{CGroup, CGroupBuilder, fill, say, with};
use std::ffi::c_char;
use std::ops::Range;
use std::ptr::NonNull;
use upcall_message::{Invitation, Rank, SendError};

/// Size of an invitation's text in bytes, including its NUL.
const TEXT: usize = Invitation::TEXT + 1;

/// `upcall_invitation`.
#[repr(C)]
pub struct CInvitation {
    text: [c_char; TEXT],
}

const _: () = assert!(size_of::<CInvitation>() == 65);

impl CInvitation {
    pub(crate) fn of(invitation: &Invitation) -> Self {
        Self { text: fill(&invitation.text()) }
    }
}

/// `count` ranks from `first` on.
pub(crate) fn ranks(first: usize, count: usize) -> Range<Rank> {
    first..first.saturating_add(count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_room(joining: *mut CGroupBuilder, more: usize) {
    // SAFETY: the header's contract.
    unsafe { say(joining, |joining| joining.room_for(more)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_late(
    joining: *mut CGroupBuilder,
    first: usize,
    count: usize,
    invitation: *const c_char,
    error: *mut CError,
) -> Status {
    let run = || {
        // SAFETY: per the header, null, or a builder that is not in use elsewhere.
        let joining =
            unsafe { joining.as_mut() }.ok_or_else(|| Problem::misuse("`joining` is NULL"))?;
        // SAFETY: per the header, a C string.
        let invitation = unsafe { text(invitation, "the invitation") }?;
        let invitation = Invitation::of_text(invitation).ok_or_else(|| {
            Problem::misuse(format!("an invitation has {} hexadecimal digits", Invitation::TEXT))
        })?;
        joining.0 = joining.0.clone().late(ranks(first, count), invitation);
        Ok(())
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_expect(
    group: *mut CGroup,
    first: usize,
    count: usize,
    invitation: *mut CInvitation,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        let to = NonNull::new(invitation)
            .ok_or_else(|| Problem::misuse("the pointer to the invitation is NULL"))?;
        let invitation = group.group.expect(ranks(first, count))?;
        // SAFETY: per the header the caller's; it need not be initialised.
        unsafe { to.write(CInvitation::of(&invitation)) };
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_expect_no_more(
    group: *mut CGroup,
    first: usize,
    count: usize,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        group.group.expect_no_more(&ranks(first, count));
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_expel(
    group: *mut CGroup,
    first: usize,
    count: usize,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        group.group.expel(&ranks(first, count));
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_has_joined(
    group: *const CGroup,
    rank: usize,
    joined: *mut bool,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        let to = NonNull::new(joined)
            .ok_or_else(|| Problem::misuse("the pointer to the answer is NULL"))?;
        let size = group.group.size();
        if rank >= size {
            return Err(SendError::NoSuchRank { rank, size }.into());
        }
        // SAFETY: per the header the caller's; it need not be initialised.
        unsafe { to.write(group.group.has_joined(rank)) };
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}
