//! `upcall top`: what `upcall stat` shows, live.
//!
//! Bindings, members of groups and objects have views of their own. A view shows what was done in
//! the last interval, read from memory that servers hand out once and count in anyway. The command
//! asks new servers for that memory, and members and homes for nothing.

mod help;
mod layout;
mod objects;

use crate::exit::{CommandError, CommandResult, Exit};
use crate::members::{self, MemberActivity, UserMembers};
use crate::names::some_seconds;
use crate::objects::{ObjectActivity, UserObjects};
use crate::output::{self, counted, share, size};
use crate::servers::ask_all;
use crate::stat::{self, BindingRow, ServerBindings, Total, time};
use layout::{fitting, wrapped};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row as Shown, Table, TableState};
use ratatui::{Frame, widgets::Cell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use upcall::directory;

/// Shows live what bindings, members of groups and objects do.
///
/// The first view has calls, errors and bytes a second, and time in the server. Further views show
/// how calls reached the servers, the members of groups, and objects. `?` shows the keys and the
/// columns of a view, tab the next view, and `q` ends the command. A member of a group that is
/// stopped at its limit is reported at the top of each view.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Names of exports, groups and objects on this machine; all without a name.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Seconds between two updates.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = some_seconds)]
    interval: Duration,
}

const EXAMPLES: &str = "\
Examples:
  upcall top
  upcall top files --interval 0.5";

pub fn run(args: &TopArgs) -> CommandResult {
    stat::is_here(&args.names, "top")?;
    if !std::io::stdout().is_terminal() {
        return Err(CommandError::usage(
            "top needs a terminal: scripts use `upcall stat --interval 1 --json`",
        ));
    }
    let mut screen = Screen::default();
    let mut watched = WatchedServers::default();
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

/// What a key asks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyOutcome {
    Continue,
    Quit,
}

/// The servers that are read, by socket, and the start of the interval.
#[derive(Default)]
struct WatchedServers {
    servers: BTreeMap<PathBuf, ServerBindings>,
    /// Servers that did not hand out their tallies. They are not asked again, because a stopped one
    /// would delay each update.
    silent: BTreeSet<PathBuf>,
    members: UserMembers,
    objects: UserObjects,
    since: Option<Instant>,
}

impl WatchedServers {
    /// Asks new servers, and forgets those that have ended.
    fn renew(&mut self) {
        self.members.renew();
        self.objects.renew();
        let sockets: BTreeSet<_> = directory::domains().into_iter().collect();
        self.servers.retain(|socket, _| sockets.contains(socket));
        self.silent.retain(|socket| sockets.contains(socket));
        let is_known =
            |socket: &PathBuf| self.servers.contains_key(socket) || self.silent.contains(socket);
        let new: Vec<_> = sockets.into_iter().filter(|socket| !is_known(socket)).collect();
        let looked = ask_all(&new, stat::look);
        for (socket, looked) in new.into_iter().zip(looked) {
            match looked {
                Ok(mut server) => {
                    server.begin();
                    self.servers.insert(socket, server);
                }
                Err(_) => _ = self.silent.insert(socket),
            }
        }
    }

    fn read(&mut self, names: &[String]) -> IntervalActivity {
        let interval = self.since.map(|since| since.elapsed());
        let seen = IntervalActivity {
            members: self.members.read(names, interval),
            objects: self.objects.read(names, interval),
            rows: self
                .servers
                .values_mut()
                .flat_map(|server| stat::rows(server, names, interval))
                .collect(),
            silent: self.silent.len() + self.members.silent.len(),
            unseen: self.objects.silent.len(),
        };
        self.since = Some(Instant::now());
        self.renew();
        seen
    }
}

/// What was done in an interval.
#[derive(Default)]
struct IntervalActivity {
    rows: Vec<BindingRow>,
    members: Vec<MemberActivity>,
    objects: Vec<ObjectActivity>,
    /// Number of processes whose counts cannot be read.
    silent: usize,
    /// Number of objects that cannot be read.
    unseen: usize,
}

