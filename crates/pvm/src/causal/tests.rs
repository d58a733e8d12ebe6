use super::*;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Limit of the tests, in place of [`FLOOD`].
const FEW: usize = 8;

/// Number of processes of the random test.
const SIZE: usize = 4;

/// How many messages each process has sent to each other one, as far as a process knows: by sender,
/// then by receiver.
type Known = Vec<Vec<u64>>;

/// What a message of the model carries: what its sender knew.
type Carried = Known;

/// The queues of one receiver, by sender.
struct ModelQueues {
    all: RefCell<Vec<VecDeque<StampedMessage<Carried>>>>,
    turn: RefCell<usize>,
    /// The sender whose messages stay, because there is no memory for them.
    left: RefCell<Option<Rank>>,
}

impl ModelQueues {
    fn new(size: usize) -> Self {
        let all = (0..size).map(|_| VecDeque::new()).collect();
        Self { all: RefCell::new(all), turn: RefCell::new(0), left: RefCell::new(None) }
    }

    fn send(&self, from: Rank, stamp: u64, item: Carried) {
        self.all.borrow_mut()[from].push_back(StampedMessage { stamp, from, item });
    }

    fn is_empty(&self) -> bool {
        self.all.borrow().iter().all(VecDeque::is_empty)
    }
}

impl Queues<Carried> for ModelQueues {
    fn next(&self) -> Option<StampedMessage<Carried>> {
        let size = self.all.borrow().len();
        (0..size).find_map(|_| {
            let turn = (*self.turn.borrow() + 1) % size;
            *self.turn.borrow_mut() = turn;
            self.next_of(turn)
        })
    }

    fn next_of(&self, from: Rank) -> Option<StampedMessage<Carried>> {
        let stays = *self.left.borrow() == Some(from);
        if stays { None } else { self.all.borrow_mut()[from].pop_front() }
    }

    fn waiting(&self) -> Vec<Rank> {
        let all = self.all.borrow();
        (0..all.len()).filter(|rank| !all[*rank].is_empty()).collect()
    }

    fn is_short(&self) -> bool {
        self.left.borrow().is_some_and(|rank| !self.all.borrow()[rank].is_empty())
    }
}

/// A process of the model.
struct ModelProcess {
    arrivals: CausalInbox<Carried>,
    queues: ModelQueues,
    time: u64,
    knows: Known,
    /// Number of messages of each sender that were handled.
    handled: Vec<u64>,
}

struct Model(Vec<ModelProcess>);

impl Model {
    fn new(size: usize) -> Self {
        let process = |_| ModelProcess {
            arrivals: CausalInbox { flood: FEW, ..CausalInbox::new(size) },
            queues: ModelQueues::new(size),
            time: 0,
            knows: vec![vec![0; size]; size],
            handled: vec![0; size],
        };
        Self((0..size).map(process).collect())
    }

    fn send(&mut self, from: Rank, to: Rank) {
        let sender = &mut self.0[from];
        sender.time += 1;
        sender.knows[from][to] += 1;
        let (stamp, item) = (sender.time, sender.knows.clone());
        self.0[to].queues.send(from, stamp, item);
    }

    /// A process takes messages, and handles those that it may. Returns their number.
    fn hear(&mut self, rank: Rank) -> usize {
        let process = &mut self.0[rank];
        let before = process.arrivals.kept.len();
        let all = process.arrivals.hear(&process.queues);
        let count = all.len();
        let kept = process.arrivals.kept.len();
        assert!(kept <= before.max(FEW) + SIZE, "process {rank} keeps {kept} of {before}");
        for arrival in all {
            process.handle(rank, arrival);
        }
        count
    }

    /// A process is sent the message that a process behind the others gets.
    fn help(&mut self, rank: Rank) -> Option<Rank> {
        let time = self.0[rank].time;
        let behind = self.0[rank].arrivals.behind(time)?;
        self.send(rank, behind);
        Some(behind)
    }
}

