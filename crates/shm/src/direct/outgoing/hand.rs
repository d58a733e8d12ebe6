//! Messages whose payloads are handed over ([`super::super::handed`]).

use super::*;

impl<M: QueueMemory> Outgoing<M> {
    /// Launches a message of `len` bytes whose payload is handed over. `payload` is called only if
    /// there is room. The receiver's memory has the same list ([`QueueMemory::handed`]).
    ///
    /// # Errors
    /// [`SendRefusal::Full`], also if there is no memory for the list; or a violation.
    pub fn hand(
        &mut self,
        (handler, len): (u16, u32),
        list: &HandedPayloads,
        payload: impl FnOnce() -> Arc<dyn HandedPayload>,
    ) -> Result<(), SendRefusal> {
        let (mut begin, mut end) = self.place(1);
        if end >= self.until {
            (begin, end) = self.find_room(1)?;
        }
        list.add(payload).map_err(|_| SendRefusal::Full)?;
        self.launch(header(handler, len, self.sent) | WRAP, begin, end);
        Ok(())
    }
}
