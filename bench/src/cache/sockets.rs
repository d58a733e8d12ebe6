//! Redis and Memcached over a Unix socket, as fast as a client can be: requests that were written
//! before, one system call to send and, as a rule, one to receive, and answers whose every byte is
//! known but for the value's. In the way `sleep` the client's thread sleeps until there is an
//! answer, and in `spin` it asks for it again and again.

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

/// A server that ends says so by closing; one that hangs must not hang the client.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a peer has of its own.
pub trait Protocol: 'static {
    /// The name on the command line.
    const NAME: &'static str;

    /// The server's command, with everything in memory and nothing on disks.
    fn command(place: &Place, socket: PathBuf) -> Command;

    /// Appends a request for an entry; `value` if it is to be put there. What comes before the
    /// value in the answer, and after it; or all of the answer.
    fn request(key: &str, value: Option<&[u8]>, to: &mut Vec<u8>) -> [Vec<u8>; 2];
}

/// Redis, by its protocol RESP.
pub struct Redis;

impl Protocol for Redis {
    const NAME: &'static str = "redis";

    fn command(place: &Place, socket: PathBuf) -> Command {
        let mut command = Command::new("redis-server");
        // Its other threads free what is large and write files: there is nothing of either.
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
        // Room for everything, so that nothing is put out; one thread, as it is on one processor.
        // Of its hash table the size that a million entries take from the beginning.
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
        // Whom this becomes is killed with the harness, as this is.
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

/// A client, with its requests.
pub struct Connection<P> {
    stream: UnixStream,
    spins: bool,
    requests: Vec<u8>,
    steps: Vec<Step>,
    /// What is expected around the values, one after another.
    around: Vec<u8>,
    expected: Vec<Expected>,
    reply: Vec<u8>,
    peer: std::marker::PhantomData<P>,
}

/// The bytes of a step's requests, and how many its answers have.
struct Step {
    request: Range<usize>,
    answer: usize,
}

/// An answer, by its parts in `around`.
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

    /// Appends some of an answer that has so many bytes to those that are there.
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
        format!("{} has answered something else than expected: {said:?}", P::NAME)
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
