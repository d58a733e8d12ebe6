//! Which servers poll where not all can: those that their client calls most (LRPC, section 3.4).

use crate::{alone, place};
use upcall_os::processor::CpuSet;
use upcall_tests::usage::switches;

const CALLS: u64 = 16_000;

#[test]
fn the_spare_processor_goes_to_the_server_that_is_called_most() {
    let _alone = alone();
    let all = CpuSet::allowed().expect("where we may run");
    if all.count() < 2 {
        println!("    skipped: two processors are needed");
        return;
    }
    let place = place();
    let names: Vec<String> = (0..4).map(|n| format!("server{n}")).collect();
    let two = all.iter().skip(2).fold(all.clone(), |rest, cpu| rest.without(cpu));
    two.confine().expect("two processors");
    let servers: Vec<_> = names.iter().map(|name| place.serve(name)).collect();
    CpuSet::only(all.iter().next().expect("a processor")).confine().expect("one processor");
    let mut client = place.client();
    all.confine().expect("all processors");
    client.ask(&format!("bind-several {}", names.join(","))).expect_ok("bindings");
    for hot in [2, 0] {
        // Other programs that want the processors take them from the server that polls. Of some
        // turns, one without them is enough.
        let turn = |client: &mut upcall_tests::party::Party| {
            let before: Vec<u64> = servers.iter().map(|server| switches(server.pid())).collect();
            client.ask(&format!("nulls-mostly {hot} {CALLS}")).expect_ok("calls");
            let spent =
                servers.iter().zip(before).map(|(server, before)| switches(server.pid()) - before);
            let calls = |at: usize| if at == hot { CALLS * 13 / 16 } else { CALLS / 16 };
            spent.enumerate().map(|(at, spent)| spent as f64 / calls(at) as f64).collect::<Vec<_>>()
        };
        let good = |each: &Vec<f64>| {
            each.iter()
                .enumerate()
                .all(|(at, &each)| if at == hot { each < 0.2 } else { each > 0.8 })
        };
        let turns: Vec<_> =
            (0..40).map(|_| turn(&mut client)).take_while(|each| !good(each)).collect();
        println!(
            "    server {hot} polls after {} turns; switches a call in those: {turns:.2?}",
            turns.len() + 1
        );
        assert!(
            turns.len() < 40,
            "server {hot} does not poll, or others do: switches a call {:.2?}",
            turns.last()
        );
    }
}
