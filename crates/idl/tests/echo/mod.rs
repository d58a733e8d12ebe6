//! Shared by the tests of every language's stubs: echoing interfaces, which return what they get,
//! made from packages, and random values for them.
//!
//! A package's own procedures seldom return the type that they take. So each package gets
//! additional interfaces, with a procedure `echo-N: func(v: T) -> T` for each of its named types
//! and each type of a parameter or result. A test in some language compiles stubs from that text,
//! serves it with procedures that return their arguments, and compares the blocks as values:
//! `interface.decode(..)` of what was sent and of what was returned.
//!
//! Types with objects in them have an interface of their own (`objects.rs`). A handle is valid for
//! one binding, so handles cannot be random: the interface makes objects, each with a number, and
//! returns an object's number on request.
//!
//! Other crates' tests include this by
//! `#[path = "../../../crates/idl/tests/echo/mod.rs"] mod echo;`.
#![allow(dead_code, unused_imports)] // not every test uses all of it

mod objects;
mod package;
mod values;

pub use objects::check_objects;
pub use package::{Echo, OBJECTS, VALUES, all_packages, echo, packages};
pub use values::{any_text, check};
