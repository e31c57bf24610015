//! Compiled executables on disk, so that a second process compiles nothing.
//!
//! An entry is one file, named after its key, in a directory that only its owner can enter. It is
//! written beside its place and moved there with one rename, so any number of processes may read
//! and write at once. An entry that is damaged is deleted and counts as a miss; a directory that
//! cannot be written means no cache and one warning. Nothing here is ever fatal.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::discover::Environment;
use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"oxbridge";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 8 + 4 + 32 + 8 + 32;
const DEFAULT_MAX_BYTES: u64 = 2 << 30;
const EXTENSION: &str = "exe";
const DIGESTS: &str = "digests.json";
/// A temporary file this old belongs to a process that died.
const ABANDONED: Duration = Duration::from_hours(1);

static HITS: AtomicU64 = AtomicU64::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);
static WRITES: AtomicU64 = AtomicU64::new(0);
static CORRUPT: AtomicU64 = AtomicU64::new(0);

/// What this process's disk caches did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Entries read.
    pub hits: u64,
    /// Entries asked for that were not there or not usable.
    pub misses: u64,
    /// Entries written.
    pub writes: u64,
    /// Entries deleted because they were damaged or the plugin refused them.
    pub corrupt: u64,
}

/// The counters of all disk caches of this process.
pub fn stats() -> Stats {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Stats {
        hits: read(&HITS),
        misses: read(&MISSES),
        writes: read(&WRITES),
        corrupt: read(&CORRUPT),
    }
}

/// Everything that decides what a compiled executable is.
#[derive(Clone, Copy, Debug)]
pub struct KeyParts<'a> {
    /// The StableHLO text.
    pub program: &'a str,
    /// The digest of the plugin's file, as [`plugin_digest`] gives it.
    pub plugin_digest: &'a str,
    /// The plugin's own version text (PJRT API, platform version).
    pub plugin_version: &'a str,
    /// The serialised compile options.
    pub options: &'a [u8],
    /// The kind of the devices, for example `cpu` or `TPU v5 lite`.
    pub device_kind: &'a str,
    /// What the machine's CPU can do, as [`cpu_features`] gives it.
    pub cpu_features: &'a str,
}

