use super::*;
use crate::error::Lack;
use std::thread;
use upcall_os::atomic::AtomicU32;
use upcall_os::socket::Listener;
use upcall_sched::post::Post;
use upcall_shm::account::MemberStats;
use upcall_shm::station::Station;

/// A member, and the connection of its queue to a receiver in this process, which lives.
struct Scene {
    member: Arc<Member>,
    near: FarEnd,
    far: Option<Connection>,
    _door: Listener,
}

impl Scene {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("upcall-link-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let socket = std::env::temp_dir().join(&name);
        let door = Listener::bind(&socket).unwrap();
        let account = MemberStats::open(&name, 2, 1 << 20).unwrap();
        let process = ProcessKey::own().unwrap();
        let member = Member::new(socket.clone(), process, Post::take().unwrap(), account);
        let (connection, far) = Connection::pair().unwrap();
        let near = FarEnd {
            connection,
            bringing: Bringing { rank: 1, number: 7 },
            process,
            socket,
            member: Arc::downgrade(&member),
            opening: AtomicBool::new(false),
            heard: KernelMutex::new(ConnectionState::Nothing),
            left: AtomicBool::new(false),
        };
        Self { member, near, far: Some(far), _door: door }
    }

    /// The receiver answers, or hangs up.
    fn say(&mut self, answer: Option<(&QueueOpenReply, &[BorrowedFd<'_>])>) {
        match answer {
            Some((answer, descriptors)) => {
                self.far.as_ref().unwrap().send(&wire::pack(answer).unwrap(), descriptors).unwrap();
            }
            None => self.far = None,
        }
    }

    /// The events since the last call.
    fn news(&self) -> Vec<&'static str> {
        let told = |news| match news {
            MemberEvent::Reads(..) => "reads",
            MemberEvent::Refuses(_, QueueRefusal::ForNow(ForNow::Lacks(_))) => "lacks",
            MemberEvent::Refuses(_, QueueRefusal::ForNow(ForNow::HungUp)) => "hung up",
            MemberEvent::Refuses(_, QueueRefusal::ForGood(_)) => "for good",
            _ => "else",
        };
        self.member.news().into_iter().map(told).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.member.leave();
    }
}

const LACKS: QueueOpenReply = QueueOpenReply::Lacks(Lacks { lack: Lack::Memory, errno: None });

#[test]
fn the_end_of_a_connection_is_judged_by_what_came_before() {
    // A refusal and the end: read by one thread, or the end by another one later.
    let mut scene = Scene::new();
    scene.say(Some((&LACKS, &[])));
    assert!(!scene.near.hear(&scene.member, ConnectionReader::Clerk));
    scene.say(None);
    assert!(!scene.near.hear(&scene.member, ConnectionReader::Clerk));
    assert_eq!(scene.news(), ["lacks"]);
    // The end alone.
    let mut scene = Scene::new();
    assert!(scene.near.hear(&scene.member, ConnectionReader::Clerk));
    scene.say(None);
    assert!(
        !scene.near.hear(&scene.member, ConnectionReader::Clerk)
            && !scene.near.hear(&scene.member, ConnectionReader::Clerk)
    );
    assert_eq!(scene.news(), ["hung up"]);
    // The end after the queue was taken.
    let (mut scene, station) = (Scene::new(), Station::new().unwrap());
    scene.say(Some((&QueueOpenReply::Yes { line: 0, makes_fences: true }, &[station.as_fd()])));
    assert!(scene.near.hear(&scene.member, ConnectionReader::Clerk));
    scene.say(None);
    assert!(!scene.near.hear(&scene.member, ConnectionReader::Clerk));
    assert_eq!(scene.news(), ["reads", "for good"]);
}

/// A process without memory to map a station notifies for each message. The test runs itself in a
/// process of its own, in which no other test needs memory.
#[test]
fn a_queue_is_kept_without_memory_for_the_station_of_its_receiver() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const ALONE: &str = "UPCALL_TEST_WITHOUT_MEMORY";
    if std::env::var_os(ALONE).is_none() {
        let name =
            "bringing::tests::a_queue_is_kept_without_memory_for_the_station_of_its_receiver";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let ended =
            alone.args([name, "--exact", "--test-threads=1"]).env(ALONE, "").output().unwrap();
        return assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    }
    let (mut scene, station) = (Scene::new(), Station::new().unwrap());
    scene.say(Some((&QueueOpenReply::Yes { line: 0, makes_fences: true }, &[station.as_fd()])));
    let Ok(Received::Message(message)) = scene.near.connection.receive() else {
        panic!("no answer")
    };
    let before = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(0), ..before }).unwrap();
    let answer = said(message);
    setrlimit(Resource::As, before).unwrap();
    assert!(matches!(answer, Ok(OfferReply::Reads(None))), "{:?}", answer.err());
}

/// The two threads are the clerk and the thread that sends.
#[test]
fn two_threads_that_read_at_once_hear_one_refusal() {
    for _ in 0..300 {
        let mut scene = Scene::new();
        thread::scope(|scope| {
            let hear = || while scene.near.hear(&scene.member, ConnectionReader::Clerk) {};
            let far = scene.far.take().unwrap();
            let readers = [scope.spawn(hear), scope.spawn(hear)];
            far.send(&wire::pack(&LACKS).unwrap(), &[]).unwrap();
            drop(far);
            for reader in readers {
                reader.join().unwrap();
            }
        });
        assert_eq!(scene.news(), ["lacks"]);
    }
}
