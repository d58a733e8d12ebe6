//! References to objects ([`Reference`]), sent in calls and messages as text.

use crate::error::FindError;
use crate::homed::{Homed, shape_of};
use crate::types::Shared;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// Leads to an object of type `T`, by its name and its shape.
///
/// A reference gives no rights: its holder finds the object as if by its name, as far as the home
/// grants that, and only while the object exists. As text, and in serde's formats, it is
/// `NAME@SHAPE`, with the shape in hexadecimal digits.
pub struct Reference<T> {
    name: String,
    of: PhantomData<fn() -> T>,
}

/// Why a text is not a reference to an object of a type.
#[derive(Clone, PartialEq, Eq)]
pub enum NotAReference {
    /// The text is not `NAME@SHAPE`.
    Malformed(String),
    /// The text leads to an object of another type.
    Shape {
        /// The name.
        name: String,
        /// The shape in the text.
        found: u64,
        /// The shape of the type here.
        expected: u64,
    },
}

impl fmt::Display for NotAReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(text) => {
                write!(
                    f,
                    "{text:?} is not a reference to an object: a reference is the object's name, \
                     an @, and its shape in 16 hexadecimal digits"
                )
            }
            Self::Shape { name, found, expected } => write!(
                f,
                "{name:?} leads to an object of shape {found:016x}, but {expected:016x} is wanted: \
                 build both programs with the same definition"
            ),
        }
    }
}

upcall_os::error_debug!(NotAReference { Malformed(error), Shape { name, found, expected } });

impl std::error::Error for NotAReference {}

impl<T: Shared> Homed<T> {
    /// A reference to this object, for other processes.
    pub fn reference(&self) -> Reference<T> {
        Reference { name: self.name().into(), of: PhantomData }
    }
}

impl<T: Shared> Reference<T> {
    /// The object's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Finds the object: [`Homed::find`].
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find(&self) -> Result<Homed<T>, FindError> {
        Homed::find(&self.name)
    }
}

impl<T> Clone for Reference<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), of: PhantomData }
    }
}

impl<T> PartialEq for Reference<T> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<T> Eq for Reference<T> {}

impl<T: Shared> fmt::Debug for Reference<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reference({self})")
    }
}

impl<T: Shared> fmt::Display for Reference<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:016x}", self.name, shape_of::<T>())
    }
}

impl<T: Shared> FromStr for Reference<T> {
    type Err = NotAReference;

    /// Parses text that may come from an untrusted party. The name is checked when the object is
    /// looked for.
    fn from_str(text: &str) -> Result<Self, NotAReference> {
        let malformed = || NotAReference::Malformed(text.chars().take(128).collect());
        let (name, shape) = text.rsplit_once('@').ok_or_else(malformed)?;
        let digits = shape.len() == 16 && shape.bytes().all(|digit| digit.is_ascii_hexdigit());
        if name.is_empty() || name.len() > 64 || !digits {
            return Err(malformed());
        }
        let (found, expected) =
            (u64::from_str_radix(shape, 16).map_err(|_| malformed())?, shape_of::<T>());
        if found != expected {
            return Err(NotAReference::Shape { name: name.into(), found, expected });
        }
        Ok(Self { name: name.into(), of: PhantomData })
    }
}

impl<T: Shared> Serialize for Reference<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: Shared> Deserialize<'de> for Reference<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{List, Text};

    #[test]
    fn a_text_leads_to_the_object_it_was_made_for_and_no_other() {
        let home = Homed::<List<Text>>::create(&format!("referred-{}", std::process::id()))
            .with(|_| Ok(()))
            .unwrap();
        let text = home.reference().to_string();
        let found = text.parse::<Reference<List<Text>>>().unwrap().find().unwrap();
        found.access(|list| list.push_back("there").map(drop)).unwrap();
        assert_eq!(home.access(|list| list.len()).unwrap(), 1);
        let packed = postcard::to_stdvec(&home.reference()).unwrap();
        assert_eq!(
            postcard::from_bytes::<Reference<List<Text>>>(&packed).unwrap(),
            home.reference()
        );
        assert!(postcard::from_bytes::<Reference<List<u64>>>(&packed).is_err());
        let other = text.parse::<Reference<u64>>().unwrap_err();
        assert!(
            matches!(&other, NotAReference::Shape { name, .. } if name == home.name()),
            "{other}"
        );
    }

    #[test]
    fn what_is_none_is_said() {
        let long = format!("{}@{:016x}", "n".repeat(65), 7);
        for text in [
            "",
            "a",
            "@0000000000000000",
            "a@",
            "a@7",
            "a@+000000000000007",
            "a@000000000000000g",
            &long,
        ] {
            let error = text.parse::<Reference<u64>>().unwrap_err();
            assert!(matches!(error, NotAReference::Malformed(_)), "{text}: {error}");
        }
    }
}
