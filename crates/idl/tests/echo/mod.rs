//! For the tests of every language's stubs: interfaces that give back what they get, made of
//! packages, and random values for them.
//!
//! A package says what goes in and what comes out, and seldom the same. So each gets interfaces
//! more, with a procedure `echo-N: func(v: T) -> T` for each of its types: every named one,
//! and every one that a parameter or result has. A test in some language compiles stubs from that
//! text, serves it with procedures that return what they get, and compares blocks as values:
//! `interface.decode(..)` of what was sent and of what came back.
//!
//! Types with objects in them have an interface of their own (`objects.rs`). A handle is good for
//! one binding, so there are no random ones: the interface makes objects, each with a number, and
//! tells an object's number again.
//!
//! Other crates' tests have this by `#[path = "../../../crates/idl/tests/echo/mod.rs"] mod echo;`.
#![allow(dead_code, unused_imports)] // not every test uses all of it

mod objects;
mod package;
mod values;

pub use objects::check_objects;
pub use package::{Echo, OBJECTS, VALUES, all_packages, echo, packages};
pub use values::{any_text, check};
