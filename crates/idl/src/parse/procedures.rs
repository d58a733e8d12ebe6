//! Procedures: the layouts of their parameters and results, their signatures and limits.

use super::{Lowering, MAX_MEMBERS};
use crate::error::Error;
use crate::layout::{self, TypeLayout, check_size};
use crate::model::{Param, ProcedureDefinition, ProcedureKind, ProcedureLimits, Type};
use crate::signature;
use wit_parser::FunctionKind;

impl Lowering<'_> {
    /// Lowers a procedure. `async` makes no difference: it says that a function may take its time,
    /// and any call here blocks only the calling thread.
    pub(super) fn procedure(
        &mut self,
        interface: usize,
        function: &wit_parser::Function,
    ) -> Result<ProcedureDefinition, Error> {
        let at = self.at(function.span);
        if function.kind.accessor().is_some() {
            return Err(Error::unsupported(&at, "a getter or setter", "declare a func"));
        }
        if function.params.len() > MAX_MEMBERS {
            let advice = "put some of them into a record";
            let construct =
                format!("a procedure with more than {MAX_MEMBERS} parameters (`self` counts)");
            return Err(Error::unsupported(&at, construct, advice));
        }
        let short = function.name.rsplit('.').next().unwrap_or(&function.name).to_owned();
        let resource = match function.kind.resource() {
            Some(id) => Some(self.resource(id, 0)?),
            None => None,
        };
        let (kind, name, short) = match (&function.kind, resource) {
            (FunctionKind::Method(_) | FunctionKind::AsyncMethod(_), Some(r)) => {
                (ProcedureKind::Method(r), format!("{}.{short}", self.model.def(r).name), short)
            }
            (FunctionKind::Static(_) | FunctionKind::AsyncStatic(_), Some(r)) => {
                (ProcedureKind::Static(r), format!("{}.{short}", self.model.def(r).name), short)
            }
            (FunctionKind::Constructor(_), Some(r)) => (
                ProcedureKind::Constructor(r),
                format!("{}.constructor", self.model.def(r).name),
                "constructor".to_owned(),
            ),
            _ => (ProcedureKind::Free, short.clone(), short),
        };
        let mut params = Vec::new();
        for param in &function.params {
            let place = if param.span.is_known() { self.at(param.span) } else { at.clone() };
            let ty = self.ty(&param.ty, &place, 0, &mut 0)?;
            params.push(Param { name: param.name.clone(), ty, offset: 0 });
        }
        let result = match &function.result {
            Some(ty) => Some(self.ty(ty, &at, 0, &mut 0)?),
            None => None,
        };
        if result.as_ref().is_some_and(|ty| self.model.holds(ty).lent) {
            let advice = "return own<..>: a borrowed handle ends with the call";
            return Err(Error::unsupported(&at, "`borrow` in a result", advice));
        }
        let (offsets, args) = layout::sequence(params.iter().map(|p| self.model.layout(&p.ty)));
        for (param, offset) in params.iter_mut().zip(offsets) {
            param.offset = offset;
        }
        let args = check_size(args, &at, "a list of parameters")?;
        let results = result.as_ref().map_or(TypeLayout::EMPTY, |ty| self.model.layout(ty));
        let signature = signature::text(&self.model, &name, &params, result.as_ref(), &at)?;
        let limits = self.procedure_limits(interface, &name, &params, result.as_ref());
        Ok(ProcedureDefinition {
            hash: signature::hash(&signature),
            function: short,
            docs: function.docs.contents.clone(),
            name,
            kind,
            params,
            result,
            at,
            args,
            results,
            signature,
            limits,
        })
    }

    fn procedure_limits(
        &self,
        interface: usize,
        name: &str,
        params: &[Param],
        result: Option<&Type>,
    ) -> ProcedureLimits {
        // A table applies to an interface of this package; another package's interface may have the
        // same name.
        let interface = &self.model.interfaces[interface];
        let table = if interface.foreign.is_some() { "" } else { &interface.name };
        let chosen = self.limits.of(table, name);
        let tail = |types: &mut dyn Iterator<Item = &Type>| {
            let most = types
                .fold(0_u64, |sum, ty| sum.saturating_add(self.model.longest_tail(ty, &chosen)));
            u32::try_from(most.min(u64::from(chosen.tail))).unwrap_or(chosen.tail)
        };
        ProcedureLimits {
            string: chosen.string,
            list: chosen.list,
            values: chosen.values,
            args_tail: tail(&mut params.iter().map(|p| &p.ty)),
            results_tail: tail(&mut result.into_iter()),
            calls: chosen.calls,
        }
    }
}
