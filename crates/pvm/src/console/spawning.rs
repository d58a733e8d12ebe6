//! The arguments of `spawn`.

/// Where the job's output goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Where {
    /// No job: the output goes to the error stream, or as the options say.
    #[default]
    Log,
    Here,
    /// A file, which is overwritten or appended to.
    File {
        path: String,
        append: bool,
    },
}

/// A parsed `spawn` command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spawning {
    pub(super) count: u32,
    /// A host or an architecture. `None`: any.
    pub(super) place: Option<String>,
    pub(super) directory: Option<String>,
    pub(super) output: Where,
    pub(super) program: String,
    pub(super) args: Vec<String>,
}

/// Parses the words after `spawn`, or returns an error text.
pub(super) fn read(words: &[String]) -> Result<Spawning, String> {
    let mut found = Spawning {
        count: 1,
        place: None,
        directory: None,
        output: Where::Log,
        program: String::new(),
        args: Vec::new(),
    };
    let mut words = words.iter();
    for word in words.by_ref() {
        let Some(option) = word.strip_prefix('-') else {
            found.program.clone_from(word);
            break;
        };
        if let Some(to) = option.strip_prefix('>') {
            let (path, append) = to.strip_prefix('>').map_or((to, false), |path| (path, true));
            found.output = match path {
                "" if append => return Err("spawn: ->> needs a file: ->>file".into()),
                "" => Where::Here,
                path => Where::File { path: path.into(), append },
            };
        } else if option == "?" {
            return Err("spawn: -? (in a debugger) is not implemented yet (PvmNotImpl)".into());
        } else if option.starts_with('@') {
            return Err("spawn: -@ (traced) is not implemented yet (PvmNotImpl)".into());
        } else if let Some(count) =
            option.strip_prefix(|c: char| c.is_ascii_digit()).map(|_| option)
        {
            found.count =
                count.parse().map_err(|_| format!("spawn: -{count} is not a number of tasks"))?;
        } else {
            let place = option.strip_prefix("-host=").unwrap_or(option);
            let (place, directory) = place
                .split_once(':')
                .map_or((place, None), |(place, directory)| (place, Some(directory)));
            found.place = Some(place.to_owned()).filter(|place| !place.is_empty());
            found.directory = directory.map(Into::into);
        }
    }
    if found.program.is_empty() {
        return Err(super::wrong("spawn"));
    }
    if found.count == 0 {
        return Err("spawn: -0 spawns nothing: give a number from 1".into());
    }
    found.args = words.cloned().collect();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Spawning, String> {
        read(&crate::console::line::words(line))
    }

    #[test]
    fn options_come_before_the_program_and_its_own_after_it() {
        let all = of("-3 -vm:/tmp ->>out ./w -1 -> x").unwrap();
        assert_eq!(
            (all.count, all.place.as_deref(), all.directory.as_deref()),
            (3, Some("vm"), Some("/tmp"))
        );
        assert_eq!(all.output, Where::File { path: "out".into(), append: true });
        assert_eq!(
            (all.program.as_str(), all.args),
            ("./w", ["-1", "->", "x"].map(String::from).to_vec())
        );
        assert_eq!(of("-> w").unwrap().output, Where::Here);
        assert_eq!(of("-:/x w").unwrap().directory.as_deref(), Some("/x"));
        assert_eq!(of("--host=10.0.0.1 w").unwrap().place.as_deref(), Some("10.0.0.1"));
        for wrong in ["", "-2", "-> ", "-0 w", "-2x w", "-? w", "-@ w", "->> w"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
