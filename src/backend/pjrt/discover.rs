//! Which PJRT plugin to load: looks where a plugin can lie and picks one for the device asked for.
//!
//! The places, in order: the path that the call names, `PJRT_NAMES_AND_LIBRARY_PATHS`
//! (`name:path,…`), `PJRT_LIBRARY_PATH`, this crate's cache directory, Python's site-packages
//! (`xla_plugins`, `jax_plugins`, `libtpu`). `PJRT_DEVICE` chooses a device; with none named an
//! accelerator is taken if its device exists, else the CPU plugin, else none (the host backend).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::error::{Error, ErrorKind, Result};

const OP: &str = "plugin";
const HELP: &str = "run `oxbridge plugin install cpu`";
const NAMES: &str = "PJRT_NAMES_AND_LIBRARY_PATHS";
const LIBRARY: &str = "PJRT_LIBRARY_PATH";
const DEVICE: &str = "PJRT_DEVICE";

/// The variables that this crate reads from the process's environment.
const VARIABLES: [&str; 12] = [
    NAMES,
    LIBRARY,
    DEVICE,
    "OXBRIDGE_CACHE_DIR",
    "OXBRIDGE_CACHE_MAX_BYTES",
    "OXBRIDGE_DISABLE_CACHE",
    "OXBRIDGE_PYTHON",
    "XDG_CACHE_HOME",
    "HOME",
    "TPU_ACCELERATOR_TYPE",
    "TPU_NAME",
    "TPU_SKIP_MDS_QUERY",
];

/// Where a plugin was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The call named its path.
    Argument,
    /// `PJRT_NAMES_AND_LIBRARY_PATHS` names it.
    NamesAndLibraryPaths,
    /// `PJRT_LIBRARY_PATH` names it.
    LibraryPath,
    /// Installed in this crate's cache directory.
    Cache,
    /// A package among Python's site-packages.
    SitePackages,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Argument => "argument",
            Origin::NamesAndLibraryPaths => NAMES,
            Origin::LibraryPath => LIBRARY,
            Origin::Cache => "cache directory",
            Origin::SitePackages => "site-packages",
        })
    }
}

/// A plugin file that was found; nothing of it is loaded yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// What it is called, for example `cpu`, `tpu`, `cuda` or `cpu-lammps`.
    pub name: String,
    /// The shared library.
    pub path: PathBuf,
    /// Which place named it.
    pub origin: Origin,
}

/// Every plugin in every place, in the order in which they are preferred.
///
/// Entries of the environment that name no usable file are skipped with a warning.
pub fn find_all() -> Vec<Found> {
    Environment::process().find_all()
}

/// The plugin named (or lying at the path) `name`; with `None`, what `PJRT_DEVICE` or the machine
/// asks for. `Ok(None)` stands for the host backend.
///
/// # Errors
/// [`ErrorKind::Plugin`] if a plugin was asked for and is not there, or is no shared library.
pub fn find(name: Option<&str>) -> Result<Option<Found>> {
    Environment::process().find(name)
}

/// All that discovery, installation and the disk cache read of their surroundings.
///
/// Tests build their own, so that they never touch the process's environment.
#[derive(Clone, Debug)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    devices: PathBuf,
    site_packages: Option<Vec<PathBuf>>,
}

impl Environment {
    /// The process's own environment.
    pub fn process() -> Environment {
        let read = |name: &&str| std::env::var(name).ok().map(|v| ((*name).to_owned(), v));
        Environment {
            variables: VARIABLES.iter().filter_map(read).collect(),
            devices: PathBuf::from("/dev"),
            site_packages: None,
        }
    }

    /// No variables, no devices and no Python packages.
    pub fn empty() -> Environment {
        Environment {
            variables: BTreeMap::new(),
            devices: PathBuf::new(),
            site_packages: Some(Vec::new()),
        }
    }

    /// The same with the variable `name` set to `value`.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Environment {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    /// The same with device files looked for in `dir` instead of `/dev`.
    pub fn with_devices(mut self, dir: impl Into<PathBuf>) -> Environment {
        self.devices = dir.into();
        self
    }

