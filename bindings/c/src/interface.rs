//! Interfaces as the generated C describes them, converted to the runtime's descriptors.

use crate::error::{Problem, text};
use std::ffi::c_char;
use std::slice;
use upcall_os::lock::KernelMutex;
use upcall_rpc::{Extent, Interface, Limits, Part, Procedure};

/// The version of the header that the library was built with.
const ABI: u32 = 2;

/// `upcall_procedure`.
#[repr(C)]
pub struct CProcedure {
    name: *const c_char,
    signature: *const c_char,
    hash: u64,
    args_fixed: u32,
    args_tail: u32,
    results_fixed: u32,
    results_tail: u32,
    string_limit: u64,
    list_limit: u64,
    values_limit: u64,
    calls: u16,
}

/// `upcall_part`.
#[repr(C)]
pub struct CPart {
    id: *const c_char,
    first: u16,
}

/// `upcall_interface`.
#[repr(C)]
pub struct CInterface {
    abi: u32,
    procedure_count: u32,
    part_count: u32,
    id: *const c_char,
    procedures: *const CProcedure,
    parts: *const CPart,
    source: *const c_char,
    limits: *const c_char,
}

/// The interfaces that were used so far. They are compared by contents, since an address may be
/// reused after a library is unloaded.
static KNOWN: KernelMutex<Vec<&'static Interface>> = KernelMutex::new(Vec::new());

/// Returns the runtime's descriptor for a descriptor in C.
///
/// # Safety
/// `interface` is null or as the header requires.
pub unsafe fn known(interface: *const CInterface) -> Result<&'static Interface, Problem> {
    // SAFETY: the caller's contract.
    let Some(told) = (unsafe { interface.as_ref() }) else {
        return Err(Problem::misuse("the interface is NULL"));
    };
    if told.abi != ABI {
        let text = format!(
            "the program was generated for version {} of upcall.h, and libupcall has version \
            {ABI}: generate and build it again",
            told.abi
        );
        return Err(Problem::misuse(text));
    }
    // SAFETY: the caller's contract: the descriptor is generated, and its texts are literals.
    let built = unsafe { build(told) }?;
    let mut known = KNOWN.lock();
    if let Some(same) = known.iter().find(|one| equal(one, &built)) {
        return Ok(same);
    }
    let kept: &'static Interface = Box::leak(Box::new(built));
    known.push(kept);
    Ok(kept)
}

/// # Safety
/// `told` is as the header requires.
unsafe fn build(told: &CInterface) -> Result<Interface, Problem> {
    let owned = |said: *const c_char, what: &str| {
        // SAFETY: the caller's contract.
        unsafe { text(said, what) }.map(|text| text.to_owned().into())
    };
    // SAFETY: the descriptor states how many there are.
    let procedures = unsafe { items(told.procedures, told.procedure_count) };
    let procedure = |told: &CProcedure| {
        Ok(Procedure {
            name: owned(told.name, "a procedure's name")?,
            signature: owned(told.signature, "a procedure's signature")?,
            hash: told.hash,
            args: Extent { fixed: told.args_fixed, tail: told.args_tail },
            results: Extent { fixed: told.results_fixed, tail: told.results_tail },
            calls: told.calls,
            limits: Limits {
                string: told.string_limit,
                list: told.list_limit,
                values: told.values_limit,
            },
        })
    };
    // SAFETY: the descriptor states how many there are.
    let parts = unsafe { items(told.parts, told.part_count) };
    let part = |told: &CPart| {
        Ok(Part { id: owned(told.id, "a carried interface's name")?, first: told.first })
    };
    Ok(Interface {
        id: owned(told.id, "the interface's name")?,
        procedures: procedures.iter().map(procedure).collect::<Result<Vec<_>, Problem>>()?.into(),
        parts: parts.iter().map(part).collect::<Result<Vec<_>, Problem>>()?.into(),
        source: owned(told.source, "the interface's source")?,
        limits: owned(told.limits, "the interface's limits")?,
    })
}

/// # Safety
/// `count` items lie at `start`, which may be null if there are none.
unsafe fn items<'a, T>(start: *const T, count: u32) -> &'a [T] {
    if start.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { slice::from_raw_parts(start, count as usize) }
}

fn equal(a: &Interface, b: &Interface) -> bool {
    let same = |(a, b): (&Procedure, &Procedure)| {
        (a.hash, a.args, a.results, a.calls, a.limits)
            == (b.hash, b.args, b.results, b.calls, b.limits)
            && a.name == b.name
            && a.signature == b.signature
    };
    let part = |(a, b): (&Part, &Part)| a.first == b.first && a.id == b.id;
    a.id == b.id
        && a.source == b.source
        && a.limits == b.limits
        && a.procedures.len() == b.procedures.len()
        && a.procedures.iter().zip(b.procedures.iter()).all(same)
        && a.parts.len() == b.parts.len()
        && a.parts.iter().zip(b.parts.iter()).all(part)
}
