//! The order to start a process of a machine, as the words of a command.
//!
//! A command such as `ssh` gives its words to a shell of the other host, and a command such as `ip
//! netns exec` does not. So a word has no character that means something to a shell: any other byte
//! is written as `%` and two hexadecimal digits. Nothing in the words is a secret. The invitation
//! of a host that comes later travels beside them ([`invited`](super::invited)).

use super::{MachineHosts, MachineMeeting};
use crate::sizes::TaskSizes;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use upcall_message::{Invitation, Rank};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberOrder {
    /// The group of the processes.
    pub(crate) group: String,
    pub(crate) hosts: MachineHosts,
    /// `None`: all processes are on one host.
    pub(crate) meeting: Option<MachineMeeting>,
    /// The rank of the process, and after it those of the processes that it starts.
    pub(crate) ranks: Range<Rank>,
    /// The number of the arena of each of them.
    pub(crate) arenas: Vec<u32>,
    pub(crate) sizes: TaskSizes,
    /// Folders in which programs are looked for.
    pub(crate) folders: Vec<PathBuf>,
    /// The folder that the process enters.
    pub(crate) directory: Option<PathBuf>,
    /// Whether the process ends when its standard input does.
    pub(crate) ends_with_input: bool,
    /// What the process shows to join, if its host comes while the machine runs.
    pub(crate) invitation: Option<Invitation>,
}

/// The word of an order that comes with an invitation.
const LATE: &str = "comes=late";

impl MemberOrder {
    /// The words.
    pub(crate) fn words(&self) -> Vec<String> {
        let Range { start, end } = self.ranks;
        let arenas = self.arenas.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut words = vec![
            format!("group={}", self.group),
            format!("hosts={}", self.hosts.word()),
            format!("ranks={start}-{end}"),
            format!("arenas={arenas}"),
            format!("stack={}", self.sizes.stack),
            format!("memory={}", self.sizes.memory),
        ];
        if let Some(meeting) = &self.meeting {
            let [patience, within] = [meeting.patience, meeting.within].map(|one| one.as_millis());
            words.push(format!("at={}", plain(meeting.address.as_bytes())));
            words.push(format!("patience={patience}"));
            words.push(format!("within={within}"));
        }
        let path = |path: &Path| plain(path.as_os_str().as_bytes());
        words.extend(self.directory.iter().map(|one| format!("directory={}", path(one))));
        words.extend(self.invitation.is_some().then(|| LATE.to_owned()));
        words.extend(self.ends_with_input.then(|| "input=watched".to_owned()));
        words.extend(self.folders.iter().map(|one| format!("folder={}", path(one))));
        words
    }

    /// Returns `true` if these are the words of an order that comes with an invitation.
    pub(crate) fn are_invited(words: &[String]) -> bool {
        words.iter().any(|word| word == LATE)
    }

    /// Reads the words, with the invitation that came beside them. `None`: they are no order.
    pub(crate) fn of(words: &[String], invitation: Option<Invitation>) -> Option<Self> {
        let (mut one, mut folders) = (BTreeMap::new(), Vec::new());
        for word in words {
            match word.split_once('=')? {
                ("folder", path) => folders.push(PathBuf::from(read(path)?)),
                (name, value) => one.insert(name, value).is_none().then_some(())?,
            }
        }
        let mut take = |name| one.remove(name);
        let millis = |text: &str| text.parse().ok().map(Duration::from_millis);
        let (start, end) = take("ranks")?.split_once('-')?;
        let hosts = MachineHosts::of_word(take("hosts")?)?;
        let ranks = start.parse().ok()?..end.parse().ok()?;
        let arenas = take("arenas")?.split(',').map(|one| one.parse().ok());
        let arenas = arenas.collect::<Option<Vec<_>>>()?;
        let meeting = match take("at") {
            Some(address) => Some(MachineMeeting {
                address: read(address)?.into_string().ok()?,
                patience: millis(take("patience")?)?,
                within: millis(take("within")?)?,
            }),
            None => None,
        };
        let directory = match take("directory") {
            Some(path) => Some(PathBuf::from(read(path)?)),
            None => None,
        };
        let sizes = TaskSizes {
            stack: take("stack")?.parse().ok()?,
            memory: take("memory")?.parse().ok()?,
        };
        let group = take("group")?.to_owned();
        let ends_with_input = take("input").is_some();
        let is_late = take("comes").is_some();
        let is_sound = one.is_empty()
            && is_late == invitation.is_some()
            && !ranks.is_empty()
            && ranks.end <= hosts.size()
            && arenas.len() == ranks.len()
            && hosts.are_near(ranks.start, ranks.end - 1);
        let all = Self {
            group,
            hosts,
            meeting,
            ranks,
            arenas,
            sizes,
            folders,
            directory,
            ends_with_input,
            invitation,
        };
        is_sound.then_some(all)
    }

