//! The activity of members of groups, for `upcall stat` and `upcall top`: messages sent and taken,
//! what is buffered for which member, and which members are stopped at their limit.
//!
//! A sender counts what it has sent in its own account, and a receiver what it has taken in its
//! own: the two together give what waits. The accounts are other programs' memory, and may hold any
//! numbers and names.

use crate::output::{Columns, FAINT, STRONG, cell, share, size};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;
use upcall::message::accounts::{self, MemberStatsReading, PairReading, PeerMemberStats, SEGMENT};

/// The activity of one member, since its group formed or in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemberActivity {
    pub group: String,
    /// A number that is the same for all members of a group, and differs between groups of one
    /// name.
    pub id: String,
    /// The rank; `None` while the member waits for the others.
    pub rank: Option<u64>,
    pub size: usize,
    pub process: u32,
    pub sent: u64,
    pub taken: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_per_s: Option<f64>,
    /// Messages that were sent to the member and that it has not taken.
    pub waiting: u64,
    /// Messages that the member sent by the buffer, and the number of changes to that way.
    pub buffered: u64,
    pub diversions: u64,
    /// Bytes of memory that hold sent messages which were not taken, and their maximum.
    pub held_bytes: u64,
    pub limit_bytes: u64,
    /// Number of stops at the limit. If the member is stopped now: for how many seconds, and the
    /// rank of the receiver that does not take its messages.
    pub stops: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_for: Option<u64>,
    /// The member is stopped because little memory is left, not by its limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory_is_low: bool,
    /// Connections, queues and messages that the member has refused.
    pub refused: u64,
    /// The receivers to which the member has sent messages.
    pub pairs: Vec<PairActivity>,
}

/// The messages from one member to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PairActivity {
    pub to: usize,
    pub sent: u64,
    pub buffered: u64,
    pub diversions: u64,
    /// Messages go to the buffer now.
    pub diverted: bool,
    /// The receiver's count; `None` if the receiver has ended or its account cannot be read.
    pub taken: Option<u64>,
    pub waiting: Option<u64>,
    pub held_bytes: Option<u64>,
}

/// The counts of a member at the start of an interval.
#[derive(Clone, Copy, Default)]
struct Before {
    sent: u64,
    taken: u64,
    buffered: u64,
    diversions: u64,
    stops: u64,
    refused: u64,
}

/// All members of this user's groups.
#[derive(Default)]
pub struct UserMembers {
    /// By process: the number of its members, and their accounts.
    known: BTreeMap<u32, (usize, Vec<PeerMemberStats>)>,
    /// By process: why its accounts cannot be read.
    pub silent: BTreeMap<u32, String>,
    before: HashMap<(u32, u64), Before>,
}

impl UserMembers {
    /// Finds new members and forgets those that have ended.
    pub fn renew(&mut self) {
        let there = accounts::members();
        self.known.retain(|&pid, (count, _)| there.get(&pid) == Some(count) && is_there(pid));
        self.silent.retain(|pid, _| there.contains_key(pid));
        for (&pid, &count) in &there {
            if self.known.contains_key(&pid) || self.silent.contains_key(&pid) {
                continue;
            }
            match accounts::of(pid) {
                Ok(accounts) => {
                    // The interval of a new member starts here.
                    let read = accounts.iter().map(PeerMemberStats::read);
                    self.before.extend(read.map(|read| (key(pid, &read), Before::of(&read))));
                    self.known.insert(pid, (count, accounts));
                }
                // The process has ended.
                Err(_) if !is_there(pid) => {}
                Err(error) => {
                    let error = format!(
                        "process {pid} is a member of a group, and its account cannot be read \
                         (/proc/{pid}/fd): {error}"
                    );
                    self.silent.insert(pid, error);
                }
            }
        }
    }

    /// Starts an interval.
    pub fn begin(&mut self) {
        self.read(&[], None);
    }

    /// The activity of members of the groups `names`, or of all groups if there are none: in the
    /// interval of this length, or since the groups formed. The next interval starts here.
    pub fn read(&mut self, names: &[String], interval: Option<Duration>) -> Vec<MemberActivity> {
        let each = self
            .known
            .iter()
            .flat_map(|(&pid, (_, accounts))| accounts.iter().map(move |account| (pid, account)));
        let read: Vec<_> = each.map(|(pid, account)| (pid, account.read())).collect();
        let mut rows = rows(&read, upcall::message::accounts::now());
        let mut now = HashMap::new();
        for (row, (pid, read)) in rows.iter_mut().zip(&read) {
            let key = key(*pid, read);
            now.insert(key, Before::of(read));
            if let Some(interval) = interval {
                row.since(self.before.get(&key).copied().unwrap_or_default(), interval);
            }
        }
        self.before = now;
        rows.retain(|row| names.is_empty() || names.contains(&row.group));
        rows.sort_by(|a, b| {
            (&a.group, &a.id, a.rank, a.process).cmp(&(&b.group, &b.id, b.rank, b.process))
        });
        rows
    }
}

