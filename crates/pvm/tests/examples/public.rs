//! Larger programs of others, from Debian's source packages: HMMER 2.3.2 and NetPIPE 3.7.2, both
//! under the GNU General Public License. Nothing of them is stored here: apt-get fetches the
//! sources once, and they are built unchanged.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::comparison::Comparison;

/// Debian's names of the source packages, and prefixes of their folders.
const PACKAGES: [(&str, &str); 2] = [("hmmer2", "hmmer"), ("netpipe", "NetPIPE")];
/// Packages that HMMER is linked with, and dpkg-source, which unpacks it with Debian's patches.
const NEEDED: [&str; 3] = ["libsquid-dev", "dpkg-dev", "pkg-config"];
const MASTERS: [&str; 3] = ["hmmcalibrate", "hmmpfam", "hmmsearch"];
const SLAVES: [&str; 3] = ["hmmcalibrate-pvm", "hmmpfam-pvm", "hmmsearch-pvm"];
/// Programs that do not use PVM, and create the others' input.
const MAKERS: [&str; 2] = ["hmmbuild", "hmmindex"];

/// A stopwatch that is packed into messages. HMMER expects it in libsquid, but Debian's build
/// leaves it out.
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

/// A compiler, and its options for PVM.
#[derive(Clone)]
pub struct Compiler {
    path: PathBuf,
    libraries: &'static str,
}

/// The compiler for the real PVM.
pub fn real() -> Compiler {
    Compiler { path: "gcc".into(), libraries: "-lpvm3" }
}

/// The compiler for our PVM.
pub fn ours(compilers: &Path) -> Compiler {
    Compiler { path: compilers.join("upvmcc"), libraries: "" }
}

/// The packages' folders, which are kept between runs.
pub struct Sources {
    hmmer: PathBuf,
    netpipe: PathBuf,
}

impl Sources {
    /// `None`, after printing the reason, if the sources are not available.
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
                "skipped: no {} (Debian: apt-get install {}), or no sources of hmmer2 and netpipe \
                 (apt-get source)",
                NEEDED[0],
                NEEDED.join(" ")
            );
        }
        found
    }

    /// Builds all programs and their input into a folder of the comparison.
    pub fn build(&self, comparison: &mut Comparison, into: &str, compiler: Compiler) {
        let folder = comparison.folder(into);
        for result in [self.hmmer(&folder, &compiler), self.netpipe(&folder, &compiler)] {
            if let Err(words) = result {
                comparison.fault(format!("{into}: {words}"));
            }
        }
    }

    /// Builds HMMER as a user does, with `configure` and `make` and the given compiler.
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
        // With static linking, as our programs need it, two functions are both in libsquid and in
        // HMMER.
        make.args([&cc, "CFLAGS=-O2 -w", "LDFLAGS=-Wl,-z,muldefs", "PVMLIBDIR=", "PVMINCDIR="])
            .arg(format!("PVMLIBS=stopwatch_pvm.o {}", compiler.libraries));
        run(make.args(MASTERS).args(SLAVES).current_dir(&sources))?;
        for program in MASTERS.iter().chain(&SLAVES) {
            fs::copy(sources.join(program), folder.join(program)).expect("a program");
        }
        self.read_by_hmmer(folder, &tree)
    }

    /// Creates the profiles from alignments, with programs that do not use PVM and are built by an
    /// ordinary compiler.
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

/// The folder in `dir` whose name has this prefix.
fn begins(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.into_iter().find(|path| {
        path.is_dir()
            && path
                .file_name()
                .is_some_and(|own| own.as_encoded_bytes().starts_with(name.as_bytes()))
    })
}

/// Fetches the sources from the machine's package servers. apt-get's lists are kept in `kept`, so
/// that the machine's own are unchanged.
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
        // With Debian's patches, or else the original archive.
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
        // dpkg-source names the folder after the package.
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

/// Runs a command. Returns its output if it fails.
fn run(command: &mut Command) -> Result<(), String> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let words = || [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}:\n{}", words())) }
}
