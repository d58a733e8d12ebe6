//! Processes that ask the leader of a group that has formed, by hand.

use super::admission;
use super::admitted::STAY;
use super::gate::{BridgeGate, EarlyPair, PairSlot};
use super::home::{BridgeHome, BridgeTerms};
use super::opening_tests::{HandClient, LosesFirst, cable};
use super::pair::{FarPair, Pairs};
use super::pass::Pass;
use super::requests::{FarRequest, LateWelcome, PairReply, PetitionReply};
use super::tests::{GUARD, answer_to, eventually, member, patient_home, place};
use super::thread::Bridge;
use crate::builder::GroupBuilder;
use crate::error::{ExpectError, JoinError};
use crate::event::Event;
use crate::far::FarMembers;
use crate::group::Group;
use crate::invitation::{Invitation, InvitedHost};
use crate::kinds::Handlers;
use crate::member::{Member, MemberEvent, Roster};
use crate::petition::{MOST_PETITION, MOST_WAITING};
use crate::place::MachineKey;
use crate::wire::{Listed, ProcessKey, VERSION, pack, unpack};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};
use upcall_net::link::LinkSide;
use upcall_net::{
    FrameBody, FrameHeader, FrameKind, OutMessage, Protection, WireTerms, dial, new_link,
};
use upcall_sched::post::Post;

/// The only first member of a group, with room for three more. A process has few posts, so the
/// tests with such a member run one after another.
struct Leader {
    gate: Arc<BridgeGate>,
    member: Arc<Member>,
    _alone: MutexGuard<'static, ()>,
}

impl Leader {
    /// Expects these members from any host.
    fn expect(&self, ranks: Range<usize>) -> Result<Invitation, ExpectError> {
        self.gate.expect(ranks, InvitedHost::Any)
    }
}

impl std::ops::Deref for Leader {
    type Target = Arc<BridgeGate>;

    fn deref(&self) -> &Arc<BridgeGate> {
        &self.gate
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Some((_, pairs)) = self.gate.group() {
            pairs.iter().flatten().for_each(|pair| pair.hang_up());
        }
        self.gate.shut();
    }
}

/// A leader, and its address.
fn leader() -> (Leader, SocketAddr) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let member = member();
    let terms =
        BridgeTerms { room: 3, ..patient_home(&member, Duration::from_secs(5)).terms.clone() };
    let home = BridgeHome::new(&member, terms, Post::take().unwrap(), None);
    let gate = BridgeGate::new(&home);
    let address = admission::open(&gate, "127.0.0.1:0".parse().unwrap()).unwrap();
    home.issues_passes(0).unwrap();
    gate.begins_to_lead();
    let own = Listed { place: Some(place(address, 0)), ..Listed::absent() };
    let members = [vec![own], vec![Listed::absent(); 3]].concat();
    let roster = Roster { group: [7; 16], rank: 0, members, grows: true, pids: OnceLock::new() };
    let far = |rank: usize| (rank > 0).then(|| FarPair::new(rank, None, LinkSide::Server, &home));
    let pairs: Pairs = (0..4).map(far).collect();
    gate.formed(&Arc::new(roster), &pairs);
    (Leader { gate, member, _alone }, address)
}

fn application(rank: u32, invitation: &Invitation) -> FarRequest {
    application_from(rank, 1, invitation)
}

/// The application of a process that listens at this port.
fn application_from(rank: u32, port: u16, invitation: &Invitation) -> FarRequest {
    FarRequest::ApplyLate {
        version: VERSION,
        group: "g".into(),
        rank,
        total: 4,
        kinds: Vec::new(),
        process: ProcessKey::Numbered(1, 1),
        socket: "member.7.1f.1".into(),
        machine: MachineKey::unknown(),
        port,
        invitation: invitation.clone(),
    }
}

/// Asks the leader for a place.
fn apply_to(address: SocketAddr, request: &FarRequest) -> LateWelcome {
    unpack(&answer_to(address, &pack(request).unwrap())).unwrap()
}

/// The passes of a member that is admitted.
fn admitted(gate: &Leader, address: SocketAddr, rank: u32) -> Vec<Option<Pass>> {
    let invitation = gate.expect(rank as usize..rank as usize + 1).unwrap();
    match apply_to(address, &application(rank, &invitation)) {
        LateWelcome::Admitted { passes, .. } => passes,
        LateWelcome::Refused(why) => panic!("{why}"),
    }
}

