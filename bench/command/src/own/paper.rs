//! The experiments of UDM's section 5, by the example programs: synth-N (Figure 7), and Tpuz beside
//! other jobs (Table 6).

use super::common::joining;
use super::paper_programs::{synth, workload};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use upcall_bench::child::Outcome;
use upcall_bench::lab::Lab;
use upcall_bench::messages::own::child::{Finding, Task};
use upcall_bench::messages::own::paper::{
    AWAY_NS, CYCLE_NS, GROUPS, HANDLER, INTERVALS, OTHERS, REQUEST, SCHEDULES, SLICE_NS,
    TIMEOUT_NS, figure_7, table_6, table_6_alone, table_6_other,
};
use upcall_os::process::{Bounds, bind};
use upcall_simulator::synth::{SLICE, Synth};
use upcall_simulator::tpuz::{Other, PATIENCE, Sent as Simulated, Workload};
use upcall_simulator::turns::Schedule;

/// Runs synth-N with a producer and a consumer, for each interval.
pub fn figure(lab: &mut Lab<Task>, group: u64) -> Outcome<Vec<Finding>> {
    let (task, mut found) = (lab.task, Vec::new());
    for interval in INTERVALS {
        let plan = plan(group, interval, task.time);
        let name = figure_7(true, group, interval);
        let side = |rank| synth::run(joining(&task, &name, 2, rank), &plan);
        let ran = lab.both(|_| side(0), |_| side(1).map(drop))?;
        found.extend(
            ran.map(|(ran, ())| Finding::buffered(&name, ran.requests, ran.buffered, ran.time)),
        );
    }
    Ok(found)
}

/// Returns the plan of a run of about `time`.
fn plan(group: u64, interval: u64, time: Duration) -> synth::Plan {
    let ns = |cycles: u64| (cycles as f64 * CYCLE_NS) as u64;
    synth::Plan {
        n: group,
        groups: (time.as_nanos() as u64 / ns(group * interval.max(HANDLER))).max(1),
        interval: ns(interval),
        handler: ns(HANDLER),
        bytes: REQUEST,
        producers: 1,
        away: AWAY_NS,
        slice: SLICE_NS,
        timeout: TIMEOUT_NS,
    }
}

/// Runs the same on virtual clocks, with the paper's times.
pub fn simulated(lab: &Lab<Task>) -> Outcome<Vec<Finding>> {
    if !lab.tells() {
        return Ok(Vec::new());
    }
    let points = GROUPS.into_iter().flat_map(|group| INTERVALS.map(|interval| (group, interval)));
    let one = |(group, interval)| {
        let synth = Synth::new(group, interval);
        let row = upcall_simulator::synth::run(synth)?;
        let time = Duration::from_nanos(2 * synth.slices * SLICE);
        Ok(Finding::buffered(&figure_7(false, group, interval), row.sent, row.buffered, time))
    };
    points.map(one).collect()
}

