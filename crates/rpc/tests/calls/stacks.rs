//! The stacks that calls run on: their size, the return of their memory, and the report of an
//! overflow.

use super::{TEST, Test, serve, unique};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use upcall_rpc::{Binding, Call, Dispatch, Export, Pacing, Replied, Server};

const CHILD: &str = "UPCALL_TEST_STACKS";
const KIB: usize = 1024;

/// KiB of stack that handlers use.
const USED: usize = 512;

/// Uses `kib` KiB of stack: a page for each frame, as unoptimised code does.
#[inline(never)]
fn deep(kib: usize) -> u64 {
    let mut page = [1_u8; 4 * KIB];
    black_box(&mut page);
    let below = if kib > 4 { deep(kib - 4) } else { 0 };
    below + u64::from(black_box(page[7]))
}

/// Handlers that use as much stack as the argument says, all at once.
struct Deep {
    all: u64,
    here: AtomicU64,
    stacks: Addresses,
}

/// An address on the stack of each handler, above everything that it used.
type Addresses = Arc<Mutex<Vec<usize>>>;

impl Dispatch for Deep {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        call.respond(|args| {
            let frames = deep(args.get::<u32>(0)? as usize);
            self.stacks.lock().unwrap().push(std::ptr::from_ref(&frames).addr());
            self.here.fetch_add(1, Ordering::SeqCst);
            while self.here.load(Ordering::SeqCst) < self.all {
                upcall_thread::sleep(Duration::from_millis(1));
            }
            Ok(frames as u32)
        })
    }
}

fn serve_deep(name: &str, all: u64) -> (upcall_rpc::Running, Addresses) {
    let stacks = Addresses::default();
    let service = Deep { all, here: AtomicU64::new(0), stacks: stacks.clone() };
    (Server::new().export(name, Export::new(&TEST, service)).start().unwrap(), stacks)
}

/// Resident memory, in KiB, of the part of a stack that `deep` used, which ends at `end`.
fn resident(end: usize) -> usize {
    const PAGE: usize = 4 * KIB;
    let first = (end - USED * KIB) / PAGE;
    // One word for each page. Its highest bit is set if the page is in memory.
    let mut words = vec![0; USED * KIB / PAGE * 8];
    let map = File::open("/proc/self/pagemap").unwrap();
    map.read_exact_at(&mut words, first as u64 * 8).unwrap();
    words.chunks(8).filter(|word| word[7] & 0x80 != 0).count() * PAGE / KIB
}

/// Handlers need not know that their stacks are not a kernel thread's: half a mebibyte is what
/// decoders compiled without optimisation use.
#[test]
fn handlers_have_half_a_mebibyte_of_stack_and_more_which_goes_back() {
    const CALLERS: u64 = 8;
    let name = unique("deep");
    let (_server, stacks) = serve_deep(&name, CALLERS);
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let binding = Binding::bind(&name, &TEST).unwrap();
                assert_eq!(binding.call::<_, u32>(1, &(USED as u32, 0_u32)), Ok(128));
            });
        }
    });
    // The last one is still warm, or has just become cool, too.
    let stacks = std::mem::take(&mut *stacks.lock().unwrap());
    let begun = Instant::now();
    loop {
        let left: usize = stacks.iter().map(|&end| resident(end)).sum();
        if left <= CALLERS as usize * 80 {
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{left} KiB are left of {} stacks",
            stacks.len()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // The stacks can be used again.
    let binding = Binding::bind(&name, &TEST).unwrap();
    assert_eq!(binding.call::<_, u32>(1, &(USED as u32, 0_u32)), Ok(128));
}

#[test]
fn an_overflow_in_a_handler_says_how_to_give_handlers_more() {
    if std::env::var_os(CHILD).is_some() {
        let name = unique("overflow");
        let (_server, _) = serve_deep(&name, 1);
        let binding = Binding::bind(&name, &TEST).unwrap();
        let answer = binding.call::<_, u32>(1, &(4096_u32, 0_u32));
        unreachable!("the server is gone, and with it this process: {answer:?}");
    }
    let test = "stacks::an_overflow_in_a_handler_says_how_to_give_handlers_more";
    let mut command = Command::new(std::env::current_exe().unwrap());
    let child = command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
    assert_eq!(child.status.signal(), Some(11), "{child:?}");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(
        said.contains("a handler (thread number ")
            && said.contains("overflowed its stack of 1024 KiB"),
        "{said}"
    );
    assert!(said.contains("upcall::Server::stack_size"), "{said}");
}

#[test]
fn a_server_has_the_stacks_that_it_asks_for() {
    let name = unique("sized");
    let service = Deep { all: 1, here: AtomicU64::new(0), stacks: Addresses::default() };
    let _server = Server::new()
        .export(&name, Export::new(&TEST, service))
        .stack_size(8 << 20)
        .start()
        .unwrap();
    let binding = Binding::bind(&name, &TEST).unwrap();
    assert_eq!(binding.call::<_, u32>(1, &(4096_u32, 0_u32)), Ok(1024));
    // A stack size that is too large is an error at the start.
    let huge = Server::new()
        .export(&unique("huge"), Export::new(&TEST, Test(Arc::default())))
        .stack_size(1 << 40);
    assert!(huge.start().unwrap_err().to_string().contains("the largest is"));
    drop(serve(&unique("plain"), Pacing::Adaptive));
}