/// A member that asks the leader to open the pair, and shows this pass.
fn opener(address: SocketAddr, from: u32, pass: Option<Pass>) -> HandClient {
    let (version, group, most) = (VERSION, [7; 16], 1 << 20);
    asks(
        address,
        &FarRequest::Open { version, group, from, to: 0, attempt: 1, port: 1, most, pass },
    )
}

/// A process with this request.
fn asks(address: SocketAddr, request: &FarRequest) -> HandClient {
    let head = FrameHeader { call: 1, ..FrameHeader::of(FrameKind::Ask) };
    let body = FrameBody::from(&*pack(request).unwrap());
    HandClient::asks(address, OutMessage { head, body, owner: None }, 2 * GUARD)
}

/// Asks the leader to open the pair. Returns why not.
fn opens(address: SocketAddr, from: u32, pass: Option<Pass>) -> Option<String> {
    match opener(address, from, pass).reply() {
        PairReply::Yes { .. } => None,
        PairReply::No(why) => Some(why),
        PairReply::Left => Some("it leaves".into()),
    }
}

#[test]
fn a_member_that_leaves_waits_for_none_that_joins_afterwards() {
    let (gate, address) = leader();
    let (first, second) = (admitted(&gate, address, 1), admitted(&gate, address, 2));
    let (_, pairs) = gate.group().unwrap();
    let bridge = Bridge::start(&gate.home, &gate, pairs.clone()).unwrap();
    let member = opener(address, 1, first[0]);
    member.expect_yes();
    member.knows();
    eventually("the pair is open", || pairs[1].as_ref().unwrap().way.is_open());
    let (done, has_left) = mpsc::channel();
    let leaves = std::thread::spawn(move || {
        bridge.leave();
        done.send(()).unwrap();
    });
    let leave = member.frames.recv_timeout(GUARD).unwrap();
    assert_eq!((leave.head.kind, &leave.body.words[..]), (FrameKind::Leave, &[1][..]));
    // It waits for the first one, and answers still.
    let reply = opener(address, 2, second[0]).reply();
    assert!(matches!(reply, PairReply::Left), "{reply:?}");
    let body = FrameBody { words: vec![2], len: 8 };
    member.wire.send(1, FrameHeader::of(FrameKind::Leave), body, None);
    has_left.recv_timeout(GUARD).unwrap();
    leaves.join().unwrap();
}

#[test]
fn a_newcomer_does_without_a_member_that_leaves() {
    let (gate, address) = leader();
    let invitation = gate.expect(2..3).unwrap();
    gate.leaves();
    gate.group().unwrap().1.iter().flatten().for_each(|pair| pair.leave());
    let group = joins(address, 2, invitation).unwrap();
    eventually("the leader has ended", || {
        group.poll();
        group.event() == Some(Event::Ended { rank: 0 })
    });
}

/// Each of these is on the same host and knows the group's identifier.
#[test]
fn no_member_takes_the_rank_of_another_one() {
    let (gate, address) = leader();
    let (first, second) = (admitted(&gate, address, 1), admitted(&gate, address, 2));
    assert!(first[0].is_some() && first[1..].iter().all(Option::is_none));
    assert!(second[..2].iter().all(Option::is_some) && second[2..].iter().all(Option::is_none));
    // The leader has admitted no member 3, and others do not know member 1's pass for it.
    for (from, pass) in [(3, second[0]), (3, None), (1, None), (1, second[0]), (1, second[1])] {
        let why = opens(address, from, pass).expect("a pair for a rank that is another's");
        assert!(why.contains(&format!("admitted no member {from}")), "{why}");
    }
    let (_, pairs) = gate.group().unwrap();
    assert!(pairs.iter().flatten().all(|pair| pair.is_dormant()));
    assert_eq!(opens(address, 1, first[0]), None);
    assert_eq!(opens(address, 2, second[0]), None);
}

/// The connection of the first attempt ends before the answer; the member may come from elsewhere.
#[test]
fn a_pair_that_is_not_opened_stays_dormant() {
    let (gate, address) = leader();
    let passes = admitted(&gate, address, 1);
    let mut link = new_link(Duration::ZERO).unwrap();
    let (until, terms) = (Instant::now() + GUARD, WireTerms::default());
    let (wire, _) = dial(address, &Protection::Clear, &mut link, terms, until).unwrap();
    wire.hang_up();
    let (slot, pass) = (PairSlot::from(OnceLock::from(None)), passes[0]);
    let (call, group, from, to, attempt, port, most) = (1, [7; 16], 1, 0, 1, 1, 1 << 20);
    gate.opens(EarlyPair { wire, slot, call, group, from, to, attempt, port, most, pass });
    assert!(gate.group().unwrap().1[1].as_ref().unwrap().is_dormant());
    assert_eq!(opens(address, 1, passes[0]), None);
}

