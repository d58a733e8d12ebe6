//! A home with an object, and guests that work on the object in every possible way.
//!
//! Each operation notes in the record that it begins and that it is done, and adds one to the
//! object in between. So after any death the object's number lies between the two counts, and its
//! two copies differ only within an operation.

use crate::book::{Book, End, Plane, Sum, Times};
use crate::client::{EXPLAINED, own_going_on};
use crate::role::{Role, kind, say};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use upcall::home::{
    AccessError, DataError, FindError, Homed, InvokeError, Operation, Operations, Procedure,
    Shared, Verdict,
};
use upcall_tests::dice::Dice;
use upcall_tests::now;
use upcall_tests::party::Said;

/// The object.
#[derive(Shared)]
struct Pair {
    first: u64,
    second: u64,
    /// The number of this home, and its process.
    home: u64,
    pid: u64,
}

static ROLE: OnceLock<Role> = OnceLock::new();

fn role() -> Option<&'static Role> {
    ROLE.get()
}

/// Adds one on behalf of a request.
struct Add;

impl Operation for Add {
    type Of = Pair;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "add";

    fn run(pair: <Pair as Shared>::At<'_>, id: u64) -> Result<u64, DataError> {
        let Some(role) = role() else { return Ok(0) };
        let (book, home) = (&role.book, pair.home().get()?);
        let (begun, done) = (book.home_begun(home), book.home_done(home));
        let (first, second) = (pair.first().get()?, pair.second().get()?);
        let (most, least) = (begun.load(SeqCst), done.load(SeqCst));
        if first != second || first < least || first > most {
            role.complain(
                "torn",
                format!(
                    "the object has {first} and {second}, after {least} \
                operations done of {most} begun"
                ),
            );
        }
        begun.fetch_add(1, SeqCst);
        role.check("doubled", book.execute(id, Plane::First));
        pair.first().set(first + 1)?;
        pair.second().set(first + 1)?;
        done.fetch_add(1, SeqCst);
        Ok(first + 1)
    }
}

/// Adds one in a thread of the home, which sleeps first.
struct Slow;

impl Procedure for Slow {
    type Of = Pair;
    type Args<'a> = (u64, u32);
    type Reply = u64;
    const NAME: &'static str = "slow";

    fn run(pair: &Homed<Pair>, (id, us): (u64, u32)) -> Result<u64, String> {
        std::thread::sleep(Duration::from_micros(us.into()));
        pair.access(|pair| Add::run(pair, id)).map_err(|error| error.to_string())
    }
}

fn new_home(book: &Book) -> u64 {
    let home = book.homes().fetch_add(1, SeqCst) + 1;
    book.home_begun(home).store(0, SeqCst);
    book.home_done(home).store(0, SeqCst);
    home
}

/// Creates the object, and serves it until standard input ends.
pub fn run(role: &Role, name: &str) {
    ROLE.get_or_init(|| role.clone());
    let home = new_home(&role.book);
    let repairs = role.clone();
    let made = Homed::<Pair>::create(name)
        .repair(move |pair, _| {
            repairs.book.add(Sum::Repairs, 1);
            let put_right = pair.first().get().and_then(|first| pair.second().set(first));
            if put_right.is_ok() { Verdict::Keep } else { Verdict::Poison }
        })
        .with(|pair| {
            pair.home().set(home)?;
            pair.pid().set(std::process::id().into())
        });
    let object = match made {
        Ok(object) => object,
        Err(error) => {
            return role.complain("home", format!("making {name}: {}: {error}", kind(&error)));
        }
    };
    let served =
        object.serve_in_background(Operations::new().operation::<Add>().procedure::<Slow>());
    match served {
        Ok(served) => {
            say(&Said::Ok(vec!["is home".into()]));
            role.until_the_end();
            drop(served);
        }
        Err(error) => role.complain("home", format!("serving {name}: {error}")),
    }
}

struct Guest {
    role: Role,
    lane: usize,
    dice: Dice,
    name: String,
    slot: usize,
}

