//! A client sends descriptors that take as long to close as the client likes. No other process
//! waits for that.

use crate::{in_company, place};
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Pid, Resource, Rlimit, geteuid, prlimit};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use upcall_tests::party::Party;
use upcall_tests::place::{Place, as_stranger, eventually};
use upcall_tests::slow_files::SlowFiles;
use upcall_tests::speech::{Came, Request, Speaker};
use upcall_tests::usage::Usage;

/// Maximum number of descriptors that the kernel takes in one message.
const MOST: usize = 253;

/// Maximum number of threads of a server that close descriptors.
const THREADS: usize = 16;

/// Returns a socket whose last close waits for 200 s because its other end does not read the data
/// that is still to be sent, and that other end.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mut socket =
        TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (mute, _) = listener.accept().expect("the other end");
    socket.set_nonblocking(true).expect("a flag");
    while socket.write(&[1; 65_536]).is_ok() {}
    set_socket_linger(&socket, Some(Duration::from_secs(200))).expect("an option");
    (socket, mute)
}

/// Binds, and makes calls that need the clerk, while another client's descriptors are closed.
fn nobody_waits(place: &Place, honest: &mut Party) {
    let start = Instant::now();
    honest.ask("sum 300000").expect_ok("a call that needs the clerk");
    let mut other = place.client();
    other.ask("bind trial").expect_ok("binding");
    assert_eq!(other.ask("add 2 3").numbers("add"), [5]);
    println!("    {:?}", start.elapsed());
}

/// Descriptors in one message, in more messages than a conversation of the protocol has, and in
/// messages that are not read before the connection ends. Each message has sockets of its own, and
/// some bytes or none.
#[test]
fn descriptors_that_are_slow_to_close_hold_nobody_up() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial spares=0");
    let mut honest = place.client();
    honest.ask("bind trial").expect_ok("binding");
    let socket = &place.sockets()[0];
    let other = std::fs::File::open("/dev/null").expect("a file");
    for (descriptors, messages, bytes) in
        [(1, 1, 5), (9, 1, 2), (100, 1, 2), (1, 60, 5), (1, 1, 0), (1, 30, 0), (MOST, 2, 0)]
    {
        println!("{descriptors} descriptors in each of {messages} messages of {bytes} bytes");
        let speaker = Speaker::connect(socket).expect("a connection");
        let mut mute = Vec::new();
        for _ in 0..messages {
            // Once `slow` is dropped here, the server has its last descriptors.
            let (slow, end) = lingering();
            mute.push(end);
            // The kernel itself closes the descriptors for which the server has no room, which are
            // the last ones.
            let others = if descriptors == MOST { MOST - 5 } else { 0 };
            let all = std::iter::repeat_n(other.as_fd(), others)
                .chain(std::iter::repeat_n(slow.as_fd(), descriptors - others));
            let all: Vec<BorrowedFd<'_>> = all.collect();
            let sent = match bytes {
                5 => speaker.tell(Request::List, &all),
                bytes => speaker.send_of(&[1, 6][..bytes], &all),
            };
            if !sent {
                // The server has hung up, and the socket is closed here.
                set_socket_linger(&slow, None).expect("an option");
            }
        }
        drop(speaker);
        nobody_waits(&place, &mut honest);
    }
}

