//! Text of StableHLO: types, attributes and one function's body. It knows no primitive.

use crate::aval::Aval;
use crate::dtype::{Category, DType, Scalar};
use std::fmt::{Display, Write};
use std::sync::Arc;

/// An SSA value in a function's body: its name (`%3`, `%3#1`, `%arg0`) and its type.
#[derive(Clone, Debug)]
pub struct Val {
    name: Arc<str>,
    aval: Aval,
}

impl Val {
    /// The value of that name and type.
    pub fn new(name: impl AsRef<str>, aval: &Aval) -> Val {
        Val { name: Arc::from(name.as_ref()), aval: aval.clone() }
    }

    /// The name, with its `%`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type.
    pub fn aval(&self) -> &Aval {
        &self.aval
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
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.text, "{:indent$}{line}", "", indent = self.depth * 2);
    }

    /// A name that no other value of the function has.
    pub fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next - 1)
    }

    /// Writes `name operands {attrs} : types`: the short form when all types are equal and there
    /// are no attributes, else MLIR's generic form, which CHLO's ops have always. Gives the results.
    pub fn op(&mut self, name: &str, operands: &[&Val], attrs: &str, outs: &[Aval]) -> Vec<Val> {
        let same = outs.len() == 1
            && !name.starts_with("chlo.")
            && attrs.is_empty()
            && !operands.is_empty()
            && operands.len() <= 2
            && operands.iter().all(|v| v.aval.unsharded() == outs[0].unsharded());
        if same {
            let out = self.fresh();
            let names = join(operands.iter().map(|v| v.name()));
            self.line(format_args!("{out} = {name} {names} : {}", outs[0].hlo()));
            return vec![Val::new(out, &outs[0])];
        }
        self.generic(name, operands, attrs, "", outs)
    }

    /// Writes an op in MLIR's generic form, with `regions` as text (each `({ … })`, or empty).
    pub fn generic(
        &mut self,
        name: &str,
        operands: &[&Val],
        attrs: &str,
        regions: &str,
        outs: &[Aval],
    ) -> Vec<Val> {
        let out = self.fresh();
        let names = join(operands.iter().map(|v| v.name()));
        let ins = join(operands.iter().map(|v| v.aval.hlo()));
        let types = join(outs.iter().map(Aval::hlo));
        let types = if outs.len() == 1 { types } else { format!("({types})") };
        let attrs = if attrs.is_empty() { String::new() } else { format!(" {{{attrs}}}") };
        let regions = if regions.is_empty() { String::new() } else { format!(" ({regions})") };
        let head = match outs.len() {
            0 => String::new(),
            1 => format!("{out} = "),
            n => format!("{out}:{n} = "),
        };
        self.line(format_args!("{head}\"{name}\"({names}){regions}{attrs} : ({ins}) -> {types}"));
        match outs {
            [one] => vec![Val::new(out, one)],
            many => {
                many.iter().enumerate().map(|(i, a)| Val::new(format!("{out}#{i}"), a)).collect()
            }
        }
    }

    /// Writes a constant that holds `value` everywhere.
    pub fn constant(&mut self, value: Scalar, aval: &Aval) -> Val {
        let out = self.fresh();
        self.line(format_args!(
            "{out} = stablehlo.constant dense<{}> : {}",
            scalar(value),
            aval.hlo()
        ));
        Val::new(out, aval)
    }

    /// Writes the terminator.
    pub fn ret(&mut self, op: &str, results: &[Val]) {
        let names = join(results.iter().map(Val::name));
        let types = join(results.iter().map(|v| v.aval.hlo()));
        if results.is_empty() {
            self.line(op);
        } else {
            self.line(format_args!("{op} {names} : {types}"));
        }
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
        let params = join(args.iter().map(|v| format!("{}: {}", v.name(), v.aval.hlo())));
        let pad = " ".repeat(depth * 2);
        let head =
            if args.is_empty() { String::new() } else { format!("{pad}  ^bb0({params}):\n") };
        format!("{{\n{head}{}{pad}}}", self.text)
    }
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
    format!("[{}]", join(items.into_iter().map(|i| i.to_string())))
}

/// `array<i64: 1, 2>`; `array<i64>` if empty.
pub fn i64_array<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let text = join(items.into_iter().map(|i| i.to_string()));
    if text.is_empty() { "array<i64>".into() } else { format!("array<i64: {text}>") }
}

/// `array<i1: true, false>`; `array<i1>` if empty.
pub fn bool_array(items: impl IntoIterator<Item = bool>) -> String {
    let text = join(items.into_iter().map(|i| i.to_string()));
    if text.is_empty() { "array<i1>".into() } else { format!("array<i1: {text}>") }
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
