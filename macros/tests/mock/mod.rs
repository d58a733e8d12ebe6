//! A stand-in for the runtime: the names, traits and layouts that generated code relies on, and no calls.
#![allow(dead_code, missing_docs)]

use std::fmt;

pub use stub::{Bytes, Export};

#[derive(Debug)]
pub struct BindError;

#[derive(Debug)]
pub enum CallError {
    ForeignHandle,
}

#[derive(Debug)]
pub enum Failure<E> {
    Returned(E),
    Call(CallError),
}

impl<E> From<CallError> for Failure<E> {
    fn from(e: CallError) -> Self {
        Self::Call(e)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

pub mod stub {
    use super::{BindError, CallError};
    use std::borrow::Cow;
    use std::sync::Arc;

    pub struct Encoder<'a>(&'a mut [u8]);
    pub struct Decoder<'a>(&'a [u8]);

    #[derive(Debug)]
    pub enum Malformed {
        NoSuchHandle { handle: u64 },
        NoSuchCase { at: usize, found: u64, cases: u64 },
    }

    impl Malformed {
        pub fn discriminant(at: usize, found: u64, cases: u64) -> Self {
            Self::NoSuchCase { at, found, cases }
        }
    }

    pub trait Layout {
        const SIZE: usize;
        const ALIGN: usize;
        const FIXED: bool;
    }
    pub trait Put: Layout {
        fn tail(&self) -> usize;
        fn put(&self, encoder: &mut Encoder<'_>, at: usize);
    }
    pub trait Get: Layout + Sized {
        fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed>;
    }

