//! Larger programs that we did not write, of Debian's source packages: HMMER 2.3.2 and NetPIPE
//! 3.7.2, both under the GNU General Public License. Nothing of them is kept here: the sources are
//! fetched by apt-get, once, and built unchanged.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::comparison::Comparison;

/// Debian's names of the source packages, and how their folders begin.
const PACKAGES: [(&str, &str); 2] = [("hmmer2", "hmmer"), ("netpipe", "NetPIPE")];
/// What HMMER is linked with, and dpkg-source, which unpacks it with Debian's changes.
const NEEDED: [&str; 3] = ["libsquid-dev", "dpkg-dev", "pkg-config"];
const MASTERS: [&str; 3] = ["hmmcalibrate", "hmmpfam", "hmmsearch"];
const SLAVES: [&str; 3] = ["hmmcalibrate-pvm", "hmmpfam-pvm", "hmmsearch-pvm"];
/// They make what the others read, and know nothing of PVM.
const MAKERS: [&str; 2] = ["hmmbuild", "hmmindex"];

/// What HMMER wants of libsquid and Debian's build of that leaves out: a stopwatch that goes into a
/// message.
const STOPWATCH: &str = r#"
#include <pvm3.h>
#include <biosquid/squid.h>
#include <biosquid/stopwatch.h>
void StopwatchPVMPack(Stopwatch_t *w) {
    pvm_pkdouble(&w->elapsed, 1, 1);
    pvm_pkdouble(&w->user, 1, 1);
    pvm_pkdouble(&w->sys, 1, 1);
}
void StopwatchPVMUnpack(Stopwatch_t *w) {
    pvm_upkdouble(&w->elapsed, 1, 1);
    pvm_upkdouble(&w->user, 1, 1);
    pvm_upkdouble(&w->sys, 1, 1);
}
"#;

/// A compiler, and what it wants to hear of PVM.
#[derive(Clone)]
pub struct Compiler {
    path: PathBuf,
    libraries: &'static str,
}

/// Of the real PVM.
pub fn real() -> Compiler {
    Compiler { path: "gcc".into(), libraries: "-lpvm3" }
}

/// Ours.
pub fn ours(compilers: &Path) -> Compiler {
    Compiler { path: compilers.join("upvmcc"), libraries: "" }
}

/// The packages' folders, kept from run to run.
pub struct Sources {
    hmmer: PathBuf,
    netpipe: PathBuf,
}

impl Sources {
    /// None, with the reason told, where they cannot be had.
    pub fn there() -> Option<Self> {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("public");
        fs::create_dir_all(&kept).expect("a folder");
        if PACKAGES.iter().any(|(_, folder)| begins(&kept, folder).is_none()) {
            fetch(&kept);
        }
        if !Path::new("/usr/include/biosquid/squid.h").is_file() {
            let mut apt = Command::new("apt-get");
            quiet(apt.args(["install", "-y", "-qq", "--no-install-recommends"]).args(NEEDED));
        }
        let [hmmer, netpipe] = PACKAGES.map(|(_, folder)| begins(&kept, folder));
        let squid = Path::new("/usr/include/biosquid/squid.h").is_file();
        let found =
            hmmer.zip(netpipe).filter(|_| squid).map(|(hmmer, netpipe)| Self { hmmer, netpipe });
        if found.is_none() {
            println!(
                "skipped: no {} (Debian: apt-get install {}), or no sources of hmmer2 and netpipe (apt-get source)",
                NEEDED[0],
                NEEDED.join(" ")
            );
        }
        found
    }

    /// Builds all into a folder of the comparison, with what they read.
    pub fn build(&self, comparison: &mut Comparison, into: &str, compiler: Compiler) {
        let folder = comparison.folder(into);
        for result in [self.hmmer(&folder, &compiler), self.netpipe(&folder, &compiler)] {
            if let Err(words) = result {
                comparison.fault(format!("{into}: {words}"));
            }
        }
    }

    /// As a user builds it: `configure` and `make`, with another compiler.
    fn hmmer(&self, folder: &Path, compiler: &Compiler) -> Result<(), String> {
        let tree = folder.join("hmmer");
        let sources = tree.join("src");
        run(Command::new("cp").arg("-r").arg(&self.hmmer).arg(&tree))?;
        fs::write(sources.join("stopwatch_pvm.c"), STOPWATCH).expect("a file");
        let cc = format!("CC={}", compiler.path.display());
        run(Command::new("./configure").args(["--enable-pvm", &cc]).current_dir(&tree))?;
        run(Command::new(&compiler.path)
            .args(["-O2", "-c", "stopwatch_pvm.c"])
            .current_dir(&sources))?;
        let mut make = Command::new("make");
        // Linked statically, as ours are, two functions are in libsquid and in HMMER.
        make.args([&cc, "CFLAGS=-O2 -w", "LDFLAGS=-Wl,-z,muldefs", "PVMLIBDIR=", "PVMINCDIR="])
            .arg(format!("PVMLIBS=stopwatch_pvm.o {}", compiler.libraries));
        run(make.args(MASTERS).args(SLAVES).current_dir(&sources))?;
        for program in MASTERS.iter().chain(&SLAVES) {
            fs::copy(sources.join(program), folder.join(program)).expect("a program");
        }
        self.read_by_hmmer(folder, &tree)
    }

