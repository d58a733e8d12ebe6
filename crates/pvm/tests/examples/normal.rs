//! Normalizes the outputs of two runs for comparison. Everything that is printed is compared,
//! except what PVM leaves open (see cases.toml).

use std::collections::BTreeMap;

use regex_lite::{Captures, Regex};

use crate::cases::Case;
use crate::process;

/// The result of a case.
pub struct Outcome {
    /// Standard output of the first task, with labelled lines of the tasks whose output it catches.
    pub out: String,
    /// Its standard error.
    pub err: String,
    /// Labelled lines of tasks whose output no task catches.
    pub others: String,
    /// How the first task ended.
    pub status: String,
}

/// Marks lines of the first task's standard error.
const ERROR: &str = "2> ";

/// Our PVM detects that nothing will ever arrive, and ends.
const NOBODY: &str = "wait for what no task can send";

/// Printed by `pvm_exit` of the real PVM while it waits for tasks whose output is caught.
const WAITS: &str = "child task(s) still running.  waiting...";

/// The lines to compare. `folder` is the programs' folder.
pub fn lines(outcome: &Outcome, case: &Case, folder: &str) -> Vec<String> {
    if case.hangs && (outcome.status == process::RUNS || outcome.err.contains(NOBODY)) {
        return vec!["hangs".into()];
    }
    let mut tasks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let out = unlabelled(&outcome.out, &mut tasks);
    let err = unlabelled(&outcome.err, &mut tasks);
    unlabelled(&outcome.others, &mut tasks);
    let clean = Clean::new(case, folder);
    let mut ids = Ids::new(case.any);
    let mut all;
    if case.copies.is_some() {
        all = ids.replaced(clean.lines(of_copies(&out, &err, tasks)));
        if case.any {
            all.sort();
        }
    } else {
        let own =
            out.lines().map(str::to_owned).chain(err.lines().map(|line| format!("{ERROR}{line}")));
        all = ids.replaced(clean.lines(own.chain([outcome.status.clone()]).collect()));
        let mut groups: Vec<Vec<String>> = Vec::new();
        for (label, lines) in tasks {
            let label = ids.tid(&label);
            let mut lines = ids.replaced(clean.lines(lines));
            // These are on standard error, which is not buffered until the program ends.
            lines.sort_by_key(|line| !line.starts_with("libpvm ["));
            groups.push(lines.into_iter().map(|line| format!("[{label}] {line}")).collect());
        }
        if case.any {
            groups.sort();
        }
        all.extend(groups.into_iter().flatten());
    }
    all.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

/// The output of copies. Under the real PVM `cast` starts them and catches their output. Under ours
/// they all print to the first task's streams.
fn of_copies(out: &str, err: &str, tasks: BTreeMap<String, Vec<String>>) -> Vec<String> {
    let caught = tasks.into_values().flatten().filter(|line| line != "BEGIN" && line != "EOF");
    let printed = err.lines().chain(out.lines()).filter(|line| !line.starts_with("cast: "));
    printed.map(str::to_owned).chain(caught).collect()
}

/// Moves labelled lines to their tasks, and returns the rest. A label may follow the beginning of a
/// line that the first task has not finished.
fn unlabelled(text: &str, tasks: &mut BTreeMap<String, Vec<String>>) -> String {
    let label = Regex::new(r"\[(t[0-9a-f]+)\] ").expect("a pattern");
    let mut own = String::new();
    for line in text.split_inclusive('\n') {
        match label.captures(line) {
            None => own.push_str(line),
            Some(found) => {
                let whole = found.get(0).expect("a match");
                own.push_str(&line[..whole.start()]);
                tasks
                    .entry(found[1].to_owned())
                    .or_default()
                    .push(line[whole.end()..].trim_end_matches('\n').to_owned());
            }
        }
    }
    own
}

/// A case's rules for its lines.
struct Clean {
    folder: String,
    dropped: Vec<Regex>,
    replaced: Vec<Regex>,
    sorted: Vec<Regex>,
}

impl Clean {
    fn new(case: &Case, folder: &str) -> Self {
        let patterns = |texts: &[String]| {
            texts.iter().map(|text| Regex::new(text).expect("a pattern in cases.toml")).collect()
        };
        Self {
            folder: format!("{folder}/"),
            dropped: patterns(&case.dropped),
            replaced: patterns(&case.replaced),
            sorted: patterns(&case.sorted),
        }
    }

    fn lines(&self, lines: Vec<String>) -> Vec<String> {
        let mut kept = lines;
        kept.retain(|line| {
            !line.ends_with(WAITS) && !self.dropped.iter().any(|pattern| pattern.is_match(line))
        });
        for line in &mut kept {
            *line = line.replace(&self.folder, "");
            for pattern in &self.replaced {
                *line = pattern.replace_all(line, "#").into_owned();
            }
        }
        for pattern in &self.sorted {
            let places: Vec<usize> =
                (0..kept.len()).filter(|&at| pattern.is_match(&kept[at])).collect();
            let mut lines: Vec<String> = places.iter().map(|&at| kept[at].clone()).collect();
            lines.sort();
            places.into_iter().zip(lines).for_each(|(at, line)| kept[at] = line);
        }
        kept
    }
}

/// Numbers for ids, in order of appearance.
struct Ids {
    any: bool,
    tid: Regex,
    context: Regex,
    tids: Vec<u32>,
    contexts: Vec<String>,
}

impl Ids {
    fn new(any: bool) -> Self {
        // The first host's tids start at 0x40001, or 262145 in decimal, and those of our second and
        // third process at 0x80001 and 0xc0001.
        let tid = concat!(
            r"\b(?:t|0x)[48c][0-3][0-9a-f]{3}|\b[48c][0-3][0-9a-f]{3}\b",
            r"|\b(?:26[2-9]|27\d|52[4-9]|53\d|78[6-9]|79\d)\d{3}\b",
        );
        let context = r"((?:context:?|ctx =) +)(-?\d+)";
        let pattern = |text| Regex::new(text).expect("a pattern");
        Self {
            any,
            tid: pattern(tid),
            context: pattern(context),
            tids: Vec::new(),
            contexts: Vec::new(),
        }
    }

    fn replaced(&mut self, lines: Vec<String>) -> Vec<String> {
        lines.into_iter().map(|line| self.line(&line)).collect()
    }

    fn line(&mut self, line: &str) -> String {
        let contexts = self.context.clone();
        let line = contexts.replace_all(line, |found: &Captures<'_>| {
            format!("{}{}", &found[1], self.context(&found[2]))
        });
        let tids = self.tid.clone();
        tids.replace_all(&line, |found: &Captures<'_>| self.tid(&found[0])).into_owned()
    }

    fn context(&mut self, id: &str) -> String {
        // The context in which all tasks start.
        if id == "0" {
            id.into()
        } else {
            format!("C{}", number(&mut self.contexts, id.to_owned()))
        }
    }

    fn tid(&mut self, text: &str) -> String {
        let hex = text.trim_start_matches("0x").trim_start_matches('t');
        let id = if hex.len() == text.len() && hex.len() == 6 {
            hex.parse()
        } else {
            u32::from_str_radix(hex, 16)
        };
        match id {
            Ok(_) if self.any => "T".into(),
            Ok(id) => format!("T{}", number(&mut self.tids, id)),
            Err(_) => text.into(),
        }
    }
}

fn number<T: PartialEq>(known: &mut Vec<T>, one: T) -> usize {
    let at = known.iter().position(|have| *have == one).unwrap_or_else(|| {
        known.push(one);
        known.len() - 1
    });
    at + 1
}

/// The differences, if any: lines of only `one` with -, lines of only `other` with +, and the lines
/// around them.
pub fn differences(one: &[String], other: &[String]) -> Option<String> {
    if one == other {
        return None;
    }
    // The longest common subsequence of the rest, from each pair of positions.
    let mut longest = vec![vec![0; other.len() + 1]; one.len() + 1];
    for at in (0..one.len()).rev() {
        for to in (0..other.len()).rev() {
            longest[at][to] = if one[at] == other[to] {
                longest[at + 1][to + 1] + 1
            } else {
                longest[at + 1][to].max(longest[at][to + 1])
            };
        }
    }
    let (mut at, mut to, mut text) = (0, 0, String::new());
    while at < one.len() || to < other.len() {
        let (mark, line) = if at < one.len() && to < other.len() && one[at] == other[to] {
            (at, to) = (at + 1, to + 1);
            (' ', &one[at - 1])
        } else if at < one.len()
            && (to == other.len() || longest[at + 1][to] >= longest[at][to + 1])
        {
            at += 1;
            ('-', &one[at - 1])
        } else {
            to += 1;
            ('+', &other[to - 1])
        };
        text.push_str(&format!("    {mark} {line}\n"));
    }
    Some(text)
}
