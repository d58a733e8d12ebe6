//! Which lines both pairs touched, by which processor, and from where in the code.

use crate::SIDE;
use crate::hooks::{self, LINE, Touch};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::path::Path;
use std::process::Command;

/// The processor that makes an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Client(usize),
    Server(usize),
}

impl Who {
    const ALL: [Self; 2 * SIDE] =
        [Self::Client(0), Self::Client(1), Self::Server(0), Self::Server(1)];

    /// The number of its table.
    pub fn table(self) -> usize {
        match self {
            Self::Client(number) => number,
            Self::Server(number) => SIDE + number,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(number) => write!(f, "client {number}"),
            Self::Server(number) => write!(f, "server {number}"),
        }
    }
}

/// Memory that is mapped, once or more often.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Memory {
    name: String,
    /// The number of the file, if it is mapped shared; then a line has the same place in each of
    /// its mappings.
    file: Option<u64>,
}

/// The place of a line: its offset in the file if there is one, otherwise its address.
type Place = (Memory, u64);

/// One line of `/proc/self/maps`.
struct Map {
    begin: u64,
    end: u64,
    offset: u64,
    memory: Memory,
}

impl Map {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let (rights, offset, _device, file) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        let number = |text| u64::from_str_radix(text, 16).ok();
        let name = words.next().unwrap_or("memory without a name").into();
        let file = file.parse().ok().filter(|&file| file != 0 && rights.ends_with('s'));
        Some(Self {
            begin: number(begin)?,
            end: number(end)?,
            offset: number(offset)?,
            memory: Memory { name, file },
        })
    }

    fn all() -> Vec<Self> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the map of this process");
        maps.lines().filter_map(Self::parse).collect()
    }
}

fn place(maps: &[Map], line: u64) -> Place {
    match maps.iter().find(|map| (map.begin..map.end).contains(&line)) {
        Some(map) if map.memory.file.is_some() => {
            (map.memory.clone(), map.offset + (line - map.begin))
        }
        Some(map) => (map.memory.clone(), line),
        None => (Memory { name: "memory that is mapped no more".into(), file: None }, line),
    }
}

/// The touches of a line, by processor.
type Touches = [Vec<Touch>; 2 * SIDE];

/// Functions and places in them, the innermost first, from an access to the function that was
/// compiled.
type Chain = Vec<(String, String)>;

/// The result of a run.
pub struct Found {
    /// Number of calls, by server and client processor.
    served: [[u64; SIDE]; SIDE],
    /// The server processor that serves each client processor.
    server_of: [usize; SIDE],
    lines: BTreeMap<Place, Touches>,
    /// The places in the code that touch shared lines.
    code: BTreeMap<u64, Chain>,
    /// Number of uses of the allocator.
    pub allocations: u64,
    /// Number of turns that were passed over.
    passed_over: u64,
}

impl Found {
    /// Makes the result from what was just counted, while the memory is still mapped. `served` is
    /// the number of calls served, `passed_over` the number of turns passed over.
    pub fn now(served: [[u64; SIDE]; SIDE], passed_over: u64) -> Self {
        let maps = Map::all();
        let mut lines = BTreeMap::<Place, Touches>::new();
        for who in Who::ALL {
            for touch in hooks::take(who.table()) {
                lines.entry(place(&maps, touch.line)).or_default()[who.table()].push(touch);
            }
        }
        let straight = served[0][0] + served[1][1] >= served[0][1] + served[1][0];
        let server_of = if straight { [0, 1] } else { [1, 0] };
        let mut found = Self {
            served,
            server_of,
            lines,
            code: BTreeMap::new(),
            allocations: hooks::take_allocations(),
            passed_over,
        };
        let code = found
            .shared()
            .flat_map(|(_, touches)| touches.iter().flatten().map(|touch| touch.code))
            .collect();
        found.code = chains(&maps, &code);
        found
    }

    fn pair(&self, pair: usize) -> [Who; 2] {
        [Who::Client(pair), Who::Server(self.server_of[pair])]
    }

