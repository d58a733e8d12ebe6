//! Tests with real processes: crashes, hostile peers, bad input.
