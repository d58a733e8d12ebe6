//! A table of programs and cases; `cases.toml` documents its fields.

use serde::Deserialize;

/// Default time limit of a case, in seconds.
const LIMIT: u64 = 60;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    #[serde(rename = "program", default)]
    pub programs: Vec<Program>,
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub name: String,
    source: Option<String>,
    #[serde(default)]
    also: Vec<String>,
    #[serde(default)]
    pub flags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    #[serde(default)]
    pub run: Vec<String>,
    pub copies: Option<u32>,
    pub script: Option<String>,
    #[serde(default)]
    pub stdin: String,
    #[serde(default = "limit")]
    pub limit: u64,
    #[serde(default)]
    pub hangs: bool,
    #[serde(default)]
    pub any: bool,
    #[serde(default)]
    pub sorted: Vec<String>,
    #[serde(default)]
    pub dropped: Vec<String>,
    #[serde(default)]
    pub replaced: Vec<String>,
    #[serde(default)]
    pub why: String,
}

fn limit() -> u64 {
    LIMIT
}

impl Program {
    /// All sources of the program.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.source.as_deref().into_iter().chain(self.also.iter().map(String::as_str))
    }

    /// Returns `true` if the source file's name follows from the program's.
    pub fn is_its_name(&self) -> bool {
        self.source.is_none()
    }
}

impl Case {
    /// Returns `true` if the table shows that the case starts the program.
    pub fn uses(&self, program: &str) -> bool {
        let script = self.script.iter().flat_map(|script| script.split_whitespace());
        self.run.iter().map(String::as_str).chain(script).any(|word| word == program)
    }
}

impl Table {
    /// Keeps the cases with these names, and the programs that those use.
    pub fn keep(&mut self, names: &[&str]) {
        self.cases.retain(|case| names.contains(&case.name.as_str()));
    }

    /// Reads a table, with all cases or those that `UPCALL_PVM_CASES` names (separated by commas).
    pub fn read(text: &str) -> Self {
        let mut table: Table = toml::from_str(text).expect("a table of cases");
        if let Ok(only) = std::env::var("UPCALL_PVM_CASES") {
            let only: Vec<&str> = only.split(',').collect();
            table.cases.retain(|case| only.contains(&case.name.as_str()));
        }
        table
    }
}
