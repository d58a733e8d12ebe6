//! What a new version of a package means for programs that were built against the old version, and
//! the other way round.
//!
//! Nothing here looks at text. The verdict on a pair of client and server comes from what binding
//! compares: the id of the interface without its version, and the name, hash and signature of each
//! procedure that the client has (`match_procedures` and `Exports::bind` of `upcall-rpc`). A test
//! there checks the two against each other. The reasons come from a walk over both models side by
//! side; they say where in the named types two signatures differ.
//!
//! Limits are not part of binding. A value passes if both sides permit it, so a client loses only
//! the values between the server's limit and its own.

mod reasons;

use crate::model::{InterfaceDefinition, Model, ProcedureDefinition, Type, TypeBody};
pub use reasons::Reason;

/// The differences between two versions of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diff {
    /// The old and the new `namespace:name` of the package, if it was renamed. Then binding
    /// considers no interface the same.
    pub renamed: Option<(String, String)>,
    /// The interfaces that have procedures: those of the new version in its order, then those that
    /// only the old version has.
    pub interfaces: Vec<InterfaceDiff>,
}

impl Diff {
    /// Returns `true` if anything that works between an old client and an old server fails between
    /// an old client and a new server.
    #[must_use]
    pub fn breaks_old_clients(&self) -> bool {
        self.interfaces
            .iter()
            .filter_map(|i| i.old_to_new.as_ref())
            .any(|verdict| !verdict.is_clean())
    }
}

/// The differences in one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceDiff {
    /// The interface's id without the version, which binding compares.
    pub name: String,
    /// The interface's id in the old version; `None` if it is missing there or has no procedures.
    pub old: Option<String>,
    /// The interface's id in the new version; `None` if it is missing there or has no procedures.
    pub new: Option<String>,
    /// The procedures: those of the new version in its order, then those that only the old version
    /// has.
    pub procedures: Vec<ProcedureDiff>,
    /// What happens to a client built against the old version that binds to a server of the new
    /// one; `None` if there are no such clients.
    pub old_to_new: Option<Compatibility>,
    /// What happens to a client built against the new version that binds to a server of the old
    /// one; `None` if there are no such clients.
    pub new_to_old: Option<Compatibility>,
}

/// What happens to a client that binds to a server of the other version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// The client binds, and works as long as it sends none of these values.
    Binds(Vec<LimitRefusal>),
    /// Binding fails with `Mismatch`, which names these procedures.
    Mismatch(Vec<String>),
    /// The server does not export the interface: there is nothing to bind to.
    NoInterface,
}

impl Compatibility {
    /// Returns `true` if nothing fails.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        matches!(self, Self::Binds(refused) if refused.is_empty())
    }
}

/// A limit that is lower on the server than on the client. Values between the two are refused at
/// run time: with `Quota` if they exceed `values`, otherwise with `Refused`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRefusal {
    /// The procedure.
    pub procedure: String,
    /// `string`, `list` or `values`.
    pub limit: &'static str,
    /// `arguments`, `results`, or both: where the procedure has such values.
    pub within: &'static str,
    /// The client's limit, in bytes of a string, elements of a list, or bytes of the arguments that
    /// the server copies.
    pub client: u64,
    /// The server's limit, in the same unit.
    pub server: u64,
}

/// The differences in one procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureDiff {
    /// The procedure's name.
    pub name: String,
    /// The change to the procedure itself.
    pub change: Change,
    /// The changes to its limits, if the procedure is otherwise unchanged.
    pub limits: Vec<LimitChange>,
}

/// A change to a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The signature is the same.
    Unchanged,
    /// Only the new version has it, with this signature.
    Added(String),
    /// Only the old version has it, with this signature.
    Removed(String),
    /// The signature differs.
    Changed {
        /// The old signature.
        old: String,
        /// The new signature.
        new: String,
        /// Where the two differ. Never empty.
        reasons: Vec<Reason>,
    },
}

/// A changed limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitChange {
    /// `string`, `list` and `values` as in the TOML; `tail of arguments`, `tail of results`,
    /// `calls`.
    pub limit: &'static str,
    /// The old limit.
    pub old: u64,
    /// The new limit.
    pub new: u64,
}

