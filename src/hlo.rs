//! Text of StableHLO: types, attributes and one function's body. It knows no primitive.

use crate::aval::Aval;
use crate::dtype::{Category, DType, Scalar};
use crate::shape::push_number;
use smallvec::SmallVec;
use std::borrow::Borrow;
use std::fmt::{self, Display, Write};

/// An SSA value in a function's body: its name (`%3`, `%3#1`, `%arg0`) and its type.
#[derive(Clone)]
pub struct Val {
    /// ASCII, most often without an allocation.
    name: SmallVec<[u8; 16]>,
    aval: Aval,
}

impl Val {
    /// The value of that name and type.
    pub fn new(name: impl AsRef<str>, aval: &Aval) -> Val {
        Val { name: SmallVec::from_slice(name.as_ref().as_bytes()), aval: aval.clone() }
    }

    /// The name, with its `%`.
    pub fn name(&self) -> &str {
        // It was made of a `str`.
        std::str::from_utf8(&self.name).unwrap_or_default()
    }

    /// The type.
    pub fn aval(&self) -> &Aval {
        &self.aval
    }
}

impl fmt::Debug for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.aval)
    }
}

/// The lines of one function's body, or of one region, under way.
#[derive(Debug, Default)]
pub struct Body {
    text: String,
    next: usize,
    depth: usize,
}

impl Body {
    /// An empty body at the given depth of indentation.
    pub fn new(depth: usize) -> Body {
        Body { text: String::new(), next: 0, depth }
    }

    /// The lines so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Writes one line at the body's depth.
    pub fn line(&mut self, line: impl Display) {
        self.indent();
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn indent(&mut self) {
        for _ in 0..self.depth {
            self.text.push_str("  ");
        }
    }

    /// A name that no other value of the function has.
    pub fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next - 1)
    }

    /// Starts the line of an op: `%3 = `, `%3:2 = ` or nothing. Gives the results.
    fn begin(&mut self, outs: &[Aval]) -> Vec<Val> {
        self.indent();
        let start = self.text.len();
        self.text.push('%');
        push_number(&mut self.text, self.next);
        self.next += 1;
        if let [one] = outs {
            let value = Val::new(&self.text[start..], one);
            self.text.push_str(" = ");
            return vec![value];
        }
        let name = self.text.split_off(start);
        if !outs.is_empty() {
            // Writing to a `String` cannot fail.
            let _ = write!(self.text, "{name}:{} = ", outs.len());
        }
        let one = |(i, aval)| Val::new(format!("{name}#{i}"), aval);
        outs.iter().enumerate().map(one).collect()
    }

    fn names<V: Borrow<Val>>(&mut self, values: &[V]) {
        for (i, value) in values.iter().enumerate() {
            if i > 0 {
                self.text.push_str(", ");
            }
            self.text.push_str(value.borrow().name());
        }
    }

    fn types<'a>(&mut self, avals: impl Iterator<Item = &'a Aval>) {
        for (i, aval) in avals.enumerate() {
            if i > 0 {
                self.text.push_str(", ");
            }
            aval.write_hlo(&mut self.text);
        }
    }

    /// Writes `name operands {attrs} : types`: the short form when all types are equal and there
    /// are no attributes, else MLIR's generic form, which CHLO's ops have always. Gives the results.
    pub fn op<V: Borrow<Val>>(
        &mut self,
        name: &str,
        operands: &[V],
        attrs: &str,
        outs: &[Aval],
    ) -> Vec<Val> {
        let same = outs.len() == 1
            && !name.starts_with("chlo.")
            && attrs.is_empty()
            && !operands.is_empty()
            && operands.len() <= 2
            && operands.iter().all(|v| v.borrow().aval.same_elements(&outs[0]));
        if !same {
            return self.generic(name, operands, attrs, "", outs);
        }
        let results = self.begin(outs);
        self.text.push_str(name);
        self.text.push(' ');
        self.names(operands);
        self.text.push_str(" : ");
        self.types(outs.iter());
        self.text.push('\n');
        results
    }

    /// Writes an op in MLIR's generic form, with `regions` as text (each `({ … })`, or empty).
    pub fn generic<V: Borrow<Val>>(
        &mut self,
        name: &str,
        operands: &[V],
        attrs: &str,
        regions: &str,
        outs: &[Aval],
    ) -> Vec<Val> {
        let results = self.begin(outs);
        for part in ["\"", name, "\"("] {
            self.text.push_str(part);
        }
        self.names(operands);
        self.text.push(')');
        for (open, part, close) in [(" (", regions, ")"), (" {", attrs, "}")] {
            if !part.is_empty() {
                self.text.push_str(open);
                self.text.push_str(part);
                self.text.push_str(close);
            }
        }
        self.text.push_str(" : (");
        self.types(operands.iter().map(|v| v.borrow().aval()));
        self.text.push_str(if outs.len() == 1 { ") -> " } else { ") -> (" });
        self.types(outs.iter());
        self.text.push_str(if outs.len() == 1 { "\n" } else { ")\n" });
        results
    }

    /// Writes a constant that holds `value` everywhere; a large one as a number that is repeated,
    /// since XLA's passes would go over and copy all elements of a constant.
    pub fn constant(&mut self, value: Scalar, aval: &Aval) -> Val {
        const LARGE: usize = 256;
        if aval.size() > LARGE {
            let number = self.constant(value, &Aval::scalar(aval.dtype()));
            let (attrs, outs) = ("broadcast_dimensions = array<i64>", std::slice::from_ref(aval));
            let mut results =
                self.generic("stablehlo.broadcast_in_dim", &[number], attrs, "", outs);
            return results.swap_remove(0);
        }
        let mut results = self.begin(std::slice::from_ref(aval));
        self.text.push_str("stablehlo.constant dense<");
        self.text.push_str(&scalar(value));
        self.text.push_str("> : ");
        aval.write_hlo(&mut self.text);
        self.text.push('\n');
        results.swap_remove(0)
    }

    /// Writes the terminator.
    pub fn ret(&mut self, op: &str, results: &[Val]) {
        self.indent();
        self.text.push_str(op);
        if !results.is_empty() {
            self.text.push(' ');
            self.names(results);
            self.text.push_str(" : ");
            self.types(results.iter().map(Val::aval));
        }
        self.text.push('\n');
    }

    /// Starts a region's body inside of this one: the same names go on.
    pub fn nested(&self) -> Body {
        Body { text: String::new(), next: self.next, depth: self.depth + 2 }
    }

    /// Ends a region that [`nested`](Body::nested) started: its text, names counted on here.
    pub fn close(&mut self, inner: Body, args: &[Val]) -> String {
        self.next = inner.next;
        inner.into_region(args, self.depth)
    }

    fn into_region(self, args: &[Val], depth: usize) -> String {
        let pad = " ".repeat(depth * 2);
        let mut out = String::with_capacity(self.text.len() + 64);
        out.push_str("{\n");
        if !args.is_empty() {
            let params = join(args.iter().map(|v| format!("{}: {}", v.name(), v.aval.hlo())));
            for part in [&pad, "  ^bb0(", &params, "):\n"] {
                out.push_str(part);
            }
        }
        for part in [self.text.as_str(), &pad, "}"] {
            out.push_str(part);
        }
        out
    }
}

