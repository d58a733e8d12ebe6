//! Mailboxes: messages that tasks leave for others under a name (a class) and an index.
//!
//! Sources: PVM's manual (`pvm_putinfo`), and experiments with PVM where the manual is silent or
//! differs from what PVM does: an entry that may not be replaced is `PvmDenied`, never `PvmExists`;
//! an entry's owner may replace it; the answer to a deletion is the index; and a pattern is part of
//! a name, in which `*` stands for anything, not a regular expression.

use super::effect::Effect;
use crate::error;
use crate::ops::*;
use crate::tid::Tid;
use crate::wire::{Packet, PacketReader};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The entry remains when its owner ends.
const PERSISTENT: i32 = 1;
/// Adds an entry to its class, at the first free index.
const MULTI_INSTANCE: i32 = 2;
/// Other tasks may replace and delete the entry.
const OVERWRITABLE: i32 = 4;
/// Gets the first entry from the index on.
const FIRST_AVAIL: i32 = 8;
/// Deletes the entry after reading it.
const READ_AND_DELETE: i32 = 16;
/// Waits until the entry exists.
const WAIT: i32 = 32;
/// Position of an index in the flags, in bits.
const INDEX_SHIFT: u32 = 10;

/// All mailboxes of a machine.
#[derive(Debug, Default)]
pub(super) struct Mailboxes {
    classes: BTreeMap<String, MailboxClass>,
    /// The entries that each task owns.
    owned: HashMap<Tid, BTreeSet<(String, i32)>>,
    /// The tasks that wait for entries of each class.
    waiting: HashMap<String, BTreeMap<MailboxWait, MailboxWaiter>>,
    /// What each waiting task waits for.
    waits: HashMap<Tid, (String, MailboxWait)>,
    /// Number of waits so far.
    count: u64,
}

#[derive(Debug, Default)]
struct MailboxClass {
    entries: BTreeMap<i32, MailboxEntry>,
    /// Runs of consecutive used indices: the first index of each, and the one after its last. They
    /// find the first free index without a search.
    runs: BTreeMap<i32, i32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct MailboxEntry {
    /// `None`: the owner has ended.
    owner: Option<Tid>,
    /// The flags with which the entry was put.
    flags: i32,
    /// The sender, the message's tag, and the message as `upvm_put_buffer` writes it.
    message: Packet,
}

/// A wait for an entry. Waits for exactly one index are ordered first, by index; then waits that
/// also accept a later index. Equal ones are in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MailboxWait {
    first_avail: bool,
    index: i32,
    came: u64,
}

#[derive(Clone, Copy, Debug)]
struct MailboxWaiter {
    tid: Tid,
    flags: i32,
}

impl MailboxClass {
    fn insert(&mut self, index: i32, entry: MailboxEntry) {
        if self.entries.insert(index, entry).is_some() {
            return;
        }
        let end = self.runs.remove(&(index + 1)).unwrap_or(index + 1);
        match self.runs.range_mut(..=index).next_back() {
            Some((_, before)) if *before == index => *before = end,
            _ => _ = self.runs.insert(index, end),
        }
    }

    fn remove(&mut self, index: i32) -> Option<MailboxEntry> {
        let entry = self.entries.remove(&index)?;
        let (start, end) = self
            .runs
            .range_mut(..=index)
            .next_back()
            .map(|(start, end)| (*start, std::mem::replace(end, index)))?;
        if start == index {
            self.runs.remove(&index);
        }
        if end > index + 1 {
            self.runs.insert(index + 1, end);
        }
        Some(entry)
    }

    /// The first free index from `index` on.
    fn free(&self, index: i32) -> i32 {
        self.runs.range(..=index).next_back().map_or(index, |(_, end)| index.max(*end))
    }

    fn find(&self, index: i32, flags: i32) -> Option<i32> {
        let first = *self.entries.range(index..).next()?.0;
        (first == index || flags & FIRST_AVAIL != 0).then_some(first)
    }
}

impl MailboxEntry {
    fn may_be_changed_by(&self, tid: Tid) -> bool {
        self.flags & OVERWRITABLE != 0 || self.owner == Some(tid)
    }
}

