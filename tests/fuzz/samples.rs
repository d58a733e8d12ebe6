//! Writes the samples of every target to where `cargo fuzz` starts: `corpus/TARGET/`. Prints the
//! names of the targets.

use std::path::Path;

fn main() -> std::io::Result<()> {
    for target in upcall_tests::bad_input::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (number, sample) in (target.samples)().iter().enumerate() {
            std::fs::write(folder.join(format!("sample-{number}")), sample)?;
        }
        println!("{}", target.name);
    }
    Ok(())
}
