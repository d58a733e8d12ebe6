//! The C of servers that give objects back (`crates/idl/tests/echo/objects.rs`).
//!
//! The first server has the objects. The second calls the first by a generated client: what it
//! holds are resources, each behind an object of its own. Values of clients and of servers differ
//! in what their pointers point to. So there is one function for each type that visits the handles
//! in a value, and converts them in place.

use super::header::Header;
use std::collections::BTreeMap;
use std::fmt::Write;
use upcall_idl::dynamic::DynamicInterface;
use upcall_idl::model::{Model, ProcedureDefinition, Type, TypeBody, TypeId};

/// The part that all packages need.
const HEAD: &str = r#"
#include <stdatomic.h>
#include <stdio.h>
typedef void (*visit_fn_)(void **slot, bool lent, int resource, void *context);
typedef struct object_ { uint64_t number; } object_t_;
typedef struct proxy_ { void *there; } proxy_t_;
static gives_objects_client_t *there_;
static _Atomic int64_t alive_;
static void object_drop_(void *value) {
    if (alive_-- <= 0) abort();
    free(value);
}
static void *object_new_(uint64_t number) {
    object_t_ *object = malloc(sizeof *object);
    object->number = number;
    alive_++;
    return object;
}
static void proxy_drop_(void *value) {
    upcall_resource_drop(((proxy_t_ *)value)->there);
    free(value);
}
static void *proxy_new_(void *there) {
    proxy_t_ *proxy = malloc(sizeof *proxy);
    proxy->there = there;
    return proxy;
}
static void count_(void **slot, bool lent, int resource, void *context) {
    (void)slot, (void)lent, (void)resource;
    ++*(size_t *)context;
}
/* Records an object's number, and drops the object. */
static void told_(void **slot, bool lent, int resource, void *context) {
    upcall_list_u64_t *numbers = context;
    const object_t_ *object = lent ? *slot : upcall_object_value(*slot);
    (void)resource;
    ((uint64_t *)(uintptr_t)numbers->data)[numbers->len++] = object->number;
    if (!lent) upcall_object_drop(*slot);
}
/* Replaces a proxy object by its resource. */
static void out_(void **slot, bool lent, int resource, void *context) {
    proxy_t_ *proxy = lent ? *slot : upcall_object_value(*slot);
    upcall_object *object = *slot;
    (void)resource, (void)context;
    *slot = proxy->there;
    if (!lent) {
        proxy->there = NULL;
        upcall_object_drop(object);
    }
}
static void forget_(void **slot, bool lent, int resource, void *context) {
    (void)lent, (void)resource, (void)context;
    *slot = NULL;
}
static void never_(void) { abort(); }
/* A struct of functions that are never called. */
static void fill_(void *functions, size_t size) {
    void (*never)(void) = never_;
    for (size_t at = 0; at < size; at += sizeof never)
        memcpy((char *)functions + at, &never, sizeof never);
}
static bool good_(upcall_status status, upcall_call *call, const upcall_error *error) {
    if (status == UPCALL_OK) return true;
    fprintf(stderr, "%s\n", error->text);
    upcall_call_fail(call, error->text);
    return false;
}
"#;

