//! The suites and their options.

use crate::hosts;
use crate::pages::{self, Action};
use crate::told::Told;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use upcall_bench::cache::Cache;
use upcall_bench::case::Mode;
use upcall_bench::homed::Homed;
use upcall_bench::hosts::Hosts;
use upcall_bench::links::Links;
use upcall_bench::lrpc::Lrpc;
use upcall_bench::messages::Messages;
use upcall_bench::pvm::Pvm;
use upcall_bench::rpc::Rpc;
use upcall_bench::threads::Threads;
use upcall_bench::threads::case::Case;
use upcall_bench::urpc::Urpc;
use upcall_bench::urpc::config::Config;

/// The benchmark suites, and the pages of their results.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Calls between two processes: the four LRPC tests and large arguments, on one processor and
    /// on two, polled and parked.
    ///
    /// The case properties measures no calls: it has the CPU time of idle systems, and what a
    /// server and a client leave behind after kill -9. Its table also says how each system treats
    /// data from a peer: the kernel copies it, it is checked where the peer can change it, or it is
    /// trusted.
    #[command(after_help = "Examples:\n  \
        upcall-bench rpc --peers none\n  \
        upcall-bench rpc --peers iceoryx2,grpc --json rpc.json\n  \
        upcall-bench rpc --peers none --case null --case null-t32 --placement two-cores\n  \
        upcall-bench rpc --peers none --case bind\n  \
        upcall-bench rpc --peers all --case properties")]
    Rpc {
        #[command(flatten)]
        told: Told<Rpc>,
        /// Only this mode: `polling` or `parked`.
        #[arg(long = "mode", value_name = "NAME")]
        modes: Vec<Mode>,
    },
    /// User-level threads on one processor: the operations of URPC's Table I, and their costs with
    /// up to 1 000 000 threads at once.
    ///
    /// The cases are procedure-call, fork, fork-join, yield, lock-unlock and ping-pong; yield-10
    /// and so on, with more than two threads that yield in turn; and alive-1 and so on to alive-1m.
    /// The peers are boost-fiber, may, tokio, go and pthread.
    #[command(after_help = "Examples:\n  \
        upcall-bench threads --peers none\n  \
        upcall-bench threads --peers tokio,go --json threads.json\n  \
        upcall-bench threads --peers all --case fork-join --case yield\n  \
        upcall-bench threads --peers all --plot figures\n  \
        upcall-bench threads --peers pthread --quick --alive 500,5000 --case alive-500 \
        --case alive-5k")]
    Threads {
        #[command(flatten)]
        told: Told<Threads>,
        /// Numbers of threads that yield in turn, separated by commas; each is a case `yield-N`.
        #[arg(
            long,
            value_name = "N,…",
            value_delimiter = ',',
            default_values_t = Case::READY,
            value_parser = clap::value_parser!(u64).range(1..)
        )]
        ready: Vec<u64>,
        /// Numbers of threads alive at once, separated by commas; each is a case `alive-N`.
        #[arg(
            long,
            value_name = "N,…",
            value_delimiter = ',',
            default_values_t = Case::ALIVE,
            value_parser = clap::value_parser!(u64).range(1..)
        )]
        alive: Vec<u64>,
    },
    /// The experiments of URPC: the null call by 1 to 16 threads at once (Figures 3 and 4), and the
    /// parts of a call (Table II).
    ///
    /// C client processors and S server processors are 1,0 1,1 1,2 2,0 2,1 or 2,2, if this machine
    /// has them. The cases are null-t1 and so on to null-t16, null-t32 where S is 0,
    /// procedure-call, and send, poll, receive and dispatch, each followed by -client or -server.
    #[command(after_help = "Examples:\n  \
        upcall-bench urpc\n  \
        upcall-bench urpc --json urpc.json --plot figures\n  \
        upcall-bench urpc --config 1,1 --case null-t1 --case null-t2\n  \
        upcall-bench urpc --case send-client --case send-server --quick")]
    Urpc {
        #[command(flatten)]
        told: Told<Urpc>,
        /// Only calls with these numbers of client and server processors, for example `1,0`; may be
        /// repeated.
        #[arg(long = "config", value_name = "C,S")]
        configs: Vec<Config>,
    },
    /// The experiments of LRPC: its four calls on one processor and on two (Table IV), the null
    /// call beside the least that the machine permits (Table V), and null calls by several
    /// processors at once (Figure 2).
    #[command(after_help = "Examples:\n  \
        upcall-bench lrpc --peers none\n  \
        upcall-bench lrpc --json lrpc.json --plot figures\n  \
        upcall-bench lrpc --peers ipc-channel,grpc,grpc-c++ --quick")]
    Lrpc(Told<Lrpc>),
    /// Messages between two processes (UDM's Table 4): their cost for sender and receiver, their
    /// time in transit, and the number of messages per second.
    ///
    /// The cases are send-0 to send-16, by words of payload; send-0-polled, with a receiver that
    /// polls; receive-0; one-way-0 to one-way-10000, by bytes; and rate-8. The peers are ucx-am,
    /// ucx-tag, openmpi and iceoryx2.
    ///
    /// Cases of Upcall alone: section and poll-0; buffered, beside direct messages; divert, with
    /// the way back; stopped, the effect on others of a receiver with 1 GiB of buffered messages;
    /// from a send to the handler by polling (upcall-polled) and by upcall (upcall-idle,
    /// upcall-asleep, upcall-busy, upcall-computing, upcall-signal); and exactly-once, a check of
    /// order and loss with the number of messages of --messages.
    ///
    /// Cases of Upcall alone from UDM's section 5: synth-10, synth-100 and synth-1000, the share of
    /// buffered messages by the send interval (Figure 7), and synth-simulated, the same on virtual
    /// clocks; and tpuz, the triangle puzzle beside other jobs that take turns with it (Table 6),
    /// and tpuz-simulated, the same by four members on virtual clocks. --plot draws them.
    #[command(after_help = "Examples:\n  \
        upcall-bench messages --peers none\n  \
        upcall-bench messages --peers ucx-am,iceoryx2 --json messages.json\n  \
        upcall-bench messages --peers all --case one-way-0 --placement two-cores\n  \
        upcall-bench messages --peers none --system upcall --case send-0 --quick\n  \
        upcall-bench messages --peers none --case section --case buffered --case divert\n  \
        upcall-bench messages --peers none --case buffered --case synth-10 --case synth-100 \
        --case synth-1000 --case synth-simulated --case tpuz --case tpuz-simulated --plot \
        docs/performance/figures\n  \
        upcall-bench messages --peers none --case exactly-once --messages 1000000000")]
    Messages {
        #[command(flatten)]
        told: Told<Messages>,
        /// Number of messages of the case `exactly-once`: 10 million by default, and 100 000 with
        /// --quick.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        messages: Option<u64>,
    },
    /// Operations on objects with a home, by every method (Psyche, section 5): Table 1 and Figures
    /// 3 to 5, throughput of several processes, the home's loss, and the number of lines from which
    /// an invocation is worthwhile.
    ///
    /// The cases are enqueue-dequeue, find-last-5, -10, -100 and -1000, create-segment, map-segment
    /// and create-process (records end in -dirty if the home touches the object between
    /// operations); throughput-counter and throughput-queue, beside a mutex that processes share
    /// and a spin lock; slowdown; and break-even.
    #[command(after_help = "Examples:\n  \
        upcall-bench homed --quick\n  \
        upcall-bench homed --json homed.json --plot docs/performance/figures\n  \
        upcall-bench homed --case find-last-10 --case break-even")]
    Homed(Told<Homed>),
    /// A table of a million entries that processes share (docs/performance/cache.md): get and put
    /// of 100 bytes, by Upcall with all methods, and by Redis and Memcached over a Unix socket.
    ///
    /// The cases are get and put, one at a time, and get-16 and put-16, with 16 requests at once,
    /// for the peers only. The systems are upcall-read, without the lock; upcall-access, under the
    /// lock; upcall-urgent and upcall-invoke, by the table's home; upcall-auto, by the method that
    /// proves to be the fastest; the peers redis and memcached; and on two processors redis-spin
    /// and memcached-spin, whose clients poll for an answer.
    #[command(after_help = "Examples:\n  \
        upcall-bench cache\n  \
        upcall-bench cache --quick --peers none\n  \
        upcall-bench cache --peers redis --case get --json cache.json\n  \
        upcall-bench cache --entries 10000 --placement two-cores")]
    Cache {
        #[command(flatten)]
        told: Told<Cache>,
        /// Number of entries of the table: a million by default, and 100 000 with --quick.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        entries: Option<u32>,
    },
    /// PVM programs as user-level processes (UPVM, section 4): switches, messages, a ring and
    /// Laplace's equation by 1 to 1000 tasks, beside PVM, Open MPI, MPICH and AMPI.
    ///
    /// The cases are procedure-call and switch-process; switch-1 to switch-4000, by ULPs;
    /// call-one-way; one-way-0 to one-way-100000, by bytes; ring-2 to ring-1000 and laplace-1 to
    /// laplace-64, by tasks; start-1 and start-100, the start of a task; idle-24 and idle-1000,
    /// waiting tasks; move-100k to move-1g and moving-messages, tasks that move between two
    /// processes; checkpoint-1 to checkpoint-1000 and restart-1 to restart-1000, by tasks;
    /// laplace-paper-1 and laplace-paper-64, on a grid whose sweep takes as long as in the paper;
    /// balance-ideal, balance-off and balance-on, tasks of different weight in two processes; and
    /// processor-away, a processor that is taken away and given back.
    ///
    /// The systems are upcall, all tasks on one processor; upcall-2 and upcall-2-interleave, in two
    /// processes on two processors, with neighbours together or apart; limit; and the peers pvm and
    /// pvm-direct, through the daemon and from task to task; openmpi and mpich, which spin on two
    /// processors; openmpi-yield, on one; and ampi and ampi-2, in one process and in two, if
    /// UPCALL_BENCH_AMPI names the folder in which bench/peers/ampi.sh has built AMPI. With all
    /// peers it takes ten to twelve minutes.
    #[command(after_help = "Examples:\n  \
        upcall-bench pvm --peers none\n  \
        upcall-bench pvm --json pvm.json --plot docs/performance/figures\n  \
        upcall-bench pvm --peers pvm,openmpi-yield --case ring-24 --case one-way-1000\n  \
        upcall-bench pvm --peers none --system upcall --case switch-16 --quick")]
    Pvm(Told<Pvm>),
    /// Calls between two hosts, which are network namespaces on this machine, with one processor
    /// each: null calls, large arguments, connections, and the processor time of both sides;
    /// messages of groups and of PVM's tasks; and tasks that move.
    ///
    /// The cases are null; small-alone and small-beside-large, 10 000 null calls without and with
    /// an argument of 256 MiB under way; in-1m; connect and resume, a bind and its first call
    /// without and with a ticket of an earlier connection; message-round, message-8 and
    /// message-64k, between two members of a group; pvm-one-way-0 and pvm-ring-24, between PVM's
    /// tasks; move-100k, a task that moves to and fro; and idle, a connection without calls.
    ///
    /// The systems are upcall; limit, bare TCP for small calls and rustls over it for the rest; and
    /// the peers grpc, with TLS, wrpc, over QUIC, and capnproto, in the clear. The peer nats, with
    /// TLS through its broker, has calls and messages, and openmpi, over TCP in the clear, messages
    /// only. PVM's tasks also run by the peers pvm and pvm-direct, through the daemons and from
    /// task to task, in the clear. It needs root and the command `ip`: without them it measures
    /// nothing and says so.
    #[command(after_help = "Examples:\n  \
        upcall-bench hosts --peers none\n  \
        upcall-bench hosts --json hosts.json\n  \
        upcall-bench hosts --peers grpc --case null --case in-1m\n  \
        upcall-bench hosts --peers nats,openmpi --case message-round --case message-8\n  \
        upcall-bench hosts --peers pvm,pvm-direct --case pvm-one-way-0 --case pvm-ring-24\n  \
        upcall-bench hosts --peers none --case connect --case resume --quick")]
    Hosts(Told<Hosts>),
    /// Simulated hosts with two links each, which are cut while messages are under way: processor
    /// time and memory by the number of hosts.
    ///
    /// The cases are hosts-10 to hosts-100000. Each side of a link is the state machine that
    /// programs use, on a virtual clock. The largest case takes some minutes and needs 8 GiB of
    /// memory. With --quick there are at most 1000 hosts.
    #[command(after_help = "Examples:\n  \
        upcall-bench links\n  \
        upcall-bench links --quick --plot figures\n  \
        upcall-bench links --case hosts-1000 --json links.json")]
    Links(Told<Links>),
    /// Writes the tables and figures of pages from the records of suites.
    ///
    /// A suite with --record DIR/records puts its records into DIR/records. In each page of DIR,
    /// the text from a line `<!-- upcall-bench SUITE TABLE -->` to the next line `<!-- end -->` is
    /// replaced by that table, and by when, where and how it was measured. The table `notes` of a
    /// suite is a list of the notes of its runs. The figures of suites that have records are drawn
    /// into DIR/figures.
    #[command(after_help = "Examples:\n  \
        upcall-bench rpc --peers none --record docs/performance/records\n  \
        upcall-bench rpc --peers none --case null --record docs/performance/records\n  \
        upcall-bench pages\n  \
        upcall-bench pages docs/performance --check")]
    Pages {
        /// Folder of the pages.
        #[arg(value_name = "DIR", default_value = "docs/performance")]
        dir: PathBuf,
        /// Write nothing: name the tables and figures that differ from their records, and fail if
        /// there are any.
        #[arg(long)]
        check: bool,
    },
}

