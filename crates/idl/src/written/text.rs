//! Text that is made line by line, each from a place in Rust.

use proc_macro2::Span;
use std::fmt::Write;

pub(super) struct SpannedText {
    pub(super) text: String,
    /// One for each line.
    spans: Vec<Span>,
    /// For what is about no line.
    whole: Span,
}

impl SpannedText {
    /// What the two texts of an interface are called in errors, by which they are told apart.
    pub(super) const WIT: &str = "the interface";
    pub(super) const LIMITS: &str = "the limits";

    pub(super) fn new(whole: Span) -> Self {
        Self { text: String::new(), spans: Vec::new(), whole }
    }

    /// One line.
    pub(super) fn line(&mut self, depth: usize, line: &str, span: Span) {
        let width = if line.is_empty() { 0 } else { depth * 4 };
        let _ = writeln!(self.text, "{:width$}{line}", "");
        self.spans.push(span);
    }

    /// A comment, of as many lines as it has.
    pub(super) fn docs(&mut self, depth: usize, docs: &[(String, Span)]) {
        for (line, span) in docs {
            self.line(depth, format!("/// {line}").trim_end(), *span);
        }
    }

    /// All lines of another.
    pub(super) fn append(&mut self, other: Self) {
        self.text.push_str(&other.text);
        self.spans.extend(other.spans);
    }

    /// Where a line is from; they count from 1.
    pub(super) fn span(&self, line: u32) -> Span {
        (line as usize)
            .checked_sub(1)
            .and_then(|at| self.spans.get(at))
            .copied()
            .unwrap_or(self.whole)
    }
}
