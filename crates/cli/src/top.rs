//! `upcall top`: the same as `upcall stat`, live.
//!
//! Bindings, members of groups and objects have pictures of their own. What is shown is what was
//! done within the last interval, read from memory that servers have given once and count in
//! anyway; only new servers are asked for theirs, and members and homes not at all.

mod objects;

use crate::members::{self, MemberActivity, UserMembers};
use crate::objects::{ObjectActivity, UserObjects};
use crate::stat::{self, BindingRow, ServerBindings, Total, time};
use crate::told;
use crate::told::{CommandResult, share, size};
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
/// The second picture tells how servers came to the calls (see `upcall stat --help`): by looking
/// (SPIN), by looking on the caller's processor (DONATE), by being woken there (HAND) or elsewhere
/// (WAKE), after others (WAIT), or from another machine (NET). Clients on other machines are shown
/// by their addresses, and the first line says which share of the calls is theirs.
///
/// The third picture shows the members of groups: messages sent and taken a second, those that
/// wait, and what is buffered (see `upcall stat --help`). A member that is stopped because it has
/// buffered all that it may, or was within the interval, is told of in the second line of each
/// picture.
///
/// The fourth picture shows objects with their homes (see `upcall stat --help`): operations under
/// the lock (CHANGES), urgent and ordinary invocations, and those for which `auto` has chosen the
/// way, a second; the shares of these ways; and the process that is in an operation just now
/// (HOLDER). Homes that are stopped are shown like others, for nothing is asked of them.
///
/// Keys: arrows to the left and right choose the column to sort by, `r` turns the order, tab shows
/// the next picture, arrows up and down scroll, space holds the picture, `q` ends.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall top\n  upcall top files --interval 0.5")]
pub struct TopArgs {
    /// Only bindings to these names, members of groups with these names, and objects.
    names: Vec<String>,
    /// Seconds between two pictures.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = stat::seconds)]
    interval: Duration,
}

pub fn run(args: &TopArgs) -> CommandResult {
    stat::is_here(&args.names, "top")?;
    if !std::io::stdout().is_terminal() {
        return Err(
            "top needs a terminal: for scripts there is `upcall stat --interval 1 --json`".into()
        );
    }
    let mut screen = Screen::default();
    let mut watched = WatchedServers::default();
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
            screen.renew(watched.read(&args.names));
            due = Instant::now() + args.interval;
        }
    })();
    ratatui::try_restore()?;
    outcome.map(|()| ExitCode::SUCCESS)
}

/// The servers that are read, by socket, and since when.
#[derive(Default)]
struct WatchedServers {
    servers: BTreeMap<PathBuf, ServerBindings>,
    /// Those that did not give their tallies: they are not asked again, since a stopped one would
    /// hold us up each time.
    silent: Vec<PathBuf>,
    members: UserMembers,
    objects: UserObjects,
    since: Option<Instant>,
}

