//! What the sources promise of themselves: layers, sizes, where `unsafe` stands, nothing unfinished.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The layer of each module of the crate: a file names only its own layer and lower ones.
const LAYERS: &[(&str, u8)] = &[
    ("error", 0),
    ("dtype", 0),
    ("shape", 0),
    ("mesh", 1),
    ("aval", 1),
    ("hlo", 1),
    ("backend", 2),
    ("array", 3),
    ("trace", 4),
    ("ops", 5),
    ("transforms", 6),
    ("tensor", 7),
    ("nn", 8),
    ("optim", 8),
    ("pt2", 8),
    ("jax", 8),
    // What the crate's root gives again, by the layer of its home.
    ("Error", 0),
    ("ErrorKind", 0),
    ("Result", 0),
    ("DType", 0),
    ("Element", 0),
    ("Scalar", 0),
    ("Shape", 0),
    ("Mesh", 1),
    ("NamedSharding", 1),
    ("PartitionSpec", 1),
    ("spec", 1),
    ("Aval", 1),
    ("with_dtype", 2),
    ("Client", 2),
    ("ClientOptions", 2),
    ("Device", 2),
    ("Array", 3),
    ("Value", 4),
    ("Tensor", 4),
    ("catch", 6),
    ("grad", 6),
    ("jit", 6),
    ("jvp", 6),
    ("value_and_grad", 6),
    ("vjp", 6),
    ("vmap", 6),
];

/// The longest file that is allowed.
const MAX_LINES: usize = 800;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below the given folders with one of the endings, with its path from the root.
fn files(folders: &[&str], endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = folders.iter().map(|f| root().join(f)).collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            open.extend(entries.map(|e| e.unwrap().path()).filter(|p| !p.ends_with("target")));
            continue;
        }
        let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        if endings.iter().any(|end| name.ends_with(end))
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            found.push((name, text));
        }
    }
    assert!(!found.is_empty(), "no file below {folders:?}");
    found.sort();
    found
}

/// All Rust sources of the workspace.
fn sources() -> Vec<(String, String)> {
    let folders = ["src", "tests", "derive", "pjrt-sys", "examples", "benches"];
    let folders: Vec<&str> = folders.into_iter().filter(|f| root().join(f).exists()).collect();
    files(&folders, &[".rs"])
}

/// The lines of a source that are code, numbered from 1, with strings and comments cut out.
fn code(text: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    text.lines().enumerate().map(|(i, line)| (i + 1, without_words(line)))
}

fn without_words(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if quoted => drop(chars.next()),
            '"' => quoted = !quoted,
            '/' if !quoted && chars.peek() == Some(&'/') => break,
            c if !quoted => out.push(c),
            _ => {}
        }
    }
    out
}

fn report(failures: &str) {
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn no_file_is_too_long() {
    let mut failures = String::new();
    for (name, text) in sources() {
        let lines = text.lines().count();
        if lines > MAX_LINES {
            writeln!(failures, "{name}: {lines} lines, more than {MAX_LINES}").unwrap();
        }
    }
    report(&failures);
}

fn layer(word: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == word).map(|(_, layer)| *layer)
}

/// The words after each `crate::` of a line; several for `crate::{a, b::c}`.
fn named(line: &str) -> Vec<String> {
    let word = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let mut words = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let rest = &line[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => words.push(word(rest)),
            Some(list) => {
                let mut depth = 0;
                let mut start = true;
                for (i, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && !c.is_whitespace() => {
                            words.push(word(&list[i..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    words.retain(|w: &String| !w.is_empty());
    words
}

#[test]
fn no_file_names_a_higher_layer() {
    let mut failures = String::new();
    for (name, text) in files(&["src"], &[".rs"]) {
        let module = name.trim_start_matches("src/").split(['/', '.']).next().unwrap();
        if matches!(module, "lib" | "bin" | "main") {
            continue;
        }
        let Some(own) = layer(module) else {
            writeln!(failures, "{name}: module `{module}` has no layer in the table").unwrap();
            continue;
        };
        // Unit tests may look further; their module comes last.
        let shipped = text.split("#[cfg(test)]\nmod ").next().unwrap();
        let lines: Vec<String> = code(shipped).map(|(_, line)| line).collect();
        for word in named(&lines.join(" ")) {
            match layer(&word) {
                Some(other) if other <= own => {}
                Some(other) => {
                    writeln!(failures, "{name}: layer {own} names crate::{word} of layer {other}")
                        .unwrap();
                }
                None => {
                    writeln!(failures, "{name}: crate::{word} has no layer in the table").unwrap();
                }
            }
        }
    }
    report(&failures);
}

#[test]
fn unsafe_stands_at_the_pjrt_edge_only() {
    let mut failures = String::new();
    for (name, text) in sources() {
        if name.starts_with("src/backend/pjrt/") || name.starts_with("pjrt-sys/") {
            continue;
        }
        for (number, line) in code(&text) {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.into_iter().any(|w| w == "unsafe") {
                writeln!(failures, "{name}:{number}: {}", line.trim()).unwrap();
            }
        }
    }
    report(&failures);
}

#[test]
fn nothing_is_left_unfinished() {
    let unfinished = ["todo!", "unimplemented!", "#[ignore", "dbg!"];
    let mut failures = String::new();
    for (name, text) in sources() {
        for (number, line) in code(&text) {
            if unfinished.iter().any(|word| line.contains(word)) {
                writeln!(failures, "{name}:{number}: {}", line.trim()).unwrap();
            }
        }
    }
    report(&failures);
}

#[test]
fn no_path_of_one_machine() {
    // Put together here, so that this file does not name them.
    let homes: Vec<String> =
        ["root", "home", "work", "Users"].iter().map(|dir| format!("/{dir}/")).collect();
    let endings =
        [".rs", ".toml", ".md", ".sh", ".yml", ".yaml", ".py", ".json", ".txt", "Makefile", "run"];
    let folders = [
        "src",
        "tests",
        "derive",
        "pjrt-sys",
        "examples",
        "benches",
        "docs",
        ".ci",
        "Cargo.toml",
        "Makefile",
        "README.md",
        "ARCHITECTURE.md",
    ];
    let folders: Vec<&str> = folders.into_iter().filter(|f| root().join(f).exists()).collect();
    let mut failures = String::new();
    for (name, text) in files(&folders, &endings) {
        for (number, line) in text.lines().enumerate() {
            if homes.iter().any(|home| absolute(line, home)) {
                writeln!(failures, "{name}:{}: {}", number + 1, line.trim()).unwrap();
            }
        }
    }
    report(&failures);
}

/// Whether `line` has a path that begins with `home`, not only one that goes through such a folder.
fn absolute(line: &str, home: &str) -> bool {
    line.match_indices(home).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| c.is_whitespace() || "\"'`=(:,<".contains(c))
    })
}

/// The checks above would see what they look for.
#[test]
fn the_checks_see_what_they_look_for() {
    let line = "use crate::{ops::sin, trace::{Value, bind}, tensor}; use crate::nn;";
    assert_eq!(named(line), ["ops", "trace", "tensor", "nn"]);
    assert_eq!(without_words(r#"let x = "un\"safe"; // unsafe"#), "let x = ; ");
    let home = format!("/{}/", "home");
    assert!(absolute(&format!("see \"{home}me\""), &home));
    assert!(!absolute(&format!("see ~/x{home}me"), &home));
    assert!(layer("trace") < layer("ops"));
}
