//! The walk by calls of the interface: in the same process as plain function calls, or to another
//! process. The code is the same.

use crate::files::{Directory, Entry, Error, File, Files, Status};
use crate::walk::{Problem, Transport};
use upcall::{CallError, Failure};

/// The interface as a transport.
pub struct Calls {
    files: Files,
    /// The result of the last read.
    last: Vec<u8>,
}

impl Calls {
    /// Walks through `files`.
    pub fn new(files: Files) -> Self {
        Self { files, last: Vec::new() }
    }
}

impl From<Failure<Error>> for Problem {
    fn from(failure: Failure<Error>) -> Self {
        match failure {
            Failure::Returned(error) => Self::Refused(error),
            Failure::Call(error) => error.into(),
        }
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        Self::Broken(error.to_string())
    }
}

impl Transport for Calls {
    type File = File;
    type Directory = Directory;

    fn open(&mut self, path: &[u8]) -> Result<File, Problem> {
        Ok(self.files.open(path)?)
    }

    fn stat(&mut self, file: &File) -> Result<Status, Problem> {
        Ok(file.stat()?)
    }

    fn read(&mut self, file: &File, offset: u64, most: u32) -> Result<&[u8], Problem> {
        self.last = file.read(offset, most)?;
        Ok(&self.last)
    }

    fn close(&mut self, file: File) -> Result<(), Problem> {
        drop(file);
        Ok(())
    }

    fn open_directory(&mut self, path: &[u8]) -> Result<Directory, Problem> {
        Ok(self.files.open_directory(path)?)
    }

    fn entries(
        &mut self,
        directory: &Directory,
        start: u64,
        most: u32,
    ) -> Result<Vec<Entry>, Problem> {
        Ok(directory.entries(start, most)?)
    }

    fn close_directory(&mut self, directory: Directory) -> Result<(), Problem> {
        drop(directory);
        Ok(())
    }
}
