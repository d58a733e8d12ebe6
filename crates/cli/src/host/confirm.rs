//! A question to the person at the terminal.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};

/// What the person answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
    /// Neither the error stream nor the input is a terminal.
    NoTerminal,
}

/// Maximum length of an answer, in bytes.
const LONGEST: u64 = 64;

/// Asks on the error stream. Reads the answer from the terminal, also if the standard input is a
/// file.
pub fn ask(question: &str) -> Answer {
    if !io::stderr().is_terminal() {
        return Answer::NoTerminal;
    }
    let answer = match (io::stdin().is_terminal(), File::open("/dev/tty")) {
        (true, _) => answer(question, io::stdin().lock()),
        (false, Ok(terminal)) => answer(question, BufReader::new(terminal)),
        (false, Err(_)) => return Answer::NoTerminal,
    };
    answer.unwrap_or(Answer::No)
}

fn answer(question: &str, input: impl BufRead) -> io::Result<Answer> {
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut line = String::new();
    input.take(LONGEST).read_line(&mut line)?;
    Ok(match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Answer::Yes,
        _ => Answer::No,
    })
}
