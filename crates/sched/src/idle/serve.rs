//! A virtual processor serves the request that a probe found, and the requests right after it.

use super::group::PollingIdle;
use super::view::VIEW;
use crate::pacing::{Pacing, Yielded, hand_back};
use crate::poller::{BATCH, PollWish, ServedRequest, StayWish};
use crate::server::{ServeOutcome, ServerLane};
use std::rc::Rc;
use std::sync::Arc;
use upcall_shm::station::{Awake, ProcessorState};
use upcall_shm::tally::Arrival;
use upcall_thread::Vp;

/// Maximum number of times in a row that a server yields to a caller right after its answer. Then
/// the idle loop, with its periodic work, gets a turn.
const TURNS: usize = 64;

/// The lane that is served, and its state.
struct LaneServing {
    lanes: Rc<Vec<Arc<ServerLane>>>,
    found: usize,
    /// How the processor came to the first request, and to the next one.
    came_first: Arrival,
    came: Arrival,
    reach: Reach,
    cpu: CallersCpu,
    /// The generation of the lanes, if the server has only one caller, on its only CPU
    /// (`ProcessorView::is_bare`); `None` otherwise.
    bare: Option<u64>,
}

/// Which other lanes the processor is responsible for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// None: no other caller waits while it waits for this one.
    ThisLane,
    /// There are others.
    Others,
}

/// Whether the processor has the CPU of a caller.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallersCpu {
    No,
    Yes,
}

/// The hints of the requests that were served.
#[derive(Clone, Copy, Default)]
struct Answered {
    /// The last caller's wish, if any of the callers gave its CPU.
    donated: Option<StayWish>,
    /// The last caller's wish in any case; `None` if nothing was served.
    wish: Option<PollWish>,
}

impl Answered {
    #[inline]
    fn add(&mut self, served: ServeOutcome) {
        let before = self.donated.map(|_| StayWish::Sleep);
        self.donated = served.donated.or(before);
        self.wish = Some(served.wish);
    }
}

impl PollingIdle {
    /// Serves the request that was found, and the requests right after it.
    pub(super) fn serve_calls(&self, vp: &Vp) {
        let mut serving = self.serving();
        let lanes = serving.lanes.clone();
        let Some(lane) = lanes.get(serving.found) else { return };
        let mut told = Answered::default();
        for turn in 0..=TURNS {
            if serving.serve_batch(lane, &mut told) == Batch::LaneEmpty {
                break;
            }
            // What the idle loop would do (`IdleStep::YieldToCallers`), without the way there and
            // back, which takes longer than the rest of a call.
            let stays = told.donated == Some(StayWish::Stay)
                && turn < TURNS
                && serving.bare == Some(self.group.domain.generation());
            if !(stays && lane.is_kernel_threads() && vp.is_free() && !self.queue().waits()) {
                break;
            }
            if hand_back(|| lane.waits()) == Yielded::Nothing {
                // Tried, and not again before the processor parks.
                told.donated = Some(StayWish::Sleep);
                break;
            }
        }
        if let Some(wish) = told.wish {
            serving.tell(told.donated, wish);
        }
    }

    #[inline]
    fn serving(&self) -> LaneServing {
        VIEW.with_borrow_mut(|view| {
            let found = view.scan.next;
            view.scan.next += 1;
            let alone = view.scan.own == 1 && found == 0 || view.scan.lanes.len() == 1;
            let bare = self.group.pacing == Pacing::Adaptive && view.is_bare();
            LaneServing {
                lanes: view.scan.lanes.clone(),
                found,
                came_first: view.scan.came,
                came: view.scan.came,
                reach: if alone { Reach::ThisLane } else { Reach::Others },
                cpu: if view.poller.is_borrowed() { CallersCpu::Yes } else { CallersCpu::No },
                bare: bare.then_some(view.scan.generation),
            }
        })
    }
}

/// How a batch of requests ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Batch {
    /// The lane had no request where one was expected.
    LaneEmpty,
    /// The batch is served.
    Served,
}

impl LaneServing {
    #[inline]
    fn serve_batch(&mut self, lane: &ServerLane, told: &mut Answered) -> Batch {
        for _ in 0..BATCH {
            let Some(served) = lane.serve_one(self.came) else { return Batch::LaneEmpty };
            told.add(served);
            if served.donated.is_some() {
                self.cpu = CallersCpu::Yes;
            }
            // A caller may call again at once. If no other caller can, the server waits for that
            // here, for some round trips. It does not wait on the CPU that the caller gave: the
            // caller cannot call before it has that back.
            let waits = lane.waits();
            self.came = if waits && lane.has_waited() { Arrival::Wait } else { Arrival::Spin };
            let borrowed = self.cpu == CallersCpu::Yes;
            let awaited = !borrowed && self.reach == Reach::ThisLane;
            let more = waits || awaited && lane.calls_again();
            // The caller may want its CPU back before all is served: see `Poller::serves`.
            let wanted = || lane.callers_state() == Some(ProcessorState::Awake(Awake::Running));
            if !more || borrowed && wanted() {
                break;
            }
        }
        Batch::Served
    }

    #[inline]
    fn tell(self, donated: Option<StayWish>, wish: PollWish) {
        let Self { lanes, found, came_first, came, .. } = self;
        VIEW.with_borrow_mut(|view| {
            view.scan.left = (found, came);
            let lane = Rc::ptr_eq(&lanes, &view.scan.lanes).then_some(found);
            let client = lanes[found].owner().client;
            view.poller.served(ServedRequest { lane, client, came: came_first, donated, wish });
        });
    }
}