/// Returns `true` if a process of this number runs.
pub fn is_there(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Identifies a member among those of all processes.
fn key(pid: u32, read: &MemberStatsReading) -> (u32, u64) {
    (pid, read.place.map_or(0, |(rank, group)| group.wrapping_add(rank)))
}

impl Before {
    fn of(read: &MemberStatsReading) -> Self {
        let all = |count: fn(&PairReading) -> u64| sum(read.pairs.iter().map(count));
        Self {
            sent: all(|pair| pair.sent),
            taken: all(|pair| pair.taken),
            buffered: all(|pair| pair.buffered),
            diversions: all(|pair| pair.diversions),
            stops: read.stops,
            refused: read.refused,
        }
    }
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// The rows of accounts that were read at about the same moment, each with the process that the
/// kernel names.
fn rows(read: &[(u32, MemberStatsReading)], now: u64) -> Vec<MemberActivity> {
    let by_place: HashMap<_, _> =
        read.iter().filter_map(|(_, account)| Some((account.place?, account))).collect();
    let other = |account: &MemberStatsReading, rank: usize| {
        by_place.get(&(rank as u64, account.place?.1)).copied()
    };
    let row = |(process, account): &(u32, MemberStatsReading)| {
        let own = account.place.map_or(usize::MAX, |(rank, _)| rank as usize);
        let pair = |(to, pair): (usize, &PairReading)| {
            let theirs = other(account, to).and_then(|theirs| theirs.pairs.get(own));
            PairActivity {
                to,
                sent: pair.sent,
                buffered: pair.buffered,
                diversions: pair.diversions,
                diverted: pair.is_diverted,
                taken: theirs.map(|theirs| theirs.taken),
                waiting: theirs.map(|theirs| pair.sent.saturating_sub(theirs.taken)),
                held_bytes: theirs.map(|theirs| {
                    pair.segments.saturating_sub(theirs.left).saturating_mul(SEGMENT)
                }),
            }
        };
        let pairs: Vec<_> =
            account.pairs.iter().enumerate().map(pair).filter(|pair| pair.sent > 0).collect();
        let senders = account.pairs.iter().enumerate().filter_map(|(from, pair)| {
            let sent = other(account, from)?.pairs.get(own)?.sent;
            Some(sent.saturating_sub(pair.taken))
        });
        let held_bytes = sum(pairs.iter().filter_map(|pair| pair.held_bytes));
        // A stopped member that does not try again may have room by now.
        let full = held_bytes.saturating_add(2 * SEGMENT) > account.share;
        let stopped =
            account.stopped.filter(|stopped| full || stopped.memory_is_low && held_bytes > 0);
        let Before { sent, taken, buffered, diversions, stops, refused } = Before::of(account);
        MemberActivity {
            group: account.name.clone(),
            id: account.place.map_or_else(String::new, |(_, group)| format!("{group:016x}")),
            rank: account.place.map(|(rank, _)| rank),
            size: account.pairs.len(),
            process: *process,
            sent,
            taken,
            sent_per_s: None,
            taken_per_s: None,
            waiting: sum(senders),
            buffered,
            diversions,
            held_bytes,
            limit_bytes: account.share,
            stops,
            stopped_s: stopped.map(|stopped| now.saturating_sub(stopped.since) as f64 / 1e9),
            stopped_for: stopped.map(|stopped| stopped.rank),
            memory_is_low: stopped.is_some_and(|stopped| stopped.memory_is_low),
            refused,
            pairs,
        }
    };
    read.iter().map(row).collect()
}

impl MemberActivity {
    /// Reduces the counts to those of the interval. Waiting messages and held memory are of now.
    fn since(&mut self, before: Before, interval: Duration) {
        let rate = |count: u64| Some((count as f64 / interval.as_secs_f64()).round());
        self.sent = self.sent.saturating_sub(before.sent);
        self.taken = self.taken.saturating_sub(before.taken);
        self.buffered = self.buffered.saturating_sub(before.buffered);
        self.diversions = self.diversions.saturating_sub(before.diversions);
        self.stops = self.stops.saturating_sub(before.stops);
        self.refused = self.refused.saturating_sub(before.refused);
        (self.sent_per_s, self.taken_per_s) = (rate(self.sent), rate(self.taken));
    }

    /// The state beside the counts, the worst first.
    pub fn state(&self) -> String {
        let listed = |ranks: Vec<String>| match ranks.len() {
            0..4 => ranks.join(", "),
            all => format!("{} and {} more", ranks[..3].join(", "), all - 3),
        };
        if self.rank.is_none() {
            return format!("waits for {} others", self.size.saturating_sub(1));
        }
        if let (Some(seconds), Some(rank)) = (self.stopped_s, self.stopped_for) {
            let why = if self.memory_is_low { ", and memory is low" } else { "" };
            return format!("stopped for {seconds:.0} s: {rank} takes too little{why}");
        }
        let diverted: Vec<_> = self
            .pairs
            .iter()
            .filter(|pair| pair.diverted)
            .map(|pair| pair.to.to_string())
            .collect();
        if diverted.is_empty() { "-".into() } else { format!("diverts to {}", listed(diverted)) }
    }

    /// Says that the member is stopped at its limit, or was in the interval (UDM, section 5:
    /// overflow).
    pub fn overflow(&self) -> Option<String> {
        let member =
            format!("member {} of {} (process {})", self.rank?, cell(&self.group), self.process);
        let limit = size(self.limit_bytes);
        let held = size(self.held_bytes);
        match (self.stopped_s, self.stopped_for) {
            (Some(seconds), Some(rank)) if self.memory_is_low => Some(format!(
                "overflow: {member} is stopped for {seconds:.0} s: little memory is left, it has \
                 buffered {held}, and member {rank} takes too little"
            )),
            (Some(seconds), Some(rank)) => Some(format!(
                "overflow: {member} is stopped for {seconds:.0} s: it has buffered all of its \
                 {limit}, and member {rank} takes too little"
            )),
            _ if self.sent_per_s.is_some() && self.stops > 0 => Some(format!(
                "overflow: {member} was stopped {} times: it had buffered all that it may",
                self.stops
            )),
            _ => None,
        }
    }
}

/// The columns; the first and the last are texts, the others numbers.
pub const HEADS: [&str; 12] = [
    "GROUP", "RANK", "PROCESS", "SENT", "TAKEN", "WAITING", "BUFFERED", "HELD", "LIMIT", "STOPS",
    "REFUSED", "STATE",
];

pub fn cells(row: &MemberActivity) -> [String; 12] {
    let count = |all: u64, rate: Option<f64>| {
        rate.map_or_else(|| all.to_string(), |rate| format!("{rate:.0}"))
    };
    [
        cell(&row.group),
        row.rank.map_or_else(|| "-".into(), |rank| rank.to_string()),
        row.process.to_string(),
        count(row.sent, row.sent_per_s),
        count(row.taken, row.taken_per_s),
        row.waiting.to_string(),
        share(row.buffered, row.sent),
        size(row.held_bytes),
        size(row.limit_bytes),
        row.stops.to_string(),
        row.refused.to_string(),
        row.state(),
    ]
}

/// The table of members. `each_second`: counts of messages are for each second of an interval.
pub fn table(rows: &[MemberActivity], with_pairs: bool, each_second: bool) -> String {
    let heads = HEADS.map(|head| {
        if each_second && matches!(head, "SENT" | "TAKEN") {
            format!("{head}/S")
        } else {
            head.into()
        }
    });
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let right = std::array::from_fn(|at| at > 0 && at + 1 < HEADS.len());
    let columns = Columns::new(cells.iter().chain([&heads]), right);
    let mut out = format!("{STRONG}{}{STRONG:#}\n", columns.line(&heads));
    for (row, cells) in rows.iter().zip(&cells) {
        out += &format!("{}\n", columns.line(cells));
        for pair in row.pairs.iter().filter(|_| with_pairs) {
            out += &format!("  {FAINT}{}{FAINT:#}\n", pair.line());
        }
    }
    out
}

impl PairActivity {
    fn line(&self) -> String {
        let unknown = || "?".to_string();
        let count = |count: Option<u64>| count.map_or_else(unknown, |count| count.to_string());
        format!(
            "to {}: {} sent, {} of them by the buffer in {} diversions; {} taken, {} wait, {} \
             held{}",
            self.to,
            self.sent,
            self.buffered,
            self.diversions,
            count(self.taken),
            count(self.waiting),
            self.held_bytes.map_or_else(unknown, size),
            if self.diverted { "; diverts" } else { "" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::{STEERING, is_clean};
    use upcall::message::accounts::MemberStop;

    fn account(rank: Option<u64>, pairs: Vec<PairReading>) -> MemberStatsReading {
        let place = rank.map(|rank| (rank, 0xabc));
        let (name, share) = ("flood".into(), 4 * SEGMENT);
        MemberStatsReading {
            name,
            pid: 1,
            place,
            formed: 1,
            share,
            refused: 2,
            stops: 0,
            stopped: None,
            pairs,
        }
    }

    fn sent(sent: u64, segments: u64) -> PairReading {
        PairReading {
            sent,
            buffered: sent / 2,
            diversions: 1,
            is_diverted: segments > 0,
            segments,
            ..PairReading::default()
        }
    }

    fn took(taken: u64, left: u64) -> PairReading {
        PairReading { taken, left, ..PairReading::default() }
    }

    fn two() -> Vec<(u32, MemberStatsReading)> {
        let mut first = account(Some(0), vec![PairReading::default(), sent(1000, 5)]);
        (first.stops, first.stopped) =
            (3, Some(MemberStop { since: 1_000_000_000, rank: 1, memory_is_low: false }));
        vec![(70, first), (71, account(Some(1), vec![took(400, 2), PairReading::default()]))]
    }

    #[test]
    fn both_sides_together_give_what_waits() {
        let rows = rows(&two(), 8_000_000_000);
        let [first, second] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!(
            (first.sent, first.held_bytes, first.waiting, first.buffered),
            (1000, 3 * SEGMENT, 0, 500)
        );
        assert_eq!(
            (second.taken, second.waiting, second.held_bytes, second.refused),
            (400, 600, 0, 2)
        );
        assert_eq!(first.pairs[0].waiting, Some(600));
        assert_eq!(
            (first.state().as_str(), second.state().as_str()),
            ("stopped for 7 s: 1 takes too little", "-")
        );
        let said = first.overflow().unwrap();
        assert!(
            said.contains("member 0 of flood (process 70) is stopped for 7 s")
                && said.contains("4 MiB"),
            "{said}"
        );
        assert_eq!(second.overflow(), None);
        let text = anstream::adapter::strip_str(&table(&rows, true, false)).to_string();
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], HEADS);
        assert_eq!(
            words[1][..13],
            ["flood", "0", "70", "1000", "0", "0", "50%", "3", "MiB", "4", "MiB", "3", "2"],
            "{text}"
        );
        assert!(text.contains(
            "to 1: 1000 sent, 500 of them by the buffer in 1 diversions; 400 taken, 600 wait, \
                 3 MiB held; diverts"
        ));
    }

    #[test]
    fn a_member_with_room_again_is_not_stopped_though_it_does_not_try() {
        let mut read = two();
        read[1].1.pairs[0].left = 5;
        let rows = rows(&read, 8_000_000_000);
        assert_eq!(
            (rows[0].stopped_s, rows[0].stops, rows[0].state().as_str()),
            (None, 3, "diverts to 1")
        );
    }

    #[test]
    fn low_memory_is_shown_in_place_of_the_limit() {
        let mut read = two();
        (read[0].1.share, read[0].1.stopped) =
            (1 << 40, Some(MemberStop { since: 0, rank: 1, memory_is_low: true }));
        let row = &rows(&read, 1_000_000_000)[0];
        assert_eq!(row.state(), "stopped for 1 s: 1 takes too little, and memory is low");
        assert!(
            row.overflow()
                .unwrap()
                .contains("little memory is left, it has buffered 3 MiB, and member 1")
        );
    }

    #[test]
    fn an_interval_has_rates_and_the_stops_in_it() {
        let mut row =
            MemberActivity { rank: Some(0), sent: 500, stops: 4, ..MemberActivity::default() };
        row.since(Before { sent: 100, stops: 1, ..Before::default() }, Duration::from_secs(2));
        assert_eq!((row.sent_per_s, row.stops), (Some(200.0), 3));
        assert!(row.overflow().unwrap().contains("was stopped 3 times"));
        assert!(table(&[row], false, true).contains("SENT/S"));
    }

    #[test]
    fn a_member_that_waits_for_others_or_has_lost_them_is_shown() {
        let alone = account(None, vec![PairReading::default(); 4]);
        let left = account(Some(0), vec![PairReading::default(), sent(10, 0)]);
        let rows = rows(&[(7, alone), (8, left)], 0);
        assert_eq!((rows[0].state().as_str(), rows[0].rank), ("waits for 3 others", None));
        assert_eq!((rows[1].pairs[0].taken, rows[1].held_bytes), (None, 0));
        assert!(rows[1].pairs[0].line().contains("? taken, ? wait, ? held"));
    }

    /// A hostile member may have written anything.
    #[test]
    fn nonsense_is_shown_as_some_numbers_and_steers_nothing() {
        let most = u64::MAX;
        let wild = PairReading {
            sent: most,
            buffered: most,
            segments: most,
            taken: most,
            left: 3,
            ..PairReading::default()
        };
        let mut account = account(Some(most), vec![wild; 3]);
        account.name = STEERING.into();
        account.stopped = Some(MemberStop { since: most, rank: most, memory_is_low: true });
        let other = MemberStatsReading { place: Some((1, 0xabc)), ..account.clone() };
        let rows = rows(&[(1, account), (2, other)], 5);
        let text = anstream::adapter::strip_str(&table(&rows, true, false)).to_string();
        assert!(
            is_clean(&text)
                && rows.iter().all(|row| row.overflow().is_none_or(|text| is_clean(&text))),
            "{text}"
        );
    }
}
