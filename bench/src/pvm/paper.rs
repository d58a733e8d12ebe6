//! UPVM's figures (Konuru, Casas, Otto, Prouty and Walpole, 1994), on two HP 9000/720 with HP-UX
//! 9.01.

/// Figure 2: a procedure call, a switch of ULPs, and one of processes, in µs.
pub const FIGURE_2: [f64; 3] = [0.65, 4.74, 195.0];

/// Figure 3: bytes; one way from task to task on one node, in ms, by PVM and by UPVM.
pub const FIGURE_3: [(usize, [f64; 2]); 6] = [
    (0, [1.40, 0.12]),
    (1, [1.42, 0.12]),
    (512, [1.61, 0.14]),
    (1000, [1.85, 0.14]),
    (10_000, [6.55, 0.39]),
    (100_000, [47.36, 5.55]),
];

/// Figure 5: tasks; once around a ring on one node, in ms, by PVM and by UPVM.
pub const FIGURE_5: [(usize, [f64; 2]); 8] = [
    (2, [2.55, 0.26]),
    (4, [5.64, 0.56]),
    (6, [8.42, 0.82]),
    (8, [11.16, 1.15]),
    (10, [14.35, 1.33]),
    (14, [21.50, 1.90]),
    (20, [32.86, 2.87]),
    (24, [42.85, 3.50]),
];

/// Figure 6: tasks; once around a ring on two nodes, in ms: by PVM interleaved and in blocks, by
/// UPVM interleaved and in blocks.
pub const FIGURE_6: [(usize, [f64; 4]); 8] = [
    (2, [4.82, 4.82, 5.01, 5.01]),
    (4, [9.76, 7.86, 10.27, 5.19]),
    (6, [14.64, 10.82, 15.08, 6.14]),
    (8, [21.75, 14.01, 20.34, 6.40]),
    (10, [26.28, 17.06, 25.59, 7.21]),
    (14, [36.86, 23.48, 35.67, 7.69]),
    (20, [52.88, 33.66, 51.30, 8.95]),
    (24, [64.86, 41.86, 60.88, 9.73]),
];

/// Figure 7: tasks; Mflops of Laplace on one node, by PVM and by UPVM.
pub const FIGURE_7: [(usize, [f64; 2]); 10] = [
    (2, [2.75, 2.79]),
    (3, [2.68, 2.69]),
    (4, [2.63, 2.68]),
    (5, [2.57, 2.67]),
    (6, [2.54, 2.66]),
    (7, [2.50, 2.65]),
    (8, [2.45, 2.59]),
    (9, [2.42, 2.58]),
    (10, [2.38, 2.58]),
    (11, [2.34, 2.56]),
];

/// Mflops of Laplace without tasks.
pub const SEQUENTIAL: f64 = 2.79;

/// Converts the time once around a ring, in ms, to the time of a hop, in ns.
pub fn hop_ns(tasks: usize, round_ms: f64) -> f64 {
    round_ms * 1e6 / tasks as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_agrees_with_the_figures() {
        assert!(
            (FIGURE_2[1] / FIGURE_2[0] - 7.30).abs() < 0.01
                && (FIGURE_2[2] / FIGURE_2[0] - 300.0).abs() < 0.5
        );
        let loss = |at: usize| FIGURE_7[9].1.map(|mflops| 100.0 * (1.0 - mflops / SEQUENTIAL))[at];
        assert!((loss(0) - 16.0).abs() < 0.5 && (loss(1) - 8.0).abs() < 0.5);
        assert!((hop_ns(24, FIGURE_5[7].1[1]) - 145_833.3).abs() < 0.1);
    }
}
