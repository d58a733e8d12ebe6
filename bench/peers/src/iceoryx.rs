//! iceoryx2, request and response in shared memory.
//!
//! Polling: both sides poll for messages continuously (on one processor they yield between polls;
//! without that a call takes a time slice, 8 ms). Parked: the server waits in a WaitSet, the client
//! in its listener, and an event accompanies each request and each response.

use std::time::{Duration, Instant};

use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client as Requests;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::server::Server as Responses;
use iceoryx2::prelude::*;
use upcall_bench::case::{BIG, Mode, Placement};
use upcall_bench::child::{ClientSide, Outcome, Place, Ready, Stop, System, Throughput};
use upcall_bench::payload::answer;

/// The procedure and two numbers, beside the request's bytes.
type Head = [i32; 3];
const NULL: i32 = 0;
const ADD: i32 = 1;
const BYTES_IN: i32 = 2;
const BIG_IN_OUT: i32 = 3;

type Service = ipc::Service;
type Calls = Requests<Service, [u8], Head, [u8], ()>;
type Served = Responses<Service, [u8], Head, [u8], ()>;
type Pending = PendingResponse<Service, [u8], Head, [u8], ()>;

/// Number of calls outstanding at once in the service for throughput.
const MANY: usize = 256;
/// Number of empty polls of one service after which the server polls the other.
const LOOKS: u32 = 1024;

/// The system `iceoryx2`.
pub struct Iceoryx2;

/// The two services: one with the default limits (4 requests at once), one for many requests.
struct Ports<P> {
    few: P,
    many: P,
}

/// Returns a configuration by which all files of iceoryx2 are in the pair's directory, or named
/// after it if they must be in /dev/shm.
fn config(place: &Place) -> Outcome<Config> {
    let mut config = Config::default();
    let root = place.dir.join("iceoryx2");
    config.global.set_root_path(&iceoryx2::prelude::Path::new(root.to_string_lossy().as_bytes())?);
    config.global.prefix = FileName::new(place.shared_memory_prefix().as_bytes())?;
    Ok(config)
}

fn node(place: &Place) -> Outcome<Node<Service>> {
    set_log_level(LogLevel::Error);
    Ok(NodeBuilder::new()
        .config(&config(place)?)
        .signal_handling_mode(SignalHandlingMode::Disabled)
        .create()?)
}

type Factory =
    iceoryx2::service::port_factory::request_response::PortFactory<Service, [u8], Head, [u8], ()>;
type Events = iceoryx2::service::port_factory::event::PortFactory<Service>;

fn services(node: &Node<Service>) -> Outcome<Ports<Factory>> {
    let few = node
        .service_builder(&"few".try_into()?)
        .request_response::<[u8], [u8]>()
        .request_user_header::<Head>()
        .open_or_create()?;
    let many = node
        .service_builder(&"many".try_into()?)
        .request_response::<[u8], [u8]>()
        .request_user_header::<Head>()
        .max_active_requests_per_client(MANY)
        .open_or_create()?;
    Ok(Ports { few, many })
}

fn events(node: &Node<Service>, name: &str) -> Outcome<Events> {
    Ok(node.service_builder(&name.try_into()?).event().open_or_create()?)
}

impl System for Iceoryx2 {
    const NAME: &'static str = "iceoryx2";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let node = node(place)?;
        let services = services(&node)?;
        let server =
            |factory: &Factory| factory.server_builder().initial_max_slice_len(BIG).create();
        let servers = Ports { few: server(&services.few)?, many: server(&services.many)? };
        match place.mode {
            Mode::Polling => {
                let stop = ready.announce_stoppable();
                poll(&servers, &stop, place.placement == Placement::OneCore)
            }
            Mode::Parked => {
                let (requests, responses) =
                    (events(&node, "requests")?, events(&node, "responses")?);
                let listener = requests.listener_builder().create()?;
                let notifier = responses.notifier_builder().create()?;
                let stop = ready.announce_stoppable();
                park(&servers.few, &listener, &notifier, &stop)
            }
        }
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let node = node(place)?;
        let services = services(&node)?;
        let client = |factory: &Factory| {
            let builder = factory.client_builder().initial_max_slice_len(BIG);
            builder.allocation_strategy(AllocationStrategy::PowerOfTwo).create()
        };
        let calls = Ports { few: client(&services.few)?, many: client(&services.many)? };
        let wait = match (place.mode, place.placement) {
            (Mode::Polling, Placement::TwoCores | Placement::Unpinned) => Wait::Look,
            (Mode::Polling, Placement::OneCore) => Wait::Yield,
            (Mode::Parked, _) => Wait::Event(Box::new(EventPorts {
                tell: events(&node, "requests")?.notifier_builder().create()?,
                wait: events(&node, "responses")?.listener_builder().create()?,
            })),
        };
        Ok(Client { calls, wait, _node: node })
    }
}

