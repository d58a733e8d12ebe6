//! The descriptor of an interface: what a clerk exports and what binding compares.

use super::{Module, emit};

impl Module<'_> {
    pub(super) fn descriptor(&mut self) {
        let interface = self.interface();
        emit!(
            self,
            "/// What both sides compare when they bind: names, signatures, sizes, limits, and \
            the source."
        );
        emit!(self, "pub static INTERFACE: stub::Interface = stub::Interface {{");
        emit!(self, "id: ::std::borrow::Cow::Borrowed({:?}),", interface.id);
        emit!(self, "procedures: ::std::borrow::Cow::Borrowed(&PROCEDURES),");
        emit!(self, "parts: ::std::borrow::Cow::Borrowed(&[");
        for part in &interface.parts {
            let id = &self.model.interfaces[part.interface].id;
            emit!(
                self,
                "stub::Part {{ id: ::std::borrow::Cow::Borrowed({id:?}), first: {} }},",
                part.first
            );
        }
        emit!(self, "]),");
        emit!(self, "source: ::std::borrow::Cow::Borrowed({:?}),", self.model.source);
        emit!(self, "limits: ::std::borrow::Cow::Borrowed({:?}), }};", self.model.limits);
        emit!(self, "static PROCEDURES: [stub::Procedure; {}] = [", interface.bound().count());
        for procedure in interface.bound() {
            let limits = procedure.limits;
            emit!(self, "stub::Procedure {{");
            emit!(self, "name: ::std::borrow::Cow::Borrowed({:?}),", procedure.name);
            emit!(self, "signature: ::std::borrow::Cow::Borrowed({:?}),", procedure.signature);
            emit!(self, "hash: {:#018x},", procedure.hash);
            for (what, (fixed, tail)) in ["args", "results"].into_iter().zip(procedure.blocks()) {
                emit!(self, "{what}: stub::Extent {{ fixed: {fixed}, tail: {tail} }},");
            }
            emit!(self, "calls: {},", limits.calls);
            let (string, list, values) = (limits.string, limits.list, limits.values);
            emit!(
                self,
                "limits: stub::Limits {{ string: {string}, list: {list}, values: {values} }}, }},"
            );
        }
        emit!(self, "];");
    }
}
