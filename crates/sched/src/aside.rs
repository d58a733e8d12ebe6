//! Work for a client that the client's own operations can prolong, on a thread beside the clerk.
//!
//! Each account has at most one such kernel thread, which exists while there is work and does the
//! work in order. A client that holds up its own work delays only itself.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use upcall_os::lock::KernelMutex;

/// One piece of work.
pub type AsideWork = Box<dyn FnOnce() + Send>;

/// Size of the thread's stack, in bytes.
const STACK: usize = 128 << 10;

/// The work queued for one account; `None` while no thread runs it.
#[derive(Default)]
pub struct AccountQueue(Arc<KernelMutex<Option<VecDeque<AsideWork>>>>);

impl fmt::Debug for AccountQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aside")
    }
}

impl AccountQueue {
    /// Runs `work` on the account's thread, after all earlier work. If no thread can be started,
    /// the caller runs it.
    pub fn run(&self, work: AsideWork) {
        let mut queue = self.0.lock();
        if let Some(queue) = &mut *queue {
            return queue.push_back(work);
        }
        *queue = Some(VecDeque::from([work]));
        drop(queue);
        let of_thread = self.0.clone();
        let started = std::thread::Builder::new()
            .name("upcall-aside".into())
            .stack_size(STACK)
            .spawn(move || empty(&of_thread));
        if started.is_err() {
            empty(&self.0);
        }
    }

    /// Runs short `work` after all earlier work. If none is under way, the caller runs it at once.
    pub fn after(&self, work: AsideWork) {
        let mut queue = self.0.lock();
        match &mut *queue {
            Some(queue) => queue.push_back(work),
            None => {
                drop(queue);
                work();
            }
        }
    }
}

fn empty(queue: &KernelMutex<Option<VecDeque<AsideWork>>>) {
    loop {
        let work = {
            let mut queue = queue.lock();
            let work = queue.as_mut().and_then(VecDeque::pop_front);
            if work.is_none() {
                *queue = None;
            }
            work
        };
        let Some(work) = work else { return };
        // A panic in one piece concerns that piece of work alone; the thread goes on.
        let _ = catch_unwind(AssertUnwindSafe(work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn work_is_done_in_order_and_what_is_held_up_does_not_hold_up_who_asks() {
        let aside = AccountQueue::default();
        let (done, are_done) = channel();
        let (go, may_go) = channel();
        let first = done.clone();
        aside.run(Box::new(move || {
            may_go.recv().unwrap();
            first.send(1).unwrap();
        }));
        let (second, third) = (done.clone(), done.clone());
        aside.after(Box::new(move || second.send(2).unwrap()));
        aside.run(Box::new(|| panic!("the test makes one piece fail")));
        aside.run(Box::new(move || third.send(3).unwrap()));
        // Another account's work is done while the first piece is held up.
        let (other, is_other) = channel();
        AccountQueue::default().run(Box::new(move || other.send(()).unwrap()));
        is_other.recv().unwrap();
        go.send(()).unwrap();
        assert_eq!([(); 3].map(|()| are_done.recv().unwrap()), [1, 2, 3]);
        // After the thread has ended, short work runs on the caller's thread.
        while aside.0.lock().is_some() {
            std::thread::yield_now();
        }
        let caller = std::thread::current().id();
        let (at, is_at) = channel();
        aside.after(Box::new(move || at.send(std::thread::current().id()).unwrap()));
        assert_eq!(is_at.recv().unwrap(), caller);
    }
}