    /// The profiles are made from alignments by programs without PVM, which an ordinary compiler
    /// builds.
    fn read_by_hmmer(&self, folder: &Path, tree: &Path) -> Result<(), String> {
        let plain = folder.join("plain");
        run(Command::new("cp").arg("-r").arg(&self.hmmer).arg(&plain))?;
        run(Command::new("./configure").current_dir(&plain))?;
        run(Command::new("make").arg("CFLAGS=-O2 -w").args(MAKERS).current_dir(plain.join("src")))?;
        let maker = |name| Command::new(plain.join("src").join(name));
        let mut all = Vec::new();
        for profile in ["fn3", "rrm", "pkinase"] {
            let file = folder.join(profile).with_extension("hmm");
            run(maker("hmmbuild")
                .arg("-F")
                .arg(&file)
                .arg(tree.join("tutorial").join(profile).with_extension("sto")))?;
            all.extend(fs::read(file).expect("a profile"));
        }
        fs::write(folder.join("pfam.hmm"), all).expect("profiles");
        run(maker("hmmindex").arg(folder.join("pfam.hmm")))?;
        for sequences in ["testsuite/titin.fa", "tutorial/Artemia.fa", "tutorial/globins630.fa"] {
            let from = tree.join(sequences);
            fs::copy(&from, folder.join(from.file_name().expect("a name"))).expect("sequences");
        }
        Ok(())
    }

    fn netpipe(&self, folder: &Path, compiler: &Compiler) -> Result<(), String> {
        let sources = self.netpipe.join("src");
        let cast = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/examples/cast.c");
        for (name, more) in [
            ("NPpvm", &[][..]),
            ("NPpvm_cast", &[OsStr::new("-Dmain=cast_program"), cast.as_os_str()][..]),
        ] {
            let mut command = Command::new(&compiler.path);
            command
                .args(["-w", "-O2", "-DPVM", "-I"])
                .arg(&sources)
                .args(more)
                .arg("-o")
                .arg(folder.join(name));
            command.args(["netpipe.c", "pvm.c"].map(|file| sources.join(file)));
            run(command.args((!compiler.libraries.is_empty()).then_some(compiler.libraries)))?;
        }
        Ok(())
    }
}

/// The folder in `dir` that begins so.
fn begins(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.into_iter().find(|path| {
        path.is_dir()
            && path
                .file_name()
                .is_some_and(|own| own.as_encoded_bytes().starts_with(name.as_bytes()))
    })
}

/// Fetches the sources from where the machine has its packages from, with lists of apt-get's own in
/// `kept`, so that the machine's stay as they are.
fn fetch(kept: &Path) {
    eprintln!("fetching sources of Debian's packages …");
    let mut known = Command::new("apt-get");
    known.args([
        "indextargets",
        "--format",
        "$(REPO_URI) $(RELEASE) main $(ORIGIN)",
        "Created-By: Packages",
    ]);
    let Ok(known) = known.output() else { return };
    const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let signed =
        if Path::new(KEYS).is_file() { format!("[signed-by={KEYS}] ") } else { String::new() };
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    let mut lines: Vec<String> = known
        .lines()
        .filter_map(|line| line.strip_suffix(" Debian"))
        .map(|line| format!("deb-src {signed}{line}\n"))
        .collect();
    lines.sort();
    lines.dedup();
    let apt = kept.join("apt");
    ["lists/partial", "cache/archives/partial"]
        .iter()
        .for_each(|folder| fs::create_dir_all(apt.join(folder)).expect("a folder"));
    let list = apt.join("sources.list");
    fs::write(&list, lines.concat()).expect("a list");
    let options = [
        ("Etc::SourceList", list),
        ("Etc::SourceParts", "/dev/null".into()),
        ("State::Lists", apt.join("lists")),
        ("Cache", apt.join("cache")),
    ];
    let get = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        options.iter().for_each(|(name, path)| {
            _ = command.arg("-o").arg(format!("Dir::{name}={}", path.display()))
        });
        quiet(command.args(["-qq"]).args(words).current_dir(kept))
    };
    get(&["update"]);
    for (package, folder) in PACKAGES {
        // With Debian's changes, or else as its authors have it.
        if !get(&["source", package]) && get(&["source", "--tar-only", package]) {
            let tars =
                fs::read_dir(kept).expect("a folder").map(|entry| entry.expect("an entry").path());
            for tar in tars.filter(|path| {
                path.file_name()
                    .is_some_and(|name| name.as_encoded_bytes().starts_with(package.as_bytes()))
            }) {
                quiet(Command::new("tar").arg("-xf").arg(tar).current_dir(kept));
            }
        }
        // dpkg-source names the folder by the package.
        if let (None, Some(named)) = (begins(kept, folder), begins(kept, package)) {
            fs::rename(named, kept.join(folder)).expect("a folder");
        }
    }
}

fn quiet(command: &mut Command) -> bool {
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Its words if it fails.
fn run(command: &mut Command) -> Result<(), String> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let words = || [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}:\n{}", words())) }
}
