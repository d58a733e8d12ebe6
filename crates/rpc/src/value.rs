//! Values in a block: the layout, writing and reading of each WIT type.
//!
//! The layout is named "upcall-1": natural alignment, little endian, records like C's, and 64-bit
//! offsets and counts for values without a fixed size. The component model's canonical layout has
//! 32-bit offsets, and strings in the callee's own memory.

use crate::decode::{Bytes, Decoder, Malformed};
use crate::encode::{Encoder, piece};
use crate::pace::{OF_ELEMENT, PIECE, Pace};
use std::mem::needs_drop;
use std::sync::Arc;

/// A type with a place in a block.
pub trait Layout {
    /// Bytes in the fixed part.
    const SIZE: usize;
    /// Alignment in the fixed part: a power of two, at most eight.
    const ALIGN: usize;
    /// `true` if the type has no tail.
    const FIXED: bool;

    /// Drops a value that a server has read or returned. A large value is freed in pieces,
    /// between which other calls have turns.
    #[inline]
    fn free(self, _pace: &Pace)
    where
        Self: Sized,
    {
        drop(self);
    }
}

/// A value that can be written.
pub trait Put: Layout {
    /// Bytes of the value's tail, each piece rounded up to a multiple of eight.
    fn tail(&self) -> usize;
    /// Writes the value at `at`.
    fn put(&self, encoder: &mut Encoder<'_>, at: usize);

    /// Writes a list of values whose descriptor is at `at`. Lists of bytes are written in one copy.
    fn put_all(list: &[Self], encoder: &mut Encoder<'_>, at: usize)
    where
        Self: Sized,
    {
        if let Some(start) = encoder.list(at, list.len(), Self::SIZE) {
            Self::put_run(list, encoder, start);
        }
    }

    /// Writes consecutive values, the first at `at`. Bytes are written in one copy.
    fn put_run(list: &[Self], encoder: &mut Encoder<'_>, at: usize)
    where
        Self: Sized,
    {
        let bytes = max(Self::SIZE, OF_ELEMENT);
        let batch = max(PIECE / bytes, 1);
        for (chunk, values) in list.chunks(batch).enumerate() {
            for (i, value) in values.iter().enumerate() {
                value.put(encoder, at + (chunk * batch + i) * Self::SIZE);
            }
            encoder.spent(values.len() * bytes);
        }
    }
}

/// A value that can be read.
pub trait Get: Layout + Sized {
    /// Reads the value at `at`.
    ///
    /// # Errors
    /// See [`Malformed`].
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed>;

    /// Reads the list of values whose descriptor is at `at`. Lists of bytes are read in one copy.
    ///
    /// # Errors
    /// See [`Malformed`].
    fn get_all(decoder: &Decoder<'_>, at: usize) -> Result<Vec<Self>, Malformed> {
        let (start, count) = decoder.list(at, Self::SIZE)?;
        let mut list = decoder.room(count)?;
        let bytes = max(max(Self::SIZE, size_of::<Self>()), OF_ELEMENT);
        let batch = max(PIECE / bytes, 1);
        for first in (0..count).step_by(batch) {
            let end = count.min(first + batch);
            for i in first..end {
                list.push(Self::get(decoder, start + i * Self::SIZE)?);
            }
            decoder.spent((end - first) * bytes);
        }
        Ok(list)
    }

    /// Reads `N` consecutive values, the first at `at`. Bytes are read in one copy.
    ///
    /// # Errors
    /// See [`Malformed`].
    fn get_run<const N: usize>(decoder: &Decoder<'_>, at: usize) -> Result<[Self; N], Malformed> {
        let mut list = decoder.room(N)?;
        for i in 0..N {
            list.push(Self::get(decoder, at + i * Self::SIZE)?);
        }
        list.try_into().map_err(|_| Malformed::Short { at })
    }
}

const fn up(at: usize, align: usize) -> usize {
    (at + align - 1) & !(align - 1)
}

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// Size of a payload behind a discriminant of one byte, and the payload's offset.
const fn behind_byte(size: usize, align: usize) -> (usize, usize) {
    (up(1, align), up(up(1, align) + size, align))
}

macro_rules! number {
    ($($plain:ty, $carrier:ident, $size:literal, $to:expr, $from:expr;)*) => {
        $( number!(@ $plain, $carrier, $size, $to, $from, {}, {}); )*
    };
    (
        @ $plain:ty, $carrier:ident, $size:literal, $to:expr, $from:expr,
        { $($put_all:item)* }, { $($get_all:item)* }
    ) => {
        impl Layout for $plain {
            const SIZE: usize = $size;
            const ALIGN: usize = $size;
            const FIXED: bool = true;
        }
        impl Put for $plain {
            #[inline(always)]
            fn tail(&self) -> usize { 0 }
            #[inline(always)]
            fn put(&self, encoder: &mut Encoder<'_>, at: usize) { encoder.$carrier(at, $to(*self)) }
            $($put_all)*
        }
        impl Get for $plain {
            #[inline(always)]
            fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
                $from(decoder.$carrier(at)?, at)
            }
            $($get_all)*
        }
    };
}

number! {
    u16, u16, 2, |v| v, |v, _| Ok(v);
    u32, u32, 4, |v| v, |v, _| Ok(v);
    u64, u64, 8, |v| v, |v, _| Ok(v);
    i8, u8, 1, |v: i8| v as u8, |v: u8, _| Ok(v as i8);
    i16, u16, 2, |v: i16| v as u16, |v: u16, _| Ok(v as i16);
    i32, u32, 4, |v: i32| v as u32, |v: u32, _| Ok(v as i32);
    i64, u64, 8, |v: i64| v as u64, |v: u64, _| Ok(v as i64);
    f32, u32, 4, f32::to_bits, |v, _| Ok(f32::from_bits(v));
    f64, u64, 8, f64::to_bits, |v, _| Ok(f64::from_bits(v));
    bool, u8, 1, u8::from, |v, at| match v {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed::discriminant(at, v.into(), 2)),
    };
    char, u32, 4, u32::from, |v, at| {
        char::from_u32(v).ok_or(Malformed::NoSuchCase { at, found: v.into(), cases: 0x11_0000 })
    };
}

number! {
    @ u8, u8, 1, |v| v, |v, _| Ok(v),
    {
        fn put_all(list: &[Self], encoder: &mut Encoder<'_>, at: usize) {
            encoder.bytes(at, list, "list");
        }
        #[inline]
        fn put_run(list: &[Self], encoder: &mut Encoder<'_>, at: usize) {
            encoder.run(at, list);
        }
    },
    {
        fn get_all(decoder: &Decoder<'_>, at: usize) -> Result<Vec<Self>, Malformed> {
            decoder.byte_list(at)
        }
        #[inline]
        fn get_run<const N: usize>(
            decoder: &Decoder<'_>,
            at: usize,
        ) -> Result<[Self; N], Malformed> {
            decoder.run(at)
        }
    }
}

/// A resource handle as a bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

number! {
    Handle, u64, 8, |v: Handle| v.0, |v, _| Ok(Handle(v));
}

macro_rules! descriptor {
    ($($(#[$generic:ident])? $type:ty),*) => { $(
        impl $(<$generic>)? Layout for $type {
            const SIZE: usize = 16;
            const ALIGN: usize = 8;
            const FIXED: bool = false;
        }
    )* };
}

descriptor!(
    str,
    Bytes<'_>,
    #[T]
    [T]
);

impl Layout for String {
    const SIZE: usize = 16;
    const ALIGN: usize = 8;
    const FIXED: bool = false;

    #[inline]
    fn free(self, pace: &Pace) {
        pace.free(self.into_bytes());
    }
}

impl<T: Layout> Layout for Vec<T> {
    const SIZE: usize = 16;
    const ALIGN: usize = 8;
    const FIXED: bool = false;

    #[inline]
    fn free(mut self, pace: &Pace) {
        if needs_drop::<T>() {
            while let Some(value) = self.pop() {
                value.free(pace);
                pace.freed(size_of::<T>());
            }
        }
        pace.free(self);
    }
}

impl Put for str {
    #[inline]
    fn tail(&self) -> usize {
        piece(self.len())
    }
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        encoder.bytes(at, self.as_bytes(), "string");
    }
}

impl Put for String {
    fn tail(&self) -> usize {
        self.as_str().tail()
    }
    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        self.as_str().put(encoder, at);
    }
}

impl Get for String {
    #[inline]
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
        decoder.string(at)
    }
}

