#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| upcall_tests::bad_input::read("hosts", bytes));
