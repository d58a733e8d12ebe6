//! The parts of a package's interfaces that `tests/values/objects.rs` needs: implementations of its
//! traits for their types, and two servers of the interface that returns objects.

use super::{functions, is, output};
use std::collections::BTreeMap;
use syn::{Fields, Item, ItemMod, ItemTrait, Type, parse_quote};

/// Adds what concerns the types and traits of one interface to its module.
pub fn serve(module: &mut ItemMod) {
    let Some((_, items)) = &mut module.content else { return };
    let mut added: Vec<Item> = Vec::new();
    // The types of clients and the types of servers that hold objects, by the name of the former.
    let mut types: BTreeMap<String, &Item> = BTreeMap::new();
    for item in &*items {
        match item {
            Item::Struct(one) => drop(types.insert(one.ident.to_string(), item)),
            Item::Enum(one) => drop(types.insert(one.ident.to_string(), item)),
            _ => {}
        }
    }
    for (name, item) in &types {
        if let Some(served) = types.get(&format!("Served{name}")) {
            added.extend(converted(item, served));
        } else if let Item::Struct(syn::ItemStruct { ident, attrs, .. })
        | Item::Enum(syn::ItemEnum { ident, attrs, .. }) = item
            && attrs
                .iter()
                .any(|attribute| quote::quote!(#attribute).to_string().contains("PartialEq"))
        {
            added.push(parse_quote!(crate::objects::plain!(#ident);));
        }
    }
    let traits: Vec<&ItemTrait> = items
        .iter()
        .filter_map(|item| if let Item::Trait(one) = item { Some(one) } else { None })
        .collect();
    for one in &traits {
        let name = &one.ident;
        if name != "Serve" {
            added.extend(resource(one));
        } else if module.ident == "gives_objects" {
            added.extend(servers(one));
        } else {
            let never = never(one);
            added.push(parse_quote!(
                #[allow(unused_variables)]
                impl Serve for crate::objects::Plain { #(#never)* }
            ));
            added.push(parse_quote!(
                #[allow(unused_variables)]
                impl<C: Send + Sync + 'static> Serve for crate::objects::Forward<C> { #(#never)* }
            ));
        }
    }
    items.extend(added);
}

/// Functions that are never called.
fn never(of: &ItemTrait) -> Vec<impl quote::ToTokens + use<>> {
    functions(of)
        .map(|(signature, _)| quote::quote!(#signature { unreachable!("nobody calls it") }))
        .collect()
}

/// Implements the trait of a resource's objects, for real objects and for proxies of another
/// server's objects.
fn resource(of: &ItemTrait) -> Vec<Item> {
    let name = &of.ident;
    let client = quote::format_ident!("{}", name.to_string().replacen("Serve", "", 1));
    let never = never(of);
    vec![
        parse_quote!(
            #[allow(unused_variables)]
            impl #name for crate::objects::Object { #(#never)* }
        ),
        parse_quote!(
            #[allow(unused_variables)]
            impl #name for crate::objects::Proxy<#client> { #(#never)* }
        ),
        parse_quote!(crate::objects::resource!(#client, #name);),
    ]
}

/// The matches over the cases of a variant: the first reports its objects, the second makes the
/// client's value, and the third the server's.
fn matches_of(one: &syn::ItemEnum, from: &syn::Ident) -> [syn::Expr; 3] {
    let name = &one.ident;
    let (mut tell, mut out, mut back) = (Vec::new(), Vec::new(), Vec::new());
    for variant in &one.variants {
        let case = &variant.ident;
        if matches!(variant.fields, Fields::Unit) {
            tell.push(quote::quote!(Self::#case => {}));
            out.push(quote::quote!(Self::#case => #name::#case,));
            back.push(quote::quote!(Self::#case => #from::#case,));
        } else {
            tell.push(quote::quote!(Self::#case(value) => value.tell(numbers),));
            out.push(quote::quote!(Self::#case(value) => #name::#case(value.out()),));
            back.push(quote::quote!(Self::#case(value) => #from::#case(value.back()),));
        }
    }
    [
        parse_quote!(match self { #(#tell)* }),
        parse_quote!(match self { #(#out)* }),
        parse_quote!(match self { #(#back)* }),
    ]
}

/// Converts a record or variant with objects in it to that of a client and back, and reports its
/// objects.
fn converted(client: &Item, served: &Item) -> Vec<Item> {
    let (Item::Struct(syn::ItemStruct { ident: from, .. })
    | Item::Enum(syn::ItemEnum { ident: from, .. })) = served
    else {
        return Vec::new();
    };
    let (name, lends, tell, out, back) = match client {
        Item::Struct(one) => {
            let name = &one.ident;
            let fields: Vec<_> =
                one.fields.iter().filter_map(|field| field.ident.as_ref()).collect();
            (
                name,
                !one.generics.params.is_empty(),
                parse_quote!({ #(self.#fields.tell(numbers);)* }),
                parse_quote!(#name { #(#fields: self.#fields.out(),)* }),
                parse_quote!(#from { #(#fields: self.#fields.back(),)* }),
            )
        }
        Item::Enum(one) => {
            let name = &one.ident;
            let [tell, out, back] = matches_of(one, from);
            (name, !one.generics.params.is_empty(), tell, out, back)
        }
        _ => return Vec::new(),
    };
    let lifetime = lends.then(|| quote::quote!(<'a>));
    let mut all = vec![
        parse_quote!(
            impl crate::objects::Tell for #from {
                fn tell(&self, numbers: &mut ::std::vec::Vec<u64>) {
                    use crate::objects::Tell;
                    #tell
                }
            }
        ),
        parse_quote!(
            impl<'a> crate::objects::Out<'a, #name #lifetime> for #from {
                fn out(&'a mut self) -> #name #lifetime {
                    use crate::objects::Out;
                    #out
                }
            }
        ),
    ];
    if !lends {
        all.push(parse_quote!(
            impl crate::objects::Back<#from> for #name {
                fn back(self) -> #from {
                    use crate::objects::Back;
                    #back
                }
            }
        ));
    }
    all
}

/// The server that has the objects, and the server whose procedures call it.
fn servers(of: &ItemTrait) -> Vec<Item> {
    let (mut plain, mut forward) = (Vec::new(), Vec::new());
    for (signature, first) in functions(of) {
        let procedure = &signature.ident;
        let name = procedure.to_string();
        let lent = matches!(first, Some((_, Type::Reference(_))));
        let there = match first {
            Some((v, Type::Reference(_))) => quote::quote!(crate::objects::behind(#v)),
            Some((v, _)) if name.starts_with("make") => quote::quote!(#v),
            Some((v, _)) => quote::quote!(#v.out()),
            None => quote::quote!(),
        };
        // By value, to be taken apart.
        let mutable = first
            .filter(|_| !lent && !name.starts_with("make"))
            .map(|(v, _)| quote::quote!(let mut #v = #v;));
        let v = first.map(|(v, _)| v);
        let here = match name.split('_').next() {
            Some("make") => quote::quote!(::std::sync::Arc::new(self.object(#v))),
            Some("alive") => quote::quote!(self.alive()),
            Some("number") => quote::quote!(crate::objects::number(#v)),
            Some("tell") if lent => quote::quote!(::std::vec![crate::objects::number(#v)]),
            Some("tell") => {
                quote::quote!({
                    let mut numbers = ::std::vec::Vec::new();
                    #v.tell(&mut numbers);
                    numbers
                })
            }
            _ => quote::quote!(#v),
        };
        plain.push(quote::quote!(#signature { #here }));
        let call = quote::quote!(self.0.#procedure(#there));
        let result = match output(signature) {
            Some(ty) if name.starts_with("echo") && is(ty, "Result") => {
                quote::quote!(crate::objects::returned(#call).back())
            }
            _ => quote::quote!(#call.expect("the other server's answer").back()),
        };
        forward.push(quote::quote!(#signature { #mutable #result }));
    }
    vec![
        parse_quote!(
            const _: () = {
                use crate::objects::Tell;
                impl Serve for crate::objects::Plain { #(#plain)* }
            };
        ),
        parse_quote!(
            const _: () = {
                use crate::objects::{Back, Out};
                impl Serve for crate::objects::Forward<GivesObjects> { #(#forward)* }
            };
        ),
        parse_quote!(
            pub fn plain() -> ::upcall::Export {
                export(crate::objects::Plain::default())
            }
        ),
        parse_quote!(
            pub fn forward(to: &str) -> ::upcall::Export {
                export(crate::objects::Forward(GivesObjects::bind(to).expect("the other server")))
            }
        ),
    ]
}
