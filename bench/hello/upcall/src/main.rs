//! Hello world in Upcall: a server and a client in one program.

upcall::interface!(
    "package demo:greeter;
    interface greeter {
        greet: func(name: string) -> string;
    }"
);

struct English;

impl greeter::Serve for English {
    fn greet(&self, name: &str) -> String {
        format!("Hello, {name}!")
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "serve", name] => {
            upcall::Server::new().export(name, greeter::export(English)).run()?;
        }
        [_, "call", name] => println!("{}", greeter::Greeter::bind(name)?.greet("world")?),
        _ => eprintln!("usage: hello serve|call NAME"),
    }
    Ok(())
}
