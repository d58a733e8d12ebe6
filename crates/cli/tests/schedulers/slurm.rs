//! Members that Slurm starts. A test has a controller and the daemons of its nodes for itself.

use crate::hosts::{ApartHosts, address};
use crate::{Place, example, expected, free_port, is_installed, members, program, skip, upcall};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time until the daemons are ready, and for a job.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of Slurm, which ends when this is dropped.
struct Cluster {
    place: Place,
    hosts: Option<ApartHosts>,
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts it with these nodes: `localhost`, or hosts that are apart. Returns `None`, and says
    /// so, if Slurm does not run here.
    fn new(nodes: &[&str]) -> Option<Self> {
        let all = ["slurmctld", "slurmd", "srun"];
        if !all.iter().all(|name| is_installed(name, "slurmctld slurmd slurm-client")) {
            return None;
        }
        let place = Place::new();
        let hosts = match nodes {
            ["localhost"] => None,
            _ => Some(ApartHosts::new(place.0.path())?),
        };
        fs::create_dir(place.path("names")).expect("a folder");
        let mut cluster = Self { place, hosts, daemons: Vec::new() };
        fs::write(cluster.place.path("slurm.conf"), cluster.configuration(nodes)).expect("a file");
        cluster.start("ctl", &["slurmctld", "-D"]);
        for node in nodes {
            cluster.start(node, &["slurmd", "-D", "-N", node]);
        }
        cluster.is_ready(nodes.len()).then_some(cluster)
    }

    fn configuration(&self, nodes: &[&str]) -> String {
        let own = self.place.0.path().display();
        let words = |program: &str, option: &str| {
            let output = Command::new(program).arg(option).output().expect("it starts");
            String::from_utf8(output.stdout).expect("text").trim().to_owned()
        };
        let (user, machine) = (words("id", "-un"), words("hostname", "-s"));
        let (controller, ports) = match &self.hosts {
            None => ("127.0.0.1", (free_port(), free_port())),
            Some(_) => (address("ctl"), (6817, 6818)),
        };
        let number = 1 + std::process::id() % 9000;
        let mut text = format!(
            "ClusterName=upcall\nSlurmctldHost={machine}({controller})\nSlurmctldPort={}\n\
             SlurmdPort={}\nSlurmUser={user}\nSlurmdUser={user}\nAuthType=auth/none\n\
             CredType=cred/none\nStateSaveLocation={own}/state\nSlurmdSpoolDir={own}/spool-%n\n\
             SlurmctldPidFile={own}/ctl.pid\nSlurmdPidFile={own}/%n.pid\nMailProg=/bin/true\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/linear\n\
             SlurmdParameters=config_overrides\nReturnToService=2\nFirstJobId={number}\n\
             PartitionName=all Nodes=ALL Default=YES State=UP\n",
            ports.0, ports.1
        );
        for node in nodes {
            let at = self.hosts.as_ref().map_or("127.0.0.1", |_| address(node));
            text += &format!("NodeName={node} NodeAddr={at} CPUs=4 State=UNKNOWN\n");
        }
        text
    }

    /// A command on a host of the cluster.
    fn on(&self, host: &str, words: &[&str]) -> Command {
        let names = self.place.path("names");
        let wrapper = self.hosts.as_ref().map(|hosts| hosts.wrapper(host, &names));
        let own: Vec<String> = wrapper.into_iter().flatten().collect();
        let mut all = own.iter().map(String::as_str).chain(words.iter().copied());
        let mut command = self.place.command(all.next().expect("a command"));
        command.args(all).env("SLURM_CONF", self.place.path("slurm.conf"));
        command.current_dir(self.place.0.path()).stdin(Stdio::null());
        command
    }

    fn start(&mut self, host: &str, words: &[&str]) {
        let log = fs::File::create(self.place.path(&format!("{host}.log"))).expect("a file");
        let mut command = self.on(host, words);
        command.stdout(Stdio::null()).stderr(log);
        self.daemons.push(command.spawn().expect("a daemon"));
    }

    /// The last lines of what the daemons of a host have reported.
    fn log(&self, host: &str) -> String {
        let text = fs::read_to_string(self.place.path(&format!("{host}.log"))).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("; ")
    }