/// The SHA-256 that names an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of an executable; parts of any content and length never run into each other.
    pub fn new(parts: &KeyParts<'_>) -> Key {
        let mut hasher = Sha256::new();
        let parts = [
            parts.program.as_bytes(),
            parts.plugin_digest.as_bytes(),
            parts.plugin_version.as_bytes(),
            parts.options,
            parts.device_kind.as_bytes(),
            parts.cpu_features.as_bytes(),
        ];
        for part in parts {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Key(hasher.finalize().into())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// How much a cache directory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of entries.
    pub entries: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

/// A directory of compiled executables.
#[derive(Debug)]
pub struct DiskCache {
    dir: PathBuf,
    max_bytes: u64,
    /// What the directory held when it was last listed, and what was written since.
    bytes: AtomicU64,
}

impl DiskCache {
    /// The cache in `dir`, made if it is not there; `None`, with a warning, if it cannot be
    /// written.
    pub fn open(dir: &Path) -> Option<DiskCache> {
        DiskCache::open_sized(dir, DEFAULT_MAX_BYTES)
    }

    /// As [`DiskCache::open`], holding at most `max_bytes`.
    pub fn open_sized(dir: &Path, max_bytes: u64) -> Option<DiskCache> {
        let usable = make_private(dir).and_then(|()| tempfile::tempfile_in(dir).map(drop));
        if let Err(e) = usable {
            tracing::warn!("no executable cache: `{}` cannot be written: {e}", dir.display());
            return None;
        }
        let cache = DiskCache { dir: dir.to_owned(), max_bytes, bytes: AtomicU64::new(0) };
        cache.bytes.store(cache.usage().bytes, Ordering::Relaxed);
        Some(cache)
    }

    /// The cache that `env` asks for: none with `OXBRIDGE_DISABLE_CACHE=1`, of at most
    /// `OXBRIDGE_CACHE_MAX_BYTES` (2 GiB if that is not set).
    pub fn from_environment(env: &Environment) -> Option<DiskCache> {
        if env.get("OXBRIDGE_DISABLE_CACHE").is_some_and(|v| v != "0") {
            return None;
        }
        let max_bytes = match env.get("OXBRIDGE_CACHE_MAX_BYTES").map(str::parse) {
            None => DEFAULT_MAX_BYTES,
            Some(Ok(bytes)) => bytes,
            Some(Err(e)) => {
                tracing::warn!("OXBRIDGE_CACHE_MAX_BYTES is no number of bytes: {e}");
                DEFAULT_MAX_BYTES
            }
        };
        DiskCache::open_sized(&env.executables_dir()?, max_bytes)
    }

    /// Where the entries lie.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How many bytes it may hold.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The executable stored under `key`, if it is there and undamaged.
    pub fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let payload = self.read(key);
        count(if payload.is_some() { &HITS } else { &MISSES });
        payload
    }

    fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!("cache entry `{}` cannot be read: {e}", path.display());
                return None;
            }
        };
        if let Err(what) = verify(&bytes, key) {
            tracing::warn!("cache entry `{}` is damaged ({what}) and is deleted", path.display());
            self.discard(key);
            return None;
        }
        // The file's time tells when it was last used; without it eviction is only less exact.
        touch(&path).ok();
        bytes.drain(..HEADER_BYTES);
        Some(bytes)
    }

    /// Stores an executable. A failure is a warning; the entry is then not there.
    pub fn put(&self, key: &Key, payload: &[u8]) {
        let size = (HEADER_BYTES + payload.len()) as u64;
        if size > self.max_bytes {
            tracing::debug!("an executable of {size} bytes is larger than the whole cache");
            return;
        }
        if let Err(e) = self.write(key, payload) {
            tracing::warn!("executable not kept in `{}`: {e}", self.dir.display());
            return;
        }
        count(&WRITES);
        if self.bytes.fetch_add(size, Ordering::Relaxed) + size > self.max_bytes {
            self.evict(&self.path(key));
        }
    }

    fn write(&self, key: &Key, payload: &[u8]) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(&self.dir)?;
        file.write_all(&header(key, payload))?;
        file.write_all(payload)?;
        file.persist(self.path(key))?;
        Ok(())
    }

    /// Deletes an entry that turned out to be unusable, for example one that the plugin refuses.
    pub fn discard(&self, key: &Key) {
        count(&CORRUPT);
        fs::remove_file(self.path(key)).ok();
    }

    /// Deletes all entries.
    pub fn clear(&self) {
        for entry in self.entries() {
            fs::remove_file(entry.path).ok();
        }
        self.bytes.store(self.usage().bytes, Ordering::Relaxed);
    }

    /// How much the directory holds now.
    pub fn usage(&self) -> Usage {
        let entries = self.entries();
        Usage { entries: entries.len(), bytes: entries.iter().map(|e| e.bytes).sum() }
    }

    /// Deletes the entries that were not used for longest until a tenth of the room is free.
    fn evict(&self, keep: &Path) {
        let mut entries = self.entries();
        entries.sort_by_key(|e| e.used);
        let mut bytes: u64 = entries.iter().map(|e| e.bytes).sum();
        let target = self.max_bytes - self.max_bytes / 10;
        if bytes > self.max_bytes {
            for entry in entries.iter().filter(|e| e.path != keep) {
                if bytes <= target {
                    break;
                }
                if fs::remove_file(&entry.path).is_ok() {
                    bytes -= entry.bytes;
                }
            }
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        self.remove_abandoned();
    }

    /// Deletes temporary files of processes that died while writing.
    fn remove_abandoned(&self) {
        for (path, metadata) in files(&self.dir) {
            let temporary = path.extension().is_none_or(|e| e != EXTENSION);
            let old = metadata.modified().is_ok_and(|t| t.elapsed().is_ok_and(|a| a > ABANDONED));
            if temporary && old {
                fs::remove_file(path).ok();
            }
        }
    }

    fn entries(&self) -> Vec<Entry> {
        let entry = |(path, metadata): (PathBuf, fs::Metadata)| {
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let bytes = metadata.len();
            path.extension().is_some_and(|e| e == EXTENSION).then_some(Entry { path, bytes, used })
        };
        files(&self.dir).filter_map(entry).collect()
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.dir.join(format!("{key}.{EXTENSION}"))
    }
}

struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn files(dir: &Path) -> impl Iterator<Item = (PathBuf, fs::Metadata)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| Some((e.path(), e.metadata().ok().filter(fs::Metadata::is_file)?)))
}

