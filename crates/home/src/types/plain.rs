//! Values that are read and written as a whole.

use super::{Check, DataError, Init, Memory, Shared, Spot, Value, after, larger, shape};
use std::fmt;
use std::marker::PhantomData;
use upcall_shm::span::WritableSpan;

/// A value without pointers, of a fixed size, that is copied as a whole: `#[derive(Plain)]` for
/// structs and enums.
///
/// All zeros are a valid value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a plain value for memory that processes share",
    label = "not plain",
    note = "numbers, `bool`, `char`, arrays, tuples and `Option`s of these, and types with \
            `#[derive(Plain)]` are plain",
    note = "pointers, references, handles and types that hold them mean nothing in another \
            process, and the size of `usize` depends on the machine"
)]
pub trait Plain: Copy + 'static {
    /// Size in bytes.
    const SIZE: usize;
    /// Alignment in bytes, at most 8.
    const ALIGN: usize;
    /// Distinguishes types of different layouts: see [`shape`].
    const SHAPE: u64;

    /// Reads the value at a spot.
    ///
    /// # Errors
    /// [`DataError::Corrupt`]: the bytes there are not a value of this type.
    fn read(spot: Spot<'_>) -> Result<Self, DataError>;

    /// Writes the value to a spot.
    ///
    /// # Errors
    /// [`DataError::Corrupt`]: the spot lies outside.
    fn write(&self, spot: Spot<'_>) -> Result<(), DataError>;

    /// Reads several values that lie one behind the other.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[doc(hidden)]
    #[inline]
    fn read_several<const N: usize>(spot: Spot<'_>) -> Result<[Self; N], DataError> {
        let mut result = Ok(());
        let mut last = None;
        let all = std::array::from_fn(|at| match Self::read(spot.part(at * stride::<Self>())) {
            Ok(value) => {
                last = Some(value);
                last
            }
            Err(error) => {
                result = Err(error);
                last
            }
        });
        result?;
        Ok(all.map(|value: Option<Self>| value.expect("each was read")))
    }

    /// Writes several values one behind the other.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[doc(hidden)]
    #[inline]
    fn write_several(all: &[Self], spot: Spot<'_>) -> Result<(), DataError> {
        all.iter()
            .enumerate()
            .try_for_each(|(at, value)| value.write(spot.part(at * stride::<Self>())))
    }
}

/// Distance from one of several values to the next, in bytes.
const fn stride<T: Plain>() -> usize {
    after(0, T::SIZE, T::ALIGN)
}

/// The place of a plain value.
pub struct Place<'a, T> {
    spot: Spot<'a>,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Place<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<'_, T> {}

impl<T: Plain + fmt::Debug> fmt::Debug for Place<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.get()).finish()
    }
}

impl<T: Plain> Place<'_, T> {
    /// Reads the value.
    ///
    /// # Errors
    /// [`DataError::Corrupt`]: the bytes there are not a value of this type.
    #[inline]
    pub fn get(self) -> Result<T, DataError> {
        T::read(self.spot)
    }

    /// Writes the value.
    ///
    /// # Errors
    /// [`DataError::Corrupt`]: the place lies outside of the object, because an offset was wrong.
    #[inline]
    pub fn set(self, value: T) -> Result<(), DataError> {
        value.write(self.spot)
    }

    /// Replaces the value by the result of `change`, which is returned.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn update(self, change: impl FnOnce(T) -> T) -> Result<T, DataError> {
        let value = change(self.get()?);
        self.set(value)?;
        Ok(value)
    }
}

impl<T: Plain> Shared for T {
    const SIZE: usize = <T as Plain>::SIZE;
    const ALIGN: usize = <T as Plain>::ALIGN;
    const SHAPE: u64 = <T as Plain>::SHAPE;
    const GROWS: bool = false;
    type At<'a> = Place<'a, T>;