/// The same with files of a file system in user space that does not answer, as on a network that is
/// gone.
#[test]
fn files_whose_file_system_does_not_answer_hold_nobody_up() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial spares=0");
    let mut honest = place.client();
    honest.ask("bind trial").expect_ok("binding");
    // The mount goes before the server, which cannot end while it closes one of these files.
    let Some(files) = SlowFiles::mount(server.pid()) else { return };
    for (descriptors, messages, bytes) in
        [(1, 1, 5), (9, 1, 2), (100, 1, 2), (1, 1, 0), (1, 30, 5), (3, 30, 0)]
    {
        println!("{descriptors} descriptors in each of {messages} messages of {bytes} bytes");
        let (speaker, before) =
            (Speaker::connect(&place.sockets()[0]).expect("a connection"), files.waiting());
        for _ in 0..messages {
            let file = files.open().expect("its file");
            let all = vec![file.as_fd(); descriptors];
            match bytes {
                5 => speaker.tell(Request::List, &all),
                bytes => speaker.send_of(&[1, 6][..bytes], &all),
            };
        }
        eventually("the server closes one", || match files.waiting() {
            now if now >= (before + 1).min(THREADS) => Ok(()),
            now => Err(format!("{now} closings wait, before {before}")),
        });
        drop(speaker);
        nobody_waits(&place, &mut honest);
    }
    println!("    {} closings wait", files.waiting());
}

/// Connects as another user.
fn connect_as_stranger(socket: &Path) -> io::Result<Speaker> {
    as_stranger(|| Speaker::connect(socket))
}

/// Descriptors that cannot be closed take places in the descriptor table. The number for one user
/// is bounded, and other users are served.
#[test]
fn a_user_whose_descriptors_cannot_be_closed_does_not_fill_the_table() {
    let _company = in_company();
    if !geteuid().is_root() {
        return eprintln!(
            "skipped: descriptors of another user that cannot be closed: only root may act as \
            another user"
        );
    }
    let place = place();
    let server = place.serve("trial spares=0 mode=666 admit=any");
    let socket = place.sockets().remove(0);
    place.open_to_all();
    let before = Usage::of(server.pid()).descriptors;
    // The descriptors of two messages more would not fit.
    let limit = Some((before + 2 * MOST) as u64);
    let pid = Pid::from_raw(server.pid() as i32);
    prlimit(pid, Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("a limit");
    let mut honest = place.client();
    honest.ask("bind trial").expect_ok("binding");
    let Some(files) = SlowFiles::mount(server.pid()) else { return };
    // First, as many connections at once as follow one after the other below.
    let speakers: Vec<_> =
        (0..10).map(|_| connect_as_stranger(&socket).expect("a connection")).collect();
    for speaker in &speakers {
        let file = files.open().expect("its file");
        // The server may have hung up.
        speaker.send_of(&[1, 6], &vec![file.as_fd(); MOST]);
        speaker.send_of(&[1, 6], &vec![file.as_fd(); MOST]);
    }
    nobody_waits(&place, &mut honest);
    for _ in 0..10 {
        let speaker = connect_as_stranger(&socket).expect("a connection");
        let file = files.open().expect("its file");
        speaker.send_of(&[1, 6], &vec![file.as_fd(); MOST]);
        nobody_waits(&place, &mut honest);
    }
    let now = Usage::of(server.pid()).descriptors;
    println!("    {} closings wait, {now} descriptors are open, {before} before", files.waiting());
    assert!(files.waiting() > 0 && now < before + 2 * MOST, "{now}");
    drop((speakers, files));
    eventually("the other user is served again", || {
        match connect_as_stranger(&socket).expect("a connection").ask(Request::List, &[]) {
            Came::Answer(..) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// The kernel keeps a killed process while it closes such a file. Callers learn of its end when the
/// file system's program answers or ends.
#[test]
fn a_server_that_is_killed_while_it_closes_such_a_file_ends_with_its_file_system() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial spares=0");
    let mut honest = place.client();
    honest.ask("bind trial").expect_ok("binding");
    let Some(files) = SlowFiles::mount(server.pid()) else { return };
    let speaker = Speaker::connect(&place.sockets()[0]).expect("a connection");
    let file = files.open().expect("its file");
    speaker.send_of(&[1, 6], &[file.as_fd()]);
    eventually("the server closes it", || match files.waiting() {
        0 => Err("no closing waits".into()),
        _ => Ok(()),
    });
    server.kill();
    honest.say("add 2 3");
    drop(files);
    honest.hear().expect_error("Failed", &["has ended"]);
    server.ended();
}
