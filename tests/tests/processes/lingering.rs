//! A client sends descriptors whose closing takes as long as it likes: nobody waits for that.

use crate::{in_company, place};
use rustix::net::sockopt::set_socket_linger;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use upcall_tests::speech::{Request, Speaker};

/// A socket whose last close waits for twenty seconds, since nobody reads what it still has to send; and the end that does not.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mut socket = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (mute, _) = listener.accept().expect("the other end");
    socket.set_nonblocking(true).expect("a flag");
    while socket.write(&[1; 65_536]).is_ok() {}
    set_socket_linger(&socket, Some(Duration::from_secs(20))).expect("an option");
    (socket, mute)
}

/// With one message, with more of them than a message of the protocol has, and with messages that are not read before the connection ends.
#[test]
fn descriptors_that_are_slow_to_close_hold_nobody_up() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut honest = place.client();
    honest.ask("bind trial").expect_ok("binding");
    let socket = &place.sockets()[0];
    for (descriptors, messages) in [(1, 1), (9, 1), (100, 1), (1, 60)] {
        let speaker = Speaker::connect(socket).expect("a connection");
        let (slow, _mute) = lingering();
        let all: Vec<BorrowedFd<'_>> = std::iter::repeat_n(slow.as_fd(), descriptors).collect();
        for _ in 0..messages {
            if descriptors <= 8 {
                speaker.tell(Request::List, &all);
            } else {
                speaker.send_many(&all);
            }
        }
        // The server's are the last ones.
        drop(slow);
        drop(speaker);
        let start = Instant::now();
        honest.ask("sum 300000").expect_ok("a call that needs the clerk");
        let mut other = place.client();
        other.ask("bind trial").expect_ok("binding");
        assert_eq!(other.ask("add 2 3").numbers("add"), [5]);
        println!("    {descriptors} descriptors in {messages} messages: {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
}
