//! `upcall host ping`.

use crate::exit::{CommandResult, Exit};
use crate::output::{FAINT, print_json, println};
use serde::Serialize;
use std::time::Duration;
use upcall::directory;

/// Connects to the server at an address, and measures round trips.
///
/// Each round trip asks the server for the list of its exports. The server's host must be trusted,
/// or the address be one of this machine.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{JSON}"))]
pub struct HostPingArgs {
    /// The server's address.
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// Number of round trips.
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = 1..=1_000_000)]
    count: i64,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall host ping 127.0.0.1:7000
  upcall host ping 127.0.0.1:7000 --count 1000 --json";

const JSON: &str = "\
JSON: an object with the keys address, host (the name of the trusted host, or null on this
machine), connect_ns, and round_trips_ns (an array).";

#[derive(Serialize)]
struct PingRow<'a> {
    address: &'a str,
    host: Option<&'a str>,
    connect_ns: u64,
    round_trips_ns: Vec<u64>,
}

pub fn run(args: &HostPingArgs) -> CommandResult {
    let server = format!("tcp://{}", args.address);
    let pinged = directory::ping(&server, usize::try_from(args.count).unwrap_or(1))?;
    let nanoseconds = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut trips: Vec<u64> = pinged.round_trips.iter().map(nanoseconds).collect();
    if args.json {
        print_json(&PingRow {
            address: &args.address,
            host: pinged.host.as_deref(),
            connect_ns: nanoseconds(&pinged.connected),
            round_trips_ns: trips,
        })?;
        return Ok(Exit::Done);
    }
    let who = match &pinged.host {
        Some(host) => format!("is the trusted host {host}, by TLS"),
        None => "is on this machine, in the clear".into(),
    };
    println(format_args!("{} {who}", args.address))?;
    trips.sort_unstable();
    let at = |part: usize| text(trips[(trips.len() - 1) * part / 100]);
    println(format_args!(
        "connected in {}; {} round trips: median {}, 99th percentile {} {FAINT}(least {}, most \
         {}){FAINT:#}",
        text(nanoseconds(&pinged.connected)),
        trips.len(),
        at(50),
        at(99),
        at(0),
        at(100)
    ))?;
    Ok(Exit::Done)
}

/// `61.3 µs` or `2.10 ms`.
fn text(nanoseconds: u64) -> String {
    let microseconds = nanoseconds as f64 / 1e3;
    match microseconds < 1000.0 {
        true => format!("{microseconds:.1} µs"),
        false => format!("{:.2} ms", microseconds / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!([61_321, 999_949, 2_100_000].map(text), ["61.3 µs", "999.9 µs", "2.10 ms"]);
    }
}
