//! From a stack to the calls that are under way on it, by the call frame information in `.eh_frame`, which Rust programs always have.
//!
//! Why not the crate framehop: it knows three registers and guesses where there is no information; this knows all sixteen, and would rather end
//! a backtrace than guess. The parser (gimli) is needed for lines in any case.
//!
//! A suspended thread is unwound as if it had popped the four words that `arch::switch` pushes: the inline assembly does not tell the call frame
//! information of them. See the pictures in `thread/src/arch/x86_64.rs`.

use super::code::Code;
use super::image::Elf;
use addr2line::gimli::{
    self, BaseAddresses, CfaRule, EhFrame, EhFrameHdr, Encoding, EndianSlice, EvaluationResult, Format, LittleEndian,
    ParsedEhFrameHdr, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, Value,
};
use object::{Object, ObjectSection};
use upcall_os::trace::Registers;

type Slice = EndianSlice<'static, LittleEndian>;

/// Deeper is a recursion that repeats itself, or no stack.
const MOST_FRAMES: usize = 512;
const MOST_STEPS: u32 = 1000;
/// In the order of DWARF on x86-64.
const RBX: usize = 3;
const RBP: usize = 6;
const RSP: usize = 7;
const RIP: usize = 16;

/// The call frame information of one file.
pub struct Table {
    section: EhFrame<Slice>,
    header: Option<ParsedEhFrameHdr<Slice>>,
    bases: BaseAddresses,
}

/// How to get from a frame to its caller's.
pub struct Row {
    cfa: CfaRule<usize>,
    registers: Vec<(Register, RegisterRule<usize>)>,
    /// The kernel put this frame here for a signal, so its caller did not call: it was interrupted.
    signal: bool,
    section: EhFrame<Slice>,
}

impl Table {
    pub fn new(elf: &Elf<'static>) -> Self {
        let section = |name: &str| {
            let section = elf.section_by_name(name)?;
            Some((section.address(), section.data().ok()?))
        };
        let mut bases = BaseAddresses::default();
        if let Some((text, _)) = section(".text") {
            bases = bases.set_text(text);
        }
        let (at, frames) = section(".eh_frame").unwrap_or_default();
        bases = bases.set_eh_frame(at);
        let header = section(".eh_frame_hdr").and_then(|(at, bytes)| {
            bases = bases.clone().set_eh_frame_hdr(at);
            EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok()
        });
        Self { section: EhFrame::new(frames, LittleEndian), header, bases }
    }

    /// For the instruction at `address`, of a file that is shifted by `bias`.
    pub fn row(&self, address: u64, bias: u64) -> Result<Row, String> {
        let inside = address.wrapping_sub(bias);
        let fail = |error: gimli::Error| format!("no unwind information for 0x{address:x}: {error}");
        let cie = EhFrame::cie_from_offset;
        let table = self.header.as_ref().and_then(|header| header.table());
        let fde = match table {
            Some(table) => table.fde_for_address(&self.section, &self.bases, inside, cie),
            None => self.section.fde_for_address(&self.bases, inside, cie),
        };
        let fde = fde.map_err(fail)?;
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&self.section, &self.bases, &mut context, inside).map_err(fail)?;
        Ok(Row {
            cfa: row.cfa().clone(),
            registers: row.registers().cloned().collect(),
            signal: fde.is_signal_trampoline(),
            section: self.section,
        })
    }
}

/// Where a thread stands: the registers as far as they are known, the instruction pointer last.
#[derive(Clone)]
pub struct Place {
    registers: [Option<u64>; 17],
}

impl Place {
    /// Of a kernel thread that was stopped.
    pub fn running(registers: &Registers) -> Self {
        let mut all = [None; 17];
        for (to, from) in all.iter_mut().zip(registers.general) {
            *to = Some(from);
        }
        all[RIP] = Some(registers.instruction);
        Self { registers: all }
    }

    /// As if it had popped so many words.
    pub fn popped(&self, words: u64) -> Self {
        let mut place = self.clone();
        place.registers[RSP] = self.registers[RSP].and_then(|sp| sp.checked_add(8 * words));
        place
    }

