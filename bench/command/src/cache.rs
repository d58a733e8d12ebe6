//! Upcall as one of the stores of the suite `cache`: the example's table and its operations.

// Also a program of its own.
#[allow(dead_code)]
#[path = "../../../crates/upcall/examples/cache.rs"]
mod example;

use self::example::{Cache, Way, create, operations};
use upcall_bench::cache::case::Case;
use upcall_bench::cache::child::{Batch, Client, Place, Store};
use upcall_bench::cache::entries::check;
use upcall_bench::child::{Outcome, Ready};

/// Name of the table, in a directory of names that belongs to the run.
const NAME: &str = "bench-cache";

/// A table at home in one process, which another one uses.
pub struct Upcall;

impl Store for Upcall {
    const NAME: &'static str = "upcall";
    const FILL: (&'static str, Case) = ("access", Case::Put);
    type Client = Caller;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let table = create(NAME, place.entries)?;
        let _served = table.serve_in_background(operations())?;
        ready.announce_stoppable().wait();
        Ok(())
    }

    fn connect(_: &Place) -> Outcome<Caller> {
        Ok(Caller { cache: Cache::find(NAME)?, way: Way::Access })
    }
}

/// The user of the table.
pub struct Caller {
    cache: Cache,
    way: Way,
}

impl Client for Caller {
    fn prepare(&mut self, way: &str, _: &Batch) -> Outcome<()> {
        self.way = Way::ALL.into_iter().find(|known| known.name() == way).ok_or("no such way")?;
        Ok(())
    }

    #[inline]
    fn step(&mut self, batch: &Batch, step: usize) -> Outcome<()> {
        batch.step(step).try_for_each(|at| match batch.case.puts() {
            true => self.cache.put(self.way, batch.key(at), batch.value(at)),
            false => Ok(check(batch.number(at), self.cache.get(self.way, batch.key(at))?)?),
        })
    }
}
