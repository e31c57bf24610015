//! Where in the user's source operations come from.
//!
//! A method of the torch face knows its caller only when it ends, after its operations have been
//! recorded: [`label`] then gives the place to all that have none yet. What is derived from an
//! equation, its transpose or its batched form, takes the equation's place over by [`with`].

use super::{CURRENT, Value, autograd};
use crate::error::Result;
use std::cell::Cell;
use std::panic::Location;

/// A place in the source.
pub type Place = &'static Location<'static>;

thread_local! {
    static HERE: Cell<Option<Place>> = const { Cell::new(None) };
}

/// The place that operations bound now come from, if it is known already.
pub fn here() -> Option<Place> {
    HERE.get()
}

/// Runs `f`, whose operations come from `place`; an unknown place changes nothing.
pub fn with<T>(place: Option<Place>, f: impl FnOnce() -> T) -> T {
    match place {
        Some(_) => set(place, f),
        None => f(),
    }
}

/// Runs `f`, whose operations come from no place known so far: a function that is recorded.
pub fn anew<T>(f: impl FnOnce() -> T) -> T {
    set(None, f)
}

fn set<T>(place: Option<Place>, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Place>);
    impl Drop for Restore {
        fn drop(&mut self) {
            HERE.set(self.0);
        }
    }
    let _restore = Restore(HERE.replace(place));
    f()
}

/// Says that what was recorded last, and has no place yet, comes from `place`.
pub fn label(place: Place) {
    CURRENT.with_borrow(|current| {
        let mut next = current.as_ref();
        while let Some(trace) = next {
            let interpreter = trace.interpreter();
            if let Some(recorder) = interpreter.recorder() {
                // Nothing goes past a recorder to what is around it.
                return recorder.label(place);
            }
            if let Some(linear) = interpreter.as_linear() {
                linear.label(place);
            }
            next = trace.parent();
        }
    });
}

/// Says that the operation which `value` came from, if it is to be differentiated later, stands at
/// `place`.
pub fn label_value(value: &Value, place: Place) {
    if let Some(graded) = autograd::graded(value) {
        graded.edge().node().at.get_or_init(|| place);
    }
}

/// The caller's place put into an error, and into what a transform has recorded last.
///
/// # Errors
/// That of `result`.
#[track_caller]
pub fn placed<T>(result: Result<T>) -> Result<T> {
    let here = Location::caller();
    label(here);
    result.map_err(|error| error.at(here))
}
