//! Converts the items of a module to WIT.

use super::text::SpannedText;
use super::types::{ParameterKind, TypeContext};
use crate::print::name;
use crate::rust::DeclaredTypes;
use crate::rust::names::{camel_part, snake_part};
use proc_macro2::Span;
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, Fields, FnArg, Generics, Ident, Item, ItemEnum, ItemMod, ItemStruct,
    ItemTrait, ItemType, Lit, LitStr, Meta, MetaNameValue, Pat, Result, Safety, Token, TraitItem,
    TraitItemFn, parse_quote,
};

/// The meaning of a name in the module.
pub(super) enum Declared {
    Type(ParameterKind),
    /// A trait of objects.
    Object,
}

/// A module that is being read.
pub(super) struct ModuleReader {
    /// The interface's name in WIT.
    pub(super) interface: String,
    pub(super) wit: SpannedText,
    pub(super) limits: SpannedText,
    pub(super) written: DeclaredTypes,
    pub(super) declared: BTreeMap<String, Declared>,
    /// `true` for a trait by itself, without a module.
    pub(super) alone: bool,
    /// The limits of procedures, which are written after those of the interface.
    procedures: Vec<(String, Vec<MetaNameValue>)>,
    /// The names taken in the interface: types and procedures share a name space.
    taken: BTreeSet<String>,
    errors: Option<Error>,
}

impl ModuleReader {
    /// Reads a module, and removes the attributes that only this macro uses.
    pub(super) fn of_module(package: &LitStr, module: &mut ItemMod) -> Result<Self> {
        refuse_cfg(&module.attrs)?;
        let docs = docs(&module.attrs);
        let at = module.ident.span();
        let Some((_, items)) = &mut module.content else {
            return Err(Error::new_spanned(
                module,
                "a macro sees no other file: write the module's content here, between braces",
            ));
        };
        let mut this = Self::new(at, false);
        this.declare(items);
        let (mut server, mut lines) = (None, this.begin(package)?);
        for (at, item) in items.iter_mut().enumerate() {
            let done = match item {
                Item::Struct(item) => this.record(item),
                Item::Enum(item) => this.enumeration(item),
                Item::Type(item) => this.alias(item),
                Item::Trait(item) if has(&item.attrs, "resource") => this.resource(item),
                Item::Trait(_) if server.is_none() => {
                    server = Some(at);
                    Ok(())
                }
                Item::Trait(item) => {
                    let says = "a module is one interface, and has one trait for it: mark this \
                        one #[resource] if it is of objects that the interface gives out; \
                        otherwise give it a module of its own";
                    Err(Error::new(item.ident.span(), says))
                }
                _ => Ok(()),
            };
            this.note(done);
        }
        let Some(Item::Trait(server)) = server.and_then(|at| items.get_mut(at)) else {
            return Err(Error::new(
                at,
                "a module is one interface, and has one trait for it, whose functions are the \
                procedures: write `pub trait Files { .. }`",
            ));
        };
        this.end(&mut lines, server, &docs)?;
        // The generator writes the types of flags.
        items.retain(|item| !matches!(item, Item::Enum(item) if has(&item.attrs, "flags")));
        Ok(this)
    }

    /// Reads a trait by itself.
    pub(super) fn of_trait(package: &LitStr, server: &mut ItemTrait) -> Result<Self> {
        let mut this = Self::new(server.ident.span(), true);
        let mut lines = this.begin(package)?;
        this.end(&mut lines, server, &[])?;
        Ok(this)
    }

    fn new(at: Span, alone: bool) -> Self {
        Self {
            interface: String::new(),
            wit: SpannedText::new(at),
            limits: SpannedText::new(at),
            written: DeclaredTypes::default(),
            declared: BTreeMap::new(),
            alone,
            procedures: Vec::new(),
            taken: BTreeSet::new(),
            errors: None,
        }
    }

    /// The head of the text. The rest is kept apart until the interface's name is known: the trait
    /// may follow the types.
    fn begin(&mut self, package: &LitStr) -> Result<SpannedText> {
        let mut head = SpannedText::new(package.span());
        let text = package.value();
        if text.is_empty()
            || text.contains(|c: char| !(c.is_ascii_alphanumeric() || "-:@.+".contains(c)))
        {
            return Err(Error::new(
                package.span(),
                "this is no package's name: write \"namespace:name@1.0.0\", in lower-case \
                letters, digits and hyphens",
            ));
        }
        head.line(0, &format!("package {text};"), package.span());
        head.line(0, "", package.span());
        Ok(head)
    }