    #[derive(Clone, Copy)]
    pub struct Bytes<'a>(&'a [u8]);
    impl Bytes<'_> {
        pub fn to_vec(&self) -> Vec<u8> {
            self.0.to_vec()
        }
    }
    impl<'a> From<&'a [u8]> for Bytes<'a> {
        fn from(bytes: &'a [u8]) -> Self {
            Self(bytes)
        }
    }

    #[derive(Clone, Copy)]
    pub struct Handle(pub u64);

    macro_rules! layout {
        ($([$($generic:tt)*] $ty:ty, $size:expr, $align:expr, $fixed:expr;)*) => { $(
            impl<$($generic)*> Layout for $ty {
                const SIZE: usize = $size;
                const ALIGN: usize = $align;
                const FIXED: bool = $fixed;
            }
        )* };
    }
    macro_rules! get {
        ($([$($generic:tt)*] $ty:ty;)*) => { $(
            impl<$($generic)*> Get for $ty {
                fn get(_: &Decoder<'_>, _: usize) -> Result<Self, Malformed> { unimplemented!() }
            }
        )* };
    }
    const fn max(a: usize, b: usize) -> usize {
        if a > b { a } else { b }
    }
    const fn up(at: usize, align: usize) -> usize {
        (at + align - 1) & !(align - 1)
    }
    layout! {
        [] bool, 1, 1, true; [] u8, 1, 1, true; [] i8, 1, 1, true; [] u16, 2, 2, true; [] i16, 2, 2, true;
        [] u32, 4, 4, true; [] i32, 4, 4, true; [] f32, 4, 4, true; [] char, 4, 4, true;
        [] u64, 8, 8, true; [] i64, 8, 8, true; [] f64, 8, 8, true; [] Handle, 8, 8, true;
        [] str, 16, 8, false; [] String, 16, 8, false; [T] [T], 16, 8, false; [T] Vec<T>, 16, 8, false;
        [T: Layout, const N: usize] [T; N], T::SIZE * N, T::ALIGN, T::FIXED;
        [T: Layout] Option<T>, up(up(1, T::ALIGN) + T::SIZE, T::ALIGN), T::ALIGN, T::FIXED;
        [T: Layout, E: Layout] Result<T, E>, up(up(1, Self::ALIGN) + max(T::SIZE, E::SIZE), Self::ALIGN),
            max(T::ALIGN, E::ALIGN), T::FIXED && E::FIXED;
        [T: ?Sized] Arc<T>, 8, 8, true;
        [T: Layout + ?Sized] &T, T::SIZE, T::ALIGN, T::FIXED;
    }
    get! {
        [] bool; [] u8; [] i8; [] u16; [] i16; [] u32; [] i32; [] f32; [] char; [] u64; [] i64; [] f64; [] Handle;
        [] String; [T: Get] Vec<T>; [T: Get, const N: usize] [T; N]; [T: Get] Option<T>; [T: Get, E: Get] Result<T, E>;
    }
    macro_rules! put {
        ($([$($generic:tt)*] $ty:ty;)*) => { $(
            impl<$($generic)*> Put for $ty {
                fn tail(&self) -> usize { 0 }
                fn put(&self, _: &mut Encoder<'_>, _: usize) {}
            }
        )* };
    }
    put! {
        [] bool; [] u8; [] i8; [] u16; [] i16; [] u32; [] i32; [] f32; [] char; [] u64; [] i64; [] f64; [] Handle;
        [] String; [T: Put] Vec<T>; [T: Put, const N: usize] [T; N]; [T: Put] Option<T>; [T: Put, E: Put] Result<T, E>;
        [] str; [T: Put] [T]; [T: ?Sized + Send + Sync + 'static] Arc<T>; [T: Put + ?Sized] &T;
    }

    macro_rules! tuples {
        ($(($($name:ident)*))*) => { $(
            impl<$($name: Layout),*> Layout for ($($name,)*) {
                const SIZE: usize = { let at = 0; $(let at = up(at, $name::ALIGN) + $name::SIZE;)* up(at, Self::ALIGN) };
                const ALIGN: usize = { let align = 1; $(let align = max(align, $name::ALIGN);)* align };
                const FIXED: bool = true $(&& $name::FIXED)*;
            }
            impl<$($name: Put),*> Put for ($($name,)*) {
                fn tail(&self) -> usize { 0 }
                fn put(&self, _: &mut Encoder<'_>, _: usize) {}
            }
            impl<$($name: Get),*> Get for ($($name,)*) {
                fn get(_: &Decoder<'_>, _: usize) -> Result<Self, Malformed> { unimplemented!() }
            }
        )* };
    }
    tuples! { () (A) (A B) (A B C) (A B C D) (A B C D E) }

    macro_rules! words {
        ($($name:ident $ty:ty;)*) => {
            impl Encoder<'_> { $( pub fn $name(&mut self, _: usize, _: $ty) {} )* }
            impl Decoder<'_> { $( pub fn $name(&self, _: usize) -> Result<$ty, Malformed> { unimplemented!() } )* }
        };
    }
    words! { u8 u8; u16 u16; u32 u32; u64 u64; }

    impl Decoder<'_> {
        pub fn get<T: Get>(&self, at: usize) -> Result<T, Malformed> {
            T::get(self, at)
        }
        pub fn bytes(&self, _: usize) -> Result<Bytes<'_>, Malformed> {
            unimplemented!()
        }
        pub fn borrow<T: ?Sized + Send + Sync + 'static>(&self, _: usize) -> Result<Arc<T>, Malformed> {
            unimplemented!()
        }
        pub fn take<T: ?Sized + Send + Sync + 'static>(&self, _: usize) -> Result<Arc<T>, Malformed> {
            unimplemented!()
        }
        pub fn binding(&self) -> Option<Binding> {
            None
        }
    }

    pub struct Interface {
        pub id: Cow<'static, str>,
        pub procedures: Cow<'static, [Procedure]>,
        pub source: Cow<'static, str>,
        pub limits: Cow<'static, str>,
    }
    #[derive(Clone)]
    pub struct Procedure {
        pub name: Cow<'static, str>,
        pub signature: Cow<'static, str>,
        pub hash: u64,
        pub args: Extent,
        pub results: Extent,
        pub calls: u16,
        pub limits: Limits,
    }
    #[derive(Clone, Copy)]
    pub struct Extent {
        pub fixed: u32,
        pub tail: u32,
    }
    #[derive(Clone, Copy)]
    pub struct Limits {
        pub string: u64,
        pub list: u64,
    }

    #[derive(Clone)]
    pub struct Binding;
    impl Binding {
        pub fn bind(_: &str, _: &'static Interface) -> Result<Self, BindError> {
            Err(BindError)
        }
        pub fn call<A: Put, R: Get>(&self, _: u16, _: &A) -> Result<R, CallError> {
            unimplemented!()
        }
        pub fn server(&self) -> u32 {
            0
        }
        pub fn name(&self) -> &str {
            ""
        }
        pub fn release(&self, _: Handle) {}
        pub fn same(&self, _: &Binding) -> bool {
            true
        }
    }

    pub trait Dispatch: Send + Sync {
        fn dispatch(&self, call: Call<'_>) -> Replied;
    }
    pub struct Call<'a>(&'a ());
    pub struct Replied;
    impl Call<'_> {
        pub fn procedure(&self) -> u16 {
            0
        }
        pub fn respond<R: Put>(self, _: impl FnOnce(&Decoder<'_>) -> Result<R, Malformed>) -> Replied {
            Replied
        }
        pub fn unknown(self) -> Replied {
            Replied
        }
    }
    pub struct Export;
    impl Export {
        pub fn new(_: &'static Interface, _: impl Dispatch + 'static) -> Self {
            Self
        }
    }
}
