//! The contenders of a configuration.

use super::child::Waits;
use super::config::Config;

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// Upcall, with this way of waiting.
    Upcall(Waits),
    /// A limit of the machine, by its name as a system of the suite `rpc`.
    Limit(&'static str),
}

impl Contender {
    /// Returns the contenders that call from this number of threads in a configuration. The limits
    /// have one call at a time, and one processor on each side.
    pub fn of(config: Config, threads: usize) -> impl Iterator<Item = Contender> {
        let limits: &[&str] = match (config.clients, config.servers, threads) {
            (1, 0, 1) => &["limit-futex", "limit-eventfd", "limit-pipe", "limit-socket"],
            (1, 1, 1) => &["limit"],
            _ => &[],
        };
        let polling = (config.servers > 0).then_some(Waits::Polling);
        let ours = [Waits::Default].into_iter().chain(polling).map(Contender::Upcall);
        ours.chain(limits.iter().copied().map(Contender::Limit))
    }

    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Upcall(Waits::Default) => "upcall",
            Contender::Upcall(Waits::Polling) => "upcall-polling",
            Contender::Limit(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_beside_one_call_at_a_time() {
        let of = |config: &str, threads| {
            let names = Contender::of(config.parse().unwrap(), threads).map(Contender::name);
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("1,0", 1), "upcall limit-futex limit-eventfd limit-pipe limit-socket");
        assert_eq!(of("1,0", 2), "upcall");
        assert_eq!(of("1,1", 1), "upcall upcall-polling limit");
        assert_eq!(of("2,2", 1), "upcall upcall-polling");
        assert_eq!(of("2,0", 1), "upcall");
    }
}
