//! The one error type of the crate: what failed, why in a sentence, and what to write instead.
//!
//! A text reads ``op: what does not fit, with both types, the axis and the two sizes``, lower
//! case and without a full stop, then optional lines `note:` (which transform, which layer) and
//! `help:` (only where there is one thing to write instead).

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

/// `std::result::Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What sort of mistake or failure an [`Error`] is; match on it to react in code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes that do not fit each other or the operation.
    Shape,
    /// Dtypes that do not fit each other or the operation.
    DType,
    /// An axis (dim) that the operand does not have, or that is named twice; a name that no
    /// `vmap` gives to an axis.
    Axis,
    /// An index or a slice outside of its axis.
    Index,
    /// A parameter outside of the values that an operation takes.
    Value,
    /// Operands on different devices, or a device that does not exist.
    Device,
    /// A mesh, partition spec or sharding that does not fit.
    Sharding,
    /// Trees of different structure where equal ones are needed.
    Tree,
    /// A transposed program that is not linear in the operand asked for.
    NotLinear,
    /// A primitive that has no rule for what a transform asks.
    NoRule,
    /// A derivative of torch's face that is not there or not allowed: nothing recorded, a graph freed,
    /// a leaf written in place.
    Autograd,
    /// A traced tensor used outside of the transform that made it.
    LeakedTracer,
    /// A concrete value asked of a traced tensor.
    NotConcrete,
    /// A program that would have to be compiled where that is forbidden, or one too many.
    Compile,
    /// A tensor whose buffer was donated to a compiled program.
    Donated,
    /// No plugin, or a file that is not a usable PJRT plugin.
    Plugin,
    /// A PJRT call that failed, with the plugin's code (as in `absl::StatusCode`).
    Backend {
        /// The status code, for example 8 for `RESOURCE_EXHAUSTED`.
        code: i32,
    },
    /// The device has not enough memory.
    OutOfMemory,
    /// A derivative that is not what differences say: of `check_grads`.
    Derivative,
    /// A function of the user's that a program calls and that panicked, or a plugin whose programs
    /// cannot call back.
    Callback,
    /// A result that is not a number, or infinite: of `debug_nans` and `debug_infs`.
    NotFinite,
    /// A file or text that is not in the format it should be.
    Format,
    /// The operating system refused a file operation.
    Io,
}

/// An error: the operation, its [`ErrorKind`], a sentence, notes, and where the caller stands.
///
/// `Debug` prints as `Display`, so that `unwrap` and `fn main() -> Result<(), Error>` stay legible.
pub struct Error(Box<Inner>);

struct Inner {
    op: Cow<'static, str>,
    kind: ErrorKind,
    text: String,
    notes: Vec<String>,
    help: Option<String>,
    location: Option<&'static Location<'static>>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of operation `op` with the sentence `text` (lower case, no full stop).
    #[cold]
    pub fn new(
        kind: ErrorKind,
        op: impl Into<Cow<'static, str>>,
        text: impl Into<String>,
    ) -> Error {
        Error(Box::new(Inner {
            op: op.into(),
            kind,
            text: text.into(),
            notes: Vec::new(),
            help: None,
            location: None,
            source: None,
        }))
    }

    /// An I/O failure while doing `text`, with the operating system's words.
    #[cold]
    pub fn io(
        op: impl Into<Cow<'static, str>>,
        text: impl Into<String>,
        e: std::io::Error,
    ) -> Error {
        let mut error = Error::new(ErrorKind::Io, op, format!("{}: {e}", text.into()));
        error.0.source = Some(Box::new(e));
        error
    }

    /// The same error with one more `note:` line.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Error {
        self.0.notes.push(note.into());
        self
    }

    /// The same error with a `help:` line: the one thing to write instead.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Error {
        self.0.help = Some(help.into());
        self
    }

    /// The same error, named after the operation that the user called. One that is about a
    /// primitive's result ([`ErrorKind::NotFinite`]) keeps the primitive's name.
    #[must_use]
    pub fn in_op(mut self, op: impl Into<Cow<'static, str>>) -> Error {
        if self.0.kind != ErrorKind::NotFinite {
            self.0.op = op.into();
        }
        self
    }

    /// The same error with the caller's place in the source, unless it has one already.
    #[must_use]
    pub fn at(mut self, location: &'static Location<'static>) -> Error {
        self.0.location.get_or_insert(location);
        self
    }

    /// What sort of error this is.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The operation that failed, for example `matmul`.
    pub fn op(&self) -> &str {
        &self.0.op
    }

    /// The sentence, without the operation, the notes and the help.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The `note:` lines.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// Where in the caller's source the failing call stands, if it is known.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.0.location
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.op, self.0.text)?;
        for note in &self.0.notes {
            write!(f, "\nnote: {note}")?;
        }
        if let Some(help) = &self.0.help {
            write!(f, "\nhelp: {help}")?;
        }
        if let Some(at) = self.0.location {
            write!(f, "\n  at {}:{}", at.file(), at.line())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_as_display() {
        let e = Error::new(ErrorKind::Shape, "matmul", "lhs f32[2] and rhs f32[3] do not fit")
            .note("inside vmap")
            .help("write less");
        let text =
            "matmul: lhs f32[2] and rhs f32[3] do not fit\nnote: inside vmap\nhelp: write less";
        assert_eq!(format!("{e}"), text);
        assert_eq!(format!("{e:?}"), text);
    }
}
