//! NATS with TLS 1.3, and certificates on both sides, by its official client.
//!
//! The server starts the broker, Debian's `nats-server`, on its host. It is a client of the broker
//! too: a service that answers requests and takes messages. It has one subscription, so that it
//! gets all messages of a sender in order.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::{ConnectOptions, Message, Subscriber};
use futures::StreamExt;
use tokio::runtime::Runtime;
use tokio_util::bytes::Bytes;
use upcall_bench::child::{Outcome, Ready, become_program};
use upcall_bench::hosts::child::{ClientSide, Place, System, Ticket};
use upcall_bench::payload::{answer, checksum};

use crate::callers;
use crate::certificates::{self, Proof};

/// The argument with which this program becomes the broker.
pub const BROKER: &str = "nats-broker";

/// The subjects of the service, and the one of its messages to the client.
const ALL: &str = "bench.>";
const NULL: &str = "bench.null";
const BYTES_IN: &str = "bench.bytes-in";
/// Asks for an answer.
const ASKS: &str = "bench.asks";
const DATA: &str = "bench.data";
/// Asks for the sum of the data since the last such request, after this many messages.
const ENDS: &str = "bench.ends";
const ANSWERS: &str = "answers";

/// The system `nats`.
pub struct Nats;

impl System for Nats {
    const NAME: &'static str = "nats";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let said = start_broker(place)?;
        // The broker writes a line for each connection that has ended wrongly.
        std::thread::spawn(|| {
            said.lines().map_while(Result::ok).for_each(|line| eprintln!("{line}"))
        });
        callers::runtime()?.block_on(async {
            let client = connect(place).await?;
            let mut messages = client.subscribe(ALL).await?;
            client.flush().await?;
            ready.announce();
            let mut service = Service { client, taken: (0, 0) };
            while let Some(message) = messages.next().await {
                service.take(message).await?;
            }
            Err("the broker has closed the connection".into())
        })
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let mut client = Client { runtime: callers::runtime()?, to: None, place: place.clone() };
        client.reconnect(Ticket::None)?;
        Ok(client)
    }
}

/// Starts the broker, and returns what it says after it is ready. It dies with this process.
fn start_broker(place: &Place) -> Outcome<BufReader<ChildStderr>> {
    let (authority, Proof { certificate, key }) = certificates::make(place, Nats::NAME)?;
    let file = |name: &str, text: &str| {
        let path = place.dir.join(format!("nats-{name}"));
        fs::write(&path, text).map(|()| path)
    };
    let certificates = [
        file("server.pem", &certificate)?,
        file("server-key.pem", &key)?,
        file("clients.pem", &authority)?,
    ];
    let [certificate, key, authority] = certificates.each_ref().map(|path| path.display());
    // Messages of 1 MiB are the longest by default.
    let config = format!(
        "listen: {}\ntls {{\n  cert_file: {certificate:?}\n  key_file: {key:?}\n  ca_file: \
        {authority:?}\n  verify: true\n}}\n",
        place.server
    );
    let mut broker = Command::new(std::env::current_exe()?);
    broker.arg(BROKER).arg(file("broker.conf", &config)?);
    let mut broker = broker.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(broker.stderr.take().ok_or("standard error is piped")?);
    let mut line = String::new();
    while said.read_line(&mut line)? > 0 {
        if line.contains("Server is ready") {
            return Ok(said);
        }
        eprint!("{line}");
        line.clear();
    }
    Err(format!("nats-server is not ready: {}", broker.wait()?).into())
}

/// Becomes the broker. Returns the reason if that is impossible.
pub fn broker(args: impl IntoIterator<Item = OsString>) -> String {
    let mut command = Command::new("nats-server");
    let error = become_program(command.arg("--config").args(args));
    format!("nats-server cannot be started: {error}")
}

/// Connects to the broker. Each connection reads the files of its certificates.
async fn connect(place: &Place) -> Outcome<async_nats::Client> {
    let [authority, certificate, key] = certificates::files(place, Nats::NAME);
    let options = ConnectOptions::new()
        .add_root_certificates(authority)
        .add_client_certificate(certificate, key);
    Ok(options.connect(format!("tls://{}", place.server)).await?)
}

