//! Where a server's connections come in.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// So long nobody is let in when the descriptor table is full.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket that listens; shut when this is dropped.
pub struct Door {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    shut: Arc<AtomicBool>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Door({})", self.address)
    }
}

impl Door {
    /// Listens at `address`; with port 0, at one that is free.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        Ok(Self { listener: Arc::new(listener), address, shut: Arc::default() })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Hands every connection that comes to `welcome`, on a kernel thread of its own that ends when the door is shut. `welcome` must not block for long.
    ///
    /// # Errors
    /// There is no kernel thread.
    pub fn open(&self, welcome: impl Fn(TcpStream) + Send + 'static) -> io::Result<()> {
        let (listener, shut) = (self.listener.clone(), self.shut.clone());
        std::thread::Builder::new().name("upcall-net-door".into()).stack_size(128 << 10).spawn(move || {
            loop {
                let accepted = listener.accept();
                if shut.load(Ordering::SeqCst) {
                    return;
                }
                match accepted {
                    Ok((stream, _)) => welcome(stream),
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        })?;
        Ok(())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shut.store(true, Ordering::SeqCst);
        // Who waits in `accept` returns.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}
