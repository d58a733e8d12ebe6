//! A client sends descriptors whose closing takes as long as it likes: nobody waits for that.

use crate::{in_company, place};
use rustix::net::sockopt::set_socket_linger;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use upcall_tests::party::Party;
use upcall_tests::place::Place;
use upcall_tests::speech::{Request, Speaker};

/// Maximum number of descriptors that the kernel takes in one message.
const MOST: usize = 253;

/// A socket whose last close waits for 200 s, because its other end does not read what it has still to
/// send; and that other end.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mut socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (mute, _) = listener.accept().expect("the other end");
    socket.set_nonblocking(true).expect("a flag");
    while socket.write(&[1; 65_536]).is_ok() {}
    set_socket_linger(&socket, Some(Duration::from_secs(200))).expect("an option");
    (socket, mute)
}

/// Binds, and does what needs the clerk, while another client's descriptors are closed.
fn nobody_waits(place: &Place, honest: &mut Party) {
    let start = Instant::now();
    honest.ask("sum 300000").expect_ok("a call that needs the clerk");
    let mut other = place.client();
    other.ask("bind trial").expect_ok("binding");
    assert_eq!(other.ask("add 2 3").numbers("add"), [5]);
    println!("    {:?}", start.elapsed());
}

/// With one message, with more of them than a message of the protocol has, and with messages that are not read before the
/// connection ends; each with sockets of its own, and with bytes or without any.
#[test]
fn descriptors_that_are_slow_to_close_hold_nobody_up() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut honest = place.client();
    honest.ask("bind trial").expect_ok("binding");
    let socket = &place.sockets()[0];
    let other = std::fs::File::open("/dev/null").expect("a file");
    for (descriptors, messages, bytes) in [(1, 1, 5), (9, 1, 2), (100, 1, 2), (1, 60, 5), (1, 1, 0), (1, 30, 0), (MOST, 2, 0)] {
        println!("{descriptors} descriptors in each of {messages} messages of {bytes} bytes");
        let speaker = Speaker::connect(socket).expect("a connection");
        let mut mute = Vec::new();
        for _ in 0..messages {
            // The server's are the last ones.
            let (slow, end) = lingering();
            mute.push(end);
            // The kernel itself closes what the server has no room for: the last ones.
            let others = if descriptors == MOST { MOST - 5 } else { 0 };
            let all = std::iter::repeat_n(other.as_fd(), others).chain(std::iter::repeat_n(slow.as_fd(), descriptors - others));
            let all: Vec<BorrowedFd<'_>> = all.collect();
            let sent = match bytes {
                5 => speaker.tell(Request::List, &all),
                bytes => speaker.send_of(&[1, 6][..bytes], &all),
            };
            if !sent {
                // The server has hung up, and this one is closed here.
                set_socket_linger(&slow, None).expect("an option");
            }
        }
        drop(speaker);
        nobody_waits(&place, &mut honest);
    }
}
