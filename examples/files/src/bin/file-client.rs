//! A client of the file server: reads a whole directory tree through calls, proves every byte, and
//! compares carriers.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use upcall_files::calls::Calls;
use upcall_files::contest::{self, Contender, Named, Plan};
use upcall_files::progress::Stage;
use upcall_files::proof::{Proof, hex};
use upcall_files::report::{Report, grouped, rows};
use upcall_files::server;
use upcall_files::socket::Socket;
use upcall_files::started::Started;
use upcall_files::tree::{MOST_BYTES, Tree, shown};
use upcall_files::walk::Walked;
use upcall_files::{direct, files::Files};

/// Reads a directory tree through calls to a server in another process, proves by SHA-256 that
/// every byte came through, and compares the time with plain function calls and with a Unix socket.
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  file-client                         the machine's documentation
  file-client /usr/share --rounds 1   more of it, once
  file-client --chunk 1M              in chunks of 1 MiB instead of 64 KiB
  file-client --json result.json      the table for programs, too
  file-client --server books          a running server; without --socket, no comparison with one

Links are not followed; names need not be UTF-8. What was not read is listed before the table, with
the reason.
The exit code is 0 only if every file came through as it is."
)]
struct Arguments {
    /// The directory [default: /usr/share/doc, or /usr/share where there is little in it; with
    /// --server, what it serves]
    root: Option<PathBuf>,
    /// Bytes requested in one call: a number, or one with K or M for KiB or MiB; at most 4M
    #[arg(long, default_value = "64K", value_parser = size)]
    chunk: u32,
    /// Number of times that each of the three walks the tree
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Number of small calls in each round
    #[arg(
        long,
        default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    stats: u32,
    /// The name of a running server; without it, one is started, and stopped at the end
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// The Unix socket of that running server
    #[arg(long, value_name = "PATH", requires = "server")]
    socket: Option<PathBuf>,
    /// Write the results to this file as JSON; - is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(subcommand)]
    hidden: Option<Hidden>,
}

