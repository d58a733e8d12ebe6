//! Converts objects to blocks.
//!
//! A block is written in runs. Short values are copied to a run of bytes, one after the other. Long
//! values (a string, a buffer) stay where Python has them until the call copies them to their
//! destination, so they are copied once.

use crate::bytes::PyBytesView;
use crate::caller::PyCaller;
use crate::error::ConversionError;
use crate::object::ClientObject;
use crate::plan::{Enum, Package, RecordPlan, TypePlan, Typed, Variant};
use crate::scalar::Scalar;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use std::slice;
use std::sync::Arc;
use upcall_rpc::untyped::{Foreign, Pieces};
use upcall_rpc::{Binding, CallError, Limits};

/// Minimum length of a value that is not copied to a run, in bytes.
const LONG: usize = 2048;

fn kind(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string())
}

fn wrong(expected: &str, object: &Bound<'_, PyAny>) -> ConversionError {
    ConversionError::Type(
        String::new(),
        format!("{expected} is expected, and {} was given", kind(object)),
    )
}

/// The position of a value: a run, and the offset in it.
#[derive(Clone, Copy)]
struct WritePosition {
    run: usize,
    at: usize,
}

struct ByteRun {
    start: usize,
    bytes: Vec<u8>,
}

/// A value that stays in Python's memory.
enum PythonMemory {
    Text { _owner: Py<PyString>, start: *const u8, len: usize },
    Buffer(Box<ffi::Py_buffer>),
}

impl PythonMemory {
    fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: the UTF-8 of a string lives as long as the string, which is kept, and does
            // not change.
            Self::Text { start, len, .. } => unsafe { slice::from_raw_parts(*start, *len) },
            Self::Buffer(view) if view.len == 0 => &[],
            // SAFETY: the exporter of a buffer keeps its memory until the buffer is released. If
            // other threads of the program write to it, they determine what is sent.
            Self::Buffer(view) => unsafe {
                slice::from_raw_parts(view.buf.cast(), view.len as usize)
            },
        }
    }
}

/// The side that the handles in a block go to.
#[derive(Clone, Copy)]
pub enum HandleDestination<'a> {
    Server(&'a Binding),
    Client,
}

/// A block that is being written.
pub struct PythonWriter<'a> {
    package: &'static Package,
    to: HandleDestination<'a>,
    limits: Limits,
    runs: Vec<ByteRun>,
    kept: Vec<(usize, PythonMemory)>,
    /// Offset of the next piece; 0 if there is none yet.
    tail: usize,
    fixed: usize,
    /// Resources that a client gives away.
    given: Vec<Py<PyCaller>>,
    /// Objects that a server gives away, with their offsets in the block.
    objects: Vec<(usize, Arc<Foreign>)>,
}

// SAFETY: of Python's data it keeps read-only memory that does not move, and references that PyO3
// can drop on any thread. Buffers are released with the lock (`Drop`).
unsafe impl Send for PythonWriter<'_> {}
// SAFETY: nothing in it changes through a shared reference.
unsafe impl Sync for PythonWriter<'_> {}

impl Drop for PythonWriter<'_> {
    fn drop(&mut self) {
        let buffers: Vec<_> = self
            .kept
            .drain(..)
            .filter(|(_, kept)| matches!(kept, PythonMemory::Buffer(_)))
            .collect();
        if buffers.is_empty() {
            return;
        }
        crate::gate::with_lock(|_| {
            for (_, kept) in buffers {
                if let PythonMemory::Buffer(mut view) = kept {
                    // SAFETY: the buffer was acquired, and is released once, with the lock.
                    unsafe { ffi::PyBuffer_Release(&mut *view) };
                }
            }
        });
    }
}

impl<'a> PythonWriter<'a> {
    pub fn new(
        package: &'static Package,
        to: HandleDestination<'a>,
        fixed: usize,
        limits: Limits,
    ) -> Self {
        let runs = vec![ByteRun { start: 0, bytes: vec![0; fixed] }];
        Self {
            package,
            to,
            limits,
            runs,
            kept: Vec::new(),
            tail: 0,
            fixed,
            given: Vec::new(),
            objects: Vec::new(),
        }
    }

