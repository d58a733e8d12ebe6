//! Processes that ask the leader of a group that has formed, by hand.

use super::admission;
use super::gate::BridgeGate;
use super::home::{BridgeHome, BridgeTerms};
use super::pair::{FarPair, Pairs};
use super::requests::{FarRequest, LateWelcome, PetitionReply};
use super::tests::{answer_to, member, patient_home, place};
use crate::error::ExpectError;
use crate::member::Roster;
use crate::place::MachineKey;
use crate::wire::{Listed, ProcessKey, VERSION, pack, unpack};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use upcall_net::link::LinkSide;
use upcall_sched::post::Post;

/// The gate of the only first member, with room for three more, and its address.
fn leader() -> (Arc<BridgeGate>, SocketAddr) {
    let member = member();
    let terms =
        BridgeTerms { room: 3, ..patient_home(&member, Duration::from_secs(5)).terms.clone() };
    let home = BridgeHome::new(&member, terms, Post::take().unwrap(), None);
    let gate = BridgeGate::new(&home);
    let address = admission::open(&gate, "127.0.0.1:0".parse().unwrap()).unwrap();
    gate.begins_to_lead();
    let own = Listed { place: Some(place(address, 0)), ..Listed::absent() };
    let members = [vec![own], vec![Listed::absent(); 3]].concat();
    let roster = Roster { group: [7; 16], rank: 0, members, grows: true, pids: OnceLock::new() };
    let far = |rank: usize| (rank > 0).then(|| FarPair::new(rank, None, LinkSide::Server, &home));
    let pairs: Pairs = (0..4).map(far).collect();
    gate.formed(&Arc::new(roster), &pairs);
    // The member lives as long as the process: a gate only refers to it.
    std::mem::forget(member);
    (gate, address)
}

fn application(rank: u32) -> FarRequest {
    FarRequest::ApplyLate {
        version: VERSION,
        group: "g".into(),
        rank,
        total: 4,
        kinds: Vec::new(),
        process: ProcessKey::Numbered(1, 1),
        socket: "member.7.1f.1".into(),
        machine: MachineKey::unknown(),
        port: 1,
    }
}

/// A member that was admitted may end before it has opened a pair with anyone.
#[test]
fn a_rank_whose_member_was_admitted_is_given_to_no_other_one() {
    let (gate, address) = leader();
    let apply = |rank| {
        let answer = answer_to(address, &pack(&application(rank)).unwrap());
        unpack::<LateWelcome>(&answer).unwrap()
    };
    assert!(matches!(apply(1), LateWelcome::Refused(why) if why.contains("no member is expected")));
    gate.expect(1..2).unwrap();
    match apply(1) {
        LateWelcome::Admitted { group, members } => {
            assert_eq!((group, members.len()), ([7; 16], 4));
            let known = members.iter().map(Option::is_some).collect::<Vec<_>>();
            assert_eq!(known, [true, true, false, false]);
        }
        LateWelcome::Refused(why) => panic!("{why}"),
    }
    assert_eq!(gate.expect(1..2), Err(ExpectError::Taken { rank: 1 }));
    assert!(matches!(apply(1), LateWelcome::Refused(_)));
    gate.expect(2..3).unwrap();
    match apply(2) {
        // The one before may still live.
        LateWelcome::Admitted { members, .. } => {
            assert!(members[1].as_ref().is_some_and(|one| one.socket.is_empty()));
        }
        LateWelcome::Refused(why) => panic!("{why}"),
    }
    for wild in [0, 4, u32::MAX] {
        assert!(matches!(apply(wild), LateWelcome::Refused(_)), "{wild}");
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
