//! Compiles the part of the runtime that is linked into images.
//!
//! Also generates its C header from the one definition of the layout.

use std::fmt::Write as _;
use std::{env, fs};

include!("library.rs");

/// Sources of the archive.
const SOURCES: [&str; 18] = [
    "start.c",
    "heap.c",
    "ranges.c",
    "maps.c",
    "refuse.c",
    "wait.c",
    "clock.c",
    "files.c",
    "opens.c",
    "descriptors.c",
    "passed.c",
    "ready.c",
    "sockets.c",
    "children.c",
    "inherit.c",
    "signals.c",
    "usage.c",
    "limits.c",
];
/// Sources of functions during which signal handlers may run.
const OPEN: [&str; 5] = ["interrupted.S", "kernel.S", "numbers.c", "handlers.c", "process.c"];
/// The source whose types debuggers need.
const KNOWN: &str = "image/current.c";

fn main() {
    need_tools();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let layout = fs::read_to_string("src/layout.rs").expect("src/layout.rs");
    let mut header = String::from("/* Made of src/layout.rs by build.rs. */\n");
    // A constant may have another value with AddressSanitizer.
    let is_asan = env::var_os("CARGO_CFG_UPCALL_ASAN").is_some();
    let other = if is_asan { "#[cfg(not(upcall_asan))]" } else { "#[cfg(upcall_asan)]" };
    let lines = layout.lines().zip(layout.lines().skip(1));
    let lines = lines.filter(|(before, _)| *before != other).map(|(_, line)| line);
    for line in lines.filter_map(|line| line.strip_prefix("pub const ")) {
        let (name, value) = line.split_once(": u64 = ").expect("a constant of 64 bits");
        let value = value.trim_end_matches(';').replace(" <<", "ul <<");
        let named = |value: String, name| value.replace(name, &format!("UPVM_{name}"));
        let value = ["FIRST", "LAST"].into_iter().fold(value, named);
        writeln!(header, "#define UPVM_{name} ({value})").expect("a string");
    }
    fs::write(out.join("layout.h"), header).expect("OUT_DIR can be written");
    // For libraries that are linked into images: the folders of image.h and of what it includes.
    let image = env::current_dir().expect("cargo's").join("image");
    println!("cargo::metadata=include={}:{}", out.display(), image.display());
    println!("cargo::rerun-if-changed=src/layout.rs");
    println!("cargo::rerun-if-changed=image");
    println!("cargo::rerun-if-changed=library.rs");
    let mut build = cc::Build::new();
    build.include(&out).include("image").opt_level(2).pic(false).flag("-fPIE");
    // The code runs before there are thread-locals, in which the stack protector keeps its word.
    build
        .flag("-fno-stack-protector")
        .flag("-std=gnu11")
        .flag("-Wall")
        .flag("-Wextra")
        .flag("-Werror=implicit-function-declaration")
        .debug(false);
    // An image has no sanitizer's runtime, and crate `cc` passes on the Rust code's sanitizer.
    build.flag("-fno-sanitize=all");
    // libc's other names for a function have no attributes of their own.
    build.flag("-Wno-missing-attributes").flag("-Wno-nonnull-compare");
    let known = build.clone().files([KNOWN]).debug(true).compile_intermediates();
    let open =
        build.clone().files(OPEN.map(|name| format!("image/{name}"))).compile_intermediates();
    let objects = library(build.files(SOURCES.map(|name| format!("image/{name}"))));
    cc::Build::new()
        .objects(objects)
        .objects(open)
        .objects(known)
        .cargo_metadata(false)
        .compile("upvm");
}