    /// Returns the fixed part if there is nothing else.
    pub fn whole(&self) -> Option<&[u8]> {
        (self.runs.len() == 1 && self.kept.is_empty()).then(|| &*self.runs[0].bytes)
    }

    /// Returns the offset and the bytes of each piece behind the first run.
    pub fn tail(&self) -> Vec<(usize, &[u8])> {
        let runs = self.runs.iter().skip(1).map(|run| (run.start, &*run.bytes));
        runs.chain(self.kept.iter().map(|(at, kept)| (*at, kept.bytes()))).collect()
    }

    pub fn pieces<'b>(&'b self, tail: &'b [(usize, &'b [u8])]) -> Pieces<'b> {
        Pieces { fixed: &self.runs[0].bytes, tail, len: self.len() }
    }

    #[allow(clippy::len_without_is_empty)] // Not needed.
    pub fn len(&self) -> usize {
        if self.tail == 0 { self.fixed } else { self.tail }
    }

    /// Marks the resources that the call has given away as the server's.
    pub fn all_given(&mut self, py: Python<'_>) {
        self.given.drain(..).for_each(|caller| caller.bind(py).get().was_given());
    }

    pub fn objects(&mut self) -> Vec<(usize, Arc<Foreign>)> {
        std::mem::take(&mut self.objects)
    }

    /// Returns `true` if part of it must be released with the interpreter's lock.
    pub fn has_buffers(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Detaches the writer from its binding, once everything is written.
    pub fn without_binding(mut self) -> PythonWriter<'static> {
        PythonWriter {
            package: self.package,
            to: HandleDestination::Client,
            limits: self.limits,
            runs: std::mem::take(&mut self.runs),
            kept: std::mem::take(&mut self.kept),
            tail: self.tail,
            fixed: self.fixed,
            given: std::mem::take(&mut self.given),
            objects: std::mem::take(&mut self.objects),
        }
    }

    /// Returns the block in one piece.
    pub fn flat(&self) -> Vec<u8> {
        let mut block = vec![0; self.len()];
        for (at, bytes) in std::iter::once((0, &*self.runs[0].bytes)).chain(self.tail()) {
            block[at..at + bytes.len()].copy_from_slice(bytes);
        }
        block
    }

    fn bytes(&mut self, place: WritePosition, bytes: &[u8]) {
        self.runs[place.run].bytes[place.at..][..bytes.len()].copy_from_slice(bytes);
    }

    fn number(&mut self, place: WritePosition, value: u64, size: u64) {
        self.bytes(place, &value.to_le_bytes()[..size as usize]);
    }

    fn begin_piece(&mut self) {
        if self.tail == 0 {
            self.tail = self.fixed.next_multiple_of(8);
            self.runs[0].bytes.resize(self.tail, 0);
        }
    }

    fn checked(&self, what: &'static str, len: usize) -> Result<(), ConversionError> {
        let limit = if what == "string" { self.limits.string } else { self.limits.list };
        if len as u64 > limit {
            return Err(ConversionError::Call(CallError::TooLong { what, len: len as u64, limit }));
        }
        Ok(())
    }

    /// Reserves room for a piece of `count` elements, whose descriptor is at `place`.
    fn reserve(&mut self, place: WritePosition, count: usize, stride: usize) -> WritePosition {
        self.begin_piece();
        let (start, len) = (self.tail, (count * stride).next_multiple_of(8));
        self.describe(place, start, count);
        self.tail += len;
        let last = self.runs.len() - 1;
        if self.runs[last].start + self.runs[last].bytes.len() == start {
            let at = self.runs[last].bytes.len();
            self.runs[last].bytes.resize(at + len, 0);
            return WritePosition { run: last, at };
        }
        self.runs.push(ByteRun { start, bytes: vec![0; len] });
        WritePosition { run: last + 1, at: 0 }
    }

    fn describe(&mut self, place: WritePosition, start: usize, count: usize) {
        self.number(place, start as u64, 8);
        self.number(WritePosition { at: place.at + 8, ..place }, count as u64, 8);
    }

    /// Writes a piece of bytes: copied if it is short, kept otherwise.
    fn piece(&mut self, place: WritePosition, count: usize, kept: PythonMemory) {
        let len = kept.bytes().len();
        if len < LONG {
            let stride = len.checked_div(count).unwrap_or(1);
            let to = self.reserve(place, count, stride);
            self.runs[to.run].bytes[to.at..][..len].copy_from_slice(kept.bytes());
            if let PythonMemory::Buffer(mut view) = kept {
                // SAFETY: the buffer was acquired, and is released once; the lock is held while
                // values are written.
                unsafe { ffi::PyBuffer_Release(&mut *view) };
            }
            return;
        }
        self.begin_piece();
        self.describe(place, self.tail, count);
        self.kept.push((self.tail, kept));
        self.tail += len.next_multiple_of(8);
    }

    /// Writes a value of the fixed part.
    pub fn put_at(
        &mut self,
        typed: &Typed,
        object: &Bound<'_, PyAny>,
        at: usize,
    ) -> Result<(), ConversionError> {
        self.put(typed, object, WritePosition { run: 0, at })
    }

    /// Writes a method's `self`, or a discriminant.
    pub fn put_number(&mut self, at: usize, value: u64, size: u64) {
        self.number(WritePosition { run: 0, at }, value, size);
    }

    fn put(
        &mut self,
        typed: &Typed,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        let plus = |at: usize| WritePosition { at: place.at + at, ..place };
        match &typed.ty {
            TypePlan::Scalar(scalar) => self.scalar(*scalar, object, place),
            TypePlan::Text => self.text(object, place),
            TypePlan::Bytes => self.list_of_bytes(object, place),
            TypePlan::FixedBytes(count) => self.fixed_bytes(*count, object, place),
            TypePlan::List(element) => self.list(element, object, place),
            TypePlan::FixedList(element, count) => {
                let items = items(object)?;
                if items.len() != *count {
                    let found = items.len();
                    return Err(ConversionError::Value(
                        String::new(),
                        format!("{count} elements are expected, and {found} were given"),
                    ));
                }
                self.run(element, &items, place)
            }
            TypePlan::Option { some, at, wrapped } => {
                if object.is_none() {
                    return Ok(());
                }
                self.number(place, 1, 1);
                if !wrapped {
                    return self.put(some, object, plus(*at));
                }
                let inner = crate::names::get(object.py())?
                    .some(object)?
                    .ok_or_else(|| wrong("Some(..) or None", object))?;
                self.put(some, &inner, plus(*at))
            }
            TypePlan::Result { ok, err, at } => {
                let (is_err, inner) = crate::names::get(object.py())?
                    .outcome(object)?
                    .ok_or_else(|| wrong("Ok(..) or Err(..)", object))?;
                self.number(place, u64::from(is_err), 1);
                match if is_err { err } else { ok } {
                    Some(ty) => self
                        .put(ty, &inner, plus(*at))
                        .map_err(|fault| fault.within(|| ".value".into())),
                    None if inner.is_none() => Ok(()),
                    None => Err(wrong("None", &inner).within(|| ".value".into())),
                }
            }
            TypePlan::Tuple(types) => self.tuple(types, object, place),
            TypePlan::Record(record) => self.record(record, object, place),
            TypePlan::Variant(variant) => self.variant(variant, object, place),
            TypePlan::Enum(labels) => self.label(labels, object, place),
            TypePlan::Flags(flags) => {
                if !object.is_instance(flags.class.bind(object.py()))? {
                    return Err(wrong(&flags.class.bind(object.py()).name()?.to_string(), object));
                }
                let bits: u64 = object.getattr(pyo3::intern!(object.py(), "_value_"))?.extract()?;
                self.number(place, bits, flags.size);
                Ok(())
            }
            TypePlan::Own(resource) => self.handle(*resource, object, place, true),
            TypePlan::Borrow(resource) => self.handle(*resource, object, place, false),
        }
    }

    fn list_of_bytes(
        &mut self,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        if let Ok(view) = object.cast::<PyBytesView>() {
            let bytes = view.get().copied(object.py())?;
            self.checked("list", bytes.len())?;
            let to = self.reserve(place, bytes.len(), 1);
            self.bytes(to, &bytes);
            return Ok(());
        }
        let view = buffer(object, ffi::PyBUF_SIMPLE)?;
        self.checked("list", view.len as usize)?;
        let count = view.len as usize;
        self.piece(place, count, PythonMemory::Buffer(view));
        Ok(())
    }

    fn fixed_bytes(
        &mut self,
        count: usize,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        let kept = PythonMemory::Buffer(buffer(object, ffi::PyBUF_SIMPLE)?);
        let len = kept.bytes().len();
        if len == count {
            self.bytes(place, kept.bytes());
        }
        if let PythonMemory::Buffer(mut view) = kept {
            // SAFETY: the buffer was acquired, and is released once, with the lock.
            unsafe { ffi::PyBuffer_Release(&mut *view) };
        }
        if len == count {
            Ok(())
        } else {
            let text = format!("{count} bytes are expected, and {len} were given");
            Err(ConversionError::Value(String::new(), text))
        }
    }

    fn tuple(
        &mut self,
        types: &[(Typed, usize)],
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        let found = object
            .cast::<PyTuple>()
            .map_err(|_| wrong(&format!("a tuple of {}", types.len()), object))?;
        if found.len() != types.len() {
            let text = format!(
                "a tuple of {} is expected, and one of {} was given",
                types.len(),
                found.len()
            );
            return Err(ConversionError::Value(String::new(), text));
        }
        for (number, (ty, at)) in types.iter().enumerate() {
            let put = self.put(
                ty,
                &found.get_item(number)?,
                WritePosition { at: place.at + at, ..place },
            );
            put.map_err(|fault| fault.within(|| format!("[{number}]")))?;
        }
        Ok(())
    }

    #[inline]
    fn scalar(
        &mut self,
        scalar: Scalar,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        // SAFETY: `Bound` proves that this thread has the lock.
        match unsafe { scalar.bits(object.as_ptr()) } {
            Some(bits) => {
                self.number(place, bits, scalar.size() as u64);
                Ok(())
            }
            None => Err(not_a(scalar, object)),
        }
    }

    fn text(
        &mut self,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        let text = object.cast::<PyString>().map_err(|_| wrong("str", object))?;
        let mut len = 0;
        // SAFETY: it is a string, and `len` is a local variable.
        let start = unsafe { ffi::PyUnicode_AsUTF8AndSize(text.as_ptr(), &mut len) };
        if start.is_null() {
            drop(PyErr::take(object.py()));
            return Err(ConversionError::Value(
                String::new(),
                "the string has surrogates, which are not text".into(),
            ));
        }
        self.checked("string", len as usize)?;
        self.piece(
            place,
            len as usize,
            PythonMemory::Text {
                _owner: text.clone().unbind(),
                start: start.cast(),
                len: len as usize,
            },
        );
        Ok(())
    }

    fn list(
        &mut self,
        element: &Typed,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        if let TypePlan::Scalar(scalar) = element.ty
            && !object.is_instance_of::<PyList>()
            && !object.is_instance_of::<PyTuple>()
            && let Some(view) = array(scalar, object)
        {
            let count = view.len as usize / scalar.size();
            self.checked("list", count)?;
            self.piece(place, count, PythonMemory::Buffer(view));
            return Ok(());
        }
        let items = items(object)?;
        self.checked("list", items.len())?;
        let start = self.reserve(place, items.len(), element.size);
        self.run(element, &items, start)
    }

    fn run(
        &mut self,
        element: &Typed,
        items: &Items<'_>,
        start: WritePosition,
    ) -> Result<(), ConversionError> {
        for number in 0..items.len() {
            let put = self.put(
                element,
                &items.get(number)?,
                WritePosition { at: start.at + number * element.size, ..start },
            );
            put.map_err(|fault| fault.within(|| format!("[{number}]")))?;
        }
        Ok(())
    }

    fn record(
        &mut self,
        record: &RecordPlan,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        let py = object.py();
        if !object.is_exact_instance(record.class.bind(py))
            && !object.is_instance(record.class.bind(py))?
        {
            return Err(wrong(&record.class.bind(py).name()?.to_string(), object));
        }
        for field in &record.fields {
            let value = object.getattr(field.name.bind(py))?;
            let put =
                self.put(&field.typed, &value, WritePosition { at: place.at + field.at, ..place });
            put.map_err(|fault| fault.within(|| format!(".{}", field.name)))?;
        }
        Ok(())
    }

    fn variant(
        &mut self,
        variant: &Variant,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        let (py, class) = (object.py(), object.get_type());
        let mut number = variant.cases.iter().position(|(case, _)| class.is(case.bind(py)));
        if number.is_none() {
            for (at, (case, _)) in variant.cases.iter().enumerate() {
                if object.is_instance(case.bind(py))? {
                    number = Some(at);
                }
            }
        }
        let number =
            number.ok_or_else(|| wrong(&format!("a case of `{}`", variant.name), object))?;
        self.number(place, number as u64, variant.tag);
        if let (_, Some(ty)) = &variant.cases[number] {
            let value = object.getattr(pyo3::intern!(py, "value"))?;
            let put = self.put(ty, &value, WritePosition { at: place.at + variant.at, ..place });
            put.map_err(|fault| fault.within(|| ".value".into()))?;
        }
        Ok(())
    }

    fn label(
        &mut self,
        labels: &Enum,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
    ) -> Result<(), ConversionError> {
        let py = object.py();
        if !object.get_type().is(labels.class.bind(py)) {
            return Err(wrong(&labels.class.bind(py).name()?.to_string(), object));
        }
        let number: usize = object.getattr(pyo3::intern!(py, "_value_"))?.extract()?;
        self.number(place, number as u64, labels.tag);
        Ok(())
    }

    fn handle(
        &mut self,
        resource: usize,
        object: &Bound<'_, PyAny>,
        place: WritePosition,
        given: bool,
    ) -> Result<(), ConversionError> {
        let (py, told) = (object.py(), &self.package.resources[resource]);
        let class =
            if matches!(self.to, HandleDestination::Client) { &told.served } else { &told.client };
        if !object.is_instance(class.bind(py))? {
            return Err(wrong(&class.bind(py).name()?.to_string(), object));
        }
        match self.to {
            HandleDestination::Server(binding) => {
                let caller = object.cast::<PyCaller>().map_err(|_| wrong("a resource", object))?;
                let handle =
                    caller.get().handle().ok_or_else(|| ConversionError::Gone(String::new()))?;
                if !caller.get().binding().is_some_and(|other| binding.same(other)) {
                    return Err(ConversionError::Call(CallError::ForeignHandle));
                }
                if given {
                    if self.given.iter().any(|other| other.is(caller)) {
                        return Err(ConversionError::Value(
                            String::new(),
                            "the resource is given away twice".into(),
                        ));
                    }
                    self.given.push(caller.clone().unbind());
                }
                self.number(place, handle, 8);
            }
            HandleDestination::Client => {
                let at = self.runs[place.run].start + place.at;
                self.objects.push((
                    at,
                    Arc::new(ClientObject::new(self.package, resource, object.clone().unbind())),
                ));
            }
        }
        Ok(())
    }
}

