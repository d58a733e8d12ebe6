//! Costs of operations on objects on this machine.
//!
//! They are measured once by `upcall calibrate`, and read by each process that lets
//! [`auto`](crate::Homed::auto) choose.
//!
//! Source: Psyche, section 3.3 and 4 (P8 here): a remote access takes R times as long as a local
//! one, and an invocation as long as C of those, so n remote accesses are cheaper while (R − 1)·n <
//! C. Today cache lines move, and a lock is one of them. These costs are where `auto` begins; after
//! that it goes by what it measures.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fmt, fs, io};

/// Costs between two processors, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Cost of a read and a write of a line in this processor's cache.
    pub hit: f64,
    /// The same, of a line that the other processor has changed.
    pub line: f64,
    /// Cost of acquiring and releasing an object's lock that only this processor uses.
    pub lock: f64,
    /// The same, if the other processor had the lock and changed a line of the object.
    pub lock_far: f64,
    /// Cost of an empty urgent invocation at a home that polls.
    pub urgent: f64,
    /// The same, at a home that sleeps.
    pub asleep: f64,
    /// Cost of an empty ordinary invocation; the home's virtual processors spin.
    pub invoke: f64,
}

impl Default for Costs {
    /// A guess: two cores of one processor of 2020.
    fn default() -> Self {
        Self {
            hit: 1.0,
            line: 100.0,
            lock: 12.0,
            lock_far: 150.0,
            urgent: 500.0,
            asleep: 10_000.0,
            invoke: 1500.0,
        }
    }
}

impl Costs {
    /// Number of lines for which locked access and an urgent invocation cost the same.
    ///
    /// These are lines that the home has changed. With fewer of them, access is faster (Psyche,
    /// section 3.3).
    pub fn even(&self) -> f64 {
        ((self.urgent + self.lock - self.lock_far) / (self.line - self.hit).max(0.1) + 1.0).max(0.0)
    }

    /// Returns `true` if all times are plausible.
    fn is_sound(&self) -> bool {
        [self.hit, self.line, self.lock, self.lock_far, self.urgent, self.asleep, self.invoke]
            .into_iter()
            .all(|ns| ns.is_finite() && (0.0..1e12).contains(&ns))
    }
}

/// Two processors, and the costs between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Their numbers in the kernel.
    pub processors: [u32; 2],
    /// What they share: `core`, `cache`, `package` or `machine`.
    pub share: String,
    /// The costs between them.
    pub costs: Costs,
}

/// The costs that were measured on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The machine: the model of its processors, and their numbers in the kernel.
    pub machine: String,
    /// `true` if a build with debug assertions measured them.
    ///
    /// In such a build everything takes several times as long. Each kind of build uses only its own
    /// measurements.
    pub checked: bool,
    /// At least one pair of each kind.
    pub pairs: Vec<Pair>,
}

/// Why there is no calibration.
pub enum NoCalibration {
    /// There is no such file, because nothing was measured yet.
    None(PathBuf),
    /// Neither `XDG_CACHE_HOME` nor `HOME` gives a folder for the file.
    Nowhere,
    /// The file cannot be read or written.
    File(PathBuf, io::Error),
    /// The file is not a calibration.
    Malformed(PathBuf, String),
    /// The file is of a build with debug assertions, and this build has none, or the reverse.
    Build {
        /// The file.
        file: PathBuf,
        /// `true` if the build that measured it had debug assertions.
        checked: bool,
    },
    /// The file is of another machine.
    Other {
        /// The file.
        file: PathBuf,
        /// The machine that was measured.
        found: String,
        /// This machine.
        here: String,
    },
}

impl fmt::Display for NoCalibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None(file) => write!(
                f,
                "nothing was measured yet ({} is missing): run `upcall calibrate`",
                file.display()
            ),
            Self::Nowhere => {
                f.write_str("there is no place for it: set HOME, XDG_CACHE_HOME or UPCALL_COSTS")
            }
            Self::File(file, error) => write!(f, "{}: {error}", file.display()),
            Self::Malformed(file, error) => {
                write!(
                    f,
                    "{} is not a calibration: {error}. Replace it with `upcall calibrate`",
                    file.display()
                )
            }
            Self::Build { file, checked } => {
                let (theirs, own) =
                    if *checked { ("with", "without") } else { ("without", "with") };
                write!(
                    f,
                    "{} was measured by a build {theirs} debug assertions, and this one is {own}: \
                     run its own `upcall calibrate`",
                    file.display()
                )
            }
            Self::Other { file, found, here } => {
                write!(
                    f,
                    "{} was measured on another machine ({found}; this is {here}): \
                     run `upcall calibrate` here",
                    file.display()
                )
            }
        }
    }
}

upcall_os::error_debug!(NoCalibration {
    None(error), Nowhere, File(a, b), Malformed(a, b), Build { file, checked },
    Other { file, found, here },
});

impl std::error::Error for NoCalibration {}

/// The path of the calibration.
///
/// It is `$UPCALL_COSTS`, else `upcall/costs.json` in `$XDG_CACHE_HOME` or in `~/.cache`.
///
/// # Errors
/// [`NoCalibration::Nowhere`].
pub fn file() -> Result<PathBuf, NoCalibration> {
    let given = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache =
        || given("XDG_CACHE_HOME").or_else(|| given("HOME").map(|home| home.join(".cache")));
    let own =
        given("UPCALL_COSTS").or_else(|| cache().map(|cache| cache.join("upcall/costs.json")));
    own.ok_or(NoCalibration::Nowhere)
}

