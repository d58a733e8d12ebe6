//! Finds programs by name, and caches their images.

use crate::error;
use crate::report::report_line;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use upcall_ulp::Image;

/// Search path and images of programs.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// Folders to search for names without a folder, in this order.
    folders: Vec<PathBuf>,
    images: HashMap<PathBuf, Rc<Image>>,
}

impl Programs {
    /// Searches these folders first, then those of PVM, then those of the shell.
    pub(crate) fn new(first: Vec<PathBuf>) -> Self {
        let mut folders = first;
        folders.push(PathBuf::from("."));
        folders
            .extend(std::env::var_os("HOME").map(|home| Path::new(&home).join("pvm3/bin/LINUX64")));
        folders.extend(
            std::env::var_os("PATH")
                .iter()
                .flat_map(|path| std::env::split_paths(path).collect::<Vec<_>>()),
        );
        Self { folders, images: HashMap::new() }
    }

    /// Adds a folder in front of all others.
    pub(crate) fn also_in(&mut self, folder: &Path) {
        if !self.folders.iter().any(|one| one == folder) {
            self.folders.insert(0, folder.into());
        }
    }

    /// The image of a program. Reports a file that is found but is not an image.
    pub(crate) fn image(&mut self, name: &OsStr) -> Result<Rc<Image>, i32> {
        let path = self.find(name).ok_or(error::NO_FILE)?;
        let whole = path.canonicalize().map_err(|_| error::NO_FILE)?;
        match self.images.get(&whole) {
            Some(image) if !image.has_changed() => return Ok(image.clone()),
            _ => {}
        }
        let image = Image::open(&whole).map_err(|refused| {
            report_line!("upcall pvm: {refused}");
            error::NO_FILE
        })?;
        Ok(self.images.entry(whole).insert_entry(Rc::new(image)).get().clone())
    }

    fn find(&self, name: &OsStr) -> Option<PathBuf> {
        if name.as_bytes().contains(&b'/') {
            return Some(PathBuf::from(name)).filter(|path| path.is_file());
        }
        self.folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    }
}
