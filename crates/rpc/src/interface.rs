//! Interfaces as both sides know them: procedure descriptors, compiled from WIT.
//!
//! Source: LRPC, section 3.1: the clerk answers a binder with the procedure descriptor list
//! ([`Descriptor`]): the entry of each procedure, the number of simultaneous calls and the size of
//! its argument stack. As in the paper, the server's list decides. Here the client brings the
//! memory of the A-stacks, so that clients cannot exhaust a server: with the request as much as its
//! own copy of the interface says, and the rest once it has the list.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use upcall_shm::astack::{AStackPlan, LARGEST, MOST};
use upcall_shm::slot::INLINE;

/// An interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its full name, for example `demo:files/files@1.0.0`.
    pub id: Cow<'static, str>,
    /// Its procedures, by number. At most [`MOST_PROCEDURES`].
    pub procedures: Cow<'static, [Procedure]>,
    /// The interfaces that it carries. The procedures of each stand among its own, from a number
    /// on.
    pub parts: Cow<'static, [Part]>,
    /// The WIT text that it was compiled from.
    pub source: Cow<'static, str>,
    /// The text of the TOML file of limits; may be empty.
    pub limits: Cow<'static, str>,
}

/// An interface that another interface carries, because the other one takes or returns its objects.
/// A handle is valid for one binding only, so the procedures that make, take and call such objects
/// are bound together.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its full name.
    pub id: Cow<'static, str>,
    /// The number of its first procedure; the others follow in its own order.
    pub first: u16,
}

/// Maximum number of procedures of an interface.
pub const MOST_PROCEDURES: usize = 1000;

/// A compiled procedure.
#[derive(Clone, Debug)]
pub struct Procedure {
    /// Its name, for example `open` or `file.read`.
    pub name: Cow<'static, str>,
    /// Its type with all named types expanded: equal texts mean equal layouts.
    pub signature: Cow<'static, str>,
    /// A hash of `signature`: different hashes mean different texts.
    pub hash: u64,
    /// The block of its arguments.
    pub args: Extent,
    /// The block of its results.
    pub results: Extent,
    /// Number of simultaneous calls that have A-stacks; the server's value decides. A further call
    /// waits until an A-stack is returned. Procedures whose A-stacks are of one class share them.
    pub calls: u16,
    /// Maximum lengths of its values.
    pub limits: Limits,
}

/// The extent of a block in an A-stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of the fixed part.
    pub fixed: u32,
    /// Bytes reserved for the tail: exact where the interface bounds it, a default otherwise.
    /// Values that do not fit travel in a segment.
    pub tail: u32,
}

impl Extent {
    /// Sum of both parts, in bytes.
    pub const fn bytes(self) -> u32 {
        self.fixed.saturating_add(self.tail)
    }
}

/// Maximum lengths of the values that a procedure takes and returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a string.
    pub string: u64,
    /// Elements of a list.
    pub list: u64,
    /// Bytes that the server may hold for the arguments of one call as values of its own: strings,
    /// and lists that are copied. Bytes that are used in place do not count.
    pub values: u64,
}

/// Bytes of [`Limits::values`] if the interface sets no limit.
pub const DEFAULT_VALUES: u64 = upcall_sched::quota::DEFAULT_VALUES;

impl Default for Limits {
    /// Lengths are limited by memory alone, and values by their default.
    fn default() -> Self {
        Self { string: u64::MAX, list: u64::MAX, values: DEFAULT_VALUES }
    }
}

/// Maximum number of bytes of segments that a client keeps for later calls. The client returns
/// further segments at once.
pub(crate) const KEPT_SEGMENTS: usize = 64 << 20;

impl Procedure {
    /// Bytes of the A-stack that a call needs; 0 if slots suffice.
    pub fn astack_bytes(&self) -> u32 {
        let needs =
            |extent: Extent| if extent.bytes() as usize <= INLINE { 0 } else { extent.bytes() };
        needs(self.args).max(needs(self.results))
    }
}

impl Interface {
    /// The memory that a client brings when it binds to this interface.
    pub fn footprint(&self) -> Footprint {
        Footprint {
            channel: upcall_shm::channel::BYTES,
            astacks: self.plan().bytes(),
            kept_segments: KEPT_SEGMENTS,
        }
    }

    /// The A-stacks of a binding to the whole interface, if the server has the same interface.
    pub fn plan(&self) -> AStackPlan {
        let all: Vec<_> =
            (0..self.procedures.len()).map(|number| self.descriptor(number as u16)).collect();
        plan(&all)
    }

    /// The descriptor of the procedure with this number.
    pub(crate) fn descriptor(&self, number: u16) -> Descriptor {
        let procedure = &self.procedures[usize::from(number)];
        let bytes = procedure.astack_bytes().min(LARGEST);
        Descriptor { number, calls: procedure.calls.clamp(1, MOST), bytes }
    }
}

