//! Selects the turns of a case that may be compared.
//!
//! The host of a virtual machine moves its processors: a cache line takes 100 ns there and back now
//! and 400 ns a second later, and calls slow down with it. If that happens in the middle of a case,
//! one contender may have had most of its turns near and another far, and their ratio is
//! meaningless. Then only the turns of one placement count, near or far: the placement in which the
//! contender with the fewest turns has more of them. The durations of calls do not influence the
//! choice.

/// The selected turns, by the probes of the line before and after each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Like {
    least: f64,
    most: f64,
}

/// Ratio of two probes above which they are of different placements.
const MOVED: f64 = 2.0;

impl Like {
    /// Selects turns by the probes around every turn of every contender. Contenders without turns
    /// are ignored.
    pub fn of(contenders: &[Vec<(f64, f64)>]) -> Like {
        let (least, most) = Like::span(contenders.iter().flatten());
        let all = Like { least, most };
        if !all.moved() {
            return all;
        }
        let border = (least * most).sqrt();
        let (near, far) = (Like { most: border, ..all }, Like { least: border, ..all });
        let kept = |like: Like| -> Vec<Vec<(f64, f64)>> {
            let with_turns = contenders.iter().filter(|turns| !turns.is_empty());
            with_turns
                .map(|turns| turns.iter().copied().filter(|&turn| like.has(turn)).collect())
                .collect()
        };
        let (near, far) = (kept(near), kept(far));
        let fewest = |kept: &[Vec<(f64, f64)>]| kept.iter().map(Vec::len).min().unwrap_or(0);
        match (fewest(&near), fewest(&far)) {
            (0, 0) => all,
            // A probe beside a busy program may have been so far off that both placements are on
            // this side of it.
            (of_near, of_far) if of_near >= of_far => Like::of(&near),
            _ => Like::of(&far),
        }
    }

    /// Returns the smallest and the largest probe.
    pub fn span<'a>(turns: impl Iterator<Item = &'a (f64, f64)>) -> (f64, f64) {
        let probes = turns.flat_map(|&(before, after)| [before, after]);
        probes.fold((f64::MAX, 0.0f64), |(least, most), probe| (least.min(probe), most.max(probe)))
    }

    /// Returns `true` if turns of different placements count.
    pub fn moved(&self) -> bool {
        self.most > MOVED * self.least
    }

    /// Returns `true` if a turn with these probes before and after it counts. Turns without probes,
    /// on one processor, always count.
    pub fn has(&self, (before, after): (f64, f64)) -> bool {
        [before, after]
            .into_iter()
            .all(|probe| probe.is_nan() || (self.least..=self.most).contains(&probe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: (f64, f64) = (100.0, 110.0);
    const FAR: (f64, f64) = (400.0, 380.0);
    const MIXED: (f64, f64) = (110.0, 400.0);

    #[test]
    fn all_count_while_nothing_moves() {
        let like = Like::of(&[vec![NEAR, (120.0, 140.0)], vec![NEAR]]);
        assert!(like.has(NEAR) && like.has((120.0, 140.0)));
        assert!(Like::of(&[vec![(f64::NAN, f64::NAN)]]).has((f64::NAN, f64::NAN)));
        assert_eq!(Like::of(&[]), Like::of(&[Vec::new()]));
    }

    #[test]
    fn those_of_one_placement_count_when_it_changes() {
        let near = Like::of(&[vec![NEAR, FAR, NEAR], vec![FAR, MIXED, NEAR], vec![]]);
        assert!(near.has(NEAR) && !near.has(FAR) && !near.has(MIXED));
        let far = Like::of(&[vec![NEAR, FAR], vec![FAR, MIXED]]);
        assert!(far.has(FAR) && !far.has(NEAR) && !far.has(MIXED));
    }

    #[test]
    fn one_probe_that_is_far_off_does_not_hide_a_move() {
        let like = Like::of(&[vec![NEAR, FAR, (100.0, 9_000.0)], vec![NEAR, NEAR, FAR]]);
        assert!(like.has(NEAR) && !like.has(FAR) && !like.moved());
    }

    #[test]
    fn all_count_when_none_could_be_compared() {
        let like = Like::of(&[vec![NEAR], vec![FAR]]);
        assert!(like.has(NEAR) && like.has(FAR) && like.has(MIXED));
    }
}
