//! The files of identities, without TLS.

use super::files::kill_at;
use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(86_400);

fn name(text: &str) -> HostName {
    text.parse().unwrap()
}

/// A host with an identity in a folder of its own.
struct Host(HostStore, #[expect(dead_code, reason = "keeps the folder")] TempDir);

impl Host {
    fn new(label: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let store = HostStore::at(folder.path().join("hosts"));
        store.init(&name(label)).unwrap();
        Self(store, folder)
    }

    fn identity(&self) -> IdentityCertificate {
        self.0.own().unwrap().identity
    }

    fn trust(&self, label: &str, other: &Self) {
        let trusted =
            self.0.trust(&name(label), &other.identity(), HostPermission::Both, IfRevoked::Refuse);
        trusted.unwrap();
    }

    fn file(&self, path: &str) -> std::path::PathBuf {
        self.0.folder().join(path)
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn an_identity_lasts_ten_years_and_a_host_key_ninety_days() {
    let host = Host::new("alpha");
    let own = host.0.own().unwrap();
    let now = SystemTime::now();
    let days = |time: SystemTime| time.duration_since(now).unwrap().as_secs().div_ceil(86_400);
    assert_eq!((days(own.identity.expires()), days(own.expires.unwrap())), (3_652, 90));
    assert_eq!(own.name, name("alpha"));
    // Clocks differ.
    assert_eq!(own.identity.valid().check(now - DAY), Ok(()));
    assert!(matches!(own.identity.valid().check(now - 3 * DAY), Err(OutOfTime::Early(_))));
    assert!(matches!(own.identity.valid().check(now + 3_653 * DAY), Err(OutOfTime::Late(_))));
    let modes = ["", "identity.pem", "host.pem", "trusted", "revoked"].map(|p| mode(&host.file(p)));
    assert_eq!(modes, [0o700, 0o600, 0o600, 0o700, 0o700]);
    let again = host.0.init(&name("alpha")).unwrap_err();
    assert!(matches!(again, IdentityError::Exists { .. }), "{again}");
}

#[test]
fn addresses_of_a_host_stay_until_others_are_given() {
    let (alpha, beta) = (Host::new("alpha"), Host::new("beta"));
    let addresses = || {
        let list = alpha.0.list().unwrap();
        let all = &list.host(&name("beta")).unwrap().addresses;
        all.iter().map(HostAddress::to_string).collect::<Vec<_>>()
    };
    let trust = |may, all: Option<&[&str]>| {
        let all = all.map(|all| all.iter().map(|one| one.parse().unwrap()).collect());
        let identity = beta.identity();
        alpha.0.trust_at(&name("beta"), &identity, may, IfRevoked::Refuse, all).unwrap();
    };
    alpha.trust("beta", &beta);
    assert!(addresses().is_empty());
    trust(HostPermission::Both, Some(&["10.0.0.2:7000", "[::1]:7001"]));
    assert_eq!(addresses(), ["10.0.0.2:7000", "[::1]:7001"]);
    trust(HostPermission::Serve, None);
    let list = alpha.0.list().unwrap();
    let host = list.host(&name("beta")).unwrap();
    let known = [7000, 7001, 7002].map(|port| host.address(port).map(HostAddress::to_string));
    assert_eq!(known, [Some("10.0.0.2:7000".into()), Some("[::1]:7001".into()), None]);
    assert_eq!(host.may, HostPermission::Serve);
    trust(HostPermission::Serve, Some(&[]));
    assert!(addresses().is_empty());
    // A person has written something else.
    let file = alpha.file("trusted/beta.pem");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("address: beta\n{text}")).unwrap();
    let error = alpha.0.list().unwrap_err();
    assert!(matches!(error, IdentityError::Malformed { .. }), "{error}");
}

#[test]
fn the_fingerprint_is_that_of_openssl() {
    let host = Host::new("alpha");
    let pem = host.file("public.pem");
    fs::write(&pem, host.identity().pem()).unwrap();
    let script = "openssl x509 -in \"$0\" -noout -pubkey | openssl pkey -pubin -outform der \
                  | openssl dgst -sha256 -binary | base64";
    let out = std::process::Command::new("sh").args(["-c", script]).arg(&pem).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    if text.len() < 40 {
        return eprintln!("skipped: there is no openssl here");
    }
    let expected = format!("SHA256:{}", text.trim().trim_end_matches('='));
    assert_eq!(host.identity().fingerprint().to_string(), expected);
}

#[test]
fn a_renewed_host_keeps_its_identity() {
    let host = Host::new("alpha");
    let before = fs::read_to_string(host.file("host.pem")).unwrap();
    let fingerprint = host.identity().fingerprint();
    let old = host.0.credentials().unwrap();
    host.0.renew().unwrap();
    assert_ne!(fs::read_to_string(host.file("host.pem")).unwrap(), before);
    assert_eq!(host.identity().fingerprint(), fingerprint);
    assert!(!Arc::ptr_eq(&old, &host.0.credentials().unwrap()));
}

#[test]
fn a_host_key_does_not_outlive_its_identity() {
    let folder = TempDir::new().unwrap();
    let at = |time: SystemTime| {
        HostStore::at(folder.path().join("hosts")).with_clock(HostClock::new(move || time))
    };
    let begin = SystemTime::now();
    at(begin).init(&name("alpha")).unwrap();
    let own = at(begin + 3_600 * DAY).renew().unwrap();
    assert_eq!(own.expires, Some(own.identity.expires()));
    let error = at(begin + 3_700 * DAY).renew().unwrap_err();
    assert!(matches!(error, IdentityError::Expired { .. }), "{error}");
}

#[test]
fn credentials_are_read_again_when_a_file_has_changed() {
    let (alpha, beta, gamma) = (Host::new("alpha"), Host::new("beta"), Host::new("gamma"));
    let first = alpha.0.credentials().unwrap();
    assert!(Arc::ptr_eq(&first, &alpha.0.credentials().unwrap()));
    // Changes that follow each other within one tick of the file system's clock.
    for round in 0..20 {
        let label = format!("b{round}");
        alpha.trust(&label, &beta);
        assert!(alpha.0.credentials().unwrap().trust().host(&name(&label)).is_some());
        fs::remove_file(alpha.file(&format!("trusted/{label}.pem"))).unwrap();
        assert!(alpha.0.credentials().unwrap().trust().host(&name(&label)).is_none());
    }
    // A file that an editor changes in its place.
    alpha.trust("gamma", &gamma);
    let may = || alpha.0.credentials().unwrap().trust().host(&name("gamma")).unwrap().may;
    assert_eq!(may(), HostPermission::Both);
    let path = alpha.file("trusted/gamma.pem");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("may: call, serve", "may: call")).unwrap();
    assert_eq!(may(), HostPermission::Call);
    fs::write(&path, text.replace("may: call, serve", "may: all")).unwrap();
    let error = alpha.0.credentials().unwrap_err().to_string();
    assert!(error.contains("`may: all`"), "{error}");
}

#[test]
fn what_others_can_change_or_read_is_refused() {
    let (alpha, beta) = (Host::new("alpha"), Host::new("beta"));
    alpha.trust("beta", &beta);
    for (path, bad, part) in [
        ("", 0o770, "chmod 700"),
        ("trusted", 0o702, "chmod 700"),
        ("revoked", 0o722, "chmod 700"),
        ("host.pem", 0o640, "private key"),
        ("host.pem", 0o602, "chmod 600"),
        ("trusted/beta.pem", 0o664, "chmod 644"),
    ] {
        let file = alpha.file(path);
        let good = mode(&file);
        assert!(alpha.0.credentials().is_ok());
        set_mode(&file, bad);
        let error = alpha.0.credentials().unwrap_err().to_string();
        assert!(error.contains(part), "{path}: {error}");
        set_mode(&file, good);
    }
    set_mode(&alpha.file("identity.pem"), 0o604);
    let error = alpha.0.renew().unwrap_err().to_string();
    assert!(error.contains("private key in") && error.contains("chmod 600"), "{error}");
    // Other users can only own files here if the tests run as root.
    let path = alpha.file("trusted/beta.pem");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(4_321), None).unwrap();
        let error = alpha.0.credentials().unwrap_err().to_string();
        assert!(error.contains("belongs to user 4321"), "{error}");
    }
    fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from(0o600)).unwrap();
    let error = alpha.0.credentials().unwrap_err().to_string();
    assert!(error.contains("wrong kind"), "{error}");
}

