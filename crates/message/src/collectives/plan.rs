//! Which member sends what to whom in a collective operation. No input and output.
//!
//! An operation moves *blocks*, each with a key of two ranks. A member has blocks of its own at
//! first; the steps of its script add the blocks of others, and send some on. All members derive
//! the same scripts, so a receiver knows the keys of each message before it comes. At most one
//! message goes from one member to another in an operation.
//!
//! | operation | key of a block | way |
//! |---|---|---|
//! | broadcast | root, root | down the root's tree |
//! | gather | its member, twice | up the root's tree |
//! | reduce | the first and the last member whose values are combined in it | up the root's tree |
//! | all-gather | as gather | up the tree of member 0, and down |
//! | all-reduce | as reduce; all members for the result | up the tree of member 0, and down |
//! | all-to-all | sender, receiver | directly, or by the leaders of both hosts |
//!
//! # Crossings
//! The trees cross once to each host but the root's ([`HostMap`]); all-gather and all-reduce cross
//! once more on the way back. In an all-to-all one message crosses for each ordered pair of hosts:
//! each member gives its leader what goes to other hosts, the leaders exchange that, and each
//! leader gives its members what has arrived. The blocks within a host go directly, in the same
//! messages where the leader takes part.
//!
//! # The order of values
//! A block of a reduction stands for members whose ranks follow each other. Members of one host
//! need not: then a message carries several blocks, and they are combined where the gaps close. So
//! values are always combined in the order of ranks.

use crate::Rank;
use crate::collectives::call::{Collective, CollectiveCall};
use crate::collectives::hosts::{HostMap, TreePlace};

/// Identifies a block in an operation; see the module.
pub(crate) type BlockKey = (Rank, Rank);

/// A step of a member in an operation. The keys are in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlanStep {
    Receive { from: Rank, keys: Vec<BlockKey> },
    Send { to: Rank, keys: Vec<BlockKey> },
}

/// Returns the steps of a member, in their order.
pub(crate) fn script(call: CollectiveCall, hosts: &HostMap, rank: Rank) -> Vec<PlanStep> {
    let all = hosts.size().saturating_sub(1);
    match call.collective {
        Collective::Broadcast => {
            down(&hosts.place(call.root, rank), |_| vec![(call.root, call.root)])
        }
        Collective::Gather => up(call.root, hosts, rank, |ranks| each(&ranks)),
        Collective::Reduce => up(call.root, hosts, rank, |ranks| runs(&ranks)),
        Collective::AllGather => {
            let mut steps = up(0, hosts, rank, |ranks| each(&ranks));
            let others = |member| {
                let known = hosts.subtree(0, member);
                let is_new = |rank: &Rank| known.binary_search(rank).is_err();
                each(&(0..hosts.size()).filter(is_new).collect::<Vec<_>>())
            };
            let place = hosts.place(0, rank);
            steps.extend(down(&place, |child| others(child.unwrap_or(rank))));
            steps
        }
        Collective::AllReduce => {
            let mut steps = up(0, hosts, rank, |ranks| runs(&ranks));
            steps.extend(down(&hosts.place(0, rank), |_| vec![(0, all)]));
            steps
        }
        Collective::AllToAll => exchange(hosts, rank),
    }
}

/// From the children, and to the parent. `keys` names the blocks of a subtree's members.
fn up(
    root: Rank,
    hosts: &HostMap,
    rank: Rank,
    keys: impl Fn(Vec<Rank>) -> Vec<BlockKey>,
) -> Vec<PlanStep> {
    let place = hosts.place(root, rank);
    let of = |member| keys(hosts.subtree(root, member));
    let mut steps: Vec<_> =
        place.children().map(|from| PlanStep::Receive { from, keys: of(from) }).collect();
    steps.extend(place.parent.map(|to| PlanStep::Send { to, keys: of(rank) }));
    steps
}

/// From the parent, and to the children: those with the longest way first. `keys` names the blocks
/// for a child; for this member without one.
fn down(place: &TreePlace, keys: impl Fn(Option<Rank>) -> Vec<BlockKey>) -> Vec<PlanStep> {
    let first = place.parent.map(|from| PlanStep::Receive { from, keys: keys(None) });
    let rest = place.children().rev().map(|to| PlanStep::Send { to, keys: keys(Some(to)) });
    first.into_iter().chain(rest).collect()
}

fn each(ranks: &[Rank]) -> Vec<BlockKey> {
    ranks.iter().map(|rank| (*rank, *rank)).collect()
}

