//! References to objects ([`Reference`]), sent in calls and messages as text.

use crate::error::FindError;
use crate::far::place::{HomePlace, is_within_host, may_be_reached};
use crate::homed::{Homed, shape_of};
use crate::types::Shared;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use upcall_directory::names::NotFound;
use upcall_net::address;

/// Leads to an object of type `T`, by its name and its shape.
///
/// A reference gives no rights: its holder finds the object as if by its name, as far as the home
/// grants that, and only while the object exists. As text, and in serde's formats, it is
/// `NAME@SHAPE`, with the shape in hexadecimal digits.
///
/// A reference to an object whose home [listens](crate::HomeBuilder::listen) also leads processes
/// on other hosts to the object. It is
/// `tcp://HOST:PORT/NAME@SHAPE-PLACE`. By PLACE a process on the home's own host knows that it
/// finds the object there, through memory.
pub struct Reference<T> {
    name: String,
    far: Option<FarReference>,
    of: PhantomData<fn() -> T>,
}

/// Where other hosts find an object.
#[derive(Clone, PartialEq, Eq)]
struct FarReference {
    /// HOST:PORT.
    server: String,
    place: Option<HomePlace>,
}

/// Why a text is not a reference to an object of a type.
#[derive(Clone, PartialEq, Eq)]
pub enum NotAReference {
    /// The text is neither `NAME@SHAPE` nor `tcp://HOST:PORT/NAME@SHAPE-PLACE`.
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
                     an @, and its shape in 16 hexadecimal digits; or tcp://HOST:PORT/ before \
                     that, and perhaps the home's place behind it"
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
    ///
    /// It leads processes on other hosts to the object as well if its home
    /// [listens](crate::HomeBuilder::listen).
    pub fn reference(&self) -> Reference<T> {
        let far = self.handle().reached();
        let far = far.map(|(server, place)| FarReference { server, place });
        Reference { name: self.name().into(), far, of: PhantomData }
    }
}

impl<T: Shared> Reference<T> {
    /// The object's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address at which other hosts find the object, `tcp://HOST:PORT/NAME`. `None` if only the
    /// home's own host does.
    pub fn address(&self) -> Option<String> {
        let far = self.far.as_ref()?;
        Some(format!("tcp://{}/{}", far.server, self.name))
    }

    /// Finds the object: [`Homed::find`].
    ///
    /// A reference that comes from another party can make this process connect to any address of
    /// this host, and to hosts that this user trusts. Nothing is sent to other hosts.
    ///
    /// # Errors
    /// See [`FindError`]; [`FindError::NoAddress`] if the object is not on this host and the
    /// reference does not lead to another one.
    pub fn find(&self) -> Result<Homed<T>, FindError> {
        let no_address = || FindError::NoAddress { name: self.name.clone() };
        let Some(far) = &self.far else {
            return Homed::try_find(&self.name).map_err(|error| match error {
                FindError::Name(NotFound::Unknown { .. }) => no_address(),
                error => error.with_hint(),
            });
        };
        let (own, place) = (HomePlace::own(), far.place);
        if own.is_some() && own == place {
            return Homed::find(&self.name);
        }
        let is_on_this_host = own.zip(place).is_some_and(|(own, place)| own.is_on_host_of(place));
        if is_within_host(&far.server) && !is_on_this_host {
            return Err(no_address());
        }
        Homed::find(&format!("tcp://{}/{}", far.server, self.name))
    }
}

impl<T> Clone for Reference<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), far: self.far.clone(), of: PhantomData }
    }
}

impl<T> PartialEq for Reference<T> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.far == other.far
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
        let shape = shape_of::<T>();
        match &self.far {
            None => write!(f, "{}@{shape:016x}", self.name),
            Some(FarReference { server, place: None }) => {
                write!(f, "tcp://{server}/{}@{shape:016x}", self.name)
            }
            Some(FarReference { server, place: Some(place) }) => {
                write!(f, "tcp://{server}/{}@{shape:016x}-{place}", self.name)
            }
        }
    }
}

/// A number in 16 hexadecimal digits.
fn number(digits: &str) -> Option<u64> {
    let whole = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| whole)
}

impl<T: Shared> FromStr for Reference<T> {
    type Err = NotAReference;

