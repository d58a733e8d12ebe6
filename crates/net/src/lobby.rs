//! Connections that are not admitted yet.
//!
//! The lobby has the bytes of each one's first message so far, and the deadline for the rest.
//!
//! A connection here costs its descriptor, a slot, and the bytes that it has sent, of which at most
//! [`FIRST`] are kept. It has no thread, and its time limit starts when it connects. When all slots
//! are taken, the oldest connection of the account with the most connections is evicted. So an
//! account evicts its own connections while it has more than any other.
//!
//! Time and bytes are arguments. The descriptors belong to [`crate::door`].

use crate::frame::{FrameError, FrameHeader, FrameKind, HEAD};
use crate::identity::HostName;
use crate::record::{
    HELLO, Hello, MOST_PAYLOAD, RECORD, RecordHeader, RecordKind, SessionStart, VERSION,
};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

/// Maximum number of bytes that are kept: a hello, and a record.
pub const FIRST: usize = HELLO + RECORD + MOST_PAYLOAD;

/// The account that is charged with a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionOwner {
    /// A user of this machine.
    User(u32),
    /// A machine, by its address; for IPv6, by its 64-bit network prefix.
    Address(IpAddr),
    /// A host that has proved its name.
    Host(HostName),
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

/// What the lobby awaits on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// Its hello, after which it gets the reason for not admitting it.
    Hello,
    /// Its first message, or as much of it as fits in one record.
    Message,
    /// Its end, after the reason for not admitting it was sent.
    End,
}

/// The result of adding bytes to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LobbyStep {
    /// More bytes are needed.
    More,
    /// What was awaited has arrived.
    Admit,
}

/// Why a connection is not one of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoClient {
    /// A client does not begin with these bytes.
    Broken(FrameError),
    /// It has another version of the protocol.
    Version,
}

impl From<FrameError> for NoClient {
    fn from(error: FrameError) -> Self {
        Self::Broken(error)
    }
}

struct PendingConnection<T> {
    guest: T,
    account: ConnectionOwner,
    awaits: Awaits,
    ends: Instant,
    bytes: Vec<u8>,
}

/// Connections that are not admitted yet, each a `T`; see the module.
pub struct Lobby<T> {
    waiting: HashMap<u64, PendingConnection<T>>,
    most: usize,
    /// The number of the next connection: older ones have smaller numbers.
    next: u64,
}

impl<T> Lobby<T> {
    /// Makes a lobby of `most` slots, whose connections are numbered from `first` on.
    pub fn new(most: usize, first: u64) -> Self {
        Self { waiting: HashMap::new(), most, next: first }
    }

    /// Adds a connection, which may stay until `ends`.
    ///
    /// Returns its number, and the connection that was evicted for it if all slots were taken.
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

    /// Removes the oldest connection of the account that has the most.
    pub fn evict(&mut self) -> Option<T> {
        let mut counts: HashMap<&ConnectionOwner, usize> = HashMap::new();
        self.waiting.values().for_each(|waiting| *counts.entry(&waiting.account).or_default() += 1);
        let oldest = |(number, waiting): (&u64, &PendingConnection<T>)| {
            (counts[&waiting.account], std::cmp::Reverse(*number))
        };
        let number =
            self.waiting.iter().max_by_key(|&entry| oldest(entry)).map(|(number, _)| *number)?;
        self.leave(number).map(|(guest, _)| guest)
    }

    /// The connection with this number, and how many bytes are kept of it at most from now on.
    pub fn wanted(&mut self, number: u64) -> Option<(&mut T, usize)> {
        let waiting = self.waiting.get_mut(&number)?;
        Some((&mut waiting.guest, FIRST.saturating_sub(waiting.bytes.len())))
    }

    /// Adds bytes that have arrived, at most as many as are wanted.
    ///
    /// # Errors
    /// A client does not begin with these bytes.
    pub fn came(&mut self, number: u64, bytes: &[u8]) -> Result<LobbyStep, NoClient> {
        let Some(waiting) = self.waiting.get_mut(&number) else { return Ok(LobbyStep::More) };
        if waiting.awaits == Awaits::End {
            return Ok(LobbyStep::More);
        }
        waiting.bytes.extend_from_slice(bytes);
        waiting.step()
    }

    /// The hello of a connection, once it has arrived.
    pub fn hello(&self, number: u64) -> Option<Hello> {
        let bytes = self.waiting.get(&number)?.bytes.first_chunk::<HELLO>()?;
        Hello::read(bytes).ok()
    }

    /// Removes a connection. Returns it with its bytes after the hello.
    pub fn leave(&mut self, number: u64) -> Option<(T, Vec<u8>)> {
        let waiting = self.waiting.remove(&number)?;
        let mut bytes = waiting.bytes;
        bytes.drain(..HELLO.min(bytes.len()));
        Some((waiting.guest, bytes))
    }

