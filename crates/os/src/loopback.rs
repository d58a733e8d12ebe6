//! The user at the other end of a TCP connection within this machine.
//!
//! Unlike a Unix socket, a TCP connection does not identify its peer. But if both ends are on this
//! machine, the kernel knows the user of each end, and reports it to any process. It does so by
//! `sock_diag`, which looks one connection up (some µs), or where that is missing in
//! `/proc/net/tcp`, which is a walk through all connections (5 ms here). An end that its owner has
//! closed has no user any more (it is shown as root's), and is in another state than an open one:
//! only open ones count.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The user that holds the end at `theirs` of an open connection to `ours`.
///
/// Both ends are on this machine. `None` if there is no such connection (any more), or the kernel
/// does not report it.
pub fn user_of(theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    let (theirs, ours) = (plain(theirs), plain(ours));
    look_up(theirs, ours).unwrap_or_else(|_| search(theirs, ours))
}

/// `SOCK_DIAG_BY_FAMILY`, as a request and as its reply; then the type of a reply that is an error.
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const NOT_FOUND: i32 = -2;
/// Bytes of a header; of a request, header included; and of the part of a reply that is read.
const HEADER: usize = 16;
const REQUEST: usize = HEADER + 56;
const ANSWER: usize = HEADER + 72;

/// Looks the connection up by `sock_diag`.
fn look_up(theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        flags,
        Some(netlink::SOCK_DIAG),
    )?;
    rustix::net::send(&socket, &request(theirs, ours), SendFlags::empty())?;
    let mut answer = [0; 512];
    let (len, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    read(&answer[..len])
        .ok_or_else(|| io::Error::other("the kernel's reply is not one to the request"))?
}

/// `nlmsghdr`, then `inet_diag_req_v2`: the family, TCP, all states, the ports and addresses in
/// network order, any interface, no cookie.
fn request(theirs: SocketAddr, ours: SocketAddr) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&1u16.to_ne_bytes());
    let family = if theirs.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    bytes[HEADER] = family.as_raw() as u8;
    bytes[HEADER + 1] = 6;
    bytes[HEADER + 4..HEADER + 8].fill(0xff);
    for (end, port, address) in [(theirs, 24, 28), (ours, 26, 44)] {
        bytes[port..port + 2].copy_from_slice(&end.port().to_be_bytes());
        match end.ip() {
            IpAddr::V4(ip) => bytes[address..address + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[address..address + 16].copy_from_slice(&ip.octets()),
        }
    }
    bytes[64..].fill(0xff);
    bytes
}

/// Reads `nlmsghdr`, then `inet_diag_msg` or an error's number. `None` if it is neither.
fn read(answer: &[u8]) -> Option<io::Result<Option<u32>>> {
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    match kind {
        BY_FAMILY if answer.len() >= ANSWER => {
            const ESTABLISHED: u8 = 1;
            let user = word(HEADER + 64)?;
            Some(Ok((answer[HEADER + 1] == ESTABLISHED).then_some(user)))
        }
        ERROR => match word(HEADER)?.cast_signed() {
            NOT_FOUND => Some(Ok(None)),
            error => Some(Err(io::Error::from_raw_os_error(error.wrapping_neg()))),
        },
        _ => None,
    }
}

/// Searches the list of all connections.
fn search(theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    let mapped = |at: SocketAddr| match at.ip() {
        IpAddr::V4(ip) => SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), at.port()),
        IpAddr::V6(_) => at,
    };
    let tables: [(&str, SocketAddr, SocketAddr); 2] = [
        ("/proc/self/net/tcp", theirs, ours),
        ("/proc/self/net/tcp6", mapped(theirs), mapped(ours)),
    ];
    tables
        .iter()
        .find_map(|(path, theirs, ours)| find(&std::fs::read_to_string(path).ok()?, *theirs, *ours))
}

/// The address, as IPv4 if it is an IPv4 address mapped into IPv6.
fn plain(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

const ESTABLISHED: &str = "01";

fn find(table: &str, theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    let (theirs, ours) = (as_shown(theirs), as_shown(ours));
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let here = words.next()? == theirs && words.next()? == ours && words.next()? == ESTABLISHED;
        // Between the state and the user: two queues, a timer, and the number of retransmissions.
        here.then(|| words.nth(3)?.parse().ok())?
    })
}

/// The address as the kernel shows it: in words of this machine's byte order.
fn as_shown(at: SocketAddr) -> String {
    let words = |bytes: &[u8]| {
        let words = bytes.as_chunks::<4>().0;
        words.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word))).collect::<String>()
    };
    let ip = match at.ip() {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&Ipv6Addr::octets(&ip)),
    };
    format!("{ip}:{:04X}", at.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_other_end_is_ours_while_it_is_open() {
        for (listens, connects) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]"), ("[::]:0", "127.0.0.1")]
        {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(listens) else { continue };
            let port = listener.local_addr().unwrap().port();
            let Ok(client) = TcpStream::connect(format!("{connects}:{port}")) else { continue };
            let (mut server, theirs) = listener.accept().unwrap();
            let ours = server.local_addr().unwrap();
            let (theirs, ours) = (plain(theirs), plain(ours));
            // By both ways, if both exist.
            let users = |theirs, ours| {
                [look_up(theirs, ours).unwrap_or(search(theirs, ours)), search(theirs, ours)]
            };
            assert_eq!(users(theirs, ours), [Some(crate::socket::own_user()); 2], "{listens}");
            assert_eq!(users(ours, SocketAddr::new(ours.ip(), 1)), [None; 2], "{listens}");
            drop(client);
            // Another test may just have forked: its child has the descriptor until it executes a
            // program.
            assert_eq!(server.read(&mut [0]).unwrap(), 0, "{listens}: the end of what was sent");
            assert_eq!(users(theirs, ours), [None; 2], "{listens}: closed");
        }
    }

    #[test]
    fn what_the_kernel_may_answer() {
        let mut answer = [0; ANSWER];
        answer[4] = BY_FAMILY as u8;
        answer[HEADER + 64..HEADER + 68].copy_from_slice(&1001u32.to_ne_bytes());
        assert_eq!(read(&answer).unwrap().unwrap(), None, "not open");
        answer[HEADER + 1] = 1;
        assert_eq!(read(&answer).unwrap().unwrap(), Some(1001));
        assert!(read(&answer[..ANSWER - 1]).is_none() && read(&[]).is_none());
        answer[4] = ERROR as u8;
        assert!(read(&answer).unwrap().is_err());
        answer[HEADER..HEADER + 4].copy_from_slice(&NOT_FOUND.to_ne_bytes());
        assert_eq!(read(&answer).unwrap().unwrap(), None);
    }

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let table = "  sl  local_address rem_address   st \
            tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  \
            1000        0 4711 1 0 20 4 30 10 -1\n   \
            1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  \
            1001        0 4712 1 0 20 4 30 10 -1\n   \
            2: 0100007F:C351 0100007F:1F90 04 00000000:00000000 00:00000000 00000000     \
            0        0 0 1 0 20 4 30 10 -1\n";
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(find(table, at(50000), at(8080)), Some(1001));
        assert_eq!(find(table, at(50001), at(8080)), None);
        assert_eq!(find(table, at(50002), at(8080)), None);
        assert_eq!(find("\n\n x", at(1), at(2)), None);
    }
}