const HEADS: [&str; 15] = [
    "NAME", "CLIENT", "SERVER", "CALLS/S", "ERRORS", "IN/S", "OUT/S", "P50", "P99", "SPIN",
    "DONATE", "HAND", "WAKE", "WAIT", "NET",
];
const WIDTHS: [u16; 15] = [16, 8, 8, 12, 7, 10, 10, 9, 9, 6, 7, 6, 6, 6, 5];
const MEMBERS: [&str; 12] = [
    "GROUP", "RANK", "PROCESS", "SENT/S", "TAKEN/S", "WAITING", "BUFFERED", "HELD", "LIMIT",
    "STOPS", "REFUSED", "STATE",
];
const MEMBERS_WIDTHS: [u16; 12] = [16, 5, 8, 11, 11, 9, 9, 9, 9, 6, 8, 36];
const _: () = assert!(members::HEADS.len() == MEMBERS.len());
const NAME: usize = 0;
const CLIENT: usize = 1;
/// The column by which each view is sorted at first: calls, messages sent, or operations a second.
const MOST: usize = 3;

/// The rows of a view.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Bindings,
    Members,
    Objects,
}

/// A table that can be shown.
struct View {
    title: &'static str,
    of: Of,
    heads: &'static [&'static str],
    widths: &'static [u16],
    /// The columns of the view, in their order.
    columns: &'static [usize],
    /// The same columns by importance. Where there is no room for all, the last are left out.
    importance: &'static [usize],
}

static VIEWS: [View; 4] = [
    View {
        title: "calls",
        of: Of::Bindings,
        heads: &HEADS,
        widths: &WIDTHS,
        columns: &[NAME, CLIENT, 2, MOST, 4, 5, 6, 7, 8],
        importance: &[NAME, MOST, 4, 7, 8, CLIENT, 5, 6, 2],
    },
    View {
        title: "how calls reached the servers",
        of: Of::Bindings,
        heads: &HEADS,
        widths: &WIDTHS,
        columns: &[NAME, CLIENT, 2, MOST, 9, 10, 11, 12, 13, 14],
        importance: &[NAME, MOST, 9, 10, 11, 12, 13, 14, CLIENT, 2],
    },
    View {
        title: "groups",
        of: Of::Members,
        heads: &MEMBERS,
        widths: &MEMBERS_WIDTHS,
        columns: &[NAME, 1, 2, MOST, 4, 5, 6, 7, 8, 9, 10, 11],
        importance: &[NAME, MOST, 1, 4, 5, 11, 7, 9, 2, 6, 8, 10],
    },
    View {
        title: "objects",
        of: Of::Objects,
        heads: &objects::HEADS,
        widths: &objects::WIDTHS,
        columns: &[NAME, 1, 2, MOST, 4, 5, 6, 7, 8, 9, 10, 11],
        importance: &[NAME, MOST, 4, 5, 6, 11, 10, 1, 7, 8, 9, 2],
    },
];

/// What is shown, and how.
#[derive(Default)]
struct Screen {
    seen: IntervalActivity,
    /// An index into [`VIEWS`].
    view: usize,
    /// A column of the view; [`MOST`] at first.
    sorted_by: Option<usize>,
    is_reversed: bool,
    is_held: bool,
    /// Whether the help is shown in place of the table, and its first line.
    help: Option<u16>,
    at: TableState,
}

impl Screen {
    fn renew(&mut self, seen: IntervalActivity) {
        if !self.is_held {
            self.seen = seen;
            self.sort();
        }
    }

    fn column(&self) -> usize {
        self.sorted_by.unwrap_or(MOST)
    }

