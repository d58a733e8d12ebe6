//! A virtual processor's posts: the groups whose messages it probes for
//! ([`arrivals`](crate::arrivals)).

use crate::arrivals::Arrivals;
use crate::look;
use crate::sleep;
use std::rc::Rc;
use upcall_shm::station::StationLine;
use upcall_thread::Found;

/// Number of probes in a row.
pub(super) const LOOKS: usize = 16;

/// The arrivals that a processor probes for.
pub(super) type Posts = Rc<[Rc<dyn Arrivals>]>;

/// The probes for arrivals.
#[derive(Default)]
pub(super) struct Attending {
    pub(super) posts: Posts,
    /// The post at which the next probe begins.
    turn: usize,
    /// The arrivals with handlers to run.
    due: Option<Rc<dyn Arrivals>>,
    /// Set if the last work that was found was a call: messages come first now.
    pub(super) first: bool,
    /// Set if there is no stack for handlers. The processor probes again once there is one.
    starved: bool,
}

impl Attending {
    /// Probes each once, or several times in a row if there is nothing else to probe (`quiet`).
    pub(super) fn look(&mut self, has_stack: impl Fn() -> bool, quiet: bool) -> Found {
        let looks = if quiet { LOOKS } else { 1 };
        let mut found = Found::Nothing;
        self.starved = false;
        for _ in 0..looks {
            for step in 0..self.posts.len() {
                let at = (self.turn + step) % self.posts.len();
                match self.posts[at].look() {
                    Found::Nothing => {}
                    Found::Woke => found = Found::Woke,
                    Found::Work => {
                        self.starved = !has_stack();
                        if !self.starved {
                            (self.due, self.turn) = (Some(self.posts[at].clone()), at + 1);
                            return Found::Work;
                        }
                    }
                }
            }
            if found == Found::Woke {
                break;
            }
            if looks > 1 {
                look::again();
            }
        }
        found
    }

    /// Probes for these too from now on.
    pub(super) fn attend(&mut self, arrivals: Rc<dyn Arrivals>) {
        self.posts = self.posts.iter().cloned().chain([arrivals]).collect();
    }

    /// Stops probing for these. Returns what is to be dropped after the view is given back.
    pub(super) fn attend_no_more(&mut self, arrivals: &Rc<dyn Arrivals>) -> impl Sized + use<> {
        let is_it = |other: &Rc<dyn Arrivals>| Rc::ptr_eq(other, arrivals);
        let rest = self.posts.iter().filter(|post| !is_it(post)).cloned().collect();
        (self.due.take_if(|due| is_it(due)), std::mem::replace(&mut self.posts, rest))
    }

    /// Takes the arrivals with handlers to run, if the last probe found any.
    #[inline]
    pub(super) fn due(&mut self) -> Option<Rc<dyn Arrivals>> {
        self.due.take()
    }

    /// The sleeper's second probe.
    pub(super) fn waits(&self) -> bool {
        !self.starved && self.posts.iter().any(|post| post.waits())
    }

    /// Returns `true` if a busy processor is to probe soon.
    #[inline]
    pub(super) fn is_pressed(&self) -> bool {
        !self.posts.is_empty() && self.waits()
    }
}

/// Announces a sleep to all callers, and to the senders at these posts. Returns `false` if those
/// senders may not have made a fence: the sleep must then be short.
pub(super) fn announce(line: &StationLine, posts: &Posts) -> bool {
    if posts.is_empty() {
        sleep::announce_another(&line.asleep, &line.sleeps);
        return true;
    }
    posts.iter().for_each(|post| post.post().announce_with_others());
    sleep::announce_to_all(&line.asleep, &line.sleeps)
}

/// Marks the processor as awake for callers and senders.
pub(super) fn retract(line: &StationLine, posts: &Posts) {
    sleep::retract(&line.asleep);
    posts.iter().for_each(|post| post.post().retract());
}
