//! Calls that stay in a server until they are released.

use crate::interfaces::latch;
use crate::outcome::{Outcome, done, same, show, until};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use upcall::{CallError, Pacing, WhenFull};

/// A binding to a latch, whose callers run beside the client's other work.
pub(crate) struct Holders {
    latch: latch::Latch,
    ended: Arc<AtomicU64>,
}

impl Holders {
    pub(crate) fn bind(name: &str) -> Result<Self, Box<dyn Error>> {
        Ok(Self { latch: latch::Latch::bind(name)?, ended: Arc::default() })
    }

    pub(crate) fn obey(&self, words: &[&str]) -> Outcome {
        let number = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        match words[0] {
            "hold" => self.hold(number, latch::Latch::stay),
            "hold-bytes" => self.hold(number, |latch| latch.hold(&[1; 1000])),
            "hold-bytes-and-grow" => {
                self.hold(number, |latch| latch.with_when_full(WhenFull::Grow).hold(&[1; 1000]))
            }
            "stay-by" => self.stay_by(number),
            "crowd" => self.crowd(number)?,
            "holds-ended" => return show([self.ended.load(Ordering::SeqCst)]),
            "came-in" => return show([self.latch.came_in()?.0]),
            "inside" => return show([self.latch.inside()?]),
            _ => self.latch.let_out(number)?,
        }
        done()
    }

    /// Makes `count` calls that stay, each from its own kernel thread. Does not wait for them.
    fn stay_by(&self, count: u64) {
        for _ in 0..count {
            let (latch, ended) = (self.latch.clone(), self.ended.clone());
            std::thread::spawn(move || {
                if latch.stay().is_ok() {
                    ended.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    }

    /// Makes one call from each of `count` kernel threads. Returns when all are done.
    fn crowd(&self, count: u64) -> Result<(), CallError> {
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..count).map(|_| scope.spawn(|| self.latch.null())).collect();
            all.into_iter().try_for_each(|one| one.join().unwrap_or(Err(CallError::Revoked)))
        })
    }

    /// Makes `count` calls from user-level threads. Does not wait for them.
    fn hold(
        &self,
        count: u64,
        call: impl Fn(&latch::Latch) -> Result<(), CallError> + Copy + Send + 'static,
    ) {
        let (latch, ended) = (self.latch.clone(), self.ended.clone());
        std::thread::spawn(move || {
            let run = upcall::thread::processors(1, Pacing::Adaptive).and_then(|processors| {
                processors.run(|| {
                    let hold = |_| {
                        let (latch, ended) = (latch.clone(), ended.clone());
                        upcall::thread::spawn(move || {
                            if call(&latch).is_ok() {
                                ended.fetch_add(1, Ordering::SeqCst);
                            }
                        })
                    };
                    let threads: Vec<_> = (0..count).map(hold).collect();
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                })
            });
            run.unwrap_or_else(|error| panic!("virtual processors: {error}"));
        });
    }
}

/// Takes all A-stacks of one class for calls that stay in the server, so that more calls of that
/// class wait. While they wait, makes calls of another class and calls that need no A-stack. Then
/// releases one call after the other, and checks which of the waiting calls come in.
///
/// Reports how many A-stacks the class has, how many calls went through while all were taken, and
/// the longest time of one in microseconds.
#[expect(clippy::too_many_lines, reason = "steps of one story, each of which needs those before")]
pub(crate) fn full_class(name: &str) -> Outcome {
    let (interface, bound) = (&latch::INTERFACE, latch::Latch::bind(name)?);
    let plan = interface.plan();
    let class = |name: &str| {
        let procedure = interface.procedures.iter().find(|procedure| procedure.name == name);
        procedure.and_then(|procedure| plan.class_for(procedure.astack_bytes()))
    };
    let shared = class("hold").ok_or("hold needs no A-stack")?;
    same(class("length"), Some(shared))?;
    same(class("echo").is_some_and(|echo| echo != shared), true)?;
    same(["null", "stay", "came-in", "let-out"].map(class), [None; 4])?;
    let stacks = u64::from(plan.classes()[shared].count);

    let (others, worst) = (AtomicU64::new(0), AtomicU64::new(0));
    // These calls go through at once, in any state of the class.
    let go_through = || -> Result<(), Box<dyn Error>> {
        let text = "abc".repeat(1000);
        for _ in 0..200 {
            let start = Instant::now();
            bound.null()?;
            same(bound.echo(&text)?, text.clone())?;
            worst.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
            others.fetch_add(2, Ordering::Relaxed);
        }
        Ok(())
    };
    let came_in = || Ok(bound.came_in()?.0);
    // Three more calls stay, told apart by the lengths of their arguments, and a fourth does not.
    // All are of the same class.
    const WAITING: u64 = 3;
    let (begun, measured) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    std::thread::scope(|scope| {
        let holders: Vec<_> = (0..stacks).map(|_| scope.spawn(|| bound.hold(&[0; 1000]))).collect();
        let outcome = (|| {
            until(stacks, came_in)?;
            go_through()?;
            // User-level threads of one virtual processor begin in their order, and each runs until
            // it waits.
            let queue = {
                let (bound, begun, measured) = (bound.clone(), begun.clone(), measured.clone());
                scope.spawn(move || {
                    let run =
                        upcall::thread::processors(1, Pacing::Adaptive).and_then(|processors| {
                            processors.run(|| {
                                let mut threads: Vec<_> = (1..=WAITING)
                                    .map(|len| {
                                        let (bound, begun) = (bound.clone(), begun.clone());
                                        upcall::thread::spawn(move || {
                                            begun.fetch_add(1, Ordering::SeqCst);
                                            bound.hold(&vec![0; len as usize])
                                        })
                                    })
                                    .collect();
                                threads.push(upcall::thread::spawn(move || {
                                    begun.fetch_add(1, Ordering::SeqCst);
                                    let len = bound.length(&[0; 500])?;
                                    measured.store(len == 500, Ordering::SeqCst);
                                    Ok(())
                                }));
                                threads.into_iter().try_for_each(|thread| {
                                    thread.join().unwrap_or(Err(CallError::Revoked))
                                })
                            })
                        });
                    run.unwrap_or_else(|error| panic!("virtual processors: {error}"))
                })
            };
            until(WAITING + 1, || Ok(begun.load(Ordering::SeqCst)))?;
            go_through()?;
            same(bound.came_in()?, (stacks, 1000))?;
            for turn in 1..=WAITING {
                bound.let_out(1)?;
                until(stacks + turn, came_in)?;
                go_through()?;
                same(
                    (bound.came_in()?, measured.load(Ordering::SeqCst)),
                    ((stacks + turn, turn), false),
                )?;
            }
            bound.let_out(1)?;
            until(1, || Ok(measured.load(Ordering::SeqCst).into()))?;
            bound.let_out(stacks - 1)?;
            queue.join().map_err(|_| "a waiting caller panicked")??;
            for holder in holders {
                holder.join().map_err(|_| "a caller panicked")??;
            }
            // All lent A-stacks have been returned.
            for _ in 0..3 * stacks {
                same(bound.length(&[0; 500])?, 500)?;
            }
            show([stacks, others.load(Ordering::Relaxed), worst.load(Ordering::Relaxed)])
        })();
        // No caller is left behind, even after a failure.
        let _ = bound.let_out(100);
        outcome
    })
}
