//! Channels with many senders and one receiver, as in `std::sync::mpsc` and with its errors.
//!
//! A channel is a queue under a [`Mutex`] with two condition variables: the receiver waits on one,
//! and senders wait for room on the other. A channel without room (`sync_channel(0)`) holds one
//! value while its sender waits for the receiver to take it.

use crate::block::Waited;
use crate::condvar::Condvar;
use crate::deadline::{after, shielded};
use crate::mutex::{Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::time::{Duration, Instant};

/// Creates a channel without a bound.
///
/// Sending never waits; values that have not been received take memory without a limit.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = MpscChannel::new(None);
    (Sender { shared: Arc::clone(&shared) }, Receiver { shared, not_sync: PhantomData })
}

/// Creates a channel that holds at most `bound` values.
///
/// A sender waits for room. With a bound of 0 it waits until its value has been received.
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let shared = MpscChannel::new(Some(bound));
    (SyncSender { shared: Arc::clone(&shared) }, Receiver { shared, not_sync: PhantomData })
}

struct MpscChannel<T> {
    bound: Option<usize>,
    state: Mutex<MpscState<T>>,
    /// Notified when a value was sent, or the last sender is gone.
    sent: Condvar,
    /// Notified when there is room, or the receiver is gone.
    received: Condvar,
}

struct MpscState<T> {
    queue: VecDeque<T>,
    senders: usize,
    receiver: bool,
    /// Number of values that the receiver has taken. A sender to a channel without room learns from
    /// it that its own value was taken.
    taken: u64,
    /// The receiver is waiting.
    waiting: bool,
}

impl<T> MpscChannel<T> {
    fn new(bound: Option<usize>) -> Arc<Self> {
        let state = MpscState {
            queue: VecDeque::new(),
            senders: 1,
            receiver: true,
            taken: 0,
            waiting: false,
        };
        Arc::new(Self {
            bound,
            state: Mutex::new(state),
            sent: Condvar::new(),
            received: Condvar::new(),
        })
    }

    fn add_sender(&self) {
        self.state.lock().senders += 1;
    }

    fn drop_sender(&self) {
        let mut state = shielded(|| self.state.lock());
        state.senders -= 1;
        let last = state.senders == 0;
        drop(state);
        if last {
            self.sent.notify_all();
        }
    }

    /// Number of values that the queue may hold.
    fn room(&self) -> usize {
        self.bound.map_or(usize::MAX, |bound| bound.max(1))
    }

    fn send(&self, value: T, deadline: Option<Instant>) -> Result<(), TrySendError<T>> {
        let mut state = self.state.lock();
        let mut waited = Waited::Woken;
        while state.receiver && state.queue.len() >= self.room() {
            if waited == Waited::TimedOut {
                return Err(TrySendError::Full(value));
            }
            (state, waited) = self.received.wait_by(state, deadline);
        }
        if !state.receiver {
            return Err(TrySendError::Disconnected(value));
        }
        state.queue.push_back(value);
        if self.bound == Some(0) {
            return self.handed_over(state, deadline);
        }
        drop(state);
        self.sent.notify_one();
        Ok(())
    }

    /// Waits until the receiver has taken the one value in the queue, which is ours. Takes it back
    /// if that does not happen.
    fn handed_over(
        &self,
        mut state: MutexGuard<'_, MpscState<T>>,
        deadline: Option<Instant>,
    ) -> Result<(), TrySendError<T>> {
        self.sent.notify_one();
        let number = state.taken;
        let back = Withdraw { shared: self, number };
        let mut waited = Waited::Woken;
        while state.taken == number && state.receiver && waited == Waited::Woken {
            (state, waited) = self.received.wait_by(state, deadline);
        }
        std::mem::forget(back);
        if state.taken != number {
            return Ok(());
        }
        let value = state
            .queue
            .pop_front()
            .expect("a value stays until the receiver takes it or its sender does");
        let gone = !state.receiver;
        drop(state);
        self.received.notify_one();
        Err(if gone { TrySendError::Disconnected(value) } else { TrySendError::Full(value) })
    }

    fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let mut state = self.state.lock();
        if !state.receiver {
            return Err(TrySendError::Disconnected(value));
        }
        // In a channel without room, a waiting receiver counts as room, since nothing can come in
        // between.
        let full = state.queue.len() >= self.room() || (self.bound == Some(0) && !state.waiting);
        if full {
            return Err(TrySendError::Full(value));
        }
        state.queue.push_back(value);
        drop(state);
        self.sent.notify_one();
        Ok(())
    }

    fn take(&self, mut state: MutexGuard<'_, MpscState<T>>) -> Result<T, TryRecvError> {
        let Some(value) = state.queue.pop_front() else {
            return Err(if state.senders == 0 {
                TryRecvError::Disconnected
            } else {
                TryRecvError::Empty
            });
        };
        state.taken += 1;
        drop(state);
        match self.bound {
            None => {}
            // Both the sender of this value and a sender that waits for room may be listed, in
            // unknown order.
            Some(0) => self.received.notify_all(),
            Some(_) => self.received.notify_one(),
        }
        Ok(value)
    }

    fn receive(&self, deadline: Option<Instant>) -> Result<T, RecvTimeoutError> {
        let mut state = self.state.lock();
        let mut waited = Waited::Woken;
        while state.queue.is_empty() && state.senders > 0 {
            if waited == Waited::TimedOut {
                return Err(RecvTimeoutError::Timeout);
            }
            state.waiting = true;
            let absence = ReceiveGuard { shared: self };
            (state, waited) = self.sent.wait_by(state, deadline);
            std::mem::forget(absence);
            state.waiting = false;
        }
        self.take(state).map_err(|_| RecvTimeoutError::Disconnected)
    }
}