/// The functions of both servers. The names of types come from the header, since the generator
/// chooses them.
#[expect(clippy::too_many_lines, reason = "one program in C")]
pub fn gives_objects(interface: &'static DynamicInterface, header: &Header<'_>) -> String {
    let server = header.server("gives_objects");
    let mut out = HEAD.to_owned();
    let mut news = String::new();
    let mut walks = String::new();
    let mut functions = String::new();
    let made = |procedure: &'static ProcedureDefinition| match &procedure.result {
        Some(Type::Own(id)) => procedure.name.strip_prefix("make-").map(|number| (*id, number)),
        _ => None,
    };
    let resources: BTreeMap<TypeId, &str> =
        interface.interface().procedures.iter().filter_map(made).collect();
    for procedure in &interface.interface().procedures {
        let member = procedure.name.replace('-', "_");
        let params = &server.functions[&member];
        let client = header.client("gives_objects", &member);
        let (kind, number) = procedure.name.split_once('-').unwrap_or((&procedure.name, ""));
        let (plain, forward) = match kind {
            "alive" => {
                ("    *result = (uint64_t)alive_;\n".to_owned(), asked(&member, "", "result", ""))
            }
            "make" => {
                let (_, result) = params.rsplit_once(", ").expect("a result");
                let new = header.new_of(result.trim_end_matches("**result").trim());
                let _ = writeln!(news, "        case {number}: return {new}(value, drop);");
                (
                    format!("    *result = {new}(object_new_(number), object_drop_);\n"),
                    format!(
                        "    void *got;\n{}",
                        asked(
                            &member,
                            "number, ",
                            "(void *)&got",
                            &format!("*result = {new}(proxy_new_(got), proxy_drop_);")
                        )
                    ),
                )
            }
            "number" => (
                "    *result = ((const object_t_ *)of)->number;\n".to_owned(),
                asked(&member, "((const proxy_t_ *)of)->there, ", "result", ""),
            ),
            _ => {
                let ty = &procedure.params[0].ty;
                let param = params.split(", ").nth(2).expect("a value");
                let served = param
                    .trim_start_matches("const ")
                    .trim_end_matches("*v")
                    .trim_end_matches(" v")
                    .trim();
                let (served, value) = if param.ends_with("*v") && param.starts_with("const ") {
                    (served.to_owned(), "*v")
                } else {
                    (param.trim_end_matches('v').trim().to_owned(), "v")
                };
                let walk = format!("walk_{kind}_{number}_");
                let body = visits(interface.model(), &resources, ty, "(*v)", 0);
                let _ = writeln!(
                    walks,
                    "static void {walk}(void *value, visit_fn_ visit, void *context) {{\n    \
                    {served} *v = value;\n{body}}}"
                );
                // A client takes values as a server does: by pointer or by value.
                let theirs = client.split(", ").nth(1).expect("a value");
                let argument = match theirs
                    .strip_prefix("const ")
                    .and_then(|ty| ty.strip_suffix("*v"))
                {
                    Some(ty) if value == "*v" => format!("(const {ty}*)(const void *)&value_, "),
                    _ => format!("*({}*)(void *)&value_, ", theirs.trim_end_matches('v')),
                };
                let copy = format!("    {served} value_ = {value};\n");
                let plain = match kind {
                    "echo" => format!("{copy}    *result = value_;\n"),
                    _ => format!(
                        "{copy}    size_t count = 0;\n    {walk}(&value_, count_, &count);\n    \
                        result->data = upcall_call_alloc(call, count * 8);\n    {walk}(&value_, \
                        told_, result);\n"
                    ),
                };
                let out = format!("{copy}    {walk}(&value_, out_, NULL);\n");
                let result =
                    client.split(", ").nth(2).expect("a result").trim_end_matches("*result").trim();
                let forward = match kind {
                    // The client's result lives until the next call of the procedure: by then the
                    // previous call has been answered.
                    "echo" => {
                        let free = header
                            .free("gives_objects", &member)
                            .unwrap_or_default()
                            .replace("(result)", "(&kept)");
                        let free = free.replace("*result", "kept");
                        format!(
                            "    static {result} kept;\n    static bool have;\n    \
                            _Static_assert(sizeof kept == sizeof *result, \"of one \
                            size\");\n{out}    \
                             if (have) {{\n        {walk}(&kept, forget_, NULL);\n        \
                             {free};\n    }}\n    have = false;\n{}",
                            asked(
                                &member,
                                &argument,
                                "&kept",
                                &format!(
                                    "have = true, {walk}(&kept, back_, NULL), memcpy(result, \
                                    &kept, sizeof kept);"
                                )
                            )
                        )
                    }
                    _ => format!(
                        "    upcall_list_u64_t got;\n{out}{}",
                        asked(
                            &member,
                            &argument,
                            "&got",
                            "result->len = got.len, result->data = memcpy(upcall_call_alloc(call, \
                            got.len * 8 + 1), got.len ? (const void *)got.data : \"\", got.len * \
                            8), upcall_list_u64_free(&got);"
                        )
                    ),
                };
                (plain, forward)
            }
        };
        for (which, body) in [("has", plain), ("asks", forward)] {
            let _ = writeln!(
                functions,
                "static void {which}_{member}({params}) {{\n    (void)context, \
                (void)call;\n{body}}}"
            );
        }
    }
    let _ = write!(
        out,
        "static void *object_of_(int resource, void *value, void (*drop)(void *)) {{\n    switch \
        (resource) {{\n{news}        default: abort();\n    }}\n}}\n\
         /* Replaces a resource by a proxy object. */\n\
         static void back_(void **slot, bool lent, int resource, void *context) {{\n    \
         (void)lent, (void)context;\n    *slot = object_of_(resource, proxy_new_(*slot), \
         proxy_drop_);\n}}\n\
         {walks}{functions}"
    );
    for which in ["has", "asks"] {
        let all: String = server
            .functions
            .keys()
            .map(|member| format!("    .{member} = {which}_{member},\n"))
            .collect();
        let _ = writeln!(out, "static gives_objects_server_t {which}_ = {{\n{all}}};");
    }
    let mut fills = String::new();
    let mut left: Vec<&str> = server.parts.values().copied().collect();
    let mut filled = std::collections::BTreeSet::new();
    while let Some(part) = left.pop() {
        if !filled.insert(part) {
            continue;
        }
        let _ = writeln!(out, "static {part}_server_t never_{part}_;");
        let _ = writeln!(fills, "    fill_(&never_{part}_, sizeof never_{part}_);");
    }
    for part in &filled {
        for (member, other) in &header.server(part).parts {
            let _ = writeln!(fills, "    never_{part}_.{member} = &never_{other}_;");
        }
    }
    for (member, part) in &server.parts {
        let _ = writeln!(fills, "    has_.{member} = asks_.{member} = &never_{part}_;");
    }
    let _ = write!(
        out,
        "upcall_status objects_export(upcall_server *server, const char *has, const char *asks, \
        upcall_error *error);\n\
         upcall_status objects_export(upcall_server *server, const char *has, const char *asks, \
         upcall_error *error) {{\n    upcall_status status;\n{fills}    \
         (void)fill_;\n    status = gives_objects_export(server, has, &has_, error);\n    \
         return status != UPCALL_OK ? status : gives_objects_export(server, asks, &asks_, \
         error);\n}}\n\
         bool objects_bind(const char *has, upcall_error *error);\n\
         bool objects_bind(const char *has, upcall_error *error) {{\n    return (there_ = \
         gives_objects_bind(has, error)) != NULL;\n}}\n\
         void objects_unbind(void);\nvoid objects_unbind(void) {{\n    \
         gives_objects_unbind(there_);\n}}\n"
    );
    out
}

