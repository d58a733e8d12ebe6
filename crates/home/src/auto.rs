//! Operations by the method that is cheapest just now ([`Homed::auto`]).
//!
//! Source: Psyche, sections 3.3 and 4 (P8 here). [`choices`](crate::choices) makes the choice; this
//! module runs the operation by the chosen method, and measures it.

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

/// Returns `true` if the operation was not run, but may be by another method.
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
    /// Runs an operation by the method that is cheapest just now.
    ///
    /// The methods are: on the object in place, under its lock ([`perform`](Self::perform)); the
    /// same without the lock, if the operation is [read-only](Operation::LOOKS); or at the home
    /// ([`urgent`](Self::urgent)). Only those are used that the home grants and serves.
    ///
    /// Costs are measured for this handle and this operation. For that a few operations in a row
    /// take about 50 ns more each, one operation in a hundred or fewer. Now and then some
    /// operations use another method. That may take a 128th of the time for each of the other
    /// methods. The first choice is based on what `upcall calibrate` has found on this machine.
    /// `upcall stat` shows what was chosen, and what the other methods would have taken. In all
    /// else the operation behaves as by the chosen method: it may block as long as that does, with
    /// the handle's [patience](Self::patience), and it waits for a stopped home that was already
    /// asked.
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
            // If the method was not possible, another one was used, and the burst has ended.
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
