//! Installing a plugin: its wheel is downloaded by Python's `pip`, checked against a pinned
//! SHA-256, and its shared library is unpacked into the cache directory.
//!
//! An installation appears whole or not at all: files are unpacked beside the final place and
//! moved there with one rename. A record beside the library makes a second run do nothing.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::discover::{Environment, Found, Origin};
use crate::error::{Error, ErrorKind, Result};

const OP: &str = "plugin install";
const RECORD: &str = "installed.json";
const HEADER: &str = "pjrt_c_api.h";

/// A plugin that can be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Plugin {
    /// The CPU plugin of the OpenXLA authors (`xla-cpu-pjrt`), the default.
    Cpu,
    /// The TPU plugin (`libtpu`).
    Tpu,
    /// A second, newer CPU plugin (`fastatomstruct-xla-cpu`), for tests across versions.
    CpuFastatomstruct,
    /// A third, still newer CPU plugin (`lammps-jax-pjrt-cpu`), for tests across versions.
    CpuLammps,
}

/// A wheel: what to download, what it must be, and what to take out of it.
#[derive(Clone, Copy, Debug)]
struct Wheel {
    name: &'static str,
    package: &'static str,
    version: &'static str,
    sha256: &'static str,
    library: &'static str,
    /// What makes pip take this very file under any Python.
    pip: &'static [&'static str],
}

const CPU: Wheel = Wheel {
    name: "cpu",
    package: "xla-cpu-pjrt",
    version: "0.0.1",
    sha256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
    library: "xla_cpu_pjrt.so",
    pip: &[],
};
const TPU: Wheel = Wheel {
    name: "tpu",
    package: "libtpu",
    version: "0.0.52",
    sha256: "f5e2e596eaea9357fbb5a6755a7a9007c6ab75bfde4a55191b03eff402971140",
    library: "libtpu.so",
    pip: &[
        "--python-version=3.11",
        "--implementation=cp",
        "--abi=cp311",
        "--platform=manylinux_2_31_x86_64",
    ],
};
const CPU_FASTATOMSTRUCT: Wheel = Wheel {
    name: "cpu-fastatomstruct",
    package: "fastatomstruct-xla-cpu",
    version: "2026.6.23",
    sha256: "88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9",
    library: "libpjrt_cpu.so",
    pip: &[],
};
const CPU_LAMMPS: Wheel = Wheel {
    name: "cpu-lammps",
    package: "lammps-jax-pjrt-cpu",
    version: "0.11.2",
    sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
    library: "pjrt_c_api_cpu_plugin.so",
    pip: &[],
};

impl Plugin {
    /// All plugins that can be installed.
    pub const ALL: [Plugin; 4] =
        [Plugin::Cpu, Plugin::Tpu, Plugin::CpuFastatomstruct, Plugin::CpuLammps];

    /// The CPU plugins: the default and the two for tests across versions.
    pub const ALL_CPU: [Plugin; 3] = [Plugin::Cpu, Plugin::CpuFastatomstruct, Plugin::CpuLammps];

    /// The name under which it is installed.
    pub fn name(self) -> &'static str {
        self.wheel().name
    }

    fn wheel(self) -> &'static Wheel {
        match self {
            Plugin::Cpu => &CPU,
            Plugin::Tpu => &TPU,
            Plugin::CpuFastatomstruct => &CPU_FASTATOMSTRUCT,
            Plugin::CpuLammps => &CPU_LAMMPS,
        }
    }
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wheel = self.wheel();
        write!(f, "{} ({} {})", wheel.name, wheel.package, wheel.version)
    }
}

impl FromStr for Plugin {
    type Err = Error;

    fn from_str(name: &str) -> Result<Plugin> {
        let found = Plugin::ALL.into_iter().find(|p| p.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            let names = Plugin::ALL.map(Plugin::name).join("`, `");
            Error::new(ErrorKind::Plugin, OP, format!("there is no plugin `{name}` to install"))
                .help(format!("use one of `{names}`"))
        })
    }
}

/// Downloads, checks and unpacks `which`; does nothing if it is installed already.
///
/// # Errors
/// [`ErrorKind::Plugin`] if there is no Python or no pip, if the download fails, if the wheel is
/// not the pinned one or holds no library; [`ErrorKind::Io`] if the cache directory cannot be
/// written. Nothing is left behind then.
pub fn install(which: Plugin) -> Result<Found> {
    install_in(&Environment::process(), which)
}

/// As [`install`], into the cache directory of `env`.
///
/// # Errors
/// As [`install`].
pub fn install_in(env: &Environment, which: Plugin) -> Result<Found> {
    let wheel = which.wheel();
    unpack_into(env, wheel, &|into| download(env.python(), wheel, into))
}

