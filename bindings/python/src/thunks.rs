//! One C function for each number that a procedure can have: see [`client`](crate::client).

use crate::client::invoke;
use crate::plan::ProcedurePlan;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::ffi::CString;
use upcall_rpc::interface::MOST_PROCEDURES;

unsafe extern "C" fn thunk<const NUMBER: usize>(
    slf: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this as the descriptor's flags say.
    unsafe { invoke(NUMBER, slf, args, count, names) }
}

macro_rules! table {
    (ones $hundreds:tt $tens:tt) => {
        [
            table!(one $hundreds $tens 0), table!(one $hundreds $tens 1),
            table!(one $hundreds $tens 2), table!(one $hundreds $tens 3),
            table!(one $hundreds $tens 4), table!(one $hundreds $tens 5),
            table!(one $hundreds $tens 6), table!(one $hundreds $tens 7),
            table!(one $hundreds $tens 8), table!(one $hundreds $tens 9),
        ]
    };
    (one $hundreds:tt $tens:tt $ones:tt) => { thunk::<{ $hundreds * 100 + $tens * 10 + $ones }> };
    (tens $hundreds:tt) => {
        [
            table!(ones $hundreds 0), table!(ones $hundreds 1),
            table!(ones $hundreds 2), table!(ones $hundreds 3),
            table!(ones $hundreds 4), table!(ones $hundreds 5),
            table!(ones $hundreds 6), table!(ones $hundreds 7),
            table!(ones $hundreds 8), table!(ones $hundreds 9),
        ]
    };
    () => {
        [
            table!(tens 0), table!(tens 1), table!(tens 2), table!(tens 3), table!(tens 4),
            table!(tens 5), table!(tens 6), table!(tens 7), table!(tens 8), table!(tens 9),
        ]
    };
}

type Ten<T> = [T; 10];

static THUNKS: Ten<Ten<Ten<ffi::PyCFunctionFastWithKeywords>>> = table!();

const _: () = assert!(MOST_PROCEDURES <= 1000);

/// Returns the method of a class that calls a procedure.
pub fn descriptor<'py>(
    class: &Bound<'py, PyType>,
    number: usize,
    procedure: &ProcedurePlan,
) -> PyResult<Bound<'py, PyAny>> {
    let text = |text: &str| {
        CString::new(text.replace('\0', " ")).unwrap_or_default().into_raw().cast_const()
    };
    // Python keeps pointers to all of it as long as the class lives, which is forever.
    let method = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: text(&procedure.client_method),
        ml_meth: ffi::PyMethodDefPointer {
            PyCFunctionFastWithKeywords: THUNKS[number / 100][number / 10 % 10][number % 10],
        },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: text(&procedure.docs),
    }));
    // SAFETY: a class, and a definition that lives forever.
    let object = unsafe { ffi::PyDescr_NewMethod(class.as_type_ptr(), method) };
    // SAFETY: a new reference, or null and an exception.
    unsafe { Bound::from_owned_ptr_or_err(class.py(), object) }
}
