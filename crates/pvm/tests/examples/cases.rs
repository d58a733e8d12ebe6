//! A table of programs and cases; `cases.toml` says what each field means.

use serde::Deserialize;

/// How long a case may take, in seconds, if it says nothing else.
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
    /// All its sources.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.source.as_deref().into_iter().chain(self.also.iter().map(String::as_str))
    }

    /// Whether the table leaves it to its name which file it is.
    pub fn is_its_name(&self) -> bool {
        self.source.is_none()
    }
}

impl Case {
    /// Whether it starts the program, as far as the table says.
    pub fn uses(&self, program: &str) -> bool {
        let script = self.script.iter().flat_map(|script| script.split_whitespace());
        self.run.iter().map(String::as_str).chain(script).any(|word| word == program)
    }
}

impl Table {
    /// All of its cases, or those that `UPCALL_PVM_CASES` names (separated by commas).
    pub fn read(text: &str) -> Self {
        let mut table: Table = toml::from_str(text).expect("a table of cases");
        if let Ok(only) = std::env::var("UPCALL_PVM_CASES") {
            let only: Vec<&str> = only.split(',').collect();
            table.cases.retain(|case| only.contains(&case.name.as_str()));
        }
        table
    }
}