    /// Upper bound of the number of moves of a line from one pair to the other: there and back for
    /// each touch by the pair that touches it less, and only if there was a write between.
    fn crossings(&self, touches: &Touches) -> u64 {
        let by = |pair| {
            self.pair(pair)
                .into_iter()
                .flat_map(|who: Who| &touches[who.table()])
                .map(|touch| touch.times)
                .sum::<u64>()
        };
        let writes =
            touches.iter().flatten().filter(|touch| touch.write).map(|touch| touch.times).sum();
        2 * by(0).min(by(1)).min(writes)
    }

    /// Upper bound of the number of moves of lines from one pair to the other in 1000 calls.
    pub fn crossings_in_1000_calls(&self) -> u64 {
        let all: u64 = self.shared().map(|(_, touches)| self.crossings(touches)).sum();
        all * 1000 / self.calls()
    }

    /// Number of calls of each client processor that the other pair's server processor served.
    pub fn strayed(&self) -> [u64; SIDE] {
        [0, 1].map(|client| self.served[self.server_of[1 - client]][client])
    }

    /// Number of lines that client and server of a pair both touched, at least one of them writing.
    pub fn moved(&self, pair: usize) -> usize {
        let [client, server] = self.pair(pair).map(Who::table);
        let both = self
            .lines
            .values()
            .filter(|touches| !touches[client].is_empty() && !touches[server].is_empty());
        both.filter(|touches| {
            touches[client].iter().chain(&touches[server]).any(|touch| touch.write)
        })
        .count()
    }

    /// The lines that both pairs touched, at least one of the four processors writing.
    fn shared(&self) -> impl Iterator<Item = (&Place, &Touches)> {
        self.lines.iter().filter(|(_, touches)| self.crossings(touches) > 0)
    }

    /// Returns `true` if the line of `what` is shared.
    pub fn shares<T>(&self, what: &T) -> bool {
        let line = std::ptr::from_ref(what) as u64 / LINE * LINE;
        self.shared().any(|((memory, at), _)| memory.file.is_none() && *at == line)
    }

    fn calls(&self) -> u64 {
        self.served.iter().flatten().sum()
    }

    /// The result as text.
    pub fn report(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_report(&mut text);
        text
    }