    #[inline]
    fn at(spot: Spot<'_>) -> Place<'_, T> {
        Place { spot, of: PhantomData }
    }

    fn clear(spot: Spot<'_>) -> Result<(), DataError> {
        spot.zero(<T as Plain>::SIZE, "a value")
    }

    fn check(spot: Spot<'_>, _check: &mut Check) -> Result<(), DataError> {
        T::read(spot).map(drop)
    }
}

impl<T: Plain> Value for T {
    type Owned = T;

    #[inline]
    fn copy(at: Place<'_, T>) -> Result<T, DataError> {
        at.get()
    }
}

impl<T: Plain> Init<T> for T {
    #[inline]
    fn init(self, at: Place<'_, T>) -> Result<(), DataError> {
        at.set(self)
    }
}

/// Passes the bytes of a value to `with`, as they would lie in an object.
pub(super) fn with_bytes<T: Plain, R>(value: &T, with: impl FnOnce(&[u8]) -> R) -> R {
    const SHORT: usize = 64;
    let (mut short, mut long) = ([0_u64; SHORT / 8], Vec::new());
    let words = if T::SIZE <= SHORT {
        &mut short[..]
    } else {
        long.resize(T::SIZE.div_ceil(8), 0);
        &mut long[..]
    };
    let room = WritableSpan::of_words(words);
    let written = value.write(Memory::private(room).spot(0));
    debug_assert!(written.is_ok(), "a value has its size");
    let mut short = [0; SHORT];
    if T::SIZE <= SHORT {
        let _ = room.copy_out(0, &mut short[..T::SIZE]);
        return with(&short[..T::SIZE]);
    }
    let mut long = vec![0; T::SIZE];
    let _ = room.copy_out(0, &mut long);
    with(&long)
}

macro_rules! number {
    ($($number:ident as $raw:ident by $load:ident, $store:ident: $from:expr, $to:expr;)*) => {$(
        impl Plain for $number {
            const SIZE: usize = size_of::<$raw>();
            const ALIGN: usize = size_of::<$raw>();
            const SHAPE: u64 = shape(stringify!($number), &[]);

            #[inline(always)]
            fn read(spot: Spot<'_>) -> Result<Self, DataError> {
                let raw = spot
                    .all()
                    .$load(spot.at())
                    .ok_or_else(|| DataError::corrupt(stringify!($number), spot.at()))?;
                let from: fn($raw) -> Option<Self> = $from;
                from(raw).ok_or_else(|| DataError::corrupt(stringify!($number), spot.at()))
            }

            #[inline(always)]
            fn write(&self, spot: Spot<'_>) -> Result<(), DataError> {
                let to: fn(Self) -> $raw = $to;
                spot.to_write()?
                    .$store(spot.at(), to(*self))
                    .ok_or_else(|| DataError::corrupt(stringify!($number), spot.at()))
            }
        }
    )*};
}

number! {
    u16 as u16 by u16, put_u16: Some, |value| value;
    u32 as u32 by u32, put_u32: Some, |value| value;
    u64 as u64 by u64, put_u64: Some, |value| value;
    i8 as u8 by u8, put_u8: |raw| Some(raw.cast_signed()), i8::cast_unsigned;
    i16 as u16 by u16, put_u16: |raw| Some(raw.cast_signed()), i16::cast_unsigned;
    i32 as u32 by u32, put_u32: |raw| Some(raw.cast_signed()), i32::cast_unsigned;
    i64 as u64 by u64, put_u64: |raw| Some(raw.cast_signed()), i64::cast_unsigned;
    f32 as u32 by u32, put_u32: |raw| Some(Self::from_bits(raw)), f32::to_bits;
    f64 as u64 by u64, put_u64: |raw| Some(Self::from_bits(raw)), f64::to_bits;
    bool as u8 by u8, put_u8: |raw| (raw < 2).then_some(raw == 1), u8::from;
    char as u32 by u32, put_u32: Self::from_u32, u32::from;
}

impl Plain for u8 {
    const SIZE: usize = 1;
    const ALIGN: usize = 1;
    const SHAPE: u64 = shape("u8", &[]);

    #[inline(always)]
    fn read(spot: Spot<'_>) -> Result<Self, DataError> {
        spot.all().u8(spot.at()).ok_or_else(|| DataError::corrupt("u8", spot.at()))
    }

