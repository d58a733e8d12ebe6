//! Reads the parts of a generated header that these tests use.

use std::collections::BTreeMap;

pub struct Header<'h>(pub &'h str);

/// The struct that a server fills in.
#[derive(Default)]
pub struct Server<'h> {
    /// The parameters of its functions, by their names.
    pub functions: BTreeMap<String, &'h str>,
    /// The interfaces that it carries, by the members for their servers.
    pub parts: BTreeMap<&'h str, &'h str>,
}

impl<'h> Header<'h> {
    pub fn server(&self, prefix: &str) -> Server<'h> {
        let mut server = Server::default();
        let lines = self
            .0
            .lines()
            .skip_while(|line| *line != format!("typedef struct {prefix}_server_t {{"));
        for line in lines.take_while(|line| !line.starts_with('}')).map(str::trim) {
            if let Some((name, params)) =
                line.strip_prefix("void (*").and_then(|rest| rest.split_once(")("))
            {
                server.functions.insert(name.to_owned(), params.trim_end_matches(");"));
            } else if let Some((part, name)) =
                line.strip_prefix("const ").and_then(|rest| rest.split_once("_server_t *"))
            {
                server.parts.insert(name.trim_end_matches(';'), part);
            }
        }
        server
    }

    /// The parameters of a client's function.
    pub fn client(&self, prefix: &str, procedure: &str) -> &'h str {
        let head = format!("upcall_status {prefix}_{procedure}(");
        self.0
            .lines()
            .find_map(|line| line.strip_prefix(&head))
            .expect("a client's function")
            .trim_end_matches(");")
    }

    /// The call that frees a procedure's result, if there is anything to free.
    pub fn free(&self, prefix: &str, procedure: &str) -> Option<&'h str> {
        let head = format!("upcall_status {prefix}_{procedure}(");
        let lines: Vec<&str> = self.0.lines().collect();
        let at = lines.iter().position(|line| line.starts_with(&head))?;
        lines[at.checked_sub(1)?].strip_prefix("/* The result is freed by `")?.strip_suffix("`. */")
    }

    /// The function that makes a server's object of this type.
    pub fn new_of(&self, served: &str) -> &'h str {
        let rest = self.0.lines().filter_map(|line| line.strip_prefix(served)?.strip_prefix(" *"));
        let mut found =
            rest.filter_map(|rest| rest.strip_suffix("(void *value, void (*drop)(void *value));"));
        found.next().expect("a function that makes one")
    }
}
