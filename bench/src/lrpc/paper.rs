//! The measurements of LRPC (Bershad et al., TOCS 1990, section 4) on the C-VAX Firefly.

use crate::case::Case;

/// The four tests of Table IV.
pub const TESTS: [Case; 4] = [Case::Null, Case::Add, Case::BigIn, Case::BigInOut];

/// A row of Table IV, in µs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableIv {
    /// With a processor that idles in the server's domain.
    pub lrpc_mp: f64,
    /// On one processor.
    pub lrpc: f64,
    /// SRC RPC, on one processor: the best of its day.
    pub taos: f64,
}

/// Returns the row of Table IV, or `None` for a case that is not in it.
pub fn table_iv(test: Case) -> Option<TableIv> {
    let row = |lrpc_mp, lrpc, taos| Some(TableIv { lrpc_mp, lrpc, taos });
    match test {
        Case::Null => row(125.0, 157.0, 464.0),
        Case::Add => row(130.0, 164.0, 480.0),
        Case::BigIn => row(173.0, 192.0, 539.0),
        Case::BigInOut => row(219.0, 227.0, 636.0),
        _ => None,
    }
}

/// Table V's minimum in µs: a procedure call, two traps, two context switches.
pub const MINIMUM_US: [f64; 3] = [7.0, 36.0, 66.0];

/// Table V's overhead in µs: stubs, kernel transfer.
pub const OVERHEAD_US: [f64; 2] = [21.0, 27.0];

/// Figure 2, as far as the text gives numbers: processors, LRPCs per second. The curve is not in
/// the text, and no points of it are here.
pub const FIGURE_2: [(usize, f64); 2] = [(1, 6_300.0), (4, 23_000.0)];

/// Calls per second at which SRC RPC levels off, with two processors.
pub const SRC_RPC_MOST: f64 = 4_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_sums() {
        let null = table_iv(Case::Null).unwrap();
        let sums: [f64; 2] = [MINIMUM_US.iter().sum(), OVERHEAD_US.iter().sum()];
        assert_eq!((sums, sums[0] + sums[1]), ([109.0, 48.0], null.lrpc));
        assert!((null.lrpc / sums[0] - 1.44).abs() < 0.005);
    }
}