impl<T: Put> Put for [T] {
    #[inline]
    fn tail(&self) -> usize {
        let own = piece(self.len() * T::SIZE);
        if T::FIXED { own } else { self.iter().map(Put::tail).sum::<usize>() + own }
    }

    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        T::put_all(self, encoder, at);
    }
}

impl<T: Put> Put for Vec<T> {
    #[inline]
    fn tail(&self) -> usize {
        self.as_slice().tail()
    }
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        T::put_all(self, encoder, at);
    }
}

impl<T: Get> Get for Vec<T> {
    #[inline]
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
        T::get_all(decoder, at)
    }
}

impl<T: Layout, const N: usize> Layout for [T; N] {
    const SIZE: usize = T::SIZE * N;
    const ALIGN: usize = T::ALIGN;
    const FIXED: bool = T::FIXED;

    #[inline]
    fn free(self, pace: &Pace) {
        self.into_iter().for_each(|value| value.free(pace));
    }
}

impl<T: Put, const N: usize> Put for [T; N] {
    #[inline]
    fn tail(&self) -> usize {
        if T::FIXED { 0 } else { self.iter().map(Put::tail).sum() }
    }
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        T::put_run(self, encoder, at);
    }
}

impl<T: Get, const N: usize> Get for [T; N] {
    #[inline]
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
        T::get_run(decoder, at)
    }
}

