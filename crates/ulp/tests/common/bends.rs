//! States of ULPs that are bent, field by field.

use crate::moving::{Taken, poke, stack_of};
use upcall_ulp::UlpDescriptor;

/// A change to what was taken, and what is said of it.
pub type Bend = (&'static str, fn(&mut Taken));

/// Each field in turn.
pub const BENDS: &[Bend] = &[
    ("version", |taken| taken.state.versions[0] += 1),
    ("version", |taken| taken.state.versions[1] -= 1),
    ("place", |taken| taken.state.slot += 1 << 40),
    ("place", |taken| taken.state.slot = u64::MAX),
    ("place", |taken| taken.state.slots = 0),
    ("place", |taken| taken.state.slots = u64::MAX),
    ("end of the heap is invalid", |taken| taken.state.slots += 1),
    ("length differs", |taken| taken.state.image.stamp.length += 1),
    ("build id differs", |taken| taken.state.image.build_id = None),
    ("last change differs", |taken| taken.state.image.stamp.modified[0] += 1),
    ("last change differs", |taken| taken.state.image.stamp.changed[1] += 1),
    ("features of CPUID leaf 7 EBX", |taken| taken.state.processor.features[2] = u32::MAX),
    ("the same vector registers", |taken| taken.state.processor.registers[1] += 8),
    ("process is invalid", |taken| taken.state.process = 1),
    ("process is invalid", |taken| taken.state.process = u32::MAX),
    ("stack is invalid", |taken| taken.state.stack *= 2),
    ("stack is invalid", |taken| taken.state.stack -= 8),
    ("stack is invalid", |taken| taken.state.stack = 0),
    ("stack is invalid", |taken| taken.state.stack = u64::MAX),
    ("stack pointer is invalid", |taken| taken.state.context.sp += 4),
    ("stack pointer is invalid", |taken| taken.state.context.sp = 0),
    ("stack pointer is invalid", |taken| taken.state.context.sp = u64::MAX - 7),
    ("stack pointer is invalid", |taken| taken.state.context.sp = 1 << 41),
    ("stack pointer is invalid", |taken| taken.state.context.sp = stack_of(taken).end - 64),
    ("question is invalid", |taken| taken.state.context.what = 0),
    ("question is invalid", |taken| taken.state.context.what = u64::MAX),
    ("open files", |taken| {
        taken.state.descriptors.push(UlpDescriptor {
            number: 3,
            inherited: false,
            real: 3,
            file: None,
        })
    }),
    ("stack is invalid", |taken| stack_of(taken).protection = 1),
    ("stack is invalid", |taken| stack_of(taken).start += 4096),
    ("stack is invalid", |taken| taken.state.mappings.clear()),
    ("number of mappings is invalid", |taken| {
        let one = taken.state.mappings[0];
        taken.state.mappings = vec![one; 100_000];
    }),
    ("mapping is invalid", |taken| taken.state.mappings[1].start -= 4096),
    ("mapping is invalid", |taken| taken.state.mappings.reverse()),
    ("mapping is invalid", |taken| taken.state.mappings[0].start += 1),
    ("mapping is invalid", |taken| taken.state.mappings[0].end += 1),
    ("mapping is invalid", |taken| taken.state.mappings[0].start = 0),
    ("mapping is invalid", |taken| taken.state.mappings[0].end = 0),
    ("mapping is invalid", |taken| taken.state.mappings[0].end = u64::MAX / 4096 * 4096),
    ("mapping is invalid", |taken| {
        let last = taken.state.mappings.len() - 1;
        taken.state.mappings[last].end += 1 << 30;
    }),
    ("protection is invalid", |taken| taken.state.mappings[0].protection = 8),
    ("offset is invalid", |taken| taken.state.mappings[1].offset = Some(1)),
    ("offset is invalid", |taken| taken.state.mappings[1].offset = Some(1 << 30)),
    ("offset is invalid", |taken| taken.state.mappings[1].offset = Some(u64::MAX / 4096 * 4096)),
    ("piece is invalid", |taken| taken.pieces[0].0 += 1),
    ("piece is invalid", |taken| taken.pieces[0].0 = 4096),
    ("piece is invalid", |taken| taken.pieces[0].0 += 1 << 30),
    ("piece is invalid", |taken| taken.pieces[0].0 = u64::MAX / 4096 * 4096),
    ("piece is invalid", |taken| taken.pieces[0].1.clear()),
    ("piece is invalid", |taken| taken.pieces[0].1 = vec![0; 4095]),
    ("piece is invalid", |taken| taken.pieces[0].1 = vec![0; 68 << 10]),
    ("MXCSR is invalid", |taken| poke(taken, taken.state.context.sp, 0x1_1f80)),
    ("FS is invalid", |taken| poke(taken, taken.state.context.sp + 8, 1 << 63)),
    ("return address is invalid", |taken| poke(taken, taken.state.context.sp + 64, 4096)),
    ("return address is invalid", |taken| {
        poke(taken, taken.state.context.sp + 64, taken.state.context.sp)
    }),
];
