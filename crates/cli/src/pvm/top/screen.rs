//! The screen of `upcall pvm top`: a table of processes above one of tasks.

use super::{MachineLoad, PROCESS_HEADS, ProcessLoadRow, TASK_HEADS, TaskLoadRow};
use crate::top::layout::{fitting, wrapped};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

/// What a key asks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScreenOutcome {
    Continue,
    Quit,
}

/// A table's columns: their heads, widths and order of importance, and which are texts.
struct TableShape {
    heads: [&'static str; 7],
    widths: [u16; 7],
    importance: [usize; 7],
    texts: &'static [usize],
}

const PROCESSES: TableShape = TableShape {
    heads: PROCESS_HEADS,
    widths: [8, 5, 10, 6, 6, 8, 8],
    importance: [1, 4, 3, 2, 0, 5, 6],
    texts: &[2],
};

const TASKS: TableShape = TableShape {
    heads: TASK_HEADS,
    widths: [8, 16, 5, 6, 6, 11, 80],
    importance: [0, 3, 2, 1, 4, 6, 5],
    texts: &[0, 1, 6],
};

const KEYS: &str = "q: quit   up/down: scroll   space: hold";

/// Maximum number of processes that are shown above the tasks, unless there is room.
const FEW: u16 = 8;

/// What is shown.
#[derive(Default)]
pub struct MachineScreen {
    load: MachineLoad,
    is_held: bool,
    at: TableState,
}

impl MachineScreen {
    pub fn renew(&mut self, load: MachineLoad) {
        if !self.is_held {
            self.load = load;
        }
    }

    pub fn press(&mut self, key: KeyEvent) -> ScreenOutcome {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return ScreenOutcome::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return ScreenOutcome::Quit;
            }
            KeyCode::Char(' ') => self.is_held = !self.is_held,
            KeyCode::Up => self.at.scroll_up_by(1),
            KeyCode::Down => self.at.scroll_down_by(1),
            _ => {}
        }
        ScreenOutcome::Continue
    }

    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let held = if self.is_held { ", held" } else { "" };
        let width = frame.area().width;
        let hosts = self.load.host_line();
        let text = wrapped(&format!("{}{held}", self.load.summary()), width).into_iter();
        let text = text.chain(hosts.into_iter().flat_map(|line| wrapped(&line, width)));
        let text = text.map(Line::from).collect::<Vec<_>>();
        let processes = (self.load.processes.len() as u16 + 1).min(FEW + 1);
        let [head, above, _, below, foot] = Layout::vertical([
            Constraint::Length(text.len() as u16),
            Constraint::Length(processes),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(text), head);
        let cells = self.load.processes.iter().map(ProcessLoadRow::cells);
        frame.render_widget(PROCESSES.table(above.width, cells), above);
        let cells = self.load.tasks.iter().map(TaskLoadRow::cells);
        let tasks = TASKS.table(below.width, cells);
        frame.render_stateful_widget(tasks, below, &mut self.at);
        let dim = Style::new().add_modifier(Modifier::DIM);
        frame.render_widget(Line::from(KEYS).style(dim), foot);
    }
}

impl TableShape {
    /// A table in a room of this width.
    fn table(&self, room: u16, rows: impl Iterator<Item = [String; 7]>) -> Table<'static> {
        let is_text = |column: usize| self.texts.contains(&column);
        let all = [0, 1, 2, 3, 4, 5, 6];
        let columns = fitting(room, &self.widths, self.importance.iter().copied(), &all, is_text);
        let cell = |column: usize, text: String| {
            let line = Line::from(text);
            Cell::from(if is_text(column) { line.left_aligned() } else { line.right_aligned() })
        };
        let strong = Style::new().add_modifier(Modifier::BOLD);
        let header = columns.iter().map(|(at, _)| cell(*at, self.heads[*at].into()).style(strong));
        let header = Row::new(header.collect::<Vec<_>>());
        let row = |cells: [String; 7]| {
            Row::new(
                columns.iter().map(|(at, _)| cell(*at, cells[*at].clone())).collect::<Vec<_>>(),
            )
        };
        let rows = rows.map(row).collect::<Vec<_>>();
        let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
        Table::new(rows, widths.collect::<Vec<_>>()).header(header).column_spacing(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    fn shown(screen: &mut MachineScreen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(line).collect()
    }

    fn words(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    #[test]
    fn processes_are_shown_above_tasks_and_keys_below() {
        use super::super::tests::machine;
        let second = Duration::from_secs(1);
        let mut screen = MachineScreen::default();
        screen.renew(MachineLoad::between(&machine(0), &machine(250), second));
        let lines = shown(&mut screen, 100, 10);
        assert!(lines[0].starts_with("machine 70: 2 tasks in 1 of 2 processes"), "{lines:#?}");
        assert_eq!(words(&lines[1]), PROCESS_HEADS);
        assert_eq!(words(&lines[2]), ["70", "0", "in", "use", "1", "25%", "3", "4"]);
        assert_eq!(words(&lines[5]), TASK_HEADS);
        assert_eq!(words(&lines[6])[..6], ["t40001", "p", "0", "25%", "2", "450"]);
        assert!(lines[7].contains("; stays here: it"), "{lines:#?}");
        assert!(lines[9].starts_with(KEYS), "{lines:#?}");
        // In a narrow terminal the numbers are whole.
        let lines = shown(&mut screen, 40, 10);
        let is_whole = |line: &String| line.contains("t40001") && line.contains(" 25%");
        assert!(lines.iter().any(is_whole), "{lines:#?}");
        // Held, it shows what it has shown.
        let press = |screen: &mut MachineScreen, code| screen.press(KeyEvent::from(code));
        assert_eq!(press(&mut screen, KeyCode::Char(' ')), ScreenOutcome::Continue);
        screen.renew(MachineLoad::default());
        assert!(shown(&mut screen, 100, 10)[0].contains("refine, held"));
        assert_eq!(press(&mut screen, KeyCode::Char('q')), ScreenOutcome::Quit);
    }
}
