//! `upcall host`: two hosts come to trust each other by files.

use crate::scene::Place;
use crate::shell::is_there;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A host: a folder of identities of its own, in a place with another host.
pub struct Host<'a> {
    pub place: &'a Place,
    pub name: &'static str,
}

impl<'a> Host<'a> {
    /// A host with an identity.
    pub fn new(place: &'a Place, name: &'static str) -> Self {
        let host = Self { place, name };
        let (code, out, error) = host.run(&["init", name]);
        assert!(code == 0 && out.starts_with(name) && error.contains("Next:"), "{out}{error}");
        host
    }

    pub fn folder(&self) -> PathBuf {
        self.place.0.path().join(self.name)
    }

    fn file(&self, name: &str) -> String {
        self.place.0.path().join(name).to_str().expect("text").into()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.place.upcall(&[&["host"], arguments].concat());
        command.env("UPCALL_HOSTS", self.folder()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(arguments).output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let Output { status, stdout, stderr } = output;
        (status.code().expect("an exit code"), text(stdout), text(stderr))
    }

    /// Runs a command that succeeds. Returns its output.
    pub fn done(&self, arguments: &[&str]) -> String {
        let (code, out, error) = self.run(arguments);
        assert_eq!((code, error.as_str()), (0, ""), "{arguments:?}: {out}");
        out
    }

    /// Runs a command that fails. Returns its error.
    pub fn fails(&self, arguments: &[&str], code: i32) -> String {
        let (found, out, error) = self.run(arguments);
        println!("    upcall host {}: {}", arguments.join(" "), error.trim());
        assert_eq!((found, out.as_str()), (code, ""), "{arguments:?}: {error}");
        error
    }

    fn fingerprint(&self) -> String {
        let shown = self.done(&["show"]);
        shown.split_whitespace().nth(1).expect("a fingerprint").into()
    }

    /// Writes the certificate of the identity into a file. Returns its path.
    pub fn pem(&self) -> String {
        let file = self.file(&format!("{}.pem", self.name));
        fs::write(&file, self.done(&["show", "--pem"])).expect("a file");
        file
    }

    fn list(&self) -> Value {
        serde_json::from_str(&self.done(&["list", "--json"])).expect("JSON")
    }
}

#[test]
fn two_hosts_trust_each_other_by_files() {
    let place = Place::new();
    let none = Host { place: &place, name: "none" };
    assert!(none.done(&["list"]).contains("`upcall host init`"));
    assert_eq!(none.list(), Value::Array(Vec::new()));
    let (alpha, beta) = (Host::new(&place, "alpha"), Host::new(&place, "beta"));
    let fingerprint = beta.fingerprint();
    // By file with a fingerprint, and by a pipe.
    let out = alpha.done(&["trust", "b", &beta.pem(), "--fingerprint", &fingerprint]);
    assert!(out.contains(&fingerprint) && out.contains("may call, serve"), "{out}");
    let mut trust = beta.command(&["trust", "a", "-", "--yes", "--may", "call"]);
    let pem = fs::File::open(alpha.pem()).expect("a file");
    let trusted = trust.stdin(pem).output().expect("the command starts");
    assert!(trusted.status.success(), "{trusted:?}");

    let list = alpha.done(&["list"]);
    let lines: Vec<_> = list.lines().collect();
    assert!(lines[0].starts_with("NAME   MAY          FINGERPRINT "), "{list}");
    assert!(lines[1].starts_with("alpha  this host    SHA256:"), "{list}");
    assert!(lines[2].starts_with(&format!("b      call, serve  {fingerprint}  20")), "{list}");
    let list = beta.list();
    let (own, other) = (&list[0], &list[1]);
    assert_eq!(
        (&own["name"], &own["own"], &own["may"]),
        (&"beta".into(), &true.into(), &Value::Array(vec![]))
    );
    assert_eq!(own["fingerprint"], fingerprint);
    assert_eq!(
        (&other["name"], &other["own"], &other["may"][0], &other["may"][1], &other["revoked"]),
        (&"a".into(), &false.into(), &"call".into(), &Value::Null, &false.into())
    );
    assert!(own["expires"].as_str() < other["expires"].as_str() && other["expires"].is_string());

    // The host key is replaced, the identity stays.
    let key = || fs::read(beta.folder().join("host.pem")).expect("a file");
    let before = key();
    assert!(beta.done(&["renew"]).contains(&fingerprint));
    assert_ne!(before, key());

    // What a host may do is changed by the same command.
    alpha.done(&["trust", "b", &beta.pem(), "--yes", "--may", "serve"]);
    assert_eq!(alpha.list()[1]["may"], serde_json::json!(["serve"]));
    let out = alpha.done(&["revoke", "b"]);
    assert!(out.contains(&fingerprint) && out.contains("revoked"), "{out}");
    assert_eq!(alpha.list().as_array().map(Vec::len), Some(1));
    let error = alpha.fails(&["trust", "b", &beta.pem(), "--yes"], 4);
    assert!(error.contains("was revoked") && error.contains("--again"), "{error}");
    alpha.done(&["trust", "b", &beta.pem(), "--yes", "--again"]);
    assert_eq!(alpha.list()[1]["fingerprint"], fingerprint);
}

#[test]
fn mistakes_with_identities_are_answered_with_the_way_out() {
    let place = Place::new();
    let none = Host { place: &place, name: "none" };
    for command in ["show", "renew"] {
        assert!(none.fails(&[command], 3).contains("`upcall host init`"));
    }
    let (alpha, beta) = (Host::new(&place, "alpha"), Host::new(&place, "beta"));
    let (other, pem) = (alpha.fingerprint(), beta.pem());
    assert!(alpha.fails(&["init", "alpha"], 2).contains("renew"));
    let error = alpha.fails(&["trust", "beta", &pem, "--fingerprint", &other], 1);
    assert!(error.contains(&format!("not {other}")), "{error}");
    // Without a terminal, the answer is the command to run after the comparison.
    let error = alpha.fails(&["trust", "beta", &pem], 2);
    assert!(error.contains(&format!("--fingerprint {}", beta.fingerprint())), "{error}");
    let secret = beta.folder().join("identity.pem");
    let error = alpha.fails(&["trust", "beta", secret.to_str().expect("text"), "--yes"], 2);
    assert!(error.contains("private key") && error.contains("show --pem"), "{error}");
    assert!(alpha.fails(&["trust", "beta", "/no-such", "--yes"], 2).contains("cannot read"));
    assert!(alpha.fails(&["trust", "../b", &pem, "--yes"], 2).contains("no name of a host"));
    assert!(alpha.fails(&["trust", "b", &pem, "--may", "all"], 2).contains("`both`"));
    assert!(alpha.fails(&["trust", "b", &pem, "--fingerprint", "x"], 2).contains("SHA256:"));
    alpha.done(&["trust", "beta", &pem, "--yes"]);
    assert!(alpha.fails(&["trust", "b2", &pem, "--yes"], 2).contains("trusted as beta"));
    assert!(alpha.fails(&["trust", "beta", &alpha.pem(), "--yes"], 2).contains("another name"));
    assert!(alpha.fails(&["revoke", "bta"], 3).contains("mean \"beta\"?"));
    let mut relative = alpha.command(&["list"]);
    let output = relative.env("UPCALL_HOSTS", "here").output().expect("the command starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("absolute path"), "{error}");
}

#[test]
fn files_that_others_can_use_are_refused() {
    let place = Place::new();
    let (alpha, beta) = (Host::new(&place, "alpha"), Host::new(&place, "beta"));
    alpha.done(&["trust", "beta", &beta.pem(), "--yes"]);
    for (file, bad, command) in [
        ("identity.pem", 0o644, "renew"),
        ("host.pem", 0o640, "list"),
        ("trusted/beta.pem", 0o666, "list"),
        ("trusted", 0o777, "list"),
        ("", 0o770, "list"),
    ] {
        let path = alpha.folder().join(file);
        let mode = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its own file");
        };
        let good = fs::metadata(&path).expect("a file").permissions().mode();
        mode(bad);
        let error = alpha.fails(&[command], 4);
        assert!(error.contains("run `chmod "), "{file}: {error}");
        mode(good);
    }
    alpha.done(&["list"]);
}

/// A command that the kernel ends, or to which it gives no more room, leaves the old key in place.
#[test]
fn a_write_that_fails_loses_nothing() {
    let place = Place::new();
    let alpha = Host::new(&place, "alpha");
    let contents = || {
        let read = |name| fs::read(alpha.folder().join(name)).expect("a file");
        (read("identity.pem"), read("host.pem"))
    };
    let before = contents();
    for (script, what) in [
        ("ulimit -f 0; trap '' XFSZ; exec \"$0\" host renew", "an error"),
        ("ulimit -f 0; exec \"$0\" host renew", "a signal"),
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_upcall")]);
        let output = shell.env("UPCALL_HOSTS", alpha.folder()).output().expect("a shell");
        assert!(!output.status.success(), "{what}: {output:?}");
        assert!(contents() == before, "{what}");
    }
    alpha.done(&["renew"]);
    assert!(contents().1 != before.1);
    let left = fs::read_dir(alpha.folder()).expect("a folder");
    let mut left: Vec<_> = left
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    left.sort();
    assert_eq!(left, ["host.pem", "identity.pem", "lock", "revoked", "trusted"]);
}

/// On a terminal the command shows the fingerprint and asks, also if the certificate comes by a
/// pipe.
#[test]
fn a_person_confirms_the_fingerprint() {
    if !is_there("script") {
        return;
    }
    let place = Place::new();
    let (alpha, beta) = (Host::new(&place, "alpha"), Host::new(&place, "beta"));
    let (pem, upcall) = (beta.pem(), env!("CARGO_BIN_EXE_upcall"));
    let by_file = format!("{upcall} host trust beta {pem}");
    let by_pipe = format!("cat {pem} | {upcall} host trust beta -");
    for (command, answer, hosts) in
        [(&by_file, "\n", 1), (&by_file, "n\n", 1), (&by_file, "yes\n", 2), (&by_pipe, "y\n", 2)]
    {
        let mut script = Command::new("script");
        script.args(["-qec", command, "/dev/null"]).env("UPCALL_HOSTS", alpha.folder());
        let mut script = script
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut input = script.stdin.take().expect("a pipe");
        // The terminal stays open until the command has ended.
        input.write_all(answer.as_bytes()).expect("a reader");
        let output = script.wait_with_output().expect("it ends");
        drop(input);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let asked = format!("Trust beta with the identity {}", beta.fingerprint());
        assert!(shown.contains(&asked) && shown.contains("[y/N]"), "{command}: {shown}");
        assert_eq!(output.status.success(), hosts == 2, "{command}: {shown}");
        assert_eq!(alpha.list().as_array().map(Vec::len), Some(hosts), "{command}: {shown}");
    }
}

/// The folder is found by the variables, in this order.
#[test]
fn the_folder_is_in_the_folder_of_configuration() {
    let place = Place::new();
    let root = place.0.path();
    for (variables, folder) in [
        (&[("HOME", "home")][..], "home/.config/upcall/hosts"),
        (&[("HOME", "home"), ("XDG_CONFIG_HOME", "config")], "config/upcall/hosts"),
        (&[("HOME", "home"), ("XDG_CONFIG_HOME", "c"), ("UPCALL_HOSTS", "h")], "h"),
    ] {
        let mut command = place.upcall(&["host", "init"]);
        for name in ["HOME", "XDG_CONFIG_HOME", "UPCALL_HOSTS"] {
            command.env_remove(name);
        }
        for (name, value) in variables {
            command.env(name, root.join(value));
        }
        let done = command.output().expect("the command starts");
        assert!(done.status.success(), "{done:?}");
        assert!(root.join(folder).join("identity.pem").exists(), "{folder}");
    }
}