/// A late member as programs have it.
fn joins(address: SocketAddr, rank: usize, shown: Invitation) -> Result<Group, JoinError> {
    let joining = GroupBuilder::new("g", 4).rank(rank).across(address.to_string());
    joining.late(rank..rank + 1, shown).within(GUARD).upcalls(false).join(Handlers::new())
}

/// The kernel accepts connections for a process that is stopped.
#[test]
fn a_member_that_answers_nothing_keeps_no_other_one_out_once_it_is_expelled() {
    let (gate, address) = leader();
    let stopped = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = stopped.local_addr().unwrap().port();
    let invitation = gate.expect(1..2).unwrap();
    let welcome = apply_to(address, &application_from(1, port, &invitation));
    let LateWelcome::Admitted { passes, .. } = welcome else { panic!("{welcome:?}") };
    gate.expel(&(1..2));
    assert_eq!(gate.expect(1..2), Err(ExpectError::Taken { rank: 1 }));
    let invitation = gate.expect(2..3).unwrap();
    drop(joins(address, 2, invitation).unwrap());
    // The expelled member is refused when it goes on.
    let why = opens(address, 1, passes[0]).expect("a pair with an expelled member");
    assert!(why.contains("has come too late"), "{why}");
}

#[test]
fn an_applicant_that_is_expelled_learns_that() {
    let (gate, address) = leader();
    let invitation = gate.expect(1..3).unwrap();
    std::thread::scope(|scope| {
        let applies = scope.spawn(|| apply_to(address, &application(1, &invitation)));
        eventually("it has applied", || gate.late.lock().count() == 1);
        gate.expel(&(2..3));
        match applies.join().unwrap() {
            LateWelcome::Refused(why) => assert!(why.contains("expelled"), "{why}"),
            LateWelcome::Admitted { .. } => panic!("an expelled applicant is admitted"),
        }
    });
    // The rank beside it is free.
    gate.expect(1..2).unwrap();
    assert_eq!(gate.expect(2..3), Err(ExpectError::Taken { rank: 2 }));
}

/// A member that was admitted may end before it has opened a pair with anyone.
#[test]
fn a_rank_whose_member_was_admitted_is_given_to_no_other_one() {
    let (gate, address) = leader();
    let apply = |rank, shown: &Invitation| apply_to(address, &application(rank, shown));
    let none = Invitation([0; 32]);
    let why = |welcome| match welcome {
        LateWelcome::Refused(why) => why,
        LateWelcome::Admitted { .. } => panic!("it is admitted"),
    };
    assert!(why(apply(1, &none)).contains("no member is expected"));
    let first = gate.expect(1..2).unwrap();
    match apply(1, &first) {
        LateWelcome::Admitted { group, members, .. } => {
            assert_eq!((group, members.len()), ([7; 16], 4));
            let known = members.iter().map(Option::is_some).collect::<Vec<_>>();
            assert_eq!(known, [true, true, false, false]);
        }
        LateWelcome::Refused(why) => panic!("{why}"),
    }
    assert_eq!(gate.expect(1..2), Err(ExpectError::Taken { rank: 1 }));
    // Only the same process gets the answer again.
    let other = apply_to(address, &application_from(1, 2, &first));
    assert!(why(other).contains("no member is expected"));
    assert!(why(apply(1, &none)).contains("does not show the invitation"));
    assert!(matches!(apply(1, &first), LateWelcome::Admitted { .. }));
    let second = gate.expect(2..3).unwrap();
    match apply(2, &second) {
        // The one before may still live.
        LateWelcome::Admitted { members, .. } => {
            assert!(members[1].as_ref().is_some_and(|one| one.socket.is_empty()));
        }
        LateWelcome::Refused(why) => panic!("{why}"),
    }
    for wild in [0, 4, u32::MAX] {
        assert!(matches!(apply(wild, &second), LateWelcome::Refused(_)), "{wild}");
    }
}

/// Requests of other versions have other fields, and the same beginning.
#[test]
fn late_members_and_petitioners_of_another_version_learn_that() {
    let (_gate, address) = leader();
    let (apply, petition) = (2_u32, 3_u32);
    for version in [VERSION - 1, VERSION + 1] {
        let names = |why: String| assert!(why.contains(&format!("version {version}")), "{why}");
        let request = |kind: u32| pack(&(kind, version, "other fields")).unwrap();
        match unpack(&answer_to(address, &request(apply))).unwrap() {
            LateWelcome::Refused(why) => names(why),
            LateWelcome::Admitted { .. } => panic!("version {version} joins"),
        }
        match unpack(&answer_to(address, &request(petition))).unwrap() {
            PetitionReply::Refused(why) => names(why),
            PetitionReply::Answer(_) => panic!("version {version} is answered"),
        }
    }
}

