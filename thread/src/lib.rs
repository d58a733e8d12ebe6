//! User-level threads on virtual processors.
