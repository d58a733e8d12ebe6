//! `upvmcc` and the other wrappers: the system's compilers, with the options that make a program a
//! task.
//!
//! Porting a program means recompiling and relinking it with these in place of the compiler, and
//! nothing else (UPVM). The files that they add are in [`tools`](crate::tools). They are unpacked
//! once into the user's cache, or are part of an installation.

use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

/// The source language, which determines the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceLanguage {
    /// `upvmcc`.
    C,
    /// `upvmc++`.
    Cxx,
    /// `upvmf77`.
    Fortran77,
    /// `upvmf90`.
    Fortran90,
}

impl SourceLanguage {
    fn name(self) -> &'static str {
        match self {
            Self::C => "upvmcc",
            Self::Cxx => "upvmc++",
            Self::Fortran77 => "upvmf77",
            Self::Fortran90 => "upvmf90",
        }
    }

    /// The variable that names another compiler, and the usual one.
    fn compiler(self) -> (&'static str, &'static str) {
        match self {
            Self::C => ("UPVM_CC", "gcc"),
            Self::Cxx => ("UPVM_CXX", "g++"),
            Self::Fortran77 | Self::Fortran90 => ("UPVM_FC", "gfortran"),
        }
    }
}

/// The original PVM's libraries. They are dropped, because ours are always linked.
const LIBRARIES: [&str; 4] = ["-lpvm3", "-lgpvm3", "-lfpvm3", "-lpvmtrc"];
/// Options that would load a program differently from a task. They are dropped.
const ELSEWHERE: [&str; 9] = [
    "-static",
    "-static-pie",
    "-pie",
    "-no-pie",
    "-fno-pie",
    "-fno-PIE",
    "-fno-pic",
    "-fno-PIC",
    "-rdynamic",
];
/// The linker's version script, which lists the names that are the program's own.
const SCRIPT: &str = "names.map";
/// Options with which nothing is linked.
const ONLY: [&str; 6] = ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"];

/// The wrapper's `main`: executes the compiler with this process's arguments and the added ones.
pub fn run(language: SourceLanguage) -> ExitCode {
    let args = env::args_os().skip(1).collect::<Vec<_>>();
    match args.first().and_then(|first| first.to_str()) {
        Some("--upvm-help") => {
            print!("{}", help(language));
            return ExitCode::SUCCESS;
        }
        Some(which @ ("--upvm-cflags" | "--upvm-libs")) => return flags(which == "--upvm-libs"),
        Some("--upvm-unpack") => {
            return unpack(args.get(1).map(Path::new), args.get(2).map(PathBuf::from));
        }
        _ => {}
    }
    let mut command = match command(language, &args) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("{}: {error}", language.name());
            return ExitCode::FAILURE;
        }
    };
    let error = command.exec();
    let (variable, usual) = language.compiler();
    let compiler = command.get_program().display();
    eprintln!(
        "{}: {compiler} cannot be run: {error}. Install it (Debian: apt-get install {usual}), or \
         set {variable} to another compiler",
        language.name()
    );
    ExitCode::from(127)
}

/// The compiler with the arguments of the wrapper and the added ones. For the command `upcall` and
/// for the wrappers beside it: a program that they link finds its host there.
///
/// # Errors
/// The added files cannot be unpacked, or the arguments ask for a shared library.
pub fn command(language: SourceLanguage, args: &[OsString]) -> Result<Command, String> {
    let (variable, usual) = language.compiler();
    let mut command = Command::new(env::var_os(variable).unwrap_or_else(|| usual.into()));
    command.args(whole(args)?);
    Ok(command)
}

fn help(language: SourceLanguage) -> String {
    let (variable, usual) = language.compiler();
    let name = language.name();
    format!(
        "{name}: {usual} for programs that run as tasks of `upcall pvm`\n\n  \
         {name} prog.c -o prog        compile and link\n  \
         {name} -c part.c             compile\n  \
         upcall pvm run -n 4 ./prog   run\n\n\
         All arguments are {usual}'s. Another compiler: {variable}=…\n  \
         {name} --upvm-cflags, --upvm-libs      print added options, for other build systems\n  \
         {name} --upvm-unpack FOLDER [UPCALL]   write headers and libraries to FOLDER, for \
         programs that UPCALL runs\n"
    )
}

