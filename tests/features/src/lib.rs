//! Nothing: `Cargo.toml` says what this package is for.
