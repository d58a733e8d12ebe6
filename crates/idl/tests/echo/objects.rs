//! Values with objects in them.
//!
//! An interface that echoes objects has, for the package's resource `N`, the procedures
//! `make-N: func(number: u64) -> R` and `number-N: func(of: borrow<R>) -> u64`; `alive` returns the
//! number of the server's objects. For its type `N` it has `tell-N: func(v: T) -> list<u64>`, which
//! returns the numbers of all objects in a value, from left to right, and keeps none of them; and,
//! where nothing in the type is lent, `echo-N: func(v: T) -> T`.
//!
//! With these a client can check that each object that it sends arrives as that object and in its
//! place, that a given object is gone, that a lent object is still there, that what is returned is
//! what was sent, and that no object is left when the client has released its handles.

use super::values::{any_text, runner};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use upcall_idl::dynamic::DynamicInterface;
use upcall_idl::model::{ProcedureDefinition, Type};

/// A call: takes the procedure's number and the argument block, and returns the result block.
type Call<'a> = &'a mut dyn FnMut(u16, &[u8]) -> Result<Vec<u8>, String>;

/// Maximum wait for an object to be dropped. The last holder may release it a moment after an
/// answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A caller of a server, without stubs.
struct Caller<'a> {
    interface: &'static DynamicInterface,
    call: Call<'a>,
    release: &'a dyn Fn(u64),
    /// The numbers of the resources, by their index among all types.
    resources: BTreeMap<usize, usize>,
    /// The number of the next object.
    next: u64,
}

/// An object in a value that is sent.
struct Held {
    resource: usize,
    number: u64,
    handle: u64,
    lent: bool,
}

/// Calls every procedure of an interface that echoes objects, with `cases` random values; `release`
/// gives up a handle.
pub fn check_objects(
    interface: &'static DynamicInterface,
    cases: u32,
    call: Call<'_>,
    release: &dyn Fn(u64),
) {
    let mut resources = BTreeMap::new();
    for procedure in &interface.interface().procedures {
        if let (Some(number), Some(Type::Own(id))) =
            (procedure.name.strip_prefix("make-"), &procedure.result)
        {
            resources.insert(id.index(), number.parse().expect("a number"));
        }
    }
    let caller = std::cell::RefCell::new(Caller { interface, call, release, resources, next: 1 });
    for procedure in &interface.interface().procedures {
        let Some((kind @ ("echo" | "tell"), _)) = procedure.name.split_once('-') else { continue };
        let (mut runner, seed) = runner(cases);
        let done = runner.run(&any_text(interface.model(), &procedure.params[0].ty), |text| {
            let mut caller = caller.borrow_mut();
            let done = if kind == "echo" {
                caller.echo(procedure, &text)
            } else {
                caller.tell(procedure, &text)
            };
            done.map_err(|e| TestCaseError::fail(format!("{text}: {e}")))
        });
        done.unwrap_or_else(|e| {
            panic!("{}: {}: UPCALL_SEED={seed}: {e}", interface.interface().id, procedure.signature)
        });
    }
}

