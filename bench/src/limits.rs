//! The limits: what the machine charges for the same exchange with no system in between.
//!
//! * `limit` on two processors, polling: both sides poll one line of shared memory. The client
//!   copies larger arguments in, and the server reads them in place.
//! * `limit` on one processor, polling: the same, with `sched_yield` after each poll.
//! * parked: a bare hand-off on one processor by the primitives that the kernel provides for it:
//!   `limit-futex`, `limit-eventfd`, `limit-pipe`, `limit-socket`. The harness takes the best of
//!   them as `limit`, in both placements, because any system can bring the server's processor to
//!   the caller.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::pipe;
use rustix::thread::{futex, sched_yield};

use crate::case::{BIG, Placement};
use crate::child::{ClientSide, Outcome, Place, Ready, System, Throughput};
use crate::payload::answer;
use crate::raw::{Memory, SLOTS};

const NULL: u32 = 0;
const ADD: u32 = 1;
const BYTES_IN: u32 = 2;
const BIG_IN_OUT: u32 = 3;
/// Operation that announces how many slots are in use.
const USE: u32 = 4;

/// A method by which one side gives the processor to the other and gets it back.
pub trait HandOff: Sized + Send + 'static {
    /// Name of the system.
    const NAME: &'static str;
    /// Creates the server's half. The descriptors go to the client.
    fn create(place: &Place) -> Outcome<(Self, Vec<OwnedFd>)>;
    /// Opens the client's half from the server's descriptors.
    fn open(place: &Place, descriptors: Vec<OwnedFd>) -> Outcome<Self>;
    /// Gives the turn to the other side.
    fn wake(&mut self, turn: &AtomicU32) -> Outcome<()>;
    /// Waits until the turn is `own`.
    fn wait(&mut self, turn: &AtomicU32, own: u32) -> Outcome<Waited>;
    /// Lets the other side run if it needs this processor. Called when no slot has a call.
    fn pause(&mut self) {}
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// It may be this side's turn; some waits end early.
    Perhaps,
    /// The other side has ended.
    Alone,
}

/// Polls the line. On one processor, yields between polls.
pub struct Look {
    yields: bool,
}

impl HandOff for Look {
    const NAME: &'static str = "limit";

    fn create(place: &Place) -> Outcome<(Self, Vec<OwnedFd>)> {
        Ok((Look { yields: place.placement == Placement::OneCore }, Vec::new()))
    }

    fn open(place: &Place, _: Vec<OwnedFd>) -> Outcome<Self> {
        Ok(Look { yields: place.placement == Placement::OneCore })
    }

    #[inline]
    fn wake(&mut self, _: &AtomicU32) -> Outcome<()> {
        Ok(())
    }

    #[inline]
    fn wait(&mut self, turn: &AtomicU32, own: u32) -> Outcome<Waited> {
        while turn.load(Relaxed) != own {
            self.pause();
        }
        Ok(Waited::Perhaps)
    }

    #[inline]
    fn pause(&mut self) {
        if self.yields {
            sched_yield();
        }
    }
}

/// FUTEX_WAKE and FUTEX_WAIT on the turn itself.
pub struct Futex;

impl HandOff for Futex {
    const NAME: &'static str = "limit-futex";

    fn create(_: &Place) -> Outcome<(Self, Vec<OwnedFd>)> {
        Ok((Futex, Vec::new()))
    }

    fn open(_: &Place, _: Vec<OwnedFd>) -> Outcome<Self> {
        Ok(Futex)
    }

    fn wake(&mut self, turn: &AtomicU32) -> Outcome<()> {
        futex::wake(turn, futex::Flags::empty(), 1)?;
        Ok(())
    }

    fn wait(&mut self, turn: &AtomicU32, own: u32) -> Outcome<Waited> {
        match futex::wait(turn, futex::Flags::empty(), own.wrapping_sub(1), None) {
            Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Waited::Perhaps),
            Err(error) => Err(error.into()),
        }
    }
}

/// Carries the turn from one side to the other.
pub trait Carrier: Send + 'static {
    /// Name of the system.
    const NAME: &'static str;
    /// Size of a message, in bytes.
    const LEN: usize;
    /// Returns the ends of server and client, each as the descriptors that it
    /// writes to and reads from.
    fn ends() -> Outcome<[[OwnedFd; 2]; 2]>;
}

/// Two event counters.
pub struct Eventfd;

impl Carrier for Eventfd {
    const NAME: &'static str = "limit-eventfd";
    const LEN: usize = 8;

