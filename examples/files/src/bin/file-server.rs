//! A file server: one directory tree, read-only, for other processes.
#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use upcall_files::server::{Options, run};

/// Serves the files of one directory, read-only, to other processes of this user.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  file-server                                   serve /usr/share/doc under the name files
  file-server ~/books --name books              serve another directory under another name
  file-server --socket /run/user/1000/files     also at a Unix socket, to compare with

It stops at SIGINT (Ctrl-C) and SIGTERM. Nothing outside of the directory can be
read: not by .., not by absolute paths, not by symbolic links."
)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    match run(&Arguments::parse().options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("file-server: {error}");
            ExitCode::FAILURE
        }
    }
}
