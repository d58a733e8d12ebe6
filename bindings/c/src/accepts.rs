//! Which processes are accepted at the other end of a binding: `upcall_policy` and
//! `upcall_accepts`.

use crate::error::Problem;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;
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

thread_local! {
    /// The host of the peer that a policy on this thread is asked about.
    static HOST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Calls a policy about a peer on this host.
fn about(host: Option<&str>, ask: impl FnOnce() -> bool) -> bool {
    // A name of a host has no zero.
    let host = host.and_then(|host| CString::new(host).ok());
    let before = HOST.replace(host);
    let said = ask();
    HOST.set(before);
    said
}

/// The pointer is valid while the policy runs: only [`about`] replaces the text.
#[unsafe(no_mangle)]
pub extern "C" fn upcall_policy_host() -> *const c_char {
    HOST.with_borrow(|host| host.as_ref().map_or(ptr::null(), |host| host.as_ptr()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_admits_hosts(
    context: *mut c_void,
    _user: u32,
    _group: u32,
    _process: u32,
) -> bool {
    let mut next = context.cast::<*const c_char>().cast_const();
    HOST.with_borrow(|host| {
        let Some(host) = host.as_deref().filter(|_| !next.is_null()) else { return false };
        loop {
            // SAFETY: per the header, an array of pointers that a null pointer ends.
            let name = unsafe { next.read() };
            if name.is_null() {
                return false;
            }
            // SAFETY: per the header, a C string.
            if unsafe { CStr::from_ptr(name) } == host {
                return true;
            }
            // SAFETY: the array goes on, since this was not its end.
            next = unsafe { next.add(1) };
        }
    })
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
        let ask = || {
            // SAFETY: per the header, a function for this context, which lives as long as the
            // policy may be called.
            unsafe { (self.policy)(self.context, peer.uid, peer.gid, peer.pid) }
        };
        match about(peer.host.as_deref(), ask) {
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