/// Returns `true` if a message is complete, as `upvm_put_buffer` writes it.
fn is_message(bytes: &[u8]) -> bool {
    let mut reader = PacketReader::new(bytes);
    let (_encoding, low, high) = (reader.int(), reader.int(), reader.int());
    let length =
        low.zip(high).map(|(low, high)| u64::from(low as u32) | u64::from(high as u32) << 32);
    length == Some(reader.rest().len() as u64)
}

/// Returns `true` if the pattern's parts occur in the name, one after the other.
fn matches(pattern: &str, name: &str) -> bool {
    pattern
        .split('*')
        .try_fold(name, |rest, part| rest.find(part).map(|at| &rest[at + part.len()..]))
        .is_some()
}

/// All mailboxes in a checkpoint. All else follows from this.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedMailboxes {
    entries: Vec<(String, i32, MailboxEntry)>,
    /// Each waiting task with its class, index and flags, in the order in which they began.
    waits: Vec<(Tid, String, i32, i32)>,
}

impl Mailboxes {
    /// All mailboxes, for a checkpoint.
    pub(super) fn save(&self) -> SavedMailboxes {
        let of_class = |(name, class): (&String, &MailboxClass)| {
            let entry =
                |(index, entry): (&i32, &MailboxEntry)| (name.clone(), *index, entry.clone());
            class.entries.iter().map(entry).collect::<Vec<_>>()
        };
        let wait = |(tid, (class, wait)): (&Tid, &(String, MailboxWait))| {
            let waiter = self.waiting.get(class)?.get(wait)?;
            Some((wait.came, (*tid, class.clone(), wait.index, waiter.flags)))
        };
        let mut waits = self.waits.iter().filter_map(wait).collect::<Vec<_>>();
        waits.sort_unstable_by_key(|(came, _)| *came);
        SavedMailboxes {
            entries: self.classes.iter().flat_map(of_class).collect(),
            waits: waits.into_iter().map(|(_, wait)| wait).collect(),
        }
    }

    /// The mailboxes of a checkpoint. `None`: no mailboxes are like this.
    pub(super) fn restore(saved: SavedMailboxes) -> Option<Self> {
        let mut all = Self::default();
        for (name, index, entry) in saved.entries {
            let class = all.classes.entry(name.clone()).or_default();
            let is_new = (0..i32::MAX).contains(&index) && !class.entries.contains_key(&index);
            is_new.then_some(())?;
            if let Some(tid) = entry.owner {
                all.owned.entry(tid).or_default().insert((name, index));
            }
            class.insert(index, entry);
        }
        for (tid, class, index, flags) in saved.waits {
            (!all.waits.contains_key(&tid)).then_some(())?;
            all.wait(tid, class, index, flags);
        }
        Some(all)
    }

