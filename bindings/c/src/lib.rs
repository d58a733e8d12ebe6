//! Upcall for C: libupcall. What C sees of it is `include/upcall.h`, which documents every
//! function; this says how the two sides of that border keep to it.
//!
//! What not: the functions of one interface. `upcall wit generate --lang c` writes those
//! (`crates/idl/src/c/`), on the last part of the header.
//!
//! # The ABI
//! - **No unwinding.** Every function that can panic runs behind [`error::guard`], which makes a
//!   status of a panic. Callbacks are called as functions that do not unwind.
//! - **Errors** are a status as the return value, and on request a struct of the caller's with the
//!   text, so that nothing is allocated for them. It is written only on failure: a call that goes
//!   well does not touch it.
//! - **Objects** are opaque pointers: clients, resources, servers, and a server's own objects. Each
//!   has one function that frees it.
//! - **A call whose blocks both fit into a message** (48 bytes) is one function call with the words
//!   by reference ([`call`]); the generated function around it writes and reads them by itself.
//! - **Any other call**: the generated code writes the fixed part of the arguments to its own
//!   stack, and notes the pieces of the tail, which mostly are the caller's own strings and lists,
//!   in a struct whose layout the header gives ([`writer`]). The library copies them into the
//!   A-stack or the segment: one copy. Results are read in a callback, while they still lie there:
//!   by functions that copy out, check bounds and limits, and give no byte of a tail twice
//!   ([`reader`]). C never has a pointer into memory that a peer can write.
//! - **A server's procedure** gets its arguments in the same way ([`server`]), except that a
//!   `list<u8>` stays where it is, as an `upcall_bytes`. Its results are written when it has
//!   returned, so what they point to lives as long as the call: `upcall_call_alloc`.
//! - **Messages** ([`group`], `include/upcall_message.h`): a group is an object like others, of one
//!   thread; what has arrived is copied, checked by the signature of its kind, and then given to
//!   the program.
//! - **In place** ([`place`]): a function of the program's looks at a message where it lies. This
//!   is the one way by which C gets a pointer into memory that a peer can write, and the header
//!   says what that means.
//! - **Interrupts** ([`interrupt`]): a C program's handlers run in the handler of a signal, by its
//!   word in the header that they are fit for that.
//! - **Descriptors of interfaces** are static data of the generated code, turned into Rust's once
//!   for each and kept for ever ([`interface`]).
//!
//! Memory of results is malloc's, so that C frees it without knowing whose it is.
//!
//! C names types with their pointers' constness only; so functions here trust that pointers are
//! what the header says, which no library in C can check.
#![allow(missing_docs, clippy::missing_safety_doc)] // The header says it, once.

pub mod accepts;
pub mod call;
pub mod client;
pub mod error;
pub mod group;
pub mod interface;
pub mod interrupt;
pub mod object;
pub mod place;
pub mod reader;
pub mod server;
pub mod writer;
