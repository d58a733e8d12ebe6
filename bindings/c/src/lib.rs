//! Upcall for C: libupcall. C sees `include/upcall.h`, which documents every function; the
//! documentation here describes how the two sides of that border fit together.
//!
//! The functions of an interface are not here: `upcall wit generate --lang c` writes them
//! (`crates/idl/src/c/`), based on the last part of the header.
//!
//! # The ABI
//! - **No unwinding.** Every function that can panic runs behind [`error::guard`], which converts a
//!   panic to a status. Callbacks are called as functions that do not unwind.
//! - **Errors** are a status as the return value and, on request, a struct of the caller's with the
//!   text, so that nothing is allocated for them. The struct is written only on failure: a
//!   successful call does not touch it.
//! - **Objects** are opaque pointers: clients, resources, servers, and a server's own objects. Each
//!   has one function that frees it.
//! - **A call whose blocks both fit into a message** (48 bytes) is one function call with the words
//!   by reference ([`call`]); the generated function around it writes and reads them itself.
//! - **Any other call**: the generated code writes the fixed part of the arguments to its own
//!   stack. It records the pieces of the tail, which mostly are the caller's own strings and lists,
//!   in a struct whose layout the header gives ([`writer`]). The library copies them into the
//!   A-stack or the segment: one copy. Results are read in a callback, while they are still there,
//!   by functions that copy out, check bounds and limits, and read no byte of a tail twice
//!   ([`reader`]). C never has a pointer into memory that a peer can write.
//! - **A server's procedure** gets its arguments in the same way ([`server`]), except that a
//!   `list<u8>` stays where it is, as an `upcall_bytes`. Its results are written after it has
//!   returned, so what they point to lives as long as the call: `upcall_call_alloc`.
//! - **Messages** ([`group`], `include/upcall_message.h`): a group is an object of one thread. An
//!   arriving message is copied and checked against the signature of its kind before the program
//!   gets it.
//! - **In place** ([`place`]): a function of the program reads a message where it lies. This is the
//!   only way by which C gets a pointer into memory that a peer can write, and the header says what
//!   that means.
//! - **Interrupts** ([`interrupt`]): a C program's handlers run in a signal handler; by the
//!   header's contract they are fit for that.
//! - **Descriptors of interfaces** are static data of the generated code. Each is converted to Rust
//!   once, and kept forever ([`interface`]).
//!
//! Memory of results comes from malloc, so that C frees it without knowing where it was allocated.
//!
//! In C, pointer types carry only constness. So the functions here trust that pointers are what the
//! header requires, which no library in C can check.
#![allow(missing_docs, clippy::missing_safety_doc)] // The header says it, once.

pub mod accepts;
pub mod across;
pub mod call;
pub mod client;
pub mod deadline;
pub mod error;
pub mod group;
pub mod interface;
pub mod interrupt;
pub mod late;
pub mod object;
pub mod petition;
pub mod place;
pub mod reader;
pub mod server;
pub mod writer;
