//! Records of suites, and the pages that are written from them.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Runs `upcall-bench` with these arguments. Returns its exit status and its errors.
fn bench(arguments: &[&str], scratch: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upcall-bench"));
    command.args(arguments).env("TMPDIR", scratch).env("UPCALL_DIR", scratch.join("names"));
    let output = command.env_remove("XDG_RUNTIME_DIR").output().expect("the command starts");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

fn pages(dir: &Path, more: &[&str]) -> (Option<i32>, String) {
    let folder = dir.to_str().expect("a path in Unicode");
    bench(&[&["pages", folder], more].concat(), dir)
}

#[test]
fn the_pages_of_the_book_are_what_the_records_say() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance");
    if !dir.exists() {
        return; // a package by itself
    }
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        let (code, errors) = pages(&dir, &[]);
        assert_eq!(code, Some(0), "{errors}");
    }
    let (code, errors) = pages(&dir, &["--check"]);
    assert_eq!(
        (code, errors.as_str()),
        (Some(0), ""),
        "docs/performance is out of date: \
        UPDATE_SNAPSHOTS=1 cargo test -p upcall-bench-command --test pages the_pages_of_the_book"
    );
}

/// Returns a record of LRPC's tests on one processor. The limit's has another cache line.
fn record(case: &str, system: &str, ns: f64) -> Value {
    json!({
        "suite": "lrpc", "case": case, "system": system, "placement": "one-core",
        "mode": "parked", "p50_ns": ns, "p99_ns": ns, "mean_ns": ns, "per_s": 1e9 / ns,
        "samples": 9, "line_ns": if system == "limit" { 72.0 } else { 104.4 },
    })
}

/// Returns a run, measured on a day, with these records.
fn run(date: &str, records: &[Value]) -> Value {
    json!({
        "head": {
            "date": date, "processor": "A Processor", "processors": 2, "kernel": "6.18",
            "profile": "release", "version": "0.1.0", "commit": "0123456789-dirty",
            "command": "upcall-bench lrpc --peers all",
        },
        "records": records, "idle": [], "properties": [],
        "notes": ["other programs were running"], "failures": ["null, grpc: it has ended"],
    })
}

/// Puts a page and runs of LRPC's suite into a folder.
fn folder(page: &str, runs: &[Value]) -> TempDir {
    let dir = TempDir::new().expect("a folder");
    fs::create_dir(dir.path().join("records")).expect("a folder");
    let text = serde_json::to_string(runs).expect("JSON");
    fs::write(dir.path().join("records/lrpc.json"), text).expect("a file");
    fs::write(dir.path().join("calls.md"), page).expect("a file");
    dir
}

const TESTS: [&str; 4] = ["null", "add", "bigin", "biginout"];

fn tests(system: &str, ns: f64) -> Vec<Value> {
    TESTS.iter().map(|case| record(case, system, ns)).collect()
}

