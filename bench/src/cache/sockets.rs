//! Redis and Memcached over a Unix socket, as fast as a client can be.
//!
//! Requests are written beforehand, one system call sends them and usually one receives the
//! answers, and every byte of an answer is known except the value's. With the method `sleep` the
//! client's thread sleeps until an answer arrives; with `spin` it polls.

use std::hint::spin_loop;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::case::Case;
use super::child::{Batch, Client, Place, Store};
use super::entries::{VALUE, check};
use crate::child::{Outcome, Ready};

/// Maximum wait for a server. A server that ends closes the socket, and a hanging server must
/// not hang the client.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is specific to a peer.
pub trait Protocol: 'static {
    /// Name on the command line.
    const NAME: &'static str;

    /// Returns the server's command, with everything in memory and nothing on disk.
    fn command(place: &Place, socket: PathBuf) -> Command;

    /// Appends a request for an entry; `value` is given for a put. Returns the bytes of the answer
    /// before the value and after it, or the whole answer.
    fn request(key: &str, value: Option<&[u8]>, to: &mut Vec<u8>) -> [Vec<u8>; 2];
}

/// Redis, by its protocol RESP.
pub struct Redis;

impl Protocol for Redis {
    const NAME: &'static str = "redis";

    fn command(place: &Place, socket: PathBuf) -> Command {
        let mut command = Command::new("redis-server");
        // Redis' other threads free large values and write files; there are neither here.
        command.args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--daemonize",
            "no",
            "--loglevel",
            "warning",
        ]);
        command
            .arg("--dir")
            .arg(&place.dir)
            .arg("--unixsocket")
            .arg(socket)
            .args(["--unixsocketperm", "700"]);
        command
    }

    fn request(key: &str, value: Option<&[u8]>, to: &mut Vec<u8>) -> [Vec<u8>; 2] {
        let Some(value) = value else {
            to.extend(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).bytes());
            return [format!("${VALUE}\r\n").into(), b"\r\n".into()];
        };
        to.extend(
            format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len()).bytes(),
        );
        to.extend(value.iter().chain(b"\r\n"));
        [b"+OK\r\n".into(), Vec::new()]
    }
}

/// Memcached, by its text protocol.
pub struct Memcached;

impl Protocol for Memcached {
    const NAME: &'static str = "memcached";

    fn command(_: &Place, socket: PathBuf) -> Command {
        let mut command = Command::new("memcached");
        // Enough memory, so that nothing is evicted, and one thread, since there is one processor.
        // The hash table initially has the size that a million entries need.
        command
            .args(["-m", "4096", "-t", "1", "-a", "0700", "-o", "hashpower=20", "-s"])
            .arg(socket);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        command
    }

    fn request(key: &str, value: Option<&[u8]>, to: &mut Vec<u8>) -> [Vec<u8>; 2] {
        let Some(value) = value else {
            to.extend(format!("get {key}\r\n").bytes());
            return [format!("VALUE {key} 0 {VALUE}\r\n").into(), b"\r\nEND\r\n".into()];
        };
        to.extend(format!("set {key} 0 0 {}\r\n", value.len()).bytes());
        to.extend(value.iter().chain(b"\r\n"));
        [b"STORED\r\n".into(), Vec::new()]
    }
}

impl<P: Protocol> Store for P {
    const NAME: &'static str = P::NAME;
    const FILL: (&'static str, Case) = ("sleep", Case::Put16);
    type Client = Connection<P>;

    fn serve(place: &Place, _: Ready) -> Outcome<()> {
        // The program that replaces this process is killed with the harness, as this process is.
        let error = P::command(place, socket::<P>(place)).exec();
        Err(format!("{} cannot be started: {error}", P::NAME).into())
    }

    fn connect(place: &Place) -> Outcome<Connection<P>> {
        let stream = UnixStream::connect(socket::<P>(place))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection::new(stream))
    }
}

fn socket<P: Protocol>(place: &Place) -> PathBuf {
    place.dir.join(format!("{}.sock", P::NAME))
}

/// A client with its requests.
pub struct Connection<P> {
    stream: UnixStream,
    spins: bool,
    requests: Vec<u8>,
    steps: Vec<Step>,
    /// The expected bytes around the values, one after another.
    around: Vec<u8>,
    expected: Vec<Expected>,
    reply: Vec<u8>,
    peer: std::marker::PhantomData<P>,
}

