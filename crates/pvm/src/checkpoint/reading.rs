//! Reads a checkpoint, and checks all of it.

use super::former::HeadOf3;
use super::hosts::{SavedHostsAre, checked};
use super::writing::sum;
use super::{
    CheckpointEnd, CheckpointError, CheckpointHead, MAGIC, OLDEST, PREAMBLE, SavedPlace,
    SectionKind, SectionWords, VERSION, WORDS,
};
use crate::machine::saved::SavedMachine;
use crate::packed::PackedTask;
use crate::tid::Tid;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use upcall_message::Rank;
use upcall_ulp::UlpState;

/// A checkpoint that is whole.
pub(crate) struct Checkpoint {
    path: PathBuf,
    file: File,
    pub(crate) head: CheckpointHead,
    /// Taken when the machine is made.
    pub(crate) machine: Option<SavedMachine>,
    pub(crate) tasks: BTreeMap<Tid, SavedTask>,
    /// For each process, the next name that it gives to a task.
    pub(crate) names: Vec<u32>,
    /// Tasks that do not go on. They are in none of the above but `machine`.
    pub(crate) left_out: Vec<Tid>,
}

/// A task in a checkpoint.
pub(crate) struct SavedTask {
    pub(crate) packed: PackedTask,
    pub(crate) parts: Vec<SavedPart>,
    /// Number of parts that it has.
    count: u32,
}

/// Where a part is in the file.
#[derive(Clone, Copy)]
pub(crate) struct SavedPart {
    at: u64,
    length: usize,
    /// The length of its place, and the sum of both.
    place: usize,
    sum: u64,
}

/// What was read so far.
struct CheckpointReader<'a> {
    path: &'a Path,
    file: BufReader<&'a File>,
    /// The position of the next section, and the file's length.
    at: u64,
    end: u64,
    number: u32,
}

impl Checkpoint {
    /// Reads the file once, and checks it.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub(crate) fn read(path: &Path) -> Result<Self, CheckpointError> {
        let failed = |error| CheckpointError::File { path: path.into(), error };
        let file = File::open(path).map_err(failed)?;
        let data = file.metadata().map_err(failed)?;
        if !data.is_file() {
            return Err(CheckpointError::Foreign { path: path.into() });
        }
        let buffered = BufReader::with_capacity(1 << 16, &file);
        let mut reader =
            CheckpointReader { path, file: buffered, at: 0, end: data.len(), number: 0 };
        let version = reader.preamble()?;
        let (at, head) = match version {
            VERSION => reader.only::<CheckpointHead>(SectionKind::Head)?,
            _ => {
                let (at, head) = reader.only::<HeadOf3>(SectionKind::Head)?;
                (at, head.into())
            }
        };
        if checked(&head.hosts) == SavedHostsAre::Impossible {
            return Err(reader.damaged(at, "no machine has such hosts"));
        }
        let (at, machine) = reader.only::<SavedMachine>(SectionKind::Machine)?;
        let mut ranks = machine.tasks().collect::<BTreeMap<_, _>>();
        let mut tasks = BTreeMap::new();
        let end = loop {
            let at = reader.at;
            let (words, contents) = reader.section()?;
            match SectionKind::of(words.kind) {
                Some(SectionKind::Task) => reader.task(at, &contents, &mut ranks, &mut tasks)?,
                Some(SectionKind::Part) => reader.part(at, words, &contents, &mut tasks)?,
                Some(SectionKind::End) => {
                    let end: CheckpointEnd = reader.read(at, &contents)?;
                    let is_end = end.tasks == tasks.len() as u32 && reader.at == reader.end;
                    reader.all(at, is_end)?;
                    break end;
                }
                _ => return Err(reader.damaged(at, "there is no such kind")),
            }
        };
        // Each task of the machine is there, with all of its parts.
        let is_whole = |task: &SavedTask| task.parts.len() == task.count as usize;
        reader.all(at, ranks.is_empty() && tasks.values().all(is_whole))?;
        let (machine, names, left_out) = (Some(machine), end.names, Vec::new());
        Ok(Self { path: path.into(), file, head, machine, tasks, names, left_out })
    }

    /// Leaves these tasks out.
    ///
    /// # Errors
    /// See [`CheckpointError::NoTask`].
    pub(crate) fn leave_out(&mut self, tids: &[Tid]) -> Result<(), CheckpointError> {
        for tid in tids.iter().copied() {
            if self.tasks.remove(&tid).is_some() {
                self.left_out.push(tid);
            } else if !self.left_out.contains(&tid) {
                let others = self.tasks.keys().copied().collect();
                return Err(CheckpointError::NoTask { tid, others });
            }
        }
        Ok(())
    }

    /// The error for contents that cannot be right.
    pub(crate) fn damaged(&self, what: &'static str) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), at: PREAMBLE as u64, what }
    }

    /// Reads a part again. It is checked again, since the file may have changed.
    pub(crate) fn part(&self, part: SavedPart) -> Result<Vec<u8>, CheckpointError> {
        let path = || self.path.clone();
        let SavedPart { at, length, place, sum: expected } = part;
        let mut contents = Vec::new();
        let memory = contents.try_reserve_exact(length);
        memory.map_err(|_| CheckpointError::Memory { path: path(), length: length as u64 })?;
        contents.resize(length, 0);
        self.file
            .read_exact_at(&mut contents, at)
            .map_err(|error| CheckpointError::File { path: path(), error })?;
        let (first, rest) = contents.split_at(place);
        if sum(first, rest) != expected {
            return Err(CheckpointError::Damaged { path: path(), at, what: "a part has changed" });
        }
        contents.drain(..place);
        Ok(contents)
    }
}

