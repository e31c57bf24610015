//! The StableHLO text of each row against `tests/data/hlo`.

use super::run::{graph, say};
use super::{Case, all};
use oxbridge::trace::lower::{self, Entry};
use std::fmt::Write;
use std::path::Path;

/// The row as a StableHLO module.
pub fn module(case: &Case) -> Result<String, String> {
    let entry = Entry { name: case.prim, ..Entry::default() };
    lower::module(&*graph(case).map_err(say)?, &entry).map_err(say)
}

/// The functions of a module: the text without its first and last line.
fn functions(module: &str) -> String {
    let lines: Vec<&str> = module.lines().collect();
    let inner = lines.get(1..lines.len().saturating_sub(1)).unwrap_or_default();
    inner.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{}", line.strip_prefix("  ").unwrap_or(line));
        text
    })
}

/// Compares a text with a golden file, or writes the file if `UPDATE_GOLDEN` is set. Gives the
/// first line that differs.
pub fn check(file: &str, text: &str) -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).map_err(|e| format!("tests/data/{file}: {e}"))?;
        return Ok(());
    }
    let want = std::fs::read_to_string(&path).map_err(|e| format!("tests/data/{file}: {e}"))?;
    if want == text {
        return Ok(());
    }
    let (got, want): (Vec<&str>, Vec<&str>) = (text.lines().collect(), want.lines().collect());
    let at = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
    Err(format!(
        "tests/data/{file} line {}: {:?} is not {:?}; UPDATE_GOLDEN=1 rewrites it",
        at + 1,
        got.get(at).unwrap_or(&"the end"),
        want.get(at).unwrap_or(&"the end"),
    ))
}

#[test]
fn stablehlo() {
    let mut failures = Vec::new();
    let rows = all();
    for (family, _) in crate::cases::FAMILIES {
        let mut text = String::new();
        for (_, case) in rows.iter().filter(|(name, _)| name == family) {
            match module(case) {
                Ok(module) => write!(text, "# {}\n{}\n", case.id(), functions(&module)).unwrap(),
                Err(why) => failures.push(format!("{}: {why}", case.id())),
            }
        }
        failures.extend(check(&format!("hlo/{family}.txt"), &text).err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
