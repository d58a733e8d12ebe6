//! `upcall man`: manual pages, made from the help.

use crate::exit::{CommandError, CommandResult, Exit};
use crate::output::println;
use clap::Command;
use clap_mangen::Man;
use std::io::{self, Write};
use std::path::PathBuf;

/// Writes manual pages, one for each subcommand.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// The folder for the pages, such as share/man/man1; made if it is missing.
    #[arg(short, long, value_name = "FOLDER")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  upcall man --out man1
  upcall man --out man1 && man -l man1/upcall-call.1";

pub fn run(args: &ManArgs, command: Command) -> CommandResult {
    let unwritten = |error: io::Error| {
        let text = format!("cannot write manual pages to {}: {error}", args.out.display());
        CommandError::new(Exit::of_file(&error), text)
    };
    std::fs::create_dir_all(&args.out).map_err(unwritten)?;
    // Without the subcommands `help`, which have nothing to say.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    for page in pages(&command) {
        let name = format!("{}.1", page.get_display_name().unwrap_or("upcall"));
        let file = args.out.join(&name);
        let written = render(page).and_then(|text| std::fs::write(&file, text));
        written.map_err(unwritten)?;
        println(file.display())?;
    }
    Ok(Exit::Done)
}

/// The command and all its subcommands, but for hidden ones.
fn pages(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).flat_map(pages);
    [command].into_iter().chain(below).collect()
}

/// One page. The sections after the options are the paragraphs of the help, unfilled.
fn render(command: &Command) -> io::Result<Vec<u8>> {
    let after = command.get_after_long_help().or(command.get_after_help());
    let after = after.map(ToString::to_string).unwrap_or_default();
    let name = command.get_display_name().unwrap_or("upcall").to_string();
    let page = command.clone().after_help(None::<&str>).after_long_help(None::<&str>);
    let source = concat!("upcall ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(page).title(name.to_uppercase()).manual("Upcall").source(source);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut out)?;
    }
    let mut last = "";
    for paragraph in after.split("\n\n") {
        let (head, body) = match paragraph.split_once('\n') {
            Some((head, body)) if head.ends_with(':') => (head.trim_end_matches(':'), body),
            _ => ("Notes", paragraph),
        };
        if head != last {
            writeln!(out, ".SH \"{}\"", escaped(&head.to_uppercase()))?;
        } else {
            writeln!(out, ".PP")?;
        }
        unfilled(&mut out, body)?;
        last = head;
    }
    Ok(out)
}

/// Writes lines as they are, which roff would join otherwise.
fn unfilled(out: &mut Vec<u8>, body: &str) -> io::Result<()> {
    writeln!(out, ".nf")?;
    body.lines().try_for_each(|line| writeln!(out, "{}", escaped(line)))?;
    writeln!(out, ".fi")
}

/// The text without what roff takes for requests and escapes.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    let line = line.replace('\'', "\\(aq").replace('`', "\\(ga");
    let ascii = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => format!("\\[u{:04X}]", u32::from(c)),
    };
    let line: String = line.chars().map(ascii).collect();
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::fmt::Write;
    use std::path::Path;

    /// The help of all commands, as a page of the book.
    fn markdown() -> String {
        let mut command = crate::CommandLine::command().disable_help_subcommand(true);
        command.build();
        let mut out = "# Commands and options\n\n\
            This page is what `upcall help COMMAND` prints for each command. [Command\n\
            line](cli.md) has exit codes, arguments, output and variables.\n"
            .to_owned();
        for page in pages(&command) {
            let name = page.get_display_name().unwrap_or("upcall").replace('-', " ");
            let help =
                page.clone().term_width(98).max_term_width(98).render_long_help().to_string();
            let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
            let text = lines.join("\n");
            write!(out, "\n## {name}\n\n```text\n{}\n```\n", text.trim_end()).unwrap();
        }
        out
    }

    /// `UPDATE_SNAPSHOTS=1` writes the page.
    #[test]
    fn the_page_of_the_book_is_what_the_command_prints() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md");
        let Some(true) = path.parent().map(Path::exists) else { return }; // a package by itself
        let made = markdown();
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            page == made,
            "docs/reference/commands.md is out of date: \
             UPDATE_SNAPSHOTS=1 cargo test -p upcall-cli --bin upcall the_page_of_the_book"
        );
    }

    #[test]
    fn text_is_no_request_of_roff() {
        assert_eq!(escaped(".SH x"), "\\&.SH x");
        assert_eq!(escaped("…"), "\\[u2026]");
        assert_eq!(escaped("a\\n 'b' -c \"d\""), "a\\en \\(aqb\\(aq \\-c \\(dqd\\(dq");
    }
}
