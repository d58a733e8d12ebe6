//! Which addresses of an arena are taken: a buddy tree in the host's own memory.
//!
//! A block of 2^k bytes lies at a multiple of its size. Of the free places that are large enough
//! the lowest is taken, so that what is in use stays together.
//!
//! ```text
//! the arena, 16 GiB    a tree over its 262,144 spans              512 KiB, few of them touched
//! a span,    64 KiB    a tree over its 1,024 lines of 64 bytes    2 KiB, while smaller blocks
//!                                                                 than the span lie there
//! ```
//! Each node has a byte: by how many powers of two its largest free place is smaller than the node
//! itself. So zeros stand for memory that is wholly free. A node that is taken as one block has no
//! free place, and its children are zeros. By that the tree refuses to free what is not taken.

use super::NotPlaced;
use crate::layout::ARENA;
use std::io;
use std::ptr::NonNull;
use std::slice;
use upcall_os::pages;

/// Logarithms of the sizes of a line, a span and an arena, in bytes.
pub(super) const LINE: u32 = 6;
pub(super) const SPAN: u32 = 16;
pub(super) const WHOLE: u32 = ARENA.trailing_zeros();

/// Number of nodes of the arena's tree, and of a span's. Node 1 is the root, the children of node n
/// are 2n and 2n + 1, and there is no node 0.
const NODES: usize = 2 << (WHOLE - SPAN);
const SPAN_NODES: usize = 2 << (SPAN - LINE);

type SpanNodes = [u8; SPAN_NODES];

/// The tree of one arena. Places are offsets from the arena's start, and sizes are logarithms.
pub(super) struct Tree {
    nodes: Nodes,
    /// Indexed by span. `None` for those that are wholly free, or belong to one block.
    spans: Vec<Option<Box<SpanNodes>>>,
}

impl Tree {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { nodes: Nodes::new()?, spans: Vec::new() })
    }

    /// Returns `true` if half of the arena is free in one piece.
    pub(super) fn has_half(&self) -> bool {
        self.nodes.get()[1] <= 1
    }

    /// Where the next block of this size goes. Returns `None` if there is no room.
    pub(super) fn spot(&self, size: u32) -> Option<u64> {
        let nodes = self.nodes.get();
        if !fits(nodes[1], WHOLE, size) {
            return None;
        }
        let (node, own) = find(nodes, WHOLE, size);
        let at = place(node, own, WHOLE);
        match self.spans.get((at >> SPAN) as usize) {
            Some(Some(span)) if size < SPAN => {
                let (node, own) = find(&span[..], SPAN, size);
                Some(at + place(node, own, SPAN))
            }
            _ => Some(at),
        }
    }

    /// Takes the place that [`spot`](Self::spot) returns.
    ///
    /// Returns `None` if there is no room, or no memory for the tree of a span.
    pub(super) fn take(&mut self, size: u32) -> Option<u64> {
        let at = self.spot(size)?;
        self.put(at, size)?;
        Some(at)
    }

    /// Takes exactly this place, a multiple of its size.
    pub(super) fn take_this(&mut self, at: u64, size: u32) -> Result<(), NotPlaced> {
        if self.fits_at(at, size) {
            self.put(at, size).ok_or(NotPlaced::NoMemory)
        } else {
            Err(NotPlaced::InUse)
        }
    }

    /// Takes a free place. Returns `None` if there is no memory for the tree of a span.
    fn put(&mut self, at: u64, size: u32) -> Option<()> {
        if size >= SPAN {
            set(self.nodes.get_mut(), node_of(at, size, WHOLE), full(size));
            return Some(());
        }
        let span = self.open((at >> SPAN) as usize)?;
        let left = set(span, node_of(at % (1 << SPAN), size, SPAN), full(size));
        set(self.nodes.get_mut(), node_of(at, SPAN, WHOLE), left);
        Some(())
    }

    /// Frees a block. Returns `false` if there is none of this size there.
    pub(super) fn give(&mut self, at: u64, size: u32) -> bool {
        if !self.has(at, size) {
            return false;
        }
        let top = self.nodes.get_mut();
        if size >= SPAN {
            set(top, node_of(at, size, WHOLE), 0);
            return true;
        }
        let Some(known) = self.spans.get_mut((at >> SPAN) as usize) else { return false };
        let Some(span) = known else { return false };
        let left = set(&mut span[..], node_of(at % (1 << SPAN), size, SPAN), 0);
        set(top, node_of(at, SPAN, WHOLE), left);
        if left == 0 {
            *known = None;
        }
        true
    }

    /// Returns `true` if exactly this place, a multiple of its size, is taken as one block.
    pub(super) fn has(&self, at: u64, size: u32) -> bool {
        match self.span(at) {
            Some(span) if size < SPAN => {
                is_taken(span, node_of(at % (1 << SPAN), size, SPAN), size)
            }
            Some(_) if size == SPAN => false,
            _ => size >= SPAN && is_taken(self.nodes.get(), node_of(at, size, WHOLE), size),
        }
    }

    /// Returns `true` if nothing of this place, a multiple of its size, is taken.
    pub(super) fn fits_at(&self, at: u64, size: u32) -> bool {
        match self.span(at) {
            Some(span) if size < SPAN => fits_in(span, at % (1 << SPAN), size, SPAN),
            _ => fits_in(self.nodes.get(), at, size.max(SPAN), WHOLE),
        }
    }

    /// The tree of the span that an offset lies in, if smaller blocks use that span.
    fn span(&self, at: u64) -> Option<&[u8]> {
        let span = self.spans.get((at >> SPAN) as usize)?.as_deref()?;
        Some(&span[..])
    }

    /// Returns `true` if the place of this size around `at`, a span or more, is wholly free.
    pub(super) fn is_free(&self, at: u64, size: u32) -> bool {
        self.nodes.get()[node_of(at, size, WHOLE)] == 0
    }

    /// The tree of a span, which smaller blocks use from now on.
    fn open(&mut self, span: usize) -> Option<&mut [u8]> {
        if self.spans.len() <= span {
            self.spans.try_reserve(span + 1 - self.spans.len()).ok()?;
            self.spans.resize_with(span + 1, || None);
        }
        let tree = &mut self.spans[span];
        if tree.is_none() {
            let mut zeros = Vec::new();
            zeros.try_reserve_exact(SPAN_NODES).ok()?;
            zeros.resize(SPAN_NODES, 0);
            *tree = zeros.into_boxed_slice().try_into().ok();
        }
        tree.as_deref_mut().map(|nodes| &mut nodes[..])
    }
}

