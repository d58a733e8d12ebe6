//! What the screen shows, and what keys do.

use super::screen::{KeyOutcome, Screen};
use super::watched::IntervalActivity;
use crate::members::MemberActivity;
use crate::objects::{Each, ObjectActivity, ObjectHold, Ways};
use crate::stat::BindingRow;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::time::Duration;

fn row(name: &str, calls: u64, bytes_in: u64) -> BindingRow {
    BindingRow {
        name: name.into(),
        client: 7,
        server: 8,
        calls,
        calls_per_s: Some(calls as f64 * 2.0),
        bytes_in,
        ..BindingRow::default()
    }
}

/// The lines of the screen, without the spaces at their ends.
fn shown(screen: &mut Screen) -> Vec<String> {
    shown_wide(screen, 100)
}

fn shown_wide(screen: &mut Screen, columns: u16) -> Vec<String> {
    shown_at(screen, columns, 6)
}

fn shown_at(screen: &mut Screen, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..buffer.area.height).map(|y| line(y).trim_end().to_string()).collect()
}

fn press(screen: &mut Screen, code: KeyCode) -> bool {
    screen.press(KeyEvent::new(code, KeyModifiers::NONE)) == KeyOutcome::Quit
}

#[test]
fn the_other_picture_tells_how_servers_came_to_calls() {
    let mut screen = Screen::default();
    let polled = BindingRow { spins: 990, waits: 10, ..row("polled", 1000, 0) };
    let handed = BindingRow { hand_offs: 60, donations: 40, ..row("handed", 100, 0) };
    screen.renew(IntervalActivity { rows: vec![handed, polled], ..IntervalActivity::default() });
    // Sorted by bytes, which the second view does not show, so it is sorted by calls.
    press(&mut screen, KeyCode::Right);
    press(&mut screen, KeyCode::Right);
    press(&mut screen, KeyCode::Tab);
    let lines = shown(&mut screen);
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(
        words(&lines[1]),
        ["NAME", "CLIENT", "SERVER", "CALLS/Sv", "SPIN", "DONATE", "HAND", "WAKE", "WAIT", "NET"]
    );
    assert_eq!(words(&lines[2]), ["polled", "7", "8", "2000", "99%", "-", "-", "-", "1%", "-"]);
    assert_eq!(words(&lines[3]), ["handed", "7", "8", "200", "-", "40%", "60%", "-", "-", "-"]);
    (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Right));
    assert!(shown(&mut screen)[1].contains("HANDv") && shown(&mut screen)[2].starts_with("handed"));
    (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Left));
    (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Tab));
    assert!(shown(&mut screen)[1].contains("CALLS/Sv") && shown(&mut screen)[1].contains("P99"));
}

#[test]
fn servers_of_other_users_are_counted_with_the_way_to_ask_them() {
    let mut screen = Screen::default();
    let mut top = |others: &[Option<u32>]| {
        screen.renew(IntervalActivity { others: others.to_vec(), ..IntervalActivity::default() });
        shown_wide(&mut screen, 200)[0].clone()
    };
    assert!(top(&[Some(0)]).ends_with(", 1 server belongs to root: `--expect root` asks it"));
    assert!(top(&[None]).ends_with(": `--expect any` asks it"));
    let several = top(&[Some(0), Some(1)]);
    assert!(
        several.ends_with(", 2 servers belong to other users: `--expect USER` asks them"),
        "{several}"
    );
}

#[test]
fn servers_that_were_not_asked_are_not_called_silent() {
    let mut screen = Screen::default();
    screen.renew(IntervalActivity { unasked: 6, ..IntervalActivity::default() });
    assert_eq!(shown(&mut screen)[0], "0 bindings, 0 calls a second, 6 servers not asked");
}

