//! Tables as Markdown, for the pages of the documentation.

use super::{ABSENT, Kind, Row, Table};

/// Maximum number of columns of one table. The columns of a wider one are divided among several
/// tables, each with the names of the rows.
const MOST: usize = 11;

/// Maximum number of characters of a line of text.
const WIDTH: usize = 100;

/// Formats a table: the title, the table, and its notes. Figures are on the right. Upcall's rows
/// are bold if there are others.
pub fn table(table: &Table) -> String {
    let mut out = format!("{}\n\n", wrapped(&format!("{}:", table.title)));
    out += &bare(table);
    for note in &table.notes {
        out += &format!("\n{}\n", wrapped(note));
    }
    out
}

/// Formats a table without title and notes.
pub fn bare(table: &Table) -> String {
    let parts: Vec<String> = parts(table).into_iter().map(|figures| part(table, figures)).collect();
    parts.join("\n")
}

/// Divides the columns that have a figure, as evenly as possible.
fn parts(table: &Table) -> Vec<Vec<usize>> {
    let has_figure = |at: &usize| table.rows.iter().any(|row| is_there(&row.cells[*at]));
    let figures: Vec<usize> = (table.names..table.heads.len()).filter(has_figure).collect();
    let room = MOST.saturating_sub(table.names).max(1);
    let count = figures.len().div_ceil(room).max(1);
    let each = figures.len().div_ceil(count).max(1);
    figures.chunks(each).map(<[usize]>::to_vec).collect()
}

/// Formats the table with these columns of figures, and the rows that have any of them.
fn part(table: &Table, figures: Vec<usize>) -> String {
    let columns: Vec<usize> = (0..table.names).chain(figures.iter().copied()).collect();
    let line = |cells: Vec<String>| {
        cells.into_iter().fold("|".to_owned(), |line, cell| match cell.is_empty() {
            true => line + " |",
            false => line + " " + &cell + " |",
        }) + "\n"
    };
    let head = |&at: &usize| emphasised(table.heads[at].kind, &table.heads[at].text);
    let mut out = line(columns.iter().map(head).collect());
    out += "|";
    out += &columns
        .iter()
        .map(|&at| if at < table.names { "---|" } else { "--:|" })
        .collect::<String>();
    out += "\n";
    let is_other = |row: &Row| matches!(row.kind, Kind::Limit | Kind::Plain | Kind::Derived);
    let compares = table.rows.iter().any(is_other);
    for row in &table.rows {
        if figures.iter().any(|&at| is_there(&row.cells[at])) {
            let kind = |at: usize| match row.kind {
                Kind::Plain => table.heads[at].kind,
                Kind::Ours if !compares => Kind::Plain,
                kind => kind,
            };
            let cell = |&at: &usize| match row.cells[at].as_str() {
                ABSENT => String::new(),
                text => emphasised(kind(at), text),
            };
            out += &line(columns.iter().map(cell).collect());
        }
    }
    out
}

/// Returns `true` if a cell has something.
fn is_there(cell: &str) -> bool {
    !["", ABSENT].contains(&cell)
}

/// Marks Upcall's text bold, and a paper's italic. Two spaces before a text, which make it a part
/// of the row above, become an ellipsis.
fn emphasised(kind: Kind, text: &str) -> String {
    let part = if text.starts_with("  ") { "… " } else { "" };
    let text = format!("{part}{}", text.trim()).replace('|', "\\|");
    match kind {
        _ if text.is_empty() => text,
        Kind::Ours => format!("**{text}**"),
        Kind::Paper => format!("*{text}*"),
        Kind::Limit | Kind::Plain | Kind::Derived | Kind::Met | Kind::Missed => text,
    }
}

/// Breaks a text into lines.
pub fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            out.push('\n');
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out += word;
        width += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Head;

    fn of(figures: usize) -> Table {
        let heads = (1..=figures).map(|at| format!("t{at}"));
        let mut table = Table::new("calls", "Calls, ns").names(["system"]).figures(heads);
        let cells = |ns: usize| (1..=figures).map(move |at| (ns * at).to_string());
        table.row(Kind::Ours, ["upcall"], cells(10));
        table.row(Kind::Paper, ["1990"], cells(20));
        table
    }

    #[test]
    fn figures_are_on_the_right_and_ours_are_bold() {
        let mut one = of(2);
        let alone = "|---|--:|--:|\n| upcall | 10 | 20 |\n| *1990* | *20* | *40* |\n";
        assert!(table(&one).ends_with(alone), "{}", table(&one));
        one.row(Kind::Plain, ["  a|b"], [ABSENT.to_owned(), "7".to_owned()]);
        one.row(Kind::Plain, ["nothing"], [ABSENT; 2].map(String::from));
        one.heads.push(Head { text: "empty".to_owned(), kind: Kind::Plain });
        one.rows.iter_mut().for_each(|row| row.cells.push(ABSENT.to_owned()));
        one.notes.push("A note.".to_owned());
        let text = "Calls, ns:\n\n| system | t1 | t2 |\n|---|--:|--:|\n\
            | **upcall** | **10** | **20** |\n| *1990* | *20* | *40* |\n| … a\\|b | | 7 |\n\n\
            A note.\n";
        assert_eq!(table(&one), text);
    }

    #[test]
    fn a_column_of_ours_is_bold() {
        let columns = ["upcall", "go"].map(|system| (system, Kind::of(system)));
        let mut threads = Table::new("threads", "ns").names([""]).columns(columns);
        threads.row(Kind::Plain, ["fork"], ["7", "70"].map(String::from));
        let text = table(&threads);
        assert!(
            text.ends_with("| | **upcall** | go |\n|---|--:|--:|\n| fork | **7** | 70 |\n"),
            "{text}"
        );
    }

    #[test]
    fn a_wide_table_is_divided() {
        let heads = |figures| {
            let text = table(&of(figures));
            let heads = text.lines().filter(|line| line.starts_with("| system"));
            heads.map(|line| line.matches('|').count() - 1).collect::<Vec<_>>()
        };
        assert_eq!((heads(10), heads(11), heads(14)), (vec![11], vec![7, 6], vec![8, 8]));
    }

    #[test]
    fn lines_are_at_most_so_wide() {
        let text = wrapped(&"word ".repeat(50));
        assert!(text.lines().all(|line| line.len() <= WIDTH) && text.lines().count() == 3);
        assert_eq!(wrapped("  a  b "), "a b");
    }
}
