//! Which processes have which memory, as the kernel reports it for all processes (URPC, section
//! 3.2).
//!
//! Memory files have no names that could be opened, so there are two ways to reach one: a mapping,
//! and a descriptor, which could be passed on. The test checks both, in every process of the
//! machine that it may inspect.

use crate::{in_company, place};
use std::collections::{BTreeMap, BTreeSet};
use upcall_tests::party::Party;
use upcall_tests::usage::{Held, mapped_memory, open_memory, processes};

/// Returns, for each memory file by its number, the processes that have it mapped, and whether they
/// may write.
fn mappers() -> BTreeMap<u64, BTreeSet<(u32, bool)>> {
    let mut all: BTreeMap<u64, BTreeSet<(u32, bool)>> = BTreeMap::new();
    for pid in processes() {
        for Held { inode, writable, .. } in mapped_memory(pid) {
            all.entry(inode).or_default().insert((pid, writable));
        }
    }
    all
}

/// Returns the numbers of the files of this kind that a process has mapped.
fn of_kind(party: &Party, kind: &str) -> BTreeSet<u64> {
    mapped_memory(party.pid())
        .into_iter()
        .filter(|held| held.kind == kind)
        .map(|held| held.inode)
        .collect()
}

/// Gives a client everything that a client can have: a channel, A-stacks, and a segment.
fn bound(client: &mut Party) {
    client.ask("bind trial").expect_ok("binding");
    for call in ["null", "sum 1000", "sum 200000", "make 200000"] {
        client.ask(call).expect_ok(call);
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "steps of one story, each of which needs those before")]
fn no_third_process_has_a_channels_memory() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial spares=0");
    let mut clients = [place.client(), place.client()];
    clients.iter_mut().for_each(bound);

    // A second interface of the same server uses the same memory. Its binding adds A-stacks of its
    // own if its procedures need any.
    for client in &mut clients {
        let before = mapped_memory(client.pid());
        client.ask("bind trial.small as small").expect_ok("another interface");
        assert_eq!(
            mapped_memory(client.pid()),
            before,
            "an interface that needs no A-stack maps nothing"
        );
        client.ask("bind trial").expect_ok("another binding");
        client.ask("sum 1000").expect_ok("a call through it");
        assert_eq!(of_kind(client, "channel").len(), 1, "one channel for all");
    }

    let (mappers, server) = (mappers(), server.pid());
    let all = [server, clients[0].pid(), clients[1].pid()];
    let mut owners = BTreeMap::new();
    for client in &clients {
        for kind in ["channel", "astacks", "segment"] {
            let files = of_kind(client, kind);
            assert!(!files.is_empty(), "process {} has no {kind}", client.pid());
            for file in files {
                let who = &mappers[&file];
                println!("    {kind} {file}: {who:?}");
                assert_eq!(
                    *who,
                    [(server, true), (client.pid(), true)].into(),
                    "{kind} {file}: only its client and its server"
                );
                assert_eq!(
                    owners.insert(file, client.pid()),
                    None,
                    "{kind} {file} is of both clients"
                );
            }
        }
    }

    // Processes that may read a station may not write it; only the domain that it belongs to may.
    for owner in all {
        let own: Vec<Held> = mapped_memory(owner)
            .into_iter()
            .filter(|held| held.kind == "station" && held.writable)
            .collect();
        let [Held { inode: station, .. }] = own[..] else {
            panic!("process {owner} has one station: {own:?}")
        };
        let readers: BTreeSet<u32> =
            if owner == server { [all[1], all[2]].into() } else { [server].into() };
        let expected: BTreeSet<_> =
            readers.iter().map(|&reader| (reader, false)).chain([(owner, true)]).collect();
        println!("    station {station} of {owner}: {:?}", mappers[&station]);
        assert_eq!(mappers[&station], expected, "the station of process {owner}");
        owners.insert(station, owner);
    }
    // The remaining files belong to the server alone: it keeps the A-stacks of a binding that has
    // ended until the channel ends.
    for Held { kind, inode, .. } in all.into_iter().flat_map(mapped_memory) {
        owners.entry(inode).or_insert_with(|| {
            assert_eq!(
                mappers[&inode],
                [(server, true)].into(),
                "{kind} {inode} belongs to the server alone"
            );
            server
        });
    }

    // A file that is mapped on both sides is no longer open anywhere. A domain keeps only its own
    // station open, and its tallies, to pass them to the next server that it binds to and to any
    // process that asks.
    for pid in processes() {
        for Held { kind, inode, .. } in open_memory(pid) {
            if let Some(&owner) = owners.get(&inode) {
                assert!(
                    ["station", "tallies"].contains(&&*kind) && owner == pid,
                    "process {pid} has {kind} {inode} of process {owner} open"
                );
            }
        }
    }
}
