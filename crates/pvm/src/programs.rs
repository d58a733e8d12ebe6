//! Finds programs by name, and caches their images.

use crate::error;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use upcall_ulp::{Image, ImageIdentity, NoImage};

/// Search path and images of programs.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// Folders to search for names without a folder, in this order.
    folders: Vec<PathBuf>,
    /// The folders of PATH, which are searched last.
    shells: Vec<PathBuf>,
    images: HashMap<PathBuf, Rc<Image>>,
    /// Names for which [`refusal`](Self::refusal) has given a reason; at most [`MOST_REFUSED`].
    refused: HashSet<OsString>,
}

/// Maximum number of names for which a reason is given. A task can spawn any number of wrong names.
const MOST_REFUSED: usize = 64;

impl Programs {
    /// Searches these folders first, then those of PVM, then those of the shell.
    pub(crate) fn new(first: Vec<PathBuf>) -> Self {
        let mut folders = first;
        folders.push(PathBuf::from("."));
        folders
            .extend(std::env::var_os("HOME").map(|home| Path::new(&home).join("pvm3/bin/LINUX64")));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let shells = std::env::split_paths(&path).collect();
        Self { folders, shells, ..Self::default() }
    }

    /// Adds a folder in front of all others.
    pub(crate) fn also_in(&mut self, folder: &Path) {
        if !self.folders.iter().any(|one| one == folder) {
            self.folders.insert(0, folder.into());
        }
    }

    /// The image of this identity, if there is one already, whose file has not changed. Its name
    /// need not be looked up, which takes longer.
    pub(crate) fn known(&self, identity: &ImageIdentity) -> Option<Rc<Image>> {
        let is_same = |image: &&Rc<Image>| image.identity() == Some(identity);
        self.images.values().find(is_same).filter(|image| !image.has_changed()).cloned()
    }

    /// The image of a program, or PVM's error. [`refusal`](Self::refusal) has the reason in words.
    pub(crate) fn image(&mut self, name: &OsStr) -> Result<Rc<Image>, i32> {
        self.opened(name).map_err(|_| error::NO_FILE)
    }

    /// The same, for a task that comes from elsewhere.
    ///
    /// # Errors
    /// Why the image cannot be used. `None`: there is no such file.
    pub(crate) fn opened(&mut self, name: &OsStr) -> Result<Rc<Image>, Option<NoImage>> {
        let path = self.find(name).ok_or(None)?;
        let whole = path.canonicalize().map_err(|_| None)?;
        match self.images.get(&whole) {
            Some(image) if !image.has_changed() => return Ok(image.clone()),
            _ => {}
        }
        let image = Image::open(&whole).map_err(Some)?;
        Ok(self.images.entry(whole).insert_entry(Rc::new(image)).get().clone())
    }

    /// Why a name led to no image. `None`: the reason was given before, the name now leads to an
    /// image, or there is no such file and `tells_missing` is `false`.
    pub(crate) fn refusal(&mut self, name: &OsStr, tells_missing: bool) -> Option<String> {
        if self.refused.contains(name) || self.refused.len() >= MOST_REFUSED {
            return None;
        }
        let shown = name.as_bytes().escape_ascii();
        let is_path = name.as_bytes().contains(&b'/');
        let why = match self.find(name) {
            None if !tells_missing => return None,
            None if is_path => format!(
                "pvm_spawn: there is no file `{shown}`. Give the path of a program, or a name \
                 without a folder"
            ),
            None => format!(
                "pvm_spawn: no program `{shown}` in {} or PATH. Give the name of the program's \
                 file, or its path",
                self.searched().join(", ")
            ),
            Some(path) => {
                let refused = Image::open(&path.canonicalize().unwrap_or(path)).err()?;
                if is_path || self.find_in(&self.folders, name).is_some() {
                    refused.to_string()
                } else {
                    format!(
                        "no program `{shown}` in {}. The one in PATH was tried: {refused}",
                        self.searched().join(" or ")
                    )
                }
            }
        };
        self.refused.insert(name.to_owned());
        Some(match self.refused.len() < MOST_REFUSED {
            true => why,
            false => format!("{why}. Further names that are no programs are not reported"),
        })
    }

    /// The folders that are searched before those of PATH, each once.
    fn searched(&self) -> Vec<String> {
        let mut all = Vec::new();
        for folder in &self.folders {
            let whole = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            let shown = whole.display().to_string();
            if !all.contains(&shown) {
                all.push(shown);
            }
        }
        all
    }

    fn find(&self, name: &OsStr) -> Option<PathBuf> {
        if name.as_bytes().contains(&b'/') {
            return Some(PathBuf::from(name)).filter(|path| path.is_file());
        }
        self.find_in(&self.folders, name).or_else(|| self.find_in(&self.shells, name))
    }

    fn find_in(&self, folders: &[PathBuf], name: &OsStr) -> Option<PathBuf> {
        folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_to_no_image_is_explained_once() {
        let [first, path] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut programs = Programs {
            folders: vec![first.path().into(), first.path().join(".")],
            shells: vec![path.path().into()],
            ..Programs::default()
        };
        let folder = first.path().canonicalize().unwrap();
        let mut why = |name: &str, tells| programs.refusal(OsStr::new(name), tells);
        assert_eq!(why("sun", false), None);
        let missing = why("sun", true).unwrap();
        let found = format!("pvm_spawn: no program `sun` in {} or PATH. ", folder.display());
        assert!(missing.starts_with(&found), "{missing}");
        assert_eq!(why("sun", true), None);
        let missing = why("./nowhere/sun", true).unwrap();
        assert!(missing.contains("no file `./nowhere/sun`"), "{missing}");
        std::fs::write(path.path().join("sum"), "").unwrap();
        let other = why("sum", false).unwrap();
        let found =
            format!("no program `sum` in {}. The one in PATH was tried: ", folder.display());
        assert!(other.starts_with(&found) && other.contains("upvmcc"), "{other}");
        std::fs::write(first.path().join("own"), "").unwrap();
        let own = why("own", false).unwrap();
        assert!(own.starts_with(&folder.join("own").display().to_string()), "{own}");
        assert!(why("\u{1b}[2J", true).unwrap().contains("`\\x1b[2J`"));
        let reported = (0..1000).filter_map(|n| why(&format!("wrong-{n}"), true)).count();
        assert!(reported < MOST_REFUSED && programs.refused.len() == MOST_REFUSED, "{reported}");
    }
}
