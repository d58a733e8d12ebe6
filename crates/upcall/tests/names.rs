//! Names that have a meaning in Rust, in the runtime or in the generated code: the stubs compile
//! without a warning with any names that WIT allows.
#![deny(warnings)]
#![forbid(unsafe_code)]

mod procedures {
    upcall::interface!(
        r#"
        package test:procedures;
        interface clone {
            clone: func(clone: u8); drop: func(drop: string) -> string; fmt: func(); %from: func();
            into: func(); eq: func();
            with-deadline: func(); with-hand-off: func(); with-cancel: func();
            with-when-full: func(); is-open: func(); bind: func(); local: func();
            set-pacing: func(); new: func();
            type-id: func(); to-string: func(); borrow-mut: func(); as-ref: func(); deref: func();
            try-into: func();
            link: func(link: u8); stub: func(stub: u8); %export: func(); run: func();
            check: func(); default: func();
            value: func(value: u8, error: u8, binding: u8, handle: u8, server: string,
                args: list<u8>, number: u16, call: u8);
            self: func(self: u8, super: u8, crate: u8, move: u8, dyn: u8, this: u8, reply: u8,
                object: u8);
        }
        "#
    );
}

mod objects {
    upcall::interface!(
        r#"
        package test:objects;
        interface objects {
            resource new {
                constructor(new: string, server: u8, objects: u8, handle: u8);
                drop: func(binding: u8); clone: func() -> new; type-id: func(); any: func();
                fmt: func();
                link: func(link: borrow<new>, server: new);
                handle: func(handle: option<new>, binding: list<borrow<new>>);
                of: static func() -> result<new, new>;
            }
            record holder {
                value: new, self: option<new>, link: list<new>, binding: result<new, new>,
                served: tuple<new, u8>
            }
            variant kind { value(new), some(holder), none, ok(list<holder>), err, self }
            swap: func(value: holder, %list: kind, binding: kind) -> result<holder, kind>;
            clone: func(d: holder, at: u8);
        }
        "#
    );
}

mod types {
    upcall::interface!(
        r#"
        package test:types;
        interface types {
            record send { send: u8 } enum sync { sync, send } record %option { a: %string }
            record %result { %result: u8 }
            type vec = list<arc>; record %string { %string: list<u8> } record arc { a: u8 }
            record box { a: u8 } record some { a: u8 }
            variant none { none, some, ok(ok), err } flags ok { ok, err, all, empty }
            record err { e: f32, d: f64, at: u8 }
            record clone { clone: u8 } record debug { f: u8 } record layout { layout: u8 }
            record put { put: u8 } record get { get: u8 }
            record iterator { a: u8 } record fn { a: u8 } record sized { a: u8 }
            record default { a: u8 } record any { a: u8 }
            record types { a: u8 } record handle { a: handle-two } record handle-two { a: u8 }
            record binding { b: u8 }
            resource drop {
                dropped: func(drop: send) -> %option;
                some: func(a: option<drop>) -> option<drop>;
            }
            record copy { a: drop, b: list<drop>, c: %option, d: list<%string> }
            all: func(a: send, b: sync, c: %option, d: %result, e: vec, f: %string, g: arc,
                h: box, i: some, j: none, k: ok, l: err) -> clone;
            more: func(a: debug, b: layout, c: put, d: get, e: iterator, f: fn, g: sized,
                h: default, i: any, j: types, k: handle) -> binding;
            results: func() -> result<option<send>, err>;
            copies: func(a: copy, b: list<copy>) -> result<copy, none>;
        }
        "#
    );
}

/// It is enough that this compiles.
#[test]
fn odd_names_compile() {
    let ids =
        [&procedures::clone::INTERFACE, &types::types::INTERFACE, &objects::objects::INTERFACE]
            .map(|i| i.id.as_ref());
    assert_eq!(ids, ["test:procedures/clone", "test:types/types", "test:objects/objects"]);
}
