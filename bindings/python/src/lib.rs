//! Upcall for Python: the engine behind the package `upcall`.
//!
//! The engine is a module, `upcall._upcall`, with the base classes of generated classes and the
//! code that adds their methods ([`declare`]). Programs use the package around it (`upcall/*.py`),
//! which documents everything. Types and names come from the generator (`upcall_idl::python`), both
//! for modules in files and for interfaces that are learned when they are bound.
//!
//! # The path through the code
//! [`plan`] prepares what calls need to know of an interface. [`client`] makes calls: those with
//! only numbers by the fast path ([`scalar`]), all others by [`call`], [`encode`] and [`decode`];
//! for asyncio by [`aio`]. [`server`] answers calls. [`gate`] is about the interpreter's lock,
//! which is never held while anything here waits. [`interrupt`] is about Ctrl-C. [`message`] is
//! groups, independent of the modules of calls; [`payload`] converts their messages, [`place`] has
//! those in place, [`joining`] the terms on
//! which a member joins, and [`group_error`] the exceptions.
//!
//! # The stable interface of Python
//! The library is built for `abi3` from Python 3.11 on, the first version whose stable interface
//! has buffers: one file for all later versions. Where PyO3's safe types would cost as much as a
//! call, the code uses `pyo3::ffi`, one operation in each block.
#![allow(missing_docs)] // The package's Python half documents what programs see.

pub mod accepts;
pub mod aio;
pub mod bytes;
pub mod call;
pub mod caller;
pub mod client;
pub mod decode;
pub mod encode;
pub mod error;
pub mod gate;
pub mod group_error;
pub mod interrupt;
pub mod joining;
pub mod message;
pub mod names;
pub mod object;
pub mod payload;
pub mod pending;
pub mod petition;
pub mod place;
pub mod plan;
pub mod scalar;
pub mod server;
pub mod thunks;

use caller::{PyCaller, PyKind, PyMade};
use client::PyCancelToken;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};
use upcall_idl::dynamic;
use upcall_idl::model::ProcedureKind;

/// Connects the classes of a generated module with their interfaces, and adds their methods.
#[pyfunction]
fn declare(
    py: Python<'_>,
    version: u32,
    source: &str,
    limits: &str,
    classes: &Bound<'_, PyDict>,
) -> PyResult<()> {
    if version != upcall_idl::python::VERSION {
        let own = upcall_idl::python::VERSION;
        let text = format!(
            "the module is for version {version} of the engine, which has version {own}: generate \
            it again"
        );
        return Err(PyValueError::new_err(text));
    }
    let model = dynamic::model("the module", source, limits)
        .map_err(|wrong| PyValueError::new_err(wrong.to_string()))?;
    let package = plan::plan(py, &model, classes)?;
    let class = |key: String| {
        PyResult::Ok(classes.get_item(&key)?.and_then(|class| class.cast_into::<PyType>().ok()))
    };
    let kind = |interface, resource| Bound::new(py, PyKind { package, interface, resource });
    for (index, interface) in package.interfaces.iter().enumerate() {
        let Some(interface) = interface else { continue };
        let kind = kind(index, None)?;
        for what in ["", "@async", "@served"] {
            if let Some(class) = class(format!("{}{what}", interface.id))? {
                class.setattr("_upcall_kind", &kind)?;
            }
        }
        let of_client =
            |kind: ProcedureKind| matches!(kind, ProcedureKind::Free | ProcedureKind::Static(_));
        client::add_methods(interface.client.bind(py), &interface.procedures, |procedure| {
            of_client(procedure.kind)
        })?;
        let view = class(format!("{}@async", interface.id))?;
        add_view(interface.client.bind(py), view, interface, |procedure| !procedure.is_method)?;
    }
    for (number, resource) in package.resources.iter().enumerate() {
        let interface = package.interface(resource.interface);
        let kind = kind(resource.interface, Some(number))?;
        resource.client.bind(py).setattr("_upcall_kind", &kind)?;
        resource.served.bind(py).setattr("_upcall_kind", &kind)?;
        let is = |procedure: &plan::ProcedurePlan| {
            procedure.is_method && procedure.resource == Some(number)
        };
        client::add_methods(resource.client.bind(py), &interface.procedures, is)?;
        let view = class(format!("{}#{}@async", interface.id, resource.name))?;
        add_view(resource.client.bind(py), view, interface, is)?;
    }
    Ok(())
}

/// Connects a client's class with its asynchronous view, and adds the methods to the view.
fn add_view(
    of: &Bound<'_, PyType>,
    view: Option<Bound<'_, PyType>>,
    interface: &'static plan::InterfacePlan,
    has: impl Fn(&plan::ProcedurePlan) -> bool,
) -> PyResult<()> {
    let Some(view) = view else { return Ok(()) };
    of.setattr("_upcall_view", &view)?;
    for (number, procedure) in
        interface.procedures.iter().enumerate().filter(|(_, procedure)| has(procedure))
    {
        view.call_method1("_upcall_add", (&procedure.client_method, number, &procedure.docs))?;
    }
    Ok(())
}

/// Returns the module for a WIT text.
#[pyfunction]
fn module_of(title: &str, source: &str, limits: &str) -> PyResult<String> {
    let model = dynamic::model(title, source, limits)
        .map_err(|wrong| PyValueError::new_err(wrong.to_string()))?;
    Ok(upcall_idl::python::generate(&model, title))
}

/// Returns the module for a WIT file, or a folder of them.
#[pyfunction]
fn module_of_file(path: std::path::PathBuf) -> PyResult<String> {
    upcall_idl::generate_python(&path).map_err(|wrong| PyValueError::new_err(wrong.to_string()))
}

