//! A hash table.
//!
//! ```text
//! place     offset of the table
//!           offset of the one before it, while entries move, or 0
//!           buckets moved | how many | seed, two words
//! table     logarithm of its buckets | 0 … | buckets, from a multiple of 64 on
//! bucket    how many entries went past it | 7 entries: 16 bits of the hash, 48 of the offset; or 0
//! entry     hash | bytes of the key | value | key
//! ```
//! A bucket is a cache line. An entry is in the bucket of its hash or, if that is full, in one of
//! the next buckets; each bucket that it skipped counts it. So the search for a key ends at the
//! first bucket that no entry skipped, and after [`WALK`] buckets in any case (the counters are
//! those of Bronson and Shi: *Open-sourcing F14*, 2019). A table that becomes too full is replaced
//! by one twice as large. Each change moves two buckets, so no change waits for all of them.
//!
//! Keys are compared and hashed as bytes, by SipHash with a seed of the object's own. So a party
//! that can only choose keys cannot fill a single bucket.

use super::arena::Arena;
use super::plain::with_bytes;
use super::{Blob, Check, DataError, Init, Memory, Plain, Shared, Spot, Text, With, after, shape};
use siphasher::sip::SipHasher13;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::marker::PhantomData;
use upcall_shm::span::Span;

const NOW: usize = 0;
const OLD: usize = 8;
const MOVED: usize = 16;
const COUNT: usize = 24;
const SEED: usize = 32;

const BUCKET: usize = 64;
const SLOTS: usize = 7;

const LENGTH: usize = 8;
const VALUE: usize = 16;

/// Maximum number of buckets that a search visits.
const WALK: u64 = 16;

/// Sizes of the first and of the largest table, as logarithms of the number of buckets.
const FIRST: u64 = 0;
const LAST: u64 = 33;

/// Number of old buckets that each change moves.
const AT_ONCE: u64 = 2;

/// Number of bytes behind an entry that are prefetched with it: what a value holds in the arena
/// most likely lies there.
const BEHIND: usize = 128;

const OFFSET: u64 = (1 << 48) - 1;

const MAP: &str = "a map";
const TABLE: &str = "the table of a map";
const ENTRY: &str = "an entry of a map";

/// The types that a [`Map`] can have as keys: text, bytes, and plain values.
pub trait Key: 'static {
    /// Distinguishes keys of different types.
    const SHAPE: u64;
    /// The type by which a key is looked up.
    type Query: ?Sized;
    /// A key, in private memory.
    type Owned;

    /// Passes the bytes of a key to `with`.
    fn with_bytes<R>(query: &Self::Query, with: impl FnOnce(&[u8]) -> R) -> R;

    /// Copies the key that has these bytes.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    fn copy(spot: Spot<'_>, length: usize) -> Result<Self::Owned, DataError>;

    /// Checks that these bytes are a key, without a copy of them.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    #[doc(hidden)]
    fn check(spot: Spot<'_>, length: usize) -> Result<(), DataError> {
        Self::copy(spot, length).map(drop)
    }
}

impl<T: Plain> Key for T {
    const SHAPE: u64 = <T as Plain>::SHAPE;
    type Query = T;
    type Owned = T;

    #[inline]
    fn with_bytes<R>(query: &T, with: impl FnOnce(&[u8]) -> R) -> R {
        with_bytes(query, with)
    }

    fn copy(spot: Spot<'_>, length: usize) -> Result<T, DataError> {
        if length == T::SIZE { T::read(spot) } else { Err(DataError::corrupt("a key", spot.at())) }
    }
}

impl Key for Text {
    const SHAPE: u64 = <Text as Shared>::SHAPE;
    type Query = str;
    type Owned = String;

    #[inline]
    fn with_bytes<R>(query: &str, with: impl FnOnce(&[u8]) -> R) -> R {
        with(query.as_bytes())
    }

    fn copy(spot: Spot<'_>, length: usize) -> Result<String, DataError> {
        spot.bytes(length, "a key")?
            .to_text()
            .ok_or_else(|| DataError::corrupt("a key in UTF-8", spot.at()))
    }

