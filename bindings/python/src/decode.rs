//! Converts blocks to objects. Each number is read once, and each length is checked before it is
//! used.

use crate::bytes::copied;
use crate::caller::PyCaller;
use crate::object::ClientObject;
use crate::plan::{Package, TypePlan, Typed};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple, PyType};
use std::sync::Arc;
use upcall_rpc::{Binding, Decoder, Malformed};

/// Why a value could not be converted.
#[derive(Debug)]
pub enum Wrong {
    Malformed(Malformed),
    Python(PyErr),
}

impl From<Malformed> for Wrong {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<PyErr> for Wrong {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

/// The side that the handles in a block come from.
#[derive(Clone, Copy)]
pub enum HandleSource<'a> {
    /// A server, with the client that made the call.
    Server(&'a Binding),
    Client,
}

/// Size of a list's element, in bytes: a small object, and the list's pointer to it.
const OF_OBJECT: usize = 40;

/// Reads one block.
pub struct PythonReader<'a, 'py> {
    pub py: Python<'py>,
    pub package: &'static Package,
    pub decoder: &'a Decoder<'a>,
    pub from: HandleSource<'a>,
}

type DecodeResult<'py> = Result<Bound<'py, PyAny>, Wrong>;

impl<'py> PythonReader<'_, 'py> {
    fn tag(&self, at: usize, size: u64, cases: usize) -> Result<usize, Wrong> {
        let found = self.number(at, size as usize)?;
        let number = usize::try_from(found).ok().filter(|number| *number < cases);
        number.ok_or_else(|| Malformed::discriminant(at, found, cases as u64).into())
    }

    #[inline]
    fn number(&self, at: usize, size: usize) -> Result<u64, Wrong> {
        Ok(match size {
            1 => self.decoder.u8(at)?.into(),
            2 => self.decoder.u16(at)?.into(),
            4 => self.decoder.u32(at)?.into(),
            _ => self.decoder.u64(at)?,
        })
    }

    /// The value at `at`.
    pub fn get(&self, typed: &Typed, at: usize) -> DecodeResult<'py> {
        let py = self.py;
        Ok(match &typed.ty {
            TypePlan::Scalar(scalar) => {
                let bits = self.number(at, scalar.size())?;
                // SAFETY: `py` proves that this thread has the lock.
                let object = unsafe { scalar.object(bits, at) }?;
                // SAFETY: a new reference, or null and an exception.
                unsafe { Bound::from_owned_ptr_or_err(py, object) }?
            }
            TypePlan::Text => PyString::new(py, &self.decoder.string(at)?).into_any(),
            TypePlan::Bytes => self.bytes(at)?,
            TypePlan::FixedBytes(count) => {
                let bytes = PyBytes::new_with(py, *count, |to| {
                    self.decoder
                        .copy_out(at, to)
                        .map_err(|short| pyo3::exceptions::PyValueError::new_err(short.to_string()))
                });
                bytes?.into_any()
            }
            TypePlan::List(element) => {
                let (start, count) = self.decoder.list(at, element.size)?;
                self.run(element, start, count)?
            }
            TypePlan::FixedList(element, count) => self.run(element, at, *count)?,
            TypePlan::Option { some, at: inner, wrapped } => match self.tag(at, 1, 2)? {
                0 => py.None().into_bound(py),
                _ => {
                    let value = self.get(some, at + inner)?;
                    if *wrapped { crate::names::get(py)?.make_some(value)? } else { value }
                }
            },
            TypePlan::Result { ok, err, at: inner } => {
                let is_err = self.tag(at, 1, 2)? == 1;
                let value = self.maybe(if is_err { err } else { ok }.as_deref(), at + inner)?;
                crate::names::get(py)?.make_outcome(is_err, value)?
            }
            TypePlan::Tuple(types) => {
                let values = types
                    .iter()
                    .map(|(ty, inner)| self.get(ty, at + inner))
                    .collect::<Result<Vec<_>, _>>()?;
                PyTuple::new(py, values)?.into_any()
            }
            TypePlan::Record(record) => {
                let object = new(&record.class, py)?;
                for field in &record.fields {
                    set(&object, field.name.bind(py), &self.get(&field.typed, at + field.at)?)?;
                }
                object
            }
            TypePlan::Variant(variant) => {
                let (class, ty) = &variant.cases[self.tag(at, variant.tag, variant.cases.len())?];
                let object = new(class, py)?;
                if let Some(ty) = ty {
                    set(&object, pyo3::intern!(py, "value"), &self.get(ty, at + variant.at)?)?;
                }
                object
            }
            TypePlan::Enum(labels) => {
                let number = self.tag(at, labels.tag, labels.members.len())?;
                labels.members[number].bind(py).clone()
            }
            TypePlan::Flags(flags) => {
                let bits = self.number(at, flags.size as usize)?;
                if flags.count < 64 && bits >> flags.count != 0 {
                    return Err(Malformed::discriminant(at, bits, 1 << flags.count).into());
                }
                flags.class.bind(py).call1((bits,))?
            }
            TypePlan::Own(resource) => self.handle(*resource, at, true)?,
            TypePlan::Borrow(resource) => self.handle(*resource, at, false)?,
        })
    }