fn touch(path: &Path) -> io::Result<()> {
    File::options().append(true).open(path)?.set_modified(SystemTime::now())
}

/// Makes the directory, and lets only its owner enter.
fn make_private(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if fs::metadata(dir)?.permissions().mode() & 0o777 != 0o700 {
            fs::set_permissions(dir, PermissionsExt::from_mode(0o700))?;
        }
    }
    Ok(())
}

/// Magic, format version, key, length and SHA-256 of the payload.
fn header(key: &Key, payload: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(key.0);
    header.extend((payload.len() as u64).to_le_bytes());
    header.extend(Sha256::digest(payload));
    header
}

/// Whether the file is an entry of `key`, and if not, what is wrong.
fn verify(bytes: &[u8], key: &Key) -> Result<(), &'static str> {
    let Some((found, payload)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err("it is too short");
    };
    let expected = header(key, payload);
    let fields =
        [("magic", 0..8), ("version", 8..12), ("key", 12..44), ("length", 44..52), ("sum", 52..84)];
    match fields.into_iter().find(|(_, range)| found[range.clone()] != expected[range.clone()]) {
        Some((field, _)) => Err(field),
        None => Ok(()),
    }
}

/// What the CPU can do, as one short text: executables for one CPU may not run on another.
pub fn cpu_features() -> &'static str {
    static FEATURES: OnceLock<String> = OnceLock::new();
    FEATURES.get_or_init(|| features_of(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()))
}

fn features_of(cpuinfo: &str) -> String {
    let is_flags = |line: &&str| line.starts_with("flags") || line.starts_with("Features");
    let flags = cpuinfo.lines().find(is_flags).and_then(|line| line.split_once(':'));
    let mut flags: Vec<&str> =
        flags.map(|(_, v)| v.split_whitespace().collect()).unwrap_or_default();
    flags.sort_unstable();
    let digest = hex(&Sha256::digest(flags.join(" ")));
    format!("{}-{}", std::env::consts::ARCH, &digest[..16])
}

/// A file's SHA-256 with the size and time that it had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Digested {
    bytes: u64,
    modified_ns: u128,
    sha256: String,
}

/// The SHA-256 of a plugin's file in hexadecimal.
///
/// A plugin has hundreds of megabytes, so the digest is kept in `cache_dir` and computed again
/// only when the file's size or time has changed.
///
/// # Errors
/// [`crate::ErrorKind::Io`] if the plugin cannot be read.
pub fn plugin_digest(plugin: &Path, cache_dir: Option<&Path>) -> Result<String> {
    let lost = |e| Error::io("plugin", format!("`{}` cannot be read", plugin.display()), e);
    let path = plugin.canonicalize().map_err(lost)?;
    let metadata = fs::metadata(&path).map_err(lost)?;
    let since = metadata.modified().map_err(lost)?.duration_since(SystemTime::UNIX_EPOCH);
    let modified_ns = since.unwrap_or_default().as_nanos();
    let name = path.to_string_lossy().into_owned();
    let memo = cache_dir.map(|dir| dir.join(DIGESTS));
    let known = memo.as_deref().map(read_digests).unwrap_or_default();
    if let Some(d) = known.get(&name)
        && (d.bytes, d.modified_ns) == (metadata.len(), modified_ns)
    {
        return Ok(d.sha256.clone());
    }
    let sha256 = file_digest(&path).map_err(lost)?;
    let digested = Digested { bytes: metadata.len(), modified_ns, sha256: sha256.clone() };
    if let Some(memo) = &memo
        && let Err(e) = remember(memo, name, digested)
    {
        tracing::debug!("digest not kept in `{}`: {e}", memo.display());
    }
    Ok(sha256)
}

