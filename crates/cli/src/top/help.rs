//! The help of `upcall top`: the keys, and the columns of a view.

use super::views::{Of, VIEWS, View};

/// The keys with what they do: briefly for the last line of the screen, the most important first,
/// and in full.
const KEYS: [(&str, &str, &str); 7] = [
    ("?", "help", "show or hide this help"),
    ("q", "quit", "quit; Esc and Ctrl-C do the same"),
    ("tab", "next view", "show the next view; shift-tab the one before"),
    ("left/right", "sort by", "sort by another column, shown or not"),
    ("r", "reverse", "reverse the order"),
    ("up/down", "scroll", "scroll"),
    ("space", "hold", "hold the view, or let it go on"),
];

/// The last line of the screen: as many keys as there is room for.
pub fn keys(width: u16, left_out: usize) -> String {
    let mut line = String::new();
    for (key, brief, _) in KEYS {
        let next = format!("{}{key}: {brief}", if line.is_empty() { "" } else { "   " });
        if line.len() + next.len() <= usize::from(width) {
            line += &next;
        }
    }
    let note = match left_out {
        0 => return line,
        1 => "   (1 column hidden)".to_string(),
        more => format!("   ({more} columns hidden)"),
    };
    // The note takes the place of keys that the help shows as well.
    while line.len() + note.len() > usize::from(width) {
        match line.rfind("   ") {
            Some(at) => line.truncate(at),
            None => return line,
        }
    }
    line + &note
}

const BINDINGS: [(&str, &str); 14] = [
    ("CLIENT", "process, or address on another machine"),
    ("SERVER", "process"),
    ("CALLS/S", "calls a second"),
    ("ERRORS", "calls that ended without a result"),
    ("IN/S OUT/S", "bytes of arguments and results"),
    ("P50 P99", "half and 99% of calls take less in the server"),
    ("SPIN", "share of calls found by polling"),
    ("DONATE", "… on a processor that the caller gave"),
    ("HAND", "share of calls that woke the server there"),
    ("WAKE", "… or on another processor"),
    ("WAIT", "share of calls that waited for others"),
    ("NET", "share of calls from another machine"),
    ("", ""),
    ("", "`upcall stat --help` says more"),
];

const MEMBERS: [(&str, &str); 9] = [
    ("SENT/S", "messages a second"),
    ("TAKEN/S", "messages a second"),
    ("WAITING", "messages that wait to be taken"),
    ("BUFFERED", "share of messages sent by a buffer"),
    ("HELD LIMIT", "memory of the buffer, and its maximum"),
    ("STOPS", "how often the member was stopped at its limit"),
    ("REFUSED", "connections, queues and messages refused"),
    ("", ""),
    ("", "docs/reference/messages.md says more"),
];

const OBJECTS: [(&str, &str); 9] = [
    ("HOLDS", "processes that may write the object"),
    ("CHANGES/S", "operations under the lock"),
    ("URGENT/S", "urgent invocations of the home"),
    ("INVOKED/S", "ordinary invocations"),
    ("AUTO/S", "operations for which `auto` chose the way"),
    ("%LOCK %LOOK", "shares of its ways: under the lock, a look"),
    ("%URG", "… and an urgent invocation"),
    ("HOLDER", "process in an operation now"),
    ("", "docs/reference/objects.md says more"),
];

/// The lines of the help for a view.
pub fn text(view: &View, width: u16) -> Vec<String> {
    let columns: &[(&str, &str)] = match view.of {
        Of::Bindings => &BINDINGS,
        Of::Members => &MEMBERS,
        Of::Objects => &OBJECTS,
    };
    let mut lines = vec!["Keys".to_string()];
    lines.extend(KEYS.map(|(key, _, meaning)| format!("  {key:<11} {meaning}")));
    let views: Vec<_> = VIEWS.iter().map(|view| view.title).collect();
    lines.push(format!("Views: {}", views.join(", ")));
    lines.push(format!("Columns of this view ({})", view.title));
    lines.extend(columns.iter().map(|(head, meaning)| format!("  {head:<11} {meaning}")));
    let cut = |line: &String| line.trim_end().chars().take(usize::from(width)).collect();
    lines.iter().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_the_keys_for_which_there_is_room() {
        assert_eq!(keys(120, 0).matches(": ").count(), KEYS.len());
        assert_eq!(keys(60, 0), "?: help   q: quit   tab: next view   left/right: sort by");
        assert_eq!(keys(60, 3), "?: help   q: quit   tab: next view   (3 columns hidden)");
        assert_eq!(keys(9, 1), "?: help");
        for width in 0..130 {
            assert!(keys(width, 2).len() <= usize::from(width));
        }
    }

    #[test]
    fn the_help_fits_a_small_screen() {
        for view in &VIEWS {
            let lines = text(view, 200);
            let widest = lines.iter().map(|line| line.chars().count()).max();
            assert!(widest <= Some(77) && lines.len() <= 26, "{lines:#?}");
            assert!(text(view, 60).iter().all(|line| line.chars().count() <= 60));
        }
    }
}
