//! The two servers: one with the library and its default quotas, and one without the library.

use std::error::Error;
use std::io::{BufRead, Read, Write};
use std::os::fd::AsFd;
use upcall::{Bytes, Pacing, Server};
use upcall_tests::outcome::say;

/// The interface that the hostile clients and the bystander call.
#[allow(missing_docs, reason = "generated; the WIT has the documentation")]
pub mod interface {
    upcall::interface!(
        r#"
        package upcall:bystander@1.0.0;

        /// Calls whose cost the client decides.
        interface load {
            /// Nothing.
            null: func();
            /// The number of these numbers, which the server copies.
            count: func(numbers: list<u64>) -> u64;
            /// The number of these texts, which the server copies.
            texts: func(texts: list<string>) -> u64;
            /// The sum of bytes that the server reads where they are.
            fold: func(data: list<u8>) -> u64;
            /// The number of bytes of a copy.
            vector: func(data: list<u8>) -> u64;
            /// Zeros.
            make: func(len: u64) -> list<u8>;
            /// Blocks its kernel thread for so many milliseconds.
            block: func(ms: u32);
        }
        "#
    );
}

use interface::load;

/// Number of bytes that a handler processes before it lets others run.
const PART: usize = 256 << 10;

struct Load;

impl load::Serve for Load {
    fn null(&self) {}

    fn count(&self, numbers: &[u64]) -> u64 {
        numbers.len() as u64
    }

    fn texts(&self, texts: &[String]) -> u64 {
        texts.len() as u64
    }

    fn fold(&self, data: Bytes<'_>) -> u64 {
        // The documentation advises this for a handler that processes many MiB.
        let parts =
            (0..data.len()).step_by(PART).filter_map(|at| data.part(at, PART.min(data.len() - at)));
        parts.fold(0, |sum, part| {
            upcall::thread::yield_now();
            part.fold_words(sum, u64::wrapping_add, |sum, byte| sum.wrapping_add(byte.into()))
        })
    }

    fn vector(&self, data: Bytes<'_>) -> u64 {
        data.to_vec().len() as u64
    }

    fn make(&self, len: u64) -> Vec<u8> {
        vec![0; len as usize]
    }

    fn block(&self, ms: u32) {
        std::thread::sleep(std::time::Duration::from_millis(ms.into()));
    }
}

/// Serves `load` until standard input ends.
pub fn run(polls: bool) -> Result<(), Box<dyn Error>> {
    let server = Server::new().export("load", load::export(Load));
    let server = if polls { server.pacing(Pacing::Poll) } else { server };
    let running = server.start()?;
    say(Ok(Vec::new()));
    std::io::stdin().lock().lines().for_each(drop);
    drop(running);
    Ok(())
}

/// Number of bytes that the bare server copies between two polls for a request, the same as in the
/// library.
const PIECE: usize = 256 << 10;

/// Answers each byte of standard input with one on standard output. If `busy`, copies memory all
/// the time.
pub fn bare(busy: bool) -> Result<(), Box<dyn Error>> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut byte = [0];
    if !busy {
        while input.read(&mut byte)? == 1 {
            output.write_all(&byte)?;
            output.flush()?;
        }
        return Ok(());
    }
    rustix::io::ioctl_fionbio(std::io::stdin().as_fd(), true)?;
    let (from, mut to) = (vec![1_u8; 16 << 20], vec![0_u8; 16 << 20]);
    loop {
        for at in (0..from.len()).step_by(PIECE) {
            to[at..at + PIECE].copy_from_slice(std::hint::black_box(&from[at..at + PIECE]));
            match rustix::io::read(std::io::stdin().as_fd(), &mut byte) {
                Ok(1) => {
                    output.write_all(&byte)?;
                    output.flush()?;
                }
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
