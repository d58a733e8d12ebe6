//! Compiles libpvm3 for images, and makes a header of what it and the host agree on.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut header = String::from("/* Made of src/ops.rs by build.rs. */\n");
    let ops = fs::read_to_string("src/ops.rs").expect("src/ops.rs");
    for line in ops.lines().filter_map(|line| line.strip_prefix("pub const ")) {
        let (name, value) = line.split_once(": u64 = ").or_else(|| line.split_once(": i64 = ")).expect("a constant of 64 bits");
        writeln!(header, "#define UPVM_{name} ({})", value.trim_end_matches(';')).expect("a string");
    }
    fs::write(out.join("ops.h"), header).expect("OUT_DIR can be written");
    println!("cargo::rerun-if-changed=src/ops.rs");
    println!("cargo::rerun-if-changed=image");
    println!("cargo::rerun-if-changed=include");
    let mut sources = fs::read_dir("image").expect("image").map(|one| one.expect("image").path()).collect::<Vec<_>>();
    sources.retain(|path| path.extension().is_some_and(|end| end == "c"));
    sources.sort();
    let mut build = cc::Build::new();
    build.files(sources).include(&out).include("image").include("include");
    env::var("DEP_UPVM_INCLUDE").expect("crate ulp sets it").split(':').for_each(|folder| _ = build.include(folder));
    // As the archive of crate `ulp`: it runs before there are thread-locals, too.
    build
        .opt_level(2)
        .pic(false)
        .flag("-fPIE")
        .flag("-fno-stack-protector")
        .flag("-std=gnu11")
        .flag("-Wall")
        .flag("-Wextra")
        .debug(false);
    build.cargo_metadata(false).compile("pvm3");
}