/// Appends the items between two marks, `, ` in between.
fn listed<T: Display>(open: &str, items: impl IntoIterator<Item = T>, close: &str) -> String {
    let mut out = String::with_capacity(32);
    out.push_str(open);
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        // Writing to a `String` cannot fail.
        let _ = write!(out, "{item}");
    }
    out.push_str(close);
    out
}

/// Joins with `, `.
pub fn join<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let mut out = String::new();
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        out.push_str(item.as_ref());
    }
    out
}

/// `[1, 2]`.
pub fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    listed("[", items, "]")
}

/// `array<i64: 1, 2>`; `array<i64>` if empty.
pub fn i64_array<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut items = items.into_iter().peekable();
    if items.peek().is_none() { "array<i64>".into() } else { listed("array<i64: ", items, ">") }
}

/// `array<i1: true, false>`; `array<i1>` if empty.
pub fn bool_array(items: impl IntoIterator<Item = bool>) -> String {
    let mut items = items.into_iter().peekable();
    if items.peek().is_none() { "array<i1>".into() } else { listed("array<i1: ", items, ">") }
}

/// Pairs as `dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`, the form of padding attributes.
pub fn pairs(items: &[(i64, i64)]) -> String {
    if items.is_empty() {
        return "dense<> : tensor<0x2xi64>".into();
    }
    let rows = join(items.iter().map(|(a, b)| format!("[{a}, {b}]")));
    format!("dense<[{rows}]> : tensor<{}x2xi64>", items.len())
}

/// A scalar as it stands inside of `dense<…>`: exact, special values as hex digits.
pub fn scalar(value: Scalar) -> String {
    match value.dtype().category() {
        Category::Bool | Category::Int => value.to_string(),
        Category::Float => float(value),
        Category::Complex => {
            let part = |v: f64| float(Scalar::from_f64(value.dtype().real(), v));
            format!("({}, {})", part(value.to_f64()), part(value.imag_f64()))
        }
    }
}

fn float(value: Scalar) -> String {
    let v = value.to_f64();
    if !v.is_finite() {
        let bits =
            value.bytes().iter().rev().fold(0u64, |bits, &byte| (bits << 8) | u64::from(byte));
        return format!("0x{bits:0digits$X}", digits = 2 * value.dtype().size());
    }
    // The shortest text that reads back as the same number; MLIR wants a point before the `e`.
    let text =
        if value.dtype() == DType::F64 { format!("{v:e}") } else { format!("{:e}", v as f32) };
    match text.split_once('e') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_exact() {
        assert_eq!(scalar(Scalar::new(0.1f32)), "1.0e-1");
        assert_eq!(scalar(Scalar::new(f32::INFINITY)), "0x7F800000");
        assert_eq!(scalar(Scalar::new(-1.5f64)), "-1.5e0");
        assert_eq!(scalar(Scalar::new(true)), "true");
        assert_eq!(scalar(Scalar::new(-3i8)), "-3");
    }

    #[test]
    fn ops_print_short_or_generic() {
        let (f, i) = (Aval::new(DType::F32, [2]), Aval::new(DType::I32, [2]));
        let mut body = Body::new(1);
        let x = Val::new("%arg0", &f);
        let y = body.op("stablehlo.sine", &[&x], "", std::slice::from_ref(&f)).remove(0);
        body.op("stablehlo.convert", &[&y], "", &[i]);
        assert_eq!(
            body.text(),
            "  %0 = stablehlo.sine %arg0 : tensor<2xf32>\n  %1 = \"stablehlo.convert\"(%0) : \
             (tensor<2xf32>) -> tensor<2xi32>\n"
        );
    }
}
