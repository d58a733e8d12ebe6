//! Several calls outstanding at once in an asynchronous client, and the one-threaded runtime that
//! all of them use: the child is pinned to one processor, where more threads would only be in each
//! other's way.

use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::{Builder, Runtime};
use upcall_bench::child::{Outcome, Throughput};

/// A runtime on the calling thread.
pub fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Keeps `callers` calls outstanding for `time`; each caller awaits one call after the other.
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