/// The leader's thread may compute for any time.
#[test]
fn petitions_are_bounded_while_the_leader_does_not_poll() {
    let (gate, address) = leader();
    let member = gate.member.clone();
    let waiting = || {
        let mut count = 0;
        member.look_at_news(|news| count += usize::from(matches!(news, MemberEvent::Asked(_))));
        count
    };
    let petition = |byte: u8| {
        asks(address, &FarRequest::Petition { version: VERSION, bytes: vec![byte; MOST_PETITION] })
    };
    let reply = |client: &HandClient| {
        let frame = client.frames.recv_timeout(GUARD).expect("an answer");
        unpack::<PetitionReply>(&frame.body.to_vec()).unwrap()
    };
    let is_refused = |client: &HandClient| match reply(client) {
        PetitionReply::Refused(why) => why.contains("too many"),
        PetitionReply::Answer(_) => false,
    };
    let mut clients = (0..MOST_WAITING as u8).map(petition).collect::<Vec<_>>();
    eventually("all have asked", || waiting() == MOST_WAITING);
    assert!(is_refused(&petition(99)));
    // Of a process that has gone nothing is kept.
    clients[3].wire.hang_up();
    eventually("its petition is dropped", || gate.wires.petitions() == MOST_WAITING - 1);
    assert_eq!(waiting(), MOST_WAITING - 1);
    clients[3] = petition(3);
    eventually("there is room for another one", || waiting() == MOST_WAITING);
    // A petition counts until it is answered.
    let taken = member.news();
    assert_eq!((taken.len(), waiting()), (MOST_WAITING, 0));
    assert!(is_refused(&petition(99)));
    for news in taken {
        let MemberEvent::Asked(petition) = news else { panic!("{news:?}") };
        let byte = petition.bytes()[0];
        petition.answer(&[byte]);
        let reply = reply(&clients[usize::from(byte)]);
        assert!(matches!(reply, PetitionReply::Answer(bytes) if bytes == [byte]));
    }
    let _last = petition(0);
    eventually("there is room again", || waiting() == 1);
}

/// A trusted process that is no member takes connections, and memory for what it asks.
#[test]
fn a_connection_without_a_place_ends_after_a_while() {
    let (gate, address) = leader();
    let passes = admitted(&gate, address, 1);
    let member = opener(address, 1, passes[0]);
    member.expect_yes();
    let petition = FarRequest::Petition { version: VERSION, bytes: vec![7] };
    let waits = asks(address, &petition);
    eventually("it waits", || gate.wires.petitions() == 1);
    let refused = asks(address, &application(3, &Invitation([0; 32])));
    assert!(refused.frames.recv_timeout(GUARD).is_ok());
    let is_over = |client: &HandClient| {
        let ended = client.frames.recv_timeout(GUARD);
        assert_eq!(ended.map(|_| ()), Err(mpsc::RecvTimeoutError::Disconnected));
    };
    // Too long a request ends at once.
    let head = FrameHeader { call: 1, ..FrameHeader::of(FrameKind::Ask) };
    let body = FrameBody::from(&*vec![7; 2 * gate.most_asked]);
    is_over(&HandClient::asks(address, OutMessage { head, body, owner: None }, 2 * GUARD));
    let now = Instant::now();
    assert!(gate.wires.due(now).is_some_and(|due| due > now));
    gate.wires.end_overdue(Instant::now() + STAY);
    is_over(&refused);
    for stays in [&member, &waits] {
        assert_eq!(stays.frames.try_recv(), Err(mpsc::TryRecvError::Empty));
    }
    // After its answer it has a while, too.
    drop(gate.member.news());
    assert!(waits.frames.recv_timeout(GUARD).is_ok());
    eventually("it is answered", || gate.wires.petitions() == 0);
    gate.wires.end_overdue(Instant::now() + STAY);
    is_over(&waits);
    assert_eq!(member.frames.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert_eq!(gate.wires.due(Instant::now()), None);
}

/// The connection is lost after the leader has admitted the applicant.
#[test]
fn an_applicant_whose_answer_is_lost_gets_it_again() {
    let (gate, address) = leader();
    let invitation = gate.expect(2..3).unwrap();
    drop(joins(cable(address, LosesFirst::Answer), 2, invitation).unwrap());
}

#[test]
fn an_applicant_that_applies_again_replaces_its_lost_connection() {
    let (gate, address) = leader();
    let invitation = gate.expect(1..3).unwrap();
    let _first = asks(address, &application(1, &invitation));
    eventually("it has applied", || gate.late.lock().count() == 1);
    let again = asks(address, &application(1, &invitation));
    assert!(matches!(
        apply_to(address, &application_from(1, 2, &invitation)),
        LateWelcome::Refused(why) if why.contains("taken")
    ));
    let last = asks(address, &application(2, &invitation));
    for client in [&again, &last] {
        let frame = client.frames.recv_timeout(GUARD).expect("an answer");
        let welcome = unpack(&frame.body.to_vec()).unwrap();
        assert!(matches!(welcome, LateWelcome::Admitted { .. }), "{welcome:?}");
    }
}

/// The leader has listed a member that does not answer, and learns of it only then.
#[test]
fn a_join_goes_on_once_the_member_is_expelled_for_which_it_waits() {
    let (gate, address) = leader();
    let stopped = TcpListener::bind("127.0.0.1:0").unwrap();
    let invitation = gate.expect(1..2).unwrap();
    let port = stopped.local_addr().unwrap().port();
    let welcome = apply_to(address, &application_from(1, port, &invitation));
    assert!(matches!(welcome, LateWelcome::Admitted { .. }));
    let invitation = gate.expect(2..3).unwrap();
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| joins(address, 2, invitation).map(drop));
        stopped.set_nonblocking(true).unwrap();
        let mut waiting = None;
        eventually("it waits for the stopped member", || {
            waiting = stopped.accept().ok();
            waiting.is_some()
        });
        gate.expel(&(1..2));
        newcomer.join().unwrap().unwrap();
    });
}