    fn check(spot: Spot<'_>, length: usize) -> Result<(), DataError> {
        let is_text = spot.bytes(length, "a key")?.is_text();
        if is_text { Ok(()) } else { Err(DataError::corrupt("a key in UTF-8", spot.at())) }
    }
}

impl Key for Blob {
    const SHAPE: u64 = <Blob as Shared>::SHAPE;
    type Query = [u8];
    type Owned = Vec<u8>;

    #[inline]
    fn with_bytes<R>(query: &[u8], with: impl FnOnce(&[u8]) -> R) -> R {
        with(query)
    }

    fn copy(spot: Spot<'_>, length: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        spot.bytes(length, "a key")?.append_to(&mut bytes);
        Ok(bytes)
    }

    fn check(spot: Spot<'_>, length: usize) -> Result<(), DataError> {
        spot.bytes(length, "a key").map(drop)
    }
}

/// A table of values `V` by keys `K`. Its place is a [`MapAt`].
pub struct Map<K, V>(PhantomData<fn() -> (K, V)>);

impl<K, V> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Map")
    }
}

/// The place of a [`Map`].
pub struct MapAt<'a, K, V>(Spot<'a>, PhantomData<fn() -> (K, V)>);

impl<K, V> Clone for MapAt<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for MapAt<'_, K, V> {}

impl<K: Key, V: Shared> fmt::Debug for MapAt<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapAt").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A table whose words were read and checked.
#[derive(Clone, Copy)]
struct MapTable<'a> {
    block: Spot<'a>,
    buckets: Spot<'a>,
    mask: u64,
}

/// A slot that holds an entry, or could hold one.
#[derive(Clone, Copy)]
struct MapSlot<'a> {
    table: MapTable<'a>,
    /// Distance of its bucket from the bucket of the hash.
    walked: u64,
    spot: Spot<'a>,
}

/// The word by which a slot holds an entry.
const fn word(hash: u64, entry: u64) -> u64 {
    hash & !OFFSET | entry
}

impl<'a> MapTable<'a> {
    const fn bytes(log: u64) -> u64 {
        // A multiple of 64 is at most 48 bytes from any multiple of 16.
        ((BUCKET as u64) << log) + 2 * BUCKET as u64
    }

    fn read(memory: Memory<'a>, at: u64) -> Result<Self, DataError> {
        let block = memory.spot_at(at);
        let log = block.word(0, TABLE)?;
        if log > LAST || Self::bytes(log) > memory.len() as u64 {
            return Err(DataError::corrupt(TABLE, block.at()));
        }
        let buckets = memory.spot(block.at().saturating_add(8 + BUCKET - 1) / BUCKET * BUCKET);
        Ok(Self { block, buckets, mask: (1 << log) - 1 })
    }

    fn make(memory: Memory<'a>, log: u64) -> Result<Self, DataError> {
        let arena = Arena::new(memory);
        let at = arena.allocate_zeros(Self::bytes(log))?;
        memory.spot_at(at).put_word(0, log, TABLE)?;
        Self::read(memory, at)
    }

    fn log(self) -> u64 {
        u64::from(self.mask.count_ones())
    }

    #[inline]
    fn bucket(self, number: u64) -> Spot<'a> {
        self.buckets.part((number & self.mask) as usize * BUCKET)
    }

    /// The offsets of the entries in a bucket.
    #[inline]
    fn entries(self, number: u64) -> impl Iterator<Item = u64> {
        let bucket = self.bucket(number);
        (1..=SLOTS)
            .filter_map(move |slot| bucket.word(slot * 8, TABLE).ok())
            .map(|found| found & OFFSET)
            .filter(|&at| at != 0)
    }

    /// Finds a slot for an entry of this hash.
    fn vacant(self, hash: u64) -> Result<Option<MapSlot<'a>>, DataError> {
        for walked in 0..WALK.min(self.mask + 1) {
            let bucket = self.bucket(hash.wrapping_add(walked));
            for slot in 1..=SLOTS {
                if bucket.word(slot * 8, TABLE)? == 0 {
                    return Ok(Some(MapSlot { table: self, walked, spot: bucket.part(slot * 8) }));
                }
            }
        }
        Ok(None)
    }

    /// Counts an entry in the buckets that it skips, or no longer skips.
    fn tell(self, hash: u64, walked: u64, passes: bool) -> Result<(), DataError> {
        for number in 0..walked {
            let bucket = self.bucket(hash.wrapping_add(number));
            let passed = bucket.word(0, TABLE)?;
            bucket.put_word(
                0,
                if passes { passed.saturating_add(1) } else { passed.saturating_sub(1) },
                TABLE,
            )?;
        }
        Ok(())
    }
}

