//! The upcall command.
