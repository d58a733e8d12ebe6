//! Contexts: numbers that keep messages apart. Each belongs to one task at a time.
//!
//! Sources: PVM's manual (`pvm_newcontext`), and experiments with PVM. A context belongs to the
//! task that has requested it. Only this task can free it, and it is freed when the task ends. As
//! in PVM, numbers are assigned in increasing order, so that a message still under way in an old
//! context is not received in a new one.

use super::effect::Effect;
use crate::error;
use crate::ops::{OP_CONTEXT_FREE, OP_CONTEXT_NEW};
use crate::tid::Tid;
use crate::wire::{Packet, PacketReader};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The first context. Lower numbers are left to programs, which count their own from 0. PVM starts
/// at the same number.
const FIRST: i32 = 1 << 18 | 1;

/// All contexts in use.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    /// Each context's owner.
    owners: BTreeMap<i32, Tid>,
    of: HashMap<Tid, BTreeSet<i32>>,
    /// The last context assigned. 0: none yet.
    last: i32,
}

impl Contexts {
    /// Each context with its owner, and the last context assigned, for a checkpoint.
    pub(super) fn save(&self) -> (Vec<(i32, Tid)>, i32) {
        (self.owners.iter().map(|(context, tid)| (*context, *tid)).collect(), self.last)
    }

    /// The contexts of a checkpoint. `None`: no contexts are like this.
    pub(super) fn restore((owners, last): (Vec<(i32, Tid)>, i32)) -> Option<Self> {
        let mut all = Self { last, ..Self::default() };
        for (context, tid) in owners {
            let is_new = context >= FIRST && all.owners.insert(context, tid).is_none();
            is_new.then(|| all.of.entry(tid).or_default().insert(context))?;
        }
        Some(all)
    }

    /// | OP_CONTEXT_… | takes | answers |
    /// |---|---|---|
    /// | NEW | nothing | an unused context |
    /// | FREE | a context | PvmNotFound: the task does not own it |
    pub(super) fn ask(
        &mut self,
        from: Tid,
        op: u64,
        mut question: PacketReader<'_>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let code = match op {
            OP_CONTEXT_NEW => self.new_one(from),
            OP_CONTEXT_FREE => {
                question.int().map_or(error::BAD_MSG, |context| self.free(from, context))
            }
            _ => return false,
        };
        effects.push(Effect::Answer(from, code, Packet::default()));
        true
    }

    fn new_one(&mut self, tid: Tid) -> i32 {
        // Skips runs of contexts in use.
        let next = |at: i32| if at == i32::MAX { FIRST } else { at + 1 };
        let mut context = next(self.last.max(FIRST - 1));
        for _ in 0..=self.owners.len() {
            if !self.owners.contains_key(&context) {
                self.last = context;
                self.owners.insert(context, tid);
                self.of.entry(tid).or_default().insert(context);
                return context;
            }
            context = next(context);
        }
        error::OUT_OF_RES
    }

    fn free(&mut self, tid: Tid, context: i32) -> i32 {
        let Some(of) = self.of.get_mut(&tid) else { return error::NOT_FOUND };
        if !of.remove(&context) {
            return error::NOT_FOUND;
        }
        if of.is_empty() {
            self.of.remove(&tid);
        }
        self.owners.remove(&context);
        error::OK
    }

    /// Frees the contexts of a task that has ended.
    pub(super) fn ended(&mut self, tid: Tid) {
        for context in self.of.remove(&tid).unwrap_or_default() {
            self.owners.remove(&context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Tid = Tid::new(0, 1);
    const B: Tid = Tid::new(0, 2);

    fn ask(contexts: &mut Contexts, from: Tid, op: u64, question: Packet) -> i32 {
        let mut effects = Vec::new();
        assert!(contexts.ask(from, op, PacketReader::new(question.as_bytes()), &mut effects));
        match effects[..] {
            [Effect::Answer(to, code, _)] if to == from => code,
            ref other => panic!("{other:?}"),
        }
    }

    fn new_one(contexts: &mut Contexts, from: Tid) -> i32 {
        ask(contexts, from, OP_CONTEXT_NEW, Packet::default())
    }

    fn free(contexts: &mut Contexts, from: Tid, context: i32) -> i32 {
        ask(contexts, from, OP_CONTEXT_FREE, Packet::default().int(context))
    }

    #[test]
    fn a_context_is_its_owners_and_none_is_given_again_soon() {
        let mut contexts = Contexts::default();
        let [a, b, c] = [A, B, A].map(|tid| new_one(&mut contexts, tid));
        assert_eq!([a, b, c], [FIRST, FIRST + 1, FIRST + 2]);
        assert_eq!(free(&mut contexts, A, b), error::NOT_FOUND);
        assert_eq!(
            (free(&mut contexts, A, a), free(&mut contexts, A, a)),
            (error::OK, error::NOT_FOUND)
        );
        assert_eq!(new_one(&mut contexts, B), FIRST + 3);
        contexts.ended(B);
        assert_eq!(free(&mut contexts, B, b), error::NOT_FOUND);
        assert_eq!(free(&mut contexts, A, c), error::OK);
        assert!(contexts.owners.is_empty() && contexts.of.is_empty());
        for context in [0, -1, FIRST] {
            assert_eq!(free(&mut contexts, A, context), error::NOT_FOUND);
        }
        assert_eq!(ask(&mut contexts, A, OP_CONTEXT_FREE, Packet::default()), error::BAD_MSG);
    }

    #[test]
    fn after_the_highest_come_those_that_are_free_again() {
        let mut contexts = Contexts::default();
        let [a, b] = [A, B].map(|tid| new_one(&mut contexts, tid));
        assert_eq!(free(&mut contexts, B, b), error::OK);
        contexts.last = i32::MAX - 1;
        assert_eq!([new_one(&mut contexts, A), new_one(&mut contexts, A)], [i32::MAX, b]);
        assert_eq!(a, FIRST);
    }

    #[test]
    fn ten_thousand_have_one_each() {
        let began = std::time::Instant::now();
        let mut contexts = Contexts::default();
        let all = (1..=10_000)
            .map(|number| new_one(&mut contexts, Tid::new(0, number)))
            .collect::<BTreeSet<_>>();
        assert_eq!(all.len(), 10_000);
        (1..=10_000).for_each(|number| contexts.ended(Tid::new(0, number)));
        assert!(contexts.owners.is_empty());
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}