impl ModelProcess {
    fn handle(&mut self, own: Rank, StampedMessage { stamp, from, item }: StampedMessage<Carried>) {
        self.time = self.time.max(stamp);
        for (rank, handled) in self.handled.iter().enumerate() {
            let own_too = u64::from(rank == from);
            let wanted = item[rank][own] - own_too;
            assert!(*handled >= wanted, "a message of {from} comes before its cause from {rank}");
        }
        self.handled[from] += 1;
        assert_eq!(self.handled[from], item[from][own], "the order of {from}'s messages");
        for (known, carried) in self.knows.iter_mut().flatten().zip(item.iter().flatten()) {
            *known = (*known).max(*carried);
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % most
    }
}

#[test]
fn no_message_is_handled_before_its_cause_whoever_sends_how_much() {
    for seed in 0..60 {
        let (mut random, mut model) = (Random(seed), Model::new(SIZE));
        // Some processes hear rarely, and one sends more than the others.
        let lazy = [0; 4].map(|_| 1 + random.below(12));
        let busy = random.below(4);
        for _ in 0..2000 {
            let rank = random.below(4);
            match random.below(8) {
                0..4 => {
                    let from = if random.below(3) == 0 { busy } else { rank };
                    let to = (from + 1 + random.below(3)) % 4;
                    (0..1 + random.below(6)).for_each(|_| model.send(from, to));
                }
                4 => {
                    let process = &mut model.0[rank];
                    process.arrivals.take_some(&process.queues);
                }
                _ if random.below(lazy[rank]) == 0 => {
                    model.hear(rank);
                    model.help(rank);
                }
                _ => {}
            }
        }
        for rank in 0..4 {
            // If one call handles nothing, it takes enough for the next one.
            while !model.0[rank].queues.is_empty() || !model.0[rank].arrivals.is_empty() {
                let count = model.hear(rank) + model.hear(rank);
                assert!(count > 0, "seed {seed}: process {rank} stands still");
            }
            let sent = (0..4).map(|from| model.0[from].knows[from][rank]).collect::<Vec<_>>();
            assert_eq!(model.0[rank].handled, sent, "seed {seed}");
        }
    }
}

#[test]
fn an_effect_waits_for_a_cause_behind_many_messages() {
    let mut model = Model::new(3);
    // The last message of process 1 causes the one of process 2.
    (0..100 * FEW).for_each(|_| model.send(1, 0));
    model.send(1, 2);
    model.hear(2);
    model.send(2, 0);
    while model.0[0].handled[1] < 100 * FEW as u64 {
        assert_eq!(model.0[0].handled[2], 0);
        assert!(model.hear(0) + model.hear(0) > 0);
    }
    model.hear(0);
    assert_eq!(model.0[0].handled[2], 1);
}

#[test]
fn a_sender_of_which_nothing_was_taken_holds_back_all_others() {
    let mut model = Model::new(3);
    model.send(1, 0);
    model.0[0].queues.turn.replace(1);
    (0..=FEW).for_each(|_| model.send(2, 0));
    // The first that is taken is of process 2, and so is each of the others.
    let process = &mut model.0[0];
    process.arrivals.flood = 1;
    assert_eq!(process.arrivals.hear(&process.queues).len(), 0);
    let from = process.arrivals.hear(&process.queues).into_iter().map(|one| one.from);
    // The two have one stamp, so neither is the cause of the other.
    assert!(from.eq([2, 1]), "the message that was kept, and the holder's");
}

#[test]
fn a_sender_without_end_that_hears_of_nobody_holds_back_the_others_only_for_a_time() {
    let mut model = Model::new(3);
    model.0[2].time = 1 << 40;
    model.send(2, 0);
    let mut helped = 0;
    for _ in 0..20 {
        (0..2 * FEW).for_each(|_| model.send(1, 0));
        model.hear(0);
        // The clock of a process is never behind a message that it has taken.
        model.0[0].time = 1 << 40 | 1;
        helped += usize::from(model.help(0) == Some(1));
        model.hear(1);
    }
    assert_eq!((model.0[0].handled[2], helped), (1, 1));
}

#[test]
fn messages_taken_while_a_send_waits_are_handled_later_and_in_order() {
    let mut model = Model::new(2);
    (0..5 * FEW).for_each(|_| model.send(1, 0));
    let process = &mut model.0[0];
    (0..3).for_each(|_| process.arrivals.take_some(&process.queues));
    assert_eq!(process.arrivals.kept.len(), 3 * FEW);
    assert!(process.arrivals.has_kept_of(1) && !process.arrivals.has_kept_of(0));
    while model.hear(0) + model.hear(0) > 0 {}
    assert_eq!(model.0[0].handled[1], 5 * FEW as u64);
    assert!(model.0[0].arrivals.is_empty());
}

#[test]
fn what_a_message_that_stays_may_have_caused_is_kept() {
    let mut model = Model::new(3);
    model.send(0, 2);
    assert_eq!(model.hear(2), 1);
    *model.0[2].queues.left.borrow_mut() = Some(0);
    model.send(0, 2);
    model.send(0, 1);
    assert_eq!(model.hear(1), 1);
    model.send(1, 2);
    // The model fails if an effect is handled before its cause.
    assert_eq!((model.hear(2), model.hear(2)), (0, 0));
    *model.0[2].queues.left.borrow_mut() = None;
    assert_eq!(model.hear(2), 2);
    // So with more messages than are taken at once.
    *model.0[2].queues.left.borrow_mut() = Some(0);
    model.send(0, 2);
    model.send(0, 1);
    assert_eq!(model.hear(1), 1);
    (0..3 * FEW).for_each(|_| model.send(1, 2));
    assert_eq!((model.hear(2), model.hear(2)), (0, 0));
    *model.0[2].queues.left.borrow_mut() = None;
    while model.hear(2) > 0 {}
    assert!(model.0[2].arrivals.is_empty() && model.0[2].queues.is_empty());
}

/// Between hosts an effect may come before its cause.
#[test]
fn what_comes_before_its_cause_waits_for_nothing_and_each_sender_keeps_its_order() {
    let queues = ModelQueues::new(3);
    let mut arrivals = CausalInbox::new(3);
    let none = || vec![Vec::new()];
    queues.send(2, 7, none());
    let stamps = |all: Vec<StampedMessage<Carried>>| {
        all.into_iter().map(|one| (one.from, one.stamp)).collect::<Vec<_>>()
    };
    assert_eq!(stamps(arrivals.hear(&queues)), [(2, 7)]);
    // The cause, and others of the same senders.
    for (from, stamp) in [(1, 3), (2, 8), (1, 4), (2, 9), (1, 12)] {
        queues.send(from, stamp, none());
    }
    let later = stamps(arrivals.hear(&queues));
    assert_eq!(later, [(1, 3), (1, 4), (2, 8), (2, 9), (1, 12)]);
    assert!(arrivals.is_empty() && arrivals.behind(20).is_none());
}