/// Prints the options that the wrapper adds.
fn flags(linking: bool) -> ExitCode {
    let words = unpacked().map(|folder| if linking { linked(&folder) } else { compiled(&folder) });
    match words {
        Ok(words) => {
            println!(
                "{}",
                words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("upvmcc: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes headers and libraries to an installation's folder. `upcall` is the command's path there.
fn unpack(folder: Option<&Path>, upcall: Option<PathBuf>) -> ExitCode {
    let Some(folder) = folder else {
        eprintln!("upvmcc: --upvm-unpack FOLDER [UPCALL]: which folder?");
        return ExitCode::FAILURE;
    };
    match write(folder, &upcall.unwrap_or_else(runtime)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("upvmcc: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

/// All arguments of the compiler.
fn whole(args: &[OsString]) -> Result<Vec<OsString>, String> {
    let is = |word: &OsStr, all: &[&str]| word.to_str().is_some_and(|word| all.contains(&word));
    if args.iter().any(|word| word == "-shared") {
        return Err("a task is linked statically, so a shared library cannot be part of it: make \
                    a static library (ar)"
            .into());
    }
    // Without a file or a library to link, the compiler only prints something about itself.
    let works = args.iter().any(|word| !word.as_encoded_bytes().starts_with(b"-") || word == "-");
    if !works {
        return Ok(args.to_vec());
    }
    let folder = unpacked()?;
    let mut told = compiled(&folder);
    told.extend(args.iter().filter(|word| !is(word, &LIBRARIES) && !is(word, &ELSEWHERE)).cloned());
    if !args.iter().any(|word| is(word, &ONLY)) {
        // After `-x LANGUAGE` the compiler would read the added files as sources.
        told.extend(["-x", "none"].map(OsString::from));
        told.extend(linked(&folder));
    }
    Ok(told)
}

fn compiled(folder: &Path) -> Vec<OsString> {
    let mut words = upcall_ulp::tools::COMPILING.iter().map(OsString::from).collect::<Vec<_>>();
    words.push([OsStr::new("-I"), folder.join("include").as_os_str()].join(OsStr::new("")));
    words
}

fn linked(folder: &Path) -> Vec<OsString> {
    let mut words = upcall_ulp::tools::LINKING.iter().map(OsString::from).collect::<Vec<_>>();
    words.push("-Wl,-u,upvm_pvm".into());
    words.push(
        [OsStr::new("-Wl,--version-script="), folder.join(SCRIPT).as_os_str()].join(OsStr::new("")),
    );
    // Libraries that the compiler adds itself need these again.
    words.extend(
        ["runtime.o", "libpvm3.a", "libupvm.a"].map(|name| folder.join(name).into_os_string()),
    );
    words.push("-lm".into());
    words
}

/// The folder of the added files. Writes them if they are missing.
fn unpacked() -> Result<PathBuf, String> {
    let runtime = runtime();
    let mut hasher = DefaultHasher::new();
    let parts = (
        crate::tools::LIBRARY,
        upcall_ulp::tools::ARCHIVE,
        upcall_ulp::tools::SCRIPT,
        crate::tools::HEADERS,
    );
    (env!("CARGO_PKG_VERSION"), parts, &runtime).hash(&mut hasher);
    let name = format!("upvm-{:016x}", hasher.finish());
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = cache.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let cache = cache.unwrap_or_else(env::temp_dir).join("upcall");
    let folder = cache.join(&name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let unable = |error: io::Error| {
        format!(
            "headers and libraries could not be written to {}: {error}. Set XDG_CACHE_HOME",
            cache.display()
        )
    };
    // Renamed when complete, because another process may do the same now.
    let new = cache.join(format!(".{name}.{}", std::process::id()));
    write(&new, &runtime).map_err(unable)?;
    if let Err(error) = fs::rename(&new, &folder) {
        let _ = fs::remove_dir_all(&new);
        if !folder.is_dir() {
            return Err(unable(error));
        }
    }
    Ok(folder)
}

fn write(folder: &Path, runtime: &Path) -> io::Result<()> {
    fs::create_dir_all(folder.join("include"))?;
    for (name, text) in crate::tools::HEADERS {
        fs::write(folder.join("include").join(name), text)?;
    }
    fs::write(folder.join("libpvm3.a"), crate::tools::LIBRARY)?;
    fs::write(folder.join("libupvm.a"), upcall_ulp::tools::ARCHIVE)?;
    fs::write(folder.join(SCRIPT), upcall_ulp::tools::SCRIPT)?;
    // The path under which a program that was started from the shell finds its host. Any C compiler
    // will do.
    let named = env::var_os("UPVM_CC");
    let compilers = ["gcc", "cc"].map(OsString::from).into_iter().chain(named);
    let compiled = compilers.map(|compiler| line(&compiler, folder, runtime)).find_map(Result::ok);
    compiled.ok_or_else(|| {
        io::Error::other(
            "there is neither gcc nor cc, and what UPVM_CC names could not compile a line of C",
        )
    })
}

fn line(compiler: &OsStr, folder: &Path, runtime: &Path) -> io::Result<()> {
    let mut compiler = Command::new(compiler);
    let mut compiler = compiler
        .args(["-fPIE", "-c", "-x", "c", "-", "-o"])
        .arg(folder.join("runtime.o"))
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut source) = compiler.stdin.take() {
        writeln!(source, "const char upvm_runtime[] = {:?};", runtime.to_string_lossy())?;
    }
    if compiler.wait()?.success() { Ok(()) } else { Err(io::Error::other("the compiler failed")) }
}

/// The command that runs tasks. It is in the same folder as this one.
fn runtime() -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    own.with_file_name("upcall")
}
