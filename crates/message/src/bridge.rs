//! Members on other hosts: their messages travel over links.
//!
//! # Design
//! - To the sending and receiving code of a group, a member on another host looks like a member on
//!   this host: it has a queue that this member writes and a queue that this member reads. The
//!   other end of both queues is the *bridge* of this process. The bridge moves messages from the
//!   first queue to a link ([`outward`]), and from the link to the second queue ([`inward`]). So
//!   handlers, upcalls, interrupts, waiting, diversion and barriers are those of one host.
//! - Each [`pair`] of members on two hosts has a link of its own (`upcall_net::link`), which
//!   survives cuts: each message arrives once and in order. One side of the pair connects and asks
//!   ([`opening`]). The connection, or what a cut has left of it, is the *way* ([`way`]). A pair
//!   whose connection is lost is opened again ([`reopening`]) while both sides have patience. After
//!   that the other member has ended.
//! - Long messages go past both queues: the sender writes them into the body of a frame, and the
//!   receiver reads them in the body that has arrived.
//! - Messages travel in batches ([`batch`]). The reports of barriers and reductions, which are
//!   words beside a queue, travel between the messages that were sent before and after them.
//! - A member that loses another one reports that to all others over their links ([`losses`]).
//! - Messages that a member does not take wait on the sender's host, but for a window ([`room`]).
//!   So a sender that floods a receiver on another host is stopped as on one host.
//! - Members find each other at an address ([`meeting`]), and admit only processes of hosts that
//!   this user trusts ([`admission`]). What they ask each other is in [`requests`]. Members may
//!   join after the group has formed ([`late`]).
//!
//! A module imports only from modules above it in this list: [`batch`], [`room`], [`pace`],
//! [`pass`], [`losses`], [`admitted`]; [`home`], [`way`], [`requests`], [`inward`], [`outward`];
//! [`pair`], [`reopening`], [`opening`], [`late`], [`gate`], [`admission`], [`thread`],
//! [`applying`], [`petitioning`], [`meeting`].
//!
//! # Threads
//! The bridge has a thread ([`thread`]), which sleeps at a post as a receiver of messages does. The
//! doorbells of the first queues wake it; [`upcall_sched::post`] argues that no wake is lost.
//! Everything else that it has to look at wakes it by [`home::BridgeHome::rouse`], whose flag it
//! clears before it looks. The driver's thread of `upcall_net` passes on what arrives.
//!
//! A message that is sent alone need not wait for the thread: its sender moves it to the link by
//! itself ([`pace`]).
//!
//! # Differences from one host
//! A process that is killed takes messages with it that the bridge has not sent. A process that
//! leaves its group waits until the other side has them. A message has at most as many bytes as a
//! body ([`most`]).
//!
//! Source: UDM, sections 3.1 and 3.3, for the queues and the rule of overflow. There the network
//! interface stores a message between nodes; here the bridge does.

mod admission;
mod admitted;
mod applying;
mod batch;
mod gate;
mod home;
mod inward;
mod late;
mod losses;
mod meeting;
mod opening;
mod outward;
mod pace;
mod pair;
mod pass;
mod petitioning;
mod reopening;
mod requests;
mod room;
mod thread;
mod way;

pub(crate) use home::{AcrossHosts, most};
pub(crate) use meeting::GroupMeeting;
pub use petitioning::{petition, petition_interruptible};

#[cfg(all(test, not(miri)))]
mod late_tests;
#[cfg(all(test, not(miri)))]
mod opening_tests;
#[cfg(all(test, not(miri)))]
mod tests;
