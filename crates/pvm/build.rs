//! Compiles libpvm3 for images, and generates a header of the constants that it shares with the
//! host.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

include!("library.rs");

/// Sources of the per-message path.
///
/// They stay out of the library's own section, in which no signal handler runs: they never leave a
/// state half changed, so handlers may interrupt them. They lie next to the program's own code,
/// because with thousands of tasks each page counts.
const OFTEN: [&str; 3] = ["image/doors.c", "image/receive.S", "image/receivef.c"];

fn main() {
    need_tools();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut header = String::from("/* Made of src/ops.rs by build.rs. */\n");
    let ops = fs::read_to_string("src/ops.rs").expect("src/ops.rs");
    for line in ops.lines().filter_map(|line| line.strip_prefix("pub const ")) {
        let number = line.split_once(": u64 = ").or_else(|| line.split_once(": i64 = "));
        let Some((name, value)) = number else { continue };
        writeln!(header, "#define UPVM_{name} ({})", value.trim_end_matches(';'))
            .expect("a string");
    }
    // The shared functions work on an image's data, and the image may have been linked by an older
    // version. This hash shows whether both agree on the layout.
    let meant = ["image/lib.h", "image/doors.h", "image/matching.h", "image/pack.h"]
        .map(|path| fs::read_to_string(path).expect(path));
    let version = meant
        .iter()
        .chain([&ops])
        .flat_map(|text| text.bytes())
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    writeln!(header, "#define UPVM_LIBRARY_VERSION {version:#x}").expect("a string");
    fs::write(out.join("ops.h"), header).expect("OUT_DIR can be written");
    println!("cargo::rerun-if-changed=src/ops.rs");
    println!("cargo::rerun-if-changed=image");
    println!("cargo::rerun-if-changed=library.rs");
    println!("cargo::rerun-if-changed=shared");
    println!("cargo::rerun-if-changed=include");
    let mut sources = fs::read_dir("image")
        .expect("image")
        .map(|one| one.expect("image").path())
        .collect::<Vec<_>>();
    sources.retain(|path| path.extension().is_some_and(|end| end == "c" || end == "S"));
    sources.sort();
    let mut build = cc::Build::new();
    build.include(&out).include("image").include("include");
    env::var("DEP_UPVM_INCLUDE")
        .expect("crate ulp sets it")
        .split(':')
        .for_each(|folder| _ = build.include(folder));
    // The same flags as for crate `ulp`'s archive: this code also runs before thread-local storage
    // exists.
    build
        .opt_level(2)
        .pic(false)
        .flag("-fPIE")
        .flag("-fno-stack-protector")
        .flag("-std=gnu11")
        .flag("-Wall")
        .flag("-Wextra")
        .flag("-fno-sanitize=all")
        .debug(false);
    build.cargo_metadata(false);
    share(&build, &out);
    let (often, rest) = sources
        .into_iter()
        .partition::<Vec<_>, _>(|path| OFTEN.iter().any(|one| path.ends_with(one)));
    let often = build.clone().files(often).compile_intermediates();
    let objects = library(build.files(rest));
    cc::Build::new().objects(often).objects(objects).cargo_metadata(false).compile("pvm3");
}

/// Compiles the functions that all tasks share, and links them as one position-independent file.
fn share(build: &cc::Build, out: &Path) {
    let objects =
        build.clone().file("shared/shared.c").pic(true).flag("-fPIC").compile_intermediates();
    let mut linker = build.get_compiler().to_command();
    linker.args([
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,-Ttext-segment=0,-e,0,--build-id=none,-z,noseparate-code",
        "-o",
    ]);
    let done = linker.arg(out.join("shared")).args(objects).status().expect("a linker");
    assert!(
        done.success(),
        "{linker:?} could not link the functions that tasks share: use GNU ld; they must need no \
         relocation"
    );
}
