//! What follows an attempt to send a message.

use crate::proto::flow::Pause;

/// The result of an attempt, as the driver reports it.
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

/// One message that is being sent, as its driver implements it.
pub trait Sending {
    /// What the sender gets for a message that is on its way.
    type Done;
    /// The reason why a message was not sent.
    type Error;

    /// Attempts to send the message, after taking in all events.
    ///
    /// # Errors
    /// The message cannot be sent, even if the sender waits.
    fn attempt(&mut self) -> Result<Sent<Self::Done, Self::Error>, Self::Error>;

    /// Returns `true` if the sender waits no longer.
    fn is_over(&self) -> bool;

    /// Runs the handlers of the messages that wait: the receiver may be waiting for room here.
    ///
    /// # Errors
    /// The wait must end.
    fn run_handlers(&mut self) -> Result<(), Self::Error>;

    /// Waits before the next attempt.
    fn pause(&mut self, pause: Pause);
}

/// Sends a message, or gives up when the sender waits no longer. After each attempt without room it
/// runs handlers, and then it pauses. So members that flood each other make progress.
///
/// # Errors
/// The reason why nothing was sent.
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