/// The name of this machine.
pub fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(':'))
    };
    let model = ["model name", "CPU part", "uarch"]
        .into_iter()
        .find_map(value)
        .map_or("unknown", |(_, model)| model.trim());
    let all = fs::read_to_string("/sys/devices/system/cpu/present").unwrap_or_default();
    format!("{model}, processors {}", all.trim())
}

impl Calibration {
    /// Reads what was measured on this machine.
    ///
    /// # Errors
    /// See [`NoCalibration`].
    pub fn load() -> Result<Self, NoCalibration> {
        Self::load_from(&file()?)
    }

    fn load_from(file: &Path) -> Result<Self, NoCalibration> {
        let text = fs::read_to_string(file).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NoCalibration::None(file.into()),
            _ => NoCalibration::File(file.into(), error),
        })?;
        let malformed = |why: String| NoCalibration::Malformed(file.into(), why);
        let read: Self =
            serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        if read.pairs.is_empty() || !read.pairs.iter().all(|pair| pair.costs.is_sound()) {
            return Err(malformed("its times are not valid".into()));
        }
        if read.checked != cfg!(debug_assertions) {
            return Err(NoCalibration::Build { file: file.into(), checked: read.checked });
        }
        match machine() {
            here if here == read.machine => Ok(read),
            here => Err(NoCalibration::Other { file: file.into(), found: read.machine, here }),
        }
    }

    /// Stores the calibration for all processes of this user. Returns its path.
    ///
    /// # Errors
    /// See [`NoCalibration`].
    pub fn store(&self) -> Result<PathBuf, NoCalibration> {
        let file = file()?;
        self.store_to(&file).map_err(|error| NoCalibration::File(file.clone(), error))?;
        Ok(file)
    }

    /// A process that reads the file at the same time finds the old or the new calibration.
    fn store_to(&self, file: &Path) -> io::Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let fresh = file.with_extension(format!("{}.new", std::process::id()));
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        let done = fs::write(&fresh, text + "\n").and_then(|()| fs::rename(&fresh, file));
        if done.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        done
    }
}

/// The costs between two processors that are near each other.
///
/// These are the costs that had been measured when this process first asked, else a guess.
pub(crate) fn usual() -> Costs {
    static READ: OnceLock<Costs> = OnceLock::new();
    *READ.get_or_init(|| {
        Calibration::load().map_or_else(|_| Costs::default(), |read| read.pairs[0].costs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> PathBuf {
        env::temp_dir()
            .join(format!("upcall-costs-{}-{name}/deeper/costs.json", std::process::id()))
    }

    #[test]
    fn what_was_measured_is_found_again() {
        let file = file("kept");
        let near = Costs { line: 60.0, ..Costs::default() };
        let pair = |processors, costs| Pair { processors, share: "cache".into(), costs };
        let made = Calibration {
            machine: machine(),
            checked: cfg!(debug_assertions),
            pairs: vec![pair([0, 1], near), pair([0, 2], Costs::default())],
        };
        assert!(matches!(Calibration::load_from(&file), Err(NoCalibration::None(_))));
        made.store_to(&file).unwrap();
        made.store_to(&file).unwrap();
        let read = Calibration::load_from(&file).unwrap();
        assert_eq!(read, made);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        fs::remove_dir_all(file.parent().unwrap().parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_no_calibration_is_said() {
        let file = file("wrong");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let checked = cfg!(debug_assertions);
        let other = Calibration { machine: "a PDP-11".into(), checked, pairs: vec![] };
        let with = |costs| Calibration {
            pairs: vec![Pair { processors: [0, 1], share: "core".into(), costs }],
            ..other.clone()
        };
        let cases = [
            ("{".to_string(), "not a calibration"),
            (serde_json::to_string(&other).unwrap(), "its times are not valid"),
            (
                serde_json::to_string(&with(Costs { line: -1.0, ..Costs::default() })).unwrap(),
                "its times are not valid",
            ),
            (serde_json::to_string(&with(Costs::default())).unwrap(), "another machine (a PDP-11"),
            (
                serde_json::to_string(&Calibration { checked: !checked, ..with(Costs::default()) })
                    .unwrap(),
                "run its own `upcall calibrate`",
            ),
        ];
        for (text, expected) in cases {
            fs::write(&file, text).unwrap();
            let said = Calibration::load_from(&file).unwrap_err().to_string();
            assert!(said.contains(expected) && said.contains("upcall calibrate"), "{said}");
        }
        fs::remove_dir_all(file.parent().unwrap().parent().unwrap()).unwrap();
    }

    #[test]
    fn the_break_even_is_where_both_take_as_long() {
        let costs = Costs {
            hit: 1.0,
            line: 101.0,
            lock: 10.0,
            lock_far: 110.0,
            urgent: 500.0,
            ..Costs::default()
        };
        // Access: 110, and 100 for each of 4 more lines; invocation: 500 + 10, and 1 for each.
        assert!((costs.even() - 5.0).abs() < 1e-9, "{}", costs.even());
    }
}
