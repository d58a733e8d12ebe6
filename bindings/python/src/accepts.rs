//! Which processes are accepted at the other end of a binding: the engine's side of
//! `upcall/_accepting.py`.

use crate::gate::with_lock;
use crate::names;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use upcall::Peer;
use upcall_rpc::policy::{self, Policy};

/// A policy, and the exception that a function of the program raised when the policy called it.
pub struct Accepts {
    pub policy: Box<Policy>,
    raised: PolicyException,
}

/// The first exception that a policy raised.
type PolicyException = Arc<Mutex<Option<PyErr>>>;

impl Accepts {
    /// The policy of a `User`, a `Group`, a `Host`, `ANY_USER`, a function, or several of these.
    pub fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = given.py();
        let told = names::get(py)?.accepting.bind(py).call_method1("told", (given,))?;
        type Told = (bool, Vec<u32>, Vec<u32>, Vec<String>, Vec<Py<PyAny>>);
        let (any_user, users, groups, hosts, asked): Told = told.extract()?;
        let raised = PolicyException::default();
        let mut policies: Vec<Box<Policy>> = Vec::new();
        if any_user {
            policies.push(Box::new(policy::any_user()));
        }
        if !users.is_empty() {
            policies.push(Box::new(policy::users(users)));
        }
        if !groups.is_empty() {
            policies.push(Box::new(policy::groups(groups)));
        }
        if !hosts.is_empty() {
            policies.push(Box::new(policy::hosts(hosts)));
        }
        for function in asked {
            policies.push(Box::new(asking(function, raised.clone())));
        }
        Ok(Self { policy: Box::new(policy::any_of(policies)), raised })
    }

    /// Takes the exception that a policy function raised.
    pub fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// For a server: no caller waits for the exception of a policy function, so it is reported.
    pub fn reporting(self) -> impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static {
        move |peer| {
            let said = (self.policy)(peer);
            if let Some(error) = self.raised() {
                with_lock(|py| error.write_unraisable(py, None));
            }
            said
        }
    }
}

thread_local! {
    /// The host of the peer that a policy function on this thread is asked about.
    static HOST: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// In a policy function: the name of the host that the peer has proved.
///
/// It is the name under which the host is trusted here. `None` for a peer on this host, and outside
/// a policy function.
#[pyfunction]
pub fn peer_host() -> Option<String> {
    HOST.with_borrow(|host| host.as_ref().map(|host| host.to_string()))
}

/// A policy that calls a function.
fn asking(
    function: Py<PyAny>,
    raised: PolicyException,
) -> impl Fn(&Peer) -> Result<(), String> + Send + Sync + 'static {
    move |peer| {
        let asked = (peer.uid, peer.gid, peer.pid);
        let ask = |py: Python<'_>| function.call1(py, asked).and_then(|said| said.is_truthy(py));
        let before = HOST.replace(peer.host.clone());
        let said = with_lock(ask);
        HOST.set(before);
        match said {
            Some(Ok(true)) => return Ok(()),
            Some(Err(error)) => {
                raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            _ => {}
        }
        Err("its policy does not admit it".to_owned())
    }
}