#[test]
fn clients_on_other_machines_are_shown_by_their_addresses() {
    let mut screen = Screen::default();
    let near = BindingRow { local: 300, spins: 300, ..row("near", 300, 0) };
    let far = BindingRow {
        client: 0,
        address: Some("192.0.2.100:54321".parse().unwrap()),
        remote: 100,
        ..row("far", 100, 0)
    };
    screen.renew(IntervalActivity { rows: vec![near.clone(), far], ..IntervalActivity::default() });
    let lines = shown(&mut screen);
    assert_eq!(lines[0], "2 bindings, 800 calls a second, 75% local, 25% remote");
    assert!(lines[3].starts_with("far") && lines[3].contains(" 192.0.2.100:54321 "), "{lines:?}");
    press(&mut screen, KeyCode::Tab);
    (0..6).for_each(|_| _ = press(&mut screen, KeyCode::Right));
    let lines = shown(&mut screen);
    assert!(
        lines[1].ends_with("NETv") && lines[2].starts_with("far") && lines[2].ends_with("100%"),
        "{lines:?}"
    );
    screen.renew(IntervalActivity { rows: vec![near], ..IntervalActivity::default() });
    assert_eq!(shown(&mut screen)[0], "1 binding, 600 calls a second");
}

#[test]
fn the_busiest_come_first_and_keys_sort_otherwise() {
    let mut screen = Screen::default();
    screen.renew(IntervalActivity {
        rows: vec![row("slow", 10, 5000), row("quick", 1000, 0)],
        silent: 1,
        ..IntervalActivity::default()
    });
    let lines = shown(&mut screen);
    assert_eq!(lines[0], "2 bindings, 2020 calls a second, 1 server does not answer");
    assert!(lines[1].starts_with("NAME") && lines[1].contains("CALLS/Sv"), "{lines:?}");
    assert!(
        lines[2].starts_with("quick")
            && lines[2].contains(" 2000 ")
            && lines[3].contains("9.8 KiB"),
        "{lines:?}"
    );
    // Two columns on: by bytes in.
    assert!(!press(&mut screen, KeyCode::Right) && !press(&mut screen, KeyCode::Right));
    assert!(shown(&mut screen)[2].starts_with("slow"));
    press(&mut screen, KeyCode::Char('r'));
    assert!(shown(&mut screen)[2].starts_with("quick"));
    // A held view does not change.
    press(&mut screen, KeyCode::Char(' '));
    screen.renew(IntervalActivity::default());
    assert!(shown(&mut screen)[0].ends_with("held"));
    press(&mut screen, KeyCode::Char(' '));
    screen.renew(IntervalActivity::default());
    assert_eq!(shown(&mut screen)[0], "0 bindings, 0 calls a second");
    assert!(press(&mut screen, KeyCode::Char('q')));
    let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(screen.press(key), KeyOutcome::Quit);
}

