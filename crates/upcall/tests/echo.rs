//! Random values of every construct, and of the types of WASI, encoded by the walker over the model
//! and by compiled stubs: each decodes what the other one encoded.
#![deny(warnings)]
#![forbid(unsafe_code)]

// At the root of a crate: the modules of one package find each other there too.
upcall::interface!("../idl/tests/wit/echo");

#[path = "../../idl/tests/echo/mod.rs"]
mod echo_values;

use echo::*;
use upcall_idl::dynamic::DynamicInterface;

struct Server;

macro_rules! give_back {
    ($($procedure:ident $ty:ty;)*) => {
        impl echo::Serve for Server {
            $( fn $procedure(&self, x: &[$ty]) -> Vec<$ty> { x.to_vec() } )*
        }
    };
}

give_back! {
    echo_numbers Numbers;
    echo_deep Deep;
    echo_alias Option<Deep>;
    echo_few Few;
    echo_method Method;
    echo_scheme Scheme;
    echo_http_error HttpError;
    echo_header_error HeaderError;
    echo_descriptor_type DescriptorType;
    echo_descriptor_flags DescriptorFlags;
    echo_path_flags PathFlags;
    echo_descriptor_stat DescriptorStat;
    echo_new_timestamp NewTimestamp;
    echo_directory_entry DirectoryEntry;
    echo_file_error FileError;
    echo_advice Advice;
    echo_metadata_hash_value MetadataHashValue;
    echo_ip_socket_address IpSocketAddress;
    echo_net_error NetError;
    echo_datetime Datetime;
}

#[test]
fn what_one_encodes_the_other_decodes() {
    let name = format!("echo-{}", std::process::id());
    let _server =
        upcall::Server::new().export(&name, echo::export(Server)).start().expect("a server");
    let interface = DynamicInterface::parse(&INTERFACE.id, &INTERFACE.source, &INTERFACE.limits)
        .expect("the interface's own text");
    let interface: &'static DynamicInterface = Box::leak(Box::new(interface));
    let binding = upcall_rpc::Binding::bind(&name, &INTERFACE).expect("binding");
    echo_values::check(interface, 60, |number, block| {
        binding.call_block(number, block).map_err(|e| e.to_string())
    });
}