impl CheckpointReader<'_> {
    fn damaged(&self, at: u64, what: &'static str) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.into(), at, what }
    }

    fn all(&self, at: u64, is_right: bool) -> Result<(), CheckpointError> {
        is_right.then_some(()).ok_or_else(|| self.damaged(at, "something is missing or doubled"))
    }

    /// Reads this number of bytes, which the file has to have.
    fn bytes(&mut self, to: &mut [u8], from: u64) -> Result<(), CheckpointError> {
        self.file.read_exact(to).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                CheckpointError::Short { path: self.path.into(), at: from }
            }
            _ => CheckpointError::File { path: self.path.into(), error },
        })?;
        self.at += to.len() as u64;
        Ok(())
    }

    /// Reads what comes before the sections. Returns the version of the format.
    fn preamble(&mut self) -> Result<u64, CheckpointError> {
        let mut found = [0; PREAMBLE];
        let foreign = || CheckpointError::Foreign { path: self.path.into() };
        if self.end < PREAMBLE as u64 {
            return Err(foreign());
        }
        self.bytes(&mut found, 0)?;
        if found[..8] != MAGIC {
            return Err(CheckpointError::Foreign { path: self.path.into() });
        }
        let mut words = found[8..].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let found @ [version, state, layout] =
            std::array::from_fn(|_| words.next().unwrap_or_default());
        if !(OLDEST..=VERSION).contains(&version) || [state, layout] != UlpState::VERSIONS {
            return Err(CheckpointError::Version { path: self.path.into(), found });
        }
        Ok(version)
    }

    /// Reads the next section: its words, and its contents.
    fn section(&mut self) -> Result<(SectionWords, Vec<u8>), CheckpointError> {
        let from = self.at;
        let mut words = [0; WORDS];
        self.bytes(&mut words, from)?;
        let words = SectionWords::of(&words).filter(|words| words.number == self.number);
        let words = words.ok_or_else(|| self.damaged(from, "the first words are wrong"))?;
        self.number += 1;
        let short = || CheckpointError::Short { path: self.path.into(), at: from };
        // Another process may make the file longer.
        if words.length > self.end.saturating_sub(self.at) {
            return Err(short());
        }
        let length = usize::try_from(words.length).map_err(|_| short())?;
        let mut contents = Vec::new();
        contents.try_reserve_exact(length).map_err(|_| CheckpointError::Memory {
            path: self.path.into(),
            length: words.length,
        })?;
        contents.resize(length, 0);
        self.bytes(&mut contents, from)?;
        let place = match SectionKind::of(words.kind) {
            Some(SectionKind::Task | SectionKind::Part) => place_length(&contents),
            _ => Some(0),
        };
        let sums = place.map(|place| sum(&contents[..place], &contents[place..]));
        if sums != Some(words.sum) {
            return Err(self.damaged(from, "the sum is wrong"));
        }
        Ok((words, contents))
    }

    /// Reads a value that is the whole contents of a section.
    fn read<T: DeserializeOwned>(&self, at: u64, contents: &[u8]) -> Result<T, CheckpointError> {
        match postcard::take_from_bytes(contents) {
            Ok((value, [])) => Ok(value),
            _ => Err(self.damaged(at, "the contents are wrong")),
        }
    }

    /// Reads the next section, which is of this kind, and where it begins.
    fn only<T: DeserializeOwned>(
        &mut self,
        kind: SectionKind,
    ) -> Result<(u64, T), CheckpointError> {
        let at = self.at;
        let (words, contents) = self.section()?;
        self.all(at, words.kind == kind as u32)?;
        Ok((at, self.read(at, &contents)?))
    }

    fn task(
        &self,
        at: u64,
        contents: &[u8],
        ranks: &mut BTreeMap<Tid, Rank>,
        tasks: &mut BTreeMap<Tid, SavedTask>,
    ) -> Result<(), CheckpointError> {
        let wrong = || self.damaged(at, "the contents are wrong");
        let (place, rest) =
            postcard::take_from_bytes::<SavedPlace>(contents).map_err(|_| wrong())?;
        ranks.remove(&place.tid).ok_or_else(wrong)?;
        self.all(at, place.at > 0)?;
        let packed = self.read(at, rest)?;
        tasks.insert(place.tid, SavedTask { packed, parts: Vec::new(), count: place.at });
        Ok(())
    }

    fn part(
        &self,
        at: u64,
        words: SectionWords,
        contents: &[u8],
        tasks: &mut BTreeMap<Tid, SavedTask>,
    ) -> Result<(), CheckpointError> {
        let wrong = || self.damaged(at, "the contents are wrong");
        let (place, rest) =
            postcard::take_from_bytes::<SavedPlace>(contents).map_err(|_| wrong())?;
        let task = tasks.get_mut(&place.tid).ok_or_else(wrong)?;
        self.all(at, place.at as usize == task.parts.len() && place.at < task.count)?;
        let (length, place) = (contents.len(), contents.len() - rest.len());
        task.parts.push(SavedPart { at: at + WORDS as u64, length, place, sum: words.sum });
        Ok(())
    }
}

