//! Random values of every construct, and of the types of WASI, encoded by the walker over the model and by compiled stubs:
//! each decodes what the other one encoded.
#![deny(warnings)]
#![forbid(unsafe_code)]

// At the root of a crate: the modules of one package find each other there too.
upcall::interface!("../idl/tests/wit/echo");

use echo::*;
use proptest::prelude::*;
use upcall_idl::dynamic::Interface;
use upcall_idl::model::{Model, Shape, Type};

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

/// Any value of a type, in WAVE.
fn any_text(model: &'static Model, ty: &'static Type) -> BoxedStrategy<String> {
    let of = |t: &'static Type| any_text(model, t);
    let maybe = |name: String, t: Option<&'static Type>| match t {
        Some(t) => of(t).prop_map(move |value| format!("{name}({value})")).boxed(),
        None => Just(name).boxed(),
    };
    let joined = |open: &'static str, close: &'static str, all: BoxedStrategy<Vec<String>>| {
        all.prop_map(move |all| format!("{open}{}{close}", all.join(", "))).boxed()
    };
    match model.resolve(ty) {
        Type::Bool => any::<bool>().prop_map(|v| v.to_string()).boxed(),
        Type::U8 => any::<u8>().prop_map(|v| v.to_string()).boxed(),
        Type::U16 => any::<u16>().prop_map(|v| v.to_string()).boxed(),
        Type::U32 => any::<u32>().prop_map(|v| v.to_string()).boxed(),
        Type::U64 => any::<u64>().prop_map(|v| v.to_string()).boxed(),
        Type::S8 => any::<i8>().prop_map(|v| v.to_string()).boxed(),
        Type::S16 => any::<i16>().prop_map(|v| v.to_string()).boxed(),
        Type::S32 => any::<i32>().prop_map(|v| v.to_string()).boxed(),
        Type::S64 => any::<i64>().prop_map(|v| v.to_string()).boxed(),
        Type::F32 => (-1000_i16..1000).prop_map(|v| (f32::from(v) / 8.0).to_string()).boxed(),
        Type::F64 => prop_oneof![any::<i32>().prop_map(|v| (f64::from(v) / 64.0).to_string()), Just("inf".into())].boxed(),
        Type::Char => "'[a-zß€𝄞]'".boxed(),
        Type::String => "\"[a-z ß€𝄞]{0,12}\"".boxed(),
        Type::List(t) => joined("[", "]", prop::collection::vec(of(t), 0..3).boxed()),
        Type::FixedList(t, n) => joined("[", "]", prop::collection::vec(of(t), *n as usize).boxed()),
        Type::Option(t) => prop_oneof![Just("none".to_owned()), of(t).prop_map(|v| format!("some({v})"))].boxed(),
        Type::Result(ok, err) => prop_oneof![maybe("ok".into(), ok.as_deref()), maybe("err".into(), err.as_deref())].boxed(),
        Type::Tuple(types) => joined("(", ")", types.iter().map(of).collect::<Vec<_>>().boxed()),
        Type::Own(_) | Type::Borrow(_) => unreachable!("nothing to give back"),
        Type::Named(id) => match &model.def(*id).shape {
            Shape::Record(fields) => {
                let parts = fields.iter().map(|f| of(&f.ty).prop_map(move |v| format!("{}: {v}", f.name)));
                joined("{", "}", parts.collect::<Vec<_>>().boxed())
            }
            Shape::Variant(cases) => {
                // A case may be called `some` or `ok`; the sign makes it a name.
                let all = cases.iter().map(|case| maybe(format!("%{}", case.name), case.ty.as_ref()));
                prop::strategy::Union::new(all).boxed()
            }
            Shape::Enum(labels) => (0..labels.len()).prop_map(|n| format!("%{}", labels[n].name)).boxed(),
            Shape::Flags(labels) => {
                let set = prop::collection::vec(any::<bool>(), labels.len());
                set.prop_map(|set| {
                    let names = labels.iter().zip(set).filter(|(_, set)| *set).map(|(label, _)| label.name.as_str());
                    format!("{{{}}}", names.collect::<Vec<_>>().join(", "))
                })
                .boxed()
            }
            Shape::Alias(_) | Shape::Resource => unreachable!("resolved above"),
        },
    }
}

#[test]
fn what_one_encodes_the_other_decodes() {
    let name = format!("echo-{}", std::process::id());
    let _server = upcall::Server::new().export(&name, echo::export(Server)).start().expect("a server");
    let interface = Interface::parse(&INTERFACE.id, &INTERFACE.source, &INTERFACE.limits).expect("the interface's own text");
    let interface: &'static Interface = Box::leak(Box::new(interface));
    let binding = upcall_rpc::Binding::bind(&name, &INTERFACE).expect("binding");
    for (number, procedure) in INTERFACE.procedures.iter().enumerate() {
        let procedure = interface.procedure(&procedure.name).expect("a procedure of the text");
        let config = ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
        let strategy = any_text(interface.model(), &procedure.params[0].ty);
        let done = proptest::test_runner::TestRunner::new(config).run(&strategy, |text| {
            let block = interface.encode(procedure, &[&text]).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
            // Arguments and results are of one type: a block of the one is a block of the other.
            let sent = interface.decode(procedure, &block).expect("what was encoded a moment ago");
            let back = binding.call_block(number as u16, &block).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
            prop_assert_eq!(interface.decode(procedure, &back).expect("what a compiled stub encoded"), sent);
            Ok(())
        });
        done.unwrap_or_else(|e| panic!("{}: {e}", procedure.name));
    }
}