impl<T: Layout> Layout for Option<T> {
    const SIZE: usize = behind_byte(T::SIZE, T::ALIGN).1;
    const ALIGN: usize = T::ALIGN;
    const FIXED: bool = T::FIXED;

    #[inline]
    fn free(self, pace: &Pace) {
        self.into_iter().for_each(|value| value.free(pace));
    }
}

impl<T: Put> Put for Option<T> {
    #[inline]
    fn tail(&self) -> usize {
        if T::FIXED { 0 } else { self.as_ref().map_or(0, Put::tail) }
    }
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        encoder.u8(at, self.is_some().into());
        if let Some(value) = self {
            value.put(encoder, at + behind_byte(T::SIZE, T::ALIGN).0);
        }
    }
}

impl<T: Get> Get for Option<T> {
    #[inline]
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
        match decoder.get::<bool>(at)? {
            false => Ok(None),
            true => T::get(decoder, at + behind_byte(T::SIZE, T::ALIGN).0).map(Some),
        }
    }
}

impl<T: Layout, E: Layout> Layout for Result<T, E> {
    const SIZE: usize = behind_byte(max(T::SIZE, E::SIZE), Self::ALIGN).1;
    const ALIGN: usize = max(T::ALIGN, E::ALIGN);
    const FIXED: bool = T::FIXED && E::FIXED;

    #[inline]
    fn free(self, pace: &Pace) {
        match self {
            Ok(value) => value.free(pace),
            Err(error) => error.free(pace),
        }
    }
}

impl<T: Put, E: Put> Put for Result<T, E> {
    #[inline]
    fn tail(&self) -> usize {
        match self {
            Ok(value) if !T::FIXED => value.tail(),
            Err(error) if !E::FIXED => error.tail(),
            _ => 0,
        }
    }
    #[inline]
    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        encoder.u8(at, self.is_err().into());
        let at = at + up(1, Self::ALIGN);
        match self {
            Ok(value) => value.put(encoder, at),
            Err(error) => error.put(encoder, at),
        }
    }
}

