//! Connections that are not admitted yet: the bytes of each one's first message so far, and the
//! deadline for the rest.
//!
//! A connection here costs its descriptor, a slot, and the bytes that it has sent, of which at most
//! [`FIRST`] are kept. It has no thread, and it has to be done within a time that begins with it.
//! When all slots are taken the oldest connection of the account with most connections goes, so an
//! account drives out its own connections while it has more than others.
//!
//! Time and bytes are arguments. The descriptors are [`crate::door`]'s.

use crate::frame::{FrameError, FrameHeader, FrameKind, HEAD, PREAMBLE, Preamble, VERSION};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

/// Maximum number of bytes of a first message that are kept; the rest is left in the kernel.
pub const FIRST: usize = 16 << 10;

/// Who is charged with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionOwner {
    /// A user of this machine.
    User(u32),
    /// A machine, by its address; of IPv6, by its network of 64 bits.
    Address(IpAddr),
}

impl ConnectionOwner {
    /// The account of an address of another machine.
    pub fn of(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
            v4 => v4,
        })
    }
}

/// What is waited for on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// Its first message.
    Message,
    /// Its end: the reason why it is not admitted was sent.
    End,
}

/// What has become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LobbyStep {
    /// More bytes are waited for.
    More,
    /// Its first message is there.
    Admit,
}

struct PendingConnection<T> {
    guest: T,
    account: ConnectionOwner,
    awaits: Awaits,
    ends: Instant,
    bytes: Vec<u8>,
}

/// See the module. `T` is a connection.
pub struct Lobby<T> {
    waiting: HashMap<u64, PendingConnection<T>>,
    most: usize,
    /// The number of the next connection: older ones have smaller numbers.
    next: u64,
}

impl<T> Lobby<T> {
    /// A lobby with so many slots, whose connections are numbered from `first` on.
    pub fn new(most: usize, first: u64) -> Self {
        Self { waiting: HashMap::new(), most, next: first }
    }

    /// Takes a connection in until `ends`. Returns its number, and the connection that has to go
    /// for it if all slots were taken.
    pub fn enter(
        &mut self,
        guest: T,
        account: ConnectionOwner,
        awaits: Awaits,
        ends: Instant,
    ) -> (u64, Option<T>) {
        let number = self.next;
        self.next += 1;
        self.waiting
            .insert(number, PendingConnection { guest, account, awaits, ends, bytes: Vec::new() });
        (number, if self.waiting.len() > self.most { self.evict() } else { None })
    }

    /// Takes out the oldest connection of the account that has most.
    pub fn evict(&mut self) -> Option<T> {
        let mut counts: HashMap<ConnectionOwner, usize> = HashMap::new();
        self.waiting.values().for_each(|waiting| *counts.entry(waiting.account).or_default() += 1);
        let oldest = |(number, waiting): (&u64, &PendingConnection<T>)| {
            (counts[&waiting.account], std::cmp::Reverse(*number))
        };
        let number =
            self.waiting.iter().max_by_key(|&entry| oldest(entry)).map(|(number, _)| *number)?;
        self.leave(number).map(|(guest, _)| guest)
    }

    /// The connection of this number, and how many bytes are to be read from it now: none that
    /// belong to a later message.
    pub fn wanted(&self, number: u64) -> Option<(&T, usize)> {
        let waiting = self.waiting.get(&number)?;
        Some((&waiting.guest, waiting.wants().unwrap_or(0)))
    }

    /// Bytes that came, at most as many as are wanted.
    ///
    /// # Errors
    /// They are not what a client begins with.
    pub fn came(&mut self, number: u64, bytes: &[u8]) -> Result<LobbyStep, FrameError> {
        let Some(waiting) = self.waiting.get_mut(&number) else { return Ok(LobbyStep::More) };
        if waiting.awaits == Awaits::End {
            return Ok(LobbyStep::More);
        }
        waiting.bytes.extend_from_slice(bytes);
        Ok(if waiting.wants()? == 0 { LobbyStep::Admit } else { LobbyStep::More })
    }

    /// Takes a connection out. Returns what came behind its preamble, too.
    pub fn leave(&mut self, number: u64) -> Option<(T, Vec<u8>)> {
        let waiting = self.waiting.remove(&number)?;
        let mut bytes = waiting.bytes;
        bytes.drain(..PREAMBLE.min(bytes.len()));
        Some((waiting.guest, bytes))
    }

    /// From now on only the end of this connection is waited for, and its bytes are dropped.
    pub fn dismiss(&mut self, number: u64, ends: Instant) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            (waiting.awaits, waiting.ends) = (Awaits::End, ends);
            waiting.bytes = Vec::new();
        }
    }

    /// The account that is charged with a connection.
    pub fn account(&self, number: u64) -> Option<ConnectionOwner> {
        self.waiting.get(&number).map(|waiting| waiting.account)
    }

    /// When the next connection has to go.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.ends).min()
    }

    /// Takes out those whose time is up.
    pub fn expired(&mut self, now: Instant) -> Vec<T> {
        let late = self.waiting.extract_if(|_, waiting| waiting.ends <= now);
        late.map(|(_, waiting)| waiting.guest).collect()
    }
}

