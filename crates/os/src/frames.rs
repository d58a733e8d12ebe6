//! Finds the calls on a stack, by the call frame information in `.eh_frame`.
//!
//! Compilers write this information for all code on x86-64, and Rust programs always have it. The
//! crate framehop is not used: it knows three registers and guesses where there is no information.
//! This module knows all sixteen, and ends a backtrace rather than guessing. The parser (gimli) is
//! needed for lines in any case.
//!
//! The caller supplies the words of the stack, and how to unwind from an address of the code
//! ([`UnwindTable::row`]).

#![forbid(unsafe_code)]

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, Encoding, EndianSlice, EvaluationResult, Format,
    LittleEndian, ParsedEhFrameHdr, Register, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection, Value,
};
use std::borrow::Borrow;
use std::sync::Arc;

type SectionBytes<'a> = EndianSlice<'a, LittleEndian>;

const MOST_STEPS: u32 = 1000;
/// Number of registers.
///
/// They are in the order of DWARF on x86-64 (System V ABI, figure 3.36): rax, rdx, rcx, rbx, rsi,
/// rdi, rbp, rsp, r8 to r15, and the instruction pointer.
pub const REGISTERS: usize = 17;
/// Index of rbx in that order.
pub const RBX: usize = 3;
/// Index of rbp in that order.
pub const RBP: usize = 6;
/// Index of the stack pointer in that order.
pub const RSP: usize = 7;
/// Index of the instruction pointer in that order.
pub const RIP: usize = 16;

/// The sections of a file that unwinding needs: addresses and contents.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sections<'a> {
    /// Address of `.text`.
    pub text: u64,
    /// `.eh_frame`.
    pub frames: (u64, &'a [u8]),
    /// `.eh_frame_hdr`, an index by address, if there is one.
    pub sorted: Option<(u64, &'a [u8])>,
}

/// The call frame information of one file.
#[derive(Debug)]
pub struct UnwindTable<'a> {
    section: EhFrame<SectionBytes<'a>>,
    header: Option<ParsedEhFrameHdr<SectionBytes<'a>>>,
    bases: BaseAddresses,
}

/// How to get from a frame to its caller's.
#[derive(Debug)]
pub struct UnwindRow<'a> {
    rules: Arc<UnwindRules>,
    section: EhFrame<SectionBytes<'a>>,
}

impl UnwindRow<'_> {
    /// The rules of the row, to be kept for [`UnwindTable::known_row`]: to find and read them takes
    /// about 2 µs.
    pub fn rules(&self) -> Arc<UnwindRules> {
        self.rules.clone()
    }
}

/// The rules for one instruction of a file.
#[derive(Debug)]
pub struct UnwindRules {
    cfa: CfaRule<usize>,
    registers: Vec<(Register, RegisterRule<usize>)>,
    /// `true` if the kernel put this frame here for a signal. Then its caller did not call: it was
    /// interrupted.
    signal: bool,
}

impl<'a> UnwindTable<'a> {
    /// The table of a file with these sections.
    pub fn new(Sections { text, frames, sorted }: Sections<'a>) -> Self {
        let mut bases = BaseAddresses::default().set_text(text).set_eh_frame(frames.0);
        let header = sorted.and_then(|(at, bytes)| {
            bases = bases.clone().set_eh_frame_hdr(at);
            EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok()
        });
        Self { section: EhFrame::new(frames.1, LittleEndian), header, bases }
    }

    /// The row for the instruction at an address in the file.
    ///
    /// # Errors
    /// There is no information for the address, or it cannot be read.
    pub fn row(&self, inside: u64) -> Result<UnwindRow<'a>, gimli::Error> {
        let cie = EhFrame::cie_from_offset;
        let fde = match self.header.as_ref().and_then(ParsedEhFrameHdr::table) {
            Some(table) => table.fde_for_address(&self.section, &self.bases, inside, cie),
            None => self.section.fde_for_address(&self.bases, inside, cie),
        }?;
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&self.section, &self.bases, &mut context, inside)?;
        let rules = UnwindRules {
            cfa: row.cfa().clone(),
            registers: row.registers().cloned().collect(),
            signal: fde.is_signal_trampoline(),
        };
        Ok(self.known_row(Arc::new(rules)))
    }

    /// A row of the same file, whose rules were found before.
    pub fn known_row(&self, rules: Arc<UnwindRules>) -> UnwindRow<'a> {
        UnwindRow { rules, section: self.section }
    }
}

/// The registers of a thread at a frame, as far as they are known.
#[derive(Clone, Debug)]
pub struct UnwindRegisters {
    registers: [Option<u64>; REGISTERS],
    /// `true` if the address is one to which a call returns.
    returns: bool,
}

impl UnwindRegisters {
    /// The registers of a stopped thread.
    pub fn stopped(registers: [Option<u64>; REGISTERS]) -> Self {
        Self { registers, returns: false }
    }

    /// The address of the instruction.
    pub fn address(&self) -> Option<u64> {
        self.registers[RIP]
    }

    /// The registers after `words` words were popped.
    pub fn popped(&self, words: u64) -> Self {
        let mut place = self.clone();
        place.registers[RSP] = self.registers[RSP].and_then(|sp| sp.checked_add(8 * words));
        place
    }

