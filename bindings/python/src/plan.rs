//! Plans: what the engine knows of a package. They list its interfaces and, for each procedure,
//! where its values lie and which Python classes represent them.
//!
//! A plan is made once, when a generated module is imported or an interface is learned from its
//! server, and kept forever, as the runtime keeps descriptors of interfaces. A call uses the plan
//! and nothing of WIT.

use crate::scalar::{Fast, Scalar};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use std::sync::Arc;
use upcall_idl::layout::{choice, discriminant_size, flags_size, sequence};
use upcall_idl::model::{self, Model, ProcedureKind, Type as WitType, TypeBody as Wit, TypeId};
use upcall_idl::python;
use upcall_rpc::{Extent, Interface as Descriptor, Limits, Part, Procedure as Described};

/// The side on which a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueSide {
    Client,
    Server,
}

/// A type, with its size in a block.
#[derive(Clone)]
pub struct Typed {
    pub ty: TypePlan,
    pub size: usize,
}

#[derive(Clone)]
pub enum TypePlan {
    Scalar(Scalar),
    Text,
    /// `list<u8>`.
    Bytes,
    /// `list<u8, N>`.
    FixedBytes(usize),
    List(Arc<Typed>),
    FixedList(Arc<Typed>, usize),
    /// `wrapped`: a value that is present may itself be `None`, and is wrapped in a `Some`.
    Option {
        some: Arc<Typed>,
        at: usize,
        wrapped: bool,
    },
    Result {
        ok: Option<Arc<Typed>>,
        err: Option<Arc<Typed>>,
        at: usize,
    },
    Tuple(Arc<Vec<(Typed, usize)>>),
    Record(Arc<RecordPlan>),
    Variant(Arc<Variant>),
    Enum(Arc<Enum>),
    Flags(Arc<Flags>),
    /// The resource's number.
    Own(usize),
    Borrow(usize),
}

pub struct RecordPlan {
    pub class: Py<PyType>,
    pub fields: Vec<FieldPlan>,
}

pub struct FieldPlan {
    pub name: Py<PyString>,
    pub typed: Typed,
    pub at: usize,
}

pub struct Variant {
    pub cases: Vec<(Py<PyType>, Option<Typed>)>,
    pub tag: u64,
    pub at: usize,
    pub name: String,
}

pub struct Enum {
    pub class: Py<PyType>,
    pub members: Vec<Py<PyAny>>,
    pub tag: u64,
}

pub struct Flags {
    pub class: Py<PyType>,
    pub size: u64,
    pub count: usize,
}

/// A resource's classes.
pub struct ResourcePlan {
    pub interface: usize,
    pub name: String,
    pub client: Py<PyType>,
    pub served: Py<PyType>,
}

pub struct ParamPlan {
    pub name: Py<PyString>,
    pub text: String,
    pub client: Typed,
    pub server: Typed,
    pub at: usize,
}

/// A procedure's result, for each side.
pub struct ResultPlan {
    pub client: Typed,
    pub server: Typed,
}

pub struct ProcedurePlan {
    pub name: String,
    pub kind: ProcedureKind,
    /// The parameters, without a method's `self`.
    pub params: Vec<ParamPlan>,
    pub result: Option<ResultPlan>,
    pub is_method: bool,
    /// The resource that the procedure belongs to.
    pub resource: Option<usize>,
    pub args: usize,
    pub results: usize,
    /// Set if both blocks fit into a message, and contain no handles.
    pub words: bool,
    pub fast: Option<Fast>,
    pub limits: Limits,
    /// The method's name in a server.
    pub served: Py<PyString>,
    pub client_method: String,
    pub docs: String,
}

pub struct InterfacePlan {
    pub id: String,
    pub descriptor: &'static Descriptor,
    pub procedures: Vec<ProcedurePlan>,
    /// For each number that a server may get: the interface, and the number in it.
    pub bound: Vec<(usize, usize)>,
    pub parts: Vec<usize>,
    pub attributes: Vec<String>,
    pub client: Py<PyType>,
    pub served: Py<PyType>,
}

/// A package.
pub struct Package {
    /// The interfaces that can be bound, by the model's index.
    pub interfaces: Vec<Option<InterfacePlan>>,
    pub resources: Vec<ResourcePlan>,
}

