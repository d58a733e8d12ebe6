//! synth-N.
