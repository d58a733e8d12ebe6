//! IPv4 packets and the TCP segments in them, as a device in the middle sees and makes them
//! (RFC 791, RFC 9293).

/// Flags of a TCP header.
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// Length of a header without options, in bytes; that of IPv4 and that of TCP are the same.
const HEADER: usize = 20;
const TCP: u8 = 6;

/// A TCP connection, whose ends are in order: packets of both directions have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow([([u8; 4], u16); 2]);

/// A packet that has a whole TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    packet: &'a [u8],
    /// Where the header of TCP and the data begin.
    tcp: usize,
    data: usize,
}

/// Returns the address to which a packet goes, if it is one of IPv4.
pub fn destination(packet: &[u8]) -> Option<[u8; 4]> {
    let is_ipv4 = packet.first().is_some_and(|first| first >> 4 == 4);
    packet.get(16..HEADER)?.try_into().ok().filter(|_| is_ipv4)
}

impl<'a> Segment<'a> {
    /// Returns the segment of a packet, unless the packet has none, or a fragment of one.
    pub fn of(packet: &'a [u8]) -> Option<Self> {
        destination(packet)?;
        let tcp = usize::from(packet[0] & 0xf) * 4;
        let is_fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
        let data = tcp + usize::from(packet.get(tcp + 12)? >> 4) * 4;
        let is_whole = tcp >= HEADER && data >= tcp + HEADER && data <= packet.len();
        (packet[9] == TCP && !is_fragment && is_whole).then_some(Self { packet, tcp, data })
    }

    fn addresses(&self) -> [[u8; 4]; 2] {
        [12, 16].map(|at| self.packet[at..at + 4].try_into().expect("four bytes"))
    }

    fn ports(&self) -> [u16; 2] {
        [0, 2].map(|at| u16::from_be_bytes([self.tcp_byte(at), self.tcp_byte(at + 1)]))
    }

    fn tcp_byte(&self, at: usize) -> u8 {
        self.packet[self.tcp + at]
    }

    fn tcp_number(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, 1, 2, 3].map(|byte| self.tcp_byte(at + byte)))
    }

    fn flags(&self) -> u8 {
        self.tcp_byte(13)
    }

    /// The connection.
    pub fn flow(&self) -> Flow {
        let ([from, to], [port, other]) = (self.addresses(), self.ports());
        let mut ends = [(from, port), (to, other)];
        ends.sort_unstable();
        Flow(ends)
    }

    /// Number of bytes of data.
    pub fn len(&self) -> usize {
        self.packet.len() - self.data
    }

    /// Returns `true` if there is no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if the segment begins a connection.
    pub fn opens(&self) -> bool {
        self.flags() & (SYN | ACK) == SYN
    }

    /// Returns `true` if the segment belongs to a connection that both sides have.
    pub fn is_of_an_open_one(&self) -> bool {
        self.flags() & (SYN | RST | ACK) == ACK
    }

    /// Cuts the segment into two, of which the first has `first` bytes of data.
    ///
    /// # Panics
    /// If the segment has fewer bytes than that.
    pub fn divide(&self, first: usize) -> [Vec<u8>; 2] {
        let (head, data) = self.packet.split_at(self.data);
        let (one, other) = data.split_at(first);
        let mut one = [head, one].concat();
        one[self.tcp + 13] &= !(FIN | PSH);
        let mut other = [head, other].concat();
        let number = self.tcp_number(4).wrapping_add(first as u32);
        other[self.tcp + 4..self.tcp + 8].copy_from_slice(&number.to_be_bytes());
        [one, other].map(|packet| summed(packet, self.tcp))
    }

    /// Makes the packets that end the connection at the segment's sender and at its receiver.
    ///
    /// Each side accepts a reset with the number of the byte that it expects. The segment has the
    /// number that its sender expects. A receiver that expects another byte answers with the number
    /// of that byte.
    pub fn resets(&self) -> [Vec<u8>; 2] {
        let ([from, to], [port, other]) = (self.addresses(), self.ports());
        let (expected, sent) = (self.tcp_number(8), self.tcp_number(4));
        [reset([to, from], [other, port], expected), reset([from, to], [port, other], sent)]
    }
}

/// Makes a packet that ends a connection.
fn reset(addresses: [[u8; 4]; 2], ports: [u16; 2], number: u32) -> Vec<u8> {
    let mut packet = vec![0; 2 * HEADER];
    // The version and the length of the header, and the number of routers that may pass it on.
    (packet[0], packet[8], packet[9]) = (0x45, 64, TCP);
    packet[12..20].copy_from_slice(addresses.as_flattened());
    let ports = ports.map(u16::to_be_bytes);
    packet[20..24].copy_from_slice(ports.as_flattened());
    packet[24..28].copy_from_slice(&number.to_be_bytes());
    (packet[32], packet[33]) = (0x50, RST);
    summed(packet, HEADER)
}

/// Sets the length and the checksums of a packet whose header of TCP begins at `tcp`.
fn summed(mut packet: Vec<u8>, tcp: usize) -> Vec<u8> {
    let whole = packet.len() as u16;
    packet[2..4].copy_from_slice(&whole.to_be_bytes());
    packet[10..12].fill(0);
    let sum = checksum(&[&packet[..tcp]]);
    packet[10..12].copy_from_slice(&sum);
    packet[tcp + 16..tcp + 18].fill(0);
    let sum = tcp_checksum(&packet, tcp);
    packet[tcp + 16..tcp + 18].copy_from_slice(&sum);
    packet
}

/// The checksum of TCP, which also covers the addresses.
fn tcp_checksum(packet: &[u8], tcp: usize) -> [u8; 2] {
    let len = ((packet.len() - tcp) as u16).to_be_bytes();
    checksum(&[&packet[12..20], &[0, TCP], &len, &packet[tcp..]])
}

/// The Internet checksum (RFC 1071) of these parts, of which all but the last have an even length.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |bytes: &[u8]| {
        u32::from(u16::from_be_bytes([bytes[0], bytes.get(1).copied().unwrap_or(0)]))
    };
    // A packet has at most 2^15 words, so this does not overflow.
    let mut sum: u32 = words.map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Checks that the length and the checksums of a packet are right.
///
/// # Errors
/// What is wrong.
pub fn check(packet: &[u8]) -> Result<(), String> {
    let segment = Segment::of(packet).ok_or("no TCP segment")?;
    let len = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let sums = [checksum(&[&packet[..segment.tcp]]), tcp_checksum(packet, segment.tcp)];
    if len == packet.len() && sums == [[0; 2]; 2] {
        return Ok(());
    }
    Err(format!("{len} of {} bytes, checksums {sums:?}: {packet:?}", packet.len()))
}
