//! The server of `calls.py`, in Rust: it polls. Argument: the name.
#![forbid(unsafe_code)]

use upcall::Pacing;

#[allow(dead_code)]
#[path = "../../c/tests/rust/mod.rs"]
mod rust;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("give a name to serve under")?;
    Ok(rust::server(&name).pacing(Pacing::Poll).run()?)
}
