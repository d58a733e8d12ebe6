//! What a hostile member writes into the words with which it reports its barriers and reductions.

use super::{Brought, Scene};
use crate::in_company;
use std::sync::atomic::Ordering;
use std::time::Duration;
use upcall_tests::dice::Dice;

// Copies of the positions in `crates/shm/src/steps.rs`, in words from the beginning of the file.

const CHANGES: usize = 16;
const MISSING: usize = 17;
pub(super) const BARRIER: usize = 18;
const BEFORE: usize = 19;
const REDUCTION: usize = 21;
const VALUE: usize = 22;
const BEFORE_VALUE: usize = 23;
const ALL: [usize; 8] =
    [CHANGES, MISSING, BARRIER, BEFORE, BEFORE + 1, REDUCTION, VALUE, BEFORE_VALUE];

/// Number of honest members, and the rank of the hostile one.
const HONEST: usize = 3;

/// The hostile member's queues to all honest members.
struct Queues(Vec<Brought>);

impl Queues {
    fn bring(scene: &Scene) -> Self {
        Self((0..HONEST).map(|to| Brought::new(scene, HONEST, to)).collect())
    }

    /// Writes these words to all queues, in this order, and rings.
    fn write(&self, words: &[(usize, u64)]) {
        for queue in &self.0 {
            words.iter().for_each(|(at, word)| queue.first[*at].store(*word, Ordering::Release));
            queue.first[CHANGES].fetch_add(1, Ordering::Release);
            queue.doorbell.notify();
        }
    }

    /// Reports a barrier as an honest member does.
    fn come(&self, barrier: u64) {
        self.write(&[(BEFORE + barrier as usize % 2, 0), (BARRIER, barrier)]);
    }
}

/// Has all honest members begin a step; [`ends`] returns how it ended for each.
fn step(scene: &mut Scene, what: &str) {
    scene.honest.iter_mut().for_each(|member| member.say(what));
}

fn ends(scene: &mut Scene, what: &str) -> Vec<String> {
    scene.honest.iter_mut().map(|member| member.hear().expect_ok(what).remove(0)).collect()
}

/// After `barriers` barriers that held, writes `words`, and checks with `is_right` how the next
/// barrier ends for each honest member.
fn after(
    barriers: u64,
    words: impl Fn(u64) -> Vec<(usize, u64)>,
    is_right: impl Fn(usize, &str) -> bool,
) -> (Scene, Queues) {
    let mut scene = Scene::new(HONEST, 1, "");
    let queues = Queues::bring(&scene);
    for barrier in 1..=barriers {
        queues.come(barrier);
        step(&mut scene, "barrier");
        assert_eq!(ends(&mut scene, "an honest barrier"), ["held"; HONEST]);
    }
    let words = words(barriers + 1);
    queues.write(&words);
    step(&mut scene, "barrier");
    for (rank, end) in ends(&mut scene, "a barrier").iter().enumerate() {
        assert!(
            is_right(rank, end),
            "member {rank} after {barriers} barriers and {words:?}: {end}"
        );
    }
    (scene, queues)
}

#[test]
fn a_report_that_a_living_member_never_comes_claims_no_death() {
    let _company = in_company();
    for barriers in 0..3 {
        for missed in 0..=HONEST {
            let told = format!("GivenUp{{by:{HONEST},missed:{missed}}}");
            // Another member may pass on the report before this one has read it.
            let is_right = |_: usize, end: &str| {
                end.starts_with("GivenUp{by:") && end.ends_with(&format!("missed:{missed}}}"))
            };
            let (mut scene, _queues) =
                after(barriers, |_| vec![(MISSING, missed as u64 + 1)], is_right);
            step(&mut scene, "reduce 1");
            let ends = ends(&mut scene, "a reduction");
            assert!(ends.contains(&told) && ends.iter().all(|end| is_right(0, end)), "{ends:?}");
            scene.meanwhile("after it", |_| ());
        }
    }
}

