//! The interfaces that give back, which the tests of stubs use: each package has one, and it is as its types are.

mod echo;
mod snapshot;

use std::fmt::Write;

#[test]
fn every_package_gives_back_random_values() {
    let mut told = String::new();
    for (name, path) in echo::packages() {
        let Ok(model) = upcall_idl::load(&path) else { continue };
        let echo = match echo::echo(&model) {
            Ok(echo) => echo,
            Err(why) => {
                let _ = writeln!(told, "{name}: {why}");
                continue;
            }
        };
        let interface = Box::leak(Box::new(echo.interface));
        let _ = writeln!(told, "{name}: {} types, {} left out", interface.interface().procedures.len(), echo.left_out);
        // By the walker over the model alone: the values are good ones.
        echo::check(interface, 5, |_, block| Ok(block.to_vec()));
    }
    snapshot::check_snapshot("echoes.txt", &told);
}
