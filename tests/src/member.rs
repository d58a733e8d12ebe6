//! A member of a group that a test controls: it reads one command a line and writes one reply a
//! line. Messages to each other member are numbered, and the receiver checks that none is missing,
//! doubled or out of order.

use crate::outcome::Outcome;
use crate::outcome::{done, say, show};
use std::cell::RefCell;
use std::io::BufRead;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall::message::{Event, Group, GroupBuilder, Handlers, Kind, Pacing, Rank, SendError};
use upcall_os::forked::ForkedChild;

/// A number, its product with a constant, the sender, the receiver.
type Data = [u64; 4];

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Longest wait for the other members to join (`within`), and for what they send (`patience`),
/// unless a test sets another. A test waits for a minute, so this is shorter: the member reports
/// what is missing before the test gives up.
const PATIENCE: Duration = Duration::from_secs(50);

struct Member {
    group: Group,
    /// Longest wait for a message or an event.
    patience: Duration,
    data: Kind<Data>,
    /// By rank: the next number to send.
    next: Vec<u64>,
    seen: Rc<RefCell<Seen>>,
    /// Forked children, which end with this unless the process is killed.
    children: Vec<ForkedChild>,
}

struct Seen {
    /// By rank: number of messages taken.
    taken: Vec<u64>,
    wrong: Option<String>,
    /// By rank: number of events that the member has ended or left.
    ended: Vec<u64>,
    /// Pairs of other members that have lost each other, one for each event.
    parted: Vec<[Rank; 2]>,
}

/// Joins, reports that, and obeys standard input until it ends.
pub fn run(name: &str, size: &str, rank: &str, options: &[&str]) {
    let member = match (size.parse(), rank.parse()) {
        (Ok(size), Ok(rank)) => Member::join(name, size, rank, options),
        _ => return say(Err("a size and a rank are numbers".into())),
    };
    let mut member = match member {
        Ok(member) => member,
        Err(error) => return say(Err(error)),
    };
    say(show([member.group.rank() as u64]));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words == ["leave"] {
            return;
        }
        say(member.obey(&words));
    }
}

impl Member {
    fn join(
        name: &str,
        size: usize,
        rank: Rank,
        options: &[&str],
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut joining = GroupBuilder::new(name, size).rank(rank).within(PATIENCE);
        let mut patience = PATIENCE;
        for option in options {
            joining = match option.split_once('=').unwrap_or((option, "")) {
                ("within", ms) => joining.within(Duration::from_millis(ms.parse()?)),
                ("timeout", "never") => joining.timeout(None),
                ("timeout", us) => joining.timeout(Some(Duration::from_micros(us.parse()?))),
                ("limit", bytes) => joining.limit(bytes.parse()?),
                ("sleep", _) => joining.pacing(Pacing::Sleep),
                ("across", address) => joining.across(address),
                ("lost", ms) => joining.lost_after(Duration::from_millis(ms.parse()?)),
                ("cut", ms) => joining.reconnect_within(Duration::from_millis(ms.parse()?)),
                // A digit for the host of each member.
                ("hosts", marks) => {
                    joining.pretend_hosts(&marks.bytes().map(u16::from).collect::<Vec<_>>())
                }
                ("patience", ms) => {
                    patience = Duration::from_millis(ms.parse()?);
                    joining
                }
                _ => return Err(format!("unknown option {option:?}").into()),
            };
        }
        let mut handlers = Handlers::new();
        let data: Kind<Data> = handlers.kind("data");
        let seen = Rc::new(RefCell::new(Seen {
            taken: vec![0; size],
            wrong: None,
            ended: vec![0; size],
            parted: Vec::new(),
        }));
        let here = seen.clone();
        handlers.on(data, move |group, from, [number, product, sender, receiver]| {
            let mut seen = here.borrow_mut();
            let good = [number, product, sender, receiver]
                == [
                    seen.taken[from],
                    number.wrapping_mul(FACTOR),
                    from as u64,
                    group.rank() as u64,
                ];
            if !good && seen.wrong.is_none() {
                let expected = seen.taken[from];
                seen.wrong = Some(format!(
                    "from {from}: {number}, {product}, {sender}, {receiver} in place \
                        of number {expected}"
                ));
            }
            seen.taken[from] += 1;
        });
        Ok(Self {
            group: joining.join(handlers)?,
            patience,
            data,
            next: vec![0; size],
            seen,
            children: Vec::new(),
        })
    }

