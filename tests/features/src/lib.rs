//! An empty crate. `Cargo.toml` explains the purpose of this package.
