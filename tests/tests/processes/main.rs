//! Tests with real processes. Each has a names directory of its own; tests that measure time run
//! alone.
#![forbid(unsafe_code)]

mod affinity;
mod astacks;
mod authority;
mod blocking;
mod broken_off;
mod client_ends;
mod cost;
mod crowd;
mod deadlines;
mod donors;
mod exhausted;
mod far_members;
mod far_objects;
mod faults;
mod foul_network;
mod hand_off;
mod hostile_client;
mod hostile_guests;
mod hostile_home;
mod hostile_members;
mod hostile_near;
mod hostile_seeded;
mod hostile_server;
mod hosts;
mod idle;
mod jobs;
mod large;
mod lingering;
mod machine;
mod many;
mod many_hosts;
mod members;
mod memory;
mod names;
mod near;
mod nested;
mod network;
mod network_hostile;
mod objects;
mod parted;
mod peers;
mod quotas;
mod refusals;
mod scene;
mod server_ends;
mod shortage;
mod small_machine;
mod soak;
mod steering;
mod stopped;
mod tallies;
mod without_kernel;

use machine::{alone, in_company, in_idle_company};
use upcall_tests::place::Place;

fn place() -> Place {
    Place::new(env!("CARGO_BIN_EXE_upcall-party"))
}
