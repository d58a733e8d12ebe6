//! `#[derive(Shared)]` and `#[derive(Plain)]`: layouts of types in memory that processes share.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DataEnum, DeriveInput, Error, Field, Fields, Ident, LitStr, Path, Result, Type};

/// Common types that no other process could use, and what to write instead.
const OTHERS: [(&[&str], &str); 7] = [
    (&["usize", "isize"], "its size is a matter of the machine: write `u64` or `i64`"),
    (
        &["String", "str", "PathBuf", "OsString", "CString"],
        "it points into this process's memory: write `Text`, or `Blob` for bytes",
    ),
    (
        &["Vec", "VecDeque", "BinaryHeap"],
        "it points into this process's memory: write `Queue`, `List`, or `Blob` for bytes",
    ),
    (
        &["HashMap", "BTreeMap", "HashSet", "BTreeSet"],
        "it points into this process's memory: write `Map`",
    ),
    (
        &["Box", "Rc", "Arc", "Weak", "Cow", "NonNull"],
        "it points into this process's memory: write what it points to, or a `Link` to an element \
        of a `List`",
    ),
    (
        &[
            "Cell",
            "RefCell",
            "UnsafeCell",
            "Mutex",
            "RwLock",
            "OnceLock",
            "OnceCell",
            "LazyLock",
            "Condvar",
            "AtomicU64",
            "AtomicU32",
            "AtomicBool",
            "AtomicUsize",
        ],
        "it is not needed: the object is locked as a whole, and its places can be written; write \
        what is in it",
    ),
    (
        &[
            "File",
            "OwnedFd",
            "TcpStream",
            "UnixStream",
            "JoinHandle",
            "Instant",
            "SystemTime",
            "Sender",
            "Receiver",
        ],
        "it is a thing of this process: other processes can do nothing with it; write a number \
        that says what they need",
    ),
];

/// The error for a type that cannot be shared, if its name shows that.
fn refuse(ty: &Type) -> Option<Error> {
    let why = match ty {
        Type::Reference(_) | Type::Ptr(_) => {
            "it points into this process's memory: write what it points to, `Text` for `&str`, \
            `Blob` for `&[u8]`"
        }
        Type::FnPtr(_) => {
            "code has another address in each process: operations are named, and run at the home"
        }
        Type::TraitObject(_) | Type::ImplTrait(_) => {
            "what it is cannot be told in another process: write one type, or an enum"
        }
        Type::Slice(_) => "its length is to be known: write `[T; N]`, or a `Queue`",
        Type::Array(array) => return refuse(&array.elem),
        Type::Group(group) => return refuse(&group.elem),
        Type::Paren(paren) => return refuse(&paren.elem),
        Type::Tuple(tuple) => return tuple.elems.iter().find_map(refuse),
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            let name = last.ident.to_string();
            if let Some((_, why)) = OTHERS.iter().find(|(names, _)| names.contains(&name.as_str()))
            {
                why
            } else {
                let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else {
                    return None;
                };
                return arguments.args.iter().find_map(|argument| match argument {
                    syn::GenericArgument::Type(ty) => refuse(ty),
                    _ => None,
                });
            }
        }
        _ => return None,
    };
    let written = quote!(#ty).to_string().replace(' ', "");
    Some(Error::new_spanned(
        ty,
        format!("`{written}` cannot live in memory that processes share: {why}"),
    ))
}

/// The path of the runtime's types: `upcall::home`, or the path in `#[shared(crate = "…")]`.
fn home(input: &DeriveInput) -> Result<Path> {
    let mut home = syn::parse_str("::upcall::home")?;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("shared")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("there is only `crate = \"path\"`"));
            }
            home = meta.value()?.parse::<LitStr>()?.parse()?;
            Ok(())
        })?;
    }
    Ok(home)
}

fn check_generics(input: &DeriveInput) -> Result<()> {
    if input.generics.params.is_empty() {
        return Ok(());
    }
    let why = "a type in shared memory is one for all its programs: write what it has in place of \
        parameters";
    Err(Error::new_spanned(&input.generics, why))
}