impl Package {
    pub fn interface(&self, index: usize) -> &InterfacePlan {
        match self.interfaces.get(index) {
            Some(Some(interface)) => interface,
            _ => unreachable!("only what can be bound has a class"),
        }
    }
}

/// Makes the plans of a model and the classes of its module.
struct Planner<'a, 'py> {
    py: Python<'py>,
    model: &'a Model,
    classes: &'a Bound<'py, PyDict>,
    /// The resources' numbers, by the model's number.
    resources: Vec<Option<usize>>,
    types: [Vec<Option<Typed>>; 2],
}

impl<'py> Planner<'_, 'py> {
    fn found(&self, key: &str) -> PyResult<Bound<'py, PyAny>> {
        let found = self.classes.get_item(key)?;
        found.ok_or_else(|| {
            PyKeyError::new_err(format!("the module has no class for {key}: generate it again"))
        })
    }

    fn class(&self, key: &str) -> PyResult<Py<PyType>> {
        Ok(self
            .found(key)?
            .cast_into::<PyType>()
            .map_err(|_| PyTypeError::new_err(format!("{key} is not a class")))?
            .unbind())
    }

    fn key(&self, id: TypeId, side: ValueSide) -> String {
        let def = self.model.def(id);
        let served = if side == ValueSide::Server && def.holds.any() { "@served" } else { "" };
        format!("{}#{}{served}", self.model.interfaces[def.interface].id, def.name)
    }

    fn ty(&self, ty: &WitType, side: ValueSide) -> Typed {
        let size = self.model.layout(ty).size as usize;
        let inner = |t: &WitType| Arc::new(self.ty(t, side));
        let is_bytes = |t: &WitType| *self.model.resolve(t) == WitType::U8;
        let layout = |t: &WitType| self.model.layout(t);
        let ty = match ty {
            WitType::String => TypePlan::Text,
            WitType::List(t) if is_bytes(t) => TypePlan::Bytes,
            WitType::List(t) => TypePlan::List(inner(t)),
            WitType::FixedList(t, count) if is_bytes(t) => TypePlan::FixedBytes(*count as usize),
            WitType::FixedList(t, count) => TypePlan::FixedList(inner(t), *count as usize),
            WitType::Option(t) => {
                let wrapped = matches!(self.model.resolve(t), WitType::Option(_));
                TypePlan::Option { some: inner(t), at: choice(2, [layout(t)]).0 as usize, wrapped }
            }
            WitType::Result(ok, err) => {
                let at = choice(2, [ok, err].into_iter().flatten().map(|t| layout(t))).0 as usize;
                TypePlan::Result {
                    ok: ok.as_deref().map(inner),
                    err: err.as_deref().map(inner),
                    at,
                }
            }
            WitType::Tuple(types) => {
                let (offsets, _) = sequence(types.iter().map(layout));
                let items =
                    types.iter().zip(offsets).map(|(t, at)| (self.ty(t, side), at as usize));
                TypePlan::Tuple(Arc::new(items.collect()))
            }
            WitType::Own(id) => TypePlan::Own(self.resource(*id)),
            WitType::Borrow(id) => TypePlan::Borrow(self.resource(*id)),
            WitType::Named(id) => {
                let known = self.types[side as usize].get(id.index()).cloned().flatten();
                return known.unwrap_or_else(|| {
                    unreachable!("types stand behind those that they are made of")
                });
            }
            scalar => TypePlan::Scalar(Scalar::of(scalar)),
        };
        Typed { ty, size }
    }

    fn is_resource(&self, ty: &WitType) -> bool {
        matches!(
            self.model.resolve(ty),
            WitType::Named(id) if matches!(self.model.def(*id).shape, Wit::Resource)
        )
    }

    fn resource(&self, id: TypeId) -> usize {
        self.resources[id.index()].unwrap_or_default()
    }

    /// The type at `id` of the model; `None` for a resource by itself.
    fn named(&self, id: TypeId, side: ValueSide) -> PyResult<Option<Typed>> {
        let def = self.model.def(id);
        let key = self.key(id, side);
        let size = def.layout.size as usize;
        let ty = match &def.shape {
            Wit::Resource => return Ok(None),
            // Handles name the resource itself.
            Wit::Alias(target) if self.is_resource(target) => return Ok(None),
            Wit::Alias(target) => return Ok(Some(self.ty(target, side))),
            Wit::Record(fields) => {
                let (offsets, _) = self.model.record(fields);
                let field = |(field, at): (&model::Field, u64)| FieldPlan {
                    name: PyString::intern(self.py, &python::field(&field.name)).unbind(),
                    typed: self.ty(&field.ty, side),
                    at: at as usize,
                };
                let fields = fields.iter().zip(offsets).map(field).collect();
                TypePlan::Record(Arc::new(RecordPlan { class: self.class(&key)?, fields }))
            }
            Wit::Variant(cases) => {
                let classes = self.found(&key)?.cast_into::<PyTuple>()?;
                let case = |(case, class): (&model::Case, Bound<'py, PyAny>)| {
                    PyResult::Ok((
                        class.cast_into::<PyType>()?.unbind(),
                        case.ty.as_ref().map(|ty| self.ty(ty, side)),
                    ))
                };
                let at = self.model.variant(cases).0 as usize;
                let (tag, name) = (discriminant_size(cases.len()), def.name.clone());
                let cases =
                    cases.iter().zip(classes.iter()).map(case).collect::<PyResult<Vec<_>>>()?;
                TypePlan::Variant(Arc::new(Variant { cases, tag, at, name }))
            }
            Wit::Enum(labels) => {
                let class = self.class(&key)?;
                let member =
                    |label: &model::Label| class.getattr(self.py, &*python::label(&label.name));
                let members = labels.iter().map(member).collect::<PyResult<Vec<_>>>()?;
                TypePlan::Enum(Arc::new(Enum {
                    class,
                    members,
                    tag: discriminant_size(labels.len()),
                }))
            }
            Wit::Flags(labels) => {
                let size = flags_size(labels.len()).unwrap_or(8);
                TypePlan::Flags(Arc::new(Flags {
                    class: self.class(&key)?,
                    size,
                    count: labels.len(),
                }))
            }
        };
        Ok(Some(Typed { ty, size }))
    }

    fn procedure(
        &self,
        index: usize,
        told: &model::ProcedureDefinition,
    ) -> PyResult<ProcedurePlan> {
        let is_method = matches!(told.kind, ProcedureKind::Method(_));
        let param = |param: &model::Param| {
            let name = python::parameter(&param.name);
            ParamPlan {
                name: PyString::intern(self.py, &name).unbind(),
                text: name,
                client: self.ty(&param.ty, ValueSide::Client),
                server: self.ty(&param.ty, ValueSide::Server),
                at: param.offset as usize,
            }
        };
        let params: Vec<ParamPlan> =
            told.params.iter().skip(usize::from(is_method)).map(param).collect();
        let result = told.result.as_ref();
        let holds = told
            .params
            .iter()
            .skip(usize::from(is_method))
            .map(|p| &p.ty)
            .chain(result)
            .any(|t| self.model.holds(t).any());
        let (args, results) = (told.args, told.results);
        let fits = |block: upcall_idl::layout::TypeLayout| {
            block.fixed && block.size <= upcall_shm::slot::INLINE as u64
        };
        let words = !holds && fits(args) && fits(results);
        let result = result.map(|ty| ResultPlan {
            client: self.ty(ty, ValueSide::Client),
            server: self.ty(ty, ValueSide::Server),
        });
        let fast =
            if words { Fast::of(&params, result.as_ref(), args.size as usize) } else { None };
        let client_method = python::client_method(self.model, index, told);
        let names: Vec<&str> = params.iter().map(|param| param.text.as_str()).collect();
        let docs = self.docs(index, told);
        let first = if names.is_empty() { "$self" } else { "$self, " };
        Ok(ProcedurePlan {
            name: told.name.clone(),
            kind: told.kind,
            is_method,
            resource: told.kind.resource().map(|id| self.resource(id)),
            args: args.size as usize,
            results: results.size as usize,
            words,
            fast,
            limits: Limits {
                string: told.limits.string,
                list: told.limits.list,
                values: told.limits.values,
            },
            served: PyString::intern(self.py, &python::served_method(self.model, index, told))
                .unbind(),
            docs: format!("{client_method}({first}{})\n--\n\n{docs}", names.join(", ")),
            client_method,
            params,
            result,
        })
    }

    /// A method's docstring: the doc comment, the declaration in WIT, and the error.
    fn docs(&self, index: usize, told: &model::ProcedureDefinition) -> String {
        let mut docs: Vec<String> = told.docs.iter().map(|docs| docs.trim().to_owned()).collect();
        docs.push(format!("WIT: {}", self.model.declaration(index, told)));
        if let Some(WitType::Result(_, err)) = told.result.as_ref().map(|ty| self.model.resolve(ty))
        {
            let of = err.as_ref().map(|ty| format!(", of the type `{}`", self.model.wit(ty)));
            docs.push(format!(
                "Raises:\n    upcall.Err: the procedure returned its error{}.",
                of.unwrap_or_default()
            ));
        }
        docs.join("\n\n")
    }

    fn interface(&self, index: usize) -> PyResult<Option<InterfacePlan>> {
        let told = &self.model.interfaces[index];
        if !self.classes.contains(&*told.id)? {
            return Ok(None);
        }
        let mut bound: Vec<(usize, usize)> =
            (0..told.procedures.len()).map(|number| (index, number)).collect();
        for part in &told.parts {
            bound.extend(
                (0..self.model.interfaces[part.interface].procedures.len())
                    .map(|number| (part.interface, number)),
            );
        }
        Ok(Some(InterfacePlan {
            id: told.id.clone(),
            descriptor: Box::leak(Box::new(self.descriptor(told))),
            procedures: told
                .procedures
                .iter()
                .map(|one| self.procedure(index, one))
                .collect::<PyResult<Vec<_>>>()?,
            bound,
            parts: told.parts.iter().map(|part| part.interface).collect(),
            attributes: told
                .parts
                .iter()
                .map(|part| python::part_attribute(self.model, index, part.interface))
                .collect(),
            client: self.class(&told.id)?,
            served: self.class(&format!("{}@served", told.id))?,
        }))
    }

    fn descriptor(&self, told: &model::InterfaceDefinition) -> Descriptor {
        let procedure = |told: &model::ProcedureDefinition| {
            let [args, results] =
                told.blocks().map(|(fixed, tail)| Extent { fixed: fixed as u32, tail });
            Described {
                name: told.name.clone().into(),
                signature: told.signature.clone().into(),
                hash: told.hash,
                args,
                results,
                calls: told.limits.calls,
                limits: Limits {
                    string: told.limits.string,
                    list: told.limits.list,
                    values: told.limits.values,
                },
            }
        };
        let part = |part: &model::CarriedInterface| Part {
            id: self.model.interfaces[part.interface].id.clone().into(),
            first: part.first as u16,
        };
        Descriptor {
            id: told.id.clone().into(),
            procedures: told.bound().map(procedure).collect::<Vec<_>>().into(),
            parts: told.parts.iter().map(part).collect::<Vec<_>>().into(),
            source: self.model.source.clone().into(),
            limits: self.model.limits.clone().into(),
        }
    }
}

