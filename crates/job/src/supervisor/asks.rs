//! The clients of a supervisor: `upcall job`, and the followers if it leads.

use super::{GUESTS, Supervisor};
use crate::MemberExit;
use crate::turns::RunGrant;
use crate::wire::{JobReply, JobRequest, JobState, ShownJob, ShownMember, VERSION, pack, unpack};
use rustix::process::Signal;
use upcall_os::poll::Report;
use upcall_os::socket::{self, Received};

/// Maximum number of connections. Further clients wait in the socket's queue.
const MOST: usize = 1024;

impl Supervisor<'_> {
    pub(super) fn let_in(&mut self) {
        while self.guests.len() < MOST
            && let Ok(Some(connection)) = self.listener.accept()
        {
            // The folder admits only this user; root can enter any folder.
            let known =
                connection.peer().is_ok_and(|peer| peer.uid == socket::own_user() || peer.uid == 0);
            let key = GUESTS + self.guests_so_far;
            if known && self.poll.add(&connection, key, Report::WhileReadable).is_ok() {
                self.guests_so_far += 1;
                self.guests.insert(key, connection);
            }
        }
    }

    pub(super) fn hear(&mut self, key: u64) {
        let Some(guest) = self.guests.get(&key) else { return };
        let asked = match guest.receive() {
            Ok(Received::Nothing) => return,
            Ok(Received::Message(message)) => unpack(&message.bytes),
            Ok(Received::Closed) | Err(_) => return self.see_off(key),
        };
        match asked {
            Ok(ask) => self.answer(key, ask),
            Err(reason) => self.reply(key, &JobReply::Refused(reason)),
        }
    }

    pub(super) fn see_off(&mut self, key: u64) {
        self.guests.remove(&key);
        self.unseat(key);
    }

    /// Replies to a client, and disconnects it if it does not read its replies.
    pub(super) fn reply(&mut self, key: u64, answer: &JobReply) {
        if self.guests.get(&key).is_some_and(|guest| guest.send(&pack(answer), &[]).is_err()) {
            self.see_off(key);
        }
    }

    fn answer(&mut self, key: u64, ask: JobRequest) {
        let answer = match ask {
            JobRequest::Show { version: VERSION } => JobReply::Shown(Box::new(self.show())),
            JobRequest::Show { version } => JobReply::Refused(format!(
                "its job protocol has version {VERSION}, the request has version {version}"
            )),
            JobRequest::Stop | JobRequest::Cont if self.ending.is_some() => {
                JobReply::Refused("it is being ended".into())
            }
            JobRequest::Stop => {
                self.stopped = true;
                self.apply();
                self.tell_wants();
                JobReply::Done
            }
            JobRequest::Cont => {
                self.stopped = false;
                self.tell_wants();
                self.take_part();
                self.apply();
                JobReply::Done
            }
            JobRequest::Kill => {
                if self.ending.as_ref().is_none_or(|ending| ending.kill_at.is_none()) {
                    self.failed.get_or_insert(MemberExit::Signal(Signal::TERM.as_raw()));
                    self.end();
                }
                JobReply::Ending { grace: self.job.grace }
            }
            ask => return self.seated(key, ask),
        };
        self.reply(key, &answer);
    }

    fn show(&self) -> ShownJob {
        let shown = |(rank, member): (usize, &crate::members::JobMember)| ShownMember {
            rank,
            pid: member.pid(),
            processor: member.processor,
            suspended: member.suspended,
        };
        let state = match &self.grant {
            _ if self.ending.is_some() => JobState::Ending,
            _ if self.stopped => JobState::Stopped,
            RunGrant::All => JobState::Running,
            _ => JobState::Waiting,
        };
        ShownJob {
            name: self.entered.name.clone(),
            pid: std::process::id(),
            program: self.job.program.to_string_lossy().into(),
            size: self.job.size,
            members: self.members.living().map(shown).collect(),
            state,
            way: self.members.way(),
            schedule: self.job.schedule,
            slice: self.job.slice,
            leads: self.part.leads(),
        }
    }
}