impl<T: Get, E: Get> Get for Result<T, E> {
    #[inline]
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
        let payload = at + up(1, Self::ALIGN);
        match decoder.get::<bool>(at)? {
            false => T::get(decoder, payload).map(Ok),
            true => E::get(decoder, payload).map(Err),
        }
    }
}

impl<T: Layout + ?Sized> Layout for &T {
    const SIZE: usize = T::SIZE;
    const ALIGN: usize = T::ALIGN;
    const FIXED: bool = T::FIXED;
}

impl<T: Put + ?Sized> Put for &T {
    #[inline(always)]
    fn tail(&self) -> usize {
        (**self).tail()
    }
    #[inline(always)]
    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        (**self).put(encoder, at);
    }
}

/// An object of a server. The client gets a handle.
impl<T: ?Sized> Layout for Arc<T> {
    const SIZE: usize = 8;
    const ALIGN: usize = 8;
    const FIXED: bool = true;
}

impl<T: ?Sized + Send + Sync + 'static> Put for Arc<T> {
    fn tail(&self) -> usize {
        0
    }
    fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
        encoder.export(at, Box::new(self.clone()));
    }
}

/// An object that a client gives away inside another value. From here on it belongs to the server.
impl<T: ?Sized + Send + Sync + 'static> Get for Arc<T> {
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
        decoder.take(at)
    }
}

/// An object that a client lends for one call, inside another value. (An object lent by itself is a
/// plain reference.)
pub struct Lent<T: ?Sized>(Arc<T>);

impl<T: ?Sized> std::ops::Deref for Lent<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> From<Arc<T>> for Lent<T> {
    /// For a call in the same process.
    fn from(object: Arc<T>) -> Self {
        Self(object)
    }
}

impl<T: ?Sized> std::fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lent")
    }
}

impl<T: ?Sized> Layout for Lent<T> {
    const SIZE: usize = 8;
    const ALIGN: usize = 8;
    const FIXED: bool = true;
}

impl<T: ?Sized + Send + Sync + 'static> Get for Lent<T> {
    fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
        decoder.borrow(at).map(Self)
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => { $( tuples!(@ $($name)*); )* };
    (@ $($name:ident)*) => {
        impl<$($name: Layout),*> Layout for ($($name,)*) {
            const SIZE: usize = {
                let at = 0;
                $( let at = up(at, $name::ALIGN) + $name::SIZE; )*
                up(at, Self::ALIGN)
            };
            const ALIGN: usize = {
                let align = 1;
                $( let align = max(align, $name::ALIGN); )*
                align
            };
            const FIXED: bool = true $( && $name::FIXED )*;

            #[allow(non_snake_case, unused_variables)]
            #[inline]
            fn free(self, pace: &Pace) {
                let ($($name,)*) = self;
                $( $name.free(pace); )*
            }
        }

        #[allow(non_snake_case, unused_variables, unused_assignments, unused_mut)]
        impl<$($name: Put),*> Put for ($($name,)*) {
            #[inline(always)]
            fn tail(&self) -> usize {
                let ($($name,)*) = self;
                0 $( + $name.tail() )*
            }
            #[inline(always)]
            fn put(&self, encoder: &mut Encoder<'_>, at: usize) {
                let ($($name,)*) = self;
                let mut next = 0;
                $(
                    next = up(next, <$name as Layout>::ALIGN);
                    $name.put(encoder, at + next);
                    next += <$name as Layout>::SIZE;
                )*
            }
        }

        #[allow(non_snake_case, unused_variables, unused_assignments, unused_mut)]
        impl<$($name: Get),*> Get for ($($name,)*) {
            #[inline(always)]
            fn get(decoder: &Decoder<'_>, at: usize) -> Result<Self, Malformed> {
                let mut next = 0;
                $(
                    next = up(next, <$name as Layout>::ALIGN);
                    let $name = <$name as Get>::get(decoder, at + next)?;
                    next += <$name as Layout>::SIZE;
                )*
                Ok(($($name,)*))
            }
        }
    };
}

