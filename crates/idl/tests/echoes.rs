//! Checks the echoing interfaces that the tests of stubs use: each package has them, and they match
//! its types.

mod echo;
mod snapshot;

use std::fmt::Write;
use upcall_idl::dynamic::DynamicInterface;

#[test]
fn every_package_gives_back_random_values() {
    let mut told = String::new();
    for (name, path) in echo::all_packages() {
        let Ok(model) = upcall_idl::load(&path) else { continue };
        let echo = match echo::echo(&model) {
            Ok(echo) => echo,
            Err(why) => {
                let _ = writeln!(told, "{name}: {why}");
                continue;
            }
        };
        let count = |interface: &Option<DynamicInterface>, kind: &str| {
            let procedures =
                interface.iter().flat_map(|interface| &interface.interface().procedures);
            procedures.filter(|procedure| procedure.name.starts_with(kind)).count()
        };
        let (values, objects) = (count(&echo.values, "echo-"), count(&echo.objects, "tell-"));
        let _ = writeln!(told, "{name}: {values} types, and {objects} with objects");
        // Uses only the walker over the model, to check that the random values are valid. Objects
        // need a server.
        if let Some(values) = echo.values {
            echo::check(Box::leak(Box::new(values)), 5, |_, block| Ok(block.to_vec()));
        }
    }
    snapshot::check_snapshot("echoes.txt", &told);
}