/// Compares two versions of a package.
#[must_use]
pub fn diff(old: &Model, new: &Model) -> Diff {
    let mut interfaces = Vec::new();
    for new_interface in bindable(new) {
        let name = without_version(&new_interface.id);
        let old_interface = bindable(old).find(|i| without_version(&i.id) == name);
        interfaces.push(interface((old, old_interface), (new, Some(new_interface)), name));
    }
    for old_interface in bindable(old) {
        let name = without_version(&old_interface.id);
        if !bindable(new).any(|i| without_version(&i.id) == name) {
            interfaces.push(interface((old, Some(old_interface)), (new, None), name));
        }
    }
    let renamed = (old.package != new.package).then(|| (old.package.clone(), new.package.clone()));
    Diff { renamed, interfaces }
}

/// The interfaces of the package that a server can export. An interface without procedures has no
/// stubs.
fn bindable(model: &Model) -> impl Iterator<Item = &InterfaceDefinition> {
    model.interfaces.iter().filter(|i| i.foreign.is_none() && !i.procedures.is_empty())
}

fn without_version(id: &str) -> &str {
    id.split('@').next().unwrap_or(id)
}

/// One side of a comparison: the model, and its version of the interface, if any.
type DiffSide<'a> = (&'a Model, Option<&'a InterfaceDefinition>);

fn interface(old: DiffSide<'_>, new: DiffSide<'_>, name: &str) -> InterfaceDiff {
    let all = |side: DiffSide<'_>| {
        side.1.map(|i| i.bound().cloned().collect::<Vec<_>>()).unwrap_or_default()
    };
    let (before, after) = (all(old), all(new));
    let mut procedures = Vec::new();
    for new_procedure in &after {
        let (change, limits) = match before.iter().find(|p| p.name == new_procedure.name) {
            None => (Change::Added(new_procedure.signature.clone()), Vec::new()),
            Some(p) if same(p, new_procedure) => {
                (Change::Unchanged, limit_changes(new.0, p, new_procedure))
            }
            Some(p) => {
                let reasons = reasons::between((old.0, p), (new.0, new_procedure));
                let (old, new) = (p.signature.clone(), new_procedure.signature.clone());
                (Change::Changed { old, new, reasons }, Vec::new())
            }
        };
        procedures.push(ProcedureDiff { name: new_procedure.name.clone(), change, limits });
    }
    for gone in before.iter().filter(|p| !after.iter().any(|q| q.name == p.name)) {
        let change = Change::Removed(gone.signature.clone());
        procedures.push(ProcedureDiff { name: gone.name.clone(), change, limits: Vec::new() });
    }
    InterfaceDiff {
        name: name.to_owned(),
        old: old.1.map(|i| i.id.clone()),
        new: new.1.map(|i| i.id.clone()),
        procedures,
        old_to_new: old.1.map(|client| bind((old.0, client), new.1)),
        new_to_old: new.1.map(|client| bind((new.0, client), old.1)),
    }
}

/// Returns `true` if binding considers the two procedures the same.
fn same(a: &ProcedureDefinition, b: &ProcedureDefinition) -> bool {
    a.hash == b.hash && a.signature == b.signature
}

/// The result of binding a client to a server.
fn bind(
    client: (&Model, &InterfaceDefinition),
    server: Option<&InterfaceDefinition>,
) -> Compatibility {
    let Some(server) = server else { return Compatibility::NoInterface };
    let mut mismatches = Vec::new();
    let mut refused = Vec::new();
    for wanted in client.1.bound() {
        match server.bound().find(|p| p.name == wanted.name) {
            Some(found) if same(wanted, found) => refused.extend(refusals(client.0, wanted, found)),
            _ => mismatches.push(wanted.name.clone()),
        }
    }
    if mismatches.is_empty() {
        Compatibility::Binds(refused)
    } else {
        Compatibility::Mismatch(mismatches)
    }
}