/// The runs of ranks that follow each other.
fn runs(ranks: &[Rank]) -> Vec<BlockKey> {
    let mut runs: Vec<BlockKey> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    runs
}

/// The steps of an all-to-all.
fn exchange(hosts: &HostMap, rank: Rank) -> Vec<PlanStep> {
    let leader = hosts.leader(rank);
    let leads = leader == rank && hosts.count() > 1;
    let near = after(hosts.neighbours(rank), rank);
    let far = match leads {
        true => after(&hosts.leaders().collect::<Vec<_>>(), rank),
        false => Vec::new(),
    };
    let send = |to: &Rank| PlanStep::Send { to: *to, keys: between(hosts, rank, *to) };
    let receive =
        |from: &Rank| PlanStep::Receive { from: *from, keys: between(hosts, *from, rank) };
    if leads {
        // What goes to other hosts has to be here first.
        let steps = near.iter().map(receive).chain(far.iter().map(send));
        return steps.chain(far.iter().map(receive)).chain(near.iter().map(send)).collect();
    }
    // The leader waits for this member, and this one for the leader.
    let waits = |member: &Rank| hosts.count() > 1 && *member == leader;
    let (first, others): (Vec<Rank>, Vec<Rank>) = near.into_iter().partition(waits);
    let steps = first.iter().chain(&others).map(send);
    steps.chain(others.iter().chain(&first).map(receive)).collect()
}

/// The members of a list after this one, in the ring of the list.
fn after(list: &[Rank], rank: Rank) -> Vec<Rank> {
    let at = list.iter().position(|other| *other == rank).unwrap_or_default();
    (1..list.len()).map(|step| list[(at + step) % list.len()]).collect()
}

