//! What a program may have found out about its processor, and uses from then on.
//!
//! A C library chooses its functions by the processor's features when a program starts. So a ULP
//! moves only to a processor that has all of these features. Where an interrupt finds a ULP, the
//! kernel lays all of its registers on its stack, in an order that depends on the processor. So
//! their set must be the same.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, "CPUID".

use serde::{Deserialize, Serialize};
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::fmt;
use std::sync::OnceLock;

/// Where the processor says what it has, and which of these bits programs use. The others are about
/// the kernel, or about this very processor.
const FEATURES: [(&str, u32, u32, ProcessorRegister, u32); 9] = [
    ("1 ECX", 1, 0, ProcessorRegister::Ecx, 0x7ED8_3203),
    ("1 EDX", 1, 0, ProcessorRegister::Edx, 0x0788_8111),
    ("7 EBX", 7, 0, ProcessorRegister::Ebx, 0xFDAF_0B39),
    ("7 ECX", 7, 0, ProcessorRegister::Ecx, 0x1A40_5F72),
    ("7 EDX", 7, 0, ProcessorRegister::Edx, 0x03C0_411C),
    ("7.1 EAX", 7, 1, ProcessorRegister::Eax, 0x00A0_1C37),
    ("0x80000001 ECX", 0x8000_0001, 0, ProcessorRegister::Ecx, 0x0021_0961),
    ("0x80000001 EDX", 0x8000_0001, 0, ProcessorRegister::Edx, 0x2800_0000),
    ("13.1 EAX", 13, 1, ProcessorRegister::Eax, 0x7),
];

#[derive(Clone, Copy, Debug)]
enum ProcessorRegister {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

/// A processor, as programs see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorTraits {
    /// What programs use, as `CPUID` says it. The places are this version's own.
    pub features: [u32; 9],
    /// The sets of registers that the processor has, and the size of those in use, in bytes.
    pub registers: [u32; 2],
}

/// What a processor does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessorLack {
    /// These features: where the processor names them, and their bits.
    Features(&'static str, u32),
    /// The same registers.
    Registers,
}

impl fmt::Display for ProcessorLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Features(leaf, bits) => write!(f, "features of CPUID leaf {leaf}: {bits:#x}"),
            Self::Registers => f.write_str("the same vector registers"),
        }
    }
}

impl ProcessorTraits {
    /// This process's processor.
    pub fn own() -> Self {
        static OWN: OnceLock<ProcessorTraits> = OnceLock::new();
        OWN.get_or_init(Self::read).clone()
    }

    fn read() -> Self {
        let exists = |leaf: u32| leaf <= __cpuid(leaf & 0x8000_0000).eax;
        let features = FEATURES.map(|(_, leaf, part, register, mask)| {
            let known = if exists(leaf) { Some(__cpuid_count(leaf, part)) } else { None };
            let bits = known.map_or(0, |all| match register {
                ProcessorRegister::Eax => all.eax,
                ProcessorRegister::Ebx => all.ebx,
                ProcessorRegister::Ecx => all.ecx,
                ProcessorRegister::Edx => all.edx,
            });
            bits & mask
        });
        let registers = if exists(13) { __cpuid_count(13, 0) } else { __cpuid(0) };
        let registers = if exists(13) { [registers.eax, registers.ebx] } else { [0; 2] };
        Self { features, registers }
    }

    /// What `other` does not have of this processor, if a ULP from here cannot go on there.
    pub fn lack_of(&self, other: &Self) -> Option<ProcessorLack> {
        let both = self.features.iter().zip(other.features).zip(FEATURES);
        let mut lacks = both.map(|((one, other), (leaf, ..))| (leaf, one & !other));
        if let Some((leaf, bits)) = lacks.find(|(_, bits)| *bits != 0) {
            return Some(ProcessorLack::Features(leaf, bits));
        }
        (self.registers != other.registers).then_some(ProcessorLack::Registers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_has_more_is_fit_and_one_that_has_less_is_not() {
        let own = ProcessorTraits::own();
        // Each processor of this kind has SSE2 (leaf 1, EDX, bit 26).
        assert_eq!((own.features[1] >> 26 & 1, own.lack_of(&own)), (1, None));
        for (at, (leaf, ..)) in FEATURES.into_iter().enumerate() {
            let mut less = own.clone();
            less.features[at] = 0;
            let lack = own.lack_of(&less);
            let expected = ProcessorLack::Features(leaf, own.features[at]);
            assert_eq!(lack, Some(expected).filter(|_| own.features[at] != 0));
            assert_eq!(less.lack_of(&own), None);
        }
        let mut other = own.clone();
        other.registers[1] += 64;
        assert_eq!(own.lack_of(&other), Some(ProcessorLack::Registers));
    }
}
