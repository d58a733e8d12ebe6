//! PVM's error codes, as functions of the interface return them.

#![allow(missing_docs, reason = "PVM's names, whose texts pvm_strerror has")]

pub const OK: i32 = 0;
pub const BAD_PARAM: i32 = -2;
pub const MISMATCH: i32 = -3;
pub const NO_HOST: i32 = -6;
pub const NO_FILE: i32 = -7;
pub const DENIED: i32 = -8;
pub const NO_MEM: i32 = -10;
pub const BAD_MSG: i32 = -12;
pub const SYS_ERR: i32 = -14;
pub const NO_SUCH_BUF: i32 = -16;
pub const NULL_GROUP: i32 = -17;
pub const DUP_GROUP: i32 = -18;
pub const NO_GROUP: i32 = -19;
pub const NOT_IN_GROUP: i32 = -20;
pub const NO_INST: i32 = -21;
pub const HOST_FAIL: i32 = -22;
pub const NO_PARENT: i32 = -23;
pub const NOT_IMPL: i32 = -24;
pub const OUT_OF_RES: i32 = -27;
pub const DUP_HOST: i32 = -28;
pub const CANT_START: i32 = -29;
pub const NO_TASK: i32 = -31;
pub const NOT_FOUND: i32 = -32;
pub const EXISTS: i32 = -33;
pub const PARENT_NOT_SET: i32 = -35;
