//! A process that is no member asks the leader of a group for something.

use super::applying::{Application, ApplicationResult};
use super::requests::{FarRequest, PetitionReply};
use crate::error::JoinError;
use crate::wire::{self, VERSION};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};
use upcall_net::{NoConnection, Protection};

/// Time between two looks for a leader.
const LOOK: Duration = Duration::from_millis(20);

/// Longest time after which an interruption is noticed while an answer is awaited.
const SLICE: Duration = Duration::from_millis(100);

/// How the leader at an address is proved. In the clear, if the address is this host's.
///
/// # Errors
/// It cannot be proved.
pub(super) fn protection_at(name: &str, at: SocketAddr) -> Result<Protection, String> {
    match TcpListener::bind(SocketAddr::new(at.ip(), 0)) {
        Ok(_) => Ok(Protection::Clear),
        Err(_) => Protection::choose(name, at),
    }
}

/// Asks the member of a group that took in the first ones, at the address at which the members
/// meet, HOST:PORT. Returns its answer. The caller need not be a member.
///
/// `bytes` has at most 4 KiB, and an answer at most 4 MiB.
///
/// # Errors
/// [`JoinError::NotProved`], [`JoinError::Refused`] with the member's reason, and
/// [`JoinError::Incomplete`] if no answer has arrived within the limit. Each names the address in
/// place of the group.
///
/// # Blocking
/// Blocks the kernel thread until the answer is here. If no process listens at the address, tries
/// again until the limit is over.
pub fn petition(name: &str, bytes: &[u8], within: Duration) -> Result<Vec<u8>, JoinError> {
    petition_interruptible(name, bytes, within, || false)
}

/// Asks as [`petition`] does, until the caller is interrupted.
///
/// The kernel thread calls `is_interrupted` several times a second. Once that has returned `true`,
/// nothing more is awaited.
///
/// # Errors
/// As for [`petition`], and [`JoinError::Interrupted`].
///
/// # Blocking
/// As for [`petition`]. Connecting to the address takes up to 5 s, and is not interrupted.
pub fn petition_interruptible(
    name: &str,
    bytes: &[u8],
    within: Duration,
    is_interrupted: impl Fn() -> bool,
) -> Result<Vec<u8>, JoinError> {
    let not_proved = |why| JoinError::NotProved { address: name.into(), why };
    let refused = |reason| JoinError::Refused { name: name.into(), reason };
    let request = FarRequest::Petition { version: VERSION, bytes: bytes.into() };
    let request = wire::pack(&request)
        .map_err(|error| JoinError::Resource { what: "the request".into(), error })?;
    let start = Instant::now();
    let left = || within.saturating_sub(start.elapsed());
    loop {
        let found = match ask(name, &request, left, &is_interrupted) {
            Ok(bytes) => {
                return match wire::unpack(&bytes).map_err(refused)? {
                    PetitionReply::Answer(bytes) => Ok(bytes),
                    PetitionReply::Refused(why) => Err(refused(why)),
                };
            }
            Err(PetitionFailure::NotProved(why)) => return Err(not_proved(why)),
            Err(PetitionFailure::Parted(why)) => return Err(refused(why)),
            Err(PetitionFailure::Interrupted) => return Err(JoinError::Interrupted),
            Err(PetitionFailure::Again(why)) => why,
        };
        if is_interrupted() {
            return Err(JoinError::Interrupted);
        }
        if left().is_zero() {
            return Err(JoinError::Incomplete { name: name.into(), after: within, found });
        }
        std::thread::sleep(LOOK);
    }
}

/// Why a petition has no answer.
enum PetitionFailure {
    NotProved(String),
    /// The leader does not admit this process, for this reason.
    Parted(String),
    Again(String),
    Interrupted,
}

fn ask(
    name: &str,
    request: &[u8],
    left: impl Fn() -> Duration,
    is_interrupted: impl Fn() -> bool,
) -> Result<Vec<u8>, PetitionFailure> {
    let again = |error: io::Error| PetitionFailure::Again(format!("{name}: {error}"));
    let at = name.to_socket_addrs().map_err(again)?.next();
    let at = at.ok_or_else(|| PetitionFailure::Again(format!("{name} has no address")))?;
    let protection = protection_at(name, at).map_err(PetitionFailure::NotProved)?;
    let application = Application::connect(at, &protection).map_err(|error| match error {
        NoConnection::NotProved(error) => PetitionFailure::NotProved(error.to_string()),
        error => PetitionFailure::Again(error.to_string()),
    })?;
    application.ask(request);
    loop {
        match application.wait(left().min(SLICE)) {
            Some(ApplicationResult::Reply(bytes)) => return Ok(bytes),
            Some(ApplicationResult::Parted(why)) => return Err(PetitionFailure::Parted(why)),
            Some(ApplicationResult::Ended(why)) => return Err(PetitionFailure::Again(why)),
            None if is_interrupted() => return Err(PetitionFailure::Interrupted),
            None if left().is_zero() => {
                return Err(PetitionFailure::Again("no answer has arrived".into()));
            }
            None => {}
        }
    }
}
