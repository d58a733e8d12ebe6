//! Selects the calls of a backtrace that are shown.
//!
//! The innermost calls of a waiting thread are the scheduler's, and the outermost calls of every
//! thread are those that started it. Neither says anything about the program. So the first line is
//! the program's blocking call, and the last line the thread's own function, as in short backtraces
//! of panics.

use super::code::{BacktraceLine, ProcessCode};
use super::thread::ThreadState;
use super::unwind::CallStack;

/// Modules of `upcall_thread` in which a thread gives up its processor.
const SCHEDULER: [&str; 12] = [
    "vp", "dispatch", "switch", "block", "waiter", "arch", "kernel", "idle", "spin", "parker",
    "steal", "inbox",
];
/// Modules of `upcall_thread` with the idle loop and the body of workers. The mangling of names
/// decides whether a method is in the module of its type or in that of its code.
pub const DISPATCH: [&str; 2] = ["dispatch", "vp"];
/// Functions of the standard library between a body and the function that catches its panics.
const PLUMBING: [&str; 5] =
    ["std::panic::", "std::panicking::", "core::panic::", "core::ops::function::", "__rust_try"];
/// Functions that start a thread. Calls outside of these are not shown.
const STARTS: [&str; 5] = [
    "upcall_thread::spawn::run_packet",
    "upcall_thread::spawn::enter",
    "upcall_thread::spawn::new_worker",
    "upcall_thread::dispatch::enter_worker",
    SHORT,
];
/// The standard library's mark for short backtraces, around `main` and the body of each kernel
/// thread.
const SHORT: &str = "std::sys::backtrace::__rust_begin_short_backtrace";

/// All calls, with inlined ones, the innermost first.
pub fn calls_of(calls: &CallStack, code: &ProcessCode<'_>) -> Vec<BacktraceLine> {
    calls.at.iter().flat_map(|&(address, returns)| code.frames(address, returns).to_vec()).collect()
}

/// The calls that are shown of a thread in this state.
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

/// The path of the function; of a method, the path of its type.
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

/// Returns `true` if the frame is of `function` in one of `modules` of `upcall_thread`.
///
/// The function may be a method: `vp::Vp::find`, `<…vp::Vp>::find`,
/// `dispatch::<impl …vp::Vp>::find`, or `dispatch::find` if the type is unknown.
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
