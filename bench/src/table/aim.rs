//! Figures beside their aims.

use super::{ABSENT, Kind, Table, thousands};

/// A figure with an aim.
#[derive(Debug, Clone)]
pub(crate) struct Aim {
    /// The name of the figure, with its unit.
    pub what: String,
    /// The measured figure, if it was measured.
    pub found: Option<f64>,
    /// The bound.
    pub bar: f64,
    /// `true` if the bound is a minimum.
    pub more: bool,
    /// The paper's figure.
    pub paper: Option<f64>,
}

impl Aim {
    /// A figure that should be at most `bar`.
    pub fn at_most(what: impl Into<String>, found: Option<f64>, bar: f64) -> Aim {
        Aim { what: what.into(), found, bar, more: false, paper: None }
    }

    /// A figure that should be at least `bar`.
    pub fn at_least(what: impl Into<String>, found: Option<f64>, bar: f64) -> Aim {
        Aim { more: true, ..Aim::at_most(what, found, bar) }
    }

    /// Sets the paper's figure.
    pub fn paper(self, paper: Option<f64>) -> Aim {
        Aim { paper, ..self }
    }
}

/// Makes the table of the aims whose figures were measured. A head for the paper's figures makes a
/// column of them. Returns `None` if no figure was measured.
pub(crate) fn aims(
    name: &'static str,
    title: &str,
    paper: Option<&str>,
    aims: &[Aim],
) -> Option<Table> {
    let mut table =
        Table::new(name, title).names([""]).figures(["found", "aim", ""]).figures(paper);
    for aim in aims {
        let Some(found) = aim.found else { continue };
        let (sign, met) =
            if aim.more { ("≥", found >= aim.bar) } else { ("≤", found <= aim.bar) };
        let (kind, word) = if met { (Kind::Met, "met") } else { (Kind::Missed, "missed") };
        let cells = [shown(found), format!("{sign} {}", aim.bar), word.to_owned()];
        let papers = paper.map(|_| aim.paper.map_or(ABSENT.to_owned(), shown));
        table.row(kind, [&aim.what], cells.into_iter().chain(papers));
    }
    table.if_any()
}

/// Formats a figure: with two decimals if it is small, because it may be close to its bar.
fn shown(figure: f64) -> String {
    if figure < 100.0 { format!("{figure:.2}") } else { thousands(figure) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_meet_their_aims_or_miss_them() {
        let all = [
            Aim::at_most("a ratio", Some(1.2), 1.25).paper(Some(1.44)),
            Aim::at_least("a rate", Some(1499.0), 1500.0),
            Aim::at_least("not measured", None, 1.0),
        ];
        let table = aims("aims", "ratios", Some("1990"), &all).unwrap();
        let rows: Vec<_> = table.rows.iter().map(|row| (row.kind, row.cells.join("|"))).collect();
        let expected = [
            (Kind::Met, "a ratio|1.20|≤ 1.25|met|1.44".to_owned()),
            (Kind::Missed, "a rate|1 499|≥ 1500|missed|-".to_owned()),
        ];
        assert_eq!(rows, expected);
        assert_eq!(aims("aims", "ratios", None, &all[2..]), None);
    }
}
