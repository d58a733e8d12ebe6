//! What the command says of a call that did not return: what is known of the procedure, and what to
//! type. The library's texts advise a program.

use crate::exit::CommandError;
use std::time::Duration;
use upcall::{CallError, Closed};

/// The error of a call of `procedure`, which is `NAME.PROCEDURE`.
pub fn explain(procedure: &str, deadline: Option<Duration>, error: CallError) -> CommandError {
    let within = deadline.map_or_else(String::new, |limit| format!(" within {limit:?}"));
    let text = match &error {
        CallError::Failed(Closed::PeerEnded) => format!(
            "the server ended, or closed the connection, during the call of {procedure}, which may \
             have run"
        ),
        CallError::Failed(closed @ Closed::Lane(_)) => {
            format!("the call of {procedure} was not made: {closed}")
        }
        CallError::Failed(closed) => {
            format!("the call of {procedure}, which may have run, has failed: {closed}")
        }
        CallError::Aborted { sent: true } => format!(
            "{procedure} did not return{within}, and may still run; its result will be dropped. \
             Give it more time by --deadline"
        ),
        CallError::Aborted { sent: false } => format!(
            "the server did not take the call of {procedure}{within}, so it does not run. Call \
             again, or give more time by --deadline"
        ),
        CallError::Revoked => format!(
            "the call of {procedure} failed, because the server has revoked this command's \
             binding: call again"
        ),
        CallError::NoSuchHandle => format!(
            "the call of {procedure} failed: {error}. A handle ends with the command that got it. \
             Put the call that returns it in front, and type `_` for the handle, as in `upcall \
             call files.open etc + file.read _ 0 16`"
        ),
        _ => return error.into(),
    };
    CommandError::new(CommandError::from(error).exit(), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn no_text_advises_what_only_a_program_can_do() {
        let lost = Closed::Lost { server: "10.0.0.1:7000".into(), why: "it is silent".into() };
        for (error, exit, part) in [
            (CallError::Failed(Closed::PeerEnded), Exit::Lost, "math.add, which may have run"),
            (CallError::Failed(lost), Exit::Lost, "10.0.0.1:7000 is lost"),
            (CallError::Failed(Closed::Lane("full".into())), Exit::Lost, "was not made"),
            (CallError::Aborted { sent: true }, Exit::Deadline, "within 50ms, and may still run"),
            (CallError::Aborted { sent: false }, Exit::Deadline, "within 50ms, so it does not run"),
            (CallError::Revoked, Exit::Refused, "call of math.add failed"),
            (CallError::NoSuchHandle, Exit::Usage, "type `_` for the handle, as in"),
            (CallError::Panicked("as asked".into()), Exit::Failed, "as asked"),
        ] {
            let error = explain("math.add", Some(Duration::from_millis(50)), error);
            let text = error.to_string();
            assert!(error.exit() == exit && text.contains(part), "{text}");
            assert!(!text.contains("bind again") && !text.contains("a longer deadline"), "{text}");
        }
    }
}
