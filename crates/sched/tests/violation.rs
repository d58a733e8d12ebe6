//! A server that replies to a call that was not made, on one lane: the callers on all the other
//! lanes get the error, asleep or not.
#![cfg(not(loom))]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_sched::calls::ServerClerk;
use upcall_sched::{CallerChannel, Closed, Domain, HandOff, NoReply, Pacing, PollingIdle};
use upcall_shm::channel::{self, Channel};
use upcall_shm::region::Region;
use upcall_shm::ring::{RingReceiver, RingSender};
use upcall_shm::single::SingleServer;
use upcall_shm::slot::{NO_ASTACK, SlotMessage};
use upcall_shm::station::{PeerStation, Station};

/// The lane of a virtual processor, its number, and the doorbell that wakes it.
type Lane = (u16, u16, OwnedFd);

fn open() -> (Arc<CallerChannel>, Channel, Station, Arc<Mutex<Vec<Lane>>>) {
    let memory = MemoryFile::create("channel", channel::BYTES).unwrap();
    let region = || Region::new(Mapping::shared(&memory).unwrap()).unwrap();
    let (near, far) = (Channel::create(region()).unwrap(), Channel::join(region()).unwrap());
    let station = Station::new().unwrap();
    let peer = PeerStation::join(station.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let lanes: Arc<Mutex<Vec<Lane>>> = Arc::default();
    let opened = lanes.clone();
    let clerk = Arc::new(Lanes(opened));
    (CallerChannel::new(near, peer, 0, 0, Doorbell::new().unwrap(), clerk), far, station, lanes)
}

/// Notes the lanes that are opened.
struct Lanes(Arc<Mutex<Vec<Lane>>>);

impl ServerClerk for Lanes {
    fn open_lane(
        &self,
        number: u16,
        vp: Option<(u16, &Doorbell)>,
        _: Instant,
    ) -> std::io::Result<()> {
        if let Some((vp, doorbell)) = vp {
            self.0.lock().unwrap().push((number, vp, doorbell.as_fd().try_clone_to_owned()?));
        }
        Ok(())
    }

    fn report_stall(&self) {}
}

fn eventually(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls from a virtual processor of its own. The channel returned receives the outcome.
fn call_from_a_thread(channel: &Arc<CallerChannel>) -> mpsc::Receiver<Result<u16, NoReply>> {
    let (say, said) = mpsc::channel();
    let channel = channel.clone();
    std::thread::spawn(move || {
        let idle = Arc::new(PollingIdle::new(1, Pacing::Sleep).unwrap());
        upcall_thread::Processors::new().count(1).idle(idle).run(move || {
            let mut message = SlotMessage::new(0, 9, NO_ASTACK);
            let outcome = channel.call(&mut message, HandOff::WhenIdle).map(|()| message.tag());
            say.send(outcome).unwrap();
        })
    });
    said
}

#[test]
fn a_violation_on_one_lane_wakes_the_callers_on_all() {
    let (channel, far, _station, lanes) = open();
    let first = call_from_a_thread(&channel);
    eventually("the first lane is open", || lanes.lock().unwrap().len() == 1);
    let second = call_from_a_thread(&channel);
    let kernel = {
        let channel = channel.clone();
        std::thread::spawn(move || {
            channel.call(&mut SlotMessage::new(0, 9, NO_ASTACK), HandOff::WhenIdle)
        })
    };
    eventually("the second lane is open", || lanes.lock().unwrap().len() == 2);
    let asleep = |at: usize| {
        let vp = usize::from(lanes.lock().unwrap()[at].1);
        Domain::current().unwrap().station().line(vp).asleep.load(Ordering::SeqCst) != 0
    };
    eventually("both processors sleep", || asleep(0) && asleep(1));
    eventually("the kernel thread sleeps", || {
        far.lane(0).unwrap().control.sleeper.load(upcall_os::atomic::Ordering::SeqCst) != 0
    });
    // The proper reply and another one, at once: the caller of the first lane returns with its
    // reply, and no caller is left there to report the violation.
    let (number, _, doorbell) = lanes.lock().unwrap().remove(0);
    let lane = far.lane(number).unwrap();
    let request = RingReceiver::new(lane.requests).take().expect("a request");
    let replies = RingSender::new(lane.replies);
    for call in [request.call(), request.call() ^ 1] {
        replies.send(&SlotMessage::new(call, 3, NO_ASTACK));
    }
    Doorbell::adopt(doorbell).unwrap().notify();
    let limit = Duration::from_secs(10);
    assert_eq!(first.recv_timeout(limit), Ok(Ok(3)));
    let told = second.recv_timeout(limit).expect("the caller on the second lane waits for ever");
    assert!(matches!(told, Err(NoReply::Closed(Closed::Violation(_)))), "{told:?}");
    assert!(matches!(kernel.join().unwrap(), Err(NoReply::Closed(Closed::Violation(_)))));
    assert!(matches!(channel.closed(), Some(Closed::Violation(_))));
}

/// A kernel thread's lane has one call at a time, and its reply has to have that call's number.
#[test]
fn a_reply_to_another_call_is_not_a_kernel_threads() {
    let (channel, far, _station, _lanes) = open();
    let call = || channel.call(&mut SlotMessage::new(0, 9, NO_ASTACK), HandOff::WhenIdle);
    let outcome = std::thread::scope(|scope| {
        let calling = scope.spawn(call);
        let lane = far.lane(0).unwrap();
        eventually("the kernel thread sleeps", || {
            lane.control.sleeper.load(upcall_os::atomic::Ordering::SeqCst) != 0
        });
        let (server, mut request) =
            (SingleServer::new(lane.single), SlotMessage::new(0, 0, NO_ASTACK));
        assert!(server.take(&mut request), "a request");
        server.reply(&SlotMessage::new(request.call() ^ 1, 3, NO_ASTACK));
        upcall_sched::sleep::retract(&lane.control.sleeper);
        upcall_os::futex::wake(&lane.control.sleeper, 1, upcall_os::futex::FutexScope::Shared);
        calling.join().unwrap()
    });
    assert!(matches!(outcome, Err(NoReply::Closed(Closed::Violation(_)))), "{outcome:?}");
}