/// The digests kept so far; a file that cannot be read or understood holds none.
fn read_digests(memo: &Path) -> BTreeMap<String, Digested> {
    fs::read(memo).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn remember(memo: &Path, name: String, digested: Digested) -> io::Result<()> {
    let dir = memo.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut all = read_digests(memo);
    all.insert(name, digested);
    let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(dir)?;
    file.write_all(&serde_json::to_vec_pretty(&all)?)?;
    file.persist(memo)?;
    Ok(())
}

fn file_digest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(count) => hasher.update(&buffer[..count]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: KeyParts<'static> = KeyParts {
        program: "module {}",
        plugin_digest: "ab",
        plugin_version: "0.81",
        options: &[1, 2],
        device_kind: "cpu",
        cpu_features: "avx2",
    };

    fn key(program: &str) -> Key {
        Key::new(&KeyParts { program, ..PARTS })
    }

    fn temp() -> (tempfile::TempDir, DiskCache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(&dir.path().join("executables")).unwrap();
        (dir, cache)
    }

    fn age(cache: &DiskCache, key: &Key, seconds: u64) {
        let file = File::options().append(true).open(cache.path(key)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn every_part_counts() {
        let keys = [
            Key::new(&PARTS),
            Key::new(&KeyParts { program: "module {} ", ..PARTS }),
            Key::new(&KeyParts { plugin_digest: "abc", ..PARTS }),
            Key::new(&KeyParts { plugin_version: "0.8", ..PARTS }),
            Key::new(&KeyParts { options: &[1], ..PARTS }),
            Key::new(&KeyParts { device_kind: "tpu", ..PARTS }),
            Key::new(&KeyParts { cpu_features: "", ..PARTS }),
            // The same characters, cut elsewhere.
            Key::new(&KeyParts { plugin_digest: "a", plugin_version: "b0.81", ..PARTS }),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_eq!(Key::new(&PARTS), key("module {}"));
        assert_eq!(keys[0].to_string().len(), 64);
    }

    #[test]
    fn what_is_put_comes_back() {
        let (_dir, cache) = temp();
        let before = stats();
        assert_eq!(cache.get(&key("a")), None);
        for payload in [&b"executable"[..], b"another", b""] {
            cache.put(&key("a"), payload);
            assert_eq!(cache.get(&key("a")).as_deref(), Some(payload));
        }
        assert_eq!(cache.get(&key("b")), None);
        let after = stats();
        // Other tests count at the same time.
        assert!(after.hits >= before.hits + 3, "{before:?} {after:?}");
        assert!(after.misses >= before.misses + 2, "{before:?} {after:?}");
        assert!(after.writes >= before.writes + 3, "{before:?} {after:?}");
        assert_eq!(cache.usage(), Usage { entries: 1, bytes: HEADER_BYTES as u64 });
        let again = DiskCache::open(cache.dir()).unwrap();
        assert_eq!(again.get(&key("a")), Some(Vec::new()));
        cache.clear();
        assert_eq!(cache.usage(), Usage::default());
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_enter() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, cache) = temp();
        let mode = || fs::metadata(cache.dir()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o700);
        fs::set_permissions(cache.dir(), PermissionsExt::from_mode(0o755)).unwrap();
        DiskCache::open(cache.dir()).unwrap();
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn a_damaged_entry_is_a_miss_and_goes() {
        let (_dir, cache) = temp();
        let k = key("a");
        cache.put(&k, b"payload");
        let good = fs::read(cache.path(&k)).unwrap();
        let mut cases = vec![Vec::new(), good[..40].to_vec(), good[..good.len() - 1].to_vec()];
        cases.push([&good[..], b"x"].concat());
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1;
            cases.push(bad);
        }
        for bad in cases {
            fs::write(cache.path(&k), &bad).unwrap();
            let before = stats().corrupt;
            assert_eq!(cache.get(&k), None, "{bad:?}");
            assert!(stats().corrupt > before, "counted as corrupt");
            assert!(!cache.path(&k).exists(), "deleted");
        }
        // An entry under the name of another key.
        cache.put(&k, b"payload");
        fs::rename(cache.path(&k), cache.path(&key("b"))).unwrap();
        assert_eq!(cache.get(&key("b")), None);
        // A directory where the file should be cannot be read, and is no reason to fail.
        fs::create_dir(cache.path(&k)).unwrap();
        assert_eq!(cache.get(&k), None);
        cache.put(&k, b"payload");
        assert_eq!(cache.get(&k), None);
    }

    #[test]
    fn the_longest_unused_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let size = HEADER_BYTES as u64 + 100;
        let cache = DiskCache::open_sized(dir.path(), 4 * size).unwrap();
        let keys: Vec<Key> = ["a", "b", "c", "d", "e"].into_iter().map(key).collect();
        for (i, k) in keys[..4].iter().enumerate() {
            cache.put(k, &[0; 100]);
            age(&cache, k, 1000 - i as u64);
        }
        assert_eq!(cache.usage().entries, 4);
        cache.get(&keys[0]).unwrap();
        let leftover = dir.path().join(".tmp-x");
        fs::write(&leftover, "").unwrap();
        let long_ago = SystemTime::now() - ABANDONED - Duration::from_mins(1);
        File::options().append(true).open(&leftover).unwrap().set_modified(long_ago).unwrap();
        cache.put(&keys[4], &[0; 100]);
        let there: Vec<bool> = keys.iter().map(|k| cache.path(k).exists()).collect();
        assert_eq!(there, [true, false, false, true, true]);
        assert!(!leftover.exists(), "abandoned temporary files go");
        cache.put(&key("big"), &vec![0; 5 * size as usize]);
        assert_eq!(cache.get(&key("big")), None, "larger than the whole cache");
        assert_eq!(cache.usage().entries, 3);
    }

    #[test]
    fn what_the_environment_asks_for() {
        let dir = tempfile::tempdir().unwrap();
        let env = Environment::empty();
        assert!(DiskCache::from_environment(&env).is_none(), "no directory is known");
        let env = env.with("OXBRIDGE_CACHE_DIR", dir.path().to_str().unwrap());
        let cache = DiskCache::from_environment(&env).unwrap();
        assert_eq!(cache.dir(), dir.path().join("executables"));
        assert_eq!(cache.max_bytes, DEFAULT_MAX_BYTES);
        let sized = |text: &str| {
            let env = env.clone().with("OXBRIDGE_CACHE_MAX_BYTES", text);
            DiskCache::from_environment(&env).unwrap().max_bytes
        };
        assert_eq!(sized("1000"), 1000);
        assert_eq!(sized("many"), DEFAULT_MAX_BYTES);
        let off =
            |text| DiskCache::from_environment(&env.clone().with("OXBRIDGE_DISABLE_CACHE", text));
        assert!(off("1").is_none(), "switched off");
        assert!(off("0").is_some(), "0 leaves it on");
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(DiskCache::open(&file.join("x")).is_none(), "under a file is no directory");
        assert!(DiskCache::open(&file).is_none(), "a file is no directory");
    }

    #[test]
    fn many_writers_at_once() {
        let (_dir, cache) = temp();
        let payload = |i: u8| vec![i; 10_000];
        std::thread::scope(|scope| {
            for i in 0..4 {
                let cache = DiskCache::open(cache.dir()).unwrap();
                scope.spawn(move || {
                    for _ in 0..50 {
                        cache.put(&key("shared"), &payload(i));
                        let read = cache.get(&key("shared")).unwrap();
                        assert!(
                            read.len() == 10_000 && read.iter().all(|b| *b == read[0]),
                            "mixed"
                        );
                    }
                });
            }
        });
        assert_eq!(cache.usage().entries, 1);
    }

    #[test]
    fn features_are_a_set() {
        let a = features_of("model : x\nflags\t: avx2 fma\nflags\t: other\n");
        assert_eq!(a, features_of("flags : fma  avx2\n"));
        assert_ne!(a, features_of("Features : fma\n"));
        assert_ne!(a, features_of(""));
        assert!(cpu_features().starts_with(std::env::consts::ARCH), "{}", cpu_features());
    }

    #[test]
    fn a_digest_is_remembered_until_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let plugin = dir.path().join("p.so");
        let memo = dir.path().join("cache");
        let digest = || plugin_digest(&plugin, Some(&memo));
        assert_eq!(*digest().unwrap_err().kind(), crate::ErrorKind::Io);
        fs::write(&plugin, "text").unwrap();
        let sha = "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1";
        assert_eq!(digest().unwrap(), sha);
        assert_eq!(plugin_digest(&plugin, None).unwrap(), sha);
        // The memo is believed while size and time are the same.
        let file = memo.join(DIGESTS);
        let forged = fs::read_to_string(&file).unwrap().replace(sha, "remembered");
        fs::write(&file, forged).unwrap();
        assert_eq!(digest().unwrap(), "remembered");
        let later = SystemTime::now() + Duration::from_secs(5);
        File::options().append(true).open(&plugin).unwrap().set_modified(later).unwrap();
        assert_eq!(digest().unwrap(), sha);
        fs::write(&file, "not JSON").unwrap();
        assert_eq!(digest().unwrap(), sha);
        let under_a_file = plugin.join("x");
        assert_eq!(plugin_digest(&plugin, Some(&under_a_file)).unwrap(), sha);
    }
}