    fn ends() -> Outcome<[[OwnedFd; 2]; 2]> {
        let (to_client, to_server) =
            (eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
        let client = [to_server.try_clone()?, to_client.try_clone()?];
        Ok([[to_client, to_server], client])
    }
}

/// Two pipes.
pub struct Pipe;

impl Carrier for Pipe {
    const NAME: &'static str = "limit-pipe";
    const LEN: usize = 1;

    fn ends() -> Outcome<[[OwnedFd; 2]; 2]> {
        let ((client_own, to_client), (server_own, to_server)) = (pipe()?, pipe()?);
        Ok([[to_client, server_own], [to_server, client_own]])
    }
}

/// A connected pair of Unix sockets of packets; a stream takes a tenth longer.
pub struct Socket;

impl Carrier for Socket {
    const NAME: &'static str = "limit-socket";
    const LEN: usize = 1;

    fn ends() -> Outcome<[[OwnedFd; 2]; 2]> {
        let (server, client) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok([[server.try_clone()?, server], [client.try_clone()?, client]])
    }
}

/// A hand-off by writing to one descriptor and reading from another.
pub struct Descriptors<C> {
    theirs: OwnedFd,
    own: OwnedFd,
    carrier: PhantomData<C>,
}

/// The value 1 for an event counter. The other carriers accept any bytes.
const WORD: [u8; 8] = 1u64.to_ne_bytes();

impl<C: Carrier> Descriptors<C> {
    fn of([theirs, own]: [OwnedFd; 2]) -> Self {
        Descriptors { theirs, own, carrier: PhantomData }
    }
}

impl<C: Carrier> HandOff for Descriptors<C> {
    const NAME: &'static str = C::NAME;

    fn create(_: &Place) -> Outcome<(Self, Vec<OwnedFd>)> {
        let [server, client] = C::ends()?;
        Ok((Self::of(server), client.into()))
    }

    fn open(_: &Place, descriptors: Vec<OwnedFd>) -> Outcome<Self> {
        let count =
            |found: Vec<_>| format!("{} descriptors came where 2 were expected", found.len());
        Ok(Self::of(descriptors.try_into().map_err(count)?))
    }

    fn wake(&mut self, _: &AtomicU32) -> Outcome<()> {
        write(&self.theirs, &WORD[..C::LEN])?;
        Ok(())
    }

    fn wait(&mut self, _: &AtomicU32, _: u32) -> Outcome<Waited> {
        let mut word = [0; WORD.len()];
        Ok(if read(&self.own, &mut word[..C::LEN])? == 0 { Waited::Alone } else { Waited::Perhaps })
    }
}

/// A limit as a system: bare shared memory and a hand-off.
pub struct Limit<H>(PhantomData<H>);

impl<H: HandOff> System for Limit<H> {
    const NAME: &'static str = H::NAME;
    type Client = Client<H>;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let listener = UnixListener::bind(place.dir.join("limit.sock"))?;
        let (mut memory, file) = Memory::create()?;
        let (mut hand_off, descriptors) = H::create(place)?;
        ready.announce();
        let (stream, _) = listener.accept()?;
        send(&stream, std::iter::once(&file).chain(&descriptors).map(AsFd::as_fd).collect())?;
        drop(descriptors);

        let mut turns = [1; SLOTS];
        let mut slots = 1;
        loop {
            let (mut calls, looked_at) = (0, slots);
            for (slot, turn) in turns.iter_mut().enumerate().take(looked_at) {
                if memory.is_turn(slot, *turn) {
                    slots = serve(&mut memory, slot, slots);
                    memory.pass(slot, *turn);
                    *turn = turn.wrapping_add(2);
                    calls += 1;
                }
            }
            if slots > 1 {
                if calls == 0 {
                    hand_off.pause();
                }
                continue;
            }
            if calls > 0 {
                hand_off.wake(memory.turn(0))?;
            }
            if hand_off.wait(memory.turn(0), turns[0])? == Waited::Alone {
                return Ok(());
            }
        }
    }

    fn connect(place: &Place) -> Outcome<Client<H>> {
        let stream = UnixStream::connect(place.dir.join("limit.sock"))?;
        let mut descriptors = receive(&stream)?;
        if descriptors.is_empty() {
            return Err("the server sent no memory".into());
        }
        let memory = Memory::open(descriptors.remove(0))?;
        Ok(Client {
            memory,
            hand_off: H::open(place, descriptors)?,
            turns: [0; SLOTS],
            several: H::NAME == Look::NAME,
        })
    }
}

