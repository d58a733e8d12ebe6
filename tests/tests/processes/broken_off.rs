//! Clients that hang up in the middle of a bind: after each of its messages, with and without
//! waiting for the answers, and in the middle of a message.

use crate::hostile_client::channel_memory;
use crate::in_company;
use crate::scene::Scene;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::MemoryFile;
use upcall_shm::station::Station;
use upcall_tests::interfaces::trial;
use upcall_tests::speech::{Request, Speaker, ToServer, VERSION, bind_all};

/// Size of the segment, in bytes.
const SEGMENT: usize = 1 << 20;

/// The memory and descriptors that a client brings to a bind.
struct Luggage {
    channel: MemoryFile,
    station: Station,
    stacks: MemoryFile,
    segment: MemoryFile,
    doorbell: Doorbell,
}

impl Luggage {
    fn new() -> Self {
        let (segment, _) = MemoryFile::create_filled("upcall-segment", SEGMENT).expect("memory");
        Self {
            channel: channel_memory(),
            station: Station::new().expect("a station"),
            stacks: MemoryFile::create("upcall-astacks", trial::INTERFACE.plan().bytes())
                .expect("memory"),
            segment,
            doorbell: Doorbell::new().expect("a doorbell"),
        }
    }

    /// The messages of a bind, in order.
    fn messages(&self) -> Vec<(Request, Vec<BorrowedFd<'_>>)> {
        vec![
            (Request::Open { version: VERSION }, vec![self.channel.as_fd(), self.station.as_fd()]),
            (bind_all(0, "trial", &trial::INTERFACE), vec![]),
            (Request::Stacks { id: 0 }, vec![self.stacks.as_fd()]),
            (Request::Segment { number: 1, len: SEGMENT as u64 }, vec![self.segment.as_fd()]),
            (Request::OpenLane { number: 1, vp: Some(0) }, vec![self.doorbell.as_fd()]),
            (Request::DropSegment { number: 1 }, vec![]),
            (Request::Unbind { id: 0 }, vec![]),
        ]
    }
}

/// How a client hangs up.
#[derive(Clone, Copy, Debug)]
enum End {
    /// After the client has read all answers.
    Answered,
    /// After the client has sent all that it can send without waiting; it reads no answer.
    Unheard,
    /// In the last message, after its descriptors and half of its bytes.
    Half,
}

/// Sends the first `count` messages of a bind, and hangs up.
fn break_off(socket: &Path, count: usize, end: End) {
    let luggage = Luggage::new();
    let speaker = Speaker::connect(socket).expect("a connection");
    for (at, (request, descriptors)) in luggage.messages().into_iter().take(count).enumerate() {
        let is_last = at + 1 == count;
        let is_answered = !matches!(
            request,
            Request::OpenLane { .. } | Request::DropSegment { .. } | Request::Unbind { .. }
        );
        let bytes =
            postcard::to_stdvec(&ToServer { serial: 1, request }).expect("a message can be packed");
        let bytes =
            if is_last && matches!(end, End::Half) { &bytes[..bytes.len() / 2] } else { &bytes };
        speaker.send(bytes, &descriptors);
        if is_answered && matches!(end, End::Answered) {
            speaker.hear();
        }
    }
}

#[test]
fn binds_that_are_broken_off_leave_nothing() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let most = Luggage::new().messages().len();
    scene.while_honest(1000, |socket| {
        for end in [End::Answered, End::Unheard, End::Half] {
            for count in 0..=most {
                break_off(socket, count, end);
            }
        }
    });
    scene.close(before);
}