    fn obey(&mut self, words: &[&str]) -> Outcome {
        match words {
            // Sends `count` messages to one member.
            ["send", to, count] => {
                let to = to.parse()?;
                (0..count.parse()?).try_for_each(|_: u64| self.send(to))?;
                done()
            }
            // Sends messages to one member until there is no room. Reports how many have been sent
            // to it by then.
            ["fill", to] => {
                let to = to.parse()?;
                loop {
                    match self.give(to, |group, kind, data| group.try_send(to, kind, data)) {
                        Ok(()) => {}
                        Err(SendError::Full) => return show([self.next[to]]),
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            ["barrier"] => {
                self.group.barrier()?;
                done()
            }
            // Reports the sum of the numbers of all members.
            ["reduce", number] => show([self.group.reduce(number.parse()?, |a: u64, b| a + b)?]),
            // Performs a collective operation with each member as its root, and checks the results.
            ["collective", operation] => {
                (0..self.group.size()).try_for_each(|root| self.collective(operation, root))?;
                done()
            }
            // Runs rounds of floods, barriers and reductions until the file exists. Reports the
            // number of rounds.
            ["work", file] => self.work(Path::new(file)),
            // Takes messages from one member until it has sent `count` in all, or has ended.
            ["take", from, count] => self.take(from.parse()?, count.parse()?),
            // Sends `count` messages to each other member, then takes as many from each.
            ["life", count] => self.life(count.parse()?),
            // Sends `count` messages to each other member, and at the same time takes as many from
            // each. All members do so. Reports how many were taken from each.
            ["exchange", count] => self.exchange(count.parse()?),
            // The two parts of a life.
            ["tell", count] => self.tell(count.parse()?).and_then(|_| done()),
            ["listen", count] => self.listen(count.parse()?, &[]),
            ["buffered", to] => show([self.group.buffered(to.parse()?)]),
            // Reports the mean time of `count` round trips to one member, in nanoseconds.
            ["ping", to, count] => self.ping(to.parse()?, count.parse()?),
            ["pong", to, count] => self.pong(to.parse()?, count.parse()?),
            // Forks a child, which does nothing and outlives this process. Reports its process ID.
            ["fork"] => {
                let child = ForkedChild::begin()?;
                let pid = child.pid();
                self.children.push(child);
                show([pid.into()])
            }
            // Waits until a member has ended.
            ["end-of", rank] => {
                let rank: Rank = rank.parse()?;
                self.until(|seen| seen.ended[rank] > 0)?;
                show([self.seen.borrow().taken[rank]])
            }
            // Takes a member on another host for ended from now on.
            ["expel", rank] => {
                let rank: Rank = rank.parse()?;
                self.group.expel(&(rank..rank + 1));
                done()
            }
            // Waits for the event that two other members have lost each other.
            ["parted", one, other] => {
                let pair: [Rank; 2] = [one.parse()?, other.parse()?];
                self.until(|seen| seen.parted.contains(&pair))?;
                done()
            }
            // Reports all events of others: for each end the member, and for each pair that has
            // lost each other both.
            ["told"] => {
                while self.group.poll() > 0 {}
                while let Some(event) = self.group.event() {
                    self.is_told(&event)?;
                }
                let seen = self.seen.borrow();
                let ends = (0..self.group.size()).flat_map(|rank| {
                    std::iter::repeat_n(rank.to_string(), seen.ended[rank] as usize)
                });
                let parted = seen.parted.iter().map(|[one, other]| format!("{one}/{other}"));
                Ok(ends.chain(parted).collect())
            }
            _ => Err(format!("unknown command {words:?}").into()),
        }
    }

    fn collective(&self, operation: &str, root: Rank) -> Result<(), Box<dyn std::error::Error>> {
        const ITEMS: usize = 3000;
        let (group, own, size) = (&self.group, self.group.rank(), self.group.size());
        let of = |rank: Rank| vec![rank as u64 + 7; ITEMS + rank];
        let all: Vec<_> = (0..size).map(of).collect();
        let short = vec![own as u64; ITEMS];
        let sum = vec![(0..size as u64).sum::<u64>(); ITEMS];
        let is_right = match operation {
            "broadcast" => {
                let mut items = if own == root { of(root) } else { Vec::new() };
                group.broadcast(root, &mut items)?;
                items == all[root]
            }
            "gather" => group.gather(root, &of(own))? == (own == root).then_some(all),
            "all_gather" => group.all_gather(&of(own))? == all,
            "reduce_to" => {
                group.reduce_to(root, &short, |a, b| a + b)? == (own == root).then_some(sum)
            }
            "all_reduce" => {
                let mut items = short;
                group.all_reduce(&mut items, |a, b| a + b)?;
                items == sum
            }
            "all_to_all" => {
                let sent: Vec<_> = (0..size).map(|to| vec![own as u64; ITEMS + to]).collect();
                let expected: Vec<_> =
                    (0..size).map(|from| vec![from as u64; ITEMS + own]).collect();
                group.all_to_all(&sent)? == expected
            }
            _ => return Err(format!("unknown operation {operation:?}").into()),
        };
        if is_right { Ok(()) } else { Err(format!("{operation} at {root}: wrong").into()) }
    }

    fn send(&mut self, to: Rank) -> Result<(), SendError> {
        self.give(to, |group, kind, data| group.send(to, kind, data))
    }

    /// Sends the next message to a member by `way`.
    fn give(
        &mut self,
        to: Rank,
        way: impl FnOnce(&Group, Kind<Data>, &Data) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let number = self.next[to];
        let data = [number, number.wrapping_mul(FACTOR), self.group.rank() as u64, to as u64];
        way(&self.group, self.data, &data)?;
        self.next[to] += 1;
        Ok(())
    }

    /// Each round sends every other member several times what a queue holds. The members end after
    /// the same round.
    fn work(&mut self, file: &Path) -> Outcome {
        const BURST: usize = 3000;
        let (own, size) = (self.group.rank(), self.group.size());
        for round in 1.. {
            for _ in 0..BURST {
                for to in (0..size).filter(|&to| to != own) {
                    self.send(to)?;
                }
            }
            self.group.barrier()?;
            let sum = self.group.reduce(round + own as u64, |a, b| a + b)?;
            if sum != (0..size as u64).map(|rank| round + rank).sum::<u64>() {
                return Err(format!("round {round}: the numbers of all are {sum}").into());
            }
            let is_last = self.group.reduce(u64::from(own == 0 && file.exists()), u64::max)?;
            if is_last == 1 {
                let all = round * BURST as u64;
                self.until(|seen| (0..size).all(|from| from == own || seen.taken[from] == all))?;
                return show([round]);
            }
        }
        Err("all numbers of rounds are used up".into())
    }

    fn until(&self, met: impl Fn(&Seen) -> bool) -> Result<(), Box<dyn std::error::Error>> {
        let start = Instant::now();
        loop {
            if let Some(wrong) = &self.seen.borrow().wrong {
                return Err(wrong.clone().into());
            }
            if met(&self.seen.borrow()) {
                return Ok(());
            }
            if self.group.poll() == 0 {
                match self.group.event() {
                    Some(event) => self.is_told(&event)?,
                    None => drop(self.group.wait(Some(Duration::from_secs(1)))),
                }
            }
            if start.elapsed() > self.patience {
                let Seen { taken, ended, .. } = &*self.seen.borrow();
                return Err(format!(
                    "nothing arrives: in {:?} taken {taken:?}, ended {ended:?}",
                    self.patience
                )
                .into());
            }
        }
    }

    fn is_told(&self, event: &Event) -> Result<(), Box<dyn std::error::Error>> {
        let seen = &mut *self.seen.borrow_mut();
        match *event {
            Event::Ended { rank } => {
                seen.ended[rank] += 1;
                if seen.ended[rank] > 1 {
                    return Err(format!("the end of {rank} is reported again").into());
                }
            }
            Event::Parted { one, other } => seen.parted.push([one, other]),
            _ => return Err(format!("{event:?}").into()),
        }
        Ok(())
    }

    fn take(&self, from: Rank, count: u64) -> Outcome {
        self.until(|seen| seen.taken[from] >= count || seen.ended[from] > 0)?;
        show([self.seen.borrow().taken[from]])
    }

    fn life(&mut self, count: u64) -> Outcome {
        let gone = self.tell(count)?;
        std::thread::sleep(Duration::from_millis(20));
        self.listen(count, &gone)
    }

    /// Few messages of each pair are under way at once, so that a run of any length needs no more
    /// memory than a short one.
    fn exchange(&mut self, count: u64) -> Outcome {
        const BURST: u64 = 500;
        let others: Vec<Rank> = self.others().collect();
        let mut left = count;
        while left > 0 {
            let burst = BURST.min(left);
            left -= burst;
            for _ in 0..burst {
                others.iter().try_for_each(|&to| self.send(to))?;
            }
            // Each other member has sent as many here as this one has sent there, less what it
            // sends now.
            let under_way = if left > 0 { BURST } else { 0 };
            self.until(|seen| {
                others.iter().all(|&from| seen.taken[from] + under_way >= self.next[from])
            })?;
        }
        self.group.barrier()?;
        while self.group.poll() > 0 {}
        Ok(self.seen.borrow().taken.iter().map(u64::to_string).collect())
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let own = self.group.rank();
        (0..self.group.size()).filter(move |&rank| rank != own)
    }

    /// Sends `count` messages to each other member. Returns the members that were found to be gone.
    fn tell(&mut self, count: u64) -> Result<Vec<Rank>, Box<dyn std::error::Error>> {
        let mut gone = Vec::new();
        for _ in 0..count {
            for to in self.others() {
                match if gone.contains(&to) { Ok(()) } else { self.send(to) } {
                    Ok(()) => {}
                    // The first sign of the end of a member, or of the process that opens its
                    // endpoint.
                    Err(SendError::Ended { .. } | SendError::Unreachable { .. }) => gone.push(to),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(gone)
    }

    /// Takes `count` messages from each other member that is not gone.
    fn listen(&mut self, count: u64, gone: &[Rank]) -> Outcome {
        let others: Vec<Rank> = self.others().collect();
        self.until(|seen| {
            others.iter().all(|&from| {
                seen.taken[from] >= count || seen.ended[from] > 0 || gone.contains(&from)
            })
        })?;
        Ok(self.seen.borrow().taken.iter().map(u64::to_string).collect())
    }

    fn ping(&mut self, to: Rank, count: u64) -> Outcome {
        let (start, before) = (Instant::now(), self.seen.borrow().taken[to]);
        for number in 1..=count {
            self.send(to)?;
            self.until(|seen| seen.taken[to] >= before + number)?;
        }
        show([start.elapsed().as_nanos() as u64 / count])
    }

    fn pong(&mut self, to: Rank, count: u64) -> Outcome {
        let before = self.seen.borrow().taken[to];
        for number in 1..=count {
            self.until(|seen| seen.taken[to] >= before + number)?;
            self.send(to)?;
        }
        done()
    }
}
