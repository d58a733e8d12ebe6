//! Stands in for the generated stubs until they exist.
#![allow(missing_docs)]

pub mod files {
    use std::any::Any;
    use std::fmt;
    use std::sync::Arc;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Kind {
        Regular,
        Directory,
        Link,
        Other,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Error {
        NotFound,
        Denied,
        Outside,
        BadPath,
        WrongKind(Kind),
        TooMuch(u32),
        Exhausted,
        System(i32),
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Status {
        pub kind: Kind,
        pub size: u64,
        pub modified: i64,
    }

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct Entry {
        pub name: Vec<u8>,
        pub kind: Kind,
    }

    pub struct Bytes<'a>(&'a [u8]);
    impl Bytes<'_> {
        pub fn to_vec(&self) -> Vec<u8> {
            self.0.to_vec()
        }
    }

    #[derive(Debug)]
    pub struct CallError;
    impl fmt::Display for CallError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("no call")
        }
    }

    #[derive(Debug)]
    pub enum Failure<E> {
        Returned(E),
        Call(CallError),
    }

    pub trait Serve: Send + Sync + 'static {
        fn root(&self) -> Vec<u8>;
        fn open(&self, path: Bytes<'_>) -> Result<Arc<dyn ServeFile>, Error>;
        fn open_directory(&self, path: Bytes<'_>) -> Result<Arc<dyn ServeDirectory>, Error>;
    }
    pub trait ServeFile: Any + Send + Sync {
        fn read(&self, offset: u64, most: u32) -> Result<Vec<u8>, Error>;
        fn stat(&self) -> Result<Status, Error>;
    }
    pub trait ServeDirectory: Any + Send + Sync {
        fn entries(&self, start: u64, most: u32) -> Result<Vec<Entry>, Error>;
    }

    #[derive(Clone)]
    pub struct Files(Arc<dyn Serve>);
    pub struct File(Arc<dyn ServeFile>);
    pub struct Directory(Arc<dyn ServeDirectory>);

    impl Files {
        pub fn local(server: impl Serve) -> Self {
            Self(Arc::new(server))
        }
        pub fn root(&self) -> Result<Vec<u8>, CallError> {
            Ok(self.0.root())
        }
        pub fn open(&self, path: &[u8]) -> Result<File, Failure<Error>> {
            self.0.open(Bytes(path)).map(File).map_err(Failure::Returned)
        }
        pub fn open_directory(&self, path: &[u8]) -> Result<Directory, Failure<Error>> {
            self.0.open_directory(Bytes(path)).map(Directory).map_err(Failure::Returned)
        }
    }
    impl File {
        pub fn read(&self, offset: u64, most: u32) -> Result<Vec<u8>, Failure<Error>> {
            self.0.read(offset, most).map_err(Failure::Returned)
        }
        pub fn stat(&self) -> Result<Status, Failure<Error>> {
            self.0.stat().map_err(Failure::Returned)
        }
    }
    impl Directory {
        pub fn entries(&self, start: u64, most: u32) -> Result<Vec<Entry>, Failure<Error>> {
            self.0.entries(start, most).map_err(Failure::Returned)
        }
    }
}

pub mod publish {
    use crate::tree::Tree;
    use std::sync::Arc;
    pub fn publish(_name: &str, _tree: Arc<Tree>) -> Result<(), String> {
        Ok(())
    }
    pub fn bind(name: &str) -> Result<super::files::Files, String> {
        eprintln!("{name}: a mock in this process");
        Ok(super::files::Files::local(Arc::new(Tree::open(std::path::Path::new("/usr/share/doc")).unwrap())))
    }
}