    fn write_report(&self, text: &mut String) -> fmt::Result {
        let calls = self.calls();
        writeln!(
            text,
            "{calls} calls, {} uses of the allocator, {} turns passed over",
            self.allocations, self.passed_over
        )?;
        for pair in [0, 1] {
            let ([client, server], lines) = (self.pair(pair), self.lines.values());
            let (answered, strayed) =
                (self.served.iter().map(|by| by[pair]).sum::<u64>(), self.strayed()[pair]);
            let by = |touches: &&Touches| {
                !touches[client.table()].is_empty() || !touches[server.table()].is_empty()
            };
            let touched = lines.filter(by).count();
            writeln!(
                text,
                "  {client} with {server}: {answered} calls, of which the other server processor \
                served {strayed}"
            )?;
            writeln!(
                text,
                "    {touched} lines touched, {} of them by both and written",
                self.moved(pair)
            )?;
        }
        let mut groups = BTreeMap::<(&Memory, String), Vec<(u64, &Touches)>>::new();
        for ((memory, at), touches) in self.shared() {
            groups.entry((memory, self.describe(touches))).or_default().push((*at, touches));
        }
        let total = |lines: &[(u64, &Touches)]| {
            lines.iter().map(|(_, touches)| self.crossings(touches)).sum::<u64>()
        };
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(_, lines)| std::cmp::Reverse(total(lines)));
        writeln!(
            text,
            "  in 1000 calls at most {} crossings of lines from one pair to the other",
            self.crossings_in_1000_calls()
        )?;
        for ((memory, what), lines) in groups {
            write!(text, "  SHARED: {} of {}", plural(lines.len()), memory.name)?;
            match memory.file {
                Some(number) => {
                    writeln!(text, " (file {number}), the first at {:#x}{what}", lines[0].0)?
                }
                None => writeln!(text, ", the first at address {:#x}{what}", lines[0].0)?,
            }
            writeln!(text, "    at most {} crossings", total(&lines))?;
            for who in Who::ALL {
                let times = |write| {
                    let touches = lines.iter().flat_map(|(_, touches)| &touches[who.table()]);
                    touches
                        .filter(|touch| touch.write == write)
                        .map(|touch| touch.times)
                        .sum::<u64>()
                };
                if times(false) + times(true) > 0 {
                    writeln!(text, "    {who}: {} reads, {} writes", times(false), times(true))?;
                }
            }
        }
        Ok(())
    }

    /// The processors that read and write a line, and from where. The text is the same for lines
    /// that are shared for the same cause.
    fn describe(&self, touches: &Touches) -> String {
        let mut text = String::new();
        let mut places = BTreeMap::<(bool, String), BTreeSet<&str>>::new();
        for who in Who::ALL {
            let side = if matches!(who, Who::Client(_)) { "client" } else { "server" };
            for write in [false, true] {
                let mine = touches[who.table()].iter().filter(|touch| touch.write == write);
                // Names only the place with the most accesses; the others would repeat it in other
                // words.
                if let Some(most) = mine.max_by_key(|touch| touch.times) {
                    places.entry((write, self.place_in_code(most.code))).or_default().insert(side);
                }
            }
        }
        for ((write, place), sides) in places {
            let sides = sides.into_iter().collect::<Vec<_>>().join(" and ");
            let _ =
                write!(text, "\n    {sides} {}: {place}", if write { "writes" } else { "reads" });
        }
        text
    }

    fn place_in_code(&self, code: u64) -> String {
        let Some(chain) = self.code.get(&code) else { return format!("{code:#x}") };
        let ours = chain.iter().filter(|(_, place)| !place.starts_with('/')).take(3);
        ours.map(|(name, place)| format!("{name} {place}")).collect::<Vec<_>>().join(" < ")
    }
}

fn plural(lines: usize) -> String {
    if lines == 1 { "1 line".into() } else { format!("{lines} lines") }
}

/// Functions and lines for places in the code, from the tool that comes with the linker. Without
/// the tool they remain numbers.
fn chains(maps: &[Map], code: &BTreeSet<u64>) -> BTreeMap<u64, Chain> {
    let program = std::env::current_exe().expect("this program");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .map(|root| format!("{}/", root.display()))
        .unwrap_or_default();
    let first = maps.iter().find(|map| program.to_str() == Some(&map.memory.name));
    let Some(base) = first.map(|map| map.begin - map.offset) else { return BTreeMap::new() };
    // The access is in the previous instruction. Long lists are passed in parts.
    let code: Vec<String> = code.iter().map(|at| format!("{:#x}", at - base - 1)).collect();
    let mut chains = BTreeMap::<u64, Chain>::new();
    for some in code.chunks(1000) {
        let Ok(output) = Command::new("addr2line")
            .args(["-C", "-f", "-i", "-a", "-e"])
            .arg(&program)
            .args(some)
            .output()
        else {
            break;
        };
        let (text, mut at) = (String::from_utf8_lossy(&output.stdout).into_owned(), 0);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(address) = line.strip_prefix("0x") {
                at = u64::from_str_radix(address, 16).unwrap_or(0) + base + 1;
                continue;
            }
            let place = lines.next().unwrap_or_default();
            let place =
                place.strip_prefix(&root).unwrap_or(place).split(" (").next().unwrap_or_default();
            chains.entry(at).or_default().push((short(line).into(), place.into()));
        }
    }
    chains
}

/// The function's own name.
fn short(name: &str) -> &str {
    let name = if name.starts_with('<') { name } else { name.split('<').next().unwrap_or(name) };
    name.rsplit("::").next().unwrap_or(name)
}