    fn view(&self) -> &'static View {
        &VIEWS[self.view]
    }

    /// Sorts by the column that is `right` places to the right, around the end.
    fn choose(&mut self, right: usize) {
        let (shown, column) = (self.view().columns, self.column());
        let at = shown.iter().position(|&shown| shown == column).unwrap_or(0);
        self.sorted_by = Some(shown[(at + right) % shown.len()]);
    }

    fn sort(&mut self) {
        match self.view().of {
            Of::Bindings => self.sort_bindings(),
            Of::Members => self.sort_members(),
            Of::Objects => {
                let (column, reversed) = (self.column(), self.is_reversed);
                self.seen.objects.sort_by(|a, b| {
                    let order = objects::order(a, b, column);
                    let order = if reversed { order.reverse() } else { order };
                    order.then_with(|| a.name.cmp(&b.name))
                });
            }
        }
    }

    fn sort_bindings(&mut self) {
        let (column, reversed) = (self.column(), self.is_reversed);
        self.seen.rows.sort_by(|a, b| {
            let order = match column {
                0 => a.name.cmp(&b.name),
                1 => (a.client, a.address).cmp(&(b.client, b.address)),
                2 => a.server.cmp(&b.server),
                // The largest rates and counts come first.
                3 => b.calls.cmp(&a.calls),
                4 => b.errors().cmp(&a.errors()),
                5 => b.bytes_in.cmp(&a.bytes_in),
                6 => b.bytes_out.cmp(&a.bytes_out),
                7 => b.p50_below_ns.cmp(&a.p50_below_ns),
                8 => b.p99_below_ns.cmp(&a.p99_below_ns),
                // By shares, which is what the column shows.
                way => {
                    let part = |of: &BindingRow, calls: u64| {
                        u128::from(of.came()[way - 9]) * u128::from(calls.max(1))
                    };
                    part(b, a.calls).cmp(&part(a, b.calls))
                }
            };
            let order = if reversed { order.reverse() } else { order };
            order.then_with(|| {
                (&a.name, a.client, a.address, a.server)
                    .cmp(&(&b.name, b.client, b.address, b.server))
            })
        });
    }

    fn sort_members(&mut self) {
        let (column, reversed) = (self.column(), self.is_reversed);
        self.seen.members.sort_by(|a, b| {
            let place =
                |of: &MemberActivity| (of.group.clone(), of.id.clone(), of.rank, of.process);
            let order = match column {
                0 => a.group.cmp(&b.group),
                1 => a.rank.cmp(&b.rank),
                2 => a.process.cmp(&b.process),
                3 => b.sent.cmp(&a.sent),
                4 => b.taken.cmp(&a.taken),
                5 => b.waiting.cmp(&a.waiting),
                // By shares, which is what the column shows.
                6 => {
                    let part = |of: &MemberActivity, sent: u64| {
                        u128::from(of.buffered) * u128::from(sent.max(1))
                    };
                    part(b, a.sent).cmp(&part(a, b.sent))
                }
                7 => b.held_bytes.cmp(&a.held_bytes),
                8 => b.limit_bytes.cmp(&a.limit_bytes),
                9 => b.stops.cmp(&a.stops),
                10 => b.refused.cmp(&a.refused),
                _ => b
                    .stopped_s
                    .unwrap_or(0.0)
                    .total_cmp(&a.stopped_s.unwrap_or(0.0))
                    .then_with(|| b.state().cmp(&a.state())),
            };
            let order = if reversed { order.reverse() } else { order };
            order.then_with(|| place(a).cmp(&place(b)))
        });
    }

    /// Does what a key asks for.
    fn press(&mut self, key: KeyEvent) -> KeyOutcome {
        match key.code {
            KeyCode::Char('?' | 'h') => {
                self.help = if self.help.is_some() { None } else { Some(0) };
            }
            KeyCode::Esc if self.help.is_some() => self.help = None,
            KeyCode::Char('q') | KeyCode::Esc => return KeyOutcome::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return KeyOutcome::Quit;
            }
            KeyCode::Char(' ') => self.is_held = !self.is_held,
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Left => self.choose(self.view().columns.len() - 1),
            KeyCode::Right => self.choose(1),
            KeyCode::Tab => self.turn_to((self.view + 1) % VIEWS.len()),
            KeyCode::BackTab => self.turn_to((self.view + VIEWS.len() - 1) % VIEWS.len()),
            KeyCode::Up => match &mut self.help {
                Some(first) => *first = first.saturating_sub(1),
                None => self.at.scroll_up_by(1),
            },
            KeyCode::Down => match &mut self.help {
                Some(first) => *first = first.saturating_add(1),
                None => self.at.scroll_down_by(1),
            },
            _ => {}
        }
        self.sort();
        KeyOutcome::Continue
    }

    /// Shows another view. The chosen column stays if that view has it.
    fn turn_to(&mut self, view: usize) {
        let were = self.view().of;
        self.view = view;
        if were != self.view().of || !self.view().columns.contains(&self.column()) {
            (self.sorted_by, self.at) = (None, TableState::default());
        }
    }

    /// The columns for which there is room, with their widths. The column that the view is sorted
    /// by is always among them.
    fn columns(&self, room: u16) -> Vec<(usize, u16)> {
        let View { of, widths, columns, importance, .. } = self.view();
        let mut widths = widths.to_vec();
        // An address is longer than a process's number, and of no use if it is cut.
        let longest = self.seen.rows.iter().map(|row| row.client().len() as u16).max();
        if *of == Of::Bindings {
            widths[CLIENT] = longest.unwrap_or(0).max(WIDTHS[CLIENT]);
        }
        let wanted = [NAME, self.column()].into_iter().chain(importance.iter().copied());
        fitting(room, &widths, wanted, columns, |column| self.is_text(column))
    }

    /// Returns `true` for a column of texts, which is left-aligned and may be cut.
    fn is_text(&self, column: usize) -> bool {
        let View { of, heads, .. } = self.view();
        column == NAME || *of == Of::Members && column + 1 == heads.len()
    }

    /// A cell of a column: texts to the left, numbers to the right.
    fn cell(&self, column: usize, text: String) -> Cell<'static> {
        let line = Line::from(text);
        let View { of, heads, .. } = self.view();
        let is_left = column == NAME || *of != Of::Bindings && column + 1 == heads.len();
        Cell::from(if is_left { line.left_aligned() } else { line.right_aligned() })
    }

    /// The text at the top: the number of things that are shown, and their rates.
    fn summary(&self) -> String {
        let IntervalActivity { rows, members, objects, silent, unseen } = &self.seen;
        let calls = rows.iter().filter_map(|row| row.calls_per_s).fold(0.0, |sum, rate| sum + rate);
        let held = if self.is_held { ", held" } else { "" };
        let silent = match silent {
            0 => String::new(),
            1 => ", 1 server does not answer".into(),
            more => format!(", {more} servers do not answer"),
        };
        let unseen = match unseen {
            0 => String::new(),
            more => format!(", {} cannot be read", counted(*more, "object")),
        };
        // Shares say nothing where all calls are local.
        let far = if rows.iter().any(|row| row.address.is_some()) {
            format!(", {}", Total::of(rows).shares())
        } else {
            String::new()
        };
        let messages =
            members.iter().filter_map(|member| member.sent_per_s).fold(0.0, |sum, rate| sum + rate);
        let groups = match members.len() {
            0 => String::new(),
            all => {
                let members = counted(all, "member");
                format!("; {members} of groups, {messages:.0} messages a second")
            }
        };
        let changes = objects.iter().fold(0.0, |sum, object| sum + object.per_s(object.changes));
        let homes = match objects.len() {
            0 => String::new(),
            all => format!("; {}, {changes:.0} changes a second", counted(all, "object")),
        };
        let bindings = counted(rows.len(), "binding");
        let bindings = format!("{bindings}, {calls:.0} calls a second");
        format!("{bindings}{far}{groups}{homes}{silent}{unseen}{held}")
    }

    /// The members that are stopped at their limits, or were in the interval.
    fn alarm(&self) -> Option<String> {
        let mut overflows = self.seen.members.iter().filter_map(MemberActivity::overflow);
        let first = overflows.next()?;
        Some(match overflows.count() {
            0 => first,
            more => format!("{first}; and {more} more"),
        })
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let width = frame.area().width;
        let summary = wrapped(&self.summary(), width);
        let alarm = self.alarm().map(|alarm| wrapped(&alarm, width)).unwrap_or_default();
        let [head, event, body, foot] = Layout::vertical([
            Constraint::Length(summary.len() as u16),
            Constraint::Length(alarm.len() as u16),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let lines = |texts: Vec<String>| texts.into_iter().map(Line::from).collect::<Vec<_>>();
        frame.render_widget(Paragraph::new(lines(summary)), head);
        let strong = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
        frame.render_widget(Paragraph::new(lines(alarm)).style(strong), event);
        let columns = self.columns(body.width);
        let left_out = match self.help {
            Some(_) => 0,
            None => self.view().columns.len() - columns.len(),
        };
        let dim = Style::new().add_modifier(Modifier::DIM);
        frame.render_widget(Line::from(help::keys(width, left_out)).style(dim), foot);
        if let Some(first) = &mut self.help {
            let text = help::text(&VIEWS[self.view], width);
            // The last line is not scrolled past the top.
            *first = (*first).min(text.len().saturating_sub(1) as u16);
            frame.render_widget(Paragraph::new(lines(text)).scroll((*first, 0)), body);
            return;
        }
        let (header, rows) = self.table(&columns);
        let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
        let table = Table::new(rows, widths).header(header).column_spacing(1);
        frame.render_stateful_widget(table, body, &mut self.at);
    }

    /// The header and the rows of the table.
    fn table(&self, columns: &[(usize, u16)]) -> (Shown<'static>, Vec<Shown<'static>>) {
        let strong = Style::new().add_modifier(Modifier::BOLD);
        let header = columns.iter().map(|&(at, _)| {
            let text = self.view().heads[at];
            if at != self.column() {
                return self.cell(at, text.into()).style(strong);
            }
            let arrow = if self.is_reversed { "^" } else { "v" };
            self.cell(at, format!("{text}{arrow}")).style(strong.add_modifier(Modifier::REVERSED))
        });
        let IntervalActivity { rows, members, objects, .. } = &self.seen;
        let rows: Vec<Vec<String>> = match self.view().of {
            Of::Bindings => rows.iter().map(|row| cells(row).to_vec()).collect(),
            Of::Members => members.iter().map(|member| members::cells(member).to_vec()).collect(),
            Of::Objects => objects.iter().map(|object| objects::cells(object).to_vec()).collect(),
        };
        let rows = rows.into_iter().map(|cells| {
            Shown::new(columns.iter().map(|&(at, _)| self.cell(at, cells[at].clone())))
        });
        (Shown::new(header.collect::<Vec<_>>()), rows.collect())
    }
}

fn cells(row: &BindingRow) -> [String; 15] {
    let [spins, donations, hand_offs, wakes, waits, remote] =
        row.came().map(|calls| share(calls, row.calls));
    let calls = row.calls_per_s.unwrap_or(0.0);
    // The bytes of the interval, converted to bytes a second.
    let each = |bytes: u64| {
        size(if row.calls == 0 { 0 } else { (bytes as f64 * calls / row.calls as f64) as u64 })
    };
    let below = |ns: Option<u64>| ns.map_or_else(|| "-".to_string(), time);
    [
        output::cell(&row.name),
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
    use crate::objects::{Each, ObjectHold, Ways};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn row(name: &str, calls: u64, bytes_in: u64) -> BindingRow {
        BindingRow {
            name: name.into(),
            client: 7,
            server: 8,
            calls,
            calls_per_s: Some(calls as f64 * 2.0),
            bytes_in,
            ..BindingRow::default()
        }
    }

    /// The lines of the screen, without the spaces at their ends.
    fn shown(screen: &mut Screen) -> Vec<String> {
        shown_wide(screen, 100)
    }

    fn shown_wide(screen: &mut Screen, columns: u16) -> Vec<String> {
        shown_at(screen, columns, 6)
    }

    fn shown_at(screen: &mut Screen, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..buffer.area.height).map(|y| line(y).trim_end().to_string()).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE)) == KeyOutcome::Quit
    }

    #[test]
    fn the_other_picture_tells_how_servers_came_to_calls() {
        let mut screen = Screen::default();
        let polled = BindingRow { spins: 990, waits: 10, ..row("polled", 1000, 0) };
        let handed = BindingRow { hand_offs: 60, donations: 40, ..row("handed", 100, 0) };
        screen
            .renew(IntervalActivity { rows: vec![handed, polled], ..IntervalActivity::default() });
        // Sorted by bytes, which the second view does not show, so it is sorted by calls.
        press(&mut screen, KeyCode::Right);
        press(&mut screen, KeyCode::Right);
        press(&mut screen, KeyCode::Tab);
        let lines = shown(&mut screen);
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(
            words(&lines[1]),
            [
                "NAME", "CLIENT", "SERVER", "CALLS/Sv", "SPIN", "DONATE", "HAND", "WAKE", "WAIT",
                "NET"
            ]
        );
        assert_eq!(words(&lines[2]), ["polled", "7", "8", "2000", "99%", "-", "-", "-", "1%", "-"]);
        assert_eq!(words(&lines[3]), ["handed", "7", "8", "200", "-", "40%", "60%", "-", "-", "-"]);
        (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Right));
        assert!(
            shown(&mut screen)[1].contains("HANDv") && shown(&mut screen)[2].starts_with("handed")
        );
        (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Left));
        (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Tab));
        assert!(
            shown(&mut screen)[1].contains("CALLS/Sv") && shown(&mut screen)[1].contains("P99")
        );
    }

    #[test]
    fn clients_on_other_machines_are_shown_by_their_addresses() {
        let mut screen = Screen::default();
        let near = BindingRow { local: 300, spins: 300, ..row("near", 300, 0) };
        let far = BindingRow {
            client: 0,
            address: Some("192.0.2.100:54321".parse().unwrap()),
            remote: 100,
            ..row("far", 100, 0)
        };
        screen.renew(IntervalActivity {
            rows: vec![near.clone(), far],
            ..IntervalActivity::default()
        });
        let lines = shown(&mut screen);
        assert_eq!(lines[0], "2 bindings, 800 calls a second, 75% local, 25% remote");
        assert!(
            lines[3].starts_with("far") && lines[3].contains(" 192.0.2.100:54321 "),
            "{lines:?}"
        );
        press(&mut screen, KeyCode::Tab);
        (0..6).for_each(|_| _ = press(&mut screen, KeyCode::Right));
        let lines = shown(&mut screen);
        assert!(
            lines[1].ends_with("NETv") && lines[2].starts_with("far") && lines[2].ends_with("100%"),
            "{lines:?}"
        );
        screen.renew(IntervalActivity { rows: vec![near], ..IntervalActivity::default() });
        assert_eq!(shown(&mut screen)[0], "1 binding, 600 calls a second");
    }

    #[test]
    fn the_busiest_come_first_and_keys_sort_otherwise() {
        let mut screen = Screen::default();
        screen.renew(IntervalActivity {
            rows: vec![row("slow", 10, 5000), row("quick", 1000, 0)],
            silent: 1,
            ..IntervalActivity::default()
        });
        let lines = shown(&mut screen);
        assert_eq!(lines[0], "2 bindings, 2020 calls a second, 1 server does not answer");
        assert!(lines[1].starts_with("NAME") && lines[1].contains("CALLS/Sv"), "{lines:?}");
        assert!(
            lines[2].starts_with("quick")
                && lines[2].contains(" 2000 ")
                && lines[3].contains("9.8 KiB"),
            "{lines:?}"
        );
        // Two columns on: by bytes in.
        assert!(!press(&mut screen, KeyCode::Right) && !press(&mut screen, KeyCode::Right));
        assert!(shown(&mut screen)[2].starts_with("slow"));
        press(&mut screen, KeyCode::Char('r'));
        assert!(shown(&mut screen)[2].starts_with("quick"));
        // A held view does not change.
        press(&mut screen, KeyCode::Char(' '));
        screen.renew(IntervalActivity::default());
        assert!(shown(&mut screen)[0].ends_with("held"));
        press(&mut screen, KeyCode::Char(' '));
        screen.renew(IntervalActivity::default());
        assert_eq!(shown(&mut screen)[0], "0 bindings, 0 calls a second");
        assert!(press(&mut screen, KeyCode::Char('q')));
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.press(key), KeyOutcome::Quit);
    }

    #[test]
    fn members_of_groups_have_a_picture_and_who_is_stopped_is_told_in_each() {
        let member = |rank, sent| MemberActivity {
            group: "flood".into(),
            rank: Some(rank),
            process: 70 + rank as u32,
            sent,
            sent_per_s: Some(sent as f64),
            limit_bytes: 4 << 20,
            ..MemberActivity::default()
        };
        let stopped = MemberActivity {
            stopped_s: Some(3.0),
            stopped_for: Some(1),
            held_bytes: 4 << 20,
            ..member(0, 10)
        };
        let mut screen = Screen::default();
        screen.renew(IntervalActivity {
            members: vec![stopped.clone(), member(1, 500)],
            ..IntervalActivity::default()
        });
        let lines = shown_at(&mut screen, 100, 8);
        assert_eq!(
            lines[0],
            "0 bindings, 0 calls a second; 2 members of groups, 510 messages a second"
        );
        let alarm = "overflow: member 0 of flood (process 70) is stopped for 3 s: it has buffered \
                     all of its 4 MiB, and member 1 takes too little";
        assert_eq!(lines[1..3].join(" "), alarm);
        assert!(lines[3].starts_with("NAME"), "{lines:?}");
        (0..2).for_each(|_| _ = press(&mut screen, KeyCode::Tab));
        let lines = shown_at(&mut screen, 100, 8);
        assert!(lines[3].starts_with("GROUP") && lines[3].contains("SENT/Sv"), "{lines:?}");
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words(&lines[4])[..4], ["flood", "1", "71", "500"]);
        // Four columns on: by held memory.
        (0..4).for_each(|_| _ = press(&mut screen, KeyCode::Right));
        assert!(shown_at(&mut screen, 100, 8)[4].contains(" 70 "));
        let were = MemberActivity { stopped_s: None, stops: 2, ..stopped };
        screen.renew(IntervalActivity {
            members: vec![were.clone(), were],
            ..IntervalActivity::default()
        });
        assert!(shown(&mut screen)[1].contains("was stopped 2 times"));
        screen.renew(IntervalActivity {
            members: vec![member(0, 10)],
            ..IntervalActivity::default()
        });
        assert!(shown(&mut screen)[1].starts_with("GROUP"));
    }
    #[test]
    fn objects_have_a_picture_with_who_holds_them_and_what_auto_chose() {
        let object = |name: &str, changes, chosen| ObjectActivity {
            name: name.into(),
            home: 70,
            state: "whole",
            changes,
            interval: Some(Duration::from_millis(500)),
            done: Ways { urgent: 40, invoked: 3, chosen, would_ns: None },
            holds: vec![ObjectHold::default(); 2],
            ..ObjectActivity::default()
        };
        let held = ObjectActivity {
            holder: Some(71),
            ..object("held", 10, Each { lock: 6, look: 2, urgent: 0 })
        };
        let busy = object("busy", 400, Each { lock: 0, look: 0, urgent: 40 });
        let mut screen = Screen::default();
        screen.renew(IntervalActivity {
            objects: vec![held, busy],
            unseen: 1,
            ..IntervalActivity::default()
        });
        let said = "0 bindings, 0 calls a second; 2 objects, 820 changes a second, 1 object cannot \
                    be read";
        assert_eq!(shown(&mut screen)[0], said);
        (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Tab));
        let lines = shown_wide(&mut screen, 120);
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert!(lines[1].starts_with("OBJECT") && lines[1].contains(" CHANGES/Sv "), "{lines:?}");
        assert_eq!(
            words(&lines[2]),
            ["busy", "70", "2", "800", "80", "6", "80", "-", "-", "100%", "-", "whole"]
        );
        assert_eq!(
            words(&lines[3]),
            ["held", "70", "2", "20", "80", "6", "16", "75%", "25%", "-", "71", "whole"]
        );
        // By the share of operations under the lock, and by the holder.
        (0..4).for_each(|_| _ = press(&mut screen, KeyCode::Right));
        assert!(shown(&mut screen)[2].starts_with("held"));
        press(&mut screen, KeyCode::Char('r'));
        assert!(shown(&mut screen)[2].starts_with("busy"));
        (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Right));
        assert!(
            shown_wide(&mut screen, 120)[1].contains("HOLDER^")
                && shown(&mut screen)[2].starts_with("busy")
        );
        press(&mut screen, KeyCode::Tab);
        assert!(shown(&mut screen)[1].contains("CALLS/S^"));
    }

    /// A screen with rows of all kinds, with long names and large numbers.
    fn full() -> Screen {
        let mut screen = Screen::default();
        let far = Some("192.0.2.100:54321".parse().unwrap());
        let binding = BindingRow {
            p50_below_ns: Some(512),
            p99_below_ns: Some(4096),
            spins: 1_234_000,
            remote: 567,
            address: far,
            ..row("a-service-with-a-long-name", 1_234_567, 1 << 40)
        };
        let member = MemberActivity {
            group: "a-group-with-a-long-name".into(),
            rank: Some(17),
            process: 4_194_304,
            sent: 123_456,
            sent_per_s: Some(123_456.0),
            taken_per_s: Some(7.0),
            stopped_s: Some(3.0),
            stopped_for: Some(1),
            ..MemberActivity::default()
        };
        let object = ObjectActivity {
            name: "an-object-with-a-long-name".into(),
            home: 4_194_304,
            state: "poisoned",
            changes: 1_234_567,
            interval: Some(Duration::from_secs(1)),
            ..ObjectActivity::default()
        };
        screen.renew(IntervalActivity {
            rows: vec![binding],
            members: vec![member],
            objects: vec![object],
            silent: 2,
            unseen: 2,
        });
        screen
    }

    #[test]
    fn each_view_fits_sixty_columns() {
        let mut screen = full();
        for (view, expected) in [
            &["NAME", "CALLS/Sv", "ERRORS", "IN/S", "P50", "P99"][..],
            &["NAME", "CALLS/Sv", "SPIN", "DONATE", "HAND", "WAKE", "WAIT"],
            &["GROUP", "RANK", "SENT/Sv", "TAKEN/S", "WAITING", "STATE"],
            &["OBJECT", "CHANGES/Sv", "URGENT/S", "INVOKED/S", "AUTO/S", "STATE"],
        ]
        .iter()
        .enumerate()
        {
            let lines = shown_at(&mut screen, 60, 24);
            let head = lines.iter().position(|line| line.starts_with(expected[0])).unwrap();
            let heads: Vec<_> = lines[head].split_whitespace().collect();
            assert_eq!(heads, *expected, "{lines:#?}");
            // Numbers are whole, and so is the text above the table.
            let (numbers, text) = (&lines[head + 1], lines[..head].join(" "));
            let whole = ["2469134", "2469134", "123456", "1234567"][view];
            assert!(numbers.split_whitespace().any(|word| word == whole), "{lines:#?}");
            assert!(text.contains("2 objects cannot be read"), "{lines:#?}");
            assert!(text.contains("member 1 takes too little"), "{lines:#?}");
            assert!(lines[23].starts_with("?: help   q: quit"), "{lines:#?}");
            assert!(lines[23].contains("hidden)"), "{lines:#?}");
            press(&mut screen, KeyCode::Tab);
        }
    }

    #[test]
    fn a_hidden_column_is_shown_when_it_is_chosen() {
        let mut screen = full();
        assert!(!shown_at(&mut screen, 60, 12).join("\n").contains("CLIENT"));
        (0..2).for_each(|_| _ = press(&mut screen, KeyCode::Left));
        let lines = shown_at(&mut screen, 60, 12).join("\n");
        assert!(lines.contains("CLIENTv") && lines.contains(" 192.0.2.100:54321 "), "{lines}");
    }

    #[test]
    fn a_question_mark_shows_the_keys_and_the_columns() {
        let mut screen = full();
        press(&mut screen, KeyCode::Char('?'));
        let lines = shown_at(&mut screen, 60, 40).join("\n");
        for part in ["show the next view", "quit; Esc", "scroll", "CALLS/S", "calls a second"] {
            assert!(lines.contains(part), "{part}: {lines}");
        }
        assert!(!lines.contains("a-service"), "{lines}");
        // The help scrolls, is of the view, and does not go past its end.
        (0..1000).for_each(|_| _ = press(&mut screen, KeyCode::Down));
        assert!(shown_at(&mut screen, 60, 20).join("\n").contains("upcall stat --help"));
        press(&mut screen, KeyCode::BackTab);
        assert!(screen.view == 3 && screen.help.is_some());
        // Esc closes the help first, and then ends the command.
        assert!(!press(&mut screen, KeyCode::Esc) && screen.help.is_none());
        assert!(press(&mut screen, KeyCode::Esc));
    }
}
