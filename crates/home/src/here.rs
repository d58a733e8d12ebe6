//! The objects that a kernel thread serves, of all types.
//!
//! A thread that waits for its own invocation runs the operations that others request of its
//! objects, and so does its signal handler. Neither knows the objects' types.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use upcall_sched::post::Post;

/// An object that this thread serves.
pub(crate) trait ServedObject {
    /// Runs the operations that callers wait for: all, or only the short ones. Returns their
    /// number.
    fn serve(&self, all: bool) -> usize;
    /// Returns `true` if callers wait for an operation that may run now, or if callers come or go.
    fn has_work(&self) -> bool;
    /// Runs the operations that are fit for an interrupt, within one. Returns their number.
    fn serve_in_interrupt(&self) -> u32;
    /// Returns `true` if an operation is fit for an interrupt and was not deferred before.
    fn has_more(&self) -> bool;
    /// The place where this thread sleeps.
    fn post(&self) -> &Arc<Post>;
}

thread_local! {
    /// The objects that this kernel thread serves.
    static HERE: RefCell<Vec<Weak<dyn ServedObject>>> = const { RefCell::new(Vec::new()) };
}

/// Adds an object to those that this thread serves.
pub(crate) fn add(one: &Rc<dyn ServedObject>) {
    HERE.with_borrow_mut(|all| all.push(Rc::downgrade(one)));
}

/// Removes the object at this address.
pub(crate) fn remove(own: *const ()) {
    HERE.with_borrow_mut(|all| all.retain(|one| !std::ptr::addr_eq(one.as_ptr(), own)));
}

/// Runs the operations that callers wait for here: all, or only the short ones. Returns their
/// number.
///
/// The caller keeps interrupts off, because the handler would find this thread's lists and locks in
/// use.
pub(crate) fn serve(all: bool) -> usize {
    // An operation may begin or end to serve other objects, so the list is borrowed only to look up
    // the next one.
    let nth = |at: usize| HERE.with_borrow(|here| here.get(at).map(Weak::upgrade));
    (0..).map_while(nth).flatten().map(|one| one.serve(all)).sum()
}

/// Returns `true` if an object that this thread serves has work.
pub(crate) fn has_work() -> bool {
    HERE.with_borrow(|here| here.iter().filter_map(Weak::upgrade).any(|one| one.has_work()))
}

/// The place where this thread sleeps, if it serves anything.
pub(crate) fn post() -> Option<Arc<Post>> {
    HERE.with_borrow(|here| here.iter().find_map(Weak::upgrade).map(|one| one.post().clone()))
}

/// Passes each object that this thread serves to `with`; none while the list changes.
///
/// Allocates nothing. The caller keeps interrupts off, or is the handler of one.
pub(crate) fn each(mut with: impl FnMut(&(dyn ServedObject + 'static))) {
    HERE.with(|here| {
        if let Ok(here) = here.try_borrow() {
            here.iter().filter_map(Weak::upgrade).for_each(|one| with(&*one));
        }
    });
}