impl WatchedServers {
    /// Asks new servers, and forgets old ones.
    fn renew(&mut self) {
        self.members.renew();
        self.objects.renew();
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

/// What was done within an interval.
#[derive(Default)]
struct IntervalActivity {
    rows: Vec<BindingRow>,
    members: Vec<MemberActivity>,
    objects: Vec<ObjectActivity>,
    /// So many processes do not say what they do.
    silent: usize,
    /// So many objects cannot be looked at.
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
/// Calls a second, messages sent, or operations: all pictures are sorted by that at first.
const MOST: usize = 3;

/// What the rows of a picture are.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Bindings,
    Members,
    Objects,
}

/// One for each that can be looked at: what calls carry and take, and how the server came to them;
/// what members of groups do; and what is done with objects.
struct Picture {
    of: Of,
    heads: &'static [&'static str],
    widths: &'static [u16],
    /// Those of the heads that it shows.
    columns: &'static [usize],
}

static PICTURES: [Picture; 4] = [
    Picture {
        of: Of::Bindings,
        heads: &HEADS,
        widths: &WIDTHS,
        columns: &[0, 1, 2, MOST, 4, 5, 6, 7, 8],
    },
    Picture {
        of: Of::Bindings,
        heads: &HEADS,
        widths: &WIDTHS,
        columns: &[0, 1, 2, MOST, 9, 10, 11, 12, 13, 14],
    },
    Picture {
        of: Of::Members,
        heads: &MEMBERS,
        widths: &MEMBERS_WIDTHS,
        columns: &[0, 1, 2, MOST, 4, 5, 6, 7, 8, 9, 10, 11],
    },
    Picture {
        of: Of::Objects,
        heads: &objects::HEADS,
        widths: &objects::WIDTHS,
        columns: &[0, 1, 2, MOST, 4, 5, 6, 7, 8, 9, 10, 11],
    },
];

/// The picture, and how it is to be seen.
#[derive(Default)]
struct Screen {
    seen: IntervalActivity,
    /// One of [`PICTURES`].
    picture: usize,
    /// One of its columns; [`MOST`] at first.
    sorted_by: Option<usize>,
    turned: bool,
    held: bool,
    at: TableState,
}

impl Screen {
    fn renew(&mut self, seen: IntervalActivity) {
        if !self.held {
            self.seen = seen;
            self.sort();
        }
    }

    fn column(&self) -> usize {
        self.sorted_by.unwrap_or(MOST)
    }

    fn picture(&self) -> &'static Picture {
        &PICTURES[self.picture]
    }

    /// Sorts by the column that is shown so many places to the right of this one.
    fn choose(&mut self, right: usize) {
        let (shown, column) = (self.picture().columns, self.column());
        let at = shown.iter().position(|&shown| shown == column).unwrap_or(0);
        self.sorted_by = Some(shown[(at + right) % shown.len()]);
    }

    fn sort(&mut self) {
        match self.picture().of {
            Of::Bindings => self.sort_bindings(),
            Of::Members => self.sort_members(),
            Of::Objects => {
                let (column, turned) = (self.column(), self.turned);
                self.seen.objects.sort_by(|a, b| {
                    let order = objects::order(a, b, column);
                    let order = if turned { order.reverse() } else { order };
                    order.then_with(|| a.name.cmp(&b.name))
                });
            }
        }
    }