/// The byte of a node of this size without any free place.
fn full(size: u32) -> u8 {
    (size - LINE + 1) as u8
}

/// Returns `true` if a node of size `own` has a free place of size `wanted`.
fn fits(byte: u8, own: u32, wanted: u32) -> bool {
    own >= wanted + u32::from(byte)
}

/// The node for a place of this size in a tree over `whole`.
fn node_of(at: u64, size: u32, whole: u32) -> usize {
    (1 << (whole - size)) + (at >> size) as usize
}

/// The place of a node, whose size is `size`.
fn place(node: usize, size: u32, whole: u32) -> u64 {
    ((node - (1 << (whole - size))) as u64) << size
}

/// The lowest node with a free place of size `wanted`, and the node's size.
///
/// That is `wanted`, or that of a leaf. The tree over `whole` has such a place.
fn find(nodes: &[u8], whole: u32, wanted: u32) -> (usize, u32) {
    let (mut node, mut size) = (1, whole);
    while size > wanted && node * 2 < nodes.len() {
        (node, size) = (node * 2, size - 1);
        node += usize::from(!fits(nodes[node], size, wanted));
    }
    (node, size)
}

/// Returns `true` if the tree over `whole` has nothing taken in this place.
fn fits_in(nodes: &[u8], at: u64, size: u32, whole: u32) -> bool {
    // Below a block, all bytes are zeros too.
    let is_in_block = |above: u32| is_taken(nodes, node_of(at, above, whole), above);
    nodes[node_of(at, size, whole)] == 0 && !(size + 1..=whole).any(is_in_block)
}

/// Sets a node's byte, and those above it. Returns the root's.
fn set(nodes: &mut [u8], mut node: usize, byte: u8) -> u8 {
    nodes[node] = byte;
    while node > 1 {
        node /= 2;
        nodes[node] = match (nodes[node * 2], nodes[node * 2 + 1]) {
            (0, 0) => 0,
            (left, right) => 1 + left.min(right),
        };
    }
    nodes[1]
}

/// Returns `true` if the node of this size is taken as one block, as far as the tree tells.
fn is_taken(nodes: &[u8], node: usize, size: u32) -> bool {
    let children = nodes.get(node * 2..node * 2 + 2).unwrap_or(&[]);
    nodes[node] == full(size) && children.iter().all(|child| *child == 0)
}

/// The bytes of the arena's tree, in memory that the kernel gives page by page as it is touched.
struct Nodes(NonNull<u8>);

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Nodes {}

impl Nodes {
    fn new() -> io::Result<Self> {
        pages::reserve(NODES).map(Self)
    }

    fn get(&self) -> &[u8] {
        // SAFETY: `new` mapped that many zeros, which only this value's references reach.
        unsafe { slice::from_raw_parts(self.0.as_ptr(), NODES) }
    }

    fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.0.as_ptr(), NODES) }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // SAFETY: `new` mapped that much, and nothing uses it any more.
        unsafe { pages::release(self.0, NODES) };
    }
}
