//! Payloads of messages as objects, and objects as payloads.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyList, PyString, PyTuple};
use upcall::message::{Carried, ForeignKind, Message, Number, Shape};

/// Converts a payload to an object. The outer `None` means that the payload does not fit its kind.
pub fn read(
    py: Python<'_>,
    message: &Message<'_, '_>,
    kind: &ForeignKind,
) -> Option<PyResult<Py<PyAny>>> {
    let (carries, size) = (kind.carries(), message.size());
    if kind.size().is_some_and(|expected| expected != size) {
        return None;
    }
    if *carries == Carried::Bytes {
        let copy = |to: &mut [u8]| {
            message
                .copy_out(0, to)
                .ok_or_else(|| PyValueError::new_err("the message has no such bytes"))
        };
        return Some(PyBytes::new_with(py, size, copy).map(|bytes| bytes.into_any().unbind()));
    }
    let mut bytes = vec![0; size];
    message.copy_out(0, &mut bytes)?;
    kind.check(&bytes).ok()?;
    let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    Some(match carries {
        Carried::Words(shape) => object(py, shape, &mut words).map(Bound::unbind),
        Carried::AnyWords => {
            PyList::new(py, words.collect::<Vec<u64>>()).map(|list| list.into_any().unbind())
        }
        Carried::Text => String::from_utf8(bytes)
            .map(|text| PyString::new(py, &text).into_any().unbind())
            .map_err(|error| PyValueError::new_err(error.to_string())),
        Carried::Bytes => Ok(PyBytes::new(py, &bytes).into_any().unbind()),
    })
}

pub fn object<'py>(
    py: Python<'py>,
    shape: &Shape,
    words: &mut impl Iterator<Item = u64>,
) -> PyResult<Bound<'py, PyAny>> {
    match shape {
        Shape::Number(number) => {
            let word = words.next().unwrap_or(0);
            Ok(match number {
                Number::F64 => f64::from_bits(word).into_pyobject(py)?.into_any(),
                Number::F32 => f64::from(f32::from_bits(word as u32)).into_pyobject(py)?.into_any(),
                Number::Bool => PyBool::new(py, word == 1).to_owned().into_any(),
                Number::I64 | Number::I32 => word.cast_signed().into_pyobject(py)?.into_any(),
                Number::U64 | Number::U32 | Number::U16 | Number::U8 => {
                    word.into_pyobject(py)?.into_any()
                }
            })
        }
        Shape::Array(item, count) => {
            let items =
                (0..*count).map(|_| object(py, item, words)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyList::new(py, items)?.into_any())
        }
        Shape::Tuple(parts) if parts.is_empty() => Ok(py.None().into_bound(py)),
        Shape::Tuple(parts) => {
            let items =
                parts.iter().map(|part| object(py, part, words)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyTuple::new(py, items)?.into_any())
        }
    }
}

/// Converts a number to a word.
pub fn word(number: Number, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let unfit = || {
        let shown = value.repr().map(|shown| shown.to_string()).unwrap_or_default();
        format!("{} is no {}", shown.chars().take(60).collect::<String>(), number.name())
    };
    let ranged = |error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(value.py()) {
            PyValueError::new_err(unfit())
        } else {
            PyTypeError::new_err(unfit())
        }
    };
    match number {
        Number::Bool => {
            let value = value.cast::<PyBool>().map_err(|_| PyTypeError::new_err(unfit()))?;
            Ok(value.is_true().into())
        }
        Number::F64 => Ok(value.extract::<f64>().map_err(ranged)?.to_bits()),
        Number::F32 => {
            let wide = value.extract::<f64>().map_err(ranged)?;
            let narrow = wide as f32;
            if narrow.is_infinite() && wide.is_finite() {
                return Err(PyValueError::new_err(unfit()));
            }
            Ok(narrow.to_bits().into())
        }
        _ if value.is_instance_of::<PyBool>() => Err(PyTypeError::new_err(unfit())),
        Number::U64 => value.extract::<u64>().map_err(ranged),
        _ => {
            let word = value.extract::<i64>().map_err(ranged)?.cast_unsigned();
            if number.fits(word) { Ok(word) } else { Err(PyValueError::new_err(unfit())) }
        }
    }
}

/// The items of a value that represents several.
fn items<'py>(value: &Bound<'py, PyAny>, expected: &Shape) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let wrong = || PyTypeError::new_err(format!("a {} is no {expected}", value.get_type()));
    if value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() {
        return Err(wrong());
    }
    value.try_iter().map_err(|_| wrong())?.collect()
}

fn put(shape: &Shape, value: &Bound<'_, PyAny>, to: &mut Vec<u8>) -> PyResult<()> {
    let (parts, count) = match shape {
        Shape::Number(number) => {
            to.extend(word(*number, value)?.to_ne_bytes());
            return Ok(());
        }
        Shape::Tuple(parts) if parts.is_empty() && value.is_none() => return Ok(()),
        Shape::Tuple(parts) => (&parts[..], parts.len()),
        Shape::Array(item, count) => (std::slice::from_ref(&**item), *count),
    };
    let values = items(value, shape)?;
    if values.len() != count {
        return Err(PyValueError::new_err(format!("{} values are no {shape}", values.len())));
    }
    values.iter().zip(parts.iter().cycle()).try_for_each(|(value, part)| put(part, value, to))
}

/// Calls `with` with a value's payload.
pub fn payload<R>(
    carries: &Carried,
    value: &Bound<'_, PyAny>,
    with: impl FnOnce(&[u8]) -> R,
) -> PyResult<R> {
    let wrong = || PyTypeError::new_err(format!("a {} is no {carries}", value.get_type()));
    let mut bytes = Vec::new();
    match carries {
        Carried::Words(shape) => put(shape, value, &mut bytes)?,
        Carried::AnyWords => {
            if value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() {
                return Err(wrong());
            }
            for value in value.try_iter().map_err(|_| wrong())? {
                bytes.extend(word(Number::U64, &value?)?.to_ne_bytes());
            }
        }
        Carried::Text => {
            let text = value.cast::<PyString>().map_err(|_| wrong())?;
            return text.to_cow().map(|text| with(text.as_bytes()));
        }
        Carried::Bytes => match value.cast::<PyBytes>() {
            Ok(value) => return Ok(with(value.as_bytes())),
            Err(_) => {
                bytes = PyBuffer::<u8>::get(value).map_err(|_| wrong())?.to_vec(value.py())?
            }
        },
    }
    Ok(with(&bytes))
}