#[test]
fn a_report_of_messages_that_were_never_sent_is_a_violation() {
    let _company = in_company();
    for barriers in 0..3 {
        let words = |number: u64| vec![(BEFORE, 5), (BEFORE + 1, 5), (BARRIER, number)];
        // The hostile member reports that it is at the barrier. A member that learns of the
        // violation may give up.
        let (mut scene, _queues) = after(barriers, words, |_, end| {
            end == "held" || end.starts_with("Lost(Violation{rank:3,")
        });
        // Member 2 takes no report of a barrier from member 3.
        for by in 0..HONEST - 1 {
            let words = scene.noticed(by, HONEST, "violation", "a false count");
            assert!(words[2].contains("sent-5-messages,-of-which-0-are-here"), "{words:?}");
        }
        step(&mut scene, "barrier");
        for end in ends(&mut scene, "the next barrier") {
            assert!(
                end.starts_with("Lost(Violation{rank:3,") || end.starts_with("GivenUp{"),
                "{end}"
            );
        }
        scene.meanwhile("after it", |_| ());
    }
}

/// The members wait in the barrier when the report arrives, and nothing else wakes them.
#[test]
fn a_false_report_is_found_out_by_members_that_wait() {
    let _company = in_company();
    for options in ["", "virtual"] {
        let mut scene = Scene::new(HONEST, 1, options);
        let queues = Queues::bring(&scene);
        step(&mut scene, "barrier");
        std::thread::sleep(Duration::from_millis(50));
        queues.write(&[(BEFORE, 5), (BEFORE + 1, 5), (BARRIER, 1)]);
        for end in ends(&mut scene, "a barrier") {
            let is_over = end == "held"
                || end.starts_with("Lost(Violation{rank:3,")
                || end.starts_with("GivenUp{");
            assert!(is_over, "{options}: {end}");
        }
        for by in 0..HONEST - 1 {
            scene.noticed(by, HONEST, "violation", "a false count");
        }
    }
}

#[test]
fn a_member_that_is_ahead_of_all_passes_and_holds_up_nobody() {
    let _company = in_company();
    let words = |_: u64| vec![(BARRIER, u64::MAX), (REDUCTION, u64::MAX), (VALUE, 40)];
    let (mut scene, _queues) = after(1, words, |_, end| end == "held");
    step(&mut scene, "reduce 1");
    let sums = ends(&mut scene, "a reduction");
    assert_eq!(sums, ["43"; HONEST]);
    scene.meanwhile("after it", |_| ());
}

/// Random words at random times. A step may end early, or wait for the hostile member, whose end
/// ends all steps.
#[test]
fn words_of_steps_walk() {
    let _company = in_company();
    for seed in 0..12 {
        let (mut dice, mut scene) = (Dice::new(seed), Scene::new(HONEST, 1, ""));
        let queues = Queues::bring(&scene);
        let what = if dice.below(2) == 0 { "barrier" } else { "reduce 1" };
        step(&mut scene, what);
        for _ in 0..dice.below(60) {
            let values = [0, 1, 2, 3, 4, 5, u64::MAX, u64::MAX - 1, 1 << 63, dice.any()];
            let words: Vec<(usize, u64)> = (0..1 + dice.below(4))
                .map(|_| (ALL[dice.below(8) as usize], values[dice.below(10) as usize]))
                .collect();
            queues.write(&words);
            std::thread::sleep(std::time::Duration::from_micros(dice.below(300)));
        }
        // The member ends when its connections end.
        drop(queues);
        scene.doors.clear();
        let ends = ends(&mut scene, what);
        println!("    seed {seed}, {what}: {ends:?}");
        for end in &ends {
            let known = ["held", "Lost(Ended{rank:3})", "Lost(Violation{rank:3,", "GivenUp{"];
            assert!(
                known.iter().any(|known| end.starts_with(known)) || end.parse::<u64>().is_ok(),
                "seed {seed}: {end}"
            );
        }
        step(&mut scene, "barrier");
        for end in self::ends(&mut scene, "the next barrier") {
            assert!(
                end == "held" || end.starts_with("Lost(") || end.starts_with("GivenUp{"),
                "seed {seed}: {end}"
            );
        }
        scene.unharmed("the walk");
        scene.meanwhile("after it", |_| ());
    }
}