impl MapSlot<'_> {
    /// Puts an entry into the slot. From then on it is in the map.
    fn fill(self, hash: u64, entry: u64) -> Result<(), DataError> {
        self.table.tell(hash, self.walked, true)?;
        self.spot.put_word(0, word(hash, entry), TABLE)
    }

    /// Empties the slot. From then on the entry is not in the map.
    fn empty(self, hash: u64) -> Result<(), DataError> {
        self.spot.put_word(0, 0, TABLE)?;
        self.table.tell(hash, self.walked, false)
    }
}

/// Returns `true` if a span begins with these bytes.
#[inline]
fn are(span: Span<'_>, bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let tail = words.len() * 8;
    words.iter().enumerate().all(|(at, word)| span.u64(at * 8) == Some(u64::from_le_bytes(*word)))
        && rest.iter().enumerate().all(|(at, byte)| span.u8(tail + at) == Some(*byte))
}

impl<'a, K: Key, V: Shared> MapAt<'a, K, V> {
    /// Offset of the key in an entry.
    const KEY: usize = after(VALUE, V::SIZE, 8);

    fn table(self, which: usize) -> Result<Option<MapTable<'a>>, DataError> {
        match self.0.word(which, MAP)? {
            0 => Ok(None),
            at => MapTable::read(self.0.memory(), at).map(Some),
        }
    }

    fn hash(self, key: &[u8]) -> Result<u64, DataError> {
        Ok(SipHasher13::new_with_keys(self.0.word(SEED, MAP)?, self.0.word(SEED + 8, MAP)?)
            .hash(key))
    }

    /// The hash of a key of any length, without a copy of it.
    fn hash_in_place(self, key: Span<'_>) -> Result<u64, DataError> {
        let mut hasher =
            SipHasher13::new_with_keys(self.0.word(SEED, MAP)?, self.0.word(SEED + 8, MAP)?);
        let mut piece = [0; 1024];
        for at in (0..key.len()).step_by(piece.len()) {
            let length = piece.len().min(key.len() - at);
            key.copy_out(at, &mut piece[..length])
                .ok_or_else(|| DataError::corrupt(ENTRY, self.0.at()))?;
            hasher.write(&piece[..length]);
        }
        Ok(hasher.finish())
    }

    /// The number of entries.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn len(self) -> Result<u64, DataError> {
        self.0.word(COUNT, MAP)
    }

    /// Returns `true` if the map is empty.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn is_empty(self) -> Result<bool, DataError> {
        Ok(self.len()? == 0)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    #[inline]
    pub fn get(self, key: &K::Query) -> Result<Option<V::At<'a>>, DataError> {
        K::with_bytes(key, |key| {
            let hash = self.hash(key)?;
            Ok(self.find(hash, key)?.map(|(_, entry)| V::at(entry.part(VALUE))))
        })
    }

    /// Returns `true` if the map has this key.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn contains(self, key: &K::Query) -> Result<bool, DataError> {
        Ok(self.get(key)?.is_some())
    }

    /// The value of a key, which is added with zeros if the map does not have it.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn entry(self, key: &K::Query) -> Result<V::At<'a>, DataError> {
        K::with_bytes(key, |key| {
            let hash = self.hash(key)?;
            let found = self.find(hash, key)?;
            found.map_or_else(
                || self.add(key, With(|_: V::At<'_>| Ok(()))),
                |(_, entry)| Ok(V::at(entry.part(VALUE))),
            )
        })
    }

    /// Sets the value of a key. Returns `true` if this replaced a value.
    ///
    /// # Errors
    /// See [`DataError`]. A key that had no value has none then.
    pub fn insert(self, key: &K::Query, value: impl Init<V>) -> Result<bool, DataError> {
        K::with_bytes(key, |key| {
            let hash = self.hash(key)?;
            match self.find(hash, key)? {
                Some((_, entry)) => value.init(V::at(entry.part(VALUE))).map(|()| true),
                None => self.add(key, value).map(|_| false),
            }
        })
    }

    /// Removes a key with its value. Returns `false` if the map does not have it.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn remove(self, key: &K::Query) -> Result<bool, DataError> {
        K::with_bytes(key, |key| {
            let hash = self.hash(key)?;
            let Some((slot, entry)) = self.find(hash, key)? else { return Ok(false) };
            slot.empty(hash)?;
            self.0.put_word(COUNT, self.len()?.wrapping_sub(1), MAP)?;
            V::clear(entry.part(VALUE))?;
            Arena::new(self.0.memory()).free(entry.at() as u64)?;
            self.go_on()?;
            Ok(true)
        })
    }

    /// The entries, in no order.
    ///
    /// Entries that are added or removed during the iteration may be returned once, twice, or not
    /// at all.
    pub fn iter(self) -> impl Iterator<Item = Result<(K::Owned, V::At<'a>), DataError>> {
        self.slots().map(move |found| {
            let entry = self.0.memory().spot_at(found?.1);
            let length = usize::try_from(entry.word(LENGTH, ENTRY)?).unwrap_or(usize::MAX);
            Ok((K::copy(entry.part(Self::KEY), length)?, V::at(entry.part(VALUE))))
        })
    }

    /// All used slots, and the offsets of their entries.
    fn slots(self) -> impl Iterator<Item = Result<(Spot<'a>, u64), DataError>> {
        let mut broken = None;
        let mut table = |which| match self.table(which) {
            Ok(table) => table,
            Err(error) => {
                broken = Some(Err(error));
                None
            }
        };
        let both = [table(OLD), table(NOW)];
        let all = both.into_iter().flatten().flat_map(|table| {
            (0..=table.mask)
                .flat_map(move |number| {
                    (1..=SLOTS).map(move |slot| table.bucket(number).part(slot * 8))
                })
                .map(|spot| spot.word(0, TABLE).map(|found| (spot, found & OFFSET)))
        });
        broken.into_iter().chain(all).filter(|found| !matches!(found, Ok((_, 0))))
    }

    #[inline]
    fn find(self, hash: u64, key: &[u8]) -> Result<Option<(MapSlot<'a>, Spot<'a>)>, DataError> {
        let Some(now) = self.table(NOW)? else { return Ok(None) };
        let old = self.table(OLD)?;
        if let Some(old) = old {
            // The entry may be in either bucket, and both are most likely in no cache.
            old.bucket(hash).prefetch(BUCKET);
        }
        if let found @ Some(_) = self.find_in(now, hash, key)? {
            return Ok(found);
        }
        old.map_or(Ok(None), |old| self.find_in(old, hash, key))
    }

    #[inline]
    fn find_in(
        self,
        table: MapTable<'a>,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<(MapSlot<'a>, Spot<'a>)>, DataError> {
        for walked in 0..WALK.min(table.mask + 1) {
            let bucket = table.bucket(hash.wrapping_add(walked));
            for slot in 1..=SLOTS {
                let found = bucket.word(slot * 8, TABLE)?;
                if found & !OFFSET != hash & !OFFSET || found & OFFSET == 0 {
                    continue;
                }
                let entry = self.0.memory().spot_at(found & OFFSET);
                entry.prefetch(Self::KEY + key.len() + if V::GROWS { BEHIND } else { 0 });
                if entry.word(0, ENTRY)? != hash || entry.word(LENGTH, ENTRY)? != key.len() as u64 {
                    continue;
                }
                if are(entry.part(Self::KEY).bytes(key.len(), ENTRY)?, key) {
                    return Ok(Some((
                        MapSlot { table, walked, spot: bucket.part(slot * 8) },
                        entry,
                    )));
                }
            }
            if bucket.word(0, TABLE)? == 0 {
                break;
            }
        }
        Ok(None)
    }

    /// Adds a key that the map does not have.
    fn add(self, key: &[u8], value: impl Init<V>) -> Result<V::At<'a>, DataError> {
        let memory = self.0.memory();
        // The first table brings the seed.
        self.with_room()?;
        let hash = self.hash(key)?;
        let bytes = (Self::KEY + key.len()) as u64;
        let arena = Arena::new(memory);
        let at = arena.allocate(bytes)?;
        let entry = memory.spot_at(at);
        let written = || {
            entry.put_word(0, hash, ENTRY)?;
            entry.put_word(LENGTH, key.len() as u64, ENTRY)?;
            entry.part(VALUE).zero(Self::KEY - VALUE, ENTRY)?;
            entry.part(Self::KEY).write(key, ENTRY)?;
            value.init(V::at(entry.part(VALUE)))
        };
        // The slot is chosen last, because the function that sets the value may have changed this
        // very map.
        let slot =
            written().and_then(|()| self.vacant(hash)?.ok_or(DataError::Full { asked: bytes }));
        let slot = slot.inspect_err(|_| {
            let _ = V::clear(entry.part(VALUE));
            let _ = arena.free(at);
        })?;
        slot.fill(hash, at)?;
        self.0.put_word(COUNT, self.len()?.wrapping_add(1), MAP)?;
        self.go_on()?;
        Ok(V::at(entry.part(VALUE)))
    }

    /// Finds a slot for an entry of this hash, in a larger table if need be.
    fn vacant(self, hash: u64) -> Result<Option<MapSlot<'a>>, DataError> {
        let table = self.with_room()?;
        if let found @ Some(_) = table.vacant(hash)? {
            return Ok(found);
        }
        // Many entries are in one place, by bad luck. In a table that is almost empty that is no
        // accident.
        if self.len()? < table.mask {
            Ok(None)
        } else {
            self.grow(table)?.map_or(Ok(None), |table| table.vacant(hash))
        }
    }

    /// The current table, replaced by a larger one if it has no room for another entry.
    fn with_room(self) -> Result<MapTable<'a>, DataError> {
        let memory = self.0.memory();
        let Some(now) = self.table(NOW)? else {
            let table = MapTable::make(memory, FIRST)?;
            for at in [SEED, SEED + 8] {
                self.0.put_word(at, RandomState::new().build_hasher().finish(), MAP)?;
            }
            self.0.put_word(NOW, table.block.at() as u64, MAP)?;
            return Ok(table);
        };
        let slots = (now.mask + 1) * SLOTS as u64;
        if self.len()? < slots - slots / 4 { Ok(now) } else { Ok(self.grow(now)?.unwrap_or(now)) }
    }

    /// Replaces this table by one twice as large. Returns `None` if that is not possible yet.
    #[cold]
    fn grow(self, now: MapTable<'a>) -> Result<Option<MapTable<'a>>, DataError> {
        if self.0.word(OLD, MAP)? != 0 || now.log() == LAST {
            return Ok(None);
        }
        let new = MapTable::make(self.0.memory(), now.log() + 1)?;
        self.0.put_word(MOVED, 0, MAP)?;
        self.0.put_word(OLD, now.block.at() as u64, MAP)?;
        self.0.put_word(NOW, new.block.at() as u64, MAP)?;
        Ok(Some(new))
    }

    /// Moves some buckets, if a table is being replaced by a larger one.
    #[inline]
    fn go_on(self) -> Result<(), DataError> {
        if self.0.word(OLD, MAP)? == 0 { Ok(()) } else { self.move_some() }
    }

    #[cold]
    fn move_some(self) -> Result<(), DataError> {
        let (Some(old), Some(now)) = (self.table(OLD)?, self.table(NOW)?) else { return Ok(()) };
        let moved = self.0.word(MOVED, MAP)?;
        let until = moved.saturating_add(AT_ONCE).min(old.mask + 1);
        self.look_ahead(old, now, until);
        for number in moved..until {
            let bucket = old.bucket(number);
            for slot in 1..=SLOTS {
                let spot = bucket.part(slot * 8);
                let found = spot.word(0, TABLE)?;
                if found == 0 {
                    continue;
                }
                let hash = self.0.memory().spot_at(found & OFFSET).word(0, ENTRY)?;
                let walked = number.wrapping_sub(hash) & old.mask;
                let place = now
                    .vacant(hash)?
                    .filter(|_| walked < WALK)
                    .ok_or(DataError::corrupt(TABLE, spot.at()))?;
                place.fill(hash, found & OFFSET)?;
                MapSlot { table: old, walked, spot }.empty(hash)?;
            }
            self.0.put_word(MOVED, number + 1, MAP)?;
        }
        if until > old.mask {
            self.0.put_word(OLD, 0, MAP)?;
            Arena::new(self.0.memory()).free(old.block.at() as u64)?;
        }
        Ok(())
    }

    /// Prefetches the entries that the next change will move, and the buckets that the change after
    /// it will read. Otherwise each change would wait for each of them.
    #[inline]
    fn look_ahead(self, old: MapTable<'a>, now: MapTable<'a>, next: u64) {
        old.bucket(next.saturating_add(AT_ONCE)).prefetch(AT_ONCE as usize * BUCKET);
        for number in next..next.saturating_add(AT_ONCE) {
            old.entries(number).for_each(|at| self.0.memory().spot_at(at).prefetch(1));
            // The entries go to one of these two buckets, or behind them.
            now.bucket(number).prefetch(1);
            now.bucket(number.wrapping_add(old.mask + 1)).prefetch(1);
        }
    }

    /// Checks a table's header and claims the table for this map.
    fn checked_table(
        self,
        which: usize,
        check: &mut Check,
    ) -> Result<Option<MapTable<'a>>, DataError> {
        let (memory, at) = (self.0.memory(), self.0.word(which, MAP)?);
        if at == 0 {
            return Ok(None);
        }
        check.expect(memory, at, 8, TABLE)?;
        let table = MapTable::read(memory, at)?;
        check.claim_sparse(memory, at, MapTable::bytes(table.log()), TABLE)?;
        Ok(Some(table))
    }

    /// Calls `with` for each used slot of a table, with the bucket's number and the offset of the
    /// entry. Skips buckets that do not exist: they hold nothing.
    fn each_slot(
        self,
        table: MapTable<'a>,
        check: &mut Check,
        mut with: impl FnMut(&mut Check, Spot<'a>, u64, u64) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let begin = table.buckets.at();
        for part in check.parts(begin, BUCKET << table.log()) {
            for at in part.step_by(BUCKET) {
                check.look_at(BUCKET as u64)?;
                let number = ((at - begin) / BUCKET) as u64;
                for slot in 1..=SLOTS {
                    let spot = table.bucket(number).part(slot * 8);
                    let found = spot.word(0, TABLE)? & OFFSET;
                    if found != 0 {
                        with(check, spot, number, found)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The hash of an entry, and how far the entry is behind the bucket of that hash.
    fn walked(
        self,
        table: MapTable<'a>,
        spot: Spot<'a>,
        number: u64,
        at: u64,
    ) -> Result<(u64, u64), DataError> {
        let hash = self.0.memory().spot_at(at).word(0, ENTRY)?;
        let walked = number.wrapping_sub(hash) & table.mask;
        let fits = walked < WALK && spot.word(0, TABLE)? == word(hash, at);
        if fits { Ok((hash, walked)) } else { Err(DataError::corrupt(TABLE, spot.at())) }
    }

    /// Claims an entry for this map, and checks it.
    fn check_entry(self, at: u64, check: &mut Check) -> Result<(), DataError> {
        let memory = self.0.memory();
        check.expect(memory, at, VALUE as u64, ENTRY)?;
        let entry = memory.spot_at(at);
        let length = entry.word(LENGTH, ENTRY)?;
        check.claim(memory, at, (Self::KEY as u64).saturating_add(length), ENTRY)?;
        check.look_at(length)?;
        let (key, length) = (entry.part(Self::KEY), usize::try_from(length).unwrap_or(usize::MAX));
        K::check(key, length)?;
        if self.hash_in_place(key.bytes(length, ENTRY)?)? != entry.word(0, ENTRY)? {
            return Err(DataError::corrupt(ENTRY, entry.at()));
        }
        V::check(entry.part(VALUE), check)
    }

    /// Returns `true` if a table holds the entry at this offset.
    fn holds(self, table: MapTable<'a>, hash: u64, at: u64) -> Result<bool, DataError> {
        for walked in 0..WALK.min(table.mask + 1) {
            let bucket = table.bucket(hash.wrapping_add(walked));
            for slot in 1..=SLOTS {
                if bucket.word(slot * 8, TABLE)? == word(hash, at) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Checks or corrects the number of entries.
    fn checked_count(self, count: u64, check: &Check) -> Result<(), DataError> {
        match self.len()? {
            found if found == count => Ok(()),
            _ if check.mends() => self.0.put_word(COUNT, count, MAP),
            _ => Err(DataError::corrupt("the number of entries of a map", self.0.at())),
        }
    }

    /// Recounts the entries that went past each bucket, and moves the rest of the old table into
    /// this one.
    fn mend(
        self,
        now: MapTable<'a>,
        old: Option<MapTable<'a>>,
        check: &mut Check,
    ) -> Result<(), DataError> {
        for part in check.parts(now.buckets.at(), BUCKET << now.log()) {
            for at in part.step_by(BUCKET) {
                check.look_at(BUCKET as u64)?;
                self.0.memory().spot(at).put_word(0, 0, TABLE)?;
            }
        }
        self.each_slot(now, check, |_, spot, number, at| {
            let (hash, walked) = self.walked(now, spot, number, at)?;
            now.tell(hash, walked, true)
        })?;
        let Some(old) = old else { return self.0.put_word(OLD, 0, MAP) };
        self.each_slot(old, check, |_, spot, number, at| {
            let (hash, _) = self.walked(old, spot, number, at)?;
            if self.holds(now, hash, at)? {
                return Ok(());
            }
            now.vacant(hash)?.ok_or(DataError::corrupt(TABLE, now.block.at()))?.fill(hash, at)
        })?;
        self.0.put_word(OLD, 0, MAP)?;
        check.release(self.0.memory(), old.block.at() as u64, MapTable::bytes(old.log()));
        Ok(())
    }
}

impl<K: Key, V: Shared> Shared for Map<K, V> {
    const SIZE: usize = 48;
    const ALIGN: usize = 8;
    const SHAPE: u64 = shape("map", &[K::SHAPE, V::SHAPE]);
    type At<'a> = MapAt<'a, K, V>;

    #[inline]
    fn at(spot: Spot<'_>) -> MapAt<'_, K, V> {
        MapAt(spot, PhantomData)
    }

    fn clear(spot: Spot<'_>) -> Result<(), DataError> {
        let (map, arena) = (Self::at(spot), Arena::new(spot.memory()));
        for found in map.slots() {
            let (slot, at) = found?;
            slot.put_word(0, 0, TABLE)?;
            V::clear(spot.memory().spot_at(at).part(VALUE))?;
            arena.free(at)?;
        }
        for which in [OLD, NOW] {
            if let Some(table) = map.table(which)? {
                spot.put_word(which, 0, MAP)?;
                arena.free(table.block.at() as u64)?;
            }
        }
        spot.zero(Self::SIZE, MAP)
    }

    fn check(spot: Spot<'_>, check: &mut Check) -> Result<(), DataError> {
        let map = Self::at(spot);
        let mut count = 0_u64;
        let now = map.checked_table(NOW, check)?;
        // `grow` that ended in the middle leaves the same table in both words.
        let is_one = spot.word(OLD, MAP)? == spot.word(NOW, MAP)?;
        let old = if is_one && check.mends() { None } else { map.checked_table(OLD, check)? };
        let Some(now) = now else {
            if old.is_some() {
                return Err(DataError::corrupt(MAP, spot.at()));
            }
            return map.checked_count(0, check);
        };
        map.each_slot(now, check, |check, spot, number, at| {
            map.check_entry(at, check)?;
            count += 1;
            map.walked(now, spot, number, at).map(drop)
        })?;
        if let Some(old) = old {
            map.each_slot(old, check, |check, spot, number, at| {
                if !check.is_claimed(spot.memory(), at) {
                    map.check_entry(at, check)?;
                    count += 1;
                    return map.walked(old, spot, number, at).map(drop);
                }
                // The entry was being moved.
                let (hash, _) = map.walked(old, spot, number, at)?;
                let moves = check.mends() && map.holds(now, hash, at)?;
                if moves { Ok(()) } else { Err(DataError::corrupt(ENTRY, spot.at())) }
            })?;
        }
        if check.mends() {
            map.mend(now, old, check)?;
        }
        map.checked_count(count, check)
    }
}
