//! What the command shows: a view, its order, and the help; and what keys change.

use super::layout::{fitting, wrapped};
use super::order::{sort_bindings, sort_members};
use super::views::{CLIENT, MOST, NAME, Of, VIEWS, View, WIDTHS, cells};
use super::watched::IntervalActivity;
use super::{help, objects};
use crate::expect;
use crate::members::{self, MemberActivity};
use crate::output::counted;
use crate::stat::Total;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as Shown, Table, TableState};

/// What a key asks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    Continue,
    Quit,
}

/// What is shown, and how.
#[derive(Default)]
pub struct Screen {
    seen: IntervalActivity,
    /// What is said of the only server whose user is not accepted. It takes a look-up of the user,
    /// which may block, so it is made when the activity is stored and not when it is drawn.
    whose: Option<String>,
    /// An index into [`VIEWS`].
    pub view: usize,
    /// A column of the view; [`MOST`] at first.
    sorted_by: Option<usize>,
    is_reversed: bool,
    is_held: bool,
    /// Whether the help is shown in place of the table, and its first line.
    pub help: Option<u16>,
    at: TableState,
}

impl Screen {
    pub fn renew(&mut self, seen: IntervalActivity) {
        if !self.is_held {
            self.whose = match seen.others.as_slice() {
                [user] => Some(expect::whose(*user)),
                _ => None,
            };
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
        let (column, reversed) = (self.column(), self.is_reversed);
        match self.view().of {
            Of::Bindings => sort_bindings(&mut self.seen.rows, column, reversed),
            Of::Members => sort_members(&mut self.seen.members, column, reversed),
            Of::Objects => {
                self.seen.objects.sort_by(|a, b| {
                    let order = objects::order(a, b, column);
                    let order = if reversed { order.reverse() } else { order };
                    order.then_with(|| a.name.cmp(&b.name))
                });
            }
        }
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: KeyEvent) -> KeyOutcome {
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
        let IntervalActivity { rows, members, objects, silent, unasked, unseen, others } =
            &self.seen;
        let calls = rows.iter().filter_map(|row| row.calls_per_s).fold(0.0, |sum, rate| sum + rate);
        let held = if self.is_held { ", held" } else { "" };
        let silent = match silent {
            0 => String::new(),
            1 => ", 1 server does not answer".into(),
            more => format!(", {more} servers do not answer"),
        };
        let unasked = match unasked {
            0 => String::new(),
            more => format!(", {} not asked", counted(*more, "server")),
        };
        let unseen = match unseen {
            0 => String::new(),
            more => format!(", {} cannot be read", counted(*more, "object")),
        };
        let others = match (others.len(), &self.whose) {
            (0, _) => String::new(),
            (1, Some(whose)) => format!(", 1 server {whose}"),
            (more, _) => format!(
                ", {} belong to other users: `--expect USER` asks them",
                counted(more, "server")
            ),
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
        format!("{bindings}{far}{groups}{homes}{silent}{unasked}{others}{unseen}{held}")
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

    pub fn draw(&mut self, frame: &mut Frame<'_>) {
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
