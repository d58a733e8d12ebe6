//! Names and deaths: how domains find each other, and learn of each other's end.
//!
//! What: a name is a socket in a folder ([`names`]); a policy says which users' processes are
//! accepted ([`policy`]); a process can wait for a name ([`absent`]); the error for an unknown name
//! proposes a similar one ([`nearby`]); the clerk is the kernel thread of each domain that serves
//! its sockets and learns of the end of peers ([`clerk`]; LRPC, section 3.1).
//!
//! What not: what is exported under a name. Calls, groups, homes, jobs and virtual machines each
//! have a protocol of their own on the socket.
#![forbid(unsafe_code)]

pub mod absent;
pub mod clerk;
pub mod names;
pub mod nearby;
pub mod policy;