/// The bytes of a step's requests, and the length of its answers.
struct Step {
    request: Range<usize>,
    answer: usize,
}

/// An answer, as ranges of `around`.
struct Expected {
    before: Range<usize>,
    after: Range<usize>,
}

impl<P: Protocol> Connection<P> {
    fn new(stream: UnixStream) -> Self {
        let (requests, steps, around, expected) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            stream,
            spins: false,
            requests,
            steps,
            around,
            expected,
            reply: vec![0; 1 << 16],
            peer: std::marker::PhantomData,
        }
    }

    /// Receives more of an answer with `answer` bytes, of which `there` have been read.
    #[inline]
    fn read(&mut self, there: usize, answer: usize) -> io::Result<usize> {
        let Self { stream, spins, reply, .. } = self;
        let mut more = || stream.read(&mut reply[there..answer]);
        if !*spins {
            return more();
        }
        let mut begun = None;
        loop {
            for _ in 0..1 << 12 {
                match more() {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
                    read => return read,
                }
            }
            if begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    fn unexpected(&self, read: usize) -> String {
        let said = String::from_utf8_lossy(&self.reply[..read.min(80)]).into_owned();
        format!("{} sent an unexpected answer: {said:?}", P::NAME)
    }
}

impl<P: Protocol> Client for Connection<P> {
    fn prepare(&mut self, way: &str, batch: &Batch) -> Outcome<()> {
        let spins = way == "spin";
        if self.spins != spins {
            self.stream.set_nonblocking(spins)?;
            self.spins = spins;
        }
        self.requests.clear();
        self.steps.clear();
        self.around.clear();
        self.expected.clear();
        let value = if batch.case.puts() { 0 } else { VALUE };
        for step in 0..batch.steps() {
            let (begin, mut answer) = (self.requests.len(), 0);
            for at in batch.step(step) {
                let put = batch.case.puts().then(|| batch.value(at));
                let [before, after] =
                    P::request(batch.key(at), put, &mut self.requests).map(|part| {
                        let begin = self.around.len();
                        self.around.extend(part);
                        begin..self.around.len()
                    });
                answer += before.len() + value + after.len();
                self.expected.push(Expected { before, after });
            }
            self.steps.push(Step { request: begin..self.requests.len(), answer });
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self, batch: &Batch, step: usize) -> Outcome<()> {
        let Step { request, answer } = &self.steps[step];
        let answer = *answer;
        self.stream.write_all(&self.requests[request.clone()])?;
        let mut read = 0;
        while read < answer {
            let more = self.read(read, answer).map_err(|error| {
                let said = self.unexpected(read);
                format!("{error}; {said}")
            })?;
            if more == 0 {
                return Err(format!("{} has ended", P::NAME).into());
            }
            read += more;
        }
        let (value, mut from) = (if batch.case.puts() { 0 } else { VALUE }, 0);
        for at in batch.step(step) {
            let Expected { before, after } = &self.expected[at];
            let values = from + before.len();
            let end = values + value + after.len();
            if self.reply[from..values] != self.around[before.clone()]
                || self.reply[values + value..end] != self.around[after.clone()]
            {
                return Err(self.unexpected(read).into());
            }
            if value > 0 {
                check(batch.number(at), &self.reply[values..values + value])?;
            }
            from = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_the_protocols_have_them() {
        let mut to = Vec::new();
        assert_eq!(Redis::request("ab", None, &mut to), [b"$100\r\n".to_vec(), b"\r\n".to_vec()]);
        assert_eq!(to, b"*2\r\n$3\r\nGET\r\n$2\r\nab\r\n");
        to.clear();
        Redis::request("ab", Some(b"xyz"), &mut to);
        assert_eq!(to, b"*3\r\n$3\r\nSET\r\n$2\r\nab\r\n$3\r\nxyz\r\n");
        to.clear();
        assert_eq!(
            Memcached::request("ab", None, &mut to),
            [b"VALUE ab 0 100\r\n".to_vec(), b"\r\nEND\r\n".to_vec()]
        );
        assert_eq!(to, b"get ab\r\n");
        to.clear();
        Memcached::request("ab", Some(b"xyz"), &mut to);
        assert_eq!(to, b"set ab 0 0 3\r\nxyz\r\n");
    }
}
