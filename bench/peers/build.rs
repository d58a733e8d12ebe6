//! Makes the gRPC client and server from a description in Rust, so that building takes no protobuf compiler.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "rpc")]
    grpc();
}

#[cfg(feature = "rpc")]
fn grpc() {
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
