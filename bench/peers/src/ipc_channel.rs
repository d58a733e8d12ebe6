//! ipc-channel, Servo's channels between processes: one for requests and one for replies.

use ::ipc_channel::ipc::{self, IpcOneShotServer, IpcReceiver, IpcSender};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::fs;
use upcall_bench::case::BIG;
use upcall_bench::child::{ClientSide, Outcome, Place, Ready, System};
use upcall_bench::payload::answer;

#[derive(Serialize, Deserialize)]
enum Request {
    Null,
    Add(i32, i32),
    BytesIn(ByteBuf),
    BigInOut(ByteBuf),
}

#[derive(Serialize, Deserialize)]
enum Reply {
    Null,
    Sum(i32),
    Checksum(u64),
    Big(ByteBuf),
}

/// The client's first message: the server's ends.
type Ends = (IpcReceiver<Request>, IpcSender<Reply>);

/// The system `ipc-channel`.
pub struct IpcChannel;

impl System for IpcChannel {
    const NAME: &'static str = "ipc-channel";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let (server, name) = IpcOneShotServer::<Ends>::new()?;
        fs::write(place.dir.join("name"), name)?;
        ready.announce();
        let (_, (requests, replies)) = server.accept()?;
        while let Ok(request) = requests.recv() {
            replies.send(match request {
                Request::Null => Reply::Null,
                Request::Add(a, b) => Reply::Sum(answer::add(a, b)),
                Request::BytesIn(data) => Reply::Checksum(answer::bytes_in(&data)),
                Request::BigInOut(data) => Reply::Big(ByteBuf::from(answer::big_in_out(&data))),
            })?;
        }
        Ok(())
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let first = IpcSender::<Ends>::connect(fs::read_to_string(place.dir.join("name"))?)?;
        let (requests, theirs) = ipc::channel()?;
        let (to_us, replies) = ipc::channel()?;
        first.send((theirs, to_us))?;
        Ok(Client { requests, replies })
    }
}

/// The client.
pub struct Client {
    requests: IpcSender<Request>,
    replies: IpcReceiver<Reply>,
}

impl Client {
    fn call(&self, request: Request) -> Outcome<Reply> {
        self.requests.send(request)?;
        Ok(self.replies.recv()?)
    }
}

fn wrong<T>() -> Outcome<T> {
    Err("the reply is to another request".into())
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        let Reply::Null = self.call(Request::Null)? else { return wrong() };
        Ok(())
    }

    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        let Reply::Sum(sum) = self.call(Request::Add(a, b))? else { return wrong() };
        Ok(sum)
    }

    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.bytes_in(data)
    }

    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        let Reply::Big(data) = self.call(Request::BigInOut(ByteBuf::from(data)))? else {
            return wrong();
        };
        Ok(data.as_slice().try_into()?)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        let Reply::Checksum(sum) = self.call(Request::BytesIn(ByteBuf::from(data)))? else {
            return wrong();
        };
        Ok(sum)
    }
}
