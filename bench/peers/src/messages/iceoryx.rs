//! iceoryx2, publish and subscribe in shared memory: a service in each direction, with one
//! publisher and one subscriber that polls. A full subscriber blocks its publisher, so that nothing
//! is lost.

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use upcall_bench::child::Outcome;
use upcall_bench::messages::case::{BURST, LONGEST};
use upcall_bench::messages::child::{End, Handler, Place, Side, System};

type Service = ipc::Service;

/// The handler, beside the bytes.
type Head = u64;

/// The system `iceoryx2`.
pub struct Iceoryx2;

/// The ports of one side.
pub struct Ports {
    // Ports are dropped before their node.
    publisher: Publisher<Service, [u8], Head>,
    subscriber: Subscriber<Service, [u8], Head>,
    yields: bool,
    _node: Node<Service>,
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

impl System for Iceoryx2 {
    const NAME: &'static str = "iceoryx2";
    type End = Ports;

    fn join(place: &Place) -> Outcome<Ports> {
        set_log_level(LogLevel::Error);
        let node = NodeBuilder::new()
            .config(&config(place)?)
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create()?;
        let service = |from: Side| -> Outcome<_> {
            let builder = node
                .service_builder(&from.name().try_into()?)
                .publish_subscribe::<[u8]>()
                .user_header::<Head>();
            // Room for a burst, and for letters between bursts; nothing is overwritten.
            Ok(builder
                .enable_safe_overflow(false)
                .subscriber_max_buffer_size(2 * BURST)
                .open_or_create()?)
        };
        let (to, from) = (service(place.side)?, service(place.side.other())?);
        let subscriber = from.subscriber_builder().create()?;
        let publisher = to.publisher_builder().initial_max_slice_len(LONGEST).create()?;
        // A message that is published before there is a subscriber is lost.
        place.until(|| to.dynamic_config().number_of_subscribers() == 1)?;
        Ok(Ports { publisher, subscriber, yields: place.yields(), _node: node })
    }
}

impl End for Ports {
    #[inline(always)]
    fn send_words<const N: usize>(&mut self, handler: u16, words: &[u64; N]) -> Outcome<()> {
        self.send_bytes(handler, words.map(u64::to_le_bytes).as_flattened())
    }

    #[inline(always)]
    fn send_bytes(&mut self, handler: u16, bytes: &[u8]) -> Outcome<()> {
        let mut sample = self.publisher.loan_slice_uninit(bytes.len())?;
        *sample.user_header_mut() = handler.into();
        sample.write_from_slice(bytes).send()?;
        Ok(())
    }

    #[inline(always)]
    fn receive<H: Handler>(&mut self, handler: &mut H) -> Outcome<()> {
        loop {
            let mut taken = false;
            while let Some(sample) = self.subscriber.receive()? {
                handler.message(*sample.user_header() as u16, &sample.payload());
                taken = true;
            }
            if taken {
                return Ok(());
            }
            if self.yields {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}
