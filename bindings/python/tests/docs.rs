//! The programs of docs/reference/python.md, and those in Python of docs/reference/messages.md.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{finish, here, left_out, package};

mod support;

/// A page's files: the blocks of code whose first line gives a name.
fn files(page: &str) -> BTreeMap<String, String> {
    let page = std::fs::read_to_string(here("../../docs").join(page)).unwrap();
    let mut files = BTreeMap::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let (_, code) = block.split_once('\n').unwrap();
        let name = code.lines().next().unwrap().trim_start_matches(['#', '/', ' ']);
        if name.contains('.') && !name.contains(' ') {
            files.insert(name.to_owned(), code.to_owned());
        }
    }
    files
}

/// A process that is ended when this is dropped.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_pages_name_all_exceptions() {
    let read = |path: &str| std::fs::read_to_string(here(path)).unwrap();
    let pages =
        ["errors.md", "python.md"].map(|page| read(&format!("../../docs/reference/{page}")));
    let module = read("upcall/errors.py");
    let classes = module.lines().filter_map(|line| line.strip_prefix("class "));
    let names: Vec<&str> = classes.filter_map(|class| class.split(['(', ':']).next()).collect();
    assert!(names.len() > 50, "{names:?}");
    let is_named = |name: &&str| {
        pages.iter().any(|page| {
            page.contains(&format!("`{name}`")) || page.contains(&format!("`upcall.{name}`"))
        })
    };
    let missing: Vec<_> = names.iter().filter(|name| !is_named(name)).collect();
    assert!(missing.is_empty(), "docs/reference/errors.md lacks {missing:?}");
}

#[test]
fn the_page_does_what_it_says() {
    if left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    package(folder.path());
    // The servers' names on the page are replaced by this test's own.
    let name = format!("\"docs-{}\"", std::process::id());
    let more = format!("\"docs-more-{}\"", std::process::id());
    for (file, code) in files("reference/python.md") {
        let code = code.replace("\"notes\"", &name).replace("\"more-notes\"", &more);
        std::fs::write(folder.path().join(file), code).unwrap();
    }
    let stubs = upcall_idl::generate_python(folder.path().join("notes.wit")).unwrap();
    std::fs::write(folder.path().join("notes_stubs.py"), stubs).unwrap();
    let python = |program: &str| {
        let mut command = support::python();
        command
            .args(["-W", "error", program])
            .current_dir(folder.path())
            .env("PYTHONPATH", folder.path());
        command
    };
    let server = Ends(python("server.py").stdin(Stdio::null()).spawn().unwrap());
    let entered = upcall::directory::folder().unwrap().join(name.trim_matches('"'));
    let start = Instant::now();
    while entered.symlink_metadata().is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "the server does not come up");
        std::thread::sleep(Duration::from_millis(10));
    }
    for program in ["client.py", "dynamic.py", "tasks.py", "beside.py"] {
        finish(&mut python(program), program);
    }
    let mut server = server;
    assert!(
        Command::new("kill").args(["-INT", &server.0.id().to_string()]).status().unwrap().success()
    );
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn the_ring_of_the_page_on_messages_is_one() {
    if left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    package(folder.path());
    let code = files("reference/messages.md")
        .remove("ring.py")
        .unwrap()
        .replace("\"ring\"", &format!("\"docs-ring-{}\"", std::process::id()));
    std::fs::write(folder.path().join("ring.py"), code).unwrap();
    let member = || {
        let mut command = support::python();
        command
            .args(["-W", "error", "ring.py"])
            .current_dir(folder.path())
            .env("PYTHONPATH", folder.path());
        finish(&mut command, "a member of the ring");
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(member))));
}
