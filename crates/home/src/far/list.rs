//! Lists of the objects at an address, as guests ask for them.

use super::client::{FarHome, unexpected};
use super::{HomeReply, HomeRequest, ListedObject, PAGE, VERSION};
use crate::error::FindError;
use crate::finder::FindTerms;
use crate::wire::OperationKind;
use std::time::{Duration, Instant};
use upcall_directory::names::{self, NotFound};
use upcall_net::{FarName, address};

/// Maximum number of requests for one list.
const MOST_PAGES: usize = 1024;

/// Time after which a list is not continued.
const PATIENCE: Duration = Duration::from_secs(10);

/// The objects at `tcp://HOST:PORT` that this process may invoke, by name.
///
/// Homes of this user, of root, and of trusted hosts are asked. An object that its policy does not
/// let this process invoke is not among them.
///
/// # Errors
/// See [`FindError`]; the home may also be of a version that lists no objects, or a server of
/// procedures.
///
/// # Blocking
/// Blocks the kernel thread, for 15 s at most, and for as long as the resolver takes.
pub fn objects_at(server: &str) -> Result<Vec<ListedObject>, FindError> {
    let bad = |why| FindError::Name(NotFound::BadName { name: server.into(), why });
    let address = address::parse_server(server).map_err(bad)?;
    let at = FarName { server: address.into(), name: String::new() };
    let (terms, begun) = (FindTerms::default(), Instant::now());
    let mut list = PartialList::default();
    for _ in 0..MOST_PAGES {
        let request = HomeRequest::List { version: VERSION, after: list.after };
        let first = FarHome::first(&at, server, &terms, OperationKind::Short, &request)?;
        let HomeReply::Listed { objects, next } = first.answer? else {
            return Err(unexpected(server));
        };
        match list.add(objects, next) {
            Added::Last => return Ok(list.objects),
            Added::Bent => return Err(unexpected(server)),
            Added::More if begun.elapsed() > PATIENCE => break,
            Added::More => {}
        }
    }
    Err(FindError::Unreachable { name: server.into(), why: "its list has no end".into() })
}

/// The pages of a list that have arrived.
#[derive(Default)]
struct PartialList {
    objects: Vec<ListedObject>,
    /// The key behind which the list goes on.
    after: Option<u64>,
}

/// What a page says about the rest of its list.
#[derive(Debug, PartialEq, Eq)]
enum Added {
    /// It was the last page.
    Last,
    /// There are more pages.
    More,
    /// No home sends this page.
    Bent,
}

impl PartialList {
    fn add(&mut self, page: Vec<ListedObject>, next: Option<u64>) -> Added {
        // `None` is below each key.
        let goes_on = next.is_none() || next > self.after;
        let names = page.iter().all(|object| names::check(&object.name).is_ok());
        if !goes_on || !names || page.len() > PAGE {
            return Added::Bent;
        }
        self.objects.extend(page);
        self.after = next;
        if next.is_some() {
            return Added::More;
        }
        self.objects.sort_by(|a, b| a.name.cmp(&b.name));
        Added::Last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ListedObject {
        ListedObject { name: name.into(), shape: 7, operations: None }
    }

    #[test]
    fn pages_of_a_list_are_put_together_or_refused() {
        let mut list = PartialList::default();
        assert_eq!(list.add(vec![object("b")], Some(0)), Added::More);
        assert_eq!(list.add(vec![object("c")], Some(9)), Added::More);
        assert_eq!((list.after, list.add(vec![object("a")], None)), (Some(9), Added::Last));
        assert_eq!(list.objects, ["a", "b", "c"].map(object));
        for (page, next) in [
            (vec![], Some(5)),
            (vec![], Some(4)),
            (vec![object("a/b")], Some(6)),
            (vec![object("")], None),
            (vec![object("\x1b[2J")], None),
            (vec![object("a"); PAGE + 1], None),
        ] {
            let mut list = PartialList { after: Some(5), ..PartialList::default() };
            assert_eq!(list.add(page, next), Added::Bent, "{next:?}");
            assert_eq!(list.objects, []);
        }
    }
}
