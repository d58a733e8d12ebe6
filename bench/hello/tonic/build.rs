//! Generates the client and the server.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let hello = Method::builder()
        .name("say_hello")
        .route_name("SayHello")
        .input_type("crate::HelloRequest")
        .output_type("crate::HelloReply")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    Builder::new()
        .compile(&[Service::builder().name("Greeter").package("hello").method(hello).build()]);
}