    pub fn maybe(&self, typed: Option<&Typed>, at: usize) -> DecodeResult<'py> {
        typed.map_or_else(|| Ok(self.py.None().into_bound(self.py)), |typed| self.get(typed, at))
    }

    fn bytes(&self, at: usize) -> DecodeResult<'py> {
        let bytes = self.decoder.bytes(at)?;
        self.decoder.own(bytes.len())?;
        Ok(copied(self.py, &bytes)?.into_any())
    }

    fn run(&self, element: &Typed, start: usize, count: usize) -> DecodeResult<'py> {
        self.decoder.own(count.saturating_mul(OF_OBJECT))?;
        let list = PyList::empty(self.py);
        for number in 0..count {
            list.append(self.get(element, start + number * element.size)?)?;
        }
        Ok(list.into_any())
    }

    fn handle(&self, resource: usize, at: usize, given: bool) -> DecodeResult<'py> {
        let handle = self.decoder.u64(at)?;
        let unknown = || Wrong::Malformed(Malformed::NoSuchHandle { handle });
        match self.from {
            HandleSource::Server(binding) => {
                let told = &self.package.resources[resource];
                let home = self.package.interface(told.interface);
                let part = binding.part_named(&home.id).ok_or_else(unknown)?;
                Ok(PyCaller::resource(self.py, self.package, resource, part, handle)?)
            }
            HandleSource::Client => {
                let right = |found: Option<Arc<upcall_rpc::untyped::Foreign>>| {
                    found?
                        .downcast::<ClientObject>()
                        .ok()
                        .filter(|object| object.is(self.package, resource))
                };
                // Check the type before taking: an object of another type stays the client's.
                let mut object = right(self.decoder.object(handle)).ok_or_else(unknown)?;
                if given {
                    object = right(self.decoder.take_object(handle)).ok_or_else(unknown)?;
                }
                Ok(object.value(self.py))
            }
        }
    }
}

/// Makes an object of a dataclass without its fields. This is faster than its `__init__`, which
/// would set the fields one by one through the frozen class's own `__setattr__`.
fn new<'py>(class: &Py<PyType>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: a class without a `__new__` of its own, so it takes no arguments.
    let object = unsafe {
        ffi::PyType_GenericNew(class.as_ptr().cast(), std::ptr::null_mut(), std::ptr::null_mut())
    };
    // SAFETY: a new reference, or null and an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, object) }
}

/// Sets a slot of an object that no other code has seen, bypassing its class's `__setattr__`.
fn set(
    object: &Bound<'_, PyAny>,
    name: &Bound<'_, PyString>,
    value: &Bound<'_, PyAny>,
) -> PyResult<()> {
    // SAFETY: three objects, and this thread has the lock.
    let done =
        unsafe { ffi::PyObject_GenericSetAttr(object.as_ptr(), name.as_ptr(), value.as_ptr()) };
    if done == 0 { Ok(()) } else { Err(PyErr::fetch(object.py())) }
}

/// Collects the handles in a value that arrived too late to be read, so that the server can drop
/// the objects.
pub fn handles(
    typed: &Typed,
    decoder: &Decoder<'_>,
    at: usize,
    found: &mut Vec<(usize, u64)>,
) -> Result<(), Malformed> {
    let tag = |size: u64| {
        Ok::<u64, Malformed>(match size {
            1 => decoder.u8(at)?.into(),
            2 => decoder.u16(at)?.into(),
            _ => decoder.u32(at)?.into(),
        })
    };
    match &typed.ty {
        TypePlan::Own(resource) => found.push((*resource, decoder.u64(at)?)),
        TypePlan::List(element) => {
            let (start, count) = decoder.list(at, element.size)?;
            for number in 0..count {
                handles(element, decoder, start + number * element.size, found)?;
            }
        }
        TypePlan::FixedList(element, count) => {
            for number in 0..*count {
                handles(element, decoder, at + number * element.size, found)?;
            }
        }
        TypePlan::Option { some, at: inner, .. } if tag(1)? == 1 => {
            handles(some, decoder, at + inner, found)?
        }
        TypePlan::Result { ok, err, at: inner } => {
            if let Some(ty) = if tag(1)? == 0 { ok } else { err } {
                handles(ty, decoder, at + inner, found)?;
            }
        }
        TypePlan::Tuple(types) => {
            types.iter().try_for_each(|(ty, inner)| handles(ty, decoder, at + inner, found))?
        }
        TypePlan::Record(record) => {
            record
                .fields
                .iter()
                .try_for_each(|field| handles(&field.typed, decoder, at + field.at, found))?;
        }
        TypePlan::Variant(variant) => {
            if let Some((_, Some(ty))) = variant.cases.get(tag(variant.tag)? as usize) {
                handles(ty, decoder, at + variant.at, found)?;
            }
        }
        _ => {}
    }
    Ok(())
}
