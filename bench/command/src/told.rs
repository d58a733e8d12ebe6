//! The options that suites share, in the form of the command line.

use crate::pages::known;
use crate::plot;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use upcall_bench::case::Placement;
use upcall_bench::suite::{self, Offer, Only, Options, Peer, Peers, Suite};

/// The options of a suite: the common ones and its own.
pub struct Told<S: Suite> {
    options: Options<S::Peer>,
    /// Folder for figures.
    plot: Option<PathBuf>,
}

impl<S: Suite> Told<S> {
    /// Runs the suite, draws the requested figures, and fails if something was not measured.
    ///
    /// # Errors
    /// There is no report, or no figure.
    pub fn run(self, suite: &S) -> Result<ExitCode, Box<dyn Error>> {
        let figures = known::suite(S::NAME).map_err(|error| error.to_string())?.figures;
        let report = suite::run(suite, &self.options)?;
        if let Some((dir, figures)) = self.plot.as_deref().zip(figures) {
            for figure in figures(&report.records)? {
                eprintln!("{}", plot::write(&figure, dir)?.display());
            }
        }
        Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// An option with a value.
fn option(id: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(id).long(id).value_name(value).help(help)
}

impl<S: Suite> Args for Told<S> {
    fn augment_args(command: Command) -> Command {
        let peers = option(
            "peers",
            "PEERS",
            "Peers to measure: `none`, `all`, or names separated by commas",
        )
        .default_value("all")
        .value_parser(|peers: &str| peers.parse::<Peers<S::Peer>>());
        let file = |id, help| option(id, "FILE", help).value_parser(clap::value_parser!(PathBuf));
        let offers = S::OFFERS.iter().map(|offer| match *offer {
            Offer::System(help) => option("system", "NAME", help).action(ArgAction::Append),
            Offer::Case(help) => option("case", "NAME", help).action(ArgAction::Append),
            Offer::Placement(help) => option("placement", "NAME", help)
                .action(ArgAction::Append)
                .value_parser(|name: &str| name.parse::<Placement>()),
            Offer::Plot(help) => {
                option("plot", "DIR", help).value_parser(clap::value_parser!(PathBuf))
            }
        });
        command
            .args((!S::Peer::ALL.is_empty()).then_some(peers))
            .arg(file(
                "json",
                "Write the records to this file as a JSON array; `-` writes them to \
                standard output, without a table",
            ))
            .arg(
                option(
                    "record",
                    "DIR",
                    "Put the records into the suite's file in this folder, in place of older ones \
                    of the same measurements; `upcall-bench pages` writes pages from these files",
                )
                .value_parser(clap::value_parser!(PathBuf)),
            )
            .arg(
                Arg::new("quick")
                    .long("quick")
                    .action(ArgAction::SetTrue)
                    .help("Take less time, to try the suite and not for figures"),
            )
            .args(offers)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Suite> FromArgMatches for Told<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Told<S>, clap::Error> {
        // An option that the suite does not offer has no value.
        let path = |id| matches.try_get_one::<PathBuf>(id).ok().flatten().cloned();
        let names = |id| {
            let names = matches.try_get_many::<String>(id).ok().flatten();
            names.into_iter().flatten().cloned().collect()
        };
        let placements = matches.try_get_many::<Placement>("placement").ok().flatten();
        let peers = matches.try_get_one::<Peers<S::Peer>>("peers").ok().flatten();
        let exe = std::env::current_exe()
            .map_err(|error| clap::Error::raw(ErrorKind::Io, format!("{error}\n")))?;
        let options = Options {
            exe,
            peers: peers.cloned().unwrap_or(Peers::None),
            json: path("json"),
            record: path("record"),
            quick: matches.get_flag("quick"),
            only: Only {
                systems: names("system"),
                cases: names("case"),
                placements: placements.into_iter().flatten().copied().collect(),
            },
        };
        Ok(Told { options, plot: path("plot") })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
