//! Random values.

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::time::UNIX_EPOCH;
use upcall_idl::dynamic::DynamicInterface;
use upcall_idl::model::{Model, Type, TypeBody};

/// A strategy for any value of a type, in WAVE. An object is written as `<index>`, or `<&index>` if
/// it is lent, by the resource's index among the model's types.
#[expect(clippy::too_many_lines, reason = "one arm for each type")]
pub fn any_text(model: &'static Model, ty: &'static Type) -> BoxedStrategy<String> {
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
        Type::F64 => prop_oneof![
            any::<i32>().prop_map(|v| (f64::from(v) / 64.0).to_string()),
            Just("inf".into())
        ]
        .boxed(),
        Type::Char => "'[a-zß€𝄞]'".boxed(),
        // One string in a while is longer than the room in an A-stack.
        Type::String => {
            prop_oneof![40 => "\"[a-z ß€𝄞]{0,12}\"", 1 => "\"[a-z]{1500,2000}\""].boxed()
        }
        Type::List(t) => joined("[", "]", prop::collection::vec(of(t), 0..3).boxed()),
        Type::FixedList(t, n) => {
            joined("[", "]", prop::collection::vec(of(t), *n as usize).boxed())
        }
        Type::Option(t) => {
            prop_oneof![Just("none".to_owned()), of(t).prop_map(|v| format!("some({v})"))].boxed()
        }
        Type::Result(ok, err) => {
            prop_oneof![maybe("ok".into(), ok.as_deref()), maybe("err".into(), err.as_deref())]
                .boxed()
        }
        Type::Tuple(types) => joined("(", ")", types.iter().map(of).collect::<Vec<_>>().boxed()),
        Type::Own(id) => Just(format!("<{}>", id.index())).boxed(),
        Type::Borrow(id) => Just(format!("<&{}>", id.index())).boxed(),
        Type::Named(id) => match &model.def(*id).shape {
            TypeBody::Record(fields) => {
                let parts =
                    fields.iter().map(|f| of(&f.ty).prop_map(move |v| format!("{}: {v}", f.name)));
                joined("{", "}", parts.collect::<Vec<_>>().boxed())
            }
            TypeBody::Variant(cases) => {
                // A case may be called `some` or `ok`; the `%` makes it a name.
                let all =
                    cases.iter().map(|case| maybe(format!("%{}", case.name), case.ty.as_ref()));
                prop::strategy::Union::new(all).boxed()
            }
            TypeBody::Enum(labels) => {
                (0..labels.len()).prop_map(|n| format!("%{}", labels[n].name)).boxed()
            }
            TypeBody::Flags(labels) => {
                let set = prop::collection::vec(any::<bool>(), labels.len());
                set.prop_map(|set| {
                    let names = labels
                        .iter()
                        .zip(set)
                        .filter(|(_, set)| *set)
                        .map(|(label, _)| label.name.as_str());
                    format!("{{{}}}", names.collect::<Vec<_>>().join(", "))
                })
                .boxed()
            }
            TypeBody::Alias(_) | TypeBody::Resource => unreachable!("resolved above"),
        },
    }
}

/// A runner for `cases` cases, and its seed: from the clock, or from the variable `UPCALL_SEED`.
pub fn runner(cases: u32) -> (TestRunner, u64) {
    let given = std::env::var("UPCALL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 =
        given.unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    (TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)), seed)
}

/// Calls every procedure of `interface` with `cases` random values. `call` gets the procedure's
/// number and the argument block, and returns the result block. Both must hold the same value.
pub fn check(
    interface: &'static DynamicInterface,
    cases: u32,
    mut call: impl FnMut(u16, &[u8]) -> Result<Vec<u8>, String>,
) {
    for (number, procedure) in (0_u16..).zip(&interface.interface().procedures) {
        let (mut runner, seed) = runner(cases);
        let strategy = any_text(interface.model(), &procedure.params[0].ty);
        let call = std::cell::RefCell::new(&mut call);
        let done = runner.run(&strategy, |text| {
            let failed = |e: String| TestCaseError::fail(format!("{text}: {e}"));
            let block = interface.encode(procedure, &[&text]).map_err(|e| failed(e.to_string()))?;
            // The argument and the result have one type, so a block of one is a block of the other.
            let sent = interface.decode(procedure, &block).map_err(|e| failed(e.to_string()))?;
            let back = (call.borrow_mut())(number, &block).map_err(failed)?;
            prop_assert_eq!(
                interface.decode(procedure, &back).map_err(|e| failed(e.to_string()))?,
                sent
            );
            Ok(())
        });
        done.unwrap_or_else(|e| {
            panic!("{}: {}: UPCALL_SEED={seed}: {e}", interface.interface().id, procedure.signature)
        });
    }
}
