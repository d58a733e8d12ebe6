//! The directory of a run, in which the children put their files.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::error::RunError;
use crate::pair;

/// A directory for the children, removed at the end.
///
/// Its name contains this process's id, so that the next run finds and removes the leftovers of a
/// killed one. A system that must put files elsewhere names them after it.
pub struct Scratch {
    /// Path of the directory.
    pub dir: PathBuf,
}

const SCRATCH: &str = "upcall-bench-";
/// Number of attempts to remove a directory in which a process makes files, and the time between.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

impl Scratch {
    /// Creates the directory, and removes those of killed runs.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn make() -> Result<Scratch, RunError> {
        let within = env::temp_dir();
        for name in names(&within) {
            let id = name.strip_prefix(SCRATCH).and_then(|id| id.parse::<u32>().ok());
            if id.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
                remove(&within.join(name));
            }
        }
        let dir = within.join(format!("{SCRATCH}{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| RunError::File { path: dir.clone(), error })?;
        Ok(Scratch { dir })
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Removes a scratch directory, and shared memory named after it (iceoryx2 has no other place for
/// it).
fn remove(dir: &Path) {
    // A process of a killed run that is about to end may still make a file while this removes them.
    for _ in 0..TRIES {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => thread::sleep(PAUSE),
            _ => break,
        }
    }
    if let Some(name) = dir.file_name().and_then(|name| name.to_str()) {
        pair::remove_shared_memory(&format!("{name}-"));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}
