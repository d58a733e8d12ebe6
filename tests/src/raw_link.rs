//! Bytes of a link, made and read by hand.

use std::io::{self, Read, Write};
use std::time::Duration;
use upcall_net::frame::HEAD;
use upcall_net::record::{
    FIRST_PIECE, HELLO, Hello, MOST_PAYLOAD, RECORD, RecordHeader, RecordKind, SessionKey,
    SessionStart, VERSION,
};
use upcall_net::{Frame, FrameBody, FrameHeader};

/// A hello of this version, for a session with this key.
pub fn hello(session: SessionKey, window: u16) -> Hello {
    Hello {
        version: VERSION,
        window,
        begins: SessionStart::Begins,
        session,
        received: 0,
        patience: Duration::ZERO,
    }
}

/// Reads the other side's hello.
///
/// # Errors
/// The stream's error, or the bytes are not a hello.
pub fn read_hello(stream: &mut impl Read) -> io::Result<Hello> {
    let mut bytes = [0; HELLO];
    stream.read_exact(&mut bytes)?;
    Hello::read(&bytes).map_err(io::Error::other)
}

/// The record that begins a message with these bytes of a header.
pub fn begin(head: &[u8; HEAD], body: &[u8]) -> Vec<u8> {
    let len = HEAD + body.len();
    let record = RecordHeader { kind: RecordKind::Begin, len, message: 0, received: 0 };
    [&record.to_bytes()[..], head, body].concat()
}

/// A message in records, all of which have the number 0: no other message may be open.
pub fn message(head: FrameHeader, body: &[u8]) -> Vec<u8> {
    let (first, rest) = body.split_at(body.len().min(FIRST_PIECE));
    let head = FrameHeader { len: body.len(), ..head };
    let mut all = begin(&head.to_bytes(), first);
    for piece in rest.chunks(MOST_PAYLOAD) {
        let record =
            RecordHeader { kind: RecordKind::More, len: piece.len(), message: 0, received: 0 };
        all.extend_from_slice(&record.to_bytes());
        all.extend_from_slice(piece);
    }
    all
}

/// Reads the next message, if the other side sends one after the other. Allows all of its body.
///
/// # Errors
/// The stream's error, the bytes are not a message, or another message comes between.
pub fn read_message(stream: &mut (impl Read + Write)) -> io::Result<Frame> {
    let mut body = Vec::new();
    let mut head: Option<FrameHeader> = None;
    loop {
        let mut bytes = [0; RECORD];
        stream.read_exact(&mut bytes)?;
        let record = RecordHeader::read(&bytes).map_err(io::Error::other)?;
        let mut payload = vec![0; record.len];
        stream.read_exact(&mut payload)?;
        match record.kind {
            RecordKind::Begin if head.is_some() => {
                return Err(io::Error::other("a message within a message"));
            }
            RecordKind::Reset => return Err(io::Error::other("a message that was given up")),
            RecordKind::Begin => {
                let (first, rest) = payload.split_at(HEAD);
                let first = first.first_chunk().expect("a header");
                head = Some(FrameHeader::read(first).map_err(io::Error::other)?);
                body = rest.to_vec();
                let credit =
                    RecordHeader { kind: RecordKind::Credit, len: 8, received: 0, ..record };
                stream.write_all(&credit.to_bytes())?;
                stream.write_all(&u64::MAX.to_le_bytes())?;
            }
            RecordKind::More => body.extend_from_slice(&payload),
            _ => {}
        }
        if let Some(head) = head.filter(|head| head.len == body.len()) {
            return Ok(Frame { head, body: FrameBody::from(&*body) });
        }
    }
}
