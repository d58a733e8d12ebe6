//! The record file of a suite whose measurement needs no children.

use std::path::PathBuf;
use std::{env, fs, process};

use upcall_bench::case::{Mode, Placement};
use upcall_bench::record::{Label, Record, Turn};
use upcall_bench::recorded::{self, RecordedRun, RunHead};
use upcall_bench::stats::Summary;
use upcall_bench::suite::{self, NoPeer, Offer, Options, Report, Run, RunError, Suite};
use upcall_bench::table::Table;

/// A suite during whose measurement another run writes the record file.
struct Overtaken {
    file: PathBuf,
}

fn record(case: &str) -> Record {
    let (placement, mode) = (Placement::OneCore, Mode::Parked);
    let found = Summary::flat(5.0, 5);
    Label { suite: "overtaken", case, system: "upcall", placement, mode }
        .latency(&[Turn { found, lines: (5.0, 5.0) }])
}

fn report(case: &str) -> Report {
    Report { records: vec![record(case)], ..Report::default() }
}

impl Suite for Overtaken {
    const NAME: &'static str = "overtaken";
    const OFFERS: &'static [Offer] = &[];
    const TABLES: &'static [&'static str] = &[];
    const SAYS_BUSY: bool = false;
    type Peer = NoPeer;

    fn cases(&self) -> Vec<String> {
        ["former", "other", "own"].map(str::to_owned).into()
    }

    fn measure(&self, _: Vec<NoPeer>, run: &mut Run<'_>) -> Result<(), RunError> {
        let former = recorded::read(&self.file).unwrap();
        let other = RecordedRun::of(&report("other"), RunHead::now());
        recorded::write(&recorded::merge(former, other), &self.file).unwrap();
        run.report.records.push(record("own"));
        Ok(())
    }

    fn tables(_: &Report) -> Vec<Table> {
        Vec::new()
    }
}

#[test]
fn what_another_run_records_meanwhile_stays() {
    let place = env::temp_dir().join(format!("upcall-overtaken-{}", process::id()));
    let file = recorded::path(&place, Overtaken::NAME);
    let former = RecordedRun::of(&report("former"), RunHead::now());
    recorded::write(&[former], &file).unwrap();
    let options = Options { record: Some(place.clone()), ..Options::of(PathBuf::from("/nowhere")) };
    suite::run(&Overtaken { file: file.clone() }, &options).unwrap();
    let runs = recorded::read(&file).unwrap();
    let cases: Vec<_> =
        runs.iter().flat_map(|run| &run.records).map(|record| record.case.as_str()).collect();
    assert_eq!(cases, ["former", "other", "own"]);
    fs::remove_dir_all(place).unwrap();
}