impl Caller<'_> {
    fn block(&mut self, procedure: &ProcedureDefinition, text: &str) -> Result<Vec<u8>, String> {
        let number = self
            .interface
            .interface()
            .procedures
            .iter()
            .position(|one| one.name == procedure.name)
            .expect("its own");
        let block = self
            .interface
            .encode(procedure, &[text][..procedure.params.len()])
            .map_err(|e| e.to_string())?;
        (self.call)(number as u16, &block)
    }

    fn ask(&mut self, procedure: &str, text: &str) -> Result<String, String> {
        let procedure = self.interface.procedure(procedure).map_err(|e| e.to_string())?;
        let block = self.block(procedure, text)?;
        self.interface.decode(procedure, &block).map_err(|e| e.to_string())
    }

    /// Splits the text at its places for objects (`<index>`, or `<&index>` for a lent one), and
    /// makes or reuses an object for each. Now and then an object is lent twice.
    fn fill(&mut self, text: &str) -> Result<(Vec<String>, Vec<Held>), String> {
        let mut places = text.split('<');
        let (mut between, mut held) =
            (vec![places.next().unwrap_or_default().to_owned()], Vec::<Held>::new());
        for place in places {
            let (index, rest) = place.split_once('>').expect("the end of a place");
            let lent = index.starts_with('&');
            let resource =
                self.resources[&index.trim_start_matches('&').parse::<usize>().expect("an index")];
            let again = held
                .iter()
                .find(|one| lent && one.lent && one.resource == resource && one.number % 3 == 0);
            let one = match again {
                Some(one) => Held { ..*one },
                None => {
                    let number = self.next;
                    self.next += 1;
                    let made = self.ask(&format!("make-{resource}"), &number.to_string())?;
                    let handle = made
                        .trim_end_matches(')')
                        .rsplit('(')
                        .next()
                        .and_then(|handle| handle.parse().ok());
                    Held { resource, number, handle: handle.ok_or(made)?, lent }
                }
            };
            held.push(one);
            between.push(rest.to_owned());
        }
        Ok((between, held))
    }

    fn is(&mut self, resource: usize, handle: u64, number: u64) -> Result<(), String> {
        let told = self.ask(&format!("number-{resource}"), &handle.to_string())?;
        if told == number.to_string() {
            Ok(())
        } else {
            Err(format!("the object {number} is {told} now"))
        }
    }

    /// Checks that there are as many objects as before.
    fn left(&mut self, before: &str) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.ask("alive", "")?;
            if now == before {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("{now} objects are left, and before there were {before}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn tell(&mut self, procedure: &ProcedureDefinition, text: &str) -> Result<(), String> {
        let before = self.ask("alive", "")?;
        let (between, held) = self.fill(text)?;
        let told =
            self.ask(&procedure.name, &joined(&between, held.iter().map(|one| one.handle)))?;
        let sent = format!("{:?}", held.iter().map(|one| one.number).collect::<Vec<_>>());
        if told != sent {
            return Err(format!("{sent} came as {told}"));
        }
        let mut lent = BTreeMap::new();
        for one in held {
            if one.lent {
                self.is(one.resource, one.handle, one.number)?;
                lent.insert(one.handle, one);
            } else if let Ok(still) =
                self.ask(&format!("number-{}", one.resource), &one.handle.to_string())
            {
                return Err(format!(
                    "the object {} was given away, and can still be asked: {still}",
                    one.number
                ));
            }
        }
        lent.into_keys().for_each(self.release);
        self.left(&before)
    }

    fn echo(&mut self, procedure: &ProcedureDefinition, text: &str) -> Result<(), String> {
        let before = self.ask("alive", "")?;
        let (between, held) = self.fill(text)?;
        let back = self.block(procedure, &joined(&between, held.iter().map(|one| one.handle)))?;
        let back = self.interface.decode(procedure, &back).map_err(|e| e.to_string())?;
        // The argument and the result have one type. Decoding a block with placeholder numbers as
        // text shows the text expected between the handles.
        let marks: Vec<u64> = (0..held.len() as u64).map(|n| u64::MAX - n).collect();
        let like = self
            .interface
            .encode(procedure, &[&joined(&between, marks.iter().copied())])
            .map_err(|e| e.to_string())?;
        let mut like = self.interface.decode(procedure, &like).map_err(|e| e.to_string())?;
        let mut rest = back.as_str();
        let other = || format!("it came back as {back}");
        for (one, mark) in held.iter().zip(marks) {
            let (part, after) = like.split_once(&mark.to_string()).ok_or_else(other)?;
            rest = rest.strip_prefix(part).ok_or_else(other)?;
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(other)?;
            let handle = rest[..digits].parse().map_err(|_| other())?;
            self.is(one.resource, handle, one.number)?;
            (self.release)(handle);
            (rest, like) = (&rest[digits..], after.to_owned());
        }
        if rest != like {
            return Err(other());
        }
        self.left(&before)
    }
}

/// The text with these handles in its places.
fn joined(between: &[String], handles: impl Iterator<Item = u64>) -> String {
    let mut text = between[0].clone();
    for (handle, rest) in handles.zip(&between[1..]) {
        text.push_str(&handle.to_string());
        text.push_str(rest);
    }
    text
}