#[cold]
fn not_a(scalar: Scalar, object: &Bound<'_, PyAny>) -> ConversionError {
    let py = object.py();
    let said = PyErr::take(py);
    let name = scalar.name();
    let is_number = |class: &str| matches!(class, "int" | "str" | "float");
    match said {
        // An exception that the object itself raised.
        Some(error)
            if !error.is_instance_of::<pyo3::exceptions::PyTypeError>(py)
                && !error.is_instance_of::<pyo3::exceptions::PyOverflowError>(py) =>
        {
            ConversionError::Python(error)
        }
        _ if scalar != Scalar::Bool
            && is_number(&kind(object))
            && (scalar == Scalar::Char) == (kind(object) == "str") =>
        {
            let shown = object.repr().map_or_else(|_| "?".into(), |text| text.to_string());
            let shown: String = shown.chars().take(60).collect();
            if kind(object) == "float" {
                return wrong(name, object);
            }
            ConversionError::Value(String::new(), format!("{shown} is no {name}"))
        }
        _ => wrong(name, object),
    }
}

/// Acquires the contiguous buffer of an object.
fn buffer(
    object: &Bound<'_, PyAny>,
    flags: std::ffi::c_int,
) -> Result<Box<ffi::Py_buffer>, ConversionError> {
    let mut view = Box::new(ffi::Py_buffer::new());
    // SAFETY: the lock is held, and the struct is a local one; the function's caller releases it
    // once.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } == 0 {
        return Ok(view);
    }
    let error = PyErr::take(object.py());
    match error {
        Some(error) if error.is_instance_of::<PyMemoryError>(object.py()) => {
            Err(ConversionError::Python(error))
        }
        _ => Err(wrong("bytes, or another contiguous buffer,", object)),
    }
}