/// Makes the plans of a model, for the classes of its module, by the keys that the generator
/// writes.
pub fn plan(
    py: Python<'_>,
    model: &Model,
    classes: &Bound<'_, PyDict>,
) -> PyResult<&'static Package> {
    let mut planner = Planner {
        py,
        model,
        classes,
        resources: vec![None; model.types.len()],
        types: [Vec::new(), Vec::new()],
    };
    let mut resources = Vec::new();
    for (number, def) in
        model.types.iter().enumerate().filter(|(_, def)| matches!(def.shape, Wit::Resource))
    {
        let key = format!("{}#{}", model.interfaces[def.interface].id, def.name);
        planner.resources[number] = Some(resources.len());
        resources.push(ResourcePlan {
            interface: def.interface,
            name: def.name.clone(),
            client: planner.class(&key)?,
            served: planner.class(&format!("{key}@served"))?,
        });
    }
    for id in model.ids() {
        for side in [ValueSide::Client, ValueSide::Server] {
            let typed = planner.named(id, side)?;
            planner.types[side as usize].push(typed);
        }
    }
    let interfaces = (0..model.interfaces.len())
        .map(|index| planner.interface(index))
        .collect::<PyResult<Vec<_>>>()?;
    Ok(Box::leak(Box::new(Package { interfaces, resources })))
}