/// Asks the server of a name, if `expect` accepts it, for its interface, the source and the limits.
#[pyfunction]
#[pyo3(signature = (name, expect = None, wait = None))]
fn learn(
    py: Python<'_>,
    name: &str,
    expect: Option<&Bound<'_, PyAny>>,
    wait: Option<&Bound<'_, PyAny>>,
) -> PyResult<(String, String, String)> {
    if gate::is_forked() {
        return Err(error::forked(py));
    }
    gate::watch_forks();
    let accepts = expect.map(accepts::Accepts::of).transpose()?;
    let policy = accepts.as_ref().map(|accepts| &*accepts.policy);
    let limit = error::seconds("wait", wait)?;
    let found = gate::wait_for_server(py, limit, || upcall_rpc::try_exported(name, policy))?;
    let found = found.map_err(|wrong| error::bind_expecting(py, &wrong, accepts.as_ref()))?;
    Ok((found.interface, found.source, found.limits))
}

/// For tests of values: writes a procedure's arguments or result as a block.
#[pyfunction]
fn _encode<'py>(
    py: Python<'py>,
    kind: &Bound<'py, PyKind>,
    number: usize,
    values: &Bound<'py, PyTuple>,
    of_results: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let PyKind { package, interface, .. } = *kind.get();
    let procedure = &package.interface(interface).procedures[number];
    let fixed = if of_results { procedure.results } else { procedure.args };
    let mut writer = encode::PythonWriter::new(
        package,
        encode::HandleDestination::Client,
        fixed,
        procedure.limits,
    );
    let put = |writer: &mut encode::PythonWriter<'_>,
               typed: &plan::Typed,
               value: &Bound<'py, PyAny>,
               at: usize| {
        writer.put_at(typed, value, at).map_err(|fault| error::fault(py, fault, "the value", "", 0))
    };
    if of_results {
        let results =
            procedure.result.as_ref().ok_or_else(|| PyValueError::new_err("no result"))?;
        put(&mut writer, &results.client, &values.get_item(0)?, 0)?;
    } else {
        for (param, value) in procedure.params.iter().zip(values.iter()) {
            put(&mut writer, &param.client, &value, param.at)?;
        }
    }
    Ok(PyBytes::new(py, &writer.flat()))
}

/// For tests of values: the reverse.
#[pyfunction]
fn _decode<'py>(
    py: Python<'py>,
    kind: &Bound<'py, PyKind>,
    number: usize,
    block: &[u8],
    of_results: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let PyKind { package, interface, .. } = *kind.get();
    let procedure = &package.interface(interface).procedures[number];
    let fixed = if of_results { procedure.results } else { procedure.args };
    let decoder = upcall_rpc::Decoder::of_copy(block, fixed, procedure.limits);
    let reader =
        decode::PythonReader { py, package, decoder: &decoder, from: decode::HandleSource::Client };
    let get = |typed: &plan::Typed, at: usize| {
        reader.get(typed, at).map_err(|wrong| match wrong {
            decode::Wrong::Malformed(malformed) => PyValueError::new_err(malformed.to_string()),
            decode::Wrong::Python(error) => error,
        })
    };
    let values = if of_results {
        procedure
            .result
            .iter()
            .map(|results| get(&results.client, 0))
            .collect::<PyResult<Vec<_>>>()?
    } else {
        procedure
            .params
            .iter()
            .map(|param| get(&param.client, param.at))
            .collect::<PyResult<Vec<_>>>()?
    };
    PyTuple::new(py, values)
}

/// For tests of values: the names of an interface's procedures.
#[pyfunction]
fn _procedures(kind: &Bound<'_, PyKind>) -> Vec<String> {
    let PyKind { package, interface, .. } = *kind.get();
    package.interface(interface).procedures.iter().map(|procedure| procedure.name.clone()).collect()
}

/// Shuts the engine down when the interpreter ends.
#[pyfunction]
fn _close(py: Python<'_>) {
    gate::close(py);
}

#[pymodule]
fn _upcall(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<PyCaller>()?;
    module.add_class::<PyMade>()?;
    module.add_class::<PyKind>()?;
    module.add_class::<PyCancelToken>()?;
    module.add_class::<bytes::PyBytesView>()?;
    module.add_class::<server::PyServed>()?;
    module.add_class::<aio::Completions>()?;
    module.add_class::<message::PyMember>()?;
    module.add_class::<place::PyPlace>()?;
    module.add_class::<petition::PyPetition>()?;
    module.add_function(wrap_pyfunction!(declare, module)?)?;
    module.add_function(wrap_pyfunction!(module_of, module)?)?;
    module.add_function(wrap_pyfunction!(module_of_file, module)?)?;
    module.add_function(wrap_pyfunction!(learn, module)?)?;
    module.add_function(wrap_pyfunction!(server::start, module)?)?;
    module.add_function(wrap_pyfunction!(server::deadline, module)?)?;
    module.add_function(wrap_pyfunction!(accepts::peer_host, module)?)?;
    module.add_function(wrap_pyfunction!(_encode, module)?)?;
    module.add_function(wrap_pyfunction!(_decode, module)?)?;
    module.add_function(wrap_pyfunction!(_procedures, module)?)?;
    module.add_function(wrap_pyfunction!(pending::heed, module)?)?;
    module.add_function(wrap_pyfunction!(petition::petition, module)?)?;
    module.add_function(wrap_pyfunction!(_close, module)?)?;
    Ok(())
}
