//! The stacks that calls run on: their size, where their memory goes, and what an overflow says.

use super::{TEST, Test, serve, unique};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use upcall_rpc::{Binding, Call, Dispatch, Export, Pacing, Replied, Server};

const CHILD: &str = "UPCALL_TEST_STACKS";
const KIB: usize = 1024;

/// Uses as many KiB of stack: a page for each frame, as unoptimised code does.
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
    /// An address on one of their stacks.
    stack: Arc<AtomicUsize>,
}

impl Dispatch for Deep {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        call.respond(|args| {
            let frames = deep(args.get::<u32>(0)? as usize);
            self.stack.store(std::ptr::from_ref(&frames).addr(), Ordering::SeqCst);
            self.here.fetch_add(1, Ordering::SeqCst);
            while self.here.load(Ordering::SeqCst) < self.all {
                upcall_thread::sleep(Duration::from_millis(1));
            }
            Ok(frames as u32)
        })
    }
}

fn serve_deep(name: &str, all: u64) -> (upcall_rpc::Running, Arc<AtomicUsize>) {
    let stack = Arc::new(AtomicUsize::new(0));
    let service = Deep { all, here: AtomicU64::new(0), stack: stack.clone() };
    (Server::new().export(name, Export::new(&TEST, service)).start().unwrap(), stack)
}

/// KiB of memory in the mapping that holds this address.
fn resident(address: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut within = false;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap();
        if let Some((from, to)) = first.split_once('-') {
            let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).unwrap());
            within = (from..to).contains(&address);
        } else if within && first == "Rss:" {
            return words.next().unwrap().parse().unwrap();
        }
    }
    panic!("{address:#x} is not mapped");
}

/// Handlers do not need to know that their stacks are not a kernel thread's: half a mebibyte is
/// what decoders take that are compiled without optimisation.
#[test]
fn handlers_have_half_a_mebibyte_of_stack_and_more_which_goes_back() {
    const CALLERS: u64 = 8;
    let name = unique("deep");
    let (_server, stack) = serve_deep(&name, CALLERS);
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let binding = Binding::bind(&name, &TEST).unwrap();
                assert_eq!(binding.call::<_, u32>(1, &(512_u32, 0_u32)), Ok(128));
            });
        }
    });
    // The last one is still warm, or has just become cool, too.
    let stack = stack.load(Ordering::SeqCst);
    let begun = Instant::now();
    while resident(stack) > CALLERS as usize * 80 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} KiB are left of 8 stacks", resident(stack));
        std::thread::sleep(Duration::from_millis(20));
    }
    // They are of use again.
    let binding = Binding::bind(&name, &TEST).unwrap();
    assert_eq!(binding.call::<_, u32>(1, &(512_u32, 0_u32)), Ok(128));
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
    assert!(said.contains("a handler (thread number ") && said.contains("overflowed its stack of 1024 KiB"), "{said}");
    assert!(said.contains("upcall_rpc::Server::stack_size"), "{said}");
}

#[test]
fn a_server_has_the_stacks_that_it_asks_for() {
    let name = unique("sized");
    let service = Deep { all: 1, here: AtomicU64::new(0), stack: Arc::default() };
    let _server = Server::new().export(&name, Export::new(&TEST, service)).stack_size(8 << 20).start().unwrap();
    let binding = Binding::bind(&name, &TEST).unwrap();
    assert_eq!(binding.call::<_, u32>(1, &(4096_u32, 0_u32)), Ok(1024));
    // Too large is an error at the start.
    let huge = Server::new().export(&unique("huge"), Export::new(&TEST, Test(Arc::default()))).stack_size(1 << 40);
    assert!(huge.start().unwrap_err().to_string().contains("the largest is"));
    drop(serve(&unique("plain"), Pacing::Adaptive));
}