    /// Puts the text together: the interface around its types and procedures.
    fn end(
        &mut self,
        head: &mut SpannedText,
        server: &mut ItemTrait,
        docs_of_module: &[(String, Span)],
    ) -> Result<()> {
        let interface = camel_to_kebab(&server.ident);
        let (at, docs_of_trait) = (server.ident.span(), docs(&server.attrs));
        let limits = take_limits(&mut server.attrs);
        let count = server.items.len();
        let done = self.functions(server, None);
        self.note(done);
        if count == 0 {
            self.note::<()>(Err(Error::new(
                at,
                "a trait without functions is an interface without procedures: nobody could call \
                it",
            )));
        }
        let bounds = [
            parse_quote!(::core::marker::Send),
            parse_quote!(::core::marker::Sync),
            parse_quote!('static),
        ];
        add_bounds(server, bounds);
        let (interface, limits) = (self.note(interface), self.note(limits));
        if let Some(errors) = self.errors.take() {
            return Err(errors);
        }
        self.interface = interface.unwrap_or_default();
        head.docs(0, if docs_of_trait.is_empty() { docs_of_module } else { &docs_of_trait });
        head.line(0, &format!("interface {} {{", name(&self.interface)), at);
        head.append(std::mem::replace(&mut self.wit, SpannedText::new(at)));
        head.line(0, "}", at);
        std::mem::swap(&mut self.wit, head);
        let table = self.interface.clone();
        self.limits(&format!("[{table}]"), limits.unwrap_or_default());
        for (procedure, limits) in std::mem::take(&mut self.procedures) {
            self.limits(&format!("[{table}.\"{procedure}\"]"), limits);
        }
        Ok(())
    }

    /// Keeps an error; all errors are reported together.
    fn note<T>(&mut self, done: Result<T>) -> Option<T> {
        let error = match done {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        match &mut self.errors {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
        None
    }

    /// Records all declarations before anything is written: a name may be used before it is
    /// declared.
    fn declare(&mut self, items: &[Item]) {
        let mut aliases = Vec::new();
        for item in items {
            let (ident, declared) = match item {
                Item::Struct(item) => (&item.ident, Declared::Type(ParameterKind::Compound)),
                Item::Enum(item) if item.variants.iter().all(|v| v.fields.is_empty()) => {
                    (&item.ident, Declared::Type(ParameterKind::Value))
                }
                Item::Enum(item) => (&item.ident, Declared::Type(ParameterKind::Compound)),
                Item::Trait(item) if has(&item.attrs, "resource") => {
                    (&item.ident, Declared::Object)
                }
                Item::Type(item) => {
                    aliases.push(item);
                    continue;
                }
                _ => continue,
            };
            self.declared.insert(ident.to_string(), declared);
        }
        // An alias may be made of other aliases. Those left at the end are refused when they are
        // written.
        while let Some((at, kind)) = aliases.iter().enumerate().find_map(|(at, item)| {
            Some((at, self.ty(&item.ty, TypeContext::Declaration).ok()?.kind()))
        }) {
            let item = aliases.swap_remove(at);
            self.declared.insert(item.ident.to_string(), Declared::Type(kind));
        }
        self.declared.extend(
            aliases
                .iter()
                .map(|item| (item.ident.to_string(), Declared::Type(ParameterKind::Compound))),
        );
    }

    /// Takes a name of the interface; an error if it is taken.
    fn take_name(&mut self, kebab: &str, ident: &Ident) -> Result<()> {
        if self.taken.insert(kebab.to_owned()) {
            return Ok(());
        }
        Err(Error::new(
            ident.span(),
            format!(
                "two things of this interface are called `{kebab}` in WIT, which has one name for \
                types and functions: rename one"
            ),
        ))
    }

    fn record(&mut self, item: &ItemStruct) -> Result<()> {
        check_declaration(&item.attrs, &item.generics)?;
        let kebab = camel_to_kebab(&item.ident)?;
        self.take_name(&kebab, &item.ident)?;
        let Fields::Named(fields) = &item.fields else {
            let says = "WIT's records have fields with names, at least one: write `struct Name { \
                field: Type }`, or `type Name = Type;`";
            return Err(Error::new(item.ident.span(), says));
        };
        if fields.named.is_empty() {
            return Err(Error::new(item.ident.span(), "WIT's records have at least one field"));
        }
        self.wit.docs(1, &docs(&item.attrs));
        self.wit.line(1, &format!("record {} {{", name(&kebab)), item.ident.span());
        for field in &fields.named {
            refuse_cfg(&field.attrs)?;
            let Some(ident) = &field.ident else { continue };
            let line = format!(
                "{}: {},",
                name(&snake_to_kebab(ident)?),
                self.ty(&field.ty, TypeContext::Declaration)?.wit
            );
            self.wit.docs(2, &docs(&field.attrs));
            self.wit.line(2, &line, ident.span());
        }
        self.wit.line(1, "}", item.ident.span());
        Ok(())
    }

    fn enumeration(&mut self, item: &ItemEnum) -> Result<()> {
        check_declaration(&item.attrs, &item.generics)?;
        let kebab = camel_to_kebab(&item.ident)?;
        self.take_name(&kebab, &item.ident)?;
        let plain = item.variants.iter().all(|v| v.fields.is_empty());
        let mut word = if plain { "enum" } else { "variant" };
        if has(&item.attrs, "flags") {
            let other = item
                .attrs
                .iter()
                .find(|a| !a.path().is_ident("flags") && !a.path().is_ident("doc"));
            if let Some(other) = other {
                return Err(Error::new(
                    other.span(),
                    "flags become a struct that is made here, with all that can be derived",
                ));
            }
            if !plain {
                return Err(Error::new(
                    item.ident.span(),
                    "a flag is there or is not, and carries no value: leave the values out, or \
                    #[flags]",
                ));
            }
            word = "flags";
            self.written.flags.insert(kebab.clone());
        }
        if item.variants.is_empty() {
            return Err(Error::new(item.ident.span(), "WIT has no enums without cases"));
        }
        self.wit.docs(1, &docs(&item.attrs));
        self.wit.line(1, &format!("{word} {} {{", name(&kebab)), item.ident.span());
        for case in &item.variants {
            refuse_cfg(&case.attrs)?;
            if let Some((_, number)) = &case.discriminant {
                return Err(Error::new(
                    number.span(),
                    "WIT numbers cases from 0 on: leave the number out",
                ));
            }
            let value = match &case.fields {
                Fields::Unit => String::new(),
                Fields::Unnamed(values) if values.unnamed.len() == 1 => {
                    format!("({})", self.ty(&values.unnamed[0].ty, TypeContext::Declaration)?.wit)
                }
                Fields::Unnamed(values) => {
                    return Err(Error::new(
                        values.span(),
                        "a case carries one value in WIT: write a tuple, `Case((A, B))`, or a \
                        struct",
                    ));
                }
                Fields::Named(fields) => {
                    return Err(Error::new(
                        fields.span(),
                        "a case carries one value in WIT: declare a struct, and write \
                        `Case(Struct)`",
                    ));
                }
            };
            let line = format!("{}{value},", name(&camel_to_kebab(&case.ident)?));
            self.wit.docs(2, &docs(&case.attrs));
            self.wit.line(2, &line, case.ident.span());
        }
        self.wit.line(1, "}", item.ident.span());
        Ok(())
    }

    fn alias(&mut self, item: &ItemType) -> Result<()> {
        check_declaration(&item.attrs, &item.generics)?;
        let kebab = camel_to_kebab(&item.ident)?;
        self.take_name(&kebab, &item.ident)?;
        let line = format!(
            "type {} = {};",
            name(&kebab),
            self.ty(&item.ty, TypeContext::Declaration)?.wit
        );
        self.wit.docs(1, &docs(&item.attrs));
        self.wit.line(1, &line, item.ident.span());
        Ok(())
    }

    fn resource(&mut self, item: &mut ItemTrait) -> Result<()> {
        take(&mut item.attrs, "resource");
        if let Some(limits) = item.attrs.iter().find(|a| a.path().is_ident("limits")) {
            return Err(Error::new(
                limits.span(),
                "limits stand at the interface's trait, or at a function",
            ));
        }
        let kebab = camel_to_kebab(&item.ident)?;
        self.take_name(&kebab, &item.ident)?;
        self.wit.docs(1, &docs(&item.attrs));
        self.wit.line(1, &format!("resource {} {{", name(&kebab)), item.ident.span());
        self.functions(item, Some(&kebab))?;
        self.wit.line(1, "}", item.ident.span());
        let bounds = [
            parse_quote!(::core::any::Any),
            parse_quote!(::core::marker::Send),
            parse_quote!(::core::marker::Sync),
        ];
        add_bounds(item, bounds);
        Ok(())
    }

    fn functions(&mut self, item: &mut ItemTrait, resource: Option<&str>) -> Result<()> {
        refuse_cfg(&item.attrs)?;
        refuse_generics(&item.generics)?;
        if let Some(word) = &item.unsafety {
            return Err(Error::new(
                word.span(),
                "another domain calls this, and can promise nothing: leave `unsafe` out",
            ));
        }
        for inner in &mut item.items {
            let done = match inner {
                TraitItem::Fn(function) => self.function(function, resource),
                other => Err(Error::new_spanned(other, "an interface has functions only")),
            };
            self.note(done);
        }
        Ok(())
    }

    fn function(&mut self, function: &mut TraitItemFn, resource: Option<&str>) -> Result<()> {
        refuse_cfg(&function.attrs)?;
        let limits = take_limits(&mut function.attrs)?;
        let signature = &function.sig;
        refuse_qualifiers(signature)?;
        let short = snake_to_kebab(&signature.ident)?;
        let procedure =
            resource.map_or_else(|| short.clone(), |resource| format!("{resource}.{short}"));
        if resource.is_none() {
            self.take_name(&short, &signature.ident)?;
        }
        let mut inputs = signature.inputs.iter();
        match inputs.next() {
            Some(FnArg::Receiver(this))
                if matches!(&this.kind, syn::ReceiverKind::Reference(_, None, None)) => {}
            Some(first) => {
                return Err(Error::new(
                    first.span(),
                    "calls come from many threads at once: write `&self`, and what changes goes \
                    behind a Mutex",
                ));
            }
            None => {
                return Err(Error::new(
                    signature.ident.span(),
                    "it is called on the server, or on one of its objects: write `&self` first",
                ));
            }
        }
        let mut params = Vec::new();
        for input in inputs {
            let FnArg::Typed(input) = input else { continue };
            let Pat::Ident(pattern) = &*input.pat else {
                return Err(Error::new(
                    input.pat.span(),
                    "a parameter has a name in WIT: write one",
                ));
            };
            let kebab = snake_to_kebab(&pattern.ident)?;
            let (ty, owned) = self.parameter(&input.ty)?;
            if owned {
                self.written.owned.insert((procedure.clone(), kebab.clone()));
            }
            params.push(format!("{}: {ty}", name(&kebab)));
        }
        let result =
            self.result(&signature.output)?.map(|ty| format!(" -> {ty}")).unwrap_or_default();
        let (depth, at) = (if resource.is_some() { 2 } else { 1 }, signature.ident.span());
        self.wit.docs(depth, &docs(&function.attrs));
        self.wit.line(
            depth,
            &format!("{}: func({}){result};", name(&short), params.join(", ")),
            at,
        );
        self.procedures.push((procedure, limits));
        Ok(())
    }

    /// Writes a table of limits, if there are any. Their keys and values are checked where all
    /// limits are.
    fn limits(&mut self, table: &str, limits: Vec<MetaNameValue>) {
        for (number, limit) in limits.into_iter().enumerate() {
            if number == 0 {
                self.limits.line(0, table, limit.span());
            }
            let value = match &limit.value {
                Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) => {
                    format!("{:?}", text.value())
                }
                Expr::Lit(syn::ExprLit { lit: Lit::Int(number), .. }) => {
                    number.base10_digits().to_owned()
                }
                _ => "\"\"".into(),
            };
            let key = limit.path.to_token_stream().to_string();
            self.limits.line(0, &format!("{key} = {value}"), limit.span());
        }
    }
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|a| a.path().is_ident(name))
}

/// Removes an attribute. Returns `true` if it was there.
fn take(attributes: &mut Vec<Attribute>, name: &str) -> bool {
    let before = attributes.len();
    attributes.retain(|a| !a.path().is_ident(name));
    attributes.len() < before
}

fn take_limits(attributes: &mut Vec<Attribute>) -> Result<Vec<MetaNameValue>> {
    let mut limits = Vec::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("limits")) {
        let list =
            attribute.parse_args_with(Punctuated::<MetaNameValue, Token![,]>::parse_terminated);
        limits.extend(list.map_err(|e| {
            Error::new(
                e.span(),
                "write #[limits(string = \"64KiB\", list = 1000, tail = 4096, \
                calls = 8)], or some of these",
            )
        })?);
    }
    take(attributes, "limits");
    Ok(limits)
}