fn check_all(fields: &Fields) -> Result<()> {
    let mut errors = fields.iter().filter_map(|field| refuse(&field.ty));
    let Some(mut first) = errors.next() else { return Ok(()) };
    errors.for_each(|error| first.combine(error));
    Err(first)
}

/// Fields in sequence, from some offset on.
struct FieldLayout {
    /// The offset of each field.
    at: Vec<TokenStream>,
    /// The end of the last field.
    end: TokenStream,
    /// The largest alignment.
    align: TokenStream,
    /// The shapes.
    shapes: Vec<TokenStream>,
}

fn layout(
    home: &Path,
    of: &Ident,
    fields: &Fields,
    from: TokenStream,
    align: TokenStream,
) -> FieldLayout {
    let mut layout = FieldLayout { at: Vec::new(), end: from, align, shapes: Vec::new() };
    for (number, field) in fields.iter().enumerate() {
        let ty = &field.ty;
        // An error about a missing trait points at the field.
        let known = quote_spanned!(ty.span()=> <#ty as #home::#of>);
        let (end, align) = (&layout.end, &layout.align);
        let at = quote!(#home::after(#end, 0, #known::ALIGN));
        layout.end = quote!((#at + #known::SIZE));
        layout.align = quote!(#home::larger(#align, #known::ALIGN));
        layout.at.push(at);
        let name = field.ident.as_ref().map_or_else(|| number.to_string(), Ident::to_string);
        layout.shapes.push(quote!(#home::shape(#name, &[#known::SHAPE])));
    }
    layout
}

/// `{ a, b }` or `(a, b)`, with one item of `each` per field.
fn around(fields: &Fields, each: &[TokenStream]) -> TokenStream {
    match fields {
        Fields::Named(named) => {
            let names = named.named.iter().map(|field| &field.ident);
            quote!({ #(#names: #each),* })
        }
        Fields::Unnamed(_) => quote!((#(#each),*)),
        Fields::Unit => quote!(),
    }
}

/// Silences the compiler's warnings about fields that are never read and types that are never
/// constructed, which do not apply here.
fn known(name: &Ident, fields: &Fields) -> TokenStream {
    let each = vec![quote!(loop {}); fields.len()];
    let made = around(fields, &each);
    let reads = fields.iter().enumerate().map(|(number, field)| {
        field.ident.as_ref().map_or_else(
            || {
                let index = syn::Index::from(number);
                quote!(let _ = &whole.#index;)
            },
            |name| quote!(let _ = &whole.#name;),
        )
    });
    quote! {
        #[allow(dead_code, unreachable_code, clippy::all)]
        fn known() -> #name { #name #made }
        #[allow(dead_code, clippy::all)]
        fn read(whole: &#name) { #(#reads)* }
    }
}

/// `#[derive(Shared)]`.
pub(crate) fn shared(input: &DeriveInput) -> Result<TokenStream> {
    let home = home(input)?;
    check_generics(input)?;
    let Data::Struct(data) = &input.data else {
        let why = "only structs can have places for their parts; an enum is read and written as a \
            whole: derive `Plain`";
        return Err(Error::new_spanned(&input.ident, why));
    };
    let Fields::Named(_) = &data.fields else {
        return Err(Error::new_spanned(
            &input.ident,
            "a place has a method for each field, so fields need names",
        ));
    };
    check_all(&data.fields)?;
    let (name, vis, text) = (&input.ident, &input.vis, input.ident.to_string());
    let place = format_ident!("{name}At");
    let FieldLayout { at, end, align, shapes } =
        layout(&home, &Ident::new("Shared", Span::call_site()), &data.fields, quote!(0), quote!(1));
    let methods = data.fields.iter().zip(&at).map(|(field, at)| {
        let (name, vis, ty) = (&field.ident, &field.vis, &field.ty);
        let docs = field.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
        quote! {
            #(#docs)*
            #[inline]
            #[allow(dead_code)]
            #vis fn #name(self) -> <#ty as #home::Shared>::At<'a> {
                const AT: usize = #at;
                #home::Spot::field::<#ty>(self.0, AT)
            }
        }
    });
    let types = data.fields.iter().map(|field| &field.ty).collect::<Vec<_>>();
    let known = known(name, &data.fields);
    let doc = format!("Where a [`{name}`] is: a place for each of its fields.");
    Ok(quote! {
        #[doc = #doc]
        #[derive(Clone, Copy, Debug)]
        #vis struct #place<'a>(#home::Spot<'a>);

        impl<'a> #place<'a> {
            #(#methods)*
        }

        #[automatically_derived]
        impl #home::Shared for #name {
            const SIZE: usize = #home::after(#end, 0, <Self as #home::Shared>::ALIGN);
            const ALIGN: usize = #align;
            const SHAPE: u64 = #home::shape(#text, &[#(#shapes),*]);
            type At<'a> = #place<'a>;

            #[inline]
            fn at(spot: #home::Spot<'_>) -> #place<'_> {
                #place(spot)
            }

            fn clear(spot: #home::Spot<'_>) -> ::core::result::Result<(), #home::DataError> {
                #( <#types as #home::Shared>::clear(spot.part(#at))?; )*
                let _ = spot;
                ::core::result::Result::Ok(())
            }

            fn check(
                spot: #home::Spot<'_>,
                check: &mut #home::Check,
            ) -> ::core::result::Result<(), #home::DataError> {
                #( <#types as #home::Shared>::check(spot.part(#at), check)?; )*
                let _ = (spot, check);
                ::core::result::Result::Ok(())
            }
        }

        const _: () = { #known };
    })
}

/// The layout of a plain type's value, and the code that reads and writes it.
struct PlainTokens {
    size: TokenStream,
    align: TokenStream,
    shapes: Vec<TokenStream>,
    read: TokenStream,
    write: TokenStream,
    known: TokenStream,
}

/// `#[derive(Plain)]`.
pub(crate) fn plain(input: &DeriveInput) -> Result<TokenStream> {
    let home = home(input)?;
    check_generics(input)?;
    let (name, text) = (&input.ident, input.ident.to_string());
    let result = quote!(::core::result::Result);
    let PlainTokens { size, align, shapes, read, write, known } = match &input.data {
        Data::Struct(data) => plain_struct(&home, name, &data.fields)?,
        Data::Enum(data) => plain_enum(&home, name, data)?,
        Data::Union(_) => {
            return Err(Error::new_spanned(
                name,
                "which of a union's fields holds cannot be told by others: write an enum",
            ));
        }
    };
    Ok(quote! {
        #[automatically_derived]
        impl #home::Plain for #name {
            const SIZE: usize = #home::after(#size, 0, <Self as #home::Plain>::ALIGN);
            const ALIGN: usize = #align;
            const SHAPE: u64 = #home::shape(#text, &[#(#shapes),*]);

            #[inline]
            fn read(spot: #home::Spot<'_>) -> #result<Self, #home::DataError> {
                let _ = spot;
                #read
            }

            #[inline]
            fn write(&self, spot: #home::Spot<'_>) -> #result<(), #home::DataError> {
                let _ = spot;
                #write
                #result::Ok(())
            }
        }

        const _: () = { #known };
    })
}

fn plain_struct(home: &Path, name: &Ident, fields: &Fields) -> Result<PlainTokens> {
    check_all(fields)?;
    let laid = layout(home, &of_plain(), fields, quote!(0), quote!(1));
    let types = fields.iter().map(|field| &field.ty);
    let (members, at) = (fields.members(), &laid.at);
    let whole = around(fields, &reads(home, fields, at));
    Ok(PlainTokens {
        read: quote!(::core::result::Result::Ok(Self #whole)),
        write: quote!(#( <#types as #home::Plain>::write(&self.#members, spot.part(#at))?; )*),
        known: known(name, fields),
        size: laid.end,
        align: laid.align,
        shapes: laid.shapes,
    })
}

fn plain_enum(home: &Path, name: &Ident, data: &DataEnum) -> Result<PlainTokens> {
    if data.variants.is_empty() {
        return Err(Error::new_spanned(name, "an enum without variants has no values"));
    }
    let (mut size, mut align) = (quote!(4), quote!(4));
    let (mut shapes, mut reading, mut writing) = (Vec::new(), Vec::new(), Vec::new());
    for (number, variant) in data.variants.iter().enumerate() {
        let (variant_name, fields) = (&variant.ident, &variant.fields);
        check_all(fields)?;
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let laid = layout(home, &of_plain(), fields, quote!(4), align);
        let (types, at) = (fields.iter().map(|field| &field.ty), &laid.at);
        let made = around(fields, &reads(home, fields, at));
        reading.push(quote!(#number => Self::#variant_name #made));
        let names = (0..fields.len()).map(|at| format_ident!("field_{at}")).collect::<Vec<_>>();
        let bound = around(fields, &names.iter().map(|name| quote!(#name)).collect::<Vec<_>>());
        writing.push(quote! {
            Self::#variant_name #bound => {
                #( <#types as #home::Plain>::write(#names, spot.part(#at))?; )*
                #number
            }
        });
        let (end, parts, text) = (laid.end, laid.shapes, variant_name.to_string());
        size = quote!(#home::larger(#size, #end));
        align = laid.align;
        shapes.push(quote!(#home::shape(#text, &[#(#parts),*])));
    }
    let text = name.to_string();
    let read = quote! {
        let tag = <u32 as #home::Plain>::read(spot)?;
        ::core::result::Result::Ok(match tag {
            #(#reading,)*
            _ => return ::core::result::Result::Err(
                #home::DataError::Corrupt { what: #text, at: #home::Spot::at(spot) as u64 }
            ),
        })
    };
    // The payload is written first: the discriminant says that it is there.
    let write = quote! {
        let tag: u32 = match self { #(#writing)* };
        <u32 as #home::Plain>::write(&tag, spot)?;
    };
    Ok(PlainTokens { size, align, shapes, read, write, known: quote!() })
}

fn of_plain() -> Ident {
    Ident::new("Plain", Span::call_site())
}

/// Reads each field in place.
fn reads(home: &Path, fields: &Fields, at: &[TokenStream]) -> Vec<TokenStream> {
    let each = fields.iter().zip(at);
    each.map(|(Field { ty, .. }, at)| quote!(<#ty as #home::Plain>::read(spot.part(#at))?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let input = syn::parse_str::<DeriveInput>(text).expect("Rust");
        let errors = [
            shared(&input).expect_err(text),
            plain(&input).map_or_else(|error| error, |_| Error::new(Span::call_site(), "")),
        ];
        errors
            .iter()
            .flat_map(|error| error.clone().into_iter())
            .map(|error| error.to_string() + "\n")
            .collect()
    }

    #[test]
    fn what_no_other_process_could_use_is_refused_with_what_to_write() {
        for (ty, say) in [
            ("usize", "write `u64`"),
            ("&'static str", "`Text` for `&str`"),
            ("*const u8", "points into"),
            ("String", "write `Text`"),
            ("std::vec::Vec<u8>", "`Blob` for bytes"),
            ("Option<Box<u64>>", "write what it points to"),
            ("[(u8, Rc<u8>); 4]", "write what it points to"),
            ("Map<Text, std::sync::Mutex<u64>>", "locked as a whole"),
            ("HashMap<u8, u8>", "write `Map`"),
            ("fn(u8) -> u8", "run at the home"),
            ("Box<dyn Send>", "write what it points to"),
            ("[u8]", "its length is to be known"),
            ("std::fs::File", "a thing of this process"),
        ] {
            let said = refused(&format!("struct Some {{ one: u8, other: {ty} }}"));
            assert!(
                said.contains(say) && said.contains("cannot live in memory that processes share"),
                "{ty}: {said}"
            );
        }
        // All at once.
        assert_eq!(
            refused("struct Some { a: String, b: usize }").matches("cannot live").count(),
            4
        );
        for (text, say) in [
            ("struct Some<T> { a: T }", "one for all its programs"),
            ("struct Some(u64);", "fields need names"),
            ("enum Some { A }", "derive `Plain`"),
            ("enum Some {}", "has no values"),
            ("union Some { a: u8, b: u16 }", "write an enum"),
            ("#[shared(path = \"x\")] struct Some { a: u8 }", "only `crate"),
        ] {
            assert!(refused(text).contains(say), "{text}: {}", refused(text));
        }
    }
}