/// The blocks that one member sends another in an all-to-all.
fn between(hosts: &HostMap, from: Rank, to: Rank) -> Vec<BlockKey> {
    let is_far = |rank: &Rank| hosts.host(*rank) != hosts.host(from);
    let far = || (0..hosts.size()).filter(is_far);
    let own = [from];
    let (origins, targets): (Vec<Rank>, Vec<Rank>) = if is_far(&to) {
        (hosts.neighbours(from).to_vec(), hosts.neighbours(to).to_vec())
    } else if hosts.leader(from) == to {
        (own.to_vec(), far().chain([to]).collect())
    } else if hosts.leader(from) == from {
        (far().chain(own).collect(), vec![to])
    } else {
        (own.to_vec(), vec![to])
    };
    let mut keys: Vec<_> =
        origins.iter().flat_map(|origin| targets.iter().map(|target| (*origin, *target))).collect();
    keys.sort_unstable();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Number;
    use crate::collectives::hosts::tests::Rolls;
    use std::collections::{BTreeMap, BTreeSet};

    /// The blocks of a member at first.
    fn own(call: CollectiveCall, size: usize, rank: Rank) -> Vec<BlockKey> {
        match call.collective {
            Collective::Broadcast if rank != call.root => vec![],
            Collective::AllToAll => (0..size).map(|to| (rank, to)).collect(),
            _ => vec![(rank, rank)],
        }
    }

    /// The blocks that a member has to have in the end.
    fn wanted(call: CollectiveCall, size: usize, rank: Rank) -> Vec<BlockKey> {
        let all = size - 1;
        match call.collective {
            Collective::Broadcast => vec![(call.root, call.root)],
            Collective::Gather if rank == call.root => (0..size).map(|of| (of, of)).collect(),
            Collective::Reduce if rank == call.root => vec![(0, all)],
            Collective::Gather | Collective::Reduce => vec![],
            Collective::AllGather => (0..size).map(|of| (of, of)).collect(),
            Collective::AllReduce => vec![(0, all)],
            Collective::AllToAll => (0..size).map(|of| (of, rank)).collect(),
        }
    }

    /// Joins blocks of a reduction that follow each other.
    fn close_gaps(blocks: &mut BTreeSet<BlockKey>, last: Rank) {
        if blocks.contains(&(0, last)) {
            return;
        }
        let mut ranks: Vec<_> = blocks.iter().flat_map(|(from, to)| *from..=*to).collect();
        let count = ranks.len();
        ranks.sort_unstable();
        ranks.dedup();
        assert_eq!(ranks.len(), count, "no value is combined twice");
        *blocks = runs(&ranks).into_iter().collect();
    }

    /// Plays the scripts of all members. Returns the pairs of which one sent the other a message.
    fn play(call: CollectiveCall, hosts: &HostMap) -> BTreeSet<(Rank, Rank)> {
        let size = hosts.size();
        let reduces = matches!(call.collective, Collective::Reduce | Collective::AllReduce);
        let mut blocks: Vec<BTreeSet<_>> =
            (0..size).map(|rank| own(call, size, rank).into_iter().collect()).collect();
        let mut left: Vec<_> =
            (0..size).map(|rank| script(call, hosts, rank).into_iter().peekable()).collect();
        let (mut messages, mut pairs) = (BTreeMap::new(), BTreeSet::new());
        loop {
            let mut moved = false;
            for rank in 0..size {
                while let Some(step) = left[rank].peek() {
                    match step {
                        PlanStep::Send { to, keys } => {
                            assert!(keys.is_sorted() && keys.iter().all_unique_in(&blocks[rank]));
                            assert!(pairs.insert((rank, *to)), "one message for each pair");
                            messages.insert((rank, *to), keys.clone());
                        }
                        PlanStep::Receive { from, keys } => {
                            let Some(sent) = messages.remove(&(*from, rank)) else { break };
                            assert_eq!(sent, *keys, "{call} from {from} to {rank}: {hosts:?}");
                            blocks[rank].extend(sent);
                            if reduces {
                                close_gaps(&mut blocks[rank], size - 1);
                            }
                        }
                    }
                    left[rank].next();
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        assert!(left.iter_mut().all(|steps| steps.peek().is_none()) && messages.is_empty());
        for (rank, blocks) in blocks.iter().enumerate() {
            assert!(wanted(call, size, rank).iter().all(|key| blocks.contains(key)), "{call}");
        }
        pairs
    }

    trait AllIn {
        fn all_unique_in(self, known: &BTreeSet<BlockKey>) -> bool;
    }

    impl<'a, I: Iterator<Item = &'a BlockKey>> AllIn for I {
        fn all_unique_in(self, known: &BTreeSet<BlockKey>) -> bool {
            let mut seen = BTreeSet::new();
            self.into_iter().all(|key| known.contains(key) && seen.insert(*key))
        }
    }

    fn crossings(pairs: &BTreeSet<(Rank, Rank)>, hosts: &HostMap) -> usize {
        pairs.iter().filter(|(from, to)| hosts.host(*from) != hosts.host(*to)).count()
    }

    #[test]
    fn each_block_arrives_with_as_few_crossings_as_possible() {
        let mut rolls = Rolls(2);
        for _ in 0..600 {
            let size = 1 + rolls.roll(24);
            let hosts = HostMap::new(&rolls.marks(size));
            let others = hosts.count() - 1;
            for (collective, most) in [
                (Collective::Broadcast, others),
                (Collective::Gather, others),
                (Collective::Reduce, others),
                (Collective::AllGather, 2 * others),
                (Collective::AllReduce, 2 * others),
                (Collective::AllToAll, hosts.count() * others),
            ] {
                let rooted = !matches!(
                    collective,
                    Collective::AllGather | Collective::AllReduce | Collective::AllToAll
                );
                let root = if rooted { rolls.roll(size) } else { 0 };
                let call = CollectiveCall { collective, item: Number::U64, root };
                assert_eq!(crossings(&play(call, &hosts), &hosts), most, "{call}: {hosts:?}");
            }
        }
    }

    #[test]
    fn an_all_to_all_goes_directly_where_no_members_share_a_host_or_all_do() {
        for marks in [vec![0; 7], (0..7).collect()] {
            let hosts = HostMap::new(&marks);
            let call =
                CollectiveCall { collective: Collective::AllToAll, item: Number::F32, root: 0 };
            assert_eq!(play(call, &hosts).len(), 7 * 6);
            let is_direct = |step: &PlanStep| match step {
                PlanStep::Send { keys, .. } | PlanStep::Receive { keys, .. } => keys.len() == 1,
            };
            assert!((0..7).all(|rank| script(call, &hosts, rank).iter().all(is_direct)));
        }
    }

    #[test]
    fn values_that_follow_each_other_are_one_block() {
        // Two hosts with the ranks of a block each: one block crosses.
        let hosts = HostMap::new(&[0, 0, 0, 5, 5, 5]);
        let call = CollectiveCall { collective: Collective::Reduce, item: Number::U64, root: 0 };
        let last = script(call, &hosts, 3).pop();
        assert_eq!(last, Some(PlanStep::Send { to: 0, keys: vec![(3, 5)] }));
        // Ranks by turns: nothing can be combined before it crosses.
        let hosts = HostMap::new(&[0, 5, 0, 5]);
        let last = script(call, &hosts, 1).pop();
        assert_eq!(last, Some(PlanStep::Send { to: 0, keys: vec![(1, 1), (3, 3)] }));
    }
}
