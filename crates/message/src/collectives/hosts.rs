//! Which members share a host, and the tree that crosses between hosts as little as possible.
//!
//! Within a host a message is some stores; between hosts it is a packet and its round trip. So a
//! broadcast goes along a binomial tree of hosts, and on each host along a binomial tree of its
//! members. One member of each host, its leader, has the host's place in the tree of hosts. The
//! root leads its own host, and the lowest rank leads any other one. A tree of `h` hosts has `h -
//! 1` messages between hosts, one for each host but the root's.
//!
//! Source: the trees are binomial, as in MPICH (Thakur, Rabenseifner and Gropp, 2005); the two
//! levels are those of MagPIe (Kielmann and others, 1999).

use crate::Rank;

/// The hosts of a group's members. Hosts are numbered by the lowest rank on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostMap {
    /// By rank: the number of the member's host.
    of: Vec<usize>,
    /// By host: its members, the lowest rank first.
    members: Vec<Vec<Rank>>,
}

/// A member's place in a group on several hosts, where member 0 is the root.
#[derive(Clone, Debug)]
pub(crate) struct Crossing {
    pub(crate) place: TreePlace,
    /// The leaders of all hosts, by host.
    pub(crate) leaders: Vec<Rank>,
    /// This member's host.
    pub(crate) host: usize,
    /// Set if this member is the leader of its host.
    pub(crate) leads: bool,
    /// Set if the ranks on each host follow each other.
    pub(crate) in_blocks: bool,
}

impl Crossing {
    /// A member's place; `None` if all members share a host.
    pub(crate) fn of(hosts: &HostMap, rank: Rank) -> Option<Self> {
        (hosts.count() > 1).then(|| Self {
            place: hosts.place(0, rank),
            leaders: hosts.leaders().collect(),
            host: hosts.of[rank],
            leads: hosts.leader(rank) == rank,
            in_blocks: hosts.are_in_blocks(),
        })
    }
}

/// A member's place in a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreePlace {
    /// `None` for the root.
    pub(crate) parent: Option<Rank>,
    /// Members on the same host, those with the smallest subtrees first.
    pub(crate) near: Vec<Rank>,
    /// Leaders of other hosts, those with the smallest subtrees first.
    pub(crate) far: Vec<Rank>,
}

impl TreePlace {
    /// The members below this one.
    pub(crate) fn children(&self) -> impl DoubleEndedIterator<Item = Rank> {
        self.near.iter().chain(&self.far).copied()
    }
}

impl HostMap {
    /// Creates the map of members whose hosts have these marks, by rank. Members with the same mark
    /// share a host.
    pub(crate) fn new(marks: &[u16]) -> Self {
        let mut seen: Vec<u16> = Vec::new();
        let mut members: Vec<Vec<Rank>> = Vec::new();
        let mut of = Vec::with_capacity(marks.len());
        for (rank, mark) in marks.iter().enumerate() {
            let host = seen.iter().position(|other| other == mark).unwrap_or(seen.len());
            if host == seen.len() {
                seen.push(*mark);
                members.push(Vec::new());
            }
            members[host].push(rank);
            of.push(host);
        }
        Self { of, members }
    }

    /// Number of members.
    pub(crate) fn size(&self) -> usize {
        self.of.len()
    }

    /// Number of hosts.
    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    /// The number of a member's host; `None` if there is no such member.
    pub(crate) fn host(&self, rank: Rank) -> Option<usize> {
        self.of.get(rank).copied()
    }

    /// The members that share a member's host, itself included.
    pub(crate) fn neighbours(&self, rank: Rank) -> &[Rank] {
        &self.members[self.of[rank]]
    }

    /// The members that lead their hosts where no root does, by host.
    pub(crate) fn leaders(&self) -> impl Iterator<Item = Rank> {
        self.members.iter().map(|members| members[0])
    }

    /// The member that leads a member's host where no root does.
    pub(crate) fn leader(&self, rank: Rank) -> Rank {
        self.neighbours(rank)[0]
    }

    /// Returns `true` if the ranks on each host follow each other.
    pub(crate) fn are_in_blocks(&self) -> bool {
        self.members.iter().all(|members| members[members.len() - 1] - members[0] < members.len())
    }

    /// A member's place in the tree of a root.
    pub(crate) fn place(&self, root: Rank, rank: Rank) -> TreePlace {
        let near = self.near(root, rank);
        let near_member = |at: usize| near.members[(near.first + at) % near.members.len()];
        let mut place = TreePlace {
            parent: parent(near.own).map(near_member),
            near: children(near.own, near.members.len()).map(near_member).collect(),
            far: Vec::new(),
        };
        if near.own == 0 {
            let far = self.far(root, rank);
            let leader = |at: usize| self.leader_under(root, (self.of[root] + at) % self.count());
            place.parent = parent(far).map(leader);
            place.far = children(far, self.count()).map(leader).collect();
        }
        place
    }

    /// The members of the tree at and below a member, in the order of ranks.
    pub(crate) fn subtree(&self, root: Rank, rank: Rank) -> Vec<Rank> {
        let near = self.near(root, rank);
        let count = near.members.len();
        let mut ranks: Vec<Rank> =
            below(near.own, count).map(|at| near.members[(near.first + at) % count]).collect();
        if near.own == 0 {
            let hosts = below(self.far(root, rank), self.count()).skip(1);
            let others = hosts.map(|at| (self.of[root] + at) % self.count());
            ranks.extend(others.flat_map(|host| &self.members[host]));
        }
        ranks.sort_unstable();
        ranks
    }

