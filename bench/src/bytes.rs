//! Calls over systems that carry only bytes (sockets, ZeroMQ).
//!
//! A request is one byte for the procedure, followed by its arguments. A reply is the result. The
//! encoding is minimal, so that the measurement is of the system and not of this module.

use crate::case::BIG;
use crate::child::{ClientSide, Outcome};
use crate::payload::answer;

const NULL: u8 = 0;
const ADD: u8 = 1;
const BYTES_IN: u8 = 2;
const BIG_IN_OUT: u8 = 3;

/// Carries a request to the server and the reply back.
pub trait Exchange {
    /// Sends the concatenation of `head` and `body`, waits for the reply, and stores it in `reply`,
    /// which is initially empty.
    ///
    /// # Errors
    /// The other side has ended, or the system failed.
    fn exchange(&mut self, head: &[u8], body: &[u8], reply: &mut Vec<u8>) -> Outcome<()>;
}

/// A client built on an [`Exchange`].
#[derive(Debug, Default)]
pub struct Bytes<E> {
    /// The underlying system.
    pub exchange: E,
    reply: Vec<u8>,
}

impl<E: Exchange> Bytes<E> {
    /// Creates a client that calls over `exchange`.
    pub fn new(exchange: E) -> Bytes<E> {
        Bytes { exchange, reply: Vec::new() }
    }

    fn call<const N: usize>(&mut self, head: &[u8], body: &[u8]) -> Outcome<[u8; N]> {
        self.reply.clear();
        self.exchange.exchange(head, body, &mut self.reply)?;
        <[u8; N]>::try_from(&self.reply[..]).map_err(|_| {
            format!("a reply of {} bytes where {N} are expected", self.reply.len()).into()
        })
    }
}

impl<E: Exchange> ClientSide for Bytes<E> {
    fn null(&mut self) -> Outcome<()> {
        self.call::<1>(&[NULL], &[])?;
        Ok(())
    }

    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        let mut request = [ADD; 9];
        request[1..5].copy_from_slice(&a.to_le_bytes());
        request[5..].copy_from_slice(&b.to_le_bytes());
        self.call(&request, &[]).map(i32::from_le_bytes)
    }

    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.bytes_in(data)
    }

    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        self.call(&[BIG_IN_OUT], data)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        self.call(&[BYTES_IN], data).map(u64::from_le_bytes)
    }
}

/// Returns the request of a null call, for clients that keep several outstanding.
pub fn null_request() -> [u8; 1] {
    [NULL]
}

/// Stores the server's answer to `request` in `reply`, which is initially empty. The answer to a
/// null call is one byte, because an empty message cannot be distinguished from no message.
///
/// # Errors
/// `request` is not a valid call.
pub fn serve(request: &[u8], reply: &mut Vec<u8>) -> Outcome<()> {
    match *request {
        [NULL] => reply.push(NULL),
        [ADD, a0, a1, a2, a3, b0, b1, b2, b3] => {
            let (a, b) =
                (i32::from_le_bytes([a0, a1, a2, a3]), i32::from_le_bytes([b0, b1, b2, b3]));
            reply.extend_from_slice(&answer::add(a, b).to_le_bytes());
        }
        [BYTES_IN, ref data @ ..] => reply.extend_from_slice(&answer::bytes_in(data).to_le_bytes()),
        [BIG_IN_OUT, ref data @ ..] => reply.extend_from_slice(&answer::big_in_out(data)),
        _ => return Err(format!("a request of {} bytes is not a call", request.len()).into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::checksum;

    /// An exchange with the server's code in the same process.
    struct Direct;

    impl Exchange for Direct {
        fn exchange(&mut self, head: &[u8], body: &[u8], reply: &mut Vec<u8>) -> Outcome<()> {
            serve(&[head, body].concat(), reply)
        }
    }

    #[test]
    fn calls_come_through() {
        let mut client = Bytes::new(Direct);
        client.null().unwrap();
        assert_eq!(client.add(i32::MAX, 1).unwrap(), i32::MIN);
        assert_eq!(client.bytes_in(&[1; 9]).unwrap(), checksum(&[1; 9]));
        assert_eq!(client.big_in_out(&[3; BIG]).unwrap(), answer::big_in_out(&[3; BIG]));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(serve(&[], &mut Vec::new()).is_err());
        assert!(serve(&[ADD, 1], &mut Vec::new()).is_err());
        assert!(serve(&[77], &mut Vec::new()).is_err());
    }
}