/// Serves by polling, until told to stop. The server stays with the service that has had requests.
fn poll(servers: &Ports<Served>, stop: &Stop, yields: bool) -> Outcome<()> {
    let (mut now, mut other) = (&servers.few, &servers.many);
    let mut empty = 0;
    while !stop.requested() {
        if answer_one(now)? {
            empty = 0;
            continue;
        }
        empty += 1;
        if empty >= LOOKS {
            std::mem::swap(&mut now, &mut other);
            empty = 0;
        }
        if yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

/// Serves by waiting for the event that accompanies a request.
fn park(
    server: &Served,
    listener: &Listener<Service>,
    notifier: &Notifier<Service>,
    stop: &Stop,
) -> Outcome<()> {
    let waitset = WaitSetBuilder::new()
        .signal_handling_mode(SignalHandlingMode::Disabled)
        .create::<Service>()?;
    let _attached = waitset.attach_notification(listener)?;
    let mut failed = Ok(());
    let serve = || -> Outcome<()> {
        listener.try_wait(|_| ())?;
        while answer_one(server)? {
            notifier.notify()?;
        }
        Ok(())
    };
    while !stop.requested() && failed.is_ok() {
        waitset.wait_and_process_once(|_| {
            failed = serve();
            CallbackProgression::Continue
        })?;
    }
    failed
}

fn answer_one(server: &Served) -> Outcome<bool> {
    let Some(request) = server.receive()? else { return Ok(false) };
    let [op, a, b] = *request.user_header();
    let reply = |bytes: &[u8]| -> Outcome<()> {
        Ok(request.loan_slice_uninit(bytes.len())?.write_from_slice(bytes).send()?)
    };
    match op {
        NULL => reply(&[0])?,
        ADD => reply(&answer::add(a, b).to_le_bytes())?,
        BYTES_IN => reply(&answer::bytes_in(request.payload()).to_le_bytes())?,
        _ => reply(&answer::big_in_out(request.payload()))?,
    }
    Ok(true)
}

/// How the client waits for a response.
enum Wait {
    Look,
    Yield,
    Event(Box<EventPorts>),
}

/// Notifies the server of a request, and waits for the event of a response.
struct EventPorts {
    tell: Notifier<Service>,
    wait: Listener<Service>,
}

/// The client.
pub struct Client {
    // Ports are dropped before their node.
    calls: Ports<Calls>,
    wait: Wait,
    _node: Node<Service>,
}

fn send(calls: &Calls, head: Head, data: &[u8]) -> Outcome<Pending> {
    let mut request = calls.loan_slice_uninit(data.len())?;
    *request.user_header_mut() = head;
    Ok(request.write_from_slice(data).send()?)
}

impl Client {
    fn call<const N: usize>(&self, head: Head, data: &[u8]) -> Outcome<[u8; N]> {
        let pending = send(&self.calls.few, head, data)?;
        if let Wait::Event(ports) = &self.wait {
            ports.tell.notify()?;
        }
        loop {
            if let Some(response) = pending.receive()? {
                return Ok(response.payload().try_into()?);
            }
            match &self.wait {
                Wait::Look => std::hint::spin_loop(),
                Wait::Yield => std::thread::yield_now(),
                Wait::Event(ports) => {
                    ports.wait.blocking_wait(|_| ())?;
                }
            }
        }
    }

    /// Keeps a window of requests: each response is replaced by a new request.
    fn window(&self, callers: usize, time: Duration) -> Outcome<Throughput> {
        let null = || send(&self.calls.many, [NULL, 0, 0], &[0]);
        let begun = Instant::now();
        let mut window =
            (0..callers).map(|_| null().map(Some)).collect::<Outcome<Vec<Option<Pending>>>>()?;
        let (mut outstanding, mut calls) = (callers, 0);
        while outstanding > 0 {
            let before = calls;
            for pending in &mut window {
                if let Some(sent) = pending
                    && sent.receive()?.is_some()
                {
                    calls += 1;
                    *pending = None; // frees its place before the next request takes one
                    if begun.elapsed() < time {
                        *pending = Some(null()?);
                    } else {
                        outstanding -= 1;
                    }
                }
            }
            if calls == before && matches!(self.wait, Wait::Yield) {
                std::thread::yield_now();
            }
        }
        Ok(Throughput::new(calls, begun.elapsed()))
    }
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        self.call::<1>([NULL, 0, 0], &[0])?;
        Ok(())
    }

    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        self.call([ADD, a, b], &[0]).map(i32::from_le_bytes)
    }

    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.bytes_in(data)
    }

    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        self.call([BIG_IN_OUT, 0, 0], data)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        self.call([BYTES_IN, 0, 0], data).map(u64::from_le_bytes)
    }

    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>> {
        match (callers, &self.wait) {
            (1, _) => Some(Throughput::one_caller(self, time)),
            (2..=MANY, Wait::Look | Wait::Yield) => Some(self.window(callers, time)),
            _ => None,
        }
    }
}