impl<T> PendingConnection<T> {
    /// How many more bytes are wanted.
    fn wants(&self) -> Result<usize, FrameError> {
        if self.awaits == Awaits::End {
            return Ok(FIRST);
        }
        let Some((preamble, rest)) = self.bytes.split_first_chunk::<PREAMBLE>() else {
            // A peer that speaks something else need not be waited for.
            return match Preamble::may_begin(&self.bytes) {
                true => Ok(PREAMBLE - self.bytes.len()),
                false => Err(FrameError("it does not speak Upcall's protocol")),
            };
        };
        if Preamble::read(preamble)?.version != VERSION {
            return Err(FrameError("it has another version"));
        }
        let Some((head, body)) = rest.split_first_chunk::<HEAD>() else {
            return Ok(HEAD - rest.len());
        };
        let head = FrameHeader::read(head)?;
        if head.kind != FrameKind::Ask {
            return Err(FrameError("a client asks for a binding first"));
        }
        Ok(head.len.min(FIRST - PREAMBLE - HEAD).saturating_sub(body.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameBody;
    use std::time::Duration;

    fn first(len: usize) -> Vec<u8> {
        let head = FrameHeader {
            kind: FrameKind::Ask,
            call: 1,
            binding: 0,
            number: 0,
            left: None,
            len: 0,
        };
        let preamble = Preamble { version: VERSION, window: 1 }.to_bytes();
        [preamble.to_vec(), head.with(&FrameBody::from(&*vec![7; len]))].concat()
    }

    fn lobby(most: usize) -> (Lobby<&'static str>, Instant) {
        (Lobby::new(most, 0), Instant::now())
    }

    #[test]
    fn a_first_message_is_gathered_from_pieces_of_any_length() {
        for piece in [1, 5, 16, 17, 48, 49, 4096] {
            for len in [0, 1, 100, FIRST, 3 * FIRST] {
                let (mut lobby, now) = lobby(9);
                let (number, gone) =
                    lobby.enter("a", ConnectionOwner::User(1), Awaits::Message, now);
                assert_eq!(gone, None);
                let (all, mut at) = (first(len), 0);
                loop {
                    let (_, wanted) = lobby.wanted(number).unwrap();
                    assert!(wanted > 0, "{piece} {len}");
                    let end = at + wanted.min(piece).min(all.len() - at);
                    let step = lobby.came(number, &all[at..end]).unwrap();
                    at = end;
                    if step == LobbyStep::Admit {
                        break;
                    }
                }
                // All of it, or as much as is kept; nothing of what follows.
                assert_eq!(at, all.len().min(FIRST), "{piece} {len}");
                assert_eq!(lobby.leave(number).unwrap(), ("a", all[PREAMBLE..at].to_vec()));
                assert!(lobby.leave(number).is_none() && lobby.due().is_none());
            }
        }
    }

    #[test]
    fn what_is_no_first_message_is_refused_as_soon_as_that_is_known() {
        let call = FrameHeader {
            kind: FrameKind::Call,
            call: 1,
            binding: 0,
            number: 0,
            left: None,
            len: 9,
        }
        .to_bytes();
        let preamble = Preamble { version: VERSION, window: 1 }.to_bytes();
        let older = Preamble { version: VERSION - 1, window: 1 }.to_bytes();
        for bytes in [
            b"GET / HTTP/1.1".to_vec(),
            older.to_vec(),
            [preamble.to_vec(), call.to_vec()].concat(),
            vec![0; 16],
        ] {
            let (mut lobby, now) = lobby(9);
            let (number, _) = lobby.enter("a", ConnectionOwner::User(1), Awaits::Message, now);
            let wrong = bytes.iter().any(|byte| lobby.came(number, &[*byte]).is_err());
            assert!(wrong, "{bytes:?}");
        }
    }

    #[test]
    fn the_oldest_of_the_one_who_has_most_goes() {
        let (mut lobby, now) = lobby(4);
        let mut enter =
            |guest, user| lobby.enter(guest, ConnectionOwner::User(user), Awaits::Message, now).1;
        assert_eq!(
            ["b1", "a1", "a2", "a3"].map(|guest| enter(guest, u32::from(guest.as_bytes()[0]))),
            [None; 4]
        );
        // The oldest of all is not of the one who has most.
        assert_eq!(enter("b2", u32::from(b'b')), Some("a1"));
        assert_eq!(enter("a4", u32::from(b'a')), Some("a2"));
        // Both have two.
        assert_eq!(enter("c1", u32::from(b'c')), Some("b1"));
        assert_eq!(enter("a5", u32::from(b'a')), Some("a3"));
    }

    #[test]
    fn time_is_counted_from_the_beginning_and_not_from_the_last_byte() {
        let (mut lobby, now) = lobby(9);
        let second = Duration::from_secs(1);
        let (slow, _) =
            lobby.enter("slow", ConnectionOwner::User(1), Awaits::Message, now + 5 * second);
        let (told, _) =
            lobby.enter("told", ConnectionOwner::User(1), Awaits::Message, now + 9 * second);
        assert_eq!(lobby.came(slow, &first(0)[..20]), Ok(LobbyStep::More));
        assert_eq!(lobby.due(), Some(now + 5 * second));
        assert!(lobby.expired(now + 4 * second).is_empty());
        assert_eq!(lobby.expired(now + 5 * second), ["slow"]);
        // Bytes of a connection that was refused are not kept.
        lobby.dismiss(told, now + 6 * second);
        assert_eq!(lobby.came(told, &[9; 100]), Ok(LobbyStep::More));
        assert_eq!(lobby.wanted(told).unwrap().1, FIRST);
        assert_eq!(lobby.expired(now + 6 * second), ["told"]);
    }

    #[test]
    fn a_network_of_ipv6_is_one_account() {
        let of = |text: &str| ConnectionOwner::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