/// Acquires the buffer of an array of numbers of this type, if the object is one.
fn array(scalar: Scalar, object: &Bound<'_, PyAny>) -> Option<Box<ffi::Py_buffer>> {
    let mut view = buffer(object, ffi::PyBUF_ND | ffi::PyBUF_FORMAT).ok()?;
    let format = if view.format.is_null() {
        Some(b'B')
    } else {
        // SAFETY: a C string that lives as long as the buffer.
        let text = unsafe { std::ffi::CStr::from_ptr(view.format) }.to_bytes();
        match text {
            [one] | [b'@' | b'=' | b'<', one] => Some(*one),
            _ => None,
        }
    };
    // Bytes other than 0 and 1 are not truth values, and the server would refuse them. So the
    // elements of a list of truth values are checked one by one.
    let fits = scalar != Scalar::Bool && view.ndim <= 1 && view.itemsize as usize == scalar.size();
    if fits && format.is_some_and(|format| scalar.is_format(format)) {
        return Some(view);
    }
    // SAFETY: the buffer was acquired, and is released once.
    unsafe { ffi::PyBuffer_Release(&mut *view) };
    None
}

/// The elements of a list, a tuple, or another sequence.
enum Items<'py> {
    List(Bound<'py, PyList>),
    Tuple(Bound<'py, PyTuple>),
}

impl<'py> Items<'py> {
    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tuple(tuple) => tuple.len(),
        }
    }

    /// Returns an error if the list has become shorter.
    fn get(&self, number: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::List(list) => list.get_item(number),
            Self::Tuple(tuple) => tuple.get_item(number),
        }
    }
}

fn items<'py>(object: &Bound<'py, PyAny>) -> Result<Items<'py>, ConversionError> {
    if let Ok(list) = object.cast::<PyList>() {
        return Ok(Items::List(list.clone()));
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return Ok(Items::Tuple(tuple.clone()));
    }
    // A string is a sequence of strings, but that is never meant.
    if object.is_instance_of::<PyString>() || object.is_instance_of::<pyo3::types::PyBytes>() {
        return Err(wrong("a sequence", object));
    }
    let sequence =
        object.cast::<pyo3::types::PySequence>().map_err(|_| wrong("a sequence", object))?;
    Ok(Items::Tuple(sequence.to_tuple()?))
}
