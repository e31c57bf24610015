//! The command line: installing and listing PJRT plugins, and telling what this machine has.

#![expect(clippy::print_stdout, reason = "a command line prints its answer")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use oxbridge::backend::pjrt::api::{self, AttrValue};
use oxbridge::backend::pjrt::cache::{DiskCache, cpu_features};
use oxbridge::backend::pjrt::discover::{Environment, Found};
use oxbridge::backend::pjrt::install::{Plugin, install};

/// Torch-shaped tensors on XLA devices, from the command line.
#[derive(Parser)]
#[command(name = "oxbridge", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install and list PJRT plugins
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Show the environment, the plugins with their versions, and the cache
    Doctor,
}

#[derive(Subcommand)]
enum PluginCommand {
    /// Download, check and unpack a plugin into the cache directory
    Install(Install),
    /// List the plugins that are found, the preferred ones first
    List,
    /// Load one plugin file and print its versions
    Version {
        /// The shared library
        path: PathBuf,
    },
}

#[derive(Args)]
struct Install {
    /// cpu, tpu, cpu-fastatomstruct, cpu-lammps, or all-cpu for the three CPU plugins
    name: String,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Plugin(PluginCommand::Install(args)) => install_named(&args.name),
        Command::Plugin(PluginCommand::List) => {
            list(&Environment::process());
            Ok(())
        }
        Command::Plugin(PluginCommand::Version { path }) => {
            println!("{}", describe(&path));
            Ok(())
        }
        Command::Doctor => {
            doctor(&Environment::process());
            Ok(())
        }
    }
}

fn install_named(name: &str) -> anyhow::Result<()> {
    let plugins = match name {
        "all-cpu" => Plugin::ALL_CPU.to_vec(),
        name => vec![name.parse()?],
    };
    for plugin in plugins {
        let found = install(plugin)?;
        println!("{plugin}: {}", found.path.display());
    }
    Ok(())
}

fn list(env: &Environment) {
    let found = env.find_all();
    if found.is_empty() {
        println!("no plugin was found; run `oxbridge plugin install cpu`");
    }
    for plugin in found {
        println!("{}", one_line(&plugin));
    }
}

fn one_line(plugin: &Found) -> String {
    format!("{:<20} {} ({})", plugin.name, plugin.path.display(), plugin.origin)
}

/// The plugin's versions, asked of a process of its own: a plugin that crashes or hangs while it is
/// loaded then takes nothing with it.
fn versions(plugin: &Found) -> String {
    let mut command = match std::env::current_exe() {
        Ok(program) => process::Command::new(program),
        Err(e) => return format!("not loaded: {e}"),
    };
    command.args(["plugin", "version"]).arg(&plugin.path);
    if plugin.name == "tpu" {
        // Without these libtpu asks the network for minutes where no TPU is.
        let offline = OFFLINE_TPU.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
        command.envs(offline);
    }
    answer_within(command, Duration::from_secs(20)).unwrap_or_else(|e| format!("not loaded: {e}"))
}

/// What libtpu needs to set itself up where no TPU is.
const OFFLINE_TPU: [(&str, &str); 4] = [
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_WORKER_ID", "0"),
    ("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
];

/// The last line that `command` prints, if it ends well and in time.
fn answer_within(mut command: process::Command, limit: Duration) -> anyhow::Result<String> {
    let quiet = command.stdin(process::Stdio::null()).stderr(process::Stdio::null());
    let mut child = quiet.stdout(process::Stdio::piped()).spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("no answer within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut output = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut output)?;
    }
    match output.lines().last() {
        Some(line) if status.success() => Ok(line.to_owned()),
        _ => anyhow::bail!("its loading ended with {status}"),
    }
}

/// What the plugin tells of itself once it is loaded, or why it cannot be, in one line.
fn describe(path: &Path) -> String {
    let described = api::Plugin::load(path).and_then(|plugin| {
        let (major, minor) = plugin.api_version();
        let attributes = plugin.attributes()?;
        let version = match attributes.get("stablehlo_current_version") {
            Some(AttrValue::Int64List(parts)) => dotted(parts),
            Some(other) => format!("{other:?}"),
            None => "unknown".to_owned(),
        };
        Ok(format!("PJRT API {major}.{minor}, StableHLO {version}"))
    });
    described.unwrap_or_else(|e| e.to_string().replace('\n', "; "))
}

fn dotted(parts: &[i64]) -> String {
    parts.iter().map(i64::to_string).collect::<Vec<_>>().join(".")
}

fn doctor(env: &Environment) {
    println!("oxbridge {} on {}", env!("CARGO_PKG_VERSION"), std::env::consts::OS);
    println!("cpu features: {}", cpu_features());
    println!("\nenvironment");
    for (name, value) in env.variables() {
        println!("  {name}={value}");
    }
    println!("\nplugins");
    for plugin in env.find_all() {
        println!("  {}", one_line(&plugin));
        println!("{:<22} {}", "", versions(&plugin));
    }
    match env.find(None) {
        Ok(Some(found)) => println!("  taken: {}", found.name),
        Ok(None) => println!("  taken: none, so the host backend"),
        Err(e) => println!("  {}", e.to_string().replace('\n', "\n  ")),
    }
    println!("\nexecutable cache");
    match DiskCache::from_environment(env) {
        None => println!("  switched off, or its directory cannot be written"),
        Some(cache) => {
            let usage = cache.usage();
            println!("  {}", cache.dir().display());
            println!("  {} entries, {} of {} bytes", usage.entries, usage.bytes, cache.max_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_plugin_that_cannot_be_loaded_is_no_reason_to_stop() {
        let text = describe(Path::new("/nonexistent/x.so"));
        assert!(text.contains("/nonexistent/x.so") && !text.contains('\n'), "{text}");
        assert_eq!(dotted(&[1, 13, 3]), "1.13.3");
    }

    #[cfg(unix)]
    #[test]
    fn another_process_answers_in_time_or_not_at_all() {
        let run = |script: &str, limit| {
            let mut command = process::Command::new("sh");
            command.args(["-c", script]);
            answer_within(command, Duration::from_millis(limit))
        };
        assert_eq!(run("echo noise; echo answer", 10_000).unwrap(), "answer");
        for (script, limit, words) in [
            ("echo answer; exit 3", 10_000, "exit status: 3"),
            ("exit 0", 10_000, "ended with"),
            ("exec sleep 60", 50, "no answer within 50ms"),
        ] {
            let error = run(script, limit).unwrap_err().to_string();
            assert!(error.contains(words), "{error} should say {words}");
        }
    }

    #[test]
    fn an_unknown_plugin_is_refused() {
        let error = install_named("gpu").unwrap_err().to_string();
        assert!(error.contains("there is no plugin `gpu` to install"), "{error}");
    }
}
