//! Slurm's lists of hosts, as `rack[0-1]n[01-12,20],login`.
//!
//! A list has names with commas between them. Brackets in a name hold numbers and ranges, and stand
//! for one name each. The numbers keep their zeros. Source: Slurm's manual page `scontrol(1)`,
//! `show hostnames`.

/// Returns the first host of a list, or `None` if the text is no such list.
pub fn first_host(list: &str) -> Option<String> {
    let (mut host, mut rest) = (String::new(), list);
    loop {
        let plain = rest.find(['[', ',']).unwrap_or(rest.len());
        let (name, from) = rest.split_at(plain);
        host.push_str(name);
        let Some(inside) = from.strip_prefix('[') else { break };
        let (numbers, after) = inside.split_once(']')?;
        host.push_str(first_number(numbers)?);
        rest = after;
    }
    is_host(&host).then_some(host)
}

/// The first number of `01-12,20`.
fn first_number(numbers: &str) -> Option<&str> {
    let first = numbers.split(',').next()?;
    let (from, to) = first.split_once('-').unwrap_or((first, first));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(from) && is_number(to)).then_some(from)
}

fn is_host(name: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric()) && name.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("localhost", "localhost"),
            ("n1,n2", "n1"),
            ("n[1-3,7]", "n1"),
            ("n[3,1-2],m5", "n3"),
            ("n[007-012]", "n007"),
            ("rack[2-3]n[10-19]-ib,login", "rack2n10-ib"),
            ("c1.example.org,c[2-9].example.org", "c1.example.org"),
            ("m5,n[1-", "m5"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
    }

    #[test]
    fn other_texts_have_no_first_host() {
        let none = ["", ",n1", "n[1-3", "n[]", "n[,2]", "n[a-b]", "n[1-]", "n]1", "a b", "-n", "é"];
        for text in none {
            assert_eq!(first_host(text), None, "{text}");
        }
    }
}
