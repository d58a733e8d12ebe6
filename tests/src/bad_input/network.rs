//! Readers of input from a network: messages in a stream of bytes.

use crate::interfaces::trial;
use crate::speech::{RELEASE, Request};
use std::time::Duration;
use upcall_net::frame::{PREAMBLE, Preamble};
use upcall_net::{Deframer, FrameBody, FrameHeader, FrameKind};

/// Reads a stream in pieces of the size that the first byte gives. The messages that come out equal
/// the bytes that went in.
pub(super) fn frames(bytes: &[u8]) {
    if let Some(Ok(preamble)) = bytes.first_chunk::<PREAMBLE>().map(Preamble::read) {
        assert_eq!(Preamble::read(&preamble.to_bytes()), Ok(preamble));
    }
    let piece = 1 + usize::from(bytes.first().copied().unwrap_or(0));
    let mut deframer = Deframer::default();
    // The bytes that went in since the last message came out.
    let mut since = Vec::new();
    for mut now in bytes.chunks(piece) {
        while !now.is_empty() {
            let before = now;
            // Messages with the number 13 are skipped as unwanted.
            let Ok(frame) = deframer.take(&mut now, |head| Ok(head.number != 13)) else { return };
            since.extend_from_slice(&before[..before.len() - now.len()]);
            let Some(frame) = frame else { continue };
            assert!(
                frame.body.words.len() == frame.body.len.div_ceil(8)
                    && frame.body.len <= since.len()
            );
            if frame.head.number != 13 {
                assert_eq!(
                    frame.head.with(&frame.body),
                    since,
                    "a message is written as it was read"
                );
            }
            assert!(deframer.is_between());
            since.clear();
        }
    }
}

/// Messages as sent to a server. The first one binds `trial` as number 3.
pub(super) fn frames_samples() -> Vec<Vec<u8>> {
    let interface = &trial::INTERFACE;
    let bind = Request::Bind {
        id: 0,
        name: "trial".into(),
        interface: interface.id.to_string(),
        procedures: interface
            .procedures
            .iter()
            .map(|p| (p.name.to_string(), p.hash, p.signature.to_string()))
            .collect(),
        stacks: 0,
    };
    let message = |kind, call, number, body: &[u8]| {
        let left = (call % 2 == 1).then(|| Duration::from_millis(5));
        FrameHeader { kind, call, binding: 3, number, left, len: 0 }.with(&FrameBody::from(body))
    };
    let packed = |request: &Request| postcard::to_stdvec(request).expect("a request can be packed");
    let mut all = vec![message(FrameKind::Ask, 1, 0, &packed(&bind))];
    let text: Vec<u8> =
        [16u64, 5].iter().flat_map(|word| word.to_le_bytes()).chain(*b"trial\0\0\0").collect();
    for (call, procedure) in (2..).zip(interface.procedures.iter().enumerate()) {
        let (number, fixed) = (procedure.0 as u16, procedure.1.args.fixed as usize);
        // Handlers that sleep do so only briefly.
        all.push(message(
            FrameKind::Call,
            call,
            number,
            &[1, 0, 0, 0, 0, 0, 0, 0].repeat(fixed.div_ceil(8)),
        ));
        all.push(message(FrameKind::Call, call + 100, number, &text));
    }
    all.push(message(FrameKind::Call, 300, RELEASE, &[0; 8]));
    all.push(message(FrameKind::Call, 301, 13, &[7; 900]));
    all.push(message(FrameKind::Reply, 302, 0, &[1; 9]));
    all.push(message(FrameKind::Farewell, 303, 0, &[1, 2, b'n', b'o']));
    all.push(message(FrameKind::Ask, 304, 0, &packed(&Request::Unbind { id: 0 })));
    all.push(message(FrameKind::Ask, 305, 0, &packed(&Request::List)));
    all
}
