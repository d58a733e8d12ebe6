//! What a domain exports, by name, and what a binder may have of it.
//!
//! Source: LRPC, section 3.1 (the clerk, the procedure descriptor list).

use crate::interface::{Descriptor, Interface, MOST_PROCEDURES, WantedProcedure, match_each};
use crate::server::Dispatch;
use crate::wire::{BindRefusal, Exported};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use upcall_os::atomic::{AtomicU32, Ordering};
use upcall_os::lock::KernelRwLock;

/// An implementation of an interface, ready to be exported under a name.
pub struct Export {
    pub(crate) interface: &'static Interface,
    pub(crate) dispatch: Arc<dyn Dispatch>,
}

impl Export {
    /// Joins an interface with the code that runs it. Generated code calls this.
    pub fn new(interface: &'static Interface, dispatch: impl Dispatch + 'static) -> Self {
        Self { interface, dispatch: Arc::new(dispatch) }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({})", self.interface.id)
    }
}

/// The exports of this domain, by name.
#[derive(Default)]
pub(crate) struct Exports(KernelRwLock<BTreeMap<String, Arc<ExportEntry>>>);

pub(crate) struct ExportEntry {
    pub(crate) name: String,
    pub(crate) interface: &'static Interface,
    pub(crate) dispatch: Arc<dyn Dispatch>,
    pub(crate) clients: AtomicU32,
}

impl Exports {
    fn read(&self) -> upcall_os::lock::RwLockReadGuard<'_, BTreeMap<String, Arc<ExportEntry>>> {
        self.0.read()
    }

    pub(crate) fn add(&self, name: &str, export: Export) -> Result<(), crate::ServeError> {
        let found = export.interface.procedures.len();
        if found > MOST_PROCEDURES {
            return Err(crate::ServeError::TooManyProcedures { found });
        }
        let entry = ExportEntry {
            name: name.into(),
            interface: export.interface,
            dispatch: export.dispatch,
            clients: AtomicU32::new(0),
        };
        let before = self.0.write().insert(name.into(), Arc::new(entry));
        // The export's drop is the server's code, and must not run under the lock.
        drop(before);
        Ok(())
    }

    /// Returns what a binder gets: the export, and the descriptors of the procedures that it wants.
    pub(crate) fn bind(
        &self,
        name: &str,
        interface: &str,
        wanted: &[WantedProcedure<'_>],
    ) -> Result<(Arc<ExportEntry>, Vec<Descriptor>), BindRefusal> {
        if wanted.len() > MOST_PROCEDURES {
            return Err(BindRefusal::Protocol(
                "a binding to more procedures than an interface has".into(),
            ));
        }
        let entry = self.read().get(name).cloned().ok_or(BindRefusal::NoSuchName)?;
        // The versions of one interface may differ. What counts is that both sides agree on each
        // procedure.
        if without_version(interface) != without_version(&entry.interface.id) {
            return Err(BindRefusal::WrongInterface { exported: entry.interface.id.to_string() });
        }
        let mut descriptors = Vec::new();
        let no_memory = |_| BindRefusal::Resource {
            what: "the list of procedures".into(),
            code: Errno::NOMEM.raw_os_error(),
        };
        descriptors.try_reserve_exact(wanted.len()).map_err(no_memory)?;
        let matched = |number| descriptors.push(entry.interface.descriptor(number));
        match_each(wanted, entry.interface, matched).map_err(BindRefusal::Mismatch)?;
        Ok((entry, descriptors))
    }

    /// Removes all exports, also those whose names could not be entered.
    pub(crate) fn remove_all(&self) -> Vec<Arc<ExportEntry>> {
        let all = std::mem::take(&mut *self.0.write());
        all.into_values().collect()
    }

    pub(crate) fn list(&self) -> Vec<Exported> {
        let describe = |(name, entry): (&String, &Arc<ExportEntry>)| Exported {
            name: name.clone(),
            interface: entry.interface.id.to_string(),
            source: entry.interface.source.to_string(),
            limits: entry.interface.limits.to_string(),
            clients: entry.clients.load(Ordering::Relaxed),
            procedures: entry
                .interface
                .procedures
                .iter()
                .map(|p| (p.name.to_string(), p.signature.to_string()))
                .collect(),
        };
        self.read().iter().map(describe).collect()
    }
}

fn without_version(id: &str) -> &str {
    id.split('@').next().unwrap_or(id)
}
