//! Generates stubs for `tests/values.rs`: each package whose interfaces return their arguments,
//! compiled to Rust, with servers of them.

use std::fmt::Write;
use std::path::Path;
use syn::{FnArg, Ident, Item, ItemMod, ItemTrait, Pat, ReturnType, Signature, TraitItem, Type};

#[path = "build/objects.rs"]
mod objects;
#[allow(dead_code)] // the tests use the rest
#[path = "../../crates/idl/tests/echo/package.rs"]
mod package;

fn main() {
    for path in ["packages", "wit", "echo/package.rs"] {
        println!("cargo::rerun-if-changed=../../crates/idl/tests/{path}");
    }
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed=UPCALL_ALL_PACKAGES");
    let folder = std::env::var_os("OUT_DIR").expect("a build script's folder");
    let (mut code, mut values, mut objects) = (String::new(), String::new(), String::new());
    for (name, path) in package::packages() {
        let Ok(model) = upcall_idl::load(&path) else { continue };
        let Ok(echo) = package::echo(&model) else { continue };
        let stubs =
            upcall_idl::generate_text(&name, &echo.wit).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut file = syn::parse_file(&stubs.code).expect("what is generated is Rust");
        for item in &mut file.items {
            let Item::Mod(module) = item else { continue };
            if module.ident == "gives_back" {
                serve(module);
            } else if echo.objects.is_some() {
                objects::serve(module);
            }
        }
        let _ = writeln!(code, "mod {name} {{ {} }}", prettyplease::unparse(&file));
        let named =
            |module: &str| format!("{name:?}, &{name}::{module}::INTERFACE, {name}::{module}");
        if echo.values.is_some() {
            let _ = writeln!(
                values,
                "({0}::export({name}::gives_back::GivesBackAgain)),",
                named("gives_back")
            );
        }
        if echo.objects.is_some() {
            let _ = writeln!(
                objects,
                "({0}::plain, {name}::gives_objects::forward),",
                named("gives_objects")
            );
        }
    }
    let all = format!(
        "{code}\nfn values() -> Vec<Values> {{ vec![{values}] }}\nfn objects() -> Vec<Objects> {{ \
        vec![{objects}] }}\n"
    );
    std::fs::write(Path::new(&folder).join("values.rs"), all)
        .expect("the build's folder can be written to");
}

/// The functions of a trait, with the name and type of the first argument beside `self`.
fn functions(of: &ItemTrait) -> impl Iterator<Item = (&Signature, Option<(&Ident, &Type)>)> {
    of.items.iter().filter_map(|item| {
        let TraitItem::Fn(function) = item else { return None };
        let first = function.sig.inputs.get(1).and_then(|input| match input {
            FnArg::Typed(param) => match &*param.pat {
                Pat::Ident(name) => Some((&name.ident, &*param.ty)),
                _ => None,
            },
            FnArg::Receiver(_) => None,
        });
        Some((&function.sig, first))
    })
}

/// Returns `true` if the type has this name.
fn is(ty: &Type, name: &str) -> bool {
    matches!(
        ty,
        Type::Path(path) if path.path.segments.last().is_some_and(|segment| segment.ident == name)
    )
}

/// The return type of a function.
fn output(signature: &Signature) -> Option<&Type> {
    match &signature.output {
        ReturnType::Type(_, ty) => Some(ty),
        ReturnType::Default => None,
    }
}

/// Adds a server whose procedures return their arguments. The generated trait defines how they get
/// these.
fn serve(module: &mut ItemMod) {
    let Some((_, items)) = &mut module.content else { return };
    let Some(Item::Trait(server)) =
        items.iter().find(|item| matches!(item, Item::Trait(t) if t.ident == "Serve"))
    else {
        return;
    };
    let functions: Vec<_> = functions(server)
        .filter_map(|(signature, first)| {
            let (name, ty) = first?;
            let back = match ty {
                Type::Reference(_) => quote::quote!(::std::borrow::ToOwned::to_owned(#name)),
                ty if is(ty, "Bytes") => quote::quote!(#name.to_vec()),
                _ => quote::quote!(#name),
            };
            Some(quote::quote!(#signature { #back }))
        })
        .collect();
    items.push(syn::parse_quote!(
        pub struct GivesBackAgain;
    ));
    items.push(syn::parse_quote!(impl Serve for GivesBackAgain { #(#functions)* }));
}
