//! Hello world in tonic: a server and a client in one program.

use tonic::transport::Server;
use tonic::{Request, Response, Status};

#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloRequest {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloReply {
    #[prost(string, tag = "1")]
    pub message: String,
}

tonic::include_proto!("hello.Greeter");

use greeter_client::GreeterClient;
use greeter_server::{Greeter, GreeterServer};

struct English;

#[tonic::async_trait]
impl Greeter for English {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = format!("Hello, {}!", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "serve", address] => {
            let server = Server::builder().add_service(GreeterServer::new(English));
            server.serve(address.parse()?).await?;
        }
        [_, "call", address] => {
            let mut greeter = GreeterClient::connect(format!("http://{address}")).await?;
            let request = Request::new(HelloRequest { name: "world".into() });
            println!("{}", greeter.say_hello(request).await?.into_inner().message);
        }
        _ => eprintln!("usage: hello serve|call ADDRESS"),
    }
    Ok(())
}
