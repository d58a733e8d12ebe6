//! Servers that return objects, for any package. `build/objects.rs` implements these traits for the
//! package's types.
//!
//! The first server has the objects. The second calls the first as a client does: it holds handles,
//! each behind an object of its own. So a value is read and written by a generated server, and
//! written and read by a generated client, each of them with its own types.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use upcall::Failure;

/// The server that has the objects, with their number.
#[derive(Default)]
pub struct Plain(Arc<AtomicU64>);

impl Plain {
    pub fn object(&self, number: u64) -> Object {
        self.0.fetch_add(1, Ordering::SeqCst);
        Object { number, alive: self.0.clone() }
    }

    pub fn alive(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// An object of any resource.
pub struct Object {
    number: u64,
    alive: Arc<AtomicU64>,
}

impl Drop for Object {
    fn drop(&mut self) {
        let before = self.alive.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "more objects went than there were");
    }
}

pub fn number(object: &dyn Any) -> u64 {
    object.downcast_ref::<Object>().expect("an object of this server").number
}

/// The server that calls another one, through a client of it.
pub struct Forward<C>(pub C);

/// An object that stands for an object of the other server.
pub struct Proxy<R>(pub R);

/// The handle that is lent.
pub fn behind<R: 'static>(object: &dyn Any) -> &R {
    &object.downcast_ref::<Proxy<R>>().expect("an object of this server").0
}

/// The handle that is given away, which holds the only reference to the object.
pub fn taken<R: Send + Sync + 'static>(object: Arc<dyn Any + Send + Sync>) -> R {
    let proxy =
        object.downcast::<Proxy<R>>().unwrap_or_else(|_| panic!("an object of this server"));
    Arc::into_inner(proxy).expect("what was given away is held once").0
}

/// A result as the procedure returned it.
pub fn returned<T, E>(result: Result<T, Failure<E>>) -> Result<T, E> {
    result.map_err(|failure| match failure {
        Failure::Returned(error) => error,
        Failure::Call(error) => panic!("the other server's answer: {error}"),
    })
}

/// Reports the numbers of the objects in a server's value.
pub trait Tell {
    fn tell(&self, numbers: &mut Vec<u64>);
}

/// Converts a server's value to a client's. Lent objects stay where they are.
pub trait Out<'a, C> {
    fn out(&'a mut self) -> C;
}

/// Converts a client's value to a server's.
pub trait Back<S> {
    fn back(self) -> S;
}

/// Types without objects in them.
macro_rules! plain {
    ($($name:ty),*) => { $(
        impl $crate::objects::Tell for $name {
            fn tell(&self, _: &mut ::std::vec::Vec<u64>) {}
        }
        impl<'a> $crate::objects::Out<'a, $name> for $name {
            fn out(&'a mut self) -> $name {
                self.clone()
            }
        }
        impl $crate::objects::Back<$name> for $name {
            fn back(self) -> $name {
                self
            }
        }
    )* };
}
pub(crate) use plain;

plain!((), bool, u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, char, String);

/// A resource: the struct of its clients, and the trait of its server's objects.
macro_rules! resource {
    ($client:ty, $server:path) => {
        const _: () = {
            use ::std::sync::Arc;
            use $crate::objects::{Back, Object, Out, Proxy, Tell, behind, number, taken};
            impl Tell for Arc<dyn $server> {
                fn tell(&self, numbers: &mut ::std::vec::Vec<u64>) {
                    numbers.push(number(&**self));
                }
            }
            impl Tell for ::upcall::Lent<dyn $server> {
                fn tell(&self, numbers: &mut ::std::vec::Vec<u64>) {
                    numbers.push(number(&**self));
                }
            }
            impl<'a> Out<'a, $client> for Arc<dyn $server> {
                fn out(&'a mut self) -> $client {
                    let given: Self = ::std::mem::replace(self, Arc::new(Object::nothing()));
                    taken(given)
                }
            }
            impl<'a> Out<'a, &'a $client> for ::upcall::Lent<dyn $server> {
                fn out(&'a mut self) -> &'a $client {
                    behind(&**self)
                }
            }
            impl Back<Arc<dyn $server>> for $client {
                fn back(self) -> Arc<dyn $server> {
                    Arc::new(Proxy(self))
                }
            }
        };
    };
}
pub(crate) use resource;