/// A server's description of a procedure when a client binds (LRPC's procedure descriptor).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The procedure's number in the server: the entry.
    pub number: u16,
    /// Number of simultaneous calls that have A-stacks, from 1 to 64.
    pub calls: u16,
    /// Bytes of an A-stack before rounding up to its class: at most 1 MiB, and 0 if slots suffice.
    /// Values that do not fit travel in a segment.
    pub bytes: u32,
}

impl Descriptor {
    /// Returns what breaks the protocol in this descriptor, if anything. The number of A-stacks and
    /// their size bound the memory that the client makes.
    fn fault(&self) -> Option<String> {
        let Self { number, calls, bytes } = *self;
        let sound = usize::from(number) < MOST_PROCEDURES
            && (1..=MOST).contains(&calls)
            && bytes <= LARGEST;
        (!sound).then(|| {
            format!("a procedure with number {number}, and {calls} A-stacks of {bytes} bytes")
        })
    }
}

/// Checks the list that a server gave to a client that asked for `wanted` procedures.
///
/// # Errors
/// What breaks the protocol.
pub(crate) fn check_descriptors(list: &[Descriptor], wanted: usize) -> Result<(), String> {
    if list.len() != wanted {
        return Err(format!("descriptors of {} procedures, not of {wanted}", list.len()));
    }
    list.iter().find_map(Descriptor::fault).map_or(Ok(()), Err)
}

/// The A-stacks of a binding with this list.
pub(crate) fn plan(list: &[Descriptor]) -> AStackPlan {
    AStackPlan::for_procedures(list.iter().map(|procedure| (procedure.bytes, procedure.calls)))
}

/// The memory that a client brings so that it can call, in bytes of address space. Pages that are
/// never touched take no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The channel, once for each 64 bindings to one server.
    pub channel: usize,
    /// The A-stacks of one binding.
    pub astacks: usize,
    /// Maximum bytes of segments that one channel keeps for later calls. Segments in use come on
    /// top while the calls last.
    pub kept_segments: usize,
}

/// A client's description of a procedure when it binds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedProcedure<'a> {
    /// Its name.
    pub name: &'a str,
    /// The hash of its signature.
    pub hash: u64,
    /// Its signature.
    pub signature: &'a str,
}

/// A procedure on which client and server do not agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Its name.
    pub name: String,
    /// The signature that the client was compiled with.
    pub wanted: String,
    /// The signature that the server was compiled with; `None` if it has no such procedure.
    pub exported: Option<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.exported {
            Some(exported) => write!(
                f,
                "{}: this program has\n    {}\n  the server has\n    {exported}",
                self.name, self.wanted
            ),
            None => write!(
                f,
                "{}: this program has\n    {}\n  the server has no such procedure",
                self.name, self.wanted
            ),
        }
    }
}

/// The procedures that do not match, as many as fit into one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatches {
    /// The first of them. Types of more than 16 KiB are cut.
    pub told: Vec<Mismatch>,
    /// Number of further procedures that do not match.
    pub more: u32,
}

/// Maximum number of bytes of them in an answer. With one more they still fit into a control
/// message. The client decides how many there are, so the answer needs a bound.
const MOST_TOLD: usize = 64 << 10;
/// Maximum length of the text of a type among them, in bytes.
const MOST_OF_ONE: usize = 16 << 10;

/// Copies the text, or its beginning. Returns an empty text if there is no memory for the copy.
fn cut(text: &str) -> String {
    let kept = upcall_os::text::cut(text, MOST_OF_ONE);
    let mark = if kept.len() < text.len() { "…" } else { "" };
    let mut copy = String::new();
    if copy.try_reserve_exact(kept.len() + mark.len()).is_ok() {
        copy.push_str(kept);
        copy.push_str(mark);
    }
    copy
}

impl Mismatches {
    fn add(&mut self, want: &WantedProcedure<'_>, have: Option<&Procedure>) {
        let bytes = |one: &Mismatch| {
            one.name.len() + one.wanted.len() + one.exported.as_ref().map_or(0, String::len)
        };
        if self.more > 0 || self.told.iter().map(bytes).sum::<usize>() > MOST_TOLD {
            self.more += 1;
            return;
        }
        let exported = have.map(|have| cut(&have.signature));
        if self.told.try_reserve(1).is_err() {
            self.more += 1;
            return;
        }
        self.told.push(Mismatch { name: cut(want.name), wanted: cut(want.signature), exported });
    }
}

