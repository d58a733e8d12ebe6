//! The table of environment variables is complete: in the source, and in
//! docs/reference/environment.md.

use crate::scene::Place;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tree")
}

/// The files of the product below a folder: no tests, examples of libraries, or build results.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    const LEFT_OUT: [&str; 6] = ["tests", "tests.rs", "target", "examples", "peers", "docs"];
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap_or_default());
        if LEFT_OUT.contains(&name.as_str()) || name.starts_with('.') {
            continue;
        } else if path.is_dir() {
            sources(&path, found);
        } else if ["rs", "c", "h", "py"].iter().any(|end| name.ends_with(&format!(".{end}"))) {
            found.push(path);
        }
    }
}

/// The names of variables that a text reads: string literals after a function that reads one, and
/// all literals with a prefix of Upcall's own.
fn read_by(text: &str) -> BTreeSet<String> {
    const READERS: [&str; 6] =
        ["env::var(", "env::var_os(", "getenv(", "environ.get(", "environ[", "given("];
    let is_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_uppercase() || b"_0123456789".contains(&b))
    };
    let mut names = BTreeSet::new();
    let literals = text.split('"').collect::<Vec<_>>();
    for (before, literal) in literals.iter().zip(literals.iter().skip(1)) {
        let own = ["UPCALL_", "UPVM_"].iter().any(|own| literal.starts_with(own));
        let is_read = READERS.iter().any(|reader| before.ends_with(reader));
        if is_name(literal) && (own || is_read) && !literal.starts_with("UPCALL_TEST") {
            names.insert(literal.to_string());
        }
    }
    names
}

/// Variables that a build or a test reads, which are not the product's.
const OTHERS: [&str; 8] = [
    "CARGO",
    "CARGO_TARGET_DIR",
    "CARGO_MANIFEST_DIR",
    "CARGO_CFG_UPCALL_ASAN",
    "OUT_DIR",
    "CC",
    "CXX",
    "DEP_UPVM_INCLUDE",
];

#[test]
fn the_table_has_every_variable_that_the_source_reads() {
    let table = Place::new().json(&["environment", "--json"]);
    let table: BTreeSet<String> = table
        .as_array()
        .expect("an array")
        .iter()
        .map(|row| row["name"].as_str().expect("a name").to_string())
        .collect();
    let mut files = Vec::new();
    for folder in ["crates", "bindings", "examples/files/src", "bench/src", "bench/command/src"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > 300, "{}", files.len());
    let mut found = BTreeSet::new();
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a source");
        // Tests within a file come last.
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        // The table itself.
        if !file.ends_with("cli/src/environment.rs") {
            found.extend(read_by(text));
        }
    }
    OTHERS.iter().for_each(|other| _ = found.remove(*other));
    let missing: Vec<_> = found.difference(&table).collect();
    assert!(missing.is_empty(), "not in crates/cli/src/environment.rs: {missing:?}");
    // Variables of libraries (anstream, std) are in no source here.
    let unread = table.difference(&found).filter(|name| name.starts_with("UP"));
    let unread: Vec<_> = unread.collect();
    assert!(unread.is_empty(), "no source reads {unread:?}");
}

#[test]
fn the_help_and_the_page_have_the_table() {
    let place = Place::new();
    let (done, help, error) = place.run(&["help", "environment"]);
    assert!(done, "{error}");
    let mut page = String::from(
        "# Environment variables\n\nThe variables that Upcall's programs read, as `upcall \
         environment` shows them with their values.\n\n| variable | read by | meaning |\n\
         |---|---|---|\n",
    );
    for row in place.json(&["environment", "--json"]).as_array().expect("an array") {
        let [name, read_by, meaning] =
            ["name", "read_by", "meaning"].map(|key| row[key].as_str().expect("a text"));
        assert!(
            help.contains(&format!("  {name}\n      {meaning} ({read_by})\n")),
            "{name}: {help}"
        );
        page += &format!("| `{name}` | {read_by} | {meaning} |\n");
    }
    let file = root().join("docs/reference/environment.md");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&file, &page).expect("the page");
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "run this test with UPDATE_SNAPSHOTS=1 to write docs/reference/environment.md"
    );
    let (_, out, _) = place.run(&["env"]);
    assert!(out.contains(&format!("UPCALL_DIR={}", place.names().display())), "{out}");
}
