//! A value that is made at its first use, by a function that may fail.
//!
//! If it fails, the next use tries again.

use crate::lock::KernelMutex;
use std::io;
use std::sync::OnceLock;

/// A value made at its first use; see the module.
#[derive(Debug)]
pub struct OnceValue<T> {
    value: OnceLock<T>,
    making: KernelMutex<()>,
}

impl<T> OnceValue<T> {
    /// An empty value.
    pub const fn new() -> Self {
        Self { value: OnceLock::new(), making: KernelMutex::new(()) }
    }

    /// The value, made by `make` if there is none.
    ///
    /// Other threads that want it wait for `make`.
    ///
    /// # Errors
    /// Those of `make`.
    #[inline]
    pub fn get(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<&T> {
        match self.value.get() {
            Some(value) => Ok(value),
            None => self.make(make),
        }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<&T> {
        let _making = self.making.lock();
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        let value = make()?;
        Ok(self.value.get_or_init(|| value))
    }
}

impl<T> Default for OnceValue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_not_kept() {
        let once = OnceValue::new();
        assert!(once.get(|| Err(io::ErrorKind::OutOfMemory.into())).is_err());
        assert_eq!(*once.get(|| Ok(7)).unwrap(), 7);
        assert_eq!(*once.get(|| Ok(8)).unwrap(), 7, "made once");
    }
}
