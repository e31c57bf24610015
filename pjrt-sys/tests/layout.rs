//! Every struct, field and code against the C header, by the C compiler's own answer.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const HELP: &str = "no pjrt_c_api.h found: run `oxbridge plugin install cpu`, \
                    or name the file in OXBRIDGE_PJRT_HEADER";

#[test]
fn structs_and_codes_are_those_of_the_header() {
    let header = header().expect(HELP);
    let expected = ask_compiler(&header);
    let ours: BTreeMap<String, u64> = facts().map(|(c, value)| (c.key(), value)).collect();
    let wrong: Vec<String> = expected
        .iter()
        .filter(|&(key, value)| ours.get(key) != Some(value))
        .map(|(key, value)| format!("{key}: C says {value}, Rust says {:?}", ours.get(key)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(expected.len(), ours.len(), "the program answered every question once");
    assert!(ours.len() > 900, "only {} facts were compared", ours.len());
}

#[test]
fn nothing_of_the_header_is_missing() {
    let text = std::fs::read_to_string(header().expect(HELP)).unwrap();
    let ours: Vec<&str> = pjrt_sys::layouts().map(|layout| layout.name).collect();
    let mut missing: Vec<&str> = structs_of(&text).filter(|name| !ours.contains(name)).collect();
    let fields: Vec<&str> = pjrt_sys::layouts()
        .filter(|layout| layout.name == "PJRT_Api")
        .flat_map(|layout| layout.fields.iter().map(|field| field.0))
        .collect();
    missing.extend(functions_of(&text).filter(|name| !fields.contains(name)));
    assert!(missing.is_empty(), "declared in C only: {missing:?}");
    assert!(structs_of(&text).count() > 130, "the header lists its structs");
    assert!(functions_of(&text).count() > 110, "the header lists its functions");
}

/// What the plugins of API 0.81, 0.106 and 0.115 report as the size of their FFI extension.
#[test]
fn the_ffi_extension_is_as_long_as_plugins_say() {
    assert_eq!(size_of::<pjrt_sys::PJRT_FFI_Extension>(), 48);
}

/// The frame of a handler's call: sizes and places that follow from the fields of the C header
/// `xla/ffi/api/c_api.h`, which no plugin ships.
#[test]
fn the_frame_of_a_handler_is_laid_out_as_in_c() {
    use pjrt_sys::*;
    use std::mem::offset_of;
    assert_eq!(size_of::<XLA_FFI_Args>(), 40);
    assert_eq!(size_of::<XLA_FFI_Attrs>(), 48);
    assert_eq!(size_of::<XLA_FFI_Buffer>(), 48);
    assert_eq!(size_of::<XLA_FFI_Metadata>(), 40);
    assert_eq!(offset_of!(XLA_FFI_CallFrame, stage), 32);
    assert_eq!(offset_of!(XLA_FFI_CallFrame, args), 40);
    assert_eq!(offset_of!(XLA_FFI_CallFrame, attrs), 120);
    assert_eq!(offset_of!(XLA_FFI_Api, XLA_FFI_Error_Create), 48);
}

/// A question to the C compiler.
enum Fact {
    Size(&'static str),
    Offset(&'static str, &'static str),
    Code(&'static str),
}

impl Fact {
    fn key(&self) -> String {
        match self {
            Fact::Size(name) => format!("sizeof({name})"),
            Fact::Offset(name, field) => format!("offsetof({name},{field})"),
            Fact::Code(name) => (*name).to_owned(),
        }
    }
}

/// All questions, with what this crate answers.
fn facts() -> impl Iterator<Item = (Fact, u64)> {
    let layouts = pjrt_sys::layouts().flat_map(|layout| {
        let fields = layout.fields.iter();
        fields
            .map(move |&(field, offset)| (Fact::Offset(layout.name, field), offset as u64))
            .chain([(Fact::Size(layout.name), layout.size as u64)])
    });
    let version = [
        (Fact::Code("PJRT_API_MAJOR"), pjrt_sys::PJRT_API_MAJOR as u64),
        (Fact::Code("PJRT_API_MINOR"), pjrt_sys::PJRT_API_MINOR as u64),
    ];
    layouts
        .chain(pjrt_sys::codes().map(|(name, code)| (Fact::Code(name), code.into())))
        .chain(version)
}

/// Compiles and runs a C program that prints the answer to every question.
fn ask_compiler(header: &Path) -> BTreeMap<String, u64> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, c_program(header)).unwrap();
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(&cc).arg(&source).arg("-o").arg(&program).output();
    let compiled = compiled.unwrap_or_else(|e| panic!("the C compiler `{cc}` does not start: {e}"));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let answers = Command::new(&program).output().unwrap().stdout;
    let answers = String::from_utf8(answers).unwrap();
    answers
        .lines()
        .map(|line| line.split_once('=').expect("`question=answer`"))
        .map(|(question, answer)| (question.to_owned(), answer.parse().unwrap()))
        .collect()
}

fn c_program(header: &Path) -> String {
    let mut text =
        format!("#include <stdio.h>\n#include \"{}\"\nint main(void) {{\n", header.display());
    for (fact, _) in facts() {
        let question = fact.key();
        writeln!(text, "  printf(\"{question}=%llu\\n\", (unsigned long long)({question}));")
            .unwrap();
    }
    text.push_str("  return 0;\n}\n");
    text
}

/// The names after `struct` where C defines one.
fn structs_of(header: &str) -> impl Iterator<Item = &str> {
    header.lines().filter_map(|line| {
        let line = line.strip_prefix("typedef ").unwrap_or(line);
        line.strip_prefix("struct ")?.strip_suffix(" {")
    })
}

/// The functions of C's table.
fn functions_of(header: &str) -> impl Iterator<Item = &str> {
    header
        .lines()
        .filter_map(|line| line.trim().strip_prefix("_PJRT_API_STRUCT_FIELD(")?.strip_suffix(");"))
}

/// The header: the one named in the environment, or else one that came with an installed plugin.
fn header() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("OXBRIDGE_PJRT_HEADER") {
        return Some(path.into());
    }
    let cache = std::env::var_os("OXBRIDGE_CACHE_DIR").map(PathBuf::from).or_else(|| {
        std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache").join("oxbridge"))
    })?;
    find(&cache.join("plugins"), "pjrt_c_api.h")
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let here = entries.iter().find(|path| path.file_name().is_some_and(|file| file == name));
    here.cloned()
        .or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|path| find(path, name)))
}
