//! The interface macro.