    fn sort_bindings(&mut self) {
        let (column, turned) = (self.column(), self.turned);
        self.seen.rows.sort_by(|a, b| {
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
                    let part = |of: &BindingRow, calls: u64| {
                        u128::from(of.came()[way - 9]) * u128::from(calls.max(1))
                    };
                    part(b, a.calls).cmp(&part(a, b.calls))
                }
            };
            let order = if turned { order.reverse() } else { order };
            order.then_with(|| {
                (&a.name, a.client, a.address, a.server)
                    .cmp(&(&b.name, b.client, b.address, b.server))
            })
        });
    }

    fn sort_members(&mut self) {
        let (column, turned) = (self.column(), self.turned);
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
                // By shares, as they are shown.
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
            let order = if turned { order.reverse() } else { order };
            order.then_with(|| place(a).cmp(&place(b)))
        });
    }

    /// Does what a key says. Whether that is to end.
    fn ends(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char(' ') => self.held = !self.held,
            KeyCode::Char('r') => self.turned = !self.turned,
            KeyCode::Left => self.choose(self.picture().columns.len() - 1),
            KeyCode::Right => self.choose(1),
            KeyCode::Tab => {
                let were = self.picture().of;
                self.picture = (self.picture + 1) % PICTURES.len();
                if were != self.picture().of || !self.picture().columns.contains(&self.column()) {
                    (self.sorted_by, self.at) = (None, TableState::default());
                }
            }
            KeyCode::Up => self.at.scroll_up_by(1),
            KeyCode::Down => self.at.scroll_down_by(1),
            _ => {}
        }
        self.sort();
        false
    }

    /// Of the columns that are shown. Addresses are longer than processes' numbers, and are of no
    /// use if they are cut: where there is no room, names give it.
    fn widths(&self, room: u16) -> impl Iterator<Item = u16> + use<> {
        let Picture { of, widths, columns, .. } = self.picture();
        let mut widths = widths.to_vec();
        let longest = self.seen.rows.iter().map(|row| row.client().len() as u16).max();
        if *of == Of::Bindings {
            widths[CLIENT] = longest.unwrap_or(0).max(WIDTHS[CLIENT]);
        }
        let wanted = columns.iter().map(|&at| widths[at] + 1).sum::<u16>() - 1;
        widths[NAME] = widths[NAME].saturating_sub(wanted.saturating_sub(room)).max(8);
        columns.iter().map(move |&at| widths[at])
    }

    /// Texts to the left, numbers to the right.
    fn cell(&self, column: usize, text: String) -> Cell<'static> {
        let line = Line::from(text);
        let Picture { of, heads, .. } = self.picture();
        let is_text = column == 0 || *of != Of::Bindings && column + 1 == heads.len();
        Cell::from(if is_text { line.left_aligned() } else { line.right_aligned() })
    }

    /// The first line: what there is, and how much happens.
    fn summary(&self) -> String {
        let IntervalActivity { rows, members, objects, silent, unseen } = &self.seen;
        let calls = rows.iter().filter_map(|row| row.calls_per_s).fold(0.0, |sum, rate| sum + rate);
        let held = if self.held { ", held" } else { "" };
        let silent = match silent {
            0 => String::new(),
            1 => ", 1 server does not answer".into(),
            more => format!(", {more} servers do not answer"),
        };
        let unseen = match unseen {
            0 => String::new(),
            1 => ", 1 object cannot be looked at".into(),
            more => format!(", {more} objects cannot be looked at"),
        };
        // Where all calls are local nothing is to be said.
        let far = if rows.iter().any(|row| row.address.is_some()) {
            format!(", {}", Total::of(rows).shares())
        } else {
            String::new()
        };
        let messages =
            members.iter().filter_map(|member| member.sent_per_s).fold(0.0, |sum, rate| sum + rate);
        let groups = match members.len() {
            0 => String::new(),
            all => format!("; {all} members of groups, {messages:.0} messages a second"),
        };
        let changes = objects.iter().fold(0.0, |sum, object| sum + object.per_s(object.changes));
        let homes = match objects.len() {
            0 => String::new(),
            all => format!("; {all} objects, {changes:.0} changes a second"),
        };
        let bindings = format!("{} bindings, {calls:.0} calls a second", rows.len());
        format!("{bindings}{far}{groups}{homes}{silent}{unseen}{held}")
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let IntervalActivity { rows, members, objects, .. } = &self.seen;
        let overflows: Vec<_> = members.iter().filter_map(MemberActivity::overflow).collect();
        let lines = [1, u16::from(!overflows.is_empty())];
        let [head, event, body, foot] = Layout::vertical([
            Constraint::Length(lines[0]),
            Constraint::Length(lines[1]),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Line::from(self.summary()), head);
        if let Some(first) = overflows.first() {
            let more = match overflows.len() - 1 {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            let alarm = Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED);
            frame.render_widget(Line::from(format!("{first}{more}")).style(alarm), event);
        }
        let strong = Style::new().add_modifier(Modifier::BOLD);
        let Picture { of, heads, columns, .. } = self.picture();
        let heads = columns.iter().map(|&at| {
            let text = heads[at];
            let chosen = at == self.column();
            let arrow = if !chosen {
                ""
            } else if self.turned {
                "^"
            } else {
                "v"
            };
            let style = if chosen { strong.add_modifier(Modifier::REVERSED) } else { strong };
            self.cell(at, format!("{text}{arrow}")).style(style)
        });
        let rows: Vec<Vec<String>> = match of {
            Of::Bindings => rows.iter().map(|row| cells(row).to_vec()).collect(),
            Of::Members => members.iter().map(|member| members::cells(member).to_vec()).collect(),
            Of::Objects => objects.iter().map(|object| objects::cells(object).to_vec()).collect(),
        };
        let rows = rows.into_iter().map(|cells| {
            Shown::new(
                columns.iter().map(|&at| self.cell(at, cells[at].clone())).collect::<Vec<_>>(),
            )
        });
        let widths = self.widths(body.width).map(Constraint::Length);
        let table = Table::new(rows.collect::<Vec<_>>(), widths)
            .header(Shown::new(heads.collect::<Vec<_>>()))
            .column_spacing(1);
        frame.render_stateful_widget(table, body, &mut self.at);
        frame.render_widget(
            Line::from("left/right: sort by   r: turn   tab: next picture   up/down: scroll   space: hold   q: end")
                .style(Style::new().add_modifier(Modifier::DIM)),
            foot,
        );
    }
}