    /// Waits until all nodes wait for jobs. Returns `false`, and says so, if a daemon ends before.
    ///
    /// # Panics
    /// If that takes too long.
    fn is_ready(&mut self, nodes: usize) -> bool {
        let start = Instant::now();
        loop {
            let mut sinfo = self.on("ctl", &["timeout", "10", "sinfo", "-h", "-N", "-o", "%t"]);
            let states = sinfo.output().expect("sinfo starts").stdout;
            if String::from_utf8_lossy(&states).lines().filter(|state| *state == "idle").count()
                == nodes
            {
                return true;
            }
            let mut ended = self.daemons.iter_mut().map(Child::try_wait);
            if ended.any(|ended| !matches!(ended, Ok(None))) {
                let logs = ["ctl", "localhost", "n1", "n2"].map(|host| self.log(host)).join("; ");
                skip(format_args!("Slurm's daemons do not run here: {logs}"));
                return false;
            }
            assert!(start.elapsed() < PATIENCE, "{} {}", self.log("ctl"), self.log(HOST));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

const HOST: &str = "localhost";

impl Drop for Cluster {
    fn drop(&mut self) {
        // Jobs that are left have processes that no daemon would end.
        let words = [
            "timeout",
            "30",
            "sh",
            "-c",
            "scancel -s KILL -f --state=RUNNING --me 2>&1
            while squeue -h --me | grep -q .; do sleep 0.1; done",
        ];
        let _ = self.on("ctl", &words).stderr(Stdio::null()).status();
        for daemon in self.daemons.iter_mut().rev() {
            let pid = daemon.id().to_string();
            let _ = Command::new("kill").arg(&pid).status();
            let _ = daemon.wait();
        }
    }
}

#[test]
#[ignore = "starts the daemons of Slurm: make test-long"]
fn slurm_starts_members_on_one_host() {
    let Some(cluster) = Cluster::new(&[HOST]) else { return };
    let mut words = vec!["timeout", "120", "srun", "-n", "3", upcall(), "job", "member", "--"];
    let program = program();
    words.extend(program.iter().map(String::as_str));
    // The steps of a job follow each other, and have groups of their own.
    for _ in 0..2 {
        let output = cluster.on("ctl", &words).output().expect("srun starts");
        assert_eq!(members(&output), expected(&[&[0, 1, 2]]));
    }
    // A script without `srun` ends with the advice to use it.
    let script = format!("--wrap={} job member -- true", upcall());
    let words = ["timeout", "120", "sbatch", "--wait", "-n", "2", "-o", "alone", &script];
    let output = cluster.on("ctl", &words).output().expect("sbatch starts");
    let said = fs::read_to_string(cluster.place.path("alone")).unwrap_or_default();
    assert!(!output.status.success() && said.contains("put `srun` before"), "{said} {output:?}");
}

/// The batch script of the examples, on hosts with identities that the examples' script has made.
#[test]
#[ignore = "starts the daemons of Slurm: make test-long"]
fn slurm_starts_members_on_two_hosts() {
    let Some(cluster) = Cluster::new(&["n1", "n2"]) else { return };
    let identities = cluster.place.path("identities");
    let folder = Path::new(upcall()).parent().expect("a folder").display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut make = cluster.place.command(example("identities.sh"));
    let made = make.arg(&identities).args(["n1", "n2"]).env("PATH", &path).status();
    assert!(made.expect("the script starts").success());
    // The hosts have their keys only, as the pods of kubernetes.yaml do.
    for node in ["n1", "n2"] {
        fs::remove_file(identities.join(node).join("identity.pem")).expect("an identity");
    }
    let script = example("slurm.sbatch");
    let options = ["-n", "3", "-m", "block", "-o", "out", script.to_str().expect("text")];
    let program = program();
    let words = ["timeout", "120", "sbatch", "--wait"].into_iter().chain(options);
    let words: Vec<_> = words.chain(program.iter().map(String::as_str)).collect();
    let mut sbatch = cluster.on("ctl", &words);
    let mut output =
        sbatch.env("IDENTITIES", &identities).env("PATH", &path).output().expect("sbatch starts");
    output.stdout = fs::read(cluster.place.path("out")).unwrap_or_default();
    assert_eq!(members(&output), expected(&[&[0, 1], &[2]]));
}
