//! Sets the name that programs record of the shared library, which changes when the ABI does.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libupcall.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
