//! Ready-made policies: which users a server lets in, or a client accepts.
//!
//! A policy is a function of a [`Peer`], whose fields are the kernel's word. It accepts the peer,
//! or gives the reason why it does not. Both sides of a binding have one:
//!
//! | side | set by | if none is set |
//! |---|---|---|
//! | server | `Server::policy` | [`own_user`] |
//! | client | `expect` of the client | [`own_user_or_root`] |
//!
//! A peer on another host has proved its name, and is trusted to call servers of this user (`upcall
//! host trust`). [`own_user`], [`hosts`] and [`any_user`] accept such peers. The other policies
//! refuse them.
//!
//! These policies refuse the overflow number: the kernel shows every user without a number in this
//! user namespace under that one, so it is not known which user it is. [`any_user`] accepts it.

use std::collections::BTreeSet;
use upcall_os::socket::{self, Peer};

/// A function that accepts a peer, or gives the reason why not.
pub type Policy = dyn Fn(&Peer) -> Result<(), String> + Send + Sync;

/// The peer's user, if it is known.
fn user(peer: &Peer) -> Result<u32, String> {
    if let Some(host) = &peer.host {
        return Err(format!("the peer is on the host {host}, accepted are processes of this one"));
    }
    let unknown = || {
        format!(
            "the peer's user has no number in this user namespace ({} stands for all such)",
            peer.uid
        )
    };
    peer.user().ok_or_else(unknown)
}

/// The reason why a peer's user is not accepted.
fn refused(found: u32, accepted: &str) -> Result<(), String> {
    Err(format!("the peer is user {found}, accepted is {accepted}"))
}

fn plural(what: &str, number: usize) -> String {
    if number == 1 { what.into() } else { format!("{what}s") }
}

/// Accepts peers of this process's own effective user, and the hosts that this user trusts to call.
pub fn own_user() -> impl Fn(&Peer) -> Result<(), String> + Clone + Send + Sync + 'static {
    |peer| match peer.host {
        Some(_) => Ok(()),
        None => is_own_user(peer),
    }
}

fn is_own_user(peer: &Peer) -> Result<(), String> {
    match (user(peer)?, socket::own_user()) {
        (found, own) if found == own => Ok(()),
        (found, own) => refused(found, &format!("user {own}")),
    }
}

/// Accepts peers on these hosts, by the names under which they are trusted here.
pub fn hosts<Name: Into<String>>(
    hosts: impl IntoIterator<Item = Name>,
) -> impl Fn(&Peer) -> Result<(), String> + Clone + Send + Sync + 'static {
    let hosts: BTreeSet<String> = hosts.into_iter().map(Into::into).collect();
    move |peer| match &peer.host {
        Some(host) if hosts.contains(&**host) => Ok(()),
        found => {
            let found =
                found.as_ref().map_or("this host".into(), |host| format!("the host {host}"));
            let all = hosts.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            Err(format!(
                "the peer is on {found}, accepted is {} {all}",
                plural("host", hosts.len())
            ))
        }
    }
}

/// Accepts peers of this process's own effective user, and of root.
pub fn own_user_or_root() -> impl Fn(&Peer) -> Result<(), String> + Clone + Send + Sync + 'static {
    |peer| match (user(peer)?, socket::own_user()) {
        (found, own) if found == own || found == 0 => Ok(()),
        (found, own) => refused(found, &format!("user {own} or root")),
    }
}

/// Accepts peers of these effective users.
pub fn users(
    users: impl IntoIterator<Item = u32>,
) -> impl Fn(&Peer) -> Result<(), String> + Clone + Send + Sync + 'static {
    let users: BTreeSet<u32> = users.into_iter().collect();
    move |peer| match user(peer)? {
        found if users.contains(&found) => Ok(()),
        found => refused(found, &format!("{} {}", plural("user", users.len()), list(&users))),
    }
}

/// Accepts peers that have one of these groups, effective or supplementary.
pub fn groups(
    groups: impl IntoIterator<Item = u32>,
) -> impl Fn(&Peer) -> Result<(), String> + Clone + Send + Sync + 'static {
    let groups: BTreeSet<u32> = groups.into_iter().collect();
    move |peer| {
        let found = user(peer)?;
        let mut own = peer.groups.iter().chain([&peer.gid]);
        match own.any(|group| groups.contains(group)) {
            true => Ok(()),
            false => {
                let groups = format!("{} {}", plural("group", groups.len()), list(&groups));
                refused(found, &format!("a member of {groups}"))
            }
        }
    }
}

/// Accepts peers that at least one of these policies accepts.
pub fn any_of(
    policies: impl IntoIterator<Item = Box<Policy>>,
) -> impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static {
    let policies: Vec<Box<Policy>> = policies.into_iter().collect();
    move |peer| {
        let mut reasons: Vec<String> = Vec::new();
        for policy in &policies {
            match policy(peer) {
                Ok(()) => return Ok(()),
                Err(reason) if reasons.contains(&reason) => {}
                Err(reason) => reasons.push(reason),
            }
        }
        Err(if reasons.is_empty() { "no process is accepted".into() } else { reasons.join("; ") })
    }
}

/// Accepts every peer.
pub fn any_user() -> impl Fn(&Peer) -> Result<(), String> + Clone + Send + Sync + 'static {
    |_| Ok(())
}

fn list(numbers: &BTreeSet<u32>) -> String {
    match numbers.is_empty() {
        true => "(none)".into(),
        false => numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Peer {
        Peer { gid, groups: groups.into(), ..Peer::of_user(uid) }
    }

    #[test]
    fn users_are_accepted_by_number() {
        let own = socket::own_user();
        let stranger = peer(own + 1, 1, &[]);
        assert!(own_user()(&peer(own, 1, &[])).is_ok());
        let found = own_user()(&stranger).unwrap_err();
        assert_eq!(found, format!("the peer is user {}, accepted is user {own}", own + 1));
        assert!(
            own_user_or_root()(&peer(0, 0, &[])).is_ok() && own_user_or_root()(&stranger).is_err()
        );
        assert!(users([7, own + 1])(&stranger).is_ok());
        assert!(users([7, 8])(&stranger).unwrap_err().ends_with("accepted is users 7, 8"));
        assert!(users([])(&stranger).is_err() && any_user()(&stranger).is_ok());
    }

    #[test]
    fn groups_are_accepted_whether_effective_or_supplementary() {
        let accepts = groups([10, 20]);
        assert!(accepts(&peer(1, 10, &[])).is_ok() && accepts(&peer(1, 1, &[5, 20])).is_ok());
        assert!(accepts(&peer(1, 1, &[5])).unwrap_err().contains("groups 10, 20"));
    }

    #[test]
    fn one_of_several_policies_suffices() {
        let accepts = any_of([Box::new(users([7])) as Box<Policy>, Box::new(groups([10]))]);
        assert!(accepts(&peer(7, 1, &[])).is_ok() && accepts(&peer(1, 10, &[])).is_ok());
        let refused = accepts(&peer(1, 1, &[])).unwrap_err();
        assert!(refused.contains("user 7; ") && refused.contains("group 10"), "{refused}");
        assert_eq!(any_of([])(&peer(7, 10, &[])).unwrap_err(), "no process is accepted");
    }
}