/// Runs a suite, or writes the pages.
///
/// # Errors
/// There is no report, or no figure; or the pages and their records do not fit.
pub fn run(command: Command) -> Result<ExitCode, Box<dyn Error>> {
    match command {
        Command::Rpc { told, modes } => told.run(&Rpc { modes }),
        Command::Threads { told, ready, alive } => told.run(&Threads { ready, alive }),
        Command::Urpc { told, configs } => told.run(&Urpc { configs }),
        Command::Lrpc(told) => told.run(&Lrpc),
        Command::Messages { told, messages } => told.run(&Messages { messages }),
        Command::Homed(told) => told.run(&Homed),
        Command::Cache { told, entries } => {
            told.run(&Cache { entries: entries.map(|entries| entries as usize) })
        }
        Command::Pvm(told) => told.run(&Pvm { upcall: starter()? }),
        Command::Hosts(told) => {
            told.run(&Hosts { introduce: hosts::introduce, upcall: starter()? })
        }
        Command::Links(told) => told.run(&Links),
        Command::Pages { dir, check } => {
            pages::run(&dir, if check { Action::Check } else { Action::Write })
        }
    }
}

/// Returns the path of the command `upcall` beside this program, which starts PVM programs.
fn starter() -> Result<PathBuf, Box<dyn Error>> {
    let command = std::env::current_exe()?.with_file_name("upcall");
    if command.exists() {
        return Ok(command);
    }
    let missing = command.display();
    Err(format!(
        "{missing}, which starts PVM programs, is missing; build it (cargo build --release \
        --package upcall-cli)"
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::known::SUITES;
    use clap::Subcommand;

    #[test]
    fn every_suite_has_pages_and_its_figures() {
        let command = Command::augment_subcommands(clap::Command::new("upcall-bench"));
        let suites = command.get_subcommands().filter(|suite| suite.get_name() != "pages");
        let can_plot =
            |suite: &clap::Command| suite.get_arguments().any(|arg| arg.get_id() == "plot");
        let offered: Vec<_> = suites.map(|suite| (suite.get_name(), can_plot(suite))).collect();
        let known: Vec<_> =
            SUITES.iter().map(|suite| (suite.name, suite.figures.is_some())).collect();
        assert_eq!(offered, known);
    }
}
