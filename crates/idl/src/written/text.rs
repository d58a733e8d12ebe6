//! Text that is made line by line, each line with its place in Rust.

use proc_macro2::Span;
use std::fmt::Write;

pub(super) struct SpannedText {
    pub(super) text: String,
    /// The place of each line.
    spans: Vec<Span>,
    /// The place for errors that are not about one line.
    whole: Span,
}

impl SpannedText {
    /// The names of an interface's two texts in errors, which distinguish them.
    pub(super) const WIT: &str = "the interface";
    pub(super) const LIMITS: &str = "the limits";

    pub(super) fn new(whole: Span) -> Self {
        Self { text: String::new(), spans: Vec::new(), whole }
    }

    /// Adds a line.
    pub(super) fn line(&mut self, depth: usize, line: &str, span: Span) {
        let width = if line.is_empty() { 0 } else { depth * 4 };
        let _ = writeln!(self.text, "{:width$}{line}", "");
        self.spans.push(span);
    }

    /// Adds a comment of any number of lines.
    pub(super) fn docs(&mut self, depth: usize, docs: &[(String, Span)]) {
        for (line, span) in docs {
            self.line(depth, format!("/// {line}").trim_end(), *span);
        }
    }

    /// Adds all lines of another text.
    pub(super) fn append(&mut self, other: Self) {
        self.text.push_str(&other.text);
        self.spans.extend(other.spans);
    }

    /// The place of a line; lines count from 1.
    pub(super) fn span(&self, line: u32) -> Span {
        (line as usize)
            .checked_sub(1)
            .and_then(|at| self.spans.get(at))
            .copied()
            .unwrap_or(self.whole)
    }
}