/// Statements that call the other server, and what is done with its answer.
fn asked(member: &str, argument: &str, result: &str, then: &str) -> String {
    format!(
        "    upcall_error error;\n    if (good_(gives_objects_{member}(there_, \
        {argument}{result}, &error), call, &error)) {{ {then} }}\n"
    )
}

/// Statements that visit all handles in the value that C calls `place`, from left to right.
fn visits(
    model: &Model,
    numbers: &BTreeMap<TypeId, &str>,
    ty: &Type,
    place: &str,
    depth: usize,
) -> String {
    if !model.holds(ty).any() {
        return String::new();
    }
    let of = |ty: &Type, place: String| visits(model, numbers, ty, &place, depth + 1);
    let each = |ty: &Type, count: &str| {
        format!(
            "for (size_t i{depth} = 0; i{depth} < {count}; i{depth}++) {{ {} }}\n",
            of(ty, format!("{place}.data[i{depth}]"))
        )
    };
    let member = |name: &str| format!("{place}.{}", name.replace('-', "_"));
    match model.resolve(ty) {
        Type::Own(id) | Type::Borrow(id) => {
            let lent = matches!(model.resolve(ty), Type::Borrow(_));
            format!("visit((void **)(void *)&{place}, {lent}, {}, context);\n", numbers[id])
        }
        Type::List(t) => each(t, &format!("{place}.len")),
        Type::FixedList(t, n) => each(t, &n.to_string()),
        Type::Option(t) => {
            format!("if ({place}.is_some) {{ {} }}\n", of(t, format!("{place}.value")))
        }
        Type::Result(ok, err) => {
            let side = |t: &Option<Box<Type>>, name: &str| {
                t.as_ref().map_or(String::new(), |t| of(t, format!("{place}.as.{name}")))
            };
            format!(
                "if ({place}.is_err) {{ {} }} else {{ {} }}\n",
                side(err, "err"),
                side(ok, "ok")
            )
        }
        Type::Tuple(types) => {
            types.iter().enumerate().map(|(n, t)| of(t, format!("{place}.f{n}"))).collect()
        }
        Type::Named(id) => match &model.def(*id).shape {
            TypeBody::Record(fields) => {
                fields.iter().map(|field| of(&field.ty, member(&field.name))).collect()
            }
            TypeBody::Variant(cases) => {
                let case = |(number, case): (usize, &upcall_idl::model::Case)| {
                    let value = case
                        .ty
                        .as_ref()
                        .map_or(String::new(), |ty| of(ty, member(&format!("as.{}", case.name))));
                    format!("case {number}: {value} break;\n")
                };
                format!(
                    "switch ({place}.tag) {{ {} }}\n",
                    cases.iter().enumerate().map(case).collect::<String>()
                )
            }
            _ => String::new(),
        },
        _ => String::new(),
    }
}
