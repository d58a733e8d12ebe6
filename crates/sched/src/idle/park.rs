//! A virtual processor parks: it announces that it sleeps, probes a second time, and sleeps until
//! it is notified.
//!
//! Why no wake is lost: [`sleep`](crate::sleep). The second probe covers all lanes, those of other
//! processors too, because callers notify only the home processor of their channel.

use super::group::PollingIdle;
use super::own::{number, say_where};
use super::posts;
use super::timer::OWN_TIMER;
use super::view::{ProcessorView, VIEW};
use crate::domain::Domain;
use crate::pacing::LONGEST;
use crate::placed::NOWHERE;
use crate::poller::{ParkPlace, WakeReason, Wakeup};
use crate::post::SHORT;
use std::io;
use std::time::Instant;
use upcall_os::atomic::Ordering;
use upcall_os::fault::{Point, point};
use upcall_os::poll::{PollReady, PollSet};
use upcall_os::processor;
use upcall_thread::Vp;

impl ProcessorView {
    /// Sets the timer for the next stall check, or else for `cools_at`, when stacks of idle workers
    /// are given back. It is set once for each such time, since a system call costs each sleep half
    /// a microsecond.
    ///
    /// Stacks may wait for a stall check: it comes within half a second.
    fn set_timer(&mut self, cools_at: Option<Instant>, set: &PollSet) {
        if let Some(pause) = self.stall_checks.next(&self.scan.vp_lanes) {
            if !self.timer.set(pause, None, set) {
                self.stall_checks.begin_again();
            }
        } else if let Some(at) = cools_at
            && !self.stall_checks.is_next()
            && self.timer.cools_at() != Some(at)
        {
            self.timer.set(at.saturating_duration_since(Instant::now()), Some(at), set);
        }
    }

    /// Makes the stall checks, because the timer has expired.
    fn timer_expired(&mut self) {
        self.stall_checks.check(&self.scan.vp_lanes);
    }
}

impl PollingIdle {
    pub(super) fn park(&self, vp: &Vp, deadline: Option<Instant>) {
        let domain = self.group.domain;
        let Some((number, wake_set)) =
            number().and_then(|number| Some((number, domain.wake_set(number).ok()?)))
        else {
            // A processor without a number cannot be woken; it probes again and again, but not
            // often.
            return std::thread::sleep(LONGEST);
        };
        let line = domain.station().line(number);
        let (generation, posts, duties) = VIEW.with_borrow_mut(|view| {
            let confined = match view.poller.parks(&view.scan) {
                ParkPlace::Here => Ok(()),
                ParkPlace::Near(cpu) => park_near(domain, number, cpu),
                ParkPlace::Home(home) => {
                    let _ = home.confine();
                    // A donor that brought this processor somewhere must not believe that it is
                    // still there when the donor wakes it.
                    line.cpu.store(NOWHERE, Ordering::Relaxed);
                    Ok(())
                }
            };
            if confined.is_err() {
                view.poller.not_near();
            }
            view.set_timer(vp.cools_at(), &wake_set.set);
            (view.scan.generation, view.scan.attending.posts.clone(), view.duties.clone())
        });
        posts.iter().for_each(|post| post.falls_asleep());
        self.announce_duties(vp, line, &duties);
        let fenced = posts::announce(line, &posts);
        point(Point::Sleeps);
        let busy = vp.has_work()
            || domain.generation() != generation
            || VIEW.with_borrow(|view| view.waits(self, vp));
        let retract = || {
            posts::retract(line, &posts);
            self.retract_duties(vp, &duties);
        };
        if busy {
            retract();
            say_where(domain, number);
            return;
        }
        let start = Instant::now();
        let heard = wait(vp, &wake_set.set, deadline, fenced);
        retract();
        if heard.key {
            vp.cool();
            VIEW.with_borrow_mut(ProcessorView::timer_expired);
        }
        let said = line.cpu.load(Ordering::Relaxed);
        let cpu = say_where(domain, number);
        let now = Instant::now();
        let has_passed = deadline.is_some_and(|at| now >= at);
        let reason = if has_passed { WakeReason::Deadline } else { WakeReason::Notified };
        let woken = Wakeup { said, cpu, slept: now.saturating_duration_since(start), reason };
        VIEW.with_borrow_mut(|view| view.woke(woken));
    }
}

/// Moves to the CPU of a caller that may not move the virtual processor there. The caller sees the
/// move by the published CPU.
#[cold]
fn park_near(domain: &Domain, number: usize, cpu: u32) -> io::Result<()> {
    let confined = processor::CpuSet::only(cpu as usize).confine();
    say_where(domain, number);
    confined
}

/// Waits until the processor is notified, or until the deadline. If not all senders have been
/// `fenced`, the wait is short.
fn wait(vp: &Vp, set: &PollSet, deadline: Option<Instant>, fenced: bool) -> PollReady {
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let left = if fenced { left } else { Some(left.unwrap_or(SHORT).min(SHORT)) };
        let heard = set.wait_any(left, OWN_TIMER);
        // Only its own timer woke the processor. It is still announced as asleep, so a waker
        // notifies it, and the next wait returns.
        if !heard.key || heard.others || !fenced {
            return heard;
        }
        vp.cool();
        VIEW.with_borrow_mut(|view| {
            view.timer_expired();
            view.set_timer(vp.cools_at(), set);
        });
    }
}