#[test]
fn names_and_identities_are_trusted_once() {
    let (alpha, beta, gamma) = (Host::new("alpha"), Host::new("beta"), Host::new("gamma"));
    alpha.trust("beta", &beta);
    alpha.trust("beta", &beta);
    let trust = |label: &str, host: &Host| {
        alpha.0.trust(&name(label), &host.identity(), HostPermission::Call, IfRevoked::Refuse)
    };
    assert!(matches!(trust("beta", &gamma), Err(IdentityError::Taken { .. })));
    assert!(matches!(trust("other", &beta), Err(IdentityError::Known { .. })));
    assert!(trust("beta", &beta).is_ok());
    let list = alpha.0.list().unwrap();
    assert_eq!(list.host(&name("beta")).unwrap().may, HostPermission::Call);
    // Files that a person made.
    fs::write(alpha.file("trusted/a b.pem"), beta.identity().pem()).unwrap();
    set_mode(&alpha.file("trusted/a b.pem"), 0o644);
    let error = alpha.0.credentials().unwrap_err().to_string();
    assert!(error.contains("a b.pem is not named"), "{error}");
    fs::rename(alpha.file("trusted/a b.pem"), alpha.file("revoked/x")).unwrap();
    let error = alpha.0.credentials().unwrap_err().to_string();
    assert!(error.contains("revoked/x is not named"), "{error}");
    fs::remove_file(alpha.file("revoked/x")).unwrap();
    fs::copy(alpha.file("trusted/beta.pem"), alpha.file("trusted/copy.pem")).unwrap();
    let error = alpha.0.credentials().unwrap_err().to_string();
    assert!(error.contains("copy.pem") && error.contains("same identity"), "{error}");
}