    /// The same with these site-packages directories, so that Python is not asked.
    pub fn with_site_packages(mut self, dirs: Vec<PathBuf>) -> Environment {
        self.site_packages = Some(dirs);
        self
    }

    /// The variable `name`, if it is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// The variables that are set, of those that this crate reads.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// `OXBRIDGE_CACHE_DIR`, else `$XDG_CACHE_HOME/oxbridge`, else `~/.cache/oxbridge`.
    pub fn cache_dir(&self) -> Option<PathBuf> {
        if let Some(dir) = self.get("OXBRIDGE_CACHE_DIR") {
            return Some(PathBuf::from(dir));
        }
        let absolute = |name| self.get(name).map(PathBuf::from).filter(|p| p.is_absolute());
        absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .map(|dir| dir.join("oxbridge"))
    }

    /// Where installed plugins lie, one directory each.
    pub fn plugins_dir(&self) -> Option<PathBuf> {
        self.cache_dir().map(|dir| dir.join("plugins"))
    }

    /// Where compiled executables lie.
    pub fn executables_dir(&self) -> Option<PathBuf> {
        self.cache_dir().map(|dir| dir.join("executables"))
    }

    /// The Python that downloads wheels: `OXBRIDGE_PYTHON`, else `python3`.
    pub fn python(&self) -> &str {
        self.get("OXBRIDGE_PYTHON").unwrap_or("python3")
    }

    /// As the function [`find_all`], in this environment.
    pub fn find_all(&self) -> Vec<Found> {
        let mut all: Vec<Found> = Vec::new();
        for entry in self.explicit().into_iter().chain([Ok(self.cached()), Ok(self.packaged())]) {
            match entry {
                Ok(found) => all.extend(found),
                Err(e) => tracing::warn!("{e}"),
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|f| seen.insert(f.path.canonicalize().unwrap_or_else(|_| f.path.clone())));
        all
    }

    /// As the function [`find`], in this environment.
    ///
    /// # Errors
    /// [`ErrorKind::Plugin`] if a plugin was asked for and is not there, or is no shared library.
    pub fn find(&self, name: Option<&str>) -> Result<Option<Found>> {
        match name.or_else(|| self.get(DEVICE)) {
            Some(path) if is_path(path) => check(Path::new(path)).map(|()| {
                let name = name_of_file(Path::new(path));
                Some(Found { name, path: PathBuf::from(path), origin: Origin::Argument })
            }),
            Some(host) if host.eq_ignore_ascii_case("host") => Ok(None),
            Some(named) => match self.look_for(named)? {
                Some(found) => Ok(Some(found)),
                None => Err(self.not_found(named)),
            },
            None => self.automatic(),
        }
    }

    /// The plugin to take where none is named.
    fn automatic(&self) -> Result<Option<Found>> {
        if let Some(first) = self.explicit().into_iter().next() {
            return first.map(|found| found.into_iter().next());
        }
        for accelerator in self.accelerators() {
            if let Some(found) = self.look_for(accelerator)? {
                return Ok(Some(found));
            }
            tracing::warn!("this machine has a {accelerator} device, but no plugin for it");
        }
        self.look_for("cpu")
    }

    /// The first plugin called `name`, else the first for the platform `name`, a place at a time.
    fn look_for(&self, name: &str) -> Result<Option<Found>> {
        let name = name.to_ascii_lowercase();
        let mut explicit = Vec::new();
        for entry in self.explicit() {
            explicit.extend(entry?);
        }
        let packaged = || self.packaged();
        let cached = || self.cached();
        let places: [&dyn Fn() -> Vec<Found>; 3] = [&|| explicit.clone(), &cached, &packaged];
        Ok(places.iter().find_map(|place| choose(place(), &name)))
    }

    /// What the two variables name; at most one item fails for each entry.
    fn explicit(&self) -> Vec<Result<Vec<Found>>> {
        let names = self.get(NAMES).into_iter().flat_map(|list| list.split(','));
        let names = names.map(str::trim).filter(|entry| !entry.is_empty()).map(named_path);
        let path = self.get(LIBRARY).map(|path| self.library_path(Path::new(path)));
        names.chain(path).map(|found| found.map(|f| vec![f])).collect()
    }

    fn library_path(&self, path: &Path) -> Result<Found> {
        check(path).map_err(|e| e.note(format!("{LIBRARY} names it")))?;
        let mut name = name_of_file(path);
        if !is_platform(&name)
            && let Some(device) = self.get(DEVICE)
        {
            name = device.to_ascii_lowercase();
        }
        Ok(Found { name, path: path.to_owned(), origin: Origin::LibraryPath })
    }

    /// What is installed in the cache directory; the directory's name is the plugin's.
    fn cached(&self) -> Vec<Found> {
        let dirs = self.plugins_dir().map(|dir| entries(&dir)).unwrap_or_default();
        let visible = |dir: &PathBuf| !file_name(dir).starts_with('.');
        let found = dirs.into_iter().filter(visible).filter_map(|dir| {
            let path = entries(&dir).into_iter().find(|p| is_library(p))?;
            Some(Found { name: file_name(&dir), path, origin: Origin::Cache })
        });
        found.collect()
    }

    /// What Python packages bring along.
    fn packaged(&self) -> Vec<Found> {
        let dirs = match &self.site_packages {
            Some(dirs) => dirs.as_slice(),
            None => python_site_packages(self.python()),
        };
        dirs.iter().flat_map(|dir| packages(dir)).collect()
    }

    /// The platforms whose device files (or, for a TPU, variables) are there.
    fn accelerators(&self) -> Vec<&'static str> {
        let files = entries(&self.devices);
        let accel = files.iter().any(|file| file_name(file).starts_with("accel"));
        let vfio = self.devices.join("vfio/0").exists();
        let variable = self.get("TPU_ACCELERATOR_TYPE").or_else(|| self.get("TPU_NAME")).is_some();
        let offline = self.get("TPU_SKIP_MDS_QUERY").is_some();
        let mut found = Vec::new();
        if accel || (variable && (vfio || !offline)) {
            found.push("tpu");
        }
        if files.iter().any(|file| file_name(file) == "nvidia0") {
            found.push("cuda");
        }
        found
    }

