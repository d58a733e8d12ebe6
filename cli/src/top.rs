//! `upcall top`: the same as `upcall stat`, live.
//!
//! What is shown is what was done within the last interval, read from memory that servers have given once and count in anyway; only new servers are asked for theirs.

use crate::stat::{self, Row, Server, Total, share, time};
use crate::{Done, size, told};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row as Shown, Table, TableState};
use ratatui::{Frame, widgets::Cell};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use upcall::directory;

/// Shows live what each binding does: calls, errors and bytes a second, time in the server.
///
/// The second picture tells how servers came to the calls (see `upcall stat --help`): by looking (SPIN), by looking on the caller's processor (DONATE), by being woken there (HAND) or elsewhere (WAKE), after
/// others (WAIT), or from another machine (NET). Clients on other machines are shown by their addresses, and the first line says which share of the calls is theirs.
///
/// Keys: arrows to the left and right choose the column to sort by, `r` turns the order, tab shows the other picture, arrows up and down scroll, space holds the picture, `q` ends.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall top\n  upcall top files --interval 0.5")]
pub struct Args {
    /// Only bindings to these names.
    names: Vec<String>,
    /// Seconds between two pictures.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = stat::seconds)]
    interval: Duration,
}

pub fn run(args: &Args) -> Done {
    stat::is_here(&args.names, "top")?;
    if !std::io::stdout().is_terminal() {
        return Err("top needs a terminal: for scripts there is `upcall stat --interval 1 --json`".into());
    }
    let mut screen = Screen::default();
    let mut watched = Watched::default();
    // Gives the terminal back as it was, also after a panic.
    let mut terminal = ratatui::try_init()?;
    let outcome = (|| -> Result<(), Box<dyn std::error::Error>> {
        watched.renew();
        watched.since = Some(Instant::now());
        let mut due = Instant::now() + args.interval;
        loop {
            terminal.draw(|frame| screen.draw(frame))?;
            let left = due.saturating_duration_since(Instant::now());
            if event::poll(left)? {
                match event::read()? {
                    Event::Key(key) if key.is_press() && screen.ends(key) => return Ok(()),
                    _ => continue,
                }
            }
            let rows = watched.rows(&args.names);
            screen.renew(rows, watched.silent.len());
            due = Instant::now() + args.interval;
        }
    })();
    ratatui::try_restore()?;
    outcome.map(|()| ExitCode::SUCCESS)
}

/// The servers that are read, by socket, and since when.
#[derive(Default)]
struct Watched {
    servers: BTreeMap<PathBuf, Server>,
    /// Those that did not give their tallies: they are not asked again, since a stopped one would hold us up each time.
    silent: Vec<PathBuf>,
    since: Option<Instant>,
}

impl Watched {
    /// Asks new servers, and forgets old ones.
    fn renew(&mut self) {
        let sockets = directory::domains();
        self.servers.retain(|socket, _| sockets.contains(socket));
        self.silent.retain(|socket| sockets.contains(socket));
        for socket in sockets {
            if self.servers.contains_key(&socket) || self.silent.contains(&socket) {
                continue;
            }
            match stat::look(socket.clone()) {
                Ok(mut server) => {
                    server.begin();
                    self.servers.insert(socket, server);
                }
                Err(_) => self.silent.push(socket),
            }
        }
    }

    fn rows(&mut self, names: &[String]) -> Vec<Row> {
        let interval = self.since.map(|since| since.elapsed());
        let rows = self.servers.values_mut().flat_map(|server| stat::rows(server, names, interval)).collect();
        self.since = Some(Instant::now());
        self.renew();
        rows
    }
}

const HEADS: [&str; 15] = [
    "NAME", "CLIENT", "SERVER", "CALLS/S", "ERRORS", "IN/S", "OUT/S", "P50", "P99", "SPIN", "DONATE", "HAND", "WAKE", "WAIT",
    "NET",
];
const WIDTHS: [u16; 15] = [16, 8, 8, 12, 7, 10, 10, 9, 9, 6, 7, 6, 6, 6, 5];
const NAME: usize = 0;
const CLIENT: usize = 1;
const CALLS: usize = 3;

/// The columns of each picture: what calls carry and take, and how the server came to them.
const PICTURES: [&[usize]; 2] = [&[0, 1, 2, CALLS, 4, 5, 6, 7, 8], &[0, 1, 2, CALLS, 9, 10, 11, 12, 13, 14]];

/// The picture, and how it is to be seen.
#[derive(Default)]
struct Screen {
    rows: Vec<Row>,
    silent: usize,
    /// One of [`PICTURES`].
    picture: usize,
    /// A column of [`HEADS`]; by calls at first.
    sorted_by: Option<usize>,
    turned: bool,
    held: bool,
    at: TableState,
}

impl Screen {
    fn renew(&mut self, rows: Vec<Row>, silent: usize) {
        if !self.held {
            (self.rows, self.silent) = (rows, silent);
            self.sort();
        }
    }

    fn column(&self) -> usize {
        self.sorted_by.unwrap_or(CALLS)
    }