/// What stands in the record beside an installed library.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    package: String,
    version: String,
    wheel_sha256: String,
    library: String,
    library_sha256: String,
    library_bytes: u64,
}

/// Gets a wheel into a directory and says where it lies.
type Download<'a> = &'a dyn Fn(&Path) -> Result<PathBuf>;

fn unpack_into(env: &Environment, wheel: &Wheel, download: Download<'_>) -> Result<Found> {
    let Some(plugins) = env.plugins_dir() else {
        let text = "there is no cache directory: neither OXBRIDGE_CACHE_DIR nor HOME is set";
        return Err(Error::new(ErrorKind::Plugin, OP, text).help("set `OXBRIDGE_CACHE_DIR`"));
    };
    let home = plugins.join(wheel.name);
    if let Some(found) = installed(&home, wheel) {
        return Ok(found);
    }
    let disk = |e| Error::io(OP, format!("`{}` cannot be written", plugins.display()), e);
    std::fs::create_dir_all(&plugins).map_err(disk)?;
    // Dropped at the end, with all that is still in it.
    let work = tempfile::Builder::new().prefix(".tmp-").tempdir_in(&plugins).map_err(disk)?;
    let file = download(work.path())?;
    check_digest(&file, wheel)?;
    let fresh = work.path().join("fresh");
    std::fs::create_dir(&fresh).map_err(disk)?;
    unpack(&file, wheel, &fresh)?;
    move_into_place(&fresh, &home, work.path()).map_err(disk)?;
    installed(&home, wheel).ok_or_else(|| {
        let text = format!("`{}` was changed while it was installed", home.display());
        Error::new(ErrorKind::Plugin, OP, text)
    })
}

/// The installation in `home`, if it is whole and of the pinned wheel.
fn installed(home: &Path, wheel: &Wheel) -> Option<Found> {
    let text = std::fs::read(home.join(RECORD)).ok()?;
    let record: Record = serde_json::from_slice(&text).ok()?;
    let path = home.join(&record.library);
    let whole = std::fs::metadata(&path).is_ok_and(|m| m.len() == record.library_bytes);
    (whole && record.wheel_sha256 == wheel.sha256).then(|| Found {
        name: wheel.name.to_owned(),
        path,
        origin: Origin::Cache,
    })
}