    /// Parses text that may come from an untrusted party. The name is checked when the object is
    /// looked for.
    fn from_str(text: &str) -> Result<Self, NotAReference> {
        let malformed = || NotAReference::Malformed(text.chars().take(128).collect());
        let (path, numbers) = text.rsplit_once('@').ok_or_else(malformed)?;
        let far = address::parse(path).map_err(|_| malformed())?;
        let (shape, place) = match numbers.split_once('-') {
            Some((shape, place)) if far.is_some() => (shape, Some(place)),
            Some(_) => return Err(malformed()),
            None => (numbers, None),
        };
        let found = number(shape).ok_or_else(malformed)?;
        let place = match place {
            Some(digits) => Some(HomePlace::of_number(number(digits).ok_or_else(malformed)?)),
            None => None,
        };
        let (name, far) = match far {
            None => (path, None),
            Some(at) if !may_be_reached(&at.server) => return Err(malformed()),
            Some(at) => (path.rsplit('/').next().unwrap_or(path), Some((at.server, place))),
        };
        if name.is_empty() || name.len() > 64 {
            return Err(malformed());
        }
        let expected = shape_of::<T>();
        if found != expected {
            return Err(NotAReference::Shape { name: name.into(), found, expected });
        }
        let far = far.map(|(server, place)| FarReference { server, place });
        Ok(Self { name: name.into(), far, of: PhantomData })
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

    fn listening(name: &str) -> Homed<u64> {
        let making = Homed::<u64>::create(&format!("{name}-{}", std::process::id()));
        making.listen("127.0.0.1:0").with(|_| Ok(())).unwrap()
    }

    /// In the home's own place the object is found through memory, and elsewhere by its address.
    #[test]
    fn a_reference_leads_to_the_object_from_elsewhere() {
        let home = listening("elsewhere");
        let reference = home.reference();
        let near = reference.to_string().parse::<Reference<u64>>().unwrap();
        assert!(near == reference && near.address().is_some());
        let guest = near.find().unwrap();
        assert_eq!(guest.access(|number| number.get()), Ok(0));
        assert_eq!(guest.reference(), reference);
        let elsewhere = |change: u64| {
            let far = reference.far.as_ref().unwrap();
            let place = HomePlace::of_number(far.place.unwrap().to_number() ^ change);
            let far = FarReference { place: Some(place), ..far.clone() };
            let text = Reference::<u64> { far: Some(far), ..reference.clone() }.to_string();
            text.parse::<Reference<u64>>().unwrap().find()
        };
        // Another folder of names on this host, as in a container.
        let found = elsewhere(1).unwrap();
        assert_eq!(found.access(|number| number.get()), Err(crate::AccessError::OtherHost));
        assert_eq!(found.reference(), reference);
        // Another host, whose loopback address leads to itself.
        let nothing = elsewhere(1 << 40).unwrap_err();
        assert!(
            matches!(nothing, FindError::NoAddress { .. })
                && nothing.to_string().contains("`listen`"),
            "{nothing}"
        );
    }

    #[test]
    fn a_reference_without_an_address_says_so() {
        let making = Homed::<u64>::create(&format!("local-{}", std::process::id()));
        let home = making.with(|_| Ok(())).unwrap();
        let reference = home.reference();
        assert_eq!(reference.address(), None);
        assert!(reference.find().is_ok());
        drop(home);
        assert!(matches!(reference.find(), Err(FindError::NoAddress { .. })));
        let name = format!("known-{}", std::process::id());
        let making = Homed::<u64>::create(&name).listen("127.0.0.1:0").reached_at("ws2:7000");
        let home = making.with(|_| Ok(())).unwrap();
        assert_eq!(home.reference().address(), Some(format!("tcp://ws2:7000/{name}")));
        for bad in ["ws2", "ws2:0", "0.0.0.0:7000", ":7000"] {
            let making = Homed::<u64>::create(&format!("bad-{name}")).reached_at(bad);
            let error = making.with(|_| Ok(())).unwrap_err();
            assert!(error.to_string().contains("HOST:PORT"), "{error}");
        }
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
            "a@0000000000000000-0000000000000000",
            "tcp://h:1/@0000000000000000",
            "tcp://h/a@0000000000000000",
            "tcp://h:1/a/b@0000000000000000",
            "tcp://h:1/a@0000000000000000-",
            "tcp://h:1/a@0000000000000000-000000000000000",
            "tcp://h:1/a@0000000000000000-0000000000000000-",
            &long,
            &format!("tcp://{}:1/a@{:016x}", "h".repeat(300), 7),
        ] {
            let error = text.parse::<Reference<u64>>().unwrap_err();
            assert!(matches!(error, NotAReference::Malformed(_)), "{text}: {error}");
        }
    }
}
