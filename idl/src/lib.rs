//! Interfaces in WIT, compiled to layouts and stubs.
