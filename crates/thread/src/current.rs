//! The record of the calling thread, user-level or kernel.

use crate::kernel;
use crate::record::Rec;
use crate::vp::{Vp, here};

/// The calling thread, looked up once.
#[derive(Clone, Copy)]
pub(crate) struct Me {
    pub(crate) vp: Option<&'static Vp>,
    pub(crate) rec: Rec,
}

impl Me {
    #[inline(always)]
    pub(crate) fn find() -> Self {
        let vp = here();
        Self { vp, rec: vp.map_or_else(kernel::mine, Vp::current) }
    }
}

/// The record of the calling thread.
#[inline(always)]
pub(crate) fn current_record() -> Rec {
    here().map_or_else(kernel::mine, Vp::current)
}
