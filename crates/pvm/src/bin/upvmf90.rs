//! See [`upcall_pvm::compiler`].

fn main() -> std::process::ExitCode {
    upcall_pvm::compiler::run(upcall_pvm::compiler::SourceLanguage::Fortran90)
}
