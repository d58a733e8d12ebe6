//! Binding, calls and dispatch.