    /// Drops the bytes of a connection, and awaits only its end, until `ends`.
    pub fn dismiss(&mut self, number: u64, ends: Instant) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            (waiting.awaits, waiting.ends) = (Awaits::End, ends);
            waiting.bytes = Vec::new();
        }
    }

    /// The account that is charged with a connection.
    pub fn account(&self, number: u64) -> Option<ConnectionOwner> {
        self.waiting.get(&number).map(|waiting| waiting.account.clone())
    }

    /// Charges another account with a connection, and changes what is awaited of it.
    pub fn judge(&mut self, number: u64, account: ConnectionOwner, awaits: Awaits) {
        if let Some(waiting) = self.waiting.get_mut(&number) {
            (waiting.account, waiting.awaits) = (account, awaits);
        }
    }

    /// The earliest deadline of all connections.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.ends).min()
    }

    /// Removes the connections whose deadline has passed.
    pub fn expired(&mut self, now: Instant) -> Vec<T> {
        let late = self.waiting.extract_if(|_, waiting| waiting.ends <= now);
        late.map(|(_, waiting)| waiting.guest).collect()
    }
}

impl<T> PendingConnection<T> {
    /// What the bytes so far amount to.
    fn step(&self) -> Result<LobbyStep, NoClient> {
        // A peer that speaks another protocol, or version, need not be waited for.
        if !Hello::may_begin(&self.bytes) {
            return Err(FrameError("it does not speak Upcall's protocol").into());
        }
        if Hello::version_of(&self.bytes).is_some_and(|version| version != VERSION) {
            return Err(NoClient::Version);
        }
        let Some((hello, rest)) = self.bytes.split_first_chunk::<HELLO>() else {
            return Ok(LobbyStep::More);
        };
        let hello = Hello::read(hello)?;
        if self.awaits == Awaits::Hello || hello.begins == SessionStart::GoesOn {
            return Ok(LobbyStep::Admit);
        }
        let Some((record, payload)) = rest.split_first_chunk::<RECORD>() else {
            return Ok(LobbyStep::More);
        };
        let record = RecordHeader::read(record)?;
        if record.kind != RecordKind::Begin {
            return Err(FrameError("a client begins with a message").into());
        }
        if let Some(head) = payload.first_chunk::<HEAD>()
            && FrameHeader::read(head)?.kind != FrameKind::Ask
        {
            return Err(FrameError("a client asks for a binding first").into());
        }
        Ok(if payload.len() < record.len { LobbyStep::More } else { LobbyStep::Admit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameBody;
    use crate::link::{HostLink, LinkTerms};
    use crate::outgoing::OutMessage;
    use std::time::Duration;

    /// What a client sends first, with a request of this length.
    fn first(kind: FrameKind, len: usize) -> Vec<u8> {
        let head = FrameHeader { call: 1, ..FrameHeader::of(kind) };
        let mut link = HostLink::client([1; 16], LinkTerms { window: 1, patience: Duration::ZERO });
        let body = FrameBody::from(&*vec![7; len]);
        link.send(1, OutMessage { head, body, owner: None });
        link.connect();
        let mut all = Vec::new();
        while let Some(count) = Some(link.output().unwrap().len()).filter(|&count| count > 0) {
            all.extend_from_slice(link.output().unwrap());
            link.sent(count);
        }
        all
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
                let (all, mut at) = (first(FrameKind::Ask, len), 0);
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
                // The whole message, or its first record.
                assert!(at >= all.len().min(FIRST), "{piece} {len}");
                assert_eq!(lobby.hello(number).unwrap().session, [1; 16]);
                assert_eq!(lobby.leave(number).unwrap(), ("a", all[HELLO..at].to_vec()));
                assert!(lobby.leave(number).is_none() && lobby.due().is_none());
            }
        }
    }

    #[test]
    fn what_is_no_first_message_is_refused_as_soon_as_that_is_known() {
        let mut older = first(FrameKind::Ask, 0);
        older[8] -= 1;
        let mut ack = first(FrameKind::Ask, 0);
        ack[HELLO] = RecordKind::Ack as u8;
        for bytes in
            [b"GET / HTTP/1.1".to_vec(), older, ack, first(FrameKind::Call, 9), vec![0; 16]]
        {
            let (mut lobby, now) = lobby(9);
            let (number, _) = lobby.enter("a", ConnectionOwner::User(1), Awaits::Message, now);
            let wrong = bytes.iter().any(|byte| lobby.came(number, &[*byte]).is_err());
            assert!(wrong, "{bytes:?}");
        }
    }

    #[test]
    fn who_is_not_admitted_is_told_after_its_hello() {
        let (mut lobby, now) = lobby(9);
        let (number, _) = lobby.enter("a", ConnectionOwner::User(1), Awaits::Hello, now);
        let all = first(FrameKind::Ask, 0);
        assert_eq!(lobby.came(number, &all[..HELLO - 1]), Ok(LobbyStep::More));
        assert_eq!(lobby.hello(number), None);
        assert_eq!(lobby.came(number, &all[HELLO - 1..HELLO]), Ok(LobbyStep::Admit));
        assert!(lobby.hello(number).is_some());
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
        // The oldest of all does not belong to the account that has the most.
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
        assert_eq!(lobby.came(slow, &first(FrameKind::Ask, 0)[..20]), Ok(LobbyStep::More));
        assert_eq!(lobby.due(), Some(now + 5 * second));
        assert!(lobby.expired(now + 4 * second).is_empty());
        assert_eq!(lobby.expired(now + 5 * second), ["slow"]);
        // Bytes of a refused connection are not kept.
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
