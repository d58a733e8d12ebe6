//! The payloads of messages.
//!
//! Numbers and tuples of them take one word each. Bytes and text are carried as they are, up to the
//! queue's maximum length. A receiver takes copies: what it has checked can no longer change.

use std::cell::Cell;
use upcall_shm::direct::{Arrived, Draft};
use upcall_shm::mailbag::Mailbag;
use upcall_shm::span::WritableSpan;

/// Writes a payload into a message.
#[derive(Debug)]
pub struct Writer<'a, 'q> {
    place: PayloadPlace<'a, 'q>,
    next: usize,
    /// Number of bytes that were written.
    written: Cell<usize>,
}

/// Where a payload is written.
#[derive(Debug)]
enum PayloadPlace<'a, 'q> {
    /// In the queue.
    Queue(&'a Draft<'q, Mailbag>),
    /// In memory of this process, for a message that goes past the queue.
    Alone(WritableSpan<'a>),
}

impl<'a, 'q> Writer<'a, 'q> {
    #[inline(always)]
    pub(crate) fn new(draft: &'a Draft<'q, Mailbag>) -> Self {
        Self::at(PayloadPlace::Queue(draft))
    }

    /// Writes a payload in memory of this process, which may have held something else.
    pub(crate) fn alone(room: WritableSpan<'a>) -> Self {
        Self::at(PayloadPlace::Alone(room))
    }

    #[inline(always)]
    fn at(place: PayloadPlace<'a, 'q>) -> Self {
        Self { place, next: 0, written: Cell::new(0) }
    }

    /// Checks that nothing is left of what the memory held before.
    ///
    /// # Panics
    /// If less was written than the payload's declared size.
    pub(crate) fn finish(self) {
        if let PayloadPlace::Alone(room) = &self.place {
            assert!(self.written.get() >= room.len(), "a payload of the size that it declares");
        }
    }

    #[inline(always)]
    fn wrote(&self, bytes: usize) {
        self.written.set(self.written.get() + bytes);
    }

    /// Writes the next word.
    ///
    /// # Panics
    /// If the payload's declared size has no room for it.
    #[inline(always)]
    pub fn word(&mut self, word: u64) {
        match &self.place {
            PayloadPlace::Queue(draft) => draft.put(self.next, word),
            PayloadPlace::Alone(room) => {
                let written = room.copy_in(8 * self.next, &word.to_le_bytes());
                assert!(
                    written.is_some(),
                    "word {} of a payload of {} bytes",
                    self.next,
                    room.len()
                );
            }
        }
        self.wrote(8);
        self.next += 1;
    }

    /// Writes the whole payload, in words.
    ///
    /// # Panics
    /// If `words` do not have the payload's declared size.
    #[inline(always)]
    pub fn words(&mut self, words: &[u64]) {
        match &self.place {
            PayloadPlace::Queue(draft) => draft.put_all(words),
            PayloadPlace::Alone(_) => words.iter().for_each(|&word| self.word(word)),
        }
    }

    /// Writes the whole payload.
    ///
    /// # Panics
    /// If `bytes` do not have the payload's declared size.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let room = self.room();
        assert!(
            room.len() == bytes.len() && room.copy_in(0, bytes).is_some(),
            "a payload of the size that it declares"
        );
    }
}

impl Writer<'_, '_> {
    /// The place of the whole payload, for a copy of the caller's own.
    pub fn room(&self) -> WritableSpan<'_> {
        let room = self.all();
        self.wrote(room.len());
        room
    }

    fn all(&self) -> WritableSpan<'_> {
        match &self.place {
            PayloadPlace::Queue(draft) => draft.room(),
            PayloadPlace::Alone(room) => *room,
        }
    }

    /// Writes a part of the payload, from byte `at` on.
    ///
    /// A payload in several pieces need not be joined first.
    ///
    /// # Panics
    /// If the part reaches beyond the payload's declared size.
    pub fn part(&mut self, at: usize, bytes: &[u8]) {
        assert!(
            self.all().copy_in(at, bytes).is_some(),
            "a part of a payload of the size that it declares"
        );
        self.wrote(bytes.len());
    }
}

/// Reads a payload from a message.
#[derive(Debug)]
pub struct Reader<'a, 'q> {
    arrived: &'a Arrived<'q, Mailbag>,
    next: usize,
}

impl<'a, 'q> Reader<'a, 'q> {
    #[inline(always)]
    pub(crate) fn new(arrived: &'a Arrived<'q, Mailbag>) -> Self {
        Self { arrived, next: 0 }
    }

    /// The next word; `None` beyond the end.
    #[inline(always)]
    pub fn word(&mut self) -> Option<u64> {
        let word = self.arrived.word(self.next)?;
        self.next += 1;
        Some(word)
    }

    /// Returns a copy of the whole payload.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.arrived.payload().append_to(&mut bytes);
        Some(bytes)
    }

    /// Size of the payload, in bytes.
    #[inline(always)]
    pub fn size(&self) -> usize {
        self.arrived.len()
    }
}

/// A type that messages can carry.
pub trait Payload {
    /// The type that the receiver gets.
    type Owned: 'static;

    /// Describes the type, identically in all members: kinds of messages are compared by it when a
    /// group forms.
    fn signature() -> String;

    /// Its size in bytes.
    fn size(&self) -> usize;

    /// Writes it, in exactly this size.
    fn write(&self, writer: &mut Writer<'_, '_>);

    /// Reads it. `None` if the payload is malformed: the sender is faulty or hostile.
    fn read(reader: &mut Reader<'_, '_>) -> Option<Self::Owned>;
}

