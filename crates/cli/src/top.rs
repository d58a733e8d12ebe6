//! `upcall top`: what `upcall stat` shows, live.
//!
//! Bindings, members of groups and objects have views of their own. A view shows what was done in
//! the last interval, read from memory that servers hand out once and count in anyway. The command
//! asks new servers for that memory, and members and homes for nothing. Servers on other machines
//! are asked for each interval.

mod far;
mod help;
pub mod layout;
mod objects;
mod order;
mod screen;
#[cfg(test)]
mod tests;
mod views;
mod watched;

use crate::exit::{CommandError, CommandResult, Exit};
use crate::expect::ExpectArgs;
use crate::names::some_seconds;
use crate::stat;
use far::WatchedFar;
use ratatui::crossterm::event::{self, Event};
use screen::{KeyOutcome, Screen};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use watched::WatchedServers;

/// Shows live what bindings, members of groups and objects do.
///
/// The first view has calls, errors and bytes a second, and time in the server. Further views show
/// how calls reached the servers, the members of groups, and objects. `?` shows the keys and the
/// columns of a view, tab the next view, and `q` ends the command. A member of a group that is
/// stopped at its limit is reported at the top of each view.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Names of exports, groups and objects on this machine, and addresses of servers and exports
    /// on others, `tcp://HOST:PORT` or `tcp://HOST:PORT/NAME`; all of this machine without a name.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Seconds between two updates.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = some_seconds)]
    interval: Duration,
    #[command(flatten)]
    expect: ExpectArgs,
}

const EXAMPLES: &str = "\
Examples:
  upcall top
  upcall top files --interval 0.5
  upcall top tcp://127.0.0.1:7000";

pub fn run(args: &TopArgs) -> CommandResult {
    stat::check(&args.names)?;
    args.names
        .iter()
        .filter(|name| stat::is_far(name))
        .try_for_each(|name| args.expect.check(name))?;
    if !std::io::stdout().is_terminal() {
        return Err(CommandError::usage(
            "top needs a terminal: scripts use `upcall stat --interval 1 --json`",
        ));
    }
    let mut screen = Screen::default();
    let mut watched = WatchedServers::new(args.expect.clone());
    watched.far = WatchedFar::new(&args.names, args.interval);
    watched.only_far = stat::is_of_others(&args.names);
    // Servers that do not answer are waited for while Ctrl-C still ends the command.
    watched.renew();
    // ratatui restores the terminal also after a panic.
    let mut terminal = ratatui::try_init()?;
    let outcome = (|| -> CommandResult {
        watched.since = Some(Instant::now());
        let mut due = Instant::now() + args.interval;
        loop {
            terminal.draw(|frame| screen.draw(frame))?;
            let left = due.saturating_duration_since(Instant::now());
            if event::poll(left)? {
                match event::read()? {
                    Event::Key(key) if key.is_press() => {
                        if let KeyOutcome::Quit = screen.press(key) {
                            return Ok(Exit::Done);
                        }
                        continue;
                    }
                    _ => continue,
                }
            }
            screen.renew(watched.read(&args.names));
            due = Instant::now() + args.interval;
        }
    })();
    ratatui::try_restore()?;
    outcome
}
