//! Calls from outside of the machine to the first process's node: lines for its console, and
//! requests from another shell.
//!
//! Threads wait for these and hand them over. The node, which runs the tasks, checks one word
//! between two turns. When no task can run, it waits for a doorbell beside everything else.
//!
//! # Why no call is lost
//! A caller puts its call into the queue, then sets the word, then rings. The node clears the
//! doorbell and the word before it checks whether the queue is empty. A call that is queued after
//! this check finds the word clear, and sets it again.

use crate::checkpoint::Written;
use crate::door::Visitor;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::doorbell::Doorbell;

/// Maximum length of a line in bytes. A longer line is split.
const LONGEST: u64 = 1 << 20;

/// A call to the node.
#[derive(Debug)]
pub(crate) enum NodeCall {
    /// A line for the console.
    Line(String),
    /// The input has ended.
    InputEnds,
    /// A request from another shell.
    Asked(crate::door::MachineRequest, Visitor),
    /// The command has ended that starts the processes of a host.
    CommandEnded { host: usize, why: String },
    /// A checkpoint's file is written, or could not be.
    Written(u64, Written),
}

#[derive(Debug)]
struct CallFlag {
    there: AtomicBool,
    doorbell: Doorbell,
}

/// The node's end of the queue.
#[derive(Debug)]
pub(crate) struct NodeCalls {
    word: Arc<CallFlag>,
    queue: Receiver<NodeCall>,
    caller: NodeCaller,
}

/// A thread's end of the queue.
#[derive(Clone, Debug)]
pub(crate) struct NodeCaller {
    word: Arc<CallFlag>,
    queue: Sender<NodeCall>,
}

impl NodeCalls {
    pub(crate) fn new() -> io::Result<Self> {
        let word = Arc::new(CallFlag { there: AtomicBool::new(false), doorbell: Doorbell::new()? });
        let (sender, queue) = channel();
        Ok(Self { caller: NodeCaller { word: word.clone(), queue: sender }, word, queue })
    }

    pub(crate) fn caller(&self) -> NodeCaller {
        self.caller.clone()
    }

    /// Returns `true` if there is a call. Costs one load.
    #[inline]
    pub(crate) fn are_there(&self) -> bool {
        self.word.there.load(Ordering::Acquire)
    }

    /// A descriptor that is readable while there is a call.
    pub(crate) fn descriptor(&self) -> i32 {
        self.word.doorbell.as_fd().as_raw_fd()
    }

    pub(crate) fn next(&self) -> Option<NodeCall> {
        let clear = || {
            self.word.doorbell.silence();
            self.word.there.store(false, Ordering::SeqCst);
            self.queue.try_recv().ok()
        };
        self.queue.try_recv().ok().or_else(clear)
    }
}

impl NodeCaller {
    /// Queues a call. Returns `false` if the node has ended.
    pub(crate) fn call(&self, call: NodeCall) -> bool {
        let sent = self.queue.send(call).is_ok();
        self.word.there.store(true, Ordering::SeqCst);
        self.word.doorbell.notify();
        sent
    }
}

/// A thread that reads one line for each request.
#[derive(Debug)]
pub(crate) struct Input(Sender<()>);

impl Input {
    /// Starts a thread that reads from `from`.
    pub(crate) fn start(from: OwnedFd, caller: NodeCaller) -> io::Result<Self> {
        let (more, asked) = channel();
        let mut from = BufReader::new(File::from(from));
        let read = move || {
            while asked.recv().is_ok() {
                let mut line = Vec::new();
                // A read error counts as the end.
                let read = (&mut from).take(LONGEST).read_until(b'\n', &mut line).unwrap_or(0);
                let call = if read == 0 {
                    NodeCall::InputEnds
                } else {
                    NodeCall::Line(String::from_utf8_lossy(&line).into_owned())
                };
                if !caller.call(call) || read == 0 {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("console".into()).spawn(read)?;
        Ok(Self(more))
    }

    /// Requests the next line, which arrives as a call.
    pub(crate) fn more(&self) {
        // After the end of the input there is no thread to receive this.
        let _ = self.0.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_line_comes_when_it_is_asked_for_and_then_the_end() {
        let calls = NodeCalls::new().unwrap();
        let (from, mut to) = io::pipe().unwrap();
        let input = Input::start(from.into(), calls.caller()).unwrap();
        to.write_all(b"one\ntwo").unwrap();
        drop(to);
        let next = || {
            input.more();
            upcall_ulp::descriptors::ready(&[(calls.descriptor(), 1)], None);
            assert!(calls.are_there());
            let call = calls.next();
            assert!(calls.next().is_none() && !calls.are_there());
            call
        };
        assert!(matches!(next(), Some(NodeCall::Line(line)) if line == "one\n"));
        assert!(matches!(next(), Some(NodeCall::Line(line)) if line == "two"));
        assert!(matches!(next(), Some(NodeCall::InputEnds)));
    }
}
