//! The examples in pages that no crate includes, run as documentation tests.

#[doc = include_str!("../../crates/macros/docs/interface.md")]
mod interface {}

#[doc = include_str!("../../crates/macros/docs/package.md")]
mod package {}

#[doc = include_str!("../../crates/macros/docs/shared.md")]
mod shared {}

#[doc = include_str!("../../docs/reference/network.md")]
mod network {}

#[doc = include_str!("../../docs/reference/objects.md")]
mod objects {}
