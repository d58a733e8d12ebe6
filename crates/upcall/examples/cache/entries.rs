//! What stands in the table: real keys of this machine, and values that tell whose they are.

use std::collections::HashSet;
use std::{fs, io};

/// Bytes of a value.
pub const VALUE: usize = 100;

/// Keys in one piece of memory, by number.
#[derive(Debug, Default)]
pub struct Keys {
    text: String,
    /// Where each one ends.
    ends: Vec<u32>,
    /// Where they were found.
    pub source: &'static str,
}

impl Keys {
    /// As many keys as are asked for, all different: words of the dictionary, else names of
    /// packages that can be had, else files of packages that are installed. If these are too few
    /// they come again, with `#1` behind them, `#2` and so on.
    ///
    /// # Errors
    /// There are none of these.
    pub fn find(count: usize) -> io::Result<Self> {
        let sources = [
            ("words of /usr/share/dict/words", words()),
            ("packages of /var/lib/apt/lists", packages()),
            ("files of /var/lib/dpkg/info", files()),
        ];
        let none = || {
            io::Error::other(
                "no keys are here: neither a dictionary, nor lists of packages or of their files",
            )
        };
        Self::of(count, sources).ok_or_else(none)
    }

    /// From the first of these that has any.
    fn of<const N: usize>(count: usize, sources: [(&'static str, Vec<String>); N]) -> Option<Self> {
        // A name that contains the mark could equal another name with a mark added. Memcached takes
        // keys of at most 250 bytes, without blanks.
        let fits = |name: &&str| {
            (1..=200).contains(&name.len()) && name.bytes().all(|byte| byte > b' ' && byte != b'#')
        };
        let (source, names) =
            sources.iter().find(|(_, names)| names.iter().any(|name| fits(&name.as_str())))?;
        let mut seen = HashSet::new();
        let names: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(fits)
            .filter(|name| seen.insert(*name))
            .collect();
        let mut keys = Self { source, ..Self::default() };
        for number in 0..count {
            let again = number / names.len();
            keys.text.push_str(names[number % names.len()]);
            if again > 0 {
                keys.text.push('#');
                keys.text.push_str(&again.to_string());
            }
            keys.ends.push(u32::try_from(keys.text.len()).ok()?);
        }
        Some(keys)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// One of them.
    pub fn get(&self, number: usize) -> &str {
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.text[begin..self.ends[number] as usize]
    }
}

fn words() -> Vec<String> {
    fs::read_to_string("/usr/share/dict/words")
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// The contents of the files in a folder whose names end so.
fn contents(folder: &str, end: &str) -> impl Iterator<Item = String> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.retain(|path| path.to_string_lossy().ends_with(end));
    paths.into_iter().filter_map(|path| fs::read_to_string(path).ok())
}

fn packages() -> Vec<String> {
    let names = |index: String| {
        index.lines().filter_map(|line| Some(line.strip_prefix("Package: ")?.to_owned())).collect()
    };
    contents("/var/lib/apt/lists", "_Packages").flat_map::<Vec<_>, _>(names).collect()
}

fn files() -> Vec<String> {
    contents("/var/lib/dpkg/info", ".list")
        .flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number ^ number >> 29
}

/// A value of the key of this number: that number, which version of it this is, and bytes that
/// follow from both.
pub fn value(number: usize, version: u64) -> [u8; VALUE] {
    let mut value = [0; VALUE];
    let mut state = number as u64;
    for (at, part) in value.chunks_mut(8).enumerate() {
        state = match at {
            0 => state,
            1 => version,
            _ => mixed(state ^ number as u64),
        };
        part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
    }
    value
}

/// Whether these bytes are a value of the key of this number, of any version.
///
/// # Errors
/// What they are.
pub fn check(number: usize, found: &[u8]) -> Result<(), String> {
    let version =
        found.get(8..16).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    match version {
        Some(version) if found == value(number, version) => Ok(()),
        _ => Err(format!(
            "the value of key {number} is not its own: {} bytes, {:?} …",
            found.len(),
            found.get(..16)
        )),
    }
}

/// Numbers that look random.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// One below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_different_and_fit_everybody() {
        let names = ["b", "a", "b", "with blank", "a#1", ""].map(str::to_owned).to_vec();
        let keys = Keys::of(5, [("none", Vec::new()), ("some", names)]).unwrap();
        assert_eq!((keys.source, keys.len()), ("some", 5));
        assert_eq!(
            (0..5).map(|number| keys.get(number)).collect::<Vec<_>>(),
            ["b", "a", "b#1", "a#1", "b#2"]
        );
        assert!(Keys::of(1, [("none", vec![String::new()])]).is_none());
    }

    #[test]
    fn values_tell_whose_they_are() {
        let mine = value(7, 3);
        assert_eq!((check(7, &mine), check(7, &value(7, 4))), (Ok(()), Ok(())));
        assert!(
            check(8, &mine).is_err() && check(7, &mine[..99]).is_err() && check(7, &[]).is_err()
        );
        for at in 0..VALUE {
            let mut other = mine;
            other[at] ^= 1;
            assert!(check(7, &other).is_err(), "byte {at}");
        }
        let mut random = Random(1);
        assert!((0..1000).all(|_| random.below(10) < 10));
    }
}
