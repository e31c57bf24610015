//! Every primitive of the crate has a row, and every row runs the primitive that it names.

use super::all;
use super::run::graph;
use crate::cases::collective;
use oxbridge::trace::graph::Graph;
use std::collections::BTreeSet;
use std::path::Path;

/// The primitives' names as `src/ops` spells them: `fn name` bodies, `NAME` constants, and rows of
/// the families' tables.
fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    for entry in std::fs::read_dir(dir).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        names.extend(in_file(&text));
    }
    names
}

fn in_file(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut body = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("//") {
            continue;
        }
        if body || trimmed.contains("const NAME: &") {
            names.extend(quoted(trimmed));
        }
        if trimmed.starts_with("fn name(") {
            body = true;
            names.extend(quoted(trimmed));
        } else if line == "    }" || trimmed.ends_with("} }") {
            body = false;
        }
        // A row of a table: `Sin sin "stablehlo.sine" Field`.
        let words: Vec<&str> = trimmed.split_whitespace().collect();
        if let [ty, name, op, ..] = words[..]
            && ty.starts_with(|c: char| c.is_ascii_uppercase())
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && (op.starts_with("\"stablehlo.") || op.starts_with("\"chlo."))
        {
            names.insert(name.to_string());
        }
    }
    names
}

/// The words of a line that stand in quotes.
fn quoted(line: &str) -> Vec<String> {
    let word = |s: &&str| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    line.split('"').skip(1).step_by(2).filter(word).map(str::to_string).collect()
}

fn names_in(graph: &Graph, names: &mut BTreeSet<String>) {
    for eqn in graph.eqns() {
        names.insert(eqn.prim.name().to_string());
        if let Some(inner) = eqn.prim.graph() {
            names_in(inner, names);
        }
    }
}

/// What no row can name: one is only transposed, which `custom` tests, the other has an effect in
/// place of results, which `callbacks` tests.
const NO_ROWS: [&str; 2] = ["custom_vjp_linear", "debug_callback"];

#[test]
fn every_primitive_has_a_row() {
    let mut declared = declared();
    for name in NO_ROWS {
        assert!(declared.remove(name), "{name} is not declared");
    }
    let mut failures = Vec::new();
    let (mut covered, mut ids, mut bound) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (family, case) in all() {
        if !ids.insert(case.id()) {
            failures.push(format!("{}: stands twice, give one a tag", case.id()));
        }
        let Ok(graph) = graph(&case) else { continue };
        let mut names = BTreeSet::new();
        names_in(&graph, &mut names);
        // A batch has turned its collective into something else: look at one example.
        if family == "collective" {
            match collective::inner_graph(&case) {
                Some(Ok(graph)) => names_in(&graph, &mut names),
                other => failures.push(format!("{}: no graph of an example: {other:?}", case.id())),
            }
        }
        if !names.contains(case.prim) {
            failures.push(format!("{}: runs {names:?}, not what it names", case.id()));
        }
        covered.insert(case.prim.to_string());
        bound.extend(names);
    }
    failures.extend(declared.difference(&covered).map(|name| format!("{name}: has no row")));
    failures.extend(bound.difference(&declared).map(|name| {
        format!("{name}: is not found by the scan of src/ops, teach it the form of the table")
    }));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
