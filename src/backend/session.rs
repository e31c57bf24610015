//! A plugin's client together with the disk cache of its executables.

use super::Program;
use super::pjrt::cache::{DiskCache, Key, KeyParts, cpu_features, plugin_digest};
use super::pjrt::discover::Environment;
use super::pjrt::options::CompileOptions;
use super::pjrt::shardings::{OpSharding, output_shardings};
use super::pjrt::{self, OptionValue, Plugin};
use crate::aval::{Aval, Avals};
use crate::error::Result;
use crate::mesh::{AxisSpec, Mesh, NamedSharding, PartitionSpec};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// One opened plugin, and where its executables are kept.
#[derive(Debug)]
pub struct Session {
    client: pjrt::Client,
    platform: String,
    cache: Option<(DiskCache, Identity)>,
    compiles: AtomicU64,
    disk_hits: AtomicU64,
}

/// What of the plugin goes into the key of a cache entry.
#[derive(Debug)]
struct Identity {
    digest: String,
    version: String,
    kind: String,
}

impl Session {
    /// Opens the plugin's file.
    ///
    /// # Errors
    /// If it is no plugin, or the plugin makes no client of the options.
    pub fn open(
        path: &Path,
        options: &[(String, OptionValue)],
        env: &Environment,
    ) -> Result<Session> {
        let client = pjrt::Client::create(&Plugin::load(path)?, options)?;
        let platform = client.platform_name().to_ascii_lowercase();
        let cache = DiskCache::from_environment(env).and_then(|cache| {
            let digest = plugin_digest(path, env.cache_dir().as_deref()).ok()?;
            let (major, minor) = client.plugin().api_version();
            let version = format!("{major}.{minor} {}", client.platform_version());
            let kind = client.devices().first().map(|d| d.kind().to_string()).unwrap_or_default();
            Some((cache, Identity { digest, version, kind }))
        });
        Ok(Session {
            client,
            platform,
            cache,
            compiles: AtomicU64::default(),
            disk_hits: AtomicU64::default(),
        })
    }

    /// The plugin's client.
    pub fn client(&self) -> &pjrt::Client {
        &self.client
    }

    /// The platform's name in lower case.
    pub fn platform(&self) -> &str {
        &self.platform
    }

    /// How many programs the plugin has compiled, those from the disk cache not counted.
    pub fn compiles(&self) -> u64 {
        self.compiles.load(Ordering::Relaxed)
    }

    /// How many programs came from the disk cache.
    pub fn disk_hits(&self) -> u64 {
        self.disk_hits.load(Ordering::Relaxed)
    }

    /// The executable of a StableHLO module on the devices at the given positions, with the options
    /// of `program`: from the disk cache, or else compiled and kept there; past the cache if it calls
    /// functions of this process.
    ///
    /// # Errors
    /// What the plugin's compiler says.
    pub fn compile(
        &self,
        stablehlo: &str,
        devices: &[usize],
        shardy: bool,
        program: &Program<'_>,
    ) -> Result<pjrt::Executable> {
        let ids = devices.iter().map(|&d| self.client.devices()[d].id()).collect();
        let mut options = CompileOptions::spmd(ids).exact_on(&self.platform);
        options.shardy = shardy;
        options.propagate_outputs = shardy;
        // Of two values of one flag the later one holds.
        options.overrides.extend_from_slice(program.compiler_options);
        let options = options.encode();
        let cache = self.cache.as_ref().filter(|_| !program.host_calls);
        let key = cache.map(|(_, identity)| identity.key(stablehlo, &options));
        if let (Some((cache, _)), Some(key)) = (&self.cache, &key)
            && let Some(bytes) = cache.get(key)
        {
            match self.client.deserialize(&bytes) {
                Ok(executable) => {
                    self.disk_hits.fetch_add(1, Ordering::Relaxed);
                    return Ok(executable);
                }
                Err(error) => {
                    tracing::warn!(
                        "the plugin refuses a cached executable, which is deleted: {error}"
                    );
                    cache.discard(key);
                }
            }
        }
        let executable = self.client.compile(stablehlo, &options)?;
        self.compiles.fetch_add(1, Ordering::Relaxed);
        if let (Some((cache, _)), Some(key)) = (&self.cache, &key) {
            match executable.serialize() {
                Ok(bytes) => cache.put(key, &bytes),
                Err(error) => tracing::debug!("the plugin does not serialise executables: {error}"),
            }
        }
        Ok(executable)
    }
}

impl Identity {
    fn key(&self, stablehlo: &str, options: &[u8]) -> Key {
        Key::new(&KeyParts {
            program: stablehlo,
            plugin_digest: &self.digest,
            plugin_version: &self.version,
            options,
            device_kind: &self.kind,
            cpu_features: cpu_features(),
        })
    }
}

/// The results' types with the shardings that the partitioner chose, read from the compiled
/// program; none if one of them cannot be told by the mesh's axes.
///
/// # Errors
/// If the plugin does not show the compiled program.
pub fn result_avals(
    executable: &pjrt::Executable,
    mesh: &Mesh,
    outs: &[Aval],
) -> Result<Option<Avals>> {
    let program = executable.optimized_program()?;
    let shardings = output_shardings(&program.format, &program.code, outs.len())?;
    let named = |(aval, sharding): (&Aval, &OpSharding)| {
        let axes = sharding.mesh_axes(mesh.axis_sizes(), aval.rank()).ok()?;
        let entry = |axes: &Vec<usize>| -> AxisSpec {
            axes.iter().map(|&i| mesh.axis_names()[i].clone()).collect()
        };
        let spec = PartitionSpec::new(axes.iter().map(entry));
        let sharding = NamedSharding::new(mesh, spec).ok()?;
        sharding.check("compile", aval.shape()).ok()?;
        Some(aval.with_sharding(Some(sharding)))
    };
    Ok(outs.iter().zip(&shardings).map(named).collect())
}