#[test]
fn a_page_has_tables_and_figures_from_records() {
    let page = "# Calls\n\n<!-- upcall-bench lrpc table-iv -->\n<!-- end -->\n\
        <!-- upcall-bench lrpc notes -->\n<!-- end -->\n<!-- upcall-bench lrpc figure-2 -->\n\
        <!-- end -->\n<!-- upcall-bench rpc idle -->\n<!-- end -->\nThe end.\n";
    let records = [tests("upcall", 2500.0), tests("limit", 2400.0)].concat();
    let dir = folder(page, &[run("2026-11-28", &records)]);
    let (code, errors) = pages(dir.path(), &["--check"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("calls.md: table table-iv of lrpc: differs from its"), "{errors}");
    assert!(errors.contains("figures/lrpc-calls.svg: figure of lrpc: differs"), "{errors}");
    assert_eq!(fs::read_to_string(dir.path().join("calls.md")).expect("a page"), page);

    let (code, errors) = pages(dir.path(), &[]);
    assert_eq!(code, Some(0), "{errors}");
    let text = fs::read_to_string(dir.path().join("calls.md")).expect("a page");
    let expected = "# Calls

<!-- upcall-bench lrpc table-iv -->

Table IV: one call at a time, ns (median), and p99 of Null:

| | processors | null | add | bigin | biginout | null p99 | line |
|---|---|--:|--:|--:|--:|--:|--:|
| **upcall** | **one-core** | **2 500** | **2 500** | **2 500** | **2 500** | **2 500** | **104** |
| limit | one-core | 2 400 | 2 400 | 2 400 | 2 400 | 2 400 | 72.0 |

Measured on 2026-11-28 by `upcall-bench lrpc --peers all` (A Processor, 2 processors, Linux 6.18;
upcall 0.1.0, commit 0123456789-dirty, release). A cache line took 72 to 104 ns there and back.

<!-- end -->
<!-- upcall-bench lrpc notes -->

- other programs were running
- not measured: null, grpc: it has ended

<!-- end -->
<!-- upcall-bench lrpc figure-2 -->

not measured yet

<!-- end -->
<!-- upcall-bench rpc idle -->

not measured yet

<!-- end -->
The end.
";
    assert_eq!(text, expected);
    let figure = fs::read_to_string(dir.path().join("figures/lrpc-calls.svg")).expect("a figure");
    assert!(figure.starts_with("<svg"), "{figure}");
    assert_eq!(pages(dir.path(), &["--check"]), (Some(0), String::new()));

    // A page whose tables are right is not written, not even to end its last line.
    fs::write(dir.path().join("calls.md"), text.trim_end()).expect("a file");
    assert_eq!(pages(dir.path(), &[]), (Some(0), String::new()));
    let unended = fs::read_to_string(dir.path().join("calls.md")).expect("a page");
    assert_eq!(unended, text.trim_end());

    // A figure that was typed by hand.
    fs::write(dir.path().join("calls.md"), text.replace("2 400 | 72.0", "2 300 | 72.0"))
        .expect("a file");
    let (code, errors) = pages(dir.path(), &["--check"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("calls.md: table table-iv of lrpc") && errors.lines().count() == 2);
}

#[test]
fn the_readme_has_the_table_alone() {
    let top = TempDir::new().expect("a folder");
    let dir = top.path().join("docs/performance");
    fs::create_dir_all(dir.join("records")).expect("a folder");
    let runs = serde_json::to_string(&[run("2026-11-28", &tests("upcall", 2500.0))]);
    fs::write(dir.join("records/lrpc.json"), runs.expect("JSON")).expect("a file");
    let readme = top.path().join("README.md");
    fs::write(&readme, "<!-- upcall-bench lrpc table-iv -->\n<!-- end -->\n").expect("a file");
    let (code, errors) = pages(&dir, &["--check"]);
    assert!(code == Some(1) && errors.contains("README.md: table table-iv of lrpc"), "{errors}");
    assert_eq!(pages(&dir, &[]).0, Some(0));
    let text = fs::read_to_string(&readme).expect("a page");
    assert!(text.starts_with("<!-- upcall-bench lrpc table-iv -->\n\n| | processors |"), "{text}");
    assert!(text.contains("| 2 500 |") && !text.contains("Measured on"), "{text}");
}

#[test]
fn a_table_names_the_runs_that_it_is_from() {
    let page = "<!-- upcall-bench lrpc table-iv -->\n<!-- end -->\n";
    let point = record("null-p1", "upcall", 2000.0);
    let runs = [
        run("2026-11-01", &tests("limit", 2400.0)),
        run("2026-11-02", &tests("upcall", 2500.0)),
        run("2026-11-03", &[point]),
    ];
    let dir = folder(page, &runs);
    assert_eq!(pages(dir.path(), &[]).0, Some(0));
    let text = fs::read_to_string(dir.path().join("calls.md")).expect("a page");
    let from = |day: &str| text.contains(&format!("Measured on 2026-11-{day}"));
    assert!(from("01") && from("02") && !from("03"), "{text}");
}

#[test]
fn markers_and_records_that_are_none_are_told() {
    let told = |page: &str| {
        let dir = folder(page, &[]);
        let (code, errors) = pages(dir.path(), &[]);
        assert_eq!(code, Some(1), "{errors}");
        assert_eq!(fs::read_to_string(dir.path().join("calls.md")).expect("a page"), page);
        errors
    };
    let suite = told("\n<!-- upcall-bench corba idle -->\n<!-- end -->\n");
    assert!(suite.contains("calls.md:2: no suite `corba`; there are rpc, threads"), "{suite}");
    let table = told("<!-- upcall-bench lrpc table-vi -->\n<!-- end -->\n");
    assert!(
        table.contains("calls.md:1: no table `table-vi` of the suite lrpc; there are table-iv, "),
        "{table}"
    );
    let unclosed = told("a\nb\n<!-- upcall-bench lrpc table-iv -->\n");
    assert!(unclosed.contains("calls.md:3: no `<!-- end -->` follows the marker"), "{unclosed}");

    let dir = folder("", &[]);
    fs::write(dir.path().join("records/lrpc.json"), "[{").expect("a file");
    let (code, errors) = pages(dir.path(), &["--check"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("lrpc.json is not a record file"), "{errors}");
    let (code, errors) = pages(&dir.path().join("nowhere"), &[]);
    assert!(code == Some(1) && errors.contains("nowhere: "), "{errors}");
}

#[test]
fn a_run_records_what_it_measured_and_keeps_the_rest() {
    let dir = TempDir::new().expect("a folder");
    let records = dir.path().join("records");
    let file = records.join("rpc.json");
    let folder = records.to_str().expect("a path in Unicode");
    let measure = |cases: &[&str]| {
        let wish = ["rpc", "--quick", "--peers", "none", "--system", "upcall", "--mode", "parked"];
        let more = ["--placement", "one-core", "--record", folder];
        let cases = cases.iter().flat_map(|case| ["--case", case]).collect();
        bench(&[&wish[..], &more, &cases as &Vec<&str>].concat(), dir.path())
    };
    let runs = || -> Vec<(String, Vec<String>)> {
        let text = fs::read_to_string(&file).expect("the records");
        let all: Vec<Value> = serde_json::from_str(&text).expect("a JSON array");
        let run = |run: &Value| {
            let head = &run["head"];
            assert!(head["processors"].as_u64() > Some(0) && head["date"].is_string(), "{head}");
            let records = run["records"].as_array().expect("an array");
            let cases = records.iter().map(|record| record["case"].as_str().expect("a name"));
            let command = head["command"].as_str().expect("a command").to_owned();
            (command, cases.map(str::to_owned).collect())
        };
        all.iter().map(run).collect()
    };
    let command = |cases: &str| {
        "upcall-bench rpc --quick --peers none --system upcall --mode parked --placement one-core"
            .to_owned()
            + cases
    };
    let (code, errors) = measure(&["null", "add"]);
    assert_eq!(code, Some(0), "{errors}");
    let both = command(" --case null --case add");
    assert_eq!(runs(), [(both.clone(), vec!["null".to_owned(), "add".to_owned()])]);
    assert_eq!(measure(&["add"]).0, Some(0));
    let add = command(" --case add");
    assert_eq!(runs(), [(both, vec!["null".to_owned()]), (add, vec!["add".to_owned()])]);
    assert_eq!(measure(&["null", "add"]).0, Some(0));
    assert_eq!(runs().len(), 1);

    // A run without a report changes nothing.
    let before = fs::read_to_string(&file).expect("the records");
    assert_eq!(measure(&["no-case"]).0, Some(1));
    assert_eq!(fs::read_to_string(&file).expect("the records"), before);
    // What is no record file is not replaced, and nothing is measured.
    fs::write(&file, "null and void").expect("a file");
    let (code, errors) = measure(&["null"]);
    assert!(code == Some(1) && errors.contains("is not a record file"), "{errors}");
    assert_eq!(fs::read_to_string(&file).expect("the records"), "null and void");
}