/// A payload of a fixed number of words.
trait WordPayload: Sized {
    const COUNT: usize;
    fn put(&self, writer: &mut Writer<'_, '_>);
    fn get(reader: &mut Reader<'_, '_>) -> Option<Self>;
}

macro_rules! words {
    (($($generics:tt)*) $type:ty, $name:expr) => {
        impl<$($generics)*> Payload for $type {
            type Owned = Self;

            fn signature() -> String {
                $name
            }

            #[inline(always)]
            fn size(&self) -> usize {
                <Self as WordPayload>::COUNT * 8
            }

            #[inline(always)]
            fn write(&self, writer: &mut Writer<'_, '_>) {
                self.put(writer);
            }

            #[inline(always)]
            fn read(reader: &mut Reader<'_, '_>) -> Option<Self> {
                if reader.size() != <Self as WordPayload>::COUNT * 8 {
                    return None;
                }
                Self::get(reader)
            }
        }
    };
}

macro_rules! number {
    ($($type:ty, $to:expr, $from:expr;)*) => {
        $(
            impl WordPayload for $type {
                const COUNT: usize = 1;

                #[inline(always)]
                fn put(&self, writer: &mut Writer<'_, '_>) {
                    let to: fn($type) -> u64 = $to;
                    writer.word(to(*self));
                }

                #[inline(always)]
                fn get(reader: &mut Reader<'_, '_>) -> Option<Self> {
                    let from: fn(u64) -> Option<$type> = $from;
                    from(reader.word()?)
                }
            }

            words!(() $type, stringify!($type).into());
        )*
    };
}

number! {
    u64, |value| value, Some;
    i64, i64::cast_unsigned, |word| Some(word.cast_signed());
    u32, u64::from, |word| word.try_into().ok();
    i32, |value| i64::from(value).cast_unsigned(), |word| word.cast_signed().try_into().ok();
    u16, u64::from, |word| word.try_into().ok();
    u8, u64::from, |word| word.try_into().ok();
    bool, u64::from, |word| if word < 2 { Some(word == 1) } else { None };
    f64, f64::to_bits, |word| Some(f64::from_bits(word));
    f32, |value| value.to_bits().into(), |word| Some(f32::from_bits(word.try_into().ok()?));
}

impl WordPayload for () {
    const COUNT: usize = 0;

    #[inline(always)]
    fn put(&self, _: &mut Writer<'_, '_>) {}

    #[inline(always)]
    fn get(_: &mut Reader<'_, '_>) -> Option<Self> {
        Some(())
    }
}

words!(()(), "()".into());

impl<T: WordPayload + Copy + Default, const N: usize> WordPayload for [T; N] {
    const COUNT: usize = T::COUNT * N;

    #[inline(always)]
    fn put(&self, writer: &mut Writer<'_, '_>) {
        self.iter().for_each(|value| value.put(writer));
    }

    #[inline(always)]
    fn get(reader: &mut Reader<'_, '_>) -> Option<Self> {
        let mut values = [T::default(); N];
        for value in &mut values {
            *value = T::get(reader)?;
        }
        Some(values)
    }
}

words!(
    (T: WordPayload + Payload + Copy + Default + 'static, const N: usize) [T; N],
    format!("[{}; {N}]", T::signature())
);

macro_rules! tuple {
    ($($name:ident)+) => {
        impl<$($name: WordPayload),+> WordPayload for ($($name,)+) {
            const COUNT: usize = 0 $(+ $name::COUNT)+;

            #[inline(always)]
            #[expect(non_snake_case, reason = "a value has the name of its type")]
            fn put(&self, writer: &mut Writer<'_, '_>) {
                let ($($name,)+) = self;
                $($name.put(writer);)+
            }

            #[inline(always)]
            fn get(reader: &mut Reader<'_, '_>) -> Option<Self> {
                Some(($($name::get(reader)?,)+))
            }
        }

        words!(
            ($($name: WordPayload + Payload + 'static),+) ($($name,)+),
            format!("({})", [$($name::signature()),+].join(", "))
        );
    };
}

tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);

impl Payload for [u64] {
    type Owned = Vec<u64>;

    fn signature() -> String {
        "words".into()
    }

    #[inline(always)]
    fn size(&self) -> usize {
        size_of_val(self)
    }

    #[inline(always)]
    fn write(&self, writer: &mut Writer<'_, '_>) {
        writer.words(self);
    }

    fn read(reader: &mut Reader<'_, '_>) -> Option<Vec<u64>> {
        reader.size().is_multiple_of(8).then(|| std::iter::from_fn(|| reader.word()).collect())
    }
}

impl Payload for [u8] {
    type Owned = Vec<u8>;

    fn signature() -> String {
        "bytes".into()
    }

    fn size(&self) -> usize {
        self.len()
    }

    fn write(&self, writer: &mut Writer<'_, '_>) {
        writer.bytes(self);
    }

    fn read(reader: &mut Reader<'_, '_>) -> Option<Vec<u8>> {
        reader.bytes()
    }
}

impl Payload for str {
    type Owned = String;

    fn signature() -> String {
        "text".into()
    }

    fn size(&self) -> usize {
        self.len()
    }

    fn write(&self, writer: &mut Writer<'_, '_>) {
        writer.bytes(self.as_bytes());
    }

    fn read(reader: &mut Reader<'_, '_>) -> Option<String> {
        String::from_utf8(reader.bytes()?).ok()
    }
}
