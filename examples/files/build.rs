//! Generates the stubs of `wit/files.wit`.

fn main() {
    upcall_idl::build("wit/files.wit");
}
