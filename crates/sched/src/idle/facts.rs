//! The facts for the idle policy of one virtual processor, as the kernel and its peers report them.

use super::scan::Scan;
use crate::poller::Facts;
use std::time::Instant;
use upcall_os::clock;
use upcall_os::processor;
use upcall_shm::station::{Awake, ProcessorState};

impl Facts for Scan {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn tick(&self) -> u64 {
        clock::tick()
    }

    fn cpu(&self) -> u32 {
        processor::current() as u32
    }

    fn allowed(&self) -> Option<processor::CpuSet> {
        processor::CpuSet::allowed().ok()
    }

    fn is_calling(&self) -> bool {
        self.vp_lanes.iter().any(|lane| lane.is_calling())
    }

    fn has_reply(&self) -> bool {
        self.vp_lanes.iter().any(|lane| lane.waits())
    }

    fn has_server_elsewhere(&self, cpu: u32) -> bool {
        self.vp_lanes.iter().any(|lane| lane.servers_place() != Some(cpu))
    }

    fn has_lanes(&self) -> bool {
        !self.lanes.is_empty()
    }

    fn has_posts(&self) -> bool {
        !self.attending.posts.is_empty()
    }

    fn has_only_callers_on(&self, cpu: u32) -> bool {
        self.lanes.iter().all(|lane| lane.shares(cpu)) && !self.is_calling()
    }

    fn shares(&self, cpu: u32) -> bool {
        let elsewhere = |at: Option<u32>| at.is_some_and(|at| at != cpu);
        let nobody =
            self.vp_lanes.is_empty() && self.lanes.is_empty() && self.attending.posts.is_empty();
        nobody
            || !self
                .vp_lanes
                .iter()
                .all(|lane| !lane.is_calling() || elsewhere(lane.servers_place()))
            || !self.lanes.iter().all(|lane| elsewhere(lane.callers_place()))
    }

    fn donor(&self, cpu: u32) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.gave(cpu))
    }

    fn is_caller_on(&self, lane: usize, cpu: u32) -> bool {
        self.lanes[lane].callers_place() == Some(cpu)
    }

    fn wished_cpu(&self, lane: usize) -> Option<u32> {
        // The caller reads the CPU of its channel's home processor only.
        let lane = self.lanes.get(lane).filter(|lane| Some(lane.home()) == self.me)?;
        lane.wished_cpu()
    }

    fn is_caller_running(&self, lane: usize) -> bool {
        self.lanes[lane].callers_state() == Some(ProcessorState::Awake(Awake::Running))
    }
}