/// Runs Tpuz on virtual clocks, with the paper's times: on a board of 6 holes a side, or of 5 in a
/// quick run.
pub fn simulated_table(lab: &Lab<Task>) -> Outcome<Vec<Finding>> {
    if !lab.tells() {
        return Ok(Vec::new());
    }
    let side = if lab.task.count == 0 { 5 } else { 6 };
    let run = |other, schedule| {
        let ran = upcall_simulator::tpuz::run(Workload::new(side, other, schedule))?;
        let time = Duration::from_nanos(ran.time);
        let found = move |case: &str, sent: Simulated| {
            Finding::buffered(case, sent.messages, sent.buffered, time)
        };
        Outcome::Ok((ran.sent, found))
    };
    let ([alone, _], finding) = run(Other::Nobody, Schedule::Batch)?;
    let mut found = vec![finding(&table_6_alone(false), alone)];
    let others = [Other::Null, Other::Tpuz, Other::Synth(100), Other::Synth(10)];
    let schedules = [Schedule::Batch, Schedule::Gang, Schedule::Co { patience: PATIENCE }];
    for (name, other) in OTHERS.into_iter().zip(others) {
        for (way, schedule) in SCHEDULES.into_iter().zip(schedules) {
            let ([tpuz, beside], finding) = run(other, schedule)?;
            found.push(finding(&table_6(false, name, way), tpuz));
            found.extend(table_6_other(false, name, way).map(|case| finding(&case, beside)));
        }
    }
    Ok(found)
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures Tpuz alone and beside other jobs.
pub fn table(lab: &Lab<Task>) -> Outcome<Vec<Finding>> {
    if !lab.tells() {
        return Ok(Vec::new());
    }
    // The jobs run on these processors, and take turns with no other jobs.
    lab.confine()?;
    let folder = Folder(std::env::temp_dir().join(format!("tpuz-{}", std::process::id())));
    std::fs::create_dir(&folder.0)?;
    let (names, task) = (folder.0.join("n"), lab.task);
    let mut found = Vec::new();
    let (time, [all, _]) = run(&names, "batch", &["tpuz"], &task)?;
    found.push(Finding::buffered(&table_6_alone(true), all.messages, all.buffered, time));
    for other in OTHERS {
        for schedule in SCHEDULES {
            let (time, [tpuz, beside]) = run(&names, schedule, &["tpuz", other], &task)?;
            found.push(Finding::buffered(
                &table_6(true, other, schedule),
                tpuz.messages,
                tpuz.buffered,
                time,
            ));
            if let Some(case) = table_6_other(true, other, schedule) {
                found.push(Finding::buffered(&case, beside.messages, beside.buffered, time));
            }
        }
    }
    Ok(found)
}

/// The messages that the members of a job have sent.
#[derive(Clone, Copy, Default)]
struct Sent {
    messages: u64,
    buffered: u64,
}

/// Runs these programs as jobs of two members. The time is from the start of the first job to the
/// end of both.
fn run(
    names: &Path,
    schedule: &str,
    programs: &[&str],
    task: &Task,
) -> Outcome<(Duration, [Sent; 2])> {
    let begun = Instant::now();
    let jobs: Vec<Child> = programs
        .iter()
        .map(|program| {
            let mut command = Command::new(std::env::current_exe()?);
            command
                .args(["bench-job", schedule, program, &task.count.to_string()])
                .env("UPCALL_DIR", names);
            bind(&mut command, Bounds::default());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
        })
        .collect::<Result<_, _>>()?;
    let mut sent = [Sent::default(); 2];
    let mut ended = Vec::new();
    for (mut job, (sent, program)) in jobs.into_iter().zip(sent.iter_mut().zip(programs)) {
        let mut said = String::new();
        let read = job.stdout.take().map(|mut out| out.read_to_string(&mut said));
        ended.push((job.wait()?, *program));
        read.transpose()?;
        let mut numbers = said.split_whitespace().map_while(|word| word.parse().ok());
        (sent.messages, sent.buffered) = numbers.next().zip(numbers.next()).unwrap_or_default();
    }
    let time = begun.elapsed();
    match ended.into_iter().find(|(status, _)| !status.success()) {
        Some((status, program)) => {
            Err(format!("the job {program}, {schedule}, ended with {status}").into())
        }
        None if sent[0].messages == 0 => {
            Err(format!("the job {}, {schedule}, did not report its messages", programs[0]).into())
        }
        None => Ok((time, sent)),
    }
}

/// Runs a job of [`run`], in a process of its own: `SCHEDULE PROGRAM COUNT`.
pub fn job(args: &[String]) -> Outcome<u8> {
    use upcall_job::{Job, JobSchedule};
    let [schedule, program, count] = args else {
        return Err("usage: bench-job SCHEDULE PROGRAM COUNT".into());
    };
    let kind = match schedule.as_str() {
        "gang" => JobSchedule::Gang,
        "co" => JobSchedule::Co,
        _ => JobSchedule::Batch,
    };
    let job = Job::new(2, std::env::current_exe()?)
        .named(&format!("{program}-{}", std::process::id()))
        .schedule(kind);
    Ok(job.arguments(["bench-member", program, count]).run(|what| {
        if let upcall_job::Happening::Died { .. } = what {
            eprintln!("{what}");
        }
    })?)
}

/// Runs a member of such a job: `PROGRAM COUNT`.
pub fn member(args: &[String]) -> Outcome<()> {
    let [program, count] = args else { return Err("usage: bench-member PROGRAM COUNT".into()) };
    workload(program, count.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_last_about_as_long_as_they_are_to() {
        let plan = plan(100, 1500, Duration::from_millis(250));
        assert_eq!((plan.interval, plan.handler, plan.groups), (20_000, 10_000, 125));
        assert_eq!(super::plan(1000, 3000, Duration::ZERO).groups, 1);
    }
}
