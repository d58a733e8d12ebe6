//! Operations that the home runs for others, and operations that are run by name.
//!
//! The home runs them by [`Homed::urgent`] and [`Homed::invoke`]. [`Homed::perform`] runs them in
//! place.

use crate::error::AccessError;
use crate::failure::InvokeError;
use crate::homed::Homed;
use crate::operation::{Operation, Procedure};
use crate::rules::{self, Blocked};
use crate::types::Shared;
use crate::wire::OperationKind;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::panic::Location;

impl<T: Shared> Homed<T> {
    /// Runs an operation on the object in place: [`access`](Self::access) by name.
    ///
    /// # Errors
    /// See [`AccessError`]. In builds with debug assertions, [`AccessError::Blocked`] if the
    /// operation was run and blocked.
    #[inline]
    #[track_caller]
    pub fn perform<O: Operation<Of = T>>(
        &self,
        args: O::Args<'_>,
    ) -> Result<O::Reply, AccessError> {
        let mut has_blocked = false;
        let run = |object: T::At<'_>| {
            let (result, blocked) = rules::watched(|| O::run(object, args));
            has_blocked = blocked;
            result
        };
        let done = if O::LOOKS { self.access_to_look(run) } else { self.access(run) };
        if has_blocked {
            let blocked = Blocked { name: O::NAME, here: Location::caller(), registered: None };
            return Err(AccessError::Blocked(Box::new(blocked)));
        }
        done
    }

    /// Makes the home run a short operation as soon as it can, and waits for its reply.
    ///
    /// This is Psyche's urgent invocation.
    ///
    /// The operation is run at most once. If it is not known whether it was run, the error says so.
    /// At home it is run by the caller.
    ///
    /// The home runs it where it serves the object ([`serve`](Self::serve)): on a virtual processor
    /// at safe points; on another thread where that thread polls or waits, or in between its
    /// computation ([`Serving::interruptible`](crate::Serving::interruptible)).
    ///
    /// # Errors
    /// See [`InvokeError`].
    ///
    /// # Blocking
    /// Spins for some µs and then blocks the thread, for as long as the handle's
    /// [patience](Self::patience) lasts.
    #[track_caller]
    pub fn urgent<O: Operation<Of = T>>(&self, args: O::Args<'_>) -> Result<O::Reply, InvokeError> {
        rules::invoke().map_err(InvokeError::Rule)?;
        if self.is_home() {
            return Ok(self.perform::<O>(args)?);
        }
        self.ask(O::NAME, OperationKind::Short, &args)
    }

    /// Makes the home run a procedure as a thread, and waits for its reply.
    ///
    /// This is Psyche's ordinary invocation. The procedure may block, and the caller's thread
    /// blocks until the reply arrives.
    ///
    /// No urgent invocation waits for a procedure. Otherwise this is like [`urgent`](Self::urgent).
    ///
    /// # Errors
    /// See [`InvokeError`].
    #[track_caller]
    pub fn invoke<P: Procedure<Of = T>>(&self, args: P::Args<'_>) -> Result<P::Reply, InvokeError> {
        rules::invoke().map_err(InvokeError::Rule)?;
        if self.is_home() {
            return P::run(self, args).map_err(InvokeError::Said);
        }
        self.ask(P::NAME, OperationKind::MayBlock, &args)
    }

    #[track_caller]
    fn ask<R: DeserializeOwned>(
        &self,
        name: &'static str,
        kind: OperationKind,
        args: &impl Serialize,
    ) -> Result<R, InvokeError> {
        self.handle().ask(name, kind, args)
    }
}
