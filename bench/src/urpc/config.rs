//! The processors of client and server: a line of the paper's Figures 3 and 4.

use std::fmt;
use std::str::FromStr;

/// C client processors and S server processors, as the paper writes them.
///
/// Each of the client's C virtual processors is pinned to a processor of its own, and the server's
/// S virtual processors are confined to S others. With S = 0 the server has no processor of its
/// own: its one virtual processor may run only on the client's, and sleeps while it is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Config {
    /// C.
    pub clients: usize,
    /// S.
    pub servers: usize,
}

const fn config(clients: usize, servers: usize) -> Config {
    Config { clients, servers }
}

/// A word that is not two numbers separated by a comma, the first of them above 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoConfig(String);

impl fmt::Display for NoConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no configuration `{}`; there are {}",
            self.0,
            Config::ALL.map(|config| config.to_string()).join(" ")
        )
    }
}

impl std::error::Error for NoConfig {}

impl Config {
    /// The paper's five, and (2,0), for machines with two processors.
    pub const ALL: [Config; 6] =
        [config(1, 0), config(1, 1), config(1, 2), config(2, 0), config(2, 1), config(2, 2)];

    /// Returns the number of processors that it takes.
    pub fn processors(self) -> usize {
        self.clients + self.servers
    }

    /// Returns the client's processors and the server's, out of the allowed ones, or `None` if
    /// there are too few.
    pub fn place(self, allowed: &[usize]) -> Option<(&[usize], &[usize])> {
        let (clients, rest) = allowed.split_at_checked(self.clients)?;
        match self.servers {
            0 => Some((clients, clients)),
            servers => Some((clients, rest.get(..servers)?)),
        }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{},{}", self.clients, self.servers))
    }
}

impl FromStr for Config {
    type Err = NoConfig;

    fn from_str(s: &str) -> Result<Config, NoConfig> {
        Config::ALL
            .into_iter()
            .find(|config| config.to_string() == s)
            .ok_or_else(|| NoConfig(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for config in Config::ALL {
            assert_eq!(config.to_string().parse(), Ok(config));
        }
        let error = "3,1".parse::<Config>().unwrap_err().to_string();
        assert_eq!(error, "no configuration `3,1`; there are 1,0 1,1 1,2 2,0 2,1 2,2");
    }

    #[test]
    fn each_side_has_its_processors() {
        let allowed = [4, 5, 7];
        assert_eq!(config(1, 0).place(&allowed), Some((&[4][..], &[4][..])));
        assert_eq!(config(1, 1).place(&allowed), Some((&[4][..], &[5][..])));
        assert_eq!(config(1, 2).place(&allowed), Some((&[4][..], &[5, 7][..])));
        assert_eq!(config(2, 0).place(&allowed[..2]), Some((&[4, 5][..], &[4, 5][..])));
        assert_eq!(config(2, 2).place(&allowed), None);
        assert_eq!(config(2, 0).place(&allowed[..1]), None);
    }
}