#[derive(Subcommand)]
enum Hidden {
    /// This program as the server, if `file-server` was not built
    #[command(hide = true)]
    AsServer(server::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (name, done) = match &arguments.hidden {
        Some(Hidden::AsServer(options)) => ("file-server", server::run(options)),
        None => ("file-client", run(&arguments)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let started = match &arguments.server {
        Some(_) => None,
        None => Some(Started::start(&arguments.root.clone().unwrap_or_else(documentation))?),
    };
    let name = started
        .as_ref()
        .map(|s| &s.name)
        .or(arguments.server.as_ref())
        .map_or("files", String::as_str);
    let files = Files::bind(name).map_err(|e| e.to_string())?;
    let served = files.root().map_err(|e| format!("{name}: {e}"))?;
    let root = PathBuf::from(std::ffi::OsString::from_vec(served));
    if let Some(mine) = arguments
        .root
        .as_ref()
        .filter(|mine| !direct::same_directory(mine, root.as_os_str().as_encoded_bytes()))
    {
        return Err(format!(
            "the server {name:?} serves {}, not {}",
            root.display(),
            mine.display()
        ));
    }
    eprintln!(
        "file-client: {} through the server {name:?}, in chunks of {} KiB",
        root.display(),
        arguments.chunk >> 10
    );

    let mut stage = Stage::begin("reading directly", None);
    let directly = direct::read_tree(&root, &mut |bytes| stage.advance(bytes));
    drop(stage);
    let mut directly = directly.map_err(|e| format!("cannot read {}: {e}", root.display()))?;

    let mut contenders = contenders(&root, files, started.as_ref(), arguments)?;
    let plan = Plan {
        root: &root,
        chunk: arguments.chunk,
        rounds: arguments.rounds,
        stats: arguments.stats,
    };
    let bytes = directly.bytes();
    let mut seen = None;
    for contender in &mut contenders {
        let mut stage = Stage::begin(&format!("proving: {}", contender.name()), Some(bytes));
        let checked = contest::check(contender.as_mut(), &plan, &mut directly, &mut |bytes| {
            stage.advance(bytes)
        });
        drop(stage);
        seen = Some(checked.map_err(|e| e.to_string())?);
    }
    let Some((walked, proof)) = seen else { return Err("there is nothing to compare".to_owned()) };
    // If the JSON goes to standard output, nothing else does.
    if arguments.json.as_deref() == Some(Path::new("-")) {
        eprintln!("{}", told(&walked, &proof));
    } else {
        println!("{}", told(&walked, &proof));
    }

    let expected = bytes * contenders.len() as u64;
    let records = contest::run(&mut contenders, &plan, &mut directly, |what| {
        let mut stage = Stage::begin(what, Some(expected));
        Box::new(move |bytes| stage.advance(bytes))
    });
    let records = records.map_err(|e| e.to_string())?;
    publish_report(arguments, &report(&root, &plan, &walked, &proof, rows(&records)))
}

/// The three carriers. The others are compared with the first.
fn contenders(
    root: &Path,
    files: Files,
    started: Option<&Started>,
    arguments: &Arguments,
) -> Result<Vec<Box<dyn Contender>>, String> {
    let tree = Tree::open(root).map_err(|e| e.to_string())?;
    let local = Files::local(std::sync::Arc::new(tree));
    let mut all: Vec<Box<dyn Contender>> = vec![
        Box::new(Named::new("plain function call", Calls::new(local))),
        Box::new(Named::new("Upcall", Calls::new(files))),
    ];
    if let Some(path) = started.map(|s| &s.socket).or(arguments.socket.as_ref()) {
        let socket = Socket::connect(path, arguments.chunk);
        let mut socket =
            socket.map_err(|e| format!("cannot connect to the socket {}: {e}", path.display()))?;
        if let Some(started) = started {
            started.forget_socket();
        }
        let served = socket.root().map_err(|e| e.to_string())?;
        if !direct::same_directory(root, &served) {
            return Err(format!(
                "the server at {} serves another directory: {}",
                path.display(),
                shown(&served)
            ));
        }
        all.push(Box::new(Named::new("Unix socket", socket)));
    } else {
        eprintln!("  no socket was given, so there is no comparison with one (--socket)");
    }
    Ok(all)
}

/// What the walk found, and what of it was not read.
fn told(walked: &Walked, proof: &Proof) -> String {
    let mut text = format!(
        "{} files in {} directories, {} bytes: every byte came through\nSHA-256 over all: {}\n",
        grouped(walked.files.len() as u64),
        grouped(walked.directories),
        grouped(walked.bytes()),
        hex(&walked.sum())
    );
    for (count, what) in [
        (walked.links, "symbolic links, not followed"),
        (walked.others, "pipes, sockets and devices, not opened"),
        (walked.foreign_names, "names that are not UTF-8, read like all others"),
        (proof.changed.len() as u64, "files that changed in between, and were read again"),
        (proof.unreadable.len() as u64, "that could not be read, neither directly nor by calls:"),
    ] {
        if count > 0 {
            text += &format!("  {} {what}\n", grouped(count));
        }
    }
    for (path, problem) in proof.unreadable.iter().take(10) {
        text += &format!("    {}: {problem}\n", shown(path));
    }
    text
}

fn report(
    root: &Path,
    plan: &Plan<'_>,
    walked: &Walked,
    proof: &Proof,
    rows: Vec<upcall_files::report::Row>,
) -> Report {
    Report {
        root: root.display().to_string(),
        files: walked.files.len() as u64,
        directories: walked.directories,
        chunk: plan.chunk,
        rounds: plan.rounds,
        sum: walked.sum(),
        counts: vec![
            ("links", walked.links),
            ("others", walked.others),
            ("foreign_names", walked.foreign_names),
            ("changed", proof.changed.len() as u64),
            ("unreadable", proof.unreadable.len() as u64),
        ],
        rows,
    }
}

fn publish_report(arguments: &Arguments, report: &Report) -> Result<(), String> {
    match &arguments.json {
        Some(path) if path.as_os_str() == "-" => println!("{:#}", report.json()),
        Some(path) => {
            println!("{report}");
            let written = fs::write(path, format!("{:#}\n", report.json()));
            written.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        None => println!("{report}"),
    }
    Ok(())
}

/// The machine's documentation, if there is any; containers often have none.
fn documentation() -> PathBuf {
    const ENOUGH: u64 = 1 << 20;
    let documentation = Path::new("/usr/share/doc");
    let mut bytes = 0;
    let mut waiting = vec![documentation.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => waiting.push(entry.path()),
                Ok(found) if found.is_file() => bytes += found.len(),
                _ => {}
            }
            if bytes >= ENOUGH {
                return documentation.to_owned();
            }
        }
    }
    eprintln!("file-client: there is little or nothing in /usr/share/doc; taking /usr/share");
    PathBuf::from("/usr/share")
}

/// Parses sizes such as `65536`, `64K`, `1M`.
fn size(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        other => return Err(format!("{other:?} is no unit; write 64K or 1M")),
    };
    let bytes = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    bytes
        .filter(|n| (1..=MOST_BYTES).contains(n))
        .ok_or_else(|| "it must be from 1 to 4M".to_owned())
}