    #[cold]
    fn not_found(&self, name: &str) -> Error {
        let place = |dir: Option<PathBuf>| dir.map_or("none".into(), |d| d.display().to_string());
        let known: Vec<String> =
            self.find_all().iter().map(|f| format!("{} ({})", f.name, f.path.display())).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let platform = platform(name);
        let help = match platform.as_str() {
            "tpu" => "run `oxbridge plugin install tpu`".to_owned(),
            "cpu" => HELP.to_owned(),
            _ => format!("set `{NAMES}={platform}:/path/to/plugin.so`"),
        };
        Error::new(ErrorKind::Plugin, OP, format!("no plugin for `{name}` was found"))
            .note(format!(
                "looked at {NAMES}, {LIBRARY}, the cache directory ({}) and site-packages",
                place(self.plugins_dir())
            ))
            .note(format!("plugins that are there: {known}"))
            .help(help)
    }
}

/// The one called `name` if there is one, else the first for that platform.
fn choose(found: Vec<Found>, name: &str) -> Option<Found> {
    let exact = found.iter().position(|f| f.name.eq_ignore_ascii_case(name));
    let same_platform = || found.iter().position(|f| platform(&f.name) == platform_request(name));
    let index = exact.or_else(same_platform)?;
    found.into_iter().nth(index)
}

