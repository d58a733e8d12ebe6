mod turns;
pub use turns::{Grant,Kind};
