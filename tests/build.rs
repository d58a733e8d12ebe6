//! Stubs for `tests/values.rs`: each package with an interface that gives back, compiled to Rust, with a server of it.

use std::fmt::Write;
use std::path::Path;
use syn::{FnArg, Item, ItemMod, Pat, TraitItem, Type};

#[allow(dead_code)] // the tests use the rest
#[path = "../idl/tests/echo/package.rs"]
mod package;

fn main() {
    for path in ["packages", "wit", "echo/package.rs"] {
        println!("cargo::rerun-if-changed=../idl/tests/{path}");
    }
    let folder = std::env::var_os("OUT_DIR").expect("a build script's folder");
    let (mut code, mut list) = (String::new(), String::new());
    for (name, path) in package::packages() {
        let Ok(model) = upcall_idl::load(&path) else { continue };
        let Ok(echo) = package::echo(&model) else { continue };
        let stubs = upcall_idl::generate_text(&name, &echo.wit).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut file = syn::parse_file(&stubs.code).expect("what is generated is Rust");
        for item in &mut file.items {
            if let Item::Mod(module) = item
                && module.ident == "gives_back"
            {
                serve(module);
            }
        }
        let _ = writeln!(code, "mod {name} {{ {} }}", prettyplease::unparse(&file));
        let _ = writeln!(
            list,
            "({name:?}, &{name}::gives_back::INTERFACE, {name}::gives_back::export({name}::gives_back::GivesBackAgain)),"
        );
    }
    let all =
        format!("{code}\nfn all() -> Vec<(&'static str, &'static upcall::stub::Interface, upcall::Export)> {{ vec![{list}] }}\n");
    std::fs::write(Path::new(&folder).join("values.rs"), all).expect("the build's folder can be written to");
}

/// Adds a server whose procedures return what they get. The generated trait says how they get it.
fn serve(module: &mut ItemMod) {
    let Some((_, items)) = &mut module.content else { return };
    let Some(Item::Trait(server)) = items.iter().find(|item| matches!(item, Item::Trait(t) if t.ident == "Serve")) else {
        return;
    };
    let mut functions = Vec::new();
    for item in &server.items {
        let TraitItem::Fn(function) = item else { continue };
        let signature = &function.sig;
        let Some(FnArg::Typed(param)) = signature.inputs.get(1) else { continue };
        let Pat::Ident(name) = &*param.pat else { continue };
        let back = match &*param.ty {
            Type::Reference(_) => quote::quote!(::std::borrow::ToOwned::to_owned(#name)),
            Type::Path(path) if path.path.segments.last().is_some_and(|s| s.ident == "Bytes") => quote::quote!(#name.to_vec()),
            _ => quote::quote!(#name),
        };
        functions.push(quote::quote!(#signature { #back }));
    }
    items.push(syn::parse_quote!(
        pub struct GivesBackAgain;
    ));
    items.push(syn::parse_quote!(impl Serve for GivesBackAgain { #(#functions)* }));
}