/// Works on the object of a home until standard input ends. `slot` is the home's slot.
pub fn visit(role: &Role, lane: usize, name: &str, slot: usize) {
    ROLE.get_or_init(|| role.clone());
    say(&Said::Ok(vec!["visits".into()]));
    let mut guest = Guest {
        role: role.clone(),
        lane,
        dice: role.dice(lane as u64 + 1),
        name: name.into(),
        slot,
    };
    std::thread::spawn(move || {
        loop {
            guest.role.rest();
            guest.stay();
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    role.until_the_end();
    std::process::exit(0);
}

impl Guest {
    /// Works until the object's home has ended, or this process is to rest.
    fn stay(&mut self) {
        let book = self.role.book.clone();
        book.waits(
            self.lane,
            "find",
            book.slot(self.slot, crate::book::SlotWord::Pid).load(SeqCst) as u32,
        );
        let found = Homed::<Pair>::find(&self.name);
        let since = book.goes(self.lane);
        let pair = match found {
            Ok(pair) => pair,
            Err(error) => {
                book.add(Sum::BindErrors, 1);
                if !book.was_slot_disturbed(self.slot, EXPLAINED + now() - since) {
                    self.role.complain(
                        "find",
                        format!("finding {}: {}: {error}", self.name, kind(&error)),
                    );
                }
                return;
            }
        };
        book.add(Sum::Binds, 1);
        let patience = (self.dice.below(3) == 0).then(|| Duration::from_millis(20));
        let pair = pair.patience(patience);
        let pid = match pair.read(|pair| pair.pid().get()) {
            Ok(pid) => pid as u32,
            Err(_) => return,
        };
        while !self.role.rests() {
            if !self.turn(&pair, pid, patience) {
                return;
            }
            std::thread::sleep(Duration::from_micros(self.dice.below(500)));
        }
    }

    /// Performs one operation. Returns `true` if the guest is to go on.
    fn turn(&mut self, pair: &Homed<Pair>, pid: u32, patience: Option<Duration>) -> bool {
        let book = self.role.book.clone();
        let which = self.dice.below(100);
        if which < 20 {
            book.waits(self.lane, "read", pid);
            let looked = pair.read(|pair| Ok((pair.first().get()?, pair.second().get()?)));
            let since = book.goes(self.lane);
            book.add(Sum::Looks, 1);
            return match looked {
                Ok((first, second)) => {
                    if first != second {
                        self.role.complain("torn", format!("a look sees {first} and {second}"));
                    }
                    true
                }
                Err(error) => self.judge(&error.into(), pid, patience, since).is_some(),
            };
        }
        let what = match which {
            20..55 => "urgent",
            55..65 => "invoke",
            65..85 => "perform",
            _ => "auto",
        };
        let id = match book.begin(self.lane) {
            Ok(id) => id,
            Err(wrong) => {
                self.role.complain("ledger", wrong);
                return true;
            }
        };
        book.waits(self.lane, what, pid);
        let outcome = match what {
            "urgent" => pair.urgent::<Add>(id),
            "invoke" => pair.invoke::<Slow>((id, self.dice.below(2000) as u32)),
            "perform" => pair.perform::<Add>(id).map_err(Into::into),
            _ => pair.auto::<Add>(id),
        };
        let since = book.goes(self.lane);
        let (end, goes_on) = match &outcome {
            Ok(_) => {
                if what == "urgent" {
                    book.note(Times::Urgent, now() - since);
                }
                (End::Answered, true)
            }
            Err(error) => match self.judge(error, pid, patience, since) {
                Some(end) => (end, true),
                None => (not_begun(error), false),
            },
        };
        self.role.check("ledger", book.end(id, end));
        goes_on
    }

    /// Decides how an error ended a request if the hold is still good. Returns `None` if the home
    /// has ended.
    fn judge(
        &self,
        error: &InvokeError,
        pid: u32,
        patience: Option<Duration>,
        since: u64,
    ) -> Option<End> {
        let book = &self.role.book;
        match error {
            // A home creates its object before it serves it.
            InvokeError::NotServed(
                FindError::Refused { .. }
                | FindError::Absent { .. }
                | FindError::Unreachable { .. },
            ) if book.was_disturbed(pid, EXPLAINED)
                || book.was_slot_disturbed(self.slot, EXPLAINED) =>
            {
                Some(End::NotRun)
            }
            InvokeError::Ended { .. }
            | InvokeError::NotServed(FindError::Name(_))
            | InvokeError::Access(AccessError::Ended) => {
                let died = book.died(pid);
                if died == 0 {
                    self.role.complain(
                        "claim",
                        format!(
                            "process {pid} has ended, by {}: {error}; but the run has not killed \
                            it",
                            kind(error)
                        ),
                    );
                } else {
                    let since = died.max(since).max(own_going_on(&self.role));
                    book.note(Times::HomeAfterDeath, now().saturating_sub(since));
                }
                None
            }
            InvokeError::Busy { .. } if patience.is_some() => Some(End::Unknown),
            InvokeError::Access(AccessError::Busy { .. }) if patience.is_some() => {
                Some(End::NotRun)
            }
            // Debug builds report this for an operation that was stopped in the middle. It was run.
            InvokeError::Blocked(_) => Some(End::Answered),
            error => {
                self.role.complain("invoke", format!("process {pid}: {}: {error}", kind(error)));
                Some(End::Unknown)
            }
        }
    }
}

/// Decides whether the error of an ended home leaves open that the operation was run.
fn not_begun(error: &InvokeError) -> End {
    match error {
        InvokeError::Ended { asked: true } => End::Unknown,
        _ => End::NotRun,
    }
}