tuples! {
    ; A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H;
    A B C D E F G H I; A B C D E F G H I J; A B C D E F G H I J K; A B C D E F G H I J K L;
    A B C D E F G H I J K L M; A B C D E F G H I J K L M N; A B C D E F G H I J K L M N O;
    A B C D E F G H I J K L M N O P;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::DecoderSide;
    use crate::encode::{EncodeError, block_len};
    use crate::interface::Limits;
    use upcall_shm::span::WritableSpan;

    fn back<T: Put, R: Get>(value: &T) -> Result<R, Malformed> {
        let mut words = vec![0; block_len(value).div_ceil(8)];
        let len = words.len() * 8;
        Encoder::block(WritableSpan::of_words(&mut words), value, Limits::default(), None).unwrap();
        // Nothing is left of what the memory held before, whichever bytes the values leave out.
        let mut over = vec![u64::MAX; words.len() + 2];
        let room = WritableSpan::of_words(&mut over);
        Encoder::block_over(room, value, Limits::default()).unwrap();
        assert_eq!(over.split_at(words.len()), (&words[..], &[0, 0][..]));
        let span = WritableSpan::of_words(&mut words);
        R::get(
            &Decoder::new(
                span.part(0, len).unwrap(),
                T::SIZE,
                Limits::default(),
                DecoderSide::None,
            ),
            0,
        )
    }

    #[test]
    fn values_come_back() {
        let value = (true, -3i16, 'ß', 1.5f64, (7u8, -9i64), [1u32, 2, 3], Some(4u8), None::<u64>);
        assert_eq!(
            back::<_, (bool, i16, char, f64, (u8, i64), [u32; 3], Option<u8>, Option<u64>)>(&value),
            Ok(value)
        );
        let lists = (
            "grüße",
            vec![1u8, 2, 3],
            vec![vec![1u16], vec![], vec![2, 3]],
            vec!["a".to_string(), String::new()],
        );
        let got: (String, Vec<u8>, Vec<Vec<u16>>, Vec<String>) = back(&lists).unwrap();
        assert_eq!((got.0.as_str(), got.1, got.2, got.3), lists);
        let outcomes: (Result<u64, String>, Result<(), u8>) = (Err("no".into()), Ok(()));
        assert_eq!(back::<_, (Result<u64, String>, Result<(), u8>)>(&outcomes), Ok(outcomes));
    }

    #[test]
    fn layouts_are_those_of_c() {
        type Mixed = (u8, u32, u16);
        assert_eq!((Mixed::SIZE, Mixed::ALIGN), (12, 4));
        assert_eq!((<Option<u64>>::SIZE, <Option<u8>>::SIZE, <Result<(), ()>>::SIZE), (16, 2, 1));
        assert_eq!((<(u8, String)>::SIZE, <()>::SIZE, <()>::ALIGN), (24, 0, 1));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(matches!(back::<_, bool>(&2u8), Err(Malformed::NoSuchCase { found: 2, .. })));
        assert!(matches!(back::<_, char>(&0xd800u32), Err(Malformed::NoSuchCase { .. })));
        assert!(matches!(back::<_, String>(&vec![0xffu8]), Err(Malformed::NotUtf8 { .. })));
        // A descriptor that points beyond the block, or claims more than the block has.
        for (start, count) in [(0, 17), (u64::MAX, 1), (8, u64::MAX), (17, 0)] {
            assert!(back::<_, Vec<u8>>(&(start, count)).is_err(), "{start} {count}");
            assert!(back::<_, Vec<u64>>(&(start, count)).is_err(), "{start} {count}");
        }
        // Two lists share a tail: the second finds the budget exhausted.
        assert!(back::<_, (Vec<u8>, Vec<u8>)>(&(0u64, 20u64, 0u64, 20u64)).is_err());
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        let limits = Limits { string: 3, list: 2, ..Limits::default() };
        let mut words = [0; 8];
        let span = WritableSpan::of_words(&mut words);
        let fault = Encoder::block(span, &"four", limits, None).unwrap_err();
        assert_eq!(fault, EncodeError::TooLong { what: "string", len: 4, limit: 3 });
    }
}