    fn columns(&self) -> &'static [usize] {
        PICTURES[self.picture % PICTURES.len()]
    }

    /// Sorts by the column that is shown so many places to the right of this one.
    fn choose(&mut self, right: usize) {
        let (shown, column) = (self.columns(), self.column());
        let at = shown.iter().position(|&shown| shown == column).unwrap_or(0);
        self.sorted_by = Some(shown[(at + right) % shown.len()]);
    }

    fn sort(&mut self) {
        let (column, turned) = (self.column(), self.turned);
        self.rows.sort_by(|a, b| {
            let order = match column {
                0 => a.name.cmp(&b.name),
                1 => (a.client, a.address).cmp(&(b.client, b.address)),
                2 => a.server.cmp(&b.server),
                // Of numbers that say how much the largest come first.
                3 => b.calls.cmp(&a.calls),
                4 => b.errors().cmp(&a.errors()),
                5 => b.bytes_in.cmp(&a.bytes_in),
                6 => b.bytes_out.cmp(&a.bytes_out),
                7 => b.p50_below_ns.cmp(&a.p50_below_ns),
                8 => b.p99_below_ns.cmp(&a.p99_below_ns),
                // By shares, as they are shown.
                way => {
                    let part = |of: &Row, calls: u64| u128::from(of.came()[way - 9]) * u128::from(calls.max(1));
                    part(b, a.calls).cmp(&part(a, b.calls))
                }
            };
            let order = if turned { order.reverse() } else { order };
            order.then_with(|| (&a.name, a.client, a.address, a.server).cmp(&(&b.name, b.client, b.address, b.server)))
        });
    }

    /// Does what a key says. Whether that is to end.
    fn ends(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char(' ') => self.held = !self.held,
            KeyCode::Char('r') => self.turned = !self.turned,
            KeyCode::Left => self.choose(self.columns().len() - 1),
            KeyCode::Right => self.choose(1),
            KeyCode::Tab => {
                self.picture = (self.picture + 1) % PICTURES.len();
                if !self.columns().contains(&self.column()) {
                    self.sorted_by = None;
                }
            }
            KeyCode::Up => self.at.scroll_up_by(1),
            KeyCode::Down => self.at.scroll_down_by(1),
            _ => {}
        }
        self.sort();
        false
    }

    /// Of the columns that are shown. Addresses are longer than processes' numbers, and are of no use if they are cut: where there is no room, names give it.
    fn widths(&self, room: u16) -> impl Iterator<Item = u16> + use<> {
        let columns = self.columns();
        let mut widths = WIDTHS;
        let longest = self.rows.iter().map(|row| row.client().len() as u16).max();
        widths[CLIENT] = longest.unwrap_or(0).max(WIDTHS[CLIENT]);
        let wanted = columns.iter().map(|&at| widths[at] + 1).sum::<u16>() - 1;
        widths[NAME] = widths[NAME].saturating_sub(wanted.saturating_sub(room)).max(8);
        columns.iter().map(move |&at| widths[at])
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
        let calls = self.rows.iter().filter_map(|row| row.calls_per_s).fold(0.0, |sum, rate| sum + rate);
        let held = if self.held { ", held" } else { "" };
        let silent = match self.silent {
            0 => String::new(),
            1 => ", 1 server does not answer".into(),
            more => format!(", {more} servers do not answer"),
        };
        // Where all calls are local nothing is to be said.
        let far = if self.rows.iter().any(|row| row.address.is_some()) {
            format!(", {}", Total::of(&self.rows).shares())
        } else {
            String::new()
        };
        frame.render_widget(
            Line::from(format!("{} bindings, {calls:.0} calls a second{far}{silent}{held}", self.rows.len())),
            head,
        );
        let strong = Style::new().add_modifier(Modifier::BOLD);
        let columns = self.columns();
        let heads = columns.iter().map(|&at| {
            let text = HEADS[at];
            let chosen = at == self.column();
            let arrow = if !chosen {
                ""
            } else if self.turned {
                "^"
            } else {
                "v"
            };
            let style = if chosen { strong.add_modifier(Modifier::REVERSED) } else { strong };
            cell(at, format!("{text}{arrow}")).style(style)
        });
        let rows = self.rows.iter().map(|row| {
            let cells = cells(row);
            Shown::new(columns.iter().map(move |&at| cell(at, cells[at].clone())))
        });
        let widths = self.widths(body.width).map(Constraint::Length);
        let table = Table::new(rows.collect::<Vec<_>>(), widths).header(Shown::new(heads.collect::<Vec<_>>())).column_spacing(1);
        frame.render_stateful_widget(table, body, &mut self.at);
        frame.render_widget(
            Line::from("left/right: sort by   r: turn   tab: how calls came   up/down: scroll   space: hold   q: end")
                .style(Style::new().add_modifier(Modifier::DIM)),
            foot,
        );
    }
}

/// Names to the left, numbers to the right.
fn cell(column: usize, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if column == 0 { line.left_aligned() } else { line.right_aligned() })
}

