//! Several outstanding calls in an asynchronous client, and the single-threaded runtime of all
//! asynchronous systems: the child is pinned to one processor, where more threads would only
//! contend.

use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::{Builder, Runtime};
use upcall_bench::child::{Outcome, Throughput};

/// Creates a runtime on the calling thread.
pub fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Keeps `callers` calls outstanding for `time`. Each caller awaits one call after the other.
pub async fn outstanding<F>(
    callers: usize,
    time: Duration,
    mut call: impl FnMut() -> F,
) -> Outcome<Throughput>
where
    F: Future<Output = Outcome<()>>,
{
    let begun = Instant::now();
    let mut under_way: FuturesUnordered<F> = (0..callers).map(|_| call()).collect();
    let mut calls = 0;
    while let Some(done) = under_way.next().await {
        done?;
        calls += 1;
        if begun.elapsed() < time {
            under_way.push(call());
        }
    }
    Ok(Throughput::new(calls, begun.elapsed()))
}