#[test]
fn a_revoked_identity_comes_back_only_when_asked() {
    let (alpha, beta) = (Host::new("alpha"), Host::new("beta"));
    let missing = alpha.0.revoke(&name("beta")).unwrap_err();
    assert!(matches!(missing, IdentityError::NotTrusted { .. }), "{missing}");
    alpha.trust("beta", &beta);
    assert_eq!(alpha.0.revoke(&name("beta")).unwrap(), beta.identity().fingerprint());
    let trust =
        |if_revoked| alpha.0.trust(&name("b2"), &beta.identity(), HostPermission::Both, if_revoked);
    assert!(matches!(trust(IfRevoked::Refuse), Err(IdentityError::Revoked { .. })));
    assert!(alpha.0.list().unwrap().host(&name("b2")).is_none());
    trust(IfRevoked::TrustAgain).unwrap();
    let list = alpha.0.list().unwrap();
    assert!(list.host(&name("b2")).is_some() && list.revoked().is_empty());
}

#[test]
fn only_the_certificate_of_an_identity_is_trusted() {
    let host = Host::new("alpha");
    let identity = fs::read(host.file("identity.pem")).unwrap();
    let error = IdentityCertificate::from_pem(&identity).unwrap_err().to_string();
    assert!(error.contains("private key, which has to stay secret"), "{error}");
    let text = fs::read_to_string(host.file("host.pem")).unwrap();
    let blocks: Vec<_> = text.split_inclusive("-----END CERTIFICATE-----\n").collect();
    let leaf = &blocks[0][blocks[0].find("-----BEGIN CERTIFICATE").unwrap()..];
    for (text, part) in [
        (leaf.to_owned(), "certificate of a host in place"),
        (format!("{leaf}{}", blocks[1]), "2 certificates"),
        (String::new(), "no certificate"),
        ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".into(), "malformed PEM"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(), "malformed"),
    ] {
        let error = IdentityCertificate::from_pem(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("show --pem"), "{error}");
    }
    assert_eq!(IdentityCertificate::from_pem(blocks[1].as_bytes()).unwrap(), host.identity());
    // A changed bit leads to no panic. What is still read has another fingerprint if the bit was
    // in the key, and else the same one.
    let der = host.identity().der().to_vec();
    let begin = [0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    let key = der.windows(6).position(|part| part == begin).unwrap() + 6;
    for (at, bit) in (0..der.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut changed = der.clone();
        changed[at] ^= 1 << bit;
        if let Ok(read) = IdentityCertificate::from_der(&changed.into()) {
            let same = read.fingerprint() == host.identity().fingerprint();
            assert_eq!(same, !(key..key + 32).contains(&at), "{at}");
        }
    }
    for length in 0..der.len() {
        assert!(IdentityCertificate::from_der(&der[..length].into()).is_err());
    }
}

/// A change that is killed at any step leaves the old state or the new one, and the next command
/// works.
#[test]
fn a_killed_change_leaves_the_old_state_or_the_new_one() {
    let (beta, gamma) = (Host::new("beta"), Host::new("gamma"));
    type Change = fn(&HostStore, &Host);
    let changes: [(&str, Change); 4] = [
        ("init", |store, _| _ = store.init(&name("alpha"))),
        ("renew", |store, _| _ = store.renew()),
        ("trust", |store, other| {
            let may = HostPermission::Both;
            _ = store.trust(&name("gamma"), &other.identity(), may, IfRevoked::Refuse);
        }),
        ("revoke", |store, _| _ = store.revoke(&name("beta"))),
    ];
    for (what, change) in changes {
        for step in 0.. {
            let folder = TempDir::new().unwrap();
            let store = HostStore::at(folder.path().join("hosts"));
            if what != "init" {
                store.init(&name("alpha")).unwrap();
                let may = HostPermission::Both;
                store.trust(&name("beta"), &beta.identity(), may, IfRevoked::Refuse).unwrap();
            }
            if !kill_at(step, AssertUnwindSafe(|| change(&store, &gamma))) {
                assert!(step > 3, "{what}");
                break;
            }
            let store = HostStore::at(store.folder());
            if what == "init" {
                // The same command completes it.
                let done = store.init(&name("alpha"));
                assert!(matches!(done, Ok(_) | Err(IdentityError::Exists { .. })));
            }
            let trust = store.credentials().unwrap();
            let trust = trust.trust();
            match (what, trust.host(&name("beta"))) {
                ("init", _) => {}
                ("revoke", Some(host)) => {
                    // Old, or revoked in effect.
                    let fingerprint = host.certificate.fingerprint();
                    let revoked = trust.revoked().contains(&fingerprint);
                    let now = SystemTime::now();
                    assert_eq!(trust.admit(host, PeerRole::Client, now).is_err(), revoked);
                }
                ("revoke", None) => assert_eq!(trust.revoked().len(), 1),
                (_, host) => assert!(host.is_some(), "{what} {step}"),
            }
            // The next command works, and sweeps.
            change(&store, &gamma);
            store.renew().unwrap();
            for folder in ["", "trusted", "revoked"] {
                for entry in fs::read_dir(store.folder().join(folder)).unwrap() {
                    let left = entry.unwrap().file_name().into_string().unwrap();
                    assert!(!left.ends_with(".tmp"), "{what} {step}: {left}");
                }
            }
        }
    }
}

#[test]
fn two_commands_take_turns() {
    let host = Host::new("alpha");
    let others: Vec<_> = (0..8).map(|n| (format!("h{n}"), Host::new("x"))).collect();
    std::thread::scope(|scope| {
        for (label, other) in &others {
            scope.spawn(|| {
                let store = HostStore::at(host.0.folder());
                let (may, if_revoked) = (HostPermission::Both, IfRevoked::Refuse);
                // On a slow disk the others may take longer than a command waits.
                let patient = |change: &dyn Fn() -> Result<(), IdentityError>| loop {
                    match change() {
                        Err(IdentityError::Busy { .. }) => {}
                        done => break done.unwrap(),
                    }
                };
                patient(&|| store.trust(&name(label), &other.identity(), may, if_revoked));
                patient(&|| store.renew().map(drop));
            });
        }
    });
    assert_eq!(host.0.credentials().unwrap().trust().hosts().count(), 8);
}

#[test]
fn a_missing_or_damaged_identity_is_named() {
    let folder = TempDir::new().unwrap();
    let store = HostStore::at(folder.path().join("a/b"));
    for error in
        [store.credentials().unwrap_err(), store.own().unwrap_err(), store.renew().unwrap_err()]
    {
        assert!(error.to_string().contains("upcall host init"), "{error}");
    }
    assert!(!folder.path().join("a").exists());
    let host = Host::new("alpha");
    for (file, text) in [("host.pem", "x"), ("host.pem", ""), ("identity.pem", "name: é\n")] {
        let kept = fs::read(host.file(file)).unwrap();
        fs::write(host.file(file), text).unwrap();
        let error = host.0.own().unwrap_err().to_string();
        assert!(error.contains(file) && error.contains("restore it"), "{error}");
        fs::write(host.file(file), kept).unwrap();
    }
    fs::remove_file(host.file("host.pem")).unwrap();
    let error = host.0.credentials().unwrap_err().to_string();
    assert!(error.contains("upcall host renew"), "{error}");
    assert!(host.0.own().unwrap().expires.is_none());
    host.0.renew().unwrap();
    assert!(host.0.credentials().is_ok());
}
