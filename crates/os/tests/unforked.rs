//! A forked child keeps none of the sockets that are the parent's alone. This is a program of its
//! own, because the child has copies of all other descriptors.
#![cfg(not(miri))]

use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use upcall_os::forked::ForkedChild;
use upcall_os::unforked::Unforked;

/// What a child's descriptor with the number of this one is.
fn descriptor(child: &ForkedChild, of: impl AsFd) -> String {
    let path = format!("/proc/{}/fd/{}", child.pid(), of.as_fd().as_raw_fd());
    std::fs::read_link(path).unwrap().to_string_lossy().into_owned()
}

#[test]
fn a_forked_child_keeps_no_connection_and_no_listener() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Unforked::new(listener).unwrap();
    let connect = |_| {
        let here = Unforked::new(TcpStream::connect(address).unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    };
    let mut pairs: Vec<_> = (0..100).map(connect).collect();
    // Those that are closed before the fork make room for others.
    pairs.drain(..30);
    pairs.extend((0..200).map(connect));
    let plain = std::fs::File::open("/dev/null").unwrap();
    let file = Unforked::new(std::fs::File::open("/dev/null").unwrap()).unwrap();
    let child = ForkedChild::begin().unwrap();
    assert_eq!(descriptor(&child, &plain), "/dev/null");
    // Its number stays taken.
    assert!(descriptor(&child, &file).starts_with("socket:"));
    drop(listener);
    for (here, mut there) in pairs {
        drop(here);
        there.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(there.read(&mut [0]).unwrap(), 0);
    }
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}
