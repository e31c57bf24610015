//! What goes over the rows.

pub mod batch;
pub mod case;
pub mod compare;
pub mod complete;
pub mod derivative;
pub mod golden;
pub mod plugin;
pub mod run;

use super::FAMILIES;
use case::Case;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// All rows of all families, each with its family's name.
pub fn all() -> Vec<(&'static str, Case)> {
    let mut all = Vec::new();
    for (family, rows) in FAMILIES {
        let mut list = Vec::new();
        rows(&mut list);
        all.extend(list.into_iter().map(|case| (*family, case)));
    }
    all
}

/// Runs `check` on every row, prints each that fails, and fails if any did. `check` gives false for
/// a row that is none of its business; at least one row must be.
pub fn each(engine: &str, check: impl Fn(&Case) -> Result<bool, String>) {
    let only = std::env::var("OXBRIDGE_CASE").ok();
    let (mut passed, mut failed) = (0, 0);
    for (family, case) in all() {
        let id = case.id();
        if only.as_ref().is_some_and(|only| !id.contains(only)) {
            continue;
        }
        let result = catch_unwind(AssertUnwindSafe(|| check(&case)))
            .unwrap_or_else(|payload| Err(format!("panicked: {}", words(&*payload))));
        match result {
            Ok(applies) => passed += usize::from(applies),
            Err(why) => {
                failed += 1;
                println!("{engine}: {family}: {id}: {why}");
            }
        }
    }
    println!("{engine}: {passed} of {} rows passed", passed + failed);
    assert_eq!(failed, 0, "{engine}: {failed} rows failed, see above");
    assert!(passed > 0 || only.is_some(), "{engine}: no row applies");
}

fn words(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}
