//! Tables of a report as data, and what all suites share of their making.
//!
//! A suite makes its tables once ([`Suite::tables`](crate::suite::Suite::tables)). Two renderers
//! show them: [`text`] on a terminal, and [`markdown`] on the pages of the documentation.

mod aim;
pub mod markdown;
pub mod text;

pub(crate) use aim::{Aim, aims};

/// A table of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The name in markers of pages, one of the suite's.
    pub name: &'static str,
    /// The title, with the unit of the figures.
    pub title: String,
    /// Number of leading columns with names; the others have figures.
    pub names: usize,
    /// The heads of the columns.
    pub heads: Vec<Head>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Sentences below the table.
    pub notes: Vec<String>,
}

/// The head of a column.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// The text.
    pub text: String,
    /// Whose figures the column has, if each column belongs to a system.
    pub kind: Kind,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Whose figures the row has.
    pub kind: Kind,
    /// A cell for each column.
    pub cells: Vec<String>,
}

/// Whose figures a row or a column has, or how its figure compares with its aim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Upcall's.
    Ours,
    /// The machine's limit.
    Limit,
    /// A peer's, or that of no system in particular.
    Plain,
    /// A comparison of the row above with Upcall's.
    Derived,
    /// A paper's.
    Paper,
    /// A figure that meets its aim.
    Met,
    /// A figure that misses its aim.
    Missed,
}

impl Kind {
    /// Returns the kind of a system's figures.
    pub fn of(system: &str) -> Kind {
        match system {
            ours if ours.starts_with("upcall") => Kind::Ours,
            limit if limit.starts_with("limit") => Kind::Limit,
            _ => Kind::Plain,
        }
    }
}

impl Table {
    /// Creates a table without columns.
    pub fn new(name: &'static str, title: impl Into<String>) -> Table {
        let title = title.into();
        Table { name, title, names: 0, heads: Vec::new(), rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds columns of names. They precede those of figures.
    pub fn names<T: ToString>(mut self, heads: impl IntoIterator<Item = T>) -> Table {
        self = self.figures(heads);
        self.names = self.heads.len();
        self
    }

    /// Adds columns of figures.
    pub fn figures<T: ToString>(self, heads: impl IntoIterator<Item = T>) -> Table {
        self.columns(heads.into_iter().map(|head| (head, Kind::Plain)))
    }

    /// Adds columns of figures that belong to a system each.
    pub fn columns<T: ToString>(mut self, heads: impl IntoIterator<Item = (T, Kind)>) -> Table {
        let heads = heads.into_iter();
        self.heads.extend(heads.map(|(head, kind)| Head { text: head.to_string(), kind }));
        self
    }

    /// Adds a row: names, then figures.
    pub fn row<N: ToString>(
        &mut self,
        kind: Kind,
        names: impl IntoIterator<Item = N>,
        figures: impl IntoIterator<Item = String>,
    ) {
        let names = names.into_iter().map(|name| name.to_string());
        let cells: Vec<String> = names.chain(figures).collect();
        debug_assert_eq!(cells.len(), self.heads.len(), "{}: {cells:?}", self.name);
        self.rows.push(Row { kind, cells });
    }

    /// Returns the table if it has rows.
    pub fn if_any(self) -> Option<Table> {
        (!self.rows.is_empty()).then_some(self)
    }
}

/// Returns the ratio of two figures, if both were measured.
pub(crate) fn ratio(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.zip(other).map(|(one, other)| one / other)
}

/// Formats a figure, or its absence.
pub(crate) fn figure(figure: Option<f64>) -> String {
    figure.map_or(ABSENT.to_owned(), thousands)
}

/// Formats a figure with two decimals, or its absence.
pub(crate) fn hundredths(figure: Option<f64>) -> String {
    figure.map_or(ABSENT.to_owned(), |figure| format!("{figure:.2}"))
}

/// What stands for an absent figure.
pub(crate) const ABSENT: &str = "-";

/// Formats a number with grouped thousands; a small one with a decimal.
pub(crate) fn thousands(x: f64) -> String {
    if !x.is_finite() {
        return ABSENT.to_owned();
    }
    if x < 100.0 {
        return format!("{x:.1}");
    }
    let digits = format!("{x:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(thousands(12.345), "12.3");
        assert_eq!(thousands(123.4), "123");
        assert_eq!(thousands(1_234_567.0), "1 234 567");
        assert_eq!(thousands(f64::NAN), "-");
        assert_eq!([figure(None), figure(Some(5.0))], ["-", "5.0"]);
        assert_eq!([hundredths(None), hundredths(Some(5.0))], ["-", "5.00"]);
    }
}
