//! Which calls of a backtrace are worth showing.
//!
//! Inside of a wait are the scheduler's own functions, and around every thread's body are those
//! that start it. Neither says anything about the program, so the first line is the blocking call
//! that the program made, and the last one the thread's own function, as in short backtraces of
//! panics.

use super::code::{BacktraceLine, ProcessCode};
use super::thread::ThreadState;
use super::unwind::CallStack;

/// Of `upcall_thread`: where a thread gives up its processor.
const SCHEDULER: [&str; 12] = [
    "vp", "dispatch", "switch", "block", "waiter", "arch", "kernel", "idle", "spin", "parker",
    "steal", "inbox",
];
/// Of `upcall_thread`: where the idle loop and the body of workers are. A method is in the module
/// of its type or in that of its code, by the way in which names are mangled.
pub const DISPATCH: [&str; 2] = ["dispatch", "vp"];
/// Of the standard library: between a body and what catches its panics.
const PLUMBING: [&str; 5] =
    ["std::panic::", "std::panicking::", "core::panic::", "core::ops::function::", "__rust_try"];
/// What starts a thread: what is around these says nothing.
const STARTS: [&str; 5] = [
    "upcall_thread::spawn::run_packet",
    "upcall_thread::spawn::enter",
    "upcall_thread::spawn::new_worker",
    "upcall_thread::dispatch::enter_worker",
    SHORT,
];
/// The standard library's mark for short backtraces, on every kernel thread of its own and around
/// `main`.
const SHORT: &str = "std::sys::backtrace::__rust_begin_short_backtrace";

/// All calls, inlined ones too, the innermost first.
pub fn calls_of(calls: &CallStack, code: &ProcessCode<'_>) -> Vec<BacktraceLine> {
    calls.at.iter().flat_map(|&(address, returns)| code.frames(address, returns).to_vec()).collect()
}

/// Those that are worth showing, of a thread in this state.
pub fn shown(calls: &CallStack, code: &ProcessCode<'_>, state: ThreadState) -> Vec<BacktraceLine> {
    let mut frames = calls_of(calls, code);
    if let Some(end) = frames.iter().position(|frame| begins(frame, &STARTS)) {
        frames.truncate(end);
    }
    let waits = matches!(state, ThreadState::Waiting | ThreadState::KernelWaiting);
    let first = if waits {
        frames.iter().position(is_scheduler)
    } else {
        frames.first().filter(|frame| is_ours(frame)).map(|_| 0)
    };
    if let Some(first) = first {
        let run = frames[first..].iter().take_while(|frame| is_ours(frame)).count();
        frames.drain(..first + run.saturating_sub(1));
    }
    let mut innermost = true;
    frames.retain(|frame| std::mem::take(&mut innermost) || !begins(frame, &PLUMBING));
    frames
}

/// The function's path: of a method, that of the type it belongs to.
fn path(frame: &BacktraceLine) -> Option<&str> {
    frame.function.as_deref().map(|function| function.trim_start_matches(['<', '&']))
}

fn within(frame: &BacktraceLine) -> Option<&str> {
    path(frame)?.strip_prefix("upcall_thread::")
}

fn is_ours(frame: &BacktraceLine) -> bool {
    within(frame).is_some()
}

fn is_scheduler(frame: &BacktraceLine) -> bool {
    let module = within(frame).and_then(|path| path.split("::").next());
    module.is_some_and(|module| SCHEDULER.contains(&module))
}

/// Returns `true` if it is this function of one of these modules of `upcall_thread`, also as a
/// method: `vp::Vp::find`, `<…vp::Vp>::find`, `dispatch::<impl …vp::Vp>::find`; or
/// `dispatch::find`, if its type is not known.
pub fn is_function(frame: &BacktraceLine, modules: &[&str], function: &str) -> bool {
    let Some(path) = within(frame) else { return false };
    let rest = modules.iter().find_map(|module| path.strip_prefix(module)?.strip_prefix("::"));
    rest.is_some_and(|rest| rest.rsplit("::").next() == Some(function))
}

fn begins(frame: &BacktraceLine, with: &[&str]) -> bool {
    path(frame).is_some_and(|path| with.iter().any(|with| path.starts_with(with)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str) -> BacktraceLine {
        BacktraceLine { address: 1, function: Some(function.into()), file: None, line: None }
    }

    #[test]
    fn names_in_either_mangling() {
        for name in [
            "upcall_thread::vp::Vp::find",
            "<upcall_thread::vp::Vp>::find",
            "upcall_thread::vp::find",
            "upcall_thread::dispatch::<impl upcall_thread::vp::Vp>::find",
            "upcall_thread::dispatch::find",
        ] {
            assert!(
                is_function(&frame(name), &DISPATCH, "find") && is_scheduler(&frame(name)),
                "{name}"
            );
            assert!(
                !is_function(&frame(name), &DISPATCH, "serve")
                    && !is_function(&frame(name), &["waiter"], "find"),
                "{name}"
            );
        }
        assert!(!is_function(
            &frame("upcall_thread::vp::Vp::find::{{closure}}"),
            &DISPATCH,
            "find"
        ));
        assert!(
            !is_ours(&frame("upcall_threads::f"))
                && !is_scheduler(&frame("upcall_thread::mutex::Mutex<T>::lock"))
        );
        assert!(is_scheduler(&frame(
            "<upcall_thread::idle::SpinThenPark as upcall_thread::idle::Idle>::rest"
        )));
    }
}