/// An entry `name:path` of `PJRT_NAMES_AND_LIBRARY_PATHS`.
fn named_path(entry: &str) -> Result<Found> {
    let Some((name, path)) = entry.split_once(':').filter(|(n, p)| !n.is_empty() && !p.is_empty())
    else {
        let text = format!("entry `{entry}` of {NAMES} is not of the form `name:path`");
        return Err(Error::new(ErrorKind::Plugin, OP, text));
    };
    check(Path::new(path)).map_err(|e| e.note(format!("{NAMES} names it")))?;
    let origin = Origin::NamesAndLibraryPaths;
    Ok(Found { name: name.to_owned(), path: PathBuf::from(path), origin })
}

/// That a file named explicitly is there and is a shared library.
fn check(path: &Path) -> Result<()> {
    let shown = path.display();
    let fail = |text: String| {
        Err(Error::new(ErrorKind::Plugin, OP, text).note(format!("looked at {shown}")).help(HELP))
    };
    let mut start = [0; 4];
    match std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)) {
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {}
        Err(e) => return fail(format!("plugin `{shown}` cannot be read: {e}")),
        Ok(()) if is_library_magic(start) => return Ok(()),
        Ok(()) => {}
    }
    fail(format!("`{shown}` is not a shared library"))
}

/// ELF, or Mach-O with one or more architectures.
fn is_library_magic(start: [u8; 4]) -> bool {
    matches!(start, [0x7f, b'E', b'L', b'F'] | [0xcf, 0xfa, 0xed, 0xfe] | [0xca, 0xfe, 0xba, 0xbe])
}

fn is_path(name: &str) -> bool {
    name.contains('/') || has_library_extension(Path::new(name))
}

fn is_library(path: &Path) -> bool {
    has_library_extension(path) && path.is_file()
}

fn has_library_extension(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "so" || e == "dylib")
}

fn file_name(path: &Path) -> String {
    path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}

/// The entries of a directory in the order of their names; none if it cannot be read.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = read.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    paths
}

/// The platform in a plugin's name: `xla_cuda12` is `cuda`; a name without one is its own.
fn platform(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let known = ["tpu", "cuda", "rocm", "metal", "cpu"];
    known.iter().find(|p| name.contains(**p)).map_or(name.clone(), |p| (*p).to_owned())
}

/// As [`platform`] for a name that is asked for: `gpu` stands for `cuda`, and a full name such as
/// `cpu-lammps` is no wish for any other CPU plugin.
fn platform_request(name: &str) -> String {
    if name == "gpu" { "cuda".to_owned() } else { name.to_owned() }
}

fn is_platform(name: &str) -> bool {
    matches!(name, "tpu" | "cuda" | "rocm" | "metal" | "cpu")
}

/// The platform in a library's file name, else its stem without `lib`.
fn name_of_file(path: &Path) -> String {
    let stem = path.file_stem().map(OsStr::to_string_lossy).unwrap_or_default();
    platform(stem.strip_prefix("lib").unwrap_or(&stem))
}

/// The plugins in one site-packages directory.
fn packages(site: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    for family in ["xla_plugins", "jax_plugins"] {
        for dir in entries(&site.join(family)) {
            let plugin = |p: &PathBuf| {
                let name = file_name(p);
                is_library(p) && (name.contains("pjrt") || name.contains("plugin"))
            };
            if let Some(path) = entries(&dir).into_iter().find(plugin) {
                let name = platform(&file_name(&dir));
                found.push(Found { name, path, origin: Origin::SitePackages });
            }
        }
    }
    let path = site.join("libtpu/libtpu.so");
    if path.is_file() {
        found.push(Found { name: "tpu".to_owned(), path, origin: Origin::SitePackages });
    }
    found
}

/// Python's site-packages directories, asked for once in a process; none without Python.
fn python_site_packages(python: &str) -> &'static [PathBuf] {
    static DIRS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    DIRS.get_or_init(|| ask_python(python))
}