impl Object {
    /// Stands in the place of an object that was taken.
    pub fn nothing() -> Self {
        Self { number: 0, alive: Arc::new(AtomicU64::new(1)) }
    }
}

impl<T: Tell> Tell for Vec<T> {
    fn tell(&self, numbers: &mut Vec<u64>) {
        self.iter().for_each(|one| one.tell(numbers));
    }
}

impl<'a, C, T: Out<'a, C>> Out<'a, Vec<C>> for Vec<T> {
    fn out(&'a mut self) -> Vec<C> {
        self.iter_mut().map(Out::out).collect()
    }
}

impl<S, T: Back<S>> Back<Vec<S>> for Vec<T> {
    fn back(self) -> Vec<S> {
        self.into_iter().map(Back::back).collect()
    }
}

impl<T: Tell, const N: usize> Tell for [T; N] {
    fn tell(&self, numbers: &mut Vec<u64>) {
        self.iter().for_each(|one| one.tell(numbers));
    }
}

impl<'a, C, T: Out<'a, C>, const N: usize> Out<'a, [C; N]> for [T; N] {
    fn out(&'a mut self) -> [C; N] {
        self.each_mut().map(Out::out)
    }
}

impl<S, T: Back<S>, const N: usize> Back<[S; N]> for [T; N] {
    fn back(self) -> [S; N] {
        self.map(Back::back)
    }
}

impl<T: Tell> Tell for Option<T> {
    fn tell(&self, numbers: &mut Vec<u64>) {
        self.iter().for_each(|one| one.tell(numbers));
    }
}

impl<'a, C, T: Out<'a, C>> Out<'a, Option<C>> for Option<T> {
    fn out(&'a mut self) -> Option<C> {
        self.as_mut().map(Out::out)
    }
}

impl<S, T: Back<S>> Back<Option<S>> for Option<T> {
    fn back(self) -> Option<S> {
        self.map(Back::back)
    }
}

impl<T: Tell, E: Tell> Tell for Result<T, E> {
    fn tell(&self, numbers: &mut Vec<u64>) {
        match self {
            Ok(value) => value.tell(numbers),
            Err(value) => value.tell(numbers),
        }
    }
}

impl<'a, C, D, T: Out<'a, C>, E: Out<'a, D>> Out<'a, Result<C, D>> for Result<T, E> {
    fn out(&'a mut self) -> Result<C, D> {
        self.as_mut().map(Out::out).map_err(Out::out)
    }
}

impl<S, F, T: Back<S>, E: Back<F>> Back<Result<S, F>> for Result<T, E> {
    fn back(self) -> Result<S, F> {
        self.map(Back::back).map_err(Back::back)
    }
}

macro_rules! tuples {
    ($($($from:ident $to:ident $at:tt)*;)*) => { $(
        impl<$($from: Tell),*> Tell for ($($from,)*) {
            fn tell(&self, numbers: &mut Vec<u64>) {
                $( self.$at.tell(numbers); )*
            }
        }
        impl<'a, $($to, $from: Out<'a, $to>),*> Out<'a, ($($to,)*)> for ($($from,)*) {
            fn out(&'a mut self) -> ($($to,)*) {
                ($(self.$at.out(),)*)
            }
        }
        impl<$($to, $from: Back<$to>),*> Back<($($to,)*)> for ($($from,)*) {
            fn back(self) -> ($($to,)*) {
                ($(self.$at.back(),)*)
            }
        }
    )* };
}

tuples! {
    A S 0;
    A S 0 B T 1;
    A S 0 B T 1 C U 2;
    A S 0 B T 1 C U 2 D V 3;
}