/// Clears `waiting` when the receiver leaves its wait by unwinding.
struct ReceiveGuard<'a, T> {
    shared: &'a MpscChannel<T>,
}

impl<T> Drop for ReceiveGuard<'_, T> {
    fn drop(&mut self) {
        shielded(|| self.shared.state.lock()).waiting = false;
    }
}

/// Takes the value back when a sender to a channel without room leaves its wait by unwinding.
struct Withdraw<'a, T> {
    shared: &'a MpscChannel<T>,
    number: u64,
}

impl<T> Drop for Withdraw<'_, T> {
    fn drop(&mut self) {
        let mut state = shielded(|| self.shared.state.lock());
        if state.taken == self.number {
            let value = state.queue.pop_front();
            drop(state);
            self.shared.received.notify_one();
            drop(value);
        }
    }
}

/// The sending side of a [`channel`].
pub struct Sender<T> {
    shared: Arc<MpscChannel<T>>,
}

impl<T> Sender<T> {
    /// Sends `value`. Never waits.
    ///
    /// # Errors
    /// Returns `value` if the receiver is gone. `Ok` does not mean that the value will be received.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.shared.send(value, None).map_err(returned)
    }
}

/// The sending side of a [`sync_channel`].
pub struct SyncSender<T> {
    shared: Arc<MpscChannel<T>>,
}

impl<T> SyncSender<T> {
    /// Sends `value`, blocking the calling thread until there is room.
    ///
    /// # Errors
    /// Returns `value` if the receiver is gone.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.shared.send(value, None).map_err(returned)
    }

    /// Sends `value` if that needs no wait.
    ///
    /// # Errors
    /// Returns `value` if there is no room, or no receiver.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        self.shared.try_send(value)
    }

    /// Sends `value`, waiting for at most `timeout`.
    ///
    /// # Errors
    /// Returns `value` if there was no room by then (`Full`), or there is no receiver.
    pub fn send_timeout(&self, value: T, timeout: Duration) -> Result<(), TrySendError<T>> {
        self.shared.send(value, after(timeout))
    }
}

fn returned<T>(error: TrySendError<T>) -> SendError<T> {
    match error {
        TrySendError::Full(value) | TrySendError::Disconnected(value) => SendError(value),
    }
}

/// The receiving side of a channel.
pub struct Receiver<T> {
    shared: Arc<MpscChannel<T>>,
    /// As with `std`, one thread at a time receives.
    not_sync: PhantomData<Cell<()>>,
}

impl<T> Receiver<T> {
    /// Returns the next value, blocking the calling thread until there is one.
    ///
    /// # Errors
    /// All senders are gone and everything has been received.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.shared.receive(None).map_err(|_| RecvError)
    }

    /// Returns the next value, if there is one.
    ///
    /// # Errors
    /// The channel is empty, or no value will ever come.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.shared.take(self.shared.state.lock())
    }

    /// Returns the next value, waiting for at most `timeout`.
    ///
    /// # Errors
    /// No value came by then, or no value will ever come.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.shared.receive(after(timeout))
    }

    /// Iterates over the values until all senders are gone, waiting for each.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { receiver: self }
    }

    /// Iterates over the values that are there, without waiting.
    pub fn try_iter(&self) -> TryIter<'_, T> {
        TryIter { receiver: self }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.add_sender();
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        self.shared.add_sender();
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.shared.drop_sender();
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        self.shared.drop_sender();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = shielded(|| self.shared.state.lock());
        state.receiver = false;
        // A sender that waits for its value to be taken gets the value back. Values of other
        // senders are dropped with the receiver.
        let left = if self.shared.bound == Some(0) {
            VecDeque::new()
        } else {
            std::mem::take(&mut state.queue)
        };
        drop(state);
        self.shared.received.notify_all();
        drop(left);
    }
}

/// See [`Receiver::iter`].
#[derive(Debug)]
pub struct Iter<'a, T> {
    receiver: &'a Receiver<T>,
}

/// See [`Receiver::try_iter`].
#[derive(Debug)]
pub struct TryIter<'a, T> {
    receiver: &'a Receiver<T>,
}

/// The values of a receiver until all senders are gone.
#[derive(Debug)]
pub struct IntoIter<T> {
    receiver: Receiver<T>,
}

impl<T> Iterator for Iter<'_, T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

impl<T> Iterator for TryIter<'_, T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.receiver.try_recv().ok()
    }
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;
    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;
    fn into_iter(self) -> IntoIter<T> {
        IntoIter { receiver: self }
    }
}

macro_rules! plain_debug {
    ($($name:ident)*) => {$(
        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

plain_debug!(Sender SyncSender Receiver);
