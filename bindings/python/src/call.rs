//! The slow path of a call, for values of any type. It also reports what is wrong with them.

use crate::caller::PyCaller;
use crate::decode::{HandleSource, PythonReader, Wrong, handles};
use crate::encode::{HandleDestination, PythonWriter};
use crate::error;
use crate::gate::{self, without_lock};
use crate::plan::{Package, ProcedurePlan};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use upcall_rpc::untyped::InlineWords;
use upcall_rpc::{Binding, CallError, Decoder, Handle, Malformed};

/// A call's arguments, in the order of its parameters.
pub struct CallArguments<'py>(Vec<Bound<'py, PyAny>>);

impl<'py> CallArguments<'py> {
    /// # Errors
    /// `TypeError`, as a function in Python raises it.
    pub fn of(
        procedure: &ProcedurePlan,
        given: &[Bound<'py, PyAny>],
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let mut named = Vec::new();
        for (name, value) in kwargs.into_iter().flatten() {
            named.push((name, value));
        }
        Self::join(procedure, given, named)
    }

    pub fn join(
        procedure: &ProcedurePlan,
        given: &[Bound<'py, PyAny>],
        named: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    ) -> PyResult<Self> {
        let (name, params) = (&procedure.client_method, &procedure.params);
        if given.len() > params.len() {
            return Err(PyTypeError::new_err(format!(
                "{name}() takes {} argument{}, and {} {} given",
                params.len(),
                if params.len() == 1 { "" } else { "s" },
                given.len(),
                if given.len() == 1 { "was" } else { "were" }
            )));
        }
        let mut all: Vec<Option<Bound<'py, PyAny>>> = given.iter().cloned().map(Some).collect();
        all.resize(params.len(), None);
        for (key, value) in named {
            let key = key.cast_into::<PyString>()?;
            let place =
                params.iter().position(|param| key.to_str().is_ok_and(|key| key == param.text));
            let place = place
                .ok_or_else(|| PyTypeError::new_err(format!("{name}() has no parameter {key}")))?;
            if all[place].replace(value).is_some() {
                return Err(PyTypeError::new_err(format!("{name}() got two values for {key}")));
            }
        }
        let missing =
            all.iter().zip(params).find(|(value, _)| value.is_none()).map(|(_, param)| &param.text);
        if let Some(missing) = missing {
            return Err(PyTypeError::new_err(format!("{name}() misses the argument `{missing}`")));
        }
        Ok(Self(all.into_iter().flatten().collect()))
    }
}

/// Writes the arguments as a block.
pub fn write<'a>(
    py: Python<'_>,
    caller: &PyCaller,
    binding: &'a Binding,
    procedure: &ProcedurePlan,
    arguments: &CallArguments<'_>,
) -> PyResult<PythonWriter<'a>> {
    let mut writer = PythonWriter::new(
        caller.package(),
        HandleDestination::Server(binding),
        procedure.args,
        procedure.limits,
    );
    if procedure.is_method {
        let handle = caller.handle().ok_or_else(|| error::closed(py, "the resource"))?;
        writer.put_number(0, handle, 8);
    }
    for (param, value) in procedure.params.iter().zip(&arguments.0) {
        let put = writer.put_at(&param.client, value, param.at);
        put.map_err(|fault| {
            error::fault(
                py,
                fault,
                &format!("argument `{}`", param.text),
                binding.name(),
                binding.server(),
            )
        })?;
    }
    Ok(writer)
}

/// Returns a procedure's result as its caller gets it: a value, or an exception if it is a `result`
/// with an error.
pub fn read<'py>(
    py: Python<'py>,
    package: &'static Package,
    procedure: &ProcedurePlan,
    decoder: &Decoder<'_>,
    binding: &Binding,
) -> Result<Bound<'py, PyAny>, Wrong> {
    let reader = PythonReader { py, package, decoder, from: HandleSource::Server(binding) };
    let Some(results) = &procedure.result else { return Ok(py.None().into_bound(py)) };
    let crate::plan::TypePlan::Result { ok, err, at } = &results.client.ty else {
        return reader.get(&results.client, 0);
    };
    let tag = decoder.u8(0)?;
    if tag > 1 {
        return Err(Malformed::discriminant(0, tag.into(), 2).into());
    }
    let value = reader.maybe(if tag == 1 { err } else { ok }.as_deref(), *at)?;
    if tag == 0 {
        return Ok(value);
    }
    Err(Wrong::Python(PyErr::from_value(crate::names::get(py)?.make_outcome(true, value)?)))
}

/// Drops the resources in a result that is not read.
pub fn let_go(procedure: &ProcedurePlan, decoder: &Decoder<'_>, binding: &Binding) {
    let Some(results) = &procedure.result else { return };
    let mut found = Vec::new();
    // Handles behind something malformed stay the client's until it unbinds.
    let _ = handles(&results.client, decoder, 0, &mut found);
    found.into_iter().for_each(|(_, handle)| binding.release(Handle(handle)));
}

/// Makes a call by the slow path.
pub fn call(
    py: Python<'_>,
    caller: &PyCaller,
    number: usize,
    procedure: &'static ProcedurePlan,
    arguments: &CallArguments<'_>,
) -> PyResult<Py<PyAny>> {
    let binding = caller.usable(py)?;
    let package = caller.package();
    let mut writer = write(py, caller, binding, procedure, arguments)?;
    let ours = |wrong: CallError| error::of_call(py, &wrong, binding);
    let on = caller.calling().unwrap_or(binding);
    let result = if procedure.words {
        let mut words = InlineWords::default();
        for (word, bytes) in words.iter_mut().zip(writer.flat().chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(eight);
        }
        let called = without_lock(py, || on.call_words(number as u16, &mut words, procedure.args));
        called.map_err(ours)?;
        let mut block = [0; size_of::<InlineWords>()];
        block
            .iter_mut()
            .zip(words.iter().flat_map(|word| word.to_le_bytes()))
            .for_each(|(to, byte)| *to = byte);
        let decoder = Decoder::of_copy(
            &block[..procedure.results.max(1)],
            procedure.results,
            procedure.limits,
        );
        read(py, package, procedure, &decoder, binding)
    } else {
        let tail = writer.tail();
        let pieces = writer.pieces(&tail);
        let late = move |decoder: &Decoder<'_>| {
            if let Some(binding) = decoder.binding() {
                let_go(procedure, decoder, &binding);
            }
        };
        let get = |decoder: &Decoder<'_>| {
            let read =
                |py: Python<'_>| read(py, package, procedure, decoder, binding).map(Bound::unbind);
            match gate::with_lock(read) {
                Some(Err(Wrong::Malformed(malformed))) => Err(malformed),
                Some(Err(wrong)) => Ok(Err(wrong)),
                Some(Ok(value)) => Ok(Ok(value)),
                None => Ok(Err(Wrong::Malformed(Malformed::Short { at: 0 }))),
            }
        };
        let called = without_lock(py, || on.call_pieces(number as u16, &pieces, late, get));
        drop(tail);
        called.map_err(ours)?.map(|value| value.into_bound(py))
    };
    let answered = !matches!(result, Err(Wrong::Malformed(_)));
    if answered {
        writer.all_given(py);
    }
    match result {
        Ok(value) => Ok(value.unbind()),
        Err(Wrong::Python(error)) => Err(error),
        Err(Wrong::Malformed(malformed)) => Err(ours(CallError::BadReply(malformed.to_string()))),
    }
}
