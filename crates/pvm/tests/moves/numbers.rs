//! The numbers of a machine's processes, by which these use each other's memory.

use crate::machine::{Machine, compiled, send, state, within};

/// The parent of the machine has left SIGCHLD ignored, so that no child of it stays to be waited
/// for.
#[test]
fn a_process_that_has_ended_keeps_its_number_while_another_one_may_use_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "pins");
    let parent = ["env", "--ignore-signal=CHLD"];
    let args = ["plain"; 3];
    let mut machine = Machine::start_by(&parent, &[0, 1, 2], 3, (&program, &args), &[]);
    machine.ready(3);
    let (ended, stopped) = (machine.process(1), machine.process(2));
    send(ended, "-KILL");
    machine.line("process 1 has ended, and 1 tasks with it");
    // Its end may be known while the kernel is still at it.
    within("a process has ended", || {
        let number = state(ended).expect("the number of a process that has ended is kept");
        (number == 'Z').then_some(())
    });
    // The first process waits for this one, and then kills it.
    send(stopped, "-STOP");
    within("a process stops", || (state(stopped) == Some('T')).then_some(()));
    assert_eq!(machine.run(&["halt"]).0, Some(0));
    within("the other process ends", || {
        // In this order: the other process may end in between.
        let number = state(ended);
        let other = state(stopped);
        let has_ended = matches!(other, None | Some('Z' | 'X'));
        assert!(has_ended || number == Some('Z'), "{number:?} while the other is {other:?}");
        has_ended.then_some(())
    });
    machine.end();
}
