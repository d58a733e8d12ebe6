use super::*;

/// What the variables `NAME=VALUE` with spaces between them mean.
fn of(variables: &str) -> Result<SchedulerTerms, SchedulerError> {
    let find = |name: &str| {
        let mut pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
    };
    terms(&find)
}

/// As `srun -N 2 -n 3` of Slurm 22.05 sets them in an allocation of three hosts.
const SRUN: &str = "SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 SLURM_JOB_ID=123456 \
                    SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[2-3] SLURM_JOB_NODELIST=n[1-3] \
                    SLURM_STEP_NUM_NODES=2";

#[test]
fn slurm_says_everything() {
    let expected = SchedulerTerms {
        scheduler: Some(Scheduler::Slurm),
        rank: Some(2),
        size: Some(3),
        group: Some("slurm-123456.0".into()),
        host: Some("n2".into()),
        port: Some(23_456),
        hosts: Some(2),
    };
    assert_eq!(of(SRUN), Ok(expected.clone()));
    // With PMI, which has the same numbers.
    assert_eq!(of(&format!("{SRUN} PMI_RANK=2 PMI_SIZE=3")), Ok(expected.clone()));
    // Older versions, and hosts of the whole job.
    let older = SRUN.replace("SLURM_STEP_NUM", "NO").replace("SLURM_STEP_NODELIST", "NO");
    let whole = SchedulerTerms { host: Some("n1".into()), hosts: None, ..expected };
    assert_eq!(of(&older), Ok(whole));
}

#[test]
fn a_script_of_a_batch_job_is_no_member() {
    let script = "SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[1-3]";
    let shell = format!("{script} SLURM_STEP_ID=4294967290");
    assert_eq!(of(&shell), Err(SchedulerError::Alone));
    let error = of(script).unwrap_err();
    assert_eq!(error, SchedulerError::Alone);
    assert!(error.to_string().contains("put `srun` before `upcall job member`"), "{error}");
}

#[test]
fn open_mpi_says_rank_size_and_name() {
    let mpirun = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=prterun-a-77@1";
    let expected = SchedulerTerms {
        scheduler: Some(Scheduler::OpenMpi),
        rank: Some(1),
        size: Some(4),
        group: Some("pmix-prterun-a-77-1".into()),
        ..SchedulerTerms::default()
    };
    assert_eq!(of(mpirun), Ok(expected.clone()));
    // Within an allocation of Slurm, whose step is the daemons of `mpirun`.
    assert_eq!(of(&format!("{mpirun} {SRUN}")), Ok(expected));
}

#[test]
fn an_mpiexec_says_rank_and_size() {
    let expected = SchedulerTerms {
        scheduler: Some(Scheduler::Pmi),
        rank: Some(2),
        size: Some(8),
        ..SchedulerTerms::default()
    };
    assert_eq!(of("PMI_RANK=2 PMI_SIZE=8"), Ok(expected.clone()));
    // Within an allocation of Slurm that has started one proxy on each host.
    assert_eq!(of(&format!("PMI_RANK=2 PMI_SIZE=8 {SRUN}")), Ok(expected));
}

#[test]
fn kubernetes_says_the_rank_and_the_name() {
    let expected = SchedulerTerms {
        scheduler: Some(Scheduler::Kubernetes),
        rank: Some(12),
        group: Some("kubernetes-sieve-2".into()),
        ..SchedulerTerms::default()
    };
    assert_eq!(of("JOB_COMPLETION_INDEX=12 HOSTNAME=sieve-2-12"), Ok(expected.clone()));
    let unnamed = SchedulerTerms { group: None, ..expected };
    assert_eq!(of("JOB_COMPLETION_INDEX=12 HOSTNAME=node"), Ok(unnamed));
}

#[test]
fn without_a_scheduler_nothing_is_known() {
    assert_eq!(of("HOSTNAME=sieve-0 SLURM_CONF=/etc/slurm.conf"), Ok(SchedulerTerms::default()));
    assert_eq!(of("SLURM_PROCID= OMPI_COMM_WORLD_RANK="), Ok(SchedulerTerms::default()));
}

#[test]
fn variables_that_make_no_sense_are_named() {
    for (variables, named) in [
        (SRUN.replace("PROCID=2", "PROCID=two"), "SLURM_PROCID=two"),
        (SRUN.replace("n[2-3]", "n[2-3"), "SLURM_STEP_NODELIST=n[2-3"),
        (SRUN.replace("123456", "-1"), "SLURM_JOB_ID=-1"),
        ("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=x".into(), "OMPI_COMM_WORLD_SIZE=x"),
        ("PMI_RANK=-1 PMI_SIZE=2".into(), "PMI_RANK=-1"),
        ("JOB_COMPLETION_INDEX=a".into(), "JOB_COMPLETION_INDEX=a"),
    ] {
        let error = of(&variables).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains("--rank"), "{error}");
    }
}

#[test]
fn ports_are_in_their_range_and_differ() {
    let ports: Vec<u16> = [(1, 0), (1, 1), (2, 0), (9_999, 0), (10_000, 0), (u64::MAX, u64::MAX)]
        .map(|(job, step)| port(job, step))
        .into();
    assert_eq!(ports[..5], [20_001, 20_062, 20_002, 29_999, 20_000]);
    assert!((20_000..30_000).contains(&ports[5]));
}

#[test]
fn names_of_groups_are_valid() {
    for name in ["1.0", "a b/c@é", &"x".repeat(200), ""] {
        let group = group_name("kubernetes", name);
        assert!(upcall_directory::names::check(&group).is_ok(), "{group}");
    }
}