/// Runs pip for the one wheel, without dependencies and without building anything.
fn download(python: &str, wheel: &Wheel, into: &Path) -> Result<PathBuf> {
    let wanted = format!("{}=={}", wheel.package, wheel.version);
    let output = Command::new(python)
        .args(["-m", "pip", "download", "--no-deps", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--only-binary=:all:", "--dest"])
        .arg(into)
        .args(wheel.pip)
        .arg(&wanted)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| no_python(python, &e))?;
    if !output.status.success() {
        return Err(pip_failed(python, &wanted, &String::from_utf8_lossy(&output.stderr)));
    }
    let read = std::fs::read_dir(into).map_err(|e| Error::io(OP, "the download is lost", e))?;
    let mut files = read.filter_map(|e| e.ok().map(|e| e.path()));
    files.find(|p| p.extension().is_some_and(|e| e == "whl")).ok_or_else(|| {
        Error::new(ErrorKind::Plugin, OP, format!("pip downloaded no wheel for `{wanted}`"))
    })
}

#[cold]
fn no_python(python: &str, e: &io::Error) -> Error {
    Error::new(ErrorKind::Plugin, OP, format!("`{python}` cannot be run: {e}"))
        .note("wheels are downloaded by Python's pip")
        .help("install python3 with pip, or name another one in `OXBRIDGE_PYTHON`")
}

#[cold]
fn pip_failed(python: &str, wanted: &str, stderr: &str) -> Error {
    if stderr.contains("No module named pip") {
        return Error::new(ErrorKind::Plugin, OP, format!("`{python}` has no pip"))
            .help("install pip (on Debian and Ubuntu: `apt-get install python3-pip`)");
    }
    let lines: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    let start = lines.len().saturating_sub(3);
    let error = Error::new(ErrorKind::Plugin, OP, format!("pip could not download `{wanted}`"));
    lines[start..].iter().fold(error, |error, line| error.note(*line))
}

fn check_digest(file: &Path, wheel: &Wheel) -> Result<()> {
    let lost = |e| Error::io(OP, format!("`{}` cannot be read", file.display()), e);
    let digest = File::open(file).and_then(|file| copy_hashed(file, io::sink())).map_err(lost)?.0;
    if digest == wheel.sha256 {
        return Ok(());
    }
    let text = format!("the wheel of `{}=={}` is not the pinned one", wheel.package, wheel.version);
    Err(Error::new(ErrorKind::Plugin, OP, text)
        .note(format!("its SHA-256 is {digest}"))
        .note(format!("pinned is      {}", wheel.sha256)))
}

/// Takes the library (and PJRT's header, where it is shipped) out of the wheel.
fn unpack(file: &Path, wheel: &Wheel, into: &Path) -> Result<()> {
    let disk = |e| Error::io(OP, format!("`{}` cannot be unpacked", wheel.library), e);
    let bad = |e: zip::result::ZipError| {
        Error::new(ErrorKind::Format, OP, format!("`{}` is no wheel: {e}", file.display()))
    };
    let mut archive = zip::ZipArchive::new(File::open(file).map_err(disk)?).map_err(bad)?;
    let member = |name: &str| {
        let end = format!("/{name}");
        archive.file_names().find(|m| *m == name || m.ends_with(&end)).map(str::to_owned)
    };
    let header = member(HEADER);
    let Some(library) = member(wheel.library) else {
        let text = format!("the wheel of `{}` holds no `{}`", wheel.package, wheel.library);
        return Err(Error::new(ErrorKind::Plugin, OP, text));
    };
    if let Some(header) = header {
        let out = File::create(into.join(HEADER)).map_err(disk)?;
        copy_hashed(archive.by_name(&header).map_err(bad)?, out).map_err(disk)?;
    }
    let out = File::create(into.join(wheel.library)).map_err(disk)?;
    let (library_sha256, library_bytes) =
        copy_hashed(archive.by_name(&library).map_err(bad)?, out).map_err(disk)?;
    let record = Record {
        package: wheel.package.to_owned(),
        version: wheel.version.to_owned(),
        wheel_sha256: wheel.sha256.to_owned(),
        library: wheel.library.to_owned(),
        library_sha256,
        library_bytes,
    };
    let text = serde_json::to_vec_pretty(&record).map_err(|e| disk(e.into()))?;
    std::fs::write(into.join(RECORD), text).map_err(disk)
}

/// Moves `fresh` to `home`, and what was there before into `work`.
///
/// Another process may do the same at the same time; both have the same files, so whichever comes
/// last finds a full directory and leaves it or replaces it.
fn move_into_place(fresh: &Path, home: &Path, work: &Path) -> io::Result<()> {
    let mut result = std::fs::rename(fresh, home);
    for attempt in 0..3 {
        if result.is_ok() || !home.exists() {
            break;
        }
        std::fs::rename(home, work.join(format!("old-{attempt}"))).ok();
        result = std::fs::rename(fresh, home);
    }
    result
}

/// Copies all of `from` and gives the SHA-256 in hexadecimal and the number of bytes.
fn copy_hashed(mut from: impl Read, mut to: impl Write) -> io::Result<(String, u64)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut total = 0;
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        hasher.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        total += count as u64;
    }
    to.flush()?;
    Ok((format!("{:x}", hasher.finalize()), total))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const NAME: &str = "t.so";

    /// A wheel file with one member, and a description that pins it.
    fn wheel(dir: &Path, member: &str, content: &[u8]) -> (PathBuf, Wheel) {
        let path = dir.join("test.whl");
        let mut writer = zip::ZipWriter::new(File::create(&path).unwrap());
        let options = zip::write::SimpleFileOptions::default();
        for (name, content) in [(member, content), ("p/include/pjrt_c_api.h", b"// header")] {
            writer.start_file(name, options).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap();
        let digest = copy_hashed(File::open(&path).unwrap(), io::sink()).unwrap().0;
        let sha256 = Box::leak(digest.into_boxed_str());
        (path, Wheel { name: "test", package: "p", version: "1", sha256, library: NAME, pip: &[] })
    }

    fn copied(from: &Path) -> impl Fn(&Path) -> Result<PathBuf> {
        let from = from.to_owned();
        move |into| {
            let to = into.join("test.whl");
            std::fs::copy(&from, &to).map_err(|e| Error::io(OP, "copy", e))?;
            Ok(to)
        }
    }

    fn temp() -> (tempfile::TempDir, Environment) {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache").to_str().unwrap().to_owned();
        (dir, Environment::empty().with("OXBRIDGE_CACHE_DIR", cache))
    }

    fn left(env: &Environment) -> Vec<String> {
        let dir = env.plugins_dir().unwrap();
        let read = std::fs::read_dir(dir).map(Iterator::collect::<Vec<_>>).unwrap_or_default();
        read.into_iter().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn installs_once() {
        let (dir, env) = temp();
        let (file, wheel) = wheel(dir.path(), "p/t.so", b"\x7fELF library");
        let count = Cell::new(0);
        let copy = copied(&file);
        let download = |into: &Path| {
            count.set(count.get() + 1);
            copy(into)
        };
        let found = unpack_into(&env, &wheel, &download).unwrap();
        assert_eq!(found, unpack_into(&env, &wheel, &download).unwrap());
        assert_eq!(count.get(), 1, "the second run downloads nothing");
        assert_eq!(std::fs::read(&found.path).unwrap(), b"\x7fELF library");
        assert_eq!(std::fs::read(found.path.with_file_name(HEADER)).unwrap(), b"// header");
        assert_eq!(left(&env), ["test"]);
        assert_eq!(env.find(Some("test")).unwrap(), Some(found.clone()));
        std::fs::write(&found.path, "cut short").unwrap();
        unpack_into(&env, &wheel, &download).unwrap();
        assert_eq!(count.get(), 2, "a damaged installation is replaced");
        assert_eq!(std::fs::read(&found.path).unwrap(), b"\x7fELF library");
        assert_eq!(left(&env), ["test"]);
    }

    #[test]
    fn a_newer_pin_replaces_the_old_one() {
        let (dir, env) = temp();
        let (file, first) = wheel(dir.path(), "p/t.so", b"one");
        unpack_into(&env, &first, &copied(&file)).unwrap();
        let (file, second) = wheel(dir.path(), "p/t.so", b"two");
        let found = unpack_into(&env, &second, &copied(&file)).unwrap();
        assert_eq!(std::fs::read(found.path).unwrap(), b"two");
        assert_eq!(left(&env), ["test"]);
    }

    #[test]
    fn a_wrong_wheel_leaves_nothing() {
        let (dir, env) = temp();
        let (file, wheel) = wheel(dir.path(), "p/t.so", b"library");
        std::fs::write(&file, "something else").unwrap();
        let error = unpack_into(&env, &wheel, &copied(&file)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Plugin);
        assert!(error.text().contains("not the pinned one"), "{error}");
        assert!(left(&env).is_empty(), "left behind: {:?}", left(&env));
    }

    #[test]
    fn a_wheel_without_library_leaves_nothing() {
        let (dir, env) = temp();
        let (file, pinned) = wheel(dir.path(), "p/not-t.so", b"library");
        let error = unpack_into(&env, &pinned, &copied(&file)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Plugin);
        assert!(error.text().contains("holds no `t.so`"), "{error}");
        assert!(left(&env).is_empty(), "left behind: {:?}", left(&env));
    }

    #[test]
    fn a_pinned_file_that_is_no_wheel() {
        let (dir, env) = temp();
        let (file, mut pinned) = wheel(dir.path(), "p/t.so", b"library");
        std::fs::write(&file, "text").unwrap();
        // SHA-256 of `text`.
        pinned.sha256 = "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1";
        let error = unpack_into(&env, &pinned, &copied(&file)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Format, "{error}");
    }

    #[test]
    fn a_cache_that_cannot_be_written() {
        let (dir, _) = temp();
        let (file, pinned) = wheel(dir.path(), "p/t.so", b"library");
        let under_a_file = file.join("cache").to_str().unwrap().to_owned();
        let env = Environment::empty().with("OXBRIDGE_CACHE_DIR", under_a_file);
        let error = unpack_into(&env, &pinned, &copied(&file)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Io, "{error}");
        let error = unpack_into(&Environment::empty(), &pinned, &copied(&file)).unwrap_err();
        assert!(error.text().contains("no cache directory"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn without_python_without_pip_and_with_a_failing_one() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, env) = temp();
        let script = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let cases = [
            ("/nonexistent/python".to_owned(), "cannot be run"),
            (script("a", "echo 'python: No module named pip' >&2; exit 1"), "has no pip"),
            (script("b", "echo 'ERROR: no network' >&2; exit 1"), "could not download"),
            (script("c", "exit 0"), "downloaded no wheel"),
        ];
        for (python, words) in cases {
            let env = env.clone().with("OXBRIDGE_PYTHON", python);
            let error = install_in(&env, Plugin::Cpu).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Plugin);
            assert!(error.text().contains(words), "{error} should say {words}");
            assert!(left(&env).is_empty(), "left behind: {:?}", left(&env));
        }
    }

    #[test]
    fn names() {
        for plugin in Plugin::ALL {
            assert_eq!(plugin.name().parse::<Plugin>().unwrap(), plugin);
            assert_eq!(plugin.wheel().sha256.len(), 64);
        }
        let error = "gpu".parse::<Plugin>().unwrap_err().to_string();
        assert!(error.contains("`cpu`, `tpu`, `cpu-fastatomstruct`, `cpu-lammps`"), "{error}");
    }
}
