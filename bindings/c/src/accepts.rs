//! Which processes are accepted at the other end of a binding: `upcall_policy` and
//! `upcall_accepts`.

use crate::error::Problem;
use std::ffi::c_void;
use std::slice;
use upcall_os::socket::Peer;
use upcall_rpc::policy::{self, Policy};

/// `upcall_policy`.
pub type PolicyFn = unsafe extern "C" fn(*mut c_void, u32, u32, u32) -> bool;

/// `upcall_accepts`.
#[repr(C)]
pub struct CAccepts {
    /// A byte, since C writes it.
    any_user: u8,
    users: *const u32,
    user_count: usize,
    groups: *const u32,
    group_count: usize,
    policy: Option<PolicyFn>,
    context: *mut c_void,
}

/// A policy in C, with its context.
struct CPolicy {
    policy: PolicyFn,
    context: *mut c_void,
}

// SAFETY: per the header, the policy is called on threads of the library.
unsafe impl Send for CPolicy {}
// SAFETY: per the header. A server calls its policy on one thread at a time (`Endpoint::admits`),
// and a client only while it binds.
unsafe impl Sync for CPolicy {}

impl CPolicy {
    fn accepts(&self, peer: &Peer) -> Result<(), String> {
        // SAFETY: per the header, a function for this context, which lives as long as the policy
        // may be called.
        match unsafe { (self.policy)(self.context, peer.uid, peer.gid, peer.pid) } {
            true => Ok(()),
            false => Err("its policy does not admit it".to_owned()),
        }
    }
}

/// A policy that calls a function in C.
pub(crate) fn asking(
    policy: PolicyFn,
    context: *mut c_void,
) -> impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static {
    let asked = CPolicy { policy, context };
    move |peer| asked.accepts(peer)
}

/// Copies the numbers of a list in C.
///
/// # Safety
/// `count` numbers lie at `first`, or it is null.
unsafe fn numbers(first: *const u32, count: usize, what: &str) -> Result<Vec<u32>, Problem> {
    match count {
        0 => Ok(Vec::new()),
        _ if first.is_null() => {
            Err(Problem::misuse(format!("there are {count} {what}, but their pointer is NULL")))
        }
        // SAFETY: the caller's contract.
        _ => Ok(unsafe { slice::from_raw_parts(first, count) }.to_vec()),
    }
}

impl CAccepts {
    /// The policy for these members.
    ///
    /// # Safety
    /// The struct is as the header requires.
    pub(crate) unsafe fn policy(&self) -> Result<Box<Policy>, Problem> {
        // SAFETY: the caller's contract.
        let users = unsafe { numbers(self.users, self.user_count, "users") }?;
        // SAFETY: the caller's contract.
        let groups = unsafe { numbers(self.groups, self.group_count, "groups") }?;
        let mut policies: Vec<Box<Policy>> = Vec::new();
        if self.any_user != 0 {
            policies.push(Box::new(policy::any_user()));
        }
        if !users.is_empty() {
            policies.push(Box::new(policy::users(users)));
        }
        if !groups.is_empty() {
            policies.push(Box::new(policy::groups(groups)));
        }
        if let Some(policy) = self.policy {
            policies.push(Box::new(asking(policy, self.context)));
        }
        Ok(Box::new(policy::any_of(policies)))
    }
}
