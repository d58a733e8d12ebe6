//! The suites with their tables and figures, by name.

use super::markers::MarkerError;
use crate::plot::{self, Figures, PlotError, Svg};
use upcall_bench::cache::Cache;
use upcall_bench::homed::Homed;
use upcall_bench::hosts::Hosts;
use upcall_bench::links::Links;
use upcall_bench::lrpc::Lrpc;
use upcall_bench::messages::Messages;
use upcall_bench::pvm::Pvm;
use upcall_bench::record::Record;
use upcall_bench::rpc::Rpc;
use upcall_bench::suite::{Report, Suite};
use upcall_bench::table::Table;
use upcall_bench::threads::Threads;
use upcall_bench::urpc::Urpc;

/// Name in markers of the notes of a suite's runs, which are a list and not a table.
pub const NOTES: &str = "notes";

/// A suite.
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// Makes its tables.
    pub tables: fn(&Report) -> Vec<Table>,
    /// Draws its figures, if it has any.
    pub figures: Option<Figures>,
    /// The names of its tables.
    names: &'static [&'static str],
}

impl Known {
    const fn of<S: Suite>(figures: Option<Figures>) -> Known {
        Known { name: S::NAME, tables: S::tables, figures, names: S::TABLES }
    }

    /// Returns the figures of records. Records of other parts of the suite have none.
    ///
    /// # Errors
    /// See [`PlotError`].
    pub fn drawn(&self, records: &[Record]) -> Result<Vec<Svg>, PlotError> {
        match self.figures.map_or(Ok(Vec::new()), |figures| figures(records)) {
            Err(PlotError::Nothing(_)) => Ok(Vec::new()),
            figures => figures,
        }
    }

    /// Returns the name of a table, if the suite has it.
    ///
    /// # Errors
    /// The suite has no such table.
    pub fn table(&self, name: &str) -> Result<&'static str, MarkerError> {
        let mut known = self.names.iter().copied().chain([NOTES]);
        known.find(|known| *known == name).ok_or_else(|| MarkerError::Table {
            suite: self.name,
            found: name.to_owned(),
            known: self.names.iter().copied().chain([NOTES]).collect(),
        })
    }
}

/// All suites.
pub static SUITES: [Known; 10] = [
    Known::of::<Rpc>(None),
    Known::of::<Threads>(Some(plot::threads::figures)),
    Known::of::<Urpc>(Some(plot::urpc::figures)),
    Known::of::<Lrpc>(Some(plot::lrpc::figures)),
    Known::of::<Messages>(Some(plot::messages::figures)),
    Known::of::<Homed>(Some(plot::homed::figures)),
    Known::of::<Cache>(None),
    Known::of::<Pvm>(Some(plot::pvm::figures)),
    Known::of::<Hosts>(None),
    Known::of::<Links>(Some(plot::links::figures)),
];

/// Returns the suite of a name.
///
/// # Errors
/// There is no such suite.
pub fn suite(name: &str) -> Result<&'static Known, MarkerError> {
    SUITES.iter().find(|suite| suite.name == name).ok_or_else(|| MarkerError::Suite {
        found: name.to_owned(),
        known: SUITES.iter().map(|suite| suite.name).collect(),
    })
}