fn cells(row: &BindingRow) -> [String; 15] {
    let [spins, donations, hand_offs, wakes, waits, remote] =
        row.came().map(|calls| share(calls, row.calls));
    let calls = row.calls_per_s.unwrap_or(0.0);
    // Bytes of the interval, as bytes a second.
    let each = |bytes: u64| {
        size(if row.calls == 0 { 0 } else { (bytes as f64 * calls / row.calls as f64) as u64 })
    };
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

    /// The lines of the picture, without the spaces at their ends.
    fn shown(screen: &mut Screen) -> Vec<String> {
        shown_wide(screen, 100)
    }

    fn shown_wide(screen: &mut Screen, columns: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, 6)).unwrap();
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
        let polled = BindingRow { spins: 990, waits: 10, ..row("polled", 1000, 0) };
        let handed = BindingRow { hand_offs: 60, donations: 40, ..row("handed", 100, 0) };
        screen
            .renew(IntervalActivity { rows: vec![handed, polled], ..IntervalActivity::default() });
        // Sorted by bytes, which the other picture does not show: by calls again there.
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
        assert_eq!(shown(&mut screen)[0], "1 bindings, 600 calls a second");
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
        // Held: what is new waits.
        press(&mut screen, KeyCode::Char(' '));
        screen.renew(IntervalActivity::default());
        assert!(shown(&mut screen)[0].ends_with("held"));
        press(&mut screen, KeyCode::Char(' '));
        screen.renew(IntervalActivity::default());
        assert_eq!(shown(&mut screen)[0], "0 bindings, 0 calls a second");
        assert!(press(&mut screen, KeyCode::Char('q')));
        assert!(screen.ends(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
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
        let lines = shown(&mut screen);
        assert_eq!(
            lines[0],
            "0 bindings, 0 calls a second; 2 members of groups, 510 messages a second"
        );
        let said = "overflow: member 0 of flood (process 70) is stopped for 3 s: it has buffered all of its 4 MiB, and member";
        assert!(lines[1].starts_with(&said[..100]) && lines[2].starts_with("NAME"), "{lines:?}");
        (0..2).for_each(|_| _ = press(&mut screen, KeyCode::Tab));
        let lines = shown(&mut screen);
        assert!(lines[2].starts_with("GROUP") && lines[2].contains("SENT/Sv"), "{lines:?}");
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words(&lines[3])[..4], ["flood", "1", "71", "500"]);
        // Four columns on: by what is held.
        (0..4).for_each(|_| _ = press(&mut screen, KeyCode::Right));
        assert!(shown(&mut screen)[3].contains(" 70 "));
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
        let said = "0 bindings, 0 calls a second; 2 objects, 820 changes a second, 1 object cannot be looked at";
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
        // By what was done under the lock, of what `auto` has run; and by who holds it.
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
}