    /// Each question has a class's name (text), and the integers listed here. The answer is the
    /// code, unless the table says otherwise.
    ///
    /// A message is its encoding, its length (the lower 32 bits, then the upper), and its bytes, as
    /// `upvm_put_buffer` writes it.
    ///
    /// | OP_MAILBOX_… | takes | answers |
    /// |---|---|---|
    /// | PUT | flags; index (-1: as the flags say); tag; message | the index |
    /// | GET | index; flags | the index; the sender (integer), the tag, the message |
    /// | DELETE | index | the index |
    /// | INFO | a pattern in place of the name | the number of matching classes; the items below |
    ///
    /// INFO gives for each class its name (text), its number of entries, and for each entry its
    /// index, its owner (0: has ended) and its flags.
    pub(super) fn ask(
        &mut self,
        from: Tid,
        op: u64,
        mut question: PacketReader<'_>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if !(OP_MAILBOX_PUT..=OP_MAILBOX_INFO).contains(&op) {
            return false;
        }
        let (code, packet) = match self.answer(from, op, question) {
            Ok(Some(answer)) => answer,
            Ok(None) => return true,
            Err(code) => (code, Packet::default()),
        };
        effects.push(Effect::Answer(from, code, packet));
        if op == OP_MAILBOX_PUT && code >= 0 {
            let class = question.text().unwrap_or_default();
            self.came(&class, code, effects);
        }
        true
    }

    /// `None`: the answer comes later.
    fn answer(
        &mut self,
        from: Tid,
        op: u64,
        mut question: PacketReader<'_>,
    ) -> Result<Option<(i32, Packet)>, i32> {
        let class = question.text().ok_or(error::BAD_MSG)?;
        if op == OP_MAILBOX_INFO {
            return Ok(Some(self.info(&class)));
        }
        let mut number = || question.int().ok_or(error::BAD_MSG);
        if class.is_empty() {
            return Err(error::BAD_PARAM);
        }
        let code = match op {
            OP_MAILBOX_PUT => {
                let (flags, index, tag) = (number()?, number()?, number()?);
                if !is_message(question.rest()) {
                    return Err(error::BAD_MSG);
                }
                let message = Packet::default().ints([from.number(), tag]).bytes(question.rest());
                self.put(class, index, MailboxEntry { owner: Some(from), flags, message })?
            }
            OP_MAILBOX_GET => {
                let (index, flags) = (number()?, number()?);
                if index < 0 {
                    return Err(error::BAD_PARAM);
                }
                return match self.get(from, &class, index, flags) {
                    Err(error::NOT_FOUND) if flags & WAIT != 0 => {
                        self.wait(from, class, index, flags);
                        Ok(None)
                    }
                    got => got.map(Some),
                };
            }
            _ => {
                let index = number()?;
                let entry = self
                    .classes
                    .get(&class)
                    .and_then(|class| class.entries.get(&index))
                    .ok_or(error::NOT_FOUND)?;
                if !entry.may_be_changed_by(from) {
                    return Err(error::DENIED);
                }
                self.remove(&class, index);
                index
            }
        };
        Ok(Some((code, Packet::default())))
    }

    fn put(&mut self, name: String, index: i32, entry: MailboxEntry) -> Result<i32, i32> {
        let owner = entry.owner;
        let class = self.classes.get(&name);
        let wanted =
            if index >= 0 { index } else { entry.flags >> INDEX_SHIFT & (i32::MAX >> INDEX_SHIFT) };
        let there = class.and_then(|class| class.entries.get(&wanted));
        let index = match (class, there) {
            // `pvm_insert` must not replace an entry.
            (_, Some(_)) if index >= 0 && entry.flags & MULTI_INSTANCE != 0 => {
                return Err(error::DENIED);
            }
            (Some(class), Some(_)) if entry.flags & MULTI_INSTANCE != 0 => class.free(wanted),
            (_, Some(there)) if owner.is_some_and(|tid| !there.may_be_changed_by(tid)) => {
                return Err(error::DENIED);
            }
            _ => wanted,
        };
        if index == i32::MAX {
            return Err(error::OUT_OF_RES);
        }
        self.disown(&name, index);
        if let Some(tid) = owner {
            self.owned.entry(tid).or_default().insert((name.clone(), index));
        }
        self.classes.entry(name).or_default().insert(index, entry);
        Ok(index)
    }

    fn get(
        &mut self,
        from: Tid,
        class: &str,
        index: i32,
        flags: i32,
    ) -> Result<(i32, Packet), i32> {
        let entries = self.classes.get(class).ok_or(error::NOT_FOUND)?;
        let found = entries.find(index, flags).ok_or(error::NOT_FOUND)?;
        let entry = &entries.entries[&found];
        let message = if flags & READ_AND_DELETE == 0 {
            entry.message.clone()
        } else if entry.may_be_changed_by(from) {
            self.remove(class, found).ok_or(error::NOT_FOUND)?.message
        } else {
            return Err(error::DENIED);
        };
        Ok((found, message))
    }

    fn remove(&mut self, name: &str, index: i32) -> Option<MailboxEntry> {
        self.disown(name, index);
        let class = self.classes.get_mut(name)?;
        let entry = class.remove(index);
        if class.entries.is_empty() {
            self.classes.remove(name);
        }
        entry
    }

    /// Removes the entry from its owner's set.
    fn disown(&mut self, name: &str, index: i32) {
        let owner = self.classes.get(name).and_then(|class| class.entries.get(&index)?.owner);
        let Some((tid, owned)) = owner.and_then(|tid| Some((tid, self.owned.get_mut(&tid)?)))
        else {
            return;
        };
        owned.remove(&(name.to_owned(), index));
        if owned.is_empty() {
            self.owned.remove(&tid);
        }
    }

    fn wait(&mut self, tid: Tid, class: String, index: i32, flags: i32) {
        self.count += 1;
        let wait = MailboxWait { first_avail: flags & FIRST_AVAIL != 0, index, came: self.count };
        self.waiting.entry(class.clone()).or_default().insert(wait, MailboxWaiter { tid, flags });
        self.waits.insert(tid, (class, wait));
    }

    /// Answers the tasks that wait for a new entry, until one of them deletes it.
    fn came(&mut self, class: &str, index: i32, effects: &mut Vec<Effect>) {
        let Some(waiting) = self.waiting.get(class) else { return };
        let from = |first_avail, index, came| MailboxWait { first_avail, index, came };
        let exactly = waiting.range(from(false, index, 0)..=from(false, index, u64::MAX));
        let or_later = waiting.range(from(true, i32::MIN, 0)..=from(true, index, u64::MAX));
        let mut all = exactly
            .chain(or_later)
            .map(|(wait, waiter)| (wait.came, wait.index, *waiter))
            .collect::<Vec<_>>();
        all.sort_unstable_by_key(|(came, ..)| *came);
        for (_, index, MailboxWaiter { tid, flags }) in all {
            let (code, packet) = match self.get(tid, class, index, flags) {
                Err(error::NOT_FOUND) => return,
                got => got.unwrap_or_else(|code| (code, Packet::default())),
            };
            self.waits_no_more(tid);
            effects.push(Effect::Answer(tid, code, packet));
        }
    }

    fn waits_no_more(&mut self, tid: Tid) {
        let Some((class, wait)) = self.waits.remove(&tid) else { return };
        let Some(waiting) = self.waiting.get_mut(&class) else { return };
        waiting.remove(&wait);
        if waiting.is_empty() {
            self.waiting.remove(&class);
        }
    }

    fn info(&self, pattern: &str) -> (i32, Packet) {
        let mut count = 0;
        let mut packet = Packet::default();
        for (name, class) in self.classes.iter().filter(|(name, _)| matches(pattern, name)) {
            count += 1;
            packet = class.entries.iter().fold(
                packet.text(name).int(class.entries.len() as i32),
                |packet, (index, entry)| {
                    packet.ints([*index, entry.owner.map_or(0, Tid::number), entry.flags])
                },
            );
        }
        (count, packet)
    }

    /// Describes what a task waits for.
    pub(super) fn waits_for(&self, tid: Tid) -> Option<String> {
        self.waits
            .get(&tid)
            .map(|(class, _)| format!("an entry of mailbox {:?}", crate::wire::shown(class)))
    }

    /// Removes entries whose owners have ended, of this class or of all.
    pub(super) fn forget_orphans(&mut self, class: Option<&str>) {
        self.classes.retain(|name, entries| {
            if class.is_none_or(|class| class == name) {
                let orphans = entries
                    .entries
                    .iter()
                    .filter(|(_, entry)| entry.owner.is_none())
                    .map(|(index, _)| *index);
                orphans.collect::<Vec<_>>().into_iter().for_each(|index| _ = entries.remove(index));
            }
            !entries.entries.is_empty()
        });
    }

    /// Removes the entries of a task that has ended. Persistent ones remain without an owner.
    pub(super) fn ended(&mut self, tid: Tid) {
        self.waits_no_more(tid);
        for (name, index) in self.owned.remove(&tid).unwrap_or_default() {
            match self.classes.get_mut(&name).and_then(|class| class.entries.get_mut(&index)) {
                Some(entry) if entry.flags & PERSISTENT != 0 => entry.owner = None,
                _ => _ = self.remove(&name, index),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Tid = Tid::new(0, 1);
    const B: Tid = Tid::new(0, 2);
    const C: Tid = Tid::new(0, 3);

    fn asked(boxes: &mut Mailboxes, from: Tid, op: u64, question: Packet) -> Vec<Effect> {
        let mut effects = Vec::new();
        assert!(boxes.ask(from, op, PacketReader::new(question.as_bytes()), &mut effects));
        effects
    }

    /// The immediate answer to the asking task.
    fn answered(boxes: &mut Mailboxes, from: Tid, op: u64, question: Packet) -> (i32, Packet) {
        match asked(boxes, from, op, question).into_iter().next() {
            Some(Effect::Answer(to, code, packet)) if to == from => (code, packet),
            other => panic!("{other:?}"),
        }
    }

    /// Appends a message with this text.
    fn message(packet: Packet, text: &str) -> Packet {
        packet.ints([1, text.len() as i32, 0]).bytes(text.as_bytes())
    }

    fn got(from: Tid, text: &str) -> Packet {
        message(Packet::default().ints([from.number(), 7]), text)
    }

    fn putting(class: &str, flags: i32, index: i32, text: &str) -> Packet {
        message(Packet::default().text(class).ints([flags, index, 7]), text)
    }

    fn put(boxes: &mut Mailboxes, from: Tid, class: &str, flags: i32, text: &str) -> i32 {
        answered(boxes, from, OP_MAILBOX_PUT, putting(class, flags, -1, text)).0
    }

    fn get(boxes: &mut Mailboxes, from: Tid, class: &str, index: i32, flags: i32) -> (i32, Packet) {
        answered(boxes, from, OP_MAILBOX_GET, Packet::default().text(class).ints([index, flags]))
    }

    fn delete(boxes: &mut Mailboxes, from: Tid, class: &str, index: i32) -> i32 {
        answered(boxes, from, OP_MAILBOX_DELETE, Packet::default().text(class).int(index)).0
    }

    fn info(boxes: &mut Mailboxes, pattern: &str) -> (i32, Packet) {
        answered(boxes, C, OP_MAILBOX_INFO, Packet::default().text(pattern))
    }

    fn end(boxes: &mut Mailboxes, tid: Tid) {
        boxes.ended(tid);
    }

    fn is_empty(boxes: &Mailboxes) -> bool {
        boxes.classes.is_empty()
            && boxes.owned.is_empty()
            && boxes.waiting.is_empty()
            && boxes.waits.is_empty()
    }

    #[test]
    fn an_entry_is_its_owners() {
        let mut boxes = Mailboxes::default();
        assert_eq!(get(&mut boxes, A, "x", 0, 0).0, error::NOT_FOUND);
        assert_eq!(put(&mut boxes, A, "x", 0, "one"), 0);
        assert_eq!(get(&mut boxes, B, "x", 0, 0), (0, got(A, "one")));
        assert_eq!(put(&mut boxes, A, "x", 0, "two"), 0);
        assert_eq!(put(&mut boxes, B, "x", OVERWRITABLE, "three"), error::DENIED);
        assert_eq!(delete(&mut boxes, B, "x", 0), error::DENIED);
        assert_eq!(get(&mut boxes, B, "x", 0, READ_AND_DELETE).0, error::DENIED);
        assert_eq!(get(&mut boxes, B, "x", 0, READ_AND_DELETE | WAIT).0, error::DENIED);
        assert_eq!(get(&mut boxes, A, "x", 0, READ_AND_DELETE), (0, got(A, "two")));
        assert_eq!(delete(&mut boxes, A, "x", 0), error::NOT_FOUND);
        assert_eq!(put(&mut boxes, A, "x", OVERWRITABLE, "four"), 0);
        assert_eq!(put(&mut boxes, B, "x", 0, "five"), 0);
        assert_eq!(delete(&mut boxes, A, "x", 0), error::DENIED);
        // B owns the entry now.
        end(&mut boxes, A);
        assert_eq!(get(&mut boxes, A, "x", 0, 0), (0, got(B, "five")));
        end(&mut boxes, B);
        assert!(is_empty(&boxes));
    }

    #[test]
    fn entries_of_a_class_have_the_first_free_index() {
        let mut boxes = Mailboxes::default();
        for index in 0..4 {
            assert_eq!(put(&mut boxes, A, "x", MULTI_INSTANCE, "m"), index);
        }
        assert_eq!(delete(&mut boxes, A, "x", 1), 1);
        assert_eq!(get(&mut boxes, A, "x", 1, FIRST_AVAIL).0, 2);
        assert_eq!(get(&mut boxes, A, "x", 4, FIRST_AVAIL).0, error::NOT_FOUND);
        assert_eq!(put(&mut boxes, B, "x", MULTI_INSTANCE, "m"), 1);
        assert_eq!(put(&mut boxes, B, "x", MULTI_INSTANCE, "m"), 4);
        assert_eq!(put(&mut boxes, B, "x", 0, "m"), error::DENIED);
        // At a given index, and from there on.
        assert_eq!(put(&mut boxes, A, "x", OVERWRITABLE | 7 << INDEX_SHIFT, "m"), 7);
        assert_eq!(put(&mut boxes, B, "x", MULTI_INSTANCE | 7 << INDEX_SHIFT, "m"), 8);
        assert_eq!(put(&mut boxes, B, "x", 7 << INDEX_SHIFT, "m"), 7);
        assert_eq!(put(&mut boxes, A, "x", 7 << INDEX_SHIFT, "m"), error::DENIED);
        assert_eq!(put(&mut boxes, A, "x", MULTI_INSTANCE | 3 << INDEX_SHIFT, "m"), 5);
        assert_eq!(boxes.classes["x"].runs, BTreeMap::from([(0, 6), (7, 9)]));
        assert_eq!(put(&mut boxes, A, "x", MULTI_INSTANCE, "m"), 6);
        assert_eq!(boxes.classes["x"].runs, BTreeMap::from([(0, 9)]));
        for (index, runs) in
            [(0, vec![(1, 9)]), (2, vec![(1, 2), (3, 9)]), (6, vec![(1, 2), (3, 6), (7, 9)])]
        {
            assert_eq!(delete(&mut boxes, A, "x", index), index);
            assert_eq!(boxes.classes["x"].runs.clone().into_iter().collect::<Vec<_>>(), runs);
        }
        end(&mut boxes, A);
        end(&mut boxes, B);
        assert!(is_empty(&boxes));
    }

    #[test]
    fn an_index_can_be_said_as_the_older_functions_do() {
        let mut boxes = Mailboxes::default();
        let flags = PERSISTENT | MULTI_INSTANCE;
        assert_eq!(answered(&mut boxes, A, OP_MAILBOX_PUT, putting("x", flags, 5, "m")).0, 5);
        assert_eq!(
            answered(&mut boxes, A, OP_MAILBOX_PUT, putting("x", flags, 5, "m")).0,
            error::DENIED
        );
        assert_eq!(answered(&mut boxes, A, OP_MAILBOX_PUT, putting("x", flags, -1, "m")).0, 0);
        assert_eq!(
            answered(&mut boxes, A, OP_MAILBOX_PUT, putting("x", flags, i32::MAX, "m")).0,
            error::OUT_OF_RES
        );
    }

    #[test]
    fn what_is_persistent_stays_and_is_nobodys() {
        let mut boxes = Mailboxes::default();
        assert_eq!(put(&mut boxes, A, "stays", PERSISTENT, "one"), 0);
        assert_eq!(put(&mut boxes, A, "open", PERSISTENT | OVERWRITABLE, "two"), 0);
        assert_eq!(put(&mut boxes, A, "goes", 0, "three"), 0);
        end(&mut boxes, A);
        let all =
            Packet::default().text("open").ints([1, 0, 0, 5]).text("stays").ints([1, 0, 0, 1]);
        assert_eq!(info(&mut boxes, "*"), (2, all));
        assert_eq!(get(&mut boxes, B, "stays", 0, 0), (0, got(A, "one")));
        assert_eq!(put(&mut boxes, A, "stays", 0, "four"), error::DENIED);
        assert_eq!(get(&mut boxes, B, "open", 0, READ_AND_DELETE), (0, got(A, "two")));
        assert_eq!(info(&mut boxes, "").0, 1);
    }

    #[test]
    fn who_waits_is_told_when_it_comes() {
        let mut boxes = Mailboxes::default();
        let wait = |boxes: &mut Mailboxes, from, index, flags| {
            let question = Packet::default().text("x").ints([index, flags | WAIT]);
            assert_eq!(asked(boxes, from, OP_MAILBOX_GET, question), []);
        };
        let [a, b, c] = [1, 2, 3].map(|at| Tid::new(2, at));
        wait(&mut boxes, a, 0, FIRST_AVAIL);
        wait(&mut boxes, b, 3, READ_AND_DELETE);
        wait(&mut boxes, c, 3, 0);
        wait(&mut boxes, C, 3, 0);
        end(&mut boxes, C);
        wait(&mut boxes, B, 2, FIRST_AVAIL);
        // The waiting tasks are answered in order of arrival, until b deletes the entry.
        let effects = asked(&mut boxes, A, OP_MAILBOX_PUT, putting("x", OVERWRITABLE, 3, "one"));
        let first = Effect::Answer(A, 3, Packet::default());
        assert_eq!(
            effects,
            [first, Effect::Answer(a, 3, got(A, "one")), Effect::Answer(b, 3, got(A, "one"))]
        );
        let effects = asked(&mut boxes, A, OP_MAILBOX_PUT, putting("x", 0, 1, "two"));
        assert_eq!(effects, [Effect::Answer(A, 1, Packet::default())]);
        let effects = asked(&mut boxes, A, OP_MAILBOX_PUT, putting("x", 0, 3, "three"));
        assert_eq!(
            effects[1..],
            [Effect::Answer(c, 3, got(A, "three")), Effect::Answer(B, 3, got(A, "three"))]
        );
        end(&mut boxes, A);
        assert!(is_empty(&boxes));
        // The entry exists, but B may not delete it.
        wait(&mut boxes, B, 0, READ_AND_DELETE);
        let effects = asked(&mut boxes, A, OP_MAILBOX_PUT, putting("x", 0, -1, "four"));
        assert_eq!(effects[1..], [Effect::Answer(B, error::DENIED, Packet::default())]);
    }

    #[test]
    fn a_pattern_is_a_part_of_a_name() {
        for (pattern, name, fits) in [
            ("abc", "zabcz", true),
            ("*", "anything", true),
            ("", "anything", true),
            ("a*c", "xaybcz", true),
            ("a*c", "c*a", false),
            ("a*a", "a", false),
            ("a.c", "abc", false),
            ("x.*", "x.y", true),
            ("**b*", "abc", true),
            ("ABC", "abc", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn bad_questions_are_told_so() {
        let mut boxes = Mailboxes::default();
        for op in OP_MAILBOX_PUT..=OP_MAILBOX_INFO {
            assert_eq!(answered(&mut boxes, A, op, Packet::default().int(9)).0, error::BAD_MSG);
            if op != OP_MAILBOX_INFO {
                assert_eq!(
                    answered(&mut boxes, A, op, Packet::default().text("x")).0,
                    error::BAD_MSG
                );
                assert_eq!(
                    answered(&mut boxes, A, op, Packet::default().text("").int(0)).0,
                    error::BAD_PARAM
                );
            }
        }
        // Messages that are shorter or longer than their length says.
        for (length, high) in [(4, 0), (2, 0), (3, 1), (-1, 0)] {
            let question =
                Packet::default().text("x").ints([0, -1, 0, 1, length, high]).bytes(b"abc");
            assert_eq!(answered(&mut boxes, A, OP_MAILBOX_PUT, question).0, error::BAD_MSG);
        }
        assert_eq!(get(&mut boxes, A, "x", -1, WAIT).0, error::BAD_PARAM);
        assert_eq!(delete(&mut boxes, A, "x", -1), error::NOT_FOUND);
        assert!(
            is_empty(&boxes)
                && !boxes.ask(A, OP_MAILBOX_INFO + 1, PacketReader::new(&[]), &mut Vec::new())
        );
    }

    #[test]
    fn ten_thousand_put_and_wait_and_end() {
        let began = std::time::Instant::now();
        let mut boxes = Mailboxes::default();
        let tasks = (1..=10_000).map(|number| Tid::new(0, number)).collect::<Vec<_>>();
        for (at, tid) in tasks.iter().enumerate() {
            assert_eq!(put(&mut boxes, *tid, "x", MULTI_INSTANCE, "m"), at as i32);
            // Each task waits for an entry that another one puts.
            let question = Packet::default().text("y").ints([at as i32, WAIT]);
            assert_eq!(asked(&mut boxes, *tid, OP_MAILBOX_GET, question), []);
        }
        for tid in &tasks {
            assert_eq!(
                asked(&mut boxes, *tid, OP_MAILBOX_PUT, putting("y", MULTI_INSTANCE, -1, "m"))
                    .len(),
                2
            );
        }
        tasks.iter().for_each(|tid| end(&mut boxes, *tid));
        assert!(is_empty(&boxes));
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}