/// Adds the bounds that users of the trait rely on. A duplicate does no harm.
fn add_bounds(item: &mut ItemTrait, bounds: [syn::TypeParamBound; 3]) {
    item.colon_token.get_or_insert_default();
    item.supertraits.extend(bounds);
}

fn check_declaration(attributes: &[Attribute], generics: &Generics) -> Result<()> {
    refuse_cfg(attributes)?;
    refuse_generics(generics)
}

/// Refuses `cfg`: a macro sees the item before it is known whether it will be compiled.
fn refuse_cfg(attributes: &[Attribute]) -> Result<()> {
    match attributes.iter().find(|a| a.path().is_ident("cfg") || a.path().is_ident("cfg_attr")) {
        Some(cfg) => Err(Error::new(
            cfg.span(),
            "an interface is the same in every build, since the two sides may be of different \
            ones: put `cfg` around the whole module",
        )),
        None => Ok(()),
    }
}

fn refuse_generics(generics: &Generics) -> Result<()> {
    if let Some(clause) = &generics.where_clause {
        return Err(Error::new(clause.span(), "WIT has no generic types: leave the clause out"));
    }
    match generics.params.first() {
        Some(param) => Err(Error::new(
            param.span(),
            "WIT has no generic types and no lifetimes: write one type for each use, owned",
        )),
        None => Ok(()),
    }
}

