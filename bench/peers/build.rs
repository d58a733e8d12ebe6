//! Makes what the peers call each other by: for tonic from a description in Rust, so that building
//! takes no protobuf compiler; for gRPC's C++ library, if it is asked for, with the generators that
//! come with it. And compiles what calls libraries in C.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "rpc")]
    tonic();
    #[cfg(feature = "grpc-cpp")]
    grpc_cpp();
    #[cfg(feature = "ucx")]
    in_c("messages/ucx.c", "ucx", "libucx-dev");
    #[cfg(feature = "openmpi")]
    in_c("messages/open_mpi.c", "ompi-c", "libopenmpi-dev");
}

/// A file in C with the library that it calls.
#[cfg(any(feature = "ucx", feature = "openmpi"))]
fn in_c(file: &str, library: &str, package: &str) {
    println!("cargo:rerun-if-changed={file}");
    let found = pkg_config::Config::new().cargo_metadata(false).probe(library);
    let library = found
        .unwrap_or_else(|error| panic!("{error}; install it (Debian: apt-get install {package})"));
    let mut build = cc::Build::new();
    build.std("c11").includes(&library.include_paths).file(file).compile("messages");
    // After what needs them, or the linker leaves them out.
    library
        .link_paths
        .iter()
        .for_each(|path| println!("cargo:rustc-link-search=native={}", path.display()));
    library.libs.iter().for_each(|name| println!("cargo:rustc-link-lib={name}"));
}

#[cfg(feature = "rpc")]
fn tonic() {
    use tonic_build::manual::{Builder, Method, Service};
    let method = |name: &str, route: &str, input: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("crate::grpc::{input}"))
            .output_type(format!("crate::grpc::{output}"))
            .codec_path("tonic_prost::ProstCodec")
            .build()
    };
    let calls = Service::builder()
        .name("Calls")
        .package("upcall.bench")
        .method(method("null", "Null", "Nothing", "Nothing"))
        .method(method("add", "Add", "Pair", "Number"))
        .method(method("bytes_in", "BytesIn", "Data", "Sum"))
        .method(method("big_in_out", "BigInOut", "Data", "Data"))
        .build();
    Builder::new().compile(&[calls]);
}

#[cfg(feature = "grpc-cpp")]
fn grpc_cpp() {
    use std::path::PathBuf;
    use std::process::Command;
    use std::{env, fs};

    println!("cargo:rerun-if-changed=grpc");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where generated files go"));
    // protoc takes a generator by its path only.
    let path = env::var_os("PATH").unwrap_or_default();
    let plugin = env::split_paths(&path)
        .map(|folder| folder.join("grpc_cpp_plugin"))
        .find(|file| fs::exists(file).unwrap_or(false));
    let plugin = plugin.expect("no grpc_cpp_plugin on the path; install it (Debian: apt-get install protobuf-compiler-grpc)");
    let mut protoc = Command::new("protoc");
    protoc.arg(format!("--plugin=protoc-gen-grpc={}", plugin.display()));
    protoc.args(["--proto_path=grpc", "calls.proto"]);
    for kind in ["cpp", "grpc"] {
        protoc.arg(format!("--{kind}_out={}", out.display()));
    }
    let made =
        protoc.status().expect("no protoc; install it (Debian: apt-get install protobuf-compiler)");
    assert!(made.success(), "{protoc:?}: {made}");

    let libraries = ["grpc++", "protobuf"].map(|name| {
        let found = pkg_config::Config::new().cargo_metadata(false).probe(name);
        found.unwrap_or_else(|error| {
            panic!("{error}; install it (Debian: apt-get install libgrpc++-dev libprotobuf-dev)")
        })
    });
    let mut calls = cc::Build::new();
    calls
        .cpp(true)
        .std("c++17")
        .includes(libraries.iter().flat_map(|library| &library.include_paths))
        .include(&out);
    calls
        .file("grpc/calls.cpp")
        .files(["calls.pb.cc", "calls.grpc.pb.cc"].map(|file| out.join(file)));
    calls.flag("-Wno-unused-parameter").compile("calls");
    // After what needs them, or the linker leaves them out.
    for library in &libraries {
        library
            .link_paths
            .iter()
            .for_each(|path| println!("cargo:rustc-link-search=native={}", path.display()));
        library.libs.iter().for_each(|name| println!("cargo:rustc-link-lib={name}"));
    }
}