    #[inline(always)]
    fn write(&self, spot: Spot<'_>) -> Result<(), DataError> {
        spot.to_write()?.put_u8(spot.at(), *self).ok_or_else(|| DataError::corrupt("u8", spot.at()))
    }

    #[inline]
    fn read_several<const N: usize>(spot: Spot<'_>) -> Result<[Self; N], DataError> {
        let mut all = [0; N];
        spot.all()
            .copy_out(spot.at(), &mut all)
            .ok_or_else(|| DataError::corrupt("bytes", spot.at()))?;
        Ok(all)
    }

    #[inline]
    fn write_several(all: &[Self], spot: Spot<'_>) -> Result<(), DataError> {
        spot.write(all, "bytes")
    }
}

impl<T: Plain, const N: usize> Plain for [T; N] {
    const SIZE: usize = N * stride::<T>();
    const ALIGN: usize = T::ALIGN;
    const SHAPE: u64 = shape("array", &[T::SHAPE, N as u64]);

    #[inline]
    fn read(spot: Spot<'_>) -> Result<Self, DataError> {
        T::read_several(spot)
    }

    #[inline]
    fn write(&self, spot: Spot<'_>) -> Result<(), DataError> {
        T::write_several(self, spot)
    }
}

impl<T: Plain> Plain for Option<T> {
    const SIZE: usize = after(Self::VALUE, T::SIZE, T::ALIGN);
    const ALIGN: usize = T::ALIGN;
    const SHAPE: u64 = shape("option", &[T::SHAPE]);

    #[inline]
    fn read(spot: Spot<'_>) -> Result<Self, DataError> {
        Ok(if bool::read(spot)? { Some(T::read(spot.part(Self::VALUE))?) } else { None })
    }

    #[inline]
    fn write(&self, spot: Spot<'_>) -> Result<(), DataError> {
        if let Some(value) = self {
            value.write(spot.part(Self::VALUE))?;
        }
        self.is_some().write(spot)
    }
}

/// Offset of an option's value.
trait Optional {
    const VALUE: usize;
}

impl<T: Plain> Optional for Option<T> {
    const VALUE: usize = after(0, 1, T::ALIGN);
}

macro_rules! tuple {
    ($name:literal: $($part:ident $at:tt),+) => {
        impl<$($part: Plain),+> Plain for ($($part,)+) {
            const SIZE: usize = {
                let mut size = 0;
                $( size = after(size, 0, $part::ALIGN) + $part::SIZE; )+
                after(size, 0, <Self as Plain>::ALIGN)
            };
            const ALIGN: usize = {
                let mut align = 1;
                $( align = larger(align, $part::ALIGN); )+
                align
            };
            const SHAPE: u64 = shape($name, &[$($part::SHAPE),+]);

            #[inline]
            #[allow(unused_assignments)]
            fn read(spot: Spot<'_>) -> Result<Self, DataError> {
                let mut at = 0;
                Ok(($({
                    let own = after(at, 0, $part::ALIGN);
                    at = own + $part::SIZE;
                    $part::read(spot.part(own))?
                },)+))
            }

            #[inline]
            #[allow(unused_assignments)]
            fn write(&self, spot: Spot<'_>) -> Result<(), DataError> {
                let mut at = 0;
                $({
                    let own = after(at, 0, $part::ALIGN);
                    at = own + $part::SIZE;
                    self.$at.write(spot.part(own))?;
                })+
                Ok(())
            }
        }
    };
}

tuple!("tuple": A 0);
tuple!("tuple": A 0, B 1);
tuple!("tuple": A 0, B 1, C 2);
tuple!("tuple": A 0, B 1, C 2, D 3);

impl Plain for () {
    const SIZE: usize = 0;
    const ALIGN: usize = 1;
    const SHAPE: u64 = shape("unit", &[]);

    fn read(_spot: Spot<'_>) -> Result<Self, DataError> {
        Ok(())
    }

    fn write(&self, _spot: Spot<'_>) -> Result<(), DataError> {
        Ok(())
    }
}
