//! Debian's packages: the examples' sources, and the real PVM for comparison.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cases::Program;

const PACKAGES: [&str; 4] = ["pvm", "pvm-dev", "pvm-examples", "gfortran"];
const ARCHIVES: &str = "/usr/share/doc/pvm-examples";
/// Names of the archives, and of the folders in them.
pub const FOLDERS: [&str; 2] = ["examples", "gexamples"];
/// Files that the tests need.
const NEEDED: [&str; 3] =
    ["/usr/bin/pvmd", "/usr/include/pvm3.h", "/usr/share/doc/pvm-examples/examples.tar.gz"];

/// Why the packages are missing, and what to do. As root on Debian, installs them.
pub fn missing() -> Option<String> {
    if there() {
        return None;
    }
    let works = |program, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    if works("sh", &["-c", "test $(id -u) = 0"]) && works("apt-get", &["--version"]) {
        eprintln!("installing Debian's {} …", PACKAGES.join(" "));
        let install =
            ["install", "-y", "-qq", "--no-install-recommends"].into_iter().chain(PACKAGES);
        for args in [vec!["update", "-qq"], install.collect()] {
            let mut apt = Command::new("apt-get");
            apt.args(args).env("DEBIAN_FRONTEND", "noninteractive");
            apt.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
        }
    }
    let how = || {
        format!(
            "no real PVM with its examples here; install it (Debian: apt-get install {})",
            PACKAGES.join(" ")
        )
    };
    (!there()).then(how)
}

fn there() -> bool {
    let fortran = Command::new("gfortran")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    fortran && NEEDED.iter().all(|file| Path::new(file).exists())
}

/// Unpacks the sources into `dir`.
pub fn unpack(dir: &Path) {
    for folder in FOLDERS {
        let archive = Path::new(ARCHIVES).join(folder).with_extension("tar.gz");
        let status =
            Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(dir).status().expect("tar");
        assert!(status.success(), "{} cannot be unpacked", archive.display());
    }
}

/// A program's sources. Those of the package are in `unpacked`.
pub fn sources(program: &Program, unpacked: &Path) -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let named = program.sources().map(|source| match source.strip_prefix("./") {
        Some(source) => own.join(source),
        None => unpacked.join(source),
    });
    let by_name = || {
        let candidates = FOLDERS.iter().flat_map(|folder| {
            ["c", "f"].map(|kind| unpacked.join(folder).join(&program.name).with_extension(kind))
        });
        candidates
            .into_iter()
            .find(|path| path.is_file())
            .unwrap_or_else(|| panic!("no source of {} in the package", program.name))
    };
    program.is_its_name().then(by_name).into_iter().chain(named).collect()
}

/// Returns `true` if the program is in Fortran.
pub fn fortran(sources: &[PathBuf]) -> bool {
    sources[0].extension().is_some_and(|kind| kind == "f")
}

/// Options for code of the 1990s: undeclared functions, `main` without a type, and constants passed
/// as arrays of one element.
pub fn dialect(fortran: bool) -> &'static [&'static str] {
    if fortran { &["-w", "-fallow-argument-mismatch"] } else { &["-w", "-std=gnu89", "-fcommon"] }
}