    /// The member that leads a host in the tree of a root.
    fn leader_under(&self, root: Rank, host: usize) -> Rank {
        if host == self.of[root] { root } else { self.members[host][0] }
    }

    /// A member's place among those of its host, in the tree of a root.
    fn near(&self, root: Rank, rank: Rank) -> NearPlace<'_> {
        let members = self.neighbours(rank);
        let at = |rank: Rank| members.binary_search(&rank).unwrap_or_default();
        let first = at(self.leader_under(root, self.of[rank]));
        let own = (at(rank) + members.len() - first) % members.len();
        NearPlace { members, first, own }
    }

    /// The distance of a member's host from the root's in the ring of hosts.
    fn far(&self, root: Rank, rank: Rank) -> usize {
        (self.of[rank] + self.count() - self.of[root]) % self.count()
    }
}

/// A member's place among those of its host.
struct NearPlace<'a> {
    members: &'a [Rank],
    /// Index of the leader.
    first: usize,
    /// Distance from the leader in the ring of these members.
    own: usize,
}

/// The parent of place `at` in the binomial tree of place 0.
pub(crate) fn parent(at: usize) -> Option<usize> {
    (at > 0).then(|| at & (at - 1))
}

/// The children of place `at` among `count` places, the nearest first.
pub(crate) fn children(at: usize, count: usize) -> impl Iterator<Item = usize> {
    let steps = (0..usize::BITS).map(|bit| 1_usize << bit);
    steps.take_while(move |step| at & step == 0 && at + step < count).map(move |step| at + step)
}

/// The places at and below `at`, which follow each other.
fn below(at: usize, count: usize) -> std::ops::Range<usize> {
    let width = if at == 0 { count } else { 1 << at.trailing_zeros() };
    at..count.min(at + width)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Numbers that look random, from 0 to `below - 1`.
    pub(crate) struct Rolls(pub(crate) u64);

    impl Rolls {
        pub(crate) fn roll(&mut self, below: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % below
        }

        /// The marks of the hosts of a group.
        pub(crate) fn marks(&mut self, size: usize) -> Vec<u16> {
            let hosts = 1 + self.roll(size.min(9));
            let in_blocks = self.roll(2) == 0;
            (0..size)
                .map(|rank| match in_blocks {
                    true => (rank * hosts / size) as u16,
                    false => 7 * self.roll(hosts) as u16,
                })
                .collect()
        }
    }

    /// The number of halvings of `count` until one is left, rounded up.
    fn log2(count: usize) -> u32 {
        count.next_power_of_two().trailing_zeros()
    }

    #[test]
    fn hosts_are_numbered_by_the_lowest_rank() {
        let hosts = HostMap::new(&[9, 9, 4, 9, 0, 4]);
        let of: Vec<_> = (0..7).map(|rank| hosts.host(rank)).collect();
        assert_eq!(of, [Some(0), Some(0), Some(1), Some(0), Some(2), Some(1), None]);
        assert_eq!((hosts.neighbours(3), hosts.leader(5), hosts.count()), (&[0, 1, 3][..], 2, 3));
        assert!(!hosts.are_in_blocks() && HostMap::new(&[3, 3, 1, 2, 2]).are_in_blocks());
    }

    #[test]
    fn one_host_has_the_tree_of_a_reduction() {
        for size in 1..40 {
            let hosts = HostMap::new(&vec![0; size]);
            for rank in 0..size {
                let place = hosts.place(0, rank);
                assert_eq!(place.parent, parent(rank));
                assert_eq!(place.near, children(rank, size).collect::<Vec<_>>());
                assert_eq!(place.far, []);
            }
        }
    }

    #[test]
    fn a_tree_reaches_each_member_once_with_one_crossing_for_each_host() {
        let mut rolls = Rolls(1);
        for _ in 0..2000 {
            let size = 1 + rolls.roll(70);
            let hosts = HostMap::new(&rolls.marks(size));
            let root = rolls.roll(size);
            let places: Vec<_> = (0..size).map(|rank| hosts.place(root, rank)).collect();
            let (mut depths, mut crossings) = (vec![None; size], 0);
            depths[root] = Some(0);
            let mut next = vec![root];
            while let Some(rank) = next.pop() {
                let mut below = vec![rank];
                for child in places[rank].children() {
                    assert_eq!((depths[child], places[child].parent), (None, Some(rank)));
                    depths[child] = depths[rank].map(|depth: u32| depth + 1);
                    crossings += usize::from(hosts.host(child) != hosts.host(rank));
                    next.push(child);
                    below.extend(hosts.subtree(root, child));
                }
                below.sort_unstable();
                assert_eq!(hosts.subtree(root, rank), below);
            }
            let most = hosts.members.iter().map(Vec::len).max().unwrap();
            let deepest = depths.iter().map(|depth| depth.unwrap()).max().unwrap();
            assert_eq!(crossings, hosts.count() - 1);
            assert!(deepest <= log2(hosts.count()) + log2(most), "{hosts:?} from {root}");
        }
    }
}
