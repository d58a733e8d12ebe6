//! Who runs next: polling, parking, hand-off.