/// Finds each procedure that a client wants among the procedures of a server. So an added procedure
/// breaks no client, and a changed or missing one is reported by name (LRPC's "binding authorises",
/// checked per procedure).
///
/// # Errors
/// The procedures that do not match.
pub fn match_procedures(
    wanted: &[WantedProcedure<'_>],
    exported: &Interface,
) -> Result<Vec<u16>, Mismatches> {
    let mut numbers = Vec::new();
    match_each(wanted, exported, |number| numbers.push(number)).map(|()| numbers)
}

/// Like [`match_procedures`], one number after the other.
pub(crate) fn match_each(
    wanted: &[WantedProcedure<'_>],
    exported: &Interface,
    mut matched: impl FnMut(u16),
) -> Result<(), Mismatches> {
    let known: HashMap<&str, usize> =
        exported.procedures.iter().enumerate().map(|(at, known)| (&*known.name, at)).collect();
    let mut mismatches = Mismatches::default();
    for want in wanted {
        match known.get(want.name).map(|&number| (number, &exported.procedures[number])) {
            Some((number, have)) if have.hash == want.hash && have.signature == want.signature => {
                matched(number as u16)
            }
            other => mismatches.add(want, other.map(|(_, have)| have)),
        }
    }
    if mismatches.told.is_empty() && mismatches.more == 0 { Ok(()) } else { Err(mismatches) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn procedure(name: &'static str, signature: &'static str) -> Procedure {
        Procedure {
            name: name.into(),
            signature: signature.into(),
            hash: signature.len() as u64,
            args: Extent { fixed: 8, tail: 0 },
            results: Extent { fixed: 200, tail: 0 },
            calls: 5,
            limits: Limits::default(),
        }
    }

    fn interface(procedures: Vec<Procedure>) -> Interface {
        Interface {
            id: "t:t/t".into(),
            procedures: procedures.into(),
            parts: vec![].into(),
            source: "".into(),
            limits: "".into(),
        }
    }

    fn want<'a>(name: &'a str, signature: &'a str) -> WantedProcedure<'a> {
        WantedProcedure { name, hash: signature.len() as u64, signature }
    }

    #[test]
    fn an_added_procedure_breaks_nobody_and_a_changed_one_is_told() {
        let server = interface(vec![
            procedure("added", "func()"),
            procedure("old", "func(a: u8)"),
            procedure("changed", "func(a: u16)"),
        ]);
        assert_eq!(match_procedures(&[want("old", "func(a: u8)")], &server), Ok(vec![1]));
        let mismatches =
            match_procedures(&[want("changed", "func(a: u32)"), want("gone", "func()")], &server)
                .unwrap_err();
        assert_eq!((mismatches.told.len(), mismatches.more), (2, 0));
        let text = format!("{}\n{}", mismatches.told[0], mismatches.told[1]);
        assert!(
            text.contains("func(a: u32)")
                && text.contains("func(a: u16)")
                && text.contains("no such procedure"),
            "{text}"
        );
    }

    #[test]
    fn a_client_does_not_have_more_told_than_a_message_holds() {
        let long: &str = "func(a: u16)ü".repeat(4000).leak();
        let server = interface(vec![procedure("long", long)]);
        // A request of few bytes wants many procedures.
        let mismatches = match_procedures(&vec![want("long", ""); 1000], &server).unwrap_err();
        assert_eq!((mismatches.told.len(), mismatches.more), (4, 996));
        let all: usize =
            mismatches.told.iter().map(|one| one.exported.as_ref().unwrap().len()).sum();
        assert!(
            all < 90_000 && mismatches.told[0].exported.as_ref().unwrap().ends_with('…'),
            "{all}"
        );
        let text = "x".repeat(100_000);
        let asked = want("long", &text);
        assert!(match_procedures(&[asked], &server).unwrap_err().told[0].wanted.len() < 17_000);
    }

    #[test]
    fn a_plan_comes_from_the_descriptors() {
        let plan = interface(vec![procedure("a", ""), procedure("b", "")]).plan();
        assert_eq!(plan.classes().len(), 1);
        assert_eq!(plan.bytes(), 5 * 256);
    }

    #[test]
    fn a_servers_list_is_checked() {
        let server = interface(vec![procedure("a", ""), procedure("b", ""), procedure("c", "")]);
        let list = [2, 0].map(|number| server.descriptor(number));
        assert_eq!(list[0], Descriptor { number: 2, calls: 5, bytes: 200 });
        assert_eq!(check_descriptors(&list, 2), Ok(()));
        assert!(check_descriptors(&list, 3).is_err());
        for (number, calls, bytes) in
            [(1000, 5, 200), (u16::MAX, 5, 200), (0, 0, 200), (0, 65, 200), (0, 5, LARGEST + 1)]
        {
            let said = check_descriptors(&[Descriptor { number, calls, bytes }], 1).unwrap_err();
            assert!(
                said.contains(&number.to_string()) && said.contains(&bytes.to_string()),
                "{said}"
            );
        }
        // A server does not announce procedures of its own that exceed the protocol's bounds.
        let mut much = procedure("much", "");
        (much.calls, much.args.tail) = (1000, 2 << 20);
        assert_eq!(check_descriptors(&[interface(vec![much]).descriptor(0)], 1), Ok(()));
    }
}