    /// The registers after the present function, which has just begun, returned.
    pub fn returned(&self, stack: &impl Fn(u64) -> Option<u64>) -> Self {
        let mut place = self.popped(1);
        place.registers[RIP] = self.registers[RSP].and_then(stack);
        place.returns = true;
        place
    }
}

/// The calls on a stack, the innermost first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct CallStack {
    /// Addresses, each with `true` if a call returns to it.
    pub at: Vec<(u64, bool)>,
    /// Why the list ends before the stack does; `None` if the last function was called by no other.
    pub cut: Option<String>,
}

/// Follows the calls from `place` on a `stack` whose words can be read.
///
/// It follows at most `most` calls. `rows` returns how to unwind from an instruction.
pub fn unwind<'a, R: Borrow<UnwindRow<'a>>, E: ToString>(
    rows: impl Fn(u64) -> Result<R, E>,
    mut place: UnwindRegisters,
    most: usize,
    stack: &impl Fn(u64) -> Option<u64>,
) -> CallStack {
    let mut calls = CallStack::default();
    while let Some(address) = place.address() {
        if calls.at.len() == most {
            calls.cut = Some(format!("more than {most} calls"));
            break;
        }
        calls.at.push((address, place.returns));
        // The address after a call may belong to the next function, or to another row.
        let row =
            rows(address.wrapping_sub(u64::from(place.returns))).map_err(|why| why.to_string());
        match row.and_then(|row| step(row.borrow(), address, &place, stack)) {
            Ok(caller) => place = caller,
            Err(why) => {
                calls.cut = Some(why);
                break;
            }
        }
    }
    calls
}

/// Unwinds from a frame to its caller's. Without a caller, the result has no address.
fn step(
    row: &UnwindRow<'_>,
    address: u64,
    place: &UnwindRegisters,
    stack: &impl Fn(u64) -> Option<u64>,
) -> Result<UnwindRegisters, String> {
    let frame = UnwindFrame { row, place, stack };
    let rules = &*row.rules;
    let cfa = match &rules.cfa {
        CfaRule::RegisterAndOffset { register, offset } => {
            frame.register(*register).map(|value| value.wrapping_add_signed(*offset))
        }
        CfaRule::Expression(expression) => frame.evaluate(expression, None),
    };
    let cfa = cfa.ok_or_else(|| format!("the frame of 0x{address:x} cannot be found"))?;
    if cfa <= place.registers[RSP].unwrap_or(0) && !rules.signal {
        return Err(format!("the frame of 0x{address:x} lies below that of its caller"));
    }
    let mut caller = UnwindRegisters { registers: place.registers, returns: !rules.signal };
    caller.registers[RSP] = Some(cfa);
    // Without a rule for the return address there is no caller.
    caller.registers[RIP] = None;
    for (register, rule) in &rules.registers {
        let Some(known) = caller.registers.get_mut(usize::from(register.0)) else { continue };
        *known = match rule {
            RegisterRule::Undefined | RegisterRule::Architectural => None,
            RegisterRule::SameValue => frame.register(*register),
            RegisterRule::Offset(offset) => stack(cfa.wrapping_add_signed(*offset)),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => frame.register(*other),
            RegisterRule::Expression(expression) => {
                frame.evaluate(expression, Some(cfa)).and_then(stack)
            }
            RegisterRule::ValExpression(expression) => frame.evaluate(expression, Some(cfa)),
            RegisterRule::Constant(value) => Some(*value),
        };
        let lost = usize::from(register.0) == RIP
            && known.is_none()
            && !matches!(rule, RegisterRule::Undefined);
        if lost {
            return Err(format!("the return address of the frame of 0x{address:x} was not read"));
        }
    }
    Ok(caller)
}

struct UnwindFrame<'a, S> {
    row: &'a UnwindRow<'a>,
    place: &'a UnwindRegisters,
    stack: &'a S,
}

impl<S: Fn(u64) -> Option<u64>> UnwindFrame<'_, S> {
    fn register(&self, register: Register) -> Option<u64> {
        self.place.registers.get(usize::from(register.0)).copied().flatten()
    }

    /// Evaluates a DWARF expression. `None` if it needs a value that is not known.
    fn evaluate(&self, expression: &UnwindExpression<usize>, initial: Option<u64>) -> Option<u64> {
        let expression = expression.get(&self.row.section).ok()?;
        let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
        let mut evaluation = expression.evaluation(encoding);
        evaluation.set_max_iterations(MOST_STEPS);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut state = evaluation.evaluate().ok()?;
        for _ in 0..MOST_STEPS {
            state = match state {
                EvaluationResult::Complete => {
                    let value = match evaluation.as_result().first()?.location {
                        gimli::Location::Address { address } => address,
                        _ => return None,
                    };
                    return Some(value);
                }
                EvaluationResult::RequiresMemory { address, size, .. } => {
                    let word = (self.stack)(address)?;
                    let mask = u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)));
                    evaluation.resume_with_memory(Value::Generic(word & mask)).ok()?
                }
                EvaluationResult::RequiresRegister { register, .. } => evaluation
                    .resume_with_register(Value::Generic(self.register(register)?))
                    .ok()?,
                _ => return None,
            };
        }
        None
    }
}
