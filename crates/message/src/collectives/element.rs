//! The items of vectors that collective operations carry.
//!
//! An item takes its own size in a message, not a word as in other payloads.

use crate::Number;
use seal::Carriable;

/// Keeps other crates from implementing [`Element`]: members compare the types.
mod seal {
    pub trait Carriable {}
}

/// A number that vectors of collective operations can hold.
///
/// It is carried in as many bytes as it has, in little-endian order.
pub trait Element: Carriable + Copy + 'static {
    /// The type, by which members compare their calls.
    #[doc(hidden)]
    const NUMBER: Number;

    /// Writes the item into bytes of its size.
    #[doc(hidden)]
    fn put(self, to: &mut [u8]);

    /// Reads an item from bytes of its size, which were checked.
    #[doc(hidden)]
    fn get(from: &[u8]) -> Self;
}

macro_rules! element {
    ($($type:ty: $number:ident;)*) => {$(
        impl Carriable for $type {}

        impl Element for $type {
            const NUMBER: Number = Number::$number;

            #[inline]
            fn put(self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn get(from: &[u8]) -> Self {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(from);
                Self::from_le_bytes(bytes)
            }
        }
    )*};
}

element! {
    u64: U64;
    i64: I64;
    u32: U32;
    i32: I32;
    u16: U16;
    u8: U8;
    f64: F64;
    f32: F32;
}

impl Carriable for bool {}

impl Element for bool {
    const NUMBER: Number = Number::Bool;

    #[inline]
    fn put(self, to: &mut [u8]) {
        to[0] = u8::from(self);
    }

    #[inline]
    fn get(from: &[u8]) -> Self {
        from[0] != 0
    }
}