fn ask_python(python: &str) -> Vec<PathBuf> {
    let program = "import site, sysconfig\n\
        paths = [sysconfig.get_path('purelib'), sysconfig.get_path('platlib')]\n\
        paths += getattr(site, 'getsitepackages', list)() + [site.getusersitepackages()]\n\
        print('\\n'.join(dict.fromkeys(paths)))";
    let output = Command::new(python).args(["-c", program]).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect()
        }
        Ok(output) => {
            tracing::debug!("{python} told no site-packages: {}", output.status);
            Vec::new()
        }
        Err(e) => {
            tracing::debug!("{python} told no site-packages: {e}");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that starts as a shared library does.
    fn library(path: &Path) -> String {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"\x7fELF and more").unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn temp() -> (tempfile::TempDir, PathBuf, Environment) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let env = Environment::empty().with("OXBRIDGE_CACHE_DIR", path.to_str().unwrap());
        (dir, path, env)
    }

    fn names(found: &[Found]) -> Vec<(&str, Origin)> {
        found.iter().map(|f| (f.name.as_str(), f.origin)).collect()
    }

    #[test]
    fn cache_directory_rules() {
        let env = Environment::empty();
        assert_eq!(env.cache_dir(), None);
        let env = env.with("HOME", "/h");
        assert_eq!(env.cache_dir().unwrap(), Path::new("/h/.cache/oxbridge"));
        let env = env.with("XDG_CACHE_HOME", "relative");
        assert_eq!(env.cache_dir().unwrap(), Path::new("/h/.cache/oxbridge"));
        let env = env.with("XDG_CACHE_HOME", "/x");
        assert_eq!(env.cache_dir().unwrap(), Path::new("/x/oxbridge"));
        let env = env.with("OXBRIDGE_CACHE_DIR", "/c");
        assert_eq!(env.plugins_dir().unwrap(), Path::new("/c/plugins"));
        assert_eq!(env.executables_dir().unwrap(), Path::new("/c/executables"));
    }

    #[test]
    fn places_in_order() {
        let (_guard, dir, env) = temp();
        library(&dir.join("plugins/cpu/a.so"));
        library(&dir.join("plugins/.tmp/a.so"));
        let site = dir.join("site");
        library(&site.join("xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"));
        library(&site.join("jax_plugins/xla_cuda12/xla_cuda_plugin.so"));
        library(&site.join("libtpu/libtpu.so"));
        let one = library(&dir.join("one.so"));
        let cuda = library(&dir.join("libpjrt_cuda.so"));
        let env = env
            .with_site_packages(vec![site])
            .with(NAMES, format!("mine:{one},"))
            .with(LIBRARY, &cuda);
        let all = env.find_all();
        let expected = [
            ("mine", Origin::NamesAndLibraryPaths),
            ("cuda", Origin::LibraryPath),
            ("cpu", Origin::Cache),
            ("cpu", Origin::SitePackages),
            ("cuda", Origin::SitePackages),
            ("tpu", Origin::SitePackages),
        ];
        assert_eq!(names(&all), expected);
        let find = |name: Option<&str>| env.find(name).unwrap().unwrap();
        assert_eq!(find(None).name, "mine");
        assert_eq!(find(Some("CPU")).origin, Origin::Cache);
        assert_eq!(find(Some("gpu")).origin, Origin::LibraryPath);
        assert_eq!(find(Some("tpu")).origin, Origin::SitePackages);
        assert_eq!(find(Some(&one)).origin, Origin::Argument);
        assert_eq!(env.find(Some("Host")).unwrap(), None);
    }

    #[test]
    fn a_full_name_is_no_wish_for_another_plugin() {
        let (_guard, dir, env) = temp();
        library(&dir.join("plugins/cpu-lammps/a.so"));
        assert_eq!(env.find(Some("cpu")).unwrap().unwrap().name, "cpu-lammps");
        library(&dir.join("plugins/cpu/a.so"));
        assert_eq!(env.find(Some("cpu")).unwrap().unwrap().name, "cpu");
        assert_eq!(env.find(Some("cpu-lammps")).unwrap().unwrap().name, "cpu-lammps");
        let error = env.find(Some("cpu-fastatomstruct")).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Plugin);
    }

    #[test]
    fn the_device_chooses() {
        let (_guard, dir, env) = temp();
        library(&dir.join("plugins/cpu/a.so"));
        library(&dir.join("plugins/tpu/a.so"));
        library(&dir.join("plugins/cuda/a.so"));
        let name = |env: &Environment| env.find(None).unwrap().map(|f| f.name);
        assert_eq!(name(&env).as_deref(), Some("cpu"));
        assert_eq!(name(&env.clone().with(DEVICE, "HOST")), None);
        assert_eq!(name(&env.clone().with(DEVICE, "TPU")).as_deref(), Some("tpu"));
        let tpu = env.clone().with("TPU_ACCELERATOR_TYPE", "v5litepod-4");
        assert_eq!(name(&tpu).as_deref(), Some("tpu"));
        assert_eq!(name(&tpu.with("TPU_SKIP_MDS_QUERY", "1")).as_deref(), Some("cpu"));
        let dev = dir.join("dev");
        std::fs::create_dir(&dev).unwrap();
        std::fs::write(dev.join("nvidia0"), "").unwrap();
        let env = env.with_devices(&dev);
        assert_eq!(name(&env).as_deref(), Some("cuda"));
        std::fs::write(dev.join("accel0"), "").unwrap();
        assert_eq!(name(&env).as_deref(), Some("tpu"));
        std::fs::remove_dir_all(dir.join("plugins/tpu")).unwrap();
        std::fs::remove_dir_all(dir.join("plugins/cuda")).unwrap();
        assert_eq!(name(&env).as_deref(), Some("cpu"));
        std::fs::remove_dir_all(dir.join("plugins")).unwrap();
        assert_eq!(name(&env), None);
    }

    #[test]
    fn the_device_names_a_library_without_a_platform() {
        let (_guard, dir, env) = temp();
        let env = env.with(LIBRARY, library(&dir.join("custom.so")));
        assert_eq!(env.find(None).unwrap().unwrap().name, "custom");
        let env = env.with(DEVICE, "CPU");
        assert_eq!(env.find(None).unwrap().unwrap().name, "cpu");
    }

    #[test]
    fn explicit_mistakes_are_typed_errors() {
        let (_guard, dir, env) = temp();
        let missing = dir.join("missing.so").to_str().unwrap().to_owned();
        let text = dir.join("text.so");
        std::fs::write(&text, "not a library").unwrap();
        let short = dir.join("short.so");
        std::fs::write(&short, "x").unwrap();
        let path = |p: &Path| p.to_str().unwrap().to_owned();
        let cases = [
            (env.clone().find(Some(&missing)), "cannot be read"),
            (env.clone().find(Some(&path(&text))), "not a shared library"),
            (env.clone().find(Some(&path(&short))), "not a shared library"),
            (env.clone().find(Some(&path(&dir))), "cannot be read"),
            (env.clone().with(LIBRARY, &missing).find(None), "cannot be read"),
            (env.clone().with(NAMES, format!("cpu:{missing}")).find(None), "cannot be read"),
            (env.clone().with(NAMES, "nonsense").find(None), "not of the form"),
            (env.clone().with(NAMES, "cpu:").find(Some("cpu")), "not of the form"),
            (env.clone().with(DEVICE, "CPU").find(None), "no plugin for `CPU`"),
            (env.clone().find(Some("tpu")), "no plugin for `tpu`"),
        ];
        for (result, words) in cases {
            let error = result.unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Plugin, "{error}");
            assert!(error.text().contains(words), "{error} should say {words}");
        }
        let error = env.find(Some(&missing)).unwrap_err().to_string();
        assert!(error.contains("help: run `oxbridge plugin install cpu`"), "{error}");
        assert_eq!(env.with(LIBRARY, missing).find_all(), []);
    }

    #[test]
    fn no_python_means_no_packages() {
        assert!(ask_python("/nonexistent/python").is_empty(), "there is no such program");
        assert!(ask_python("false").is_empty(), "a failing program tells nothing");
    }
}
