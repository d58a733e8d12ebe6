//! What follows an attempt to send a message.

use crate::proto::flow::Pause;

/// What an attempt to send a message came to.
#[derive(Debug)]
pub enum Sent<T, E> {
    /// The message is on its way.
    Done(T),
    /// The driver attempts again at once: something has changed.
    Again,
    /// The driver pauses before the next attempt.
    Later {
        /// What the sender reports if it waits no longer.
        why: E,
        /// How it waits.
        pause: Pause,
    },
}

/// One message that is being sent, in the hands of its driver.
pub trait Sending {
    /// What the sender gets of a message that is on its way.
    type Done;
    /// Why a message was not sent.
    type Error;

    /// Attempts to send the message. Hears the news first.
    ///
    /// # Errors
    /// The message cannot be sent, however long the sender waits.
    fn attempt(&mut self) -> Result<Sent<Self::Done, Self::Error>, Self::Error>;

    /// Returns `true` if the sender waits no longer.
    fn is_over(&self) -> bool;

    /// Runs the handlers of the messages that wait: the receiver may wait for room here.
    ///
    /// # Errors
    /// The wait is to end.
    fn run_handlers(&mut self) -> Result<(), Self::Error>;

    /// Waits before the next attempt.
    fn pause(&mut self, pause: Pause);
}

/// Sends a message, or gives up when the sender waits no longer. After each attempt without room it
/// runs handlers, and then it pauses. So members that flood each other go on.
///
/// # Errors
/// Nothing was sent, for this reason.
pub fn send<S: Sending>(sending: &mut S) -> Result<S::Done, S::Error> {
    loop {
        let (why, pause) = match sending.attempt()? {
            Sent::Done(done) => return Ok(done),
            Sent::Again => continue,
            Sent::Later { why, pause } => (why, pause),
        };
        if sending.is_over() {
            return Err(why);
        }
        sending.run_handlers()?;
        sending.pause(pause);
    }
}
