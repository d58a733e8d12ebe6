//! The tree as a server of the interface, which the generated stubs call.

use crate::files::{Entry, Error, Serve, ServeDirectory, ServeFile, Status};
use crate::tree::{Listing, OpenFile, Tree, bytes};
use std::sync::Arc;
use upcall::Bytes;

impl Serve for Arc<Tree> {
    fn root(&self) -> Vec<u8> {
        bytes(self.path()).to_vec()
    }

    fn open(&self, path: Bytes<'_>) -> Result<Arc<dyn ServeFile>, Error> {
        Ok(Arc::new(self.file(&path.to_vec())?))
    }

    fn open_directory(&self, path: Bytes<'_>) -> Result<Arc<dyn ServeDirectory>, Error> {
        Ok(Arc::new(self.directory(&path.to_vec())?))
    }
}

impl ServeFile for OpenFile {
    fn read(&self, offset: u64, most: u32) -> Result<Vec<u8>, Error> {
        OpenFile::read(self, offset, most)
    }

    fn stat(&self) -> Result<Status, Error> {
        OpenFile::stat(self)
    }
}

impl ServeDirectory for Listing {
    fn entries(&self, start: u64, most: u32) -> Result<Vec<Entry>, Error> {
        Listing::entries(self, start, most).map(<[Entry]>::to_vec)
    }
}