    /// Of a thread whose saved stack pointer is `sp`. `None`: the picture there was not read.
    pub fn suspended(sp: u64, stack: &impl Fn(u64) -> Option<u64>) -> Option<Self> {
        let word = |index: u64| stack(sp.checked_add(8 * index)?);
        let mut registers = [None; 17];
        registers[RIP] = Some(word(1)?);
        registers[RBX] = Some(word(2)?);
        registers[RBP] = Some(word(3)?);
        registers[RSP] = Some(sp.checked_add(32)?);
        Some(Self { registers })
    }
}

/// The calls on a stack, the innermost first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Calls {
    /// Addresses, and whether each is one that a call returns to.
    pub at: Vec<(u64, bool)>,
    /// Why it ends before the stack does.
    pub cut: Option<String>,
}

/// Follows the calls from `place`, on a `stack` of which words can be read.
pub fn unwind(code: &Code<'_>, mut place: Place, stack: &impl Fn(u64) -> Option<u64>) -> Calls {
    let mut calls = Calls::default();
    let mut returns = false;
    while let Some(address) = place.registers[RIP] {
        if calls.at.len() == MOST_FRAMES {
            calls.cut = Some(format!("more than {MOST_FRAMES} calls"));
            break;
        }
        calls.at.push((address, returns));
        match step(code, &place, returns, stack) {
            Ok((caller, signal)) => {
                place = caller;
                returns = !signal;
            }
            Err(why) => {
                calls.cut = Some(why);
                break;
            }
        }
    }
    calls
}

/// From a frame to its caller's; whether it was interrupted there. A caller without an address: there is none.
fn step(code: &Code<'_>, place: &Place, returns: bool, stack: &impl Fn(u64) -> Option<u64>) -> Result<(Place, bool), String> {
    let address = place.registers[RIP].unwrap_or_default();
    // The address behind a call may belong to the next function, or to other rows.
    let row = code.row(address.wrapping_sub(u64::from(returns))).map_err(|why| why.to_string())?;
    let frame = Frame { row: &row, place, stack };
    let cfa = match &row.cfa {
        CfaRule::RegisterAndOffset { register, offset } => {
            frame.register(*register).map(|value| value.wrapping_add_signed(*offset))
        }
        CfaRule::Expression(expression) => frame.evaluate(expression, None),
    };
    let cfa = cfa.ok_or_else(|| format!("the frame of 0x{address:x} cannot be found"))?;
    if cfa <= place.registers[RSP].unwrap_or(0) && !row.signal {
        return Err(format!("the frame of 0x{address:x} lies below that of its caller"));
    }
    let mut caller = place.clone();
    caller.registers[RSP] = Some(cfa);
    // No rule for the return address: nobody called.
    caller.registers[RIP] = None;
    for (register, rule) in &row.registers {
        let Some(known) = caller.registers.get_mut(usize::from(register.0)) else { continue };
        *known = match rule {
            RegisterRule::Undefined | RegisterRule::Architectural => None,
            RegisterRule::SameValue => frame.register(*register),
            RegisterRule::Offset(offset) => stack(cfa.wrapping_add_signed(*offset)),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => frame.register(*other),
            RegisterRule::Expression(expression) => frame.evaluate(expression, Some(cfa)).and_then(stack),
            RegisterRule::ValExpression(expression) => frame.evaluate(expression, Some(cfa)),
            RegisterRule::Constant(value) => Some(*value),
        };
        let lost = usize::from(register.0) == RIP && known.is_none() && !matches!(rule, RegisterRule::Undefined);
        if lost {
            return Err(format!("what the call of 0x{address:x} returns to was not read"));
        }
    }
    Ok((caller, row.signal))
}

struct Frame<'a, S> {
    row: &'a Row,
    place: &'a Place,
    stack: &'a S,
}

impl<S: Fn(u64) -> Option<u64>> Frame<'_, S> {
    fn register(&self, register: Register) -> Option<u64> {
        self.place.registers.get(usize::from(register.0)).copied().flatten()
    }

    /// Runs a DWARF expression. `None`: it needs what is not known.
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
                EvaluationResult::RequiresRegister { register, .. } => {
                    evaluation.resume_with_register(Value::Generic(self.register(register)?)).ok()?
                }
                _ => return None,
            };
        }
        None
    }
}