/// The length of the place at the beginning of a section's contents.
fn place_length(contents: &[u8]) -> Option<usize> {
    let (_, rest) = postcard::take_from_bytes::<SavedPlace>(contents).ok()?;
    Some(contents.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::super::{SavedHost, preamble};
    use super::*;
    use crate::balance::BalancerKind;
    use crate::machine::Machine;
    use serde::Serialize;

    fn head() -> CheckpointHead {
        let name = "a".into();
        CheckpointHead {
            seconds: 7,
            processes: 3,
            balancer: Some(BalancerKind::Comm),
            least: 2,
            hosts: vec![SavedHost { name, processes: 3, number: 1, has_ended: false }],
            stack: "64K".into(),
            memory: "1G".into(),
            folder: "/tmp".into(),
            folders: vec!["/bin".into()],
        }
    }

    /// A file of a machine without tasks, with this version and head.
    fn file(version: u64, head: &impl Serialize) -> tempfile::NamedTempFile {
        let mut bytes = preamble().to_vec();
        bytes[8..16].copy_from_slice(&version.to_le_bytes());
        let machine = Machine::default().save(Default::default());
        let end = CheckpointEnd { tasks: 0, names: vec![1; 3] };
        let sections = [
            (SectionKind::Head, postcard::to_stdvec(head).unwrap()),
            (SectionKind::Machine, postcard::to_stdvec(&machine).unwrap()),
            (SectionKind::End, postcard::to_stdvec(&end).unwrap()),
        ];
        for (number, (kind, contents)) in (0..).zip(sections) {
            let (length, sum) = (contents.len() as u64, sum(&[], &contents));
            let words = SectionWords { kind: kind as u32, number, length, sum };
            bytes.extend_from_slice(&words.bytes());
            bytes.extend_from_slice(&contents);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn files_of_former_versions_are_read_and_those_of_others_refused() {
        let read = |version, head: &dyn Fn(u64) -> tempfile::NamedTempFile| {
            Checkpoint::read(head(version).path()).map(|checkpoint| checkpoint.head)
        };
        let (now, former) = (head(), HeadOf3::of(&head()));
        assert_eq!(read(4, &|version| file(version, &now)).unwrap(), now);
        let expected = CheckpointHead { balancer: None, least: 3, ..head() };
        assert_eq!(read(3, &|version| file(version, &former)).unwrap(), expected);
        for version in [0, 2, 5, u64::MAX] {
            let error = read(version, &|version| file(version, &now)).unwrap_err();
            assert!(matches!(error, CheckpointError::Version { found: [found, ..], .. }
                if found == version));
            assert!(error.to_string().contains("another version"), "{error}");
        }
        // The version is not that of the head.
        assert!(read(4, &|version| file(version, &former)).is_err());
    }
}