/// The lines of a comment, each with its place.
fn docs(attributes: &[Attribute]) -> Vec<(String, Span)> {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("doc")) {
        if let Meta::NameValue(MetaNameValue {
            value: Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }),
            ..
        }) = &attribute.meta
        {
            let text = text.value();
            let text = text.trim_end_matches([' ', '\n']);
            lines.extend(
                text.split('\n').map(|line| {
                    (line.strip_prefix(' ').unwrap_or(line).to_owned(), attribute.span())
                }),
            );
        }
    }
    lines
}

/// Converts `NotFound` to `not-found`.
pub(super) fn camel_to_kebab(ident: &Ident) -> Result<String> {
    let text = ident.unraw().to_string();
    let letters: Vec<char> = text.chars().collect();
    let mut kebab = String::new();
    for (at, c) in letters.iter().enumerate() {
        let after_small = at > 0 && !letters[at - 1].is_uppercase();
        // The last letter of a run of capitals begins the next word: `XAxis`.
        let before_small = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if at > 0 && c.is_uppercase() && (after_small || before_small) {
            kebab.push('-');
        }
        kebab.extend(c.to_lowercase());
    }
    checked(
        ident,
        kebab,
        camel_part,
        "with each word's first letter as a capital, and no other: `HttpError`",
    )
}

