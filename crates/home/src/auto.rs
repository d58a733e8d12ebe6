//! Operations in the way that is cheapest just now ([`Homed::auto`]).
//!
//! Source: Psyche, sections 3.3 and 4 (P8 here). [`choices`](crate::choices) has the choice; this
//! goes the way that was chosen, and measures it.

use crate::account::AccessMethod;
use crate::choices::{Choice, OperationRecord, clock};
use crate::costs;
use crate::failure::InvokeError;
use crate::homed::Homed;
use crate::object::Grant;
use crate::operation::Operation;
use crate::types::Shared;
use std::any::TypeId;
use std::time::Instant;

/// Whether it was not run, and could be otherwise.
fn is_elsewhere(error: &InvokeError) -> bool {
    matches!(
        error,
        InvokeError::NotServed(_)
            | InvokeError::Unknown { .. }
            | InvokeError::Kind { .. }
            | InvokeError::Ended { asked: false }
    )
}

impl<T: Shared> Homed<T> {
    /// Runs an operation in the way that is cheapest just now: where the object is, under its lock
    /// ([`perform`](Self::perform)); there, without the lock, if it [only looks](Operation::LOOKS);
    /// or at the home ([`urgent`](Self::urgent)). As far as the home has granted these, and serves
    /// the object.
    ///
    /// What is cheapest is measured, by this hold and for this operation: some of them in a row
    /// take some 50 ns more each, one in a hundred or less; and now and then they go another way,
    /// which takes a 128th of the time for each of these. It begins with what `upcall calibrate`
    /// has found on this machine. `upcall stat` shows what was chosen, and what the others
    /// would have taken. Otherwise it is as the way that was chosen: it may block for as long as
    /// that, with the hold's [patience](Self::patience), and a home that is stopped is waited for
    /// if it was asked.
    ///
    /// # Errors
    /// See [`InvokeError`].
    #[inline]
    #[track_caller]
    pub fn auto<O: Operation<Of = T>>(&self, args: O::Args<'_>) -> Result<O::Reply, InvokeError> {
        match self.handle().choices.next(TypeId::of::<O>()) {
            Some(AccessMethod::Access) => Ok(self.perform::<O>(args)?),
            Some(AccessMethod::Look) => self.look::<O>(&args),
            Some(AccessMethod::Urgent) => self.auto_urgent::<O>(args),
            None => self.auto_measured::<O>(args),
        }
    }

    #[inline]
    #[track_caller]
    fn look<O: Operation<Of = T>>(&self, args: &O::Args<'_>) -> Result<O::Reply, InvokeError> {
        Ok(self.read(|on| O::run(on, args.clone()))?)
    }

    #[track_caller]
    fn auto_urgent<O: Operation<Of = T>>(
        &self,
        args: O::Args<'_>,
    ) -> Result<O::Reply, InvokeError> {
        if self.grant() == Grant::Invoke {
            return self.urgent::<O>(args);
        }
        match self.urgent::<O>(args.clone()) {
            Err(error) if is_elsewhere(&error) => {
                let way = self.known::<O, _>(|_, record| {
                    record.cannot(AccessMethod::Urgent);
                    record.best
                });
                match way {
                    AccessMethod::Access => Ok(self.perform::<O>(args)?),
                    AccessMethod::Look => self.look::<O>(&args),
                    AccessMethod::Urgent => Err(error),
                }
            }
            done => done,
        }
    }

    #[cold]
    #[track_caller]
    fn auto_measured<O: Operation<Of = T>>(
        &self,
        args: O::Args<'_>,
    ) -> Result<O::Reply, InvokeError> {
        let (way, counts) = self.known::<O, _>(|_, record| record.begin());
        if let Some(counts) = counts {
            self.handle().count(|own| *own = own.and(counts));
        }
        let begun = Instant::now();
        let done = match way {
            AccessMethod::Access => self.perform::<O>(args).map_err(InvokeError::from),
            AccessMethod::Look => self.look::<O>(&args),
            AccessMethod::Urgent => self.auto_urgent::<O>(args),
        };
        let took = (begun.elapsed().as_nanos() as f64 - clock()).max(0.0);
        self.known::<O, _>(|choice, record| {
            record.ran += 1;
            // Where it could not be done so it was done otherwise, and there is no burst any more.
            let left = if record.burst.is_some() { record.measured(took) } else { 0 };
            choice.left.set(left);
            record.ran += left;
        });
        done
    }

    fn known<O: Operation<Of = T>, R>(
        &self,
        then: impl FnOnce(&Choice, &mut OperationRecord) -> R,
    ) -> R {
        let new = || {
            let grant = self.grant();
            let can =
                [grant == Grant::ReadWrite, O::LOOKS && grant != Grant::Invoke, !self.is_home()];
            OperationRecord::new(&costs::usual(), can)
        };
        self.handle().choices.with(TypeId::of::<O>(), new, then)
    }
}
