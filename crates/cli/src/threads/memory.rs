//! Reads many places of another process's memory, a thousand by each system call. Some of them may
//! be unreadable.

use std::io;
use upcall_os::trace::{self, MOST_SPANS, ProcessSpan};

/// The bytes that were read of several spans, in their order.
pub struct CopiedSpans {
    bytes: Vec<u8>,
    /// For each span, the offset of its bytes, and the number of bytes that were read.
    parts: Vec<(usize, usize)>,
}

impl CopiedSpans {
    /// The bytes of span `index` before the first byte that cannot be read.
    pub fn get(&self, index: usize) -> &[u8] {
        self.parts.get(index).map_or(&[], |&(start, len)| &self.bytes[start..start + len])
    }

    /// Span `index`, if all of it could be read.
    pub fn whole(&self, index: usize, len: usize) -> Option<&[u8]> {
        Some(self.get(index)).filter(|bytes| bytes.len() == len)
    }
}

/// Reads `spans` of process `pid`. Unreadable parts are left out; an error means that nothing can
/// be read.
pub fn copy(pid: u32, spans: &[ProcessSpan]) -> io::Result<CopiedSpans> {
    let total = spans.iter().map(|span| span.len).sum();
    let mut copied = CopiedSpans { bytes: vec![0; total], parts: Vec::with_capacity(spans.len()) };
    let mut place = 0;
    for batch in spans.chunks(MOST_SPANS) {
        let mut rest = batch;
        while !rest.is_empty() {
            let wanted: usize = rest.iter().map(|span| span.len).sum();
            let mut got = match trace::read(pid, rest, &mut copied.bytes[place..place + wanted]) {
                Ok(got) => got,
                Err(error) if is_hole(&error) => 0,
                Err(error) => return Err(error),
            };
            // The next call begins after the spans that were read and the span at which this call
            // ended.
            let mut done = 0;
            for span in rest {
                let read = got.min(span.len);
                copied.parts.push((place, read));
                place += span.len;
                got -= read;
                done += 1;
                if read < span.len {
                    break;
                }
            }
            rest = &rest[done..];
        }
    }
    Ok(copied)
}

/// Reads spans as [`copy`] does, but each page only once. This is faster for many small spans that
/// lie close to each other, such as names on a heap.
pub fn copy_dense(pid: u32, spans: &[ProcessSpan]) -> io::Result<CopiedSpans> {
    const PAGE: u64 = 4096;
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_unstable_by_key(|&index| spans[index].at);
    // Begin and end of the wider spans, and the wider span of each span. Each page of a wider span
    // contains a part of a span, so there are no new holes.
    let mut wider: Vec<(u64, u64)> = Vec::new();
    let mut inside = vec![0; spans.len()];
    for index in order {
        let ProcessSpan { at, len } = spans[index];
        let end = at.saturating_add(len as u64);
        match wider.last_mut() {
            Some(last) if at / PAGE <= last.1 / PAGE => last.1 = last.1.max(end),
            _ => wider.push((at, end)),
        }
        inside[index] = wider.len() - 1;
    }
    let read = copy(
        pid,
        &wider
            .iter()
            .map(|&(at, end)| ProcessSpan { at, len: (end - at) as usize })
            .collect::<Vec<_>>(),
    )?;
    let part = |(span, wide): (&ProcessSpan, usize)| {
        let ((start, got), skipped) = (read.parts[wide], (span.at - wider[wide].0) as usize);
        (start + skipped.min(got), span.len.min(got.saturating_sub(skipped)))
    };
    let parts = spans.iter().zip(inside).map(part).collect();
    Ok(CopiedSpans { bytes: read.bytes, parts })
}

/// Returns `true` for EFAULT: the place is unmapped or unreadable.
fn is_hole(error: &io::Error) -> bool {
    error.raw_os_error() == Some(14)
}

/// The bytes of one span, all or nothing.
pub fn read(pid: u32, at: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
    let copied = copy(pid, &[ProcessSpan { at, len }])?;
    Ok(copied.whole(0, len).map(<[u8]>::to_vec))
}

/// The little-endian number of 4 bytes at `at`, 0 beyond the end.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_le_bytes(*four))
}

/// The little-endian number of 8 bytes at `at`, 0 beyond the end.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |eight| u64::from_le_bytes(*eight))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let there: Vec<u8> = (0..=255).collect();
        let at = there.as_ptr().addr() as u64;
        // Holes at the beginning, at the end and next to each other, in more spans than one call
        // takes.
        let span = |index: usize| {
            if index % 7 < 2 {
                ProcessSpan { at: 8, len: 3 }
            } else {
                ProcessSpan { at: at + index as u64 % 200, len: 5 }
            }
        };
        let spans: Vec<_> = (0..3000).map(span).collect();
        let copied = copy(std::process::id(), &spans).unwrap();
        for (index, span) in spans.iter().enumerate() {
            if span.at == 8 {
                assert!(copied.get(index).is_empty());
            } else {
                let start = (span.at - at) as usize;
                assert_eq!(copied.whole(index, 5).unwrap(), &there[start..start + 5]);
            }
        }
        assert!(copied.get(3000).is_empty());
        let dense = copy_dense(std::process::id(), &spans).unwrap();
        assert!((0..3000).all(|index| dense.get(index) == copied.get(index)));
        assert_eq!((u32_at(&there, 1), u64_at(&there, 250)), (0x0403_0201, 0));
    }
}
