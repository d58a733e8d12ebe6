//! Generates the stubs of `wit/against.wit`.

fn main() {
    upcall_idl::build("wit/against.wit");
}