/// Values that the client's limits permit and the server's refuse. Both sides have the same types.
fn refusals(
    model: &Model,
    client: &ProcedureDefinition,
    server: &ProcedureDefinition,
) -> Vec<LimitRefusal> {
    let held = Measured::of(model, client);
    let (c, s) = (client.limits, server.limits);
    let copied = model.copies_arguments(client).then_some("arguments");
    let pairs = [
        ("string", held.strings(), c.string, s.string),
        ("list", held.lists(), c.list, s.list),
        ("values", copied, c.values, s.values),
    ];
    let less = pairs.into_iter().filter(|(_, _, client, server)| server < client);
    less.filter_map(|(limit, within, from, to)| {
        Some(LimitRefusal {
            procedure: client.name.clone(),
            limit,
            within: within?,
            client: from,
            server: to,
        })
    })
    .collect()
}

/// The changed limits, as far as the procedure has values that they limit.
fn limit_changes(
    model: &Model,
    old: &ProcedureDefinition,
    new: &ProcedureDefinition,
) -> Vec<LimitChange> {
    let held = Measured::of(model, new);
    let (o, n) = (old.limits, new.limits);
    let mut changes = Vec::new();
    for (limit, counts, old, new) in [
        ("string", held.strings().is_some(), o.string, n.string),
        ("list", held.lists().is_some(), o.list, n.list),
        ("values", model.copies_arguments(new), o.values, n.values),
        ("tail of arguments", true, o.args_tail.into(), n.args_tail.into()),
        ("tail of results", true, o.results_tail.into(), n.results_tail.into()),
        ("calls", true, o.calls.into(), n.calls.into()),
    ] {
        if counts && old != new {
            changes.push(LimitChange { limit, old, new });
        }
    }
    changes
}

/// Which limits apply to a procedure's arguments and to its results.
struct Measured {
    arguments: LimitedContent,
    results: LimitedContent,
}

#[derive(Clone, Copy, Default)]
struct LimitedContent {
    string: bool,
    list: bool,
}

impl LimitedContent {
    fn and(self, other: Self) -> Self {
        Self { string: self.string || other.string, list: self.list || other.list }
    }
}

impl Measured {
    fn of(model: &Model, procedure: &ProcedureDefinition) -> Self {
        // The table lists each type after the types that it is made of.
        let mut known: Vec<LimitedContent> = Vec::new();
        for def in &model.types {
            let of = |t: &Type| Self::in_type(&known, t);
            let own = match &def.shape {
                TypeBody::Record(fields) => {
                    fields.iter().fold(LimitedContent::default(), |all, f| all.and(of(&f.ty)))
                }
                TypeBody::Variant(cases) => cases
                    .iter()
                    .filter_map(|c| c.ty.as_ref())
                    .fold(LimitedContent::default(), |all, t| all.and(of(t))),
                TypeBody::Alias(t) => of(t),
                TypeBody::Enum(_) | TypeBody::Flags(_) | TypeBody::Resource => {
                    LimitedContent::default()
                }
            };
            known.push(own);
        }
        let all = |types: &mut dyn Iterator<Item = &Type>| {
            types.fold(LimitedContent::default(), |all, t| all.and(Self::in_type(&known, t)))
        };
        Self {
            arguments: all(&mut procedure.params.iter().map(|p| &p.ty)),
            results: all(&mut procedure.result.iter()),
        }
    }

    fn in_type(known: &[LimitedContent], ty: &Type) -> LimitedContent {
        let of = |t: &Type| Self::in_type(known, t);
        match ty {
            Type::String => LimitedContent { string: true, list: false },
            Type::List(t) => of(t).and(LimitedContent { string: false, list: true }),
            Type::FixedList(t, _) | Type::Option(t) => of(t),
            Type::Result(ok, err) => [ok, err]
                .into_iter()
                .flatten()
                .fold(LimitedContent::default(), |all, t| all.and(of(t))),
            Type::Tuple(types) => {
                types.iter().fold(LimitedContent::default(), |all, t| all.and(of(t)))
            }
            Type::Named(id) => known[id.0],
            _ => LimitedContent::default(),
        }
    }

    fn strings(&self) -> Option<&'static str> {
        within(self.arguments.string, self.results.string)
    }

    fn lists(&self) -> Option<&'static str> {
        within(self.arguments.list, self.results.list)
    }
}

fn within(arguments: bool, results: bool) -> Option<&'static str> {
    match (arguments, results) {
        (true, true) => Some("arguments and results"),
        (true, false) => Some("arguments"),
        (false, true) => Some("results"),
        (false, false) => None,
    }
}
