//! A virtual processor's posts: the groups whose messages it looks for
//! ([`arrivals`](crate::arrivals)).

use crate::arrivals::Arrivals;
use crate::look;
use crate::sleep;
use std::rc::Rc;
use upcall_shm::station::StationLine;
use upcall_thread::Found;

/// Number of looks in a row.
pub(super) const LOOKS: usize = 16;

/// Those that a processor looks at.
pub(super) type Posts = Rc<[Rc<dyn Arrivals>]>;

/// Looks at them.
#[derive(Default)]
pub(super) struct Attending {
    pub(super) posts: Posts,
    /// The next look begins there.
    turn: usize,
    /// Which has handlers to run.
    due: Option<Rc<dyn Arrivals>>,
    /// The last work that was found was a call's.
    pub(super) first: bool,
    /// There is no stack for handlers; when there is, the processor looks again.
    starved: bool,
}

impl Attending {
    /// One look at each, or several in a row if there is nothing else to look at.
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

    /// Looks at these too from now on.
    pub(super) fn attend(&mut self, arrivals: Rc<dyn Arrivals>) {
        self.posts = self.posts.iter().cloned().chain([arrivals]).collect();
    }

    /// Looks at these no longer. Returns what is to be dropped after the view is given back.
    pub(super) fn attend_no_more(&mut self, arrivals: &Rc<dyn Arrivals>) -> impl Sized + use<> {
        let is_it = |other: &Rc<dyn Arrivals>| Rc::ptr_eq(other, arrivals);
        let rest = self.posts.iter().filter(|post| !is_it(post)).cloned().collect();
        (self.due.take_if(|due| is_it(due)), std::mem::replace(&mut self.posts, rest))
    }

    /// The work that was found, if it is of this kind.
    #[inline]
    pub(super) fn due(&mut self) -> Option<Rc<dyn Arrivals>> {
        self.due.take()
    }

    /// The sleeper's second look.
    pub(super) fn waits(&self) -> bool {
        !self.starved && self.posts.iter().any(|post| post.waits())
    }

    /// Whether a busy processor is to look soon.
    #[inline]
    pub(super) fn is_pressed(&self) -> bool {
        !self.posts.is_empty() && self.waits()
    }
}

/// Announces a sleep to all callers, and to the senders at these posts. False if those may not have
/// been fenced: then it must not be a long one.
pub(super) fn announce(line: &StationLine, posts: &Posts) -> bool {
    if posts.is_empty() {
        sleep::announce_another(&line.asleep, &line.sleeps);
        return true;
    }
    posts.iter().for_each(|post| post.post().announce_with_others());
    sleep::announce_to_all(&line.asleep, &line.sleeps)
}

/// The sleep is over.
pub(super) fn retract(line: &StationLine, posts: &Posts) {
    sleep::retract(&line.asleep);
    posts.iter().for_each(|post| post.post().retract());
}
