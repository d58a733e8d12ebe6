//! Values whose sizes a client chooses: a server whose every allocation may be refused, and a
//! client that sends and takes such values.

use crate::interfaces::shapes::{Entry, Serve, Shapes};
use crate::outcome::{Outcome, same, show};
use upcall::Failure;

/// The server's side. Its own memory can be refused, too.
#[derive(Debug)]
pub struct Server;

fn texts(count: usize, len: usize) -> Result<Vec<String>, std::collections::TryReserveError> {
    let mut all = Vec::new();
    all.try_reserve_exact(count)?;
    for _ in 0..count {
        let mut text = String::new();
        text.try_reserve_exact(len)?;
        (0..len).for_each(|_| text.push('t'));
        all.push(text);
    }
    Ok(all)
}

impl Serve for Server {
    fn nested(&self, values: &[Vec<String>]) -> u64 {
        values.iter().flatten().map(|text| text.len() as u64).sum()
    }

    fn entries(&self, entries: &[Entry]) -> Result<u64, String> {
        let bytes = |entry: &Entry| {
            let tags: usize = entry.tags.iter().map(String::len).sum();
            entry.name.len() + tags + entry.data.len() + entry.note.as_ref().map_or(0, String::len)
        };
        Ok(entries.iter().map(|entry| bytes(entry) as u64).sum())
    }

    fn give(&self, count: u32, len: u32) -> Result<Vec<String>, String> {
        texts(count as usize, len as usize).map_err(|_| "no memory in the procedure".into())
    }
}

/// Runs `nested COUNT LEN`, `entries COUNT LEN` or `give COUNT LEN`: a call on a new binding to
/// `name`.
pub(crate) fn call(name: &str, words: &[&str]) -> Outcome {
    let shapes = Shapes::bind(name)?;
    let [what, count, len] = words else { return Err(format!("unknown words {words:?}").into()) };
    let (count, len) = (count.parse::<usize>()?, len.parse::<usize>()?);
    match *what {
        "nested" => show([shapes.nested(&vec![vec!["t".repeat(len); count]; 3])?]),
        "entries" => {
            let text = "t".repeat(len);
            let tags = vec![text.clone(); 3];
            let entry = Entry { name: text.clone(), tags, data: vec![7; len], note: Some(text) };
            match shapes.entries(&vec![entry; count]) {
                Ok(bytes) => show([bytes]),
                Err(Failure::Call(error)) => Err(error.into()),
                Err(Failure::Returned(text)) => Err(text.into()),
            }
        }
        "give" => match shapes.give(count as u32, len as u32) {
            Ok(texts) => same(texts, vec!["t".repeat(len); count]),
            Err(Failure::Call(error)) => Err(error.into()),
            Err(Failure::Returned(text)) => Err(text.into()),
        },
        other => Err(format!("unknown call {other:?}").into()),
    }
}