#[test]
fn members_of_groups_have_a_picture_and_who_is_stopped_is_told_in_each() {
    let member = |rank, sent| MemberActivity {
        group: "flood".into(),
        rank: Some(rank),
        process: 70 + rank as u32,
        sent,
        sent_per_s: Some(sent as f64),
        limit_bytes: 4 << 20,
        ..MemberActivity::default()
    };
    let stopped = MemberActivity {
        stopped_s: Some(3.0),
        stopped_for: Some(1),
        held_bytes: 4 << 20,
        ..member(0, 10)
    };
    let mut screen = Screen::default();
    screen.renew(IntervalActivity {
        members: vec![stopped.clone(), member(1, 500)],
        ..IntervalActivity::default()
    });
    let lines = shown_at(&mut screen, 100, 8);
    assert_eq!(
        lines[0],
        "0 bindings, 0 calls a second; 2 members of groups, 510 messages a second"
    );
    let alarm = "overflow: member 0 of flood (process 70) is stopped for 3 s: it has buffered \
                 all of its 4 MiB, and member 1 takes too little";
    assert_eq!(lines[1..3].join(" "), alarm);
    assert!(lines[3].starts_with("NAME"), "{lines:?}");
    (0..2).for_each(|_| _ = press(&mut screen, KeyCode::Tab));
    let lines = shown_at(&mut screen, 100, 8);
    assert!(lines[3].starts_with("GROUP") && lines[3].contains("SENT/Sv"), "{lines:?}");
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(words(&lines[4])[..4], ["flood", "1", "71", "500"]);
    // Four columns on: by held memory.
    (0..4).for_each(|_| _ = press(&mut screen, KeyCode::Right));
    assert!(shown_at(&mut screen, 100, 8)[4].contains(" 70 "));
    let were = MemberActivity { stopped_s: None, stops: 2, ..stopped };
    screen.renew(IntervalActivity {
        members: vec![were.clone(), were],
        ..IntervalActivity::default()
    });
    assert!(shown(&mut screen)[1].contains("was stopped 2 times"));
    screen.renew(IntervalActivity { members: vec![member(0, 10)], ..IntervalActivity::default() });
    assert!(shown(&mut screen)[1].starts_with("GROUP"));
}
#[test]
fn objects_have_a_picture_with_who_holds_them_and_what_auto_chose() {
    let object = |name: &str, changes, chosen| ObjectActivity {
        name: name.into(),
        home: 70,
        state: "whole",
        changes,
        interval: Some(Duration::from_millis(500)),
        done: Ways { urgent: 40, invoked: 3, chosen, would_ns: None },
        holds: vec![ObjectHold::default(); 2],
        ..ObjectActivity::default()
    };
    let held = ObjectActivity {
        holder: Some(71),
        ..object("held", 10, Each { lock: 6, look: 2, urgent: 0 })
    };
    let busy = object("busy", 400, Each { lock: 0, look: 0, urgent: 40 });
    let mut screen = Screen::default();
    screen.renew(IntervalActivity {
        objects: vec![held, busy],
        unseen: 1,
        ..IntervalActivity::default()
    });
    let said = "0 bindings, 0 calls a second; 2 objects, 820 changes a second, 1 object cannot \
                be read";
    assert_eq!(shown(&mut screen)[0], said);
    (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Tab));
    let lines = shown_wide(&mut screen, 120);
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert!(lines[1].starts_with("OBJECT") && lines[1].contains(" CHANGES/Sv "), "{lines:?}");
    assert_eq!(
        words(&lines[2]),
        ["busy", "70", "2", "800", "80", "6", "80", "-", "-", "100%", "-", "whole"]
    );
    assert_eq!(
        words(&lines[3]),
        ["held", "70", "2", "20", "80", "6", "16", "75%", "25%", "-", "71", "whole"]
    );
    // By the share of operations under the lock, and by the holder.
    (0..4).for_each(|_| _ = press(&mut screen, KeyCode::Right));
    assert!(shown(&mut screen)[2].starts_with("held"));
    press(&mut screen, KeyCode::Char('r'));
    assert!(shown(&mut screen)[2].starts_with("busy"));
    (0..3).for_each(|_| _ = press(&mut screen, KeyCode::Right));
    assert!(
        shown_wide(&mut screen, 120)[1].contains("HOLDER^")
            && shown(&mut screen)[2].starts_with("busy")
    );
    press(&mut screen, KeyCode::Tab);
    assert!(shown(&mut screen)[1].contains("CALLS/S^"));
}

