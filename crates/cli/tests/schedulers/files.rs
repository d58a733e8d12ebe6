//! The files of examples/schedulers, as far as they can be tried without their schedulers.

use crate::{Place, example, is_installed, skip, upcall};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use upcall_net::identity::HostStore;

impl Place {
    /// A command that finds `upcall`.
    fn script(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let folder = Path::new(upcall()).parent().expect("a folder").display();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = self.command(program);
        command.env("PATH", path).current_dir(self.0.path());
        command
    }

    /// Makes the identities of hosts.
    fn identities(&self, hosts: &[&str]) {
        let made = self.script(example("identities.sh")).arg("identities").args(hosts).output();
        success(made.expect("the script starts"));
    }

    /// Names and rights of the hosts that a folder of identities has.
    fn trusted(&self, folder: &str) -> Vec<String> {
        let list = self
            .script(upcall())
            .env("UPCALL_HOSTS", self.path(folder))
            .args(["host", "list"])
            .output();
        let list = success(list.expect("the command starts"));
        let words = list.lines().skip(1).map(|line| {
            let mut words = line.split_whitespace();
            format!("{} {}", words.next().unwrap_or(""), words.next().unwrap_or(""))
        });
        words.collect()
    }
}

fn success(output: Output) -> String {
    let [said, error] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{said}{error}");
    said
}

#[test]
fn the_script_makes_hosts_that_trust_each_other() {
    let place = Place::new();
    place.identities(&["n1", "n2"]);
    assert_eq!(place.trusted("identities/n1"), ["n1 this", "n2 call,"]);
    // Hosts are added, and those that are there stay as they are.
    let before = fs::read(place.path("identities/n1/host.pem")).expect("a file");
    place.identities(&["n1", "n2", "n3"]);
    assert_eq!(place.trusted("identities/n3"), ["n3 this", "n1 call,", "n2 call,"]);
    assert_eq!(place.trusted("identities/n1"), ["n1 this", "n2 call,", "n3 call,"]);
    assert_eq!(fs::read(place.path("identities/n1/host.pem")).expect("a file"), before);
    let wrong = place.script(example("identities.sh")).arg("folder").output().expect("it starts");
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn the_unit_is_valid() {
    if !is_installed("systemd-analyze", "systemd") {
        return;
    }
    let place = Place::new();
    let text = fs::read_to_string(example("upcall-member@.service")).expect("the unit");
    // The programs are where these tests have them, and the user is there.
    let text = text.replace("/usr/local/bin/upcall", upcall());
    let text = text.replace("/usr/local/bin/ring", "/bin/true").replace("=ring\n", "=root\n");
    fs::write(place.path("upcall-member@.service"), text).expect("a file");
    let unit = place.path("upcall-member@3.service");
    let verify = Command::new("systemd-analyze").arg("verify").arg(unit).output();
    let output = verify.expect("systemd-analyze starts");
    // It also complains about units of this machine.
    let errors = String::from_utf8_lossy(&output.stderr);
    let own: Vec<_> = errors.lines().filter(|line| line.contains("upcall-member")).collect();
    assert!(own.is_empty(), "{own:?}");
}

/// The documents of a YAML file, as Python reads them. `None`, said loudly, if it cannot.
fn yaml(path: &Path) -> Option<Vec<Value>> {
    const SCRIPT: &str = "import json, sys, yaml
print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let known = Command::new("python3").args(["-c", "import yaml"]).output();
    if !known.is_ok_and(|known| known.status.success()) {
        skip(format_args!("no Python with a reader of YAML here (apt-get install python3-yaml)"));
        return None;
    }
    let read = Command::new("python3").args(["-c", SCRIPT]).arg(path).output();
    let json = success(read.expect("python3 starts"));
    Some(serde_json::from_str(&json).expect("JSON"))
}

/// The numbers and names of the Service and the Job fit, and the pod's script makes an identity.
#[test]
fn the_job_of_kubernetes_is_consistent() {
    let Some(documents) = yaml(&example("kubernetes.yaml")) else { return };
    let [service, job] = &documents[..] else { panic!("{documents:?}") };
    let (spec, pod) = (&job["spec"], &job["spec"]["template"]["spec"]);
    let name = job["metadata"]["name"].as_str().expect("a name");
    assert_eq!((&service["spec"]["clusterIP"], &pod["subdomain"]), (&"None".into(), &name.into()));
    assert_eq!(service["metadata"]["name"], name);
    assert_eq!(service["spec"]["selector"]["job-name"], name);
    assert_eq!(
        (&spec["completionMode"], &spec["parallelism"]),
        (&"Indexed".into(), &spec["completions"])
    );
    let command = pod["containers"][0]["command"].as_array().expect("words");
    let words: Vec<_> = command.iter().map(|word| word.as_str().expect("a word")).collect();
    assert!(words.contains(&&*format!("--size={}", spec["completions"])), "{words:?}");
    assert!(words.contains(&&*format!("--at={name}-0.{name}:7411")), "{words:?}");

    let place = Place::new();
    place.identities(&["ring-0.ring", "ring-1.ring"]);
    // As the commands of the README collect them.
    for folder in ["ring-keys", "ring-trusted"] {
        fs::create_dir(place.path(folder)).expect("a folder");
    }
    for (own, other) in [(0, 1), (1, 0)] {
        let from = place.path(&format!("identities/ring-{own}.ring"));
        let other = format!("ring-{other}.ring.pem");
        let copy = |from, to: String| fs::copy(from, place.path(&to)).expect("a copy");
        copy(from.join("host.pem"), format!("ring-keys/ring-{own}.pem"));
        copy(from.join("trusted").join(&other), format!("ring-trusted/{other}"));
    }
    let words = pod["initContainers"][0]["command"].as_array().expect("words");
    let script = words.last().and_then(Value::as_str).expect("a script");
    let own = place.0.path().to_str().expect("text");
    let script = script.replace("/etc/", &format!("{own}/")).replace("ring-0.ring;", "localhost;");
    let mut init = place.script("sh");
    init.args(["-euc", &script]).env("JOB_COMPLETION_INDEX", "1");
    success(init.env("UPCALL_HOSTS", place.path("hosts")).output().expect("sh starts"));
    // The identity itself is with its user, and what is there is enough.
    assert_eq!(place.trusted("hosts"), ["ring-0.ring call,"]);
    let credentials = HostStore::at(place.path("hosts")).credentials().expect("a host key");
    let other = "ring-0.ring".parse().expect("a name");
    assert!(credentials.trust().host(&other).is_some());
}
