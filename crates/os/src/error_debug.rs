//! `Debug` of errors that a `main` may return.
//!
//! Rust prints the `Debug` of an error that `main` returns, or that `unwrap` meets. Only the text
//! of the error says what to do; `NoSuchName { name: "greeter", folder: … }` does not. So `{:?}`
//! is the text. `{:#?}`, which `dbg!` uses, shows the variant and its fields.

use std::fmt::{self, Write};

/// Writes text and escapes its control characters, line breaks aside.
struct PeerTextWriter<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for PeerTextWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c.is_control() && c != '\n' {
            true => write!(self.0, "{}", c.escape_default()),
            false => self.0.write_char(c),
        })
    }
}

/// Writes an error's text as its `Debug`. A peer may have chosen a part of the text, and must not
/// steer the terminal that a panic's message goes to.
///
/// # Errors
/// Those of the formatter.
pub fn write_text(error: &dyn fmt::Display, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(PeerTextWriter(f), "{error}")
}

/// Implements `Debug` of an enum of errors.
///
/// `{:?}` writes its `Display`, with control characters escaped. `{:#?}` writes its variant and
/// fields, as `derive(Debug)` does.
///
/// All variants are listed with all their fields. The compiler reports a missing one.
///
/// ```
/// enum Failed { Missing { name: String }, Kernel(std::io::Error), Full }
///
/// impl std::fmt::Display for Failed {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         match self {
///             Self::Missing { name } => write!(f, "there is no {name}: make it first"),
///             Self::Kernel(error) => error.fmt(f),
///             Self::Full => f.write_str("no room is left"),
///         }
///     }
/// }
///
/// upcall_os::error_debug!(Failed { Missing { name }, Kernel(error), Full });
///
/// let error = Failed::Missing { name: "map".into() };
/// assert_eq!(format!("{error:?}"), "there is no map: make it first");
/// assert_eq!(format!("{error:#?}"), "Missing {\n    name: \"map\",\n}");
/// assert_eq!(format!("{:#?}", Failed::Full), "Full");
/// let hostile = Failed::Missing { name: "\u{1b}[2Jmap".into() };
/// assert_eq!(format!("{hostile:?}"), "there is no \\u{1b}[2Jmap: make it first");
/// ```
#[macro_export]
macro_rules! error_debug {
    ($error:ident { $(
        $variant:ident $({ $($field:ident),+ $(,)? })? $(( $($item:ident),+ $(,)? ))?
    ),+ $(,)? }) => {
        impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                if !f.alternate() {
                    return $crate::error_debug::write_text(self, f);
                }
                match self { $(
                    Self::$variant $({ $($field),+ })? $(( $($item),+ ))? => {
                        let variant = ::core::stringify!($variant);
                        $(
                            return f.debug_tuple(variant)$(.field($item))+.finish();
                        )?
                        #[allow(unreachable_code, reason = "a variant with unnamed fields is done")]
                        f.debug_struct(variant)
                            $($(.field(::core::stringify!($field), $field))+)?
                            .finish()
                    }
                )+ }
            }
        }
    };
}