/// Answers the call in `slot`. Returns the number of slots to poll.
#[inline]
fn serve(memory: &mut Memory, slot: usize, slots: usize) -> usize {
    let call = memory.call(slot);
    match call.op {
        NULL => slots,
        ADD => {
            call.a = answer::add(call.a, call.b);
            slots
        }
        BYTES_IN => {
            let len = call.len;
            memory.call(slot).sum = answer::bytes_in(memory.argument(len));
            slots
        }
        BIG_IN_OUT => {
            let len = call.len;
            let out = answer::big_in_out(memory.argument(len));
            memory.result(BIG).copy_from_slice(&out);
            slots
        }
        _ => (call.a as usize).clamp(1, SLOTS),
    }
}

/// The client of a limit.
pub struct Client<H> {
    memory: Memory,
    hand_off: H,
    turns: [u32; SLOTS],
    /// `true` if several calls may be outstanding. Only polling permits that, because a wake stands
    /// for one turn.
    several: bool,
}

impl<H: HandOff> Client<H> {
    /// Passes the written call to the server, and waits for the reply.
    #[inline]
    fn call(&mut self) -> Outcome<()> {
        self.memory.pass(0, self.turns[0]);
        self.turns[0] = self.turns[0].wrapping_add(2);
        self.hand_off.wake(self.memory.turn(0))?;
        loop {
            if self.hand_off.wait(self.memory.turn(0), self.turns[0])? == Waited::Alone {
                return Err("the server has ended".into());
            }
            if self.memory.is_turn(0, self.turns[0]) {
                return Ok(());
            }
        }
    }

    #[inline]
    fn set_op(&mut self, slot: usize, op: u32) {
        let call = self.memory.call(slot);
        if call.op != op {
            call.op = op;
        }
    }
}

impl<H: HandOff> ClientSide for Client<H> {
    #[inline]
    fn null(&mut self) -> Outcome<()> {
        self.set_op(0, NULL);
        self.call()
    }

    #[inline]
    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        self.set_op(0, ADD);
        let call = self.memory.call(0);
        (call.a, call.b) = (a, b);
        self.call()?;
        Ok(self.memory.call(0).a)
    }

    #[inline]
    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.bytes_in(data)
    }

    #[inline]
    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        self.memory.put_argument(data);
        self.set_op(0, BIG_IN_OUT);
        self.memory.call(0).len = BIG as u64;
        self.call()?;
        let mut out = [0; BIG];
        out.copy_from_slice(self.memory.result(BIG));
        Ok(out)
    }

    #[inline]
    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        self.memory.put_argument(data);
        self.set_op(0, BYTES_IN);
        self.memory.call(0).len = data.len() as u64;
        self.call()?;
        Ok(self.memory.call(0).sum)
    }

    /// Uses `calls` slots, which are refilled as replies arrive: the most that a client with that
    /// many callers could reach.
    fn throughput(&mut self, calls: usize, time: Duration) -> Option<Outcome<Throughput>> {
        match calls {
            1 => Some(Throughput::one_caller(self, time)),
            2..=SLOTS if self.several => Some(self.sweep(calls, time)),
            _ => None,
        }
    }
}

impl<H: HandOff> Client<H> {
    fn sweep(&mut self, calls: usize, time: Duration) -> Outcome<Throughput> {
        self.use_slots(calls)?;
        for slot in 0..calls {
            self.set_op(slot, NULL);
        }
        let begun = Instant::now();
        for slot in 0..calls {
            self.post(slot);
        }
        let (mut done, mut sweeps) = (0, 0u32);
        loop {
            let before = done;
            for slot in 0..calls {
                if self.memory.is_turn(slot, self.turns[slot]) {
                    done += 1;
                    self.post(slot);
                }
            }
            if done == before {
                self.hand_off.pause();
            }
            sweeps = sweeps.wrapping_add(1);
            if sweeps.is_multiple_of(64) && begun.elapsed() >= time {
                break;
            }
        }
        let elapsed = begun.elapsed();
        for slot in 0..calls {
            while !self.memory.is_turn(slot, self.turns[slot]) {
                self.hand_off.pause();
            }
        }
        self.use_slots(1)?;
        Ok(Throughput::new(done, elapsed))
    }

    #[inline]
    fn post(&mut self, slot: usize) {
        self.memory.pass(slot, self.turns[slot]);
        self.turns[slot] = self.turns[slot].wrapping_add(2);
    }

    fn use_slots(&mut self, slots: usize) -> Outcome<()> {
        self.set_op(0, USE);
        self.memory.call(0).a = slots as i32;
        self.call()
    }
}

/// Maximum number of descriptors in one message.
const MOST: usize = 3;

fn send(stream: &UnixStream, descriptors: Vec<BorrowedFd<'_>>) -> Outcome<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(format!("{} descriptors do not fit in one message", descriptors.len()).into());
    }
    sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
    Ok(())
}

fn receive(stream: &UnixStream) -> Outcome<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok(rights.flatten().collect())
}