fn cells(row: &Row) -> [String; 15] {
    let [spins, donations, hand_offs, wakes, waits, remote] = row.came().map(|calls| share(calls, row.calls));
    let calls = row.calls_per_s.unwrap_or(0.0);
    // Bytes of the interval, as bytes a second.
    let each = |bytes: u64| size(if row.calls == 0 { 0 } else { (bytes as f64 * calls / row.calls as f64) as u64 });
    let below = |ns: Option<u64>| ns.map_or_else(|| "-".to_string(), time);
    [
        told::cell(&row.name),
        row.client(),
        row.server.to_string(),
        format!("{calls:.0}"),
        row.errors().to_string(),
        each(row.bytes_in),
        each(row.bytes_out),
        below(row.p50_below_ns),
        below(row.p99_below_ns),
        spins,
        donations,
        hand_offs,
        wakes,
        waits,
        remote,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn row(name: &str, calls: u64, bytes_in: u64) -> Row {
        Row { name: name.into(), client: 7, server: 8, calls, calls_per_s: Some(calls as f64 * 2.0), bytes_in, ..Row::default() }
    }

    /// The lines of the picture, without the spaces at their ends.
    fn shown(screen: &mut Screen) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(100, 6)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..buffer.area.height).map(|y| line(y).trim_end().to_string()).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.ends(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn the_other_picture_tells_how_servers_came_to_calls() {
        let mut screen = Screen::default();
        let polled = Row { spins: 990, waits: 10, ..row("polled", 1000, 0) };
        let handed = Row { hand_offs: 60, donations: 40, ..row("handed", 100, 0) };
        screen.renew(vec![handed, polled], 0);
        // Sorted by bytes, which the other picture does not show: by calls again there.
        press(&mut screen, KeyCode::Right);
        press(&mut screen, KeyCode::Right);
        press(&mut screen, KeyCode::Tab);
        let lines = shown(&mut screen);
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words(&lines[1]), ["NAME", "CLIENT", "SERVER", "CALLS/Sv", "SPIN", "DONATE", "HAND", "WAKE", "WAIT", "NET"]);
        assert_eq!(words(&lines[2]), ["polled", "7", "8", "2000", "99%", "-", "-", "-", "1%", "-"]);
        assert_eq!(words(&lines[3]), ["handed", "7", "8", "200", "-", "40%", "60%", "-", "-", "-"]);
        (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Right));
        assert!(shown(&mut screen)[1].contains("HANDv") && shown(&mut screen)[2].starts_with("handed"));
        (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Left));
        press(&mut screen, KeyCode::Tab);
        assert!(shown(&mut screen)[1].contains("CALLS/Sv") && shown(&mut screen)[1].contains("P99"));
    }

    #[test]
    fn clients_on_other_machines_are_shown_by_their_addresses() {
        let mut screen = Screen::default();
        let near = Row { local: 300, spins: 300, ..row("near", 300, 0) };
        let far = Row { client: 0, address: Some("192.0.2.100:54321".parse().unwrap()), remote: 100, ..row("far", 100, 0) };
        screen.renew(vec![near.clone(), far], 0);
        let lines = shown(&mut screen);
        assert_eq!(lines[0], "2 bindings, 800 calls a second, 75% local, 25% remote");
        assert!(lines[3].starts_with("far") && lines[3].contains(" 192.0.2.100:54321 "), "{lines:?}");
        press(&mut screen, KeyCode::Tab);
        (0..6).for_each(|_| _ = press(&mut screen, KeyCode::Right));
        let lines = shown(&mut screen);
        assert!(lines[1].ends_with("NETv") && lines[2].starts_with("far") && lines[2].ends_with("100%"), "{lines:?}");
        screen.renew(vec![near], 0);
        assert_eq!(shown(&mut screen)[0], "1 bindings, 600 calls a second");
    }

    #[test]
    fn the_busiest_come_first_and_keys_sort_otherwise() {
        let mut screen = Screen::default();
        screen.renew(vec![row("slow", 10, 5000), row("quick", 1000, 0)], 1);
        let lines = shown(&mut screen);
        assert_eq!(lines[0], "2 bindings, 2020 calls a second, 1 server does not answer");
        assert!(lines[1].starts_with("NAME") && lines[1].contains("CALLS/Sv"), "{lines:?}");
        assert!(lines[2].starts_with("quick") && lines[2].contains(" 2000 ") && lines[3].contains("9.8 KiB"), "{lines:?}");
        // Two columns on: by bytes in.
        assert!(!press(&mut screen, KeyCode::Right) && !press(&mut screen, KeyCode::Right));
        assert!(shown(&mut screen)[2].starts_with("slow"));
        press(&mut screen, KeyCode::Char('r'));
        assert!(shown(&mut screen)[2].starts_with("quick"));
        // Held: what is new waits.
        press(&mut screen, KeyCode::Char(' '));
        screen.renew(Vec::new(), 0);
        assert!(shown(&mut screen)[0].ends_with("held"));
        press(&mut screen, KeyCode::Char(' '));
        screen.renew(Vec::new(), 0);
        assert_eq!(shown(&mut screen)[0], "0 bindings, 0 calls a second");
        assert!(press(&mut screen, KeyCode::Char('q')));
        assert!(screen.ends(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