/// The reason for which an applicant is refused.
fn refusal(address: SocketAddr, request: &FarRequest) -> String {
    match apply_to(address, request) {
        LateWelcome::Refused(why) => why,
        LateWelcome::Admitted { .. } => panic!("it is admitted: {request:?}"),
    }
}

/// A trusted process knows all of an application but the invitation. It tries many.
#[test]
fn no_process_without_the_invitation_takes_the_place_of_one_that_was_invited() {
    let (gate, address) = leader();
    let other = gate.expect(1..2).unwrap();
    gate.expect_no_more(&(1..2));
    let invitation = gate.expect(1..2).unwrap();
    let second = gate.expect(2..4).unwrap();
    let flipped = |at: usize| {
        let mut bytes = invitation.0;
        bytes[at / 8] ^= 1 << (at % 8);
        Invitation(bytes)
    };
    let key = Invitation(gate.home.issuer().unwrap().key_of(1));
    // Of batches that were given up, of another batch, and guesses.
    let wrong = [other, second.clone(), key, Invitation([0; 32])].into_iter();
    for wrong in wrong.chain((0..256).step_by(17).map(flipped)) {
        let why = refusal(address, &application(1, &wrong));
        assert!(why.contains("does not show the invitation to join with rank 1"), "{why}");
        assert_eq!(gate.late.lock().count(), 0);
    }
    let why = refusal(address, &application(2, &invitation));
    assert!(why.contains("rank 2"), "{why}");
    // The place is free for the process that was invited, and stays its own afterwards.
    let admitted = apply_to(address, &application(1, &invitation));
    assert!(matches!(admitted, LateWelcome::Admitted { .. }), "{admitted:?}");
    let why = refusal(address, &application(1, &second));
    assert!(why.contains("does not show the invitation"), "{why}");
    let again = apply_to(address, &application(1, &invitation));
    assert!(matches!(again, LateWelcome::Admitted { .. }), "{again:?}");
}

/// The invitation has leaked to a process of another trusted host.
#[test]
fn an_invitation_is_worth_nothing_on_another_host_than_the_one_that_asked() {
    let (gate, address) = leader();
    let there = InvitedHost::Only(Some("7f".repeat(32)));
    let invitation = gate.gate.expect(1..2, there).unwrap();
    let why = refusal(address, &application(1, &invitation));
    assert!(why.contains("invited to join with rank 1 is on another host"), "{why}");
    assert_eq!(gate.late.lock().count(), 0);
    gate.expect_no_more(&(1..2));
    let invitation = gate.gate.expect(1..2, InvitedHost::Only(None)).unwrap();
    let admitted = apply_to(address, &application(1, &invitation));
    assert!(matches!(admitted, LateWelcome::Admitted { .. }), "{admitted:?}");
}
