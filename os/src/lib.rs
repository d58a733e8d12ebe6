//! The kernel, as Upcall uses it: memory files, bells, descriptors, processes, processors, clocks.