/// The service.
struct Service {
    client: async_nats::Client,
    /// Number of data messages since the last request for their sum, and the sum of their
    /// checksums.
    taken: (u64, u64),
}

impl Service {
    async fn take(&mut self, message: Message) -> Outcome<()> {
        let sum = match message.subject.as_str() {
            DATA => {
                let (count, all) = self.taken;
                self.taken = (count + 1, all.wrapping_add(checksum(&message.payload)));
                return Ok(());
            }
            ASKS => return Ok(self.client.publish(ANSWERS, message.payload).await?),
            BYTES_IN => Some(answer::bytes_in(&message.payload)),
            ENDS => {
                let (count, all) = std::mem::take(&mut self.taken);
                // A wrong count makes a wrong sum.
                Some(if count == word(&message.payload)? { all } else { 0 })
            }
            _ => None,
        };
        let reply = sum.map_or_else(Bytes::new, |sum| bytes(&sum.to_le_bytes()));
        let to = message.reply.ok_or("a request without a subject for the reply")?;
        Ok(self.client.publish(to, reply).await?)
    }
}

fn bytes(data: &[u8]) -> Bytes {
    Bytes::copy_from_slice(data)
}

fn word(payload: &[u8]) -> Outcome<u64> {
    Ok(u64::from_le_bytes(payload.try_into().map_err(|_| "a payload that is no word")?))
}

/// A connection of the client, which has subscribed to the service's messages.
struct Connection {
    client: async_nats::Client,
    answers: Subscriber,
}

/// The client.
pub struct Client {
    runtime: Runtime,
    /// `None` after a connection that failed.
    to: Option<Connection>,
    place: Place,
}

impl Client {
    /// Ends the connection, which its tasks learn of when the runtime runs them.
    fn close(&mut self) {
        let connection = self.to.take();
        self.runtime.block_on(async {
            drop(connection);
            tokio::task::yield_now().await;
        });
    }

    fn request(&mut self, subject: &'static str, data: Bytes) -> Outcome<Bytes> {
        let client = &self.to.as_ref().ok_or("no connection")?.client;
        Ok(self.runtime.block_on(client.request(subject, data))?.payload)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
    }
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        self.request(NULL, Bytes::new()).map(drop)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        word(&self.request(BYTES_IN, bytes(data))?)
    }

    fn beside(
        &mut self,
        _: &[u8],
        _: &mut dyn FnMut(&mut Self) -> Outcome<()>,
    ) -> Outcome<(u64, u64)> {
        Err("its messages have 64 MiB at most".into())
    }

    fn message_round(&mut self) -> Outcome<()> {
        let Connection { client, answers } = self.to.as_mut().ok_or("no connection")?;
        let answer = self.runtime.block_on(async {
            client.publish(ASKS, bytes(&7_u64.to_le_bytes())).await?;
            Outcome::Ok(answers.next().await)
        })?;
        match word(&answer.ok_or("the broker has closed the connection")?.payload)? {
            7 => Ok(()),
            other => Err(format!("the answer to 7 is {other}").into()),
        }
    }

    fn messages(&mut self, data: &[u8], count: u64) -> Outcome<u64> {
        let (client, data) = (&self.to.as_ref().ok_or("no connection")?.client, bytes(data));
        self.runtime.block_on(async {
            for _ in 0..count {
                // Counts a reference, and copies nothing.
                client.publish(DATA, data.clone()).await?;
            }
            word(&client.request(ENDS, bytes(&count.to_le_bytes())).await?.payload)
        })
    }

    fn reconnect(&mut self, ticket: Ticket) -> Outcome<Duration> {
        if ticket == Ticket::Earlier {
            return Err("it keeps no tickets".into());
        }
        self.close();
        self.runtime.block_on(async {
            let begun = Instant::now();
            let client = connect(&self.place).await?;
            client.request(NULL, Bytes::new()).await?;
            let spent = begun.elapsed();
            let answers = client.subscribe(ANSWERS).await?;
            client.flush().await?;
            self.to = Some(Connection { client, answers });
            Ok(spent)
        })
    }
}
