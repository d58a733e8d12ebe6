//! Calls between processes at memory speed.
