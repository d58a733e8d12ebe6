//! The cases: which clients load the server, and what the bystander does.

/// What the bystander does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A null call.
    Call,
    /// A bind that opens a channel.
    Bind,
}

impl What {
    /// The word for it in tables and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Bind => "bind",
        }
    }
}

/// What the clients of a case do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// This number of clients makes requests of this kind until the turn ends.
    Load(&'static str, usize),
    /// All hold a segment, and are killed when the turn begins.
    Deaths,
}

/// A case: a load on the server, and an operation of the bystander.
#[derive(Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What is measured.
    pub what: What,
    /// The clients that load the server.
    pub clients: Clients,
    /// Whether the bare server computes all the time in this case.
    pub busy: bool,
    /// The roles of the programs beside the bare server. Each stands for a client and computes as
    /// much.
    pub beside: &'static [&'static str],
    /// A description of the case for people.
    pub text: &'static str,
}

/// The role of a client that computes.
const COPIES: &str = "busy";

/// The role of a client that polls for its reply every 20 µs.
const WAITS: &str = "waits";

const fn call(
    name: &'static str,
    clients: Clients,
    busy: bool,
    beside: &'static [&'static str],
    text: &'static str,
) -> Case {
    Case { name, what: What::Call, clients, busy, beside, text }
}

const fn bind(name: &'static str, clients: Clients, busy: bool, text: &'static str) -> Case {
    Case { name, what: What::Bind, clients, busy, beside: &[], text }
}

impl Case {
    /// All cases.
    pub const ALL: &'static [Self] = &[
        call("quiet", Clients::Load("", 0), false, &[], "no other client"),
        call(
            "lists-1",
            Clients::Load("lists", 1),
            true,
            &[WAITS],
            "a client that sends a list of 16 MiB again and again, unchanged",
        ),
        call("lists-2", Clients::Load("lists", 2), true, &[WAITS, WAITS], "two such clients"),
        call(
            "copied-1",
            Clients::Load("copied", 1),
            true,
            &[COPIES],
            "a client that copies a list of 16 MiB for each call",
        ),
        call("copied-2", Clients::Load("copied", 2), true, &[COPIES, COPIES], "two such clients"),
        call(
            "texts-1",
            Clients::Load("texts", 1),
            true,
            &[WAITS],
            "a list of 250 000 texts of 8 bytes",
        ),
        call(
            "fold-1",
            Clients::Load("fold", 1),
            true,
            &[WAITS],
            "a handler that folds over 1 GiB of the client's bytes",
        ),
        call(
            "vector-1",
            Clients::Load("vector", 1),
            true,
            &[WAITS],
            "a handler that copies 64 MiB of the client's bytes",
        ),
        call(
            "result-1",
            Clients::Load("result", 1),
            true,
            &[WAITS],
            "a result of 64 MiB, which the client does not fetch",
        ),
        call(
            "fetched-1",
            Clients::Load("fetched", 1),
            true,
            &[COPIES],
            "a result of 64 MiB, which the client fetches",
        ),
        call(
            "blocks-1",
            Clients::Load("blocks", 1),
            false,
            &[],
            "a client whose handlers sleep for a second each",
        ),
        call("blocks-4", Clients::Load("blocks", 4), false, &[], "four such clients"),
        bind("bind-quiet", Clients::Load("", 0), false, "no other client"),
        bind(
            "bind-lists-2",
            Clients::Load("lists", 2),
            true,
            "two clients that send lists of 16 MiB",
        ),
        bind(
            "drops",
            Clients::Load("drops", 1),
            false,
            "a client that brings and drops large segments",
        ),
        bind("deaths", Clients::Deaths, false, "the end of many clients with a large segment each"),
    ];

    /// The case of this name.
    pub fn named(name: &str) -> Result<&'static Self, String> {
        let known = || Self::ALL.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
        Self::ALL
            .iter()
            .find(|case| case.name == name)
            .ok_or_else(|| format!("{name:?} is none of {}", known()))
    }
}