/// A screen with rows of all kinds, with long names and large numbers.
fn full() -> Screen {
    let mut screen = Screen::default();
    let far = Some("192.0.2.100:54321".parse().unwrap());
    let binding = BindingRow {
        p50_below_ns: Some(512),
        p99_below_ns: Some(4096),
        spins: 1_234_000,
        remote: 567,
        address: far,
        ..row("a-service-with-a-long-name", 1_234_567, 1 << 40)
    };
    let member = MemberActivity {
        group: "a-group-with-a-long-name".into(),
        rank: Some(17),
        process: 4_194_304,
        sent: 123_456,
        sent_per_s: Some(123_456.0),
        taken_per_s: Some(7.0),
        stopped_s: Some(3.0),
        stopped_for: Some(1),
        ..MemberActivity::default()
    };
    let object = ObjectActivity {
        name: "an-object-with-a-long-name".into(),
        home: 4_194_304,
        state: "poisoned",
        changes: 1_234_567,
        interval: Some(Duration::from_secs(1)),
        ..ObjectActivity::default()
    };
    screen.renew(IntervalActivity {
        rows: vec![binding],
        members: vec![member],
        objects: vec![object],
        silent: 2,
        unasked: 2,
        unseen: 2,
        others: Vec::new(),
    });
    screen
}

#[test]
fn each_view_fits_sixty_columns() {
    let mut screen = full();
    for (view, expected) in [
        &["NAME", "CALLS/Sv", "ERRORS", "IN/S", "P50", "P99"][..],
        &["NAME", "CALLS/Sv", "SPIN", "DONATE", "HAND", "WAKE", "WAIT"],
        &["GROUP", "RANK", "SENT/Sv", "TAKEN/S", "WAITING", "STATE"],
        &["OBJECT", "CHANGES/Sv", "URGENT/S", "INVOKED/S", "AUTO/S", "STATE"],
    ]
    .iter()
    .enumerate()
    {
        let lines = shown_at(&mut screen, 60, 24);
        let head = lines.iter().position(|line| line.starts_with(expected[0])).unwrap();
        let heads: Vec<_> = lines[head].split_whitespace().collect();
        assert_eq!(heads, *expected, "{lines:#?}");
        // Numbers are whole, and so is the text above the table.
        let (numbers, text) = (&lines[head + 1], lines[..head].join(" "));
        let whole = ["2469134", "2469134", "123456", "1234567"][view];
        assert!(numbers.split_whitespace().any(|word| word == whole), "{lines:#?}");
        assert!(text.contains("2 objects cannot be read"), "{lines:#?}");
        assert!(text.contains("member 1 takes too little"), "{lines:#?}");
        assert!(lines[23].starts_with("?: help   q: quit"), "{lines:#?}");
        assert!(lines[23].contains("hidden)"), "{lines:#?}");
        press(&mut screen, KeyCode::Tab);
    }
}

#[test]
fn a_hidden_column_is_shown_when_it_is_chosen() {
    let mut screen = full();
    assert!(!shown_at(&mut screen, 60, 12).join("\n").contains("CLIENT"));
    (0..2).for_each(|_| _ = press(&mut screen, KeyCode::Left));
    let lines = shown_at(&mut screen, 60, 12).join("\n");
    assert!(lines.contains("CLIENTv") && lines.contains(" 192.0.2.100:54321 "), "{lines}");
}

#[test]
fn a_question_mark_shows_the_keys_and_the_columns() {
    let mut screen = full();
    press(&mut screen, KeyCode::Char('?'));
    let lines = shown_at(&mut screen, 60, 40).join("\n");
    for part in ["show the next view", "quit; Esc", "scroll", "CALLS/S", "calls a second"] {
        assert!(lines.contains(part), "{part}: {lines}");
    }
    assert!(!lines.contains("a-service"), "{lines}");
    // The help scrolls, is of the view, and does not go past its end.
    (0..1000).for_each(|_| _ = press(&mut screen, KeyCode::Down));
    assert!(shown_at(&mut screen, 60, 20).join("\n").contains("upcall stat --help"));
    press(&mut screen, KeyCode::BackTab);
    assert!(screen.view == 3 && screen.help.is_some());
    // Esc closes the help first, and then ends the command.
    assert!(!press(&mut screen, KeyCode::Esc) && screen.help.is_none());
    assert!(press(&mut screen, KeyCode::Esc));
}
