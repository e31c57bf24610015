//! The command line: installing and listing PJRT plugins, and telling what this machine has.

#![expect(clippy::print_stdout, reason = "a command line prints its answer")]

use clap::{Args, Parser, Subcommand};
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
    fn an_unknown_plugin_is_refused() {
        let error = install_named("gpu").unwrap_err().to_string();
        assert!(error.contains("there is no plugin `gpu` to install"), "{error}");
    }
}
