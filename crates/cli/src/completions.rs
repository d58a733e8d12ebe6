//! `upcall completions`: scripts that complete the command's words in a shell.

use crate::exit::{CommandResult, Exit};
use crate::output::print_raw;
use clap_complete::Shell;

/// Prints a script that completes subcommands, options and names in a shell.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  source <(upcall completions bash)
  upcall completions zsh > _upcall
  upcall completions fish > upcall.fish";

/// Adds the names of servers to what the generated function completes, and removes the
/// placeholders that it offers for positional arguments.
const BASH_NAMES: &str = r#"
_upcall_names() {
    _upcall "$@"
    local word words=()
    for word in "${COMPREPLY[@]}"; do
        [[ $word == [\<\[]* ]] || words+=("$word")
    done
    case "${COMP_WORDS[1]}" in
        call|stat|threads|top)
            if [[ $2 != -* ]]; then
                words+=($(compgen -W "$(upcall ls --names 2>/dev/null)" -- "$2"))
            fi
            ;;
    esac
    COMPREPLY=("${words[@]}")
}
complete -F _upcall_names -o bashdefault -o default upcall
"#;

const FISH_NAMES: &str = "
complete -c upcall -n '__fish_seen_subcommand_from call stat threads top' -f \\
    -a '(upcall ls --names 2>/dev/null)'
";

pub fn run(args: &CompletionsArgs, mut command: clap::Command) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "upcall", &mut script);
    script.extend_from_slice(match args.shell {
        Shell::Bash => BASH_NAMES.as_bytes(),
        Shell::Fish => FISH_NAMES.as_bytes(),
        _ => b"",
    });
    print_raw(&script)?;
    Ok(Exit::Done)
}
