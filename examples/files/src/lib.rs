//! A file server in a process of its own.
