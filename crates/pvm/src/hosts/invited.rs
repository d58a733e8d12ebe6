//! How a process gets the invitation with which it joins a machine that runs.
//!
//! An invitation is a secret (`upcall_message::Invitation`), and the words of a command are none:
//! each user of a host can read them. So a process that starts another one writes the invitation
//! into the other one's standard input, as a line. A command such as `ssh` passes it on. A host
//! that comes by itself finds it in the answer to its petition ([`joining`](crate::joining)).

use super::MemberOrder;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use upcall_message::Invitation;

/// The standard input for a process with this order, and its other end. The invitation is in it.
///
/// # Errors
/// The kernel's: there are no descriptors.
pub(crate) fn input_for(order: &MemberOrder) -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, mut writer) = io::pipe()?;
    if let Some(invitation) = &order.invitation {
        // The pipe is empty, and has a reader.
        writer.write_all(line(invitation).as_bytes())?;
    }
    Ok((reader, writer))
}

/// The line for an invitation.
fn line(invitation: &Invitation) -> String {
    invitation.text() + "\n"
}

/// Reads the invitation from standard input, and nothing after it.
///
/// # Errors
/// The input ends before, or has something else.
///
/// # Blocking
/// Blocks the kernel thread until the line is there.
pub(crate) fn read_invitation() -> io::Result<Invitation> {
    read_from(File::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?))
}

fn read_from(mut input: impl Read) -> io::Result<Invitation> {
    let mut bytes = [0; Invitation::TEXT + 1];
    let invitation = input.read_exact(&mut bytes).ok().and_then(|()| {
        let text = std::str::from_utf8(&bytes).ok()?;
        Invitation::of_text(text.strip_suffix('\n')?)
    });
    let none = || {
        io::Error::other(
            "standard input has no invitation: the machine gives one to a host that it starts, or \
             prints it with the command",
        )
    };
    invitation.ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_read_as_it_was_written_and_nothing_after_it() {
        let invitation = Invitation::of_text(&"3f".repeat(32)).unwrap();
        let all = line(&invitation) + "more";
        let mut input = all.as_bytes();
        assert_eq!(read_from(&mut input).unwrap(), invitation);
        assert_eq!(input, b"more");
    }

    #[test]
    fn an_input_without_an_invitation_is_refused() {
        let long = format!("{}\n", "3f".repeat(33));
        for wrong in ["", "3f\n", &"3f".repeat(32), &long, &"g".repeat(65), "\n"] {
            let error = read_from(wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("no invitation"), "{wrong}: {error}");
        }
    }
}