    /// The orders for the processes that this one starts.
    pub(crate) fn others(&self) -> Vec<Self> {
        let one = |(rank, arena): (Rank, &u32)| Self {
            ranks: rank..rank + 1,
            arenas: vec![*arena],
            directory: None,
            ends_with_input: false,
            ..self.clone()
        };
        self.ranks.clone().zip(&self.arenas).skip(1).map(one).collect()
    }
}

/// Bytes as a word without characters that mean something to a shell.
fn plain(bytes: &[u8]) -> String {
    let one = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"._-/:,+@".contains(byte) => {
            char::from(*byte).to_string()
        }
        byte => format!("%{byte:02x}"),
    };
    bytes.iter().map(one).collect()
}

/// Reads what [`plain`] has written.
fn read(word: &str) -> Option<OsString> {
    let (mut bytes, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = more;
    }
    Some(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> MemberOrder {
        let hosts = MachineHosts::new([("a".into(), 1), ("b".into(), 3)]).unwrap();
        let path = OsString::from_vec(b"/tmp/it's a \xFFfolder$(x)".to_vec());
        MemberOrder {
            group: "pvm.7".into(),
            hosts,
            meeting: Some(MachineMeeting {
                address: "[::1]:4000".into(),
                patience: Duration::from_secs(30),
                within: Duration::from_secs(60),
            }),
            ranks: 1..4,
            arenas: vec![5, 6, 7],
            sizes: TaskSizes::default(),
            folders: vec!["/usr/lib".into(), PathBuf::from(&path)],
            directory: Some(path.into()),
            ends_with_input: true,
            invitation: Invitation::of_text(&"3f".repeat(32)),
        }
    }

    #[test]
    fn an_order_is_read_as_it_was_written_and_a_shell_finds_nothing_in_it() {
        let order = order();
        let words = order.words();
        let is_plain = |one: char| one.is_ascii_alphanumeric() || "._-/:,+@=%".contains(one);
        assert!(words.iter().all(|word| word.chars().all(is_plain)), "{words:?}");
        let secret = order.invitation.as_ref().unwrap().text();
        assert!(!words.concat().contains(&secret[..8]), "{words:?}");
        assert_eq!(MemberOrder::of(&words, order.invitation.clone()), Some(order.clone()));
        assert_eq!(MemberOrder::of(&words, None), None);
        let one = MemberOrder { meeting: None, directory: None, folders: Vec::new(), ..order };
        let one = MemberOrder { invitation: None, ..one };
        assert!(MemberOrder::are_invited(&words) && !MemberOrder::are_invited(&one.words()));
        assert_eq!(MemberOrder::of(&one.words(), None), Some(one));
    }

    #[test]
    fn each_of_the_others_has_a_rank_and_an_arena() {
        let others = order().others();
        let found = others.iter().map(|one| (one.ranks.clone(), one.arenas.clone()));
        assert_eq!(found.collect::<Vec<_>>(), [(2..3, vec![6]), (3..4, vec![7])]);
        let is_read = |one: &MemberOrder| {
            MemberOrder::of(&one.words(), one.invitation.clone()).as_ref() == Some(one)
        };
        assert!(others.iter().all(is_read));
    }

    #[test]
    fn what_is_no_order_is_refused() {
        let MemberOrder { invitation, .. } = order();
        let of = |words: &[String]| MemberOrder::of(words, invitation.clone());
        let words = order().words();
        for at in 0..6 {
            let mut words = words.clone();
            words.remove(at);
            assert_eq!(of(&words), None, "without word {at}");
        }
        let wrong = ["more=1", "rank", "group=x", "folder=%4", "folder=%zz"];
        for wrong in wrong.map(String::from) {
            assert_eq!(of(&[&words[..], std::slice::from_ref(&wrong)].concat()), None, "{wrong}");
        }
        let changed = |from: &str, to: &str| {
            let words = words.iter().map(|word| word.replace(from, to)).collect::<Vec<_>>();
            of(&words)
        };
        assert_eq!(changed("ranks=1-4", "ranks=0-4"), None);
        assert_eq!(changed("ranks=1-4", "ranks=1-3"), None);
        assert_eq!(changed("ranks=1-4", "ranks=2-5"), None);
        assert_eq!(changed("b:3", "b:2"), None);
        assert_eq!(changed("/4", "/3"), None);
    }
}