/// Converts `read_all` to `read-all`.
pub(super) fn snake_to_kebab(ident: &Ident) -> Result<String> {
    checked(
        ident,
        ident.unraw().to_string().replace('_', "-"),
        snake_part,
        "in small letters, with single underscores between words: `read_all`",
    )
}

/// Checks that `back` converts a WIT name to the original name: the generated code finds it by the
/// WIT name.
fn checked(ident: &Ident, kebab: String, back: fn(&str) -> String, write: &str) -> Result<String> {
    let words = kebab.split('-').all(|word| {
        word.starts_with(|c: char| c.is_ascii_alphanumeric())
            && word.chars().all(|c| c.is_ascii_alphanumeric())
    });
    if words && kebab.starts_with(|c: char| c.is_ascii_lowercase()) && ident.unraw() == back(&kebab)
    {
        return Ok(kebab);
    }
    Err(Error::new(
        ident.span(),
        format!(
            "WIT's names are words of ASCII letters and digits, and this one would not come back \
            from there as it is: write it {write}"
        ),
    ))
}

/// Refuses generics, `async`, `const`, `unsafe`, another ABI and variable arguments.
fn refuse_qualifiers(signature: &syn::Signature) -> Result<()> {
    refuse_generics(&signature.generics)?;
    if let Some(word) = &signature.asyncness {
        return Err(Error::new(
            word.span(),
            "a call blocks only the thread that makes it, and those are cheap: leave `async` \
                out",
        ));
    }
    if signature.constness.is_some()
        || signature.abi.is_some()
        || signature.variadic.is_some()
        || !matches!(signature.safety, Safety::Default)
    {
        return Err(Error::new_spanned(signature, "another domain calls this: it is a plain `fn`"));
    }
    Ok(())
}
