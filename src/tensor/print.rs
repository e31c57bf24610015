//! `Display`: the elements as torch prints them.
//!
//! Four digits after the point, or scientific notation if the sizes differ by more than 1000
//! times or are very large or small; aligned columns; lines of 80 characters; past 1000 elements
//! only the three at each end of a dimension. Dtypes other than `f32`, `i64`, `bool` and `c64` are
//! named. A traced tensor prints its type and the transform.

use crate::backend::host::HostArray;
use crate::dtype::{Category, DType};
use crate::error::Result;
use crate::trace::Value;
use crate::trace::cell::Tensor;
use std::fmt;

const PRECISION: usize = 4;
const THRESHOLD: usize = 1000;
const EDGE: usize = 3;
const LINE: usize = 80;
const PREFIX: &str = "tensor(";

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value() {
            Ok(value) => f.write_str(&print(&value)),
            Err(error) => write!(f, "tensor({}, {})", self.aval(), error.text()),
        }
    }
}

fn print(value: &Value) -> String {
    let host = match value.concrete("print").and_then(|array| array.to_host()) {
        Ok(host) => host,
        Err(error) => match value {
            Value::Tracer(tracer) => {
                return format!("tensor({}, traced by `{}`)", value.aval(), tracer.trace().name());
            }
            Value::Array(_) => return format!("tensor({}, {})", value.aval(), error.text()),
        },
    };
    print_host(&host).unwrap_or_else(|error| format!("tensor({}, {})", value.aval(), error.text()))
}

/// One element, read.
#[derive(Clone, Copy)]
enum Item {
    Bool(bool),
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

/// The elements of a dtype, each by `$f`.
fn items(host: &HostArray) -> Result<Vec<Item>> {
    macro_rules! read {
        ($ty:ty, $f:expr) => {
            host.to_vec::<$ty>()?.into_iter().map($f).collect()
        };
    }
    Ok(match host.dtype() {
        DType::Bool => read!(bool, Item::Bool),
        DType::U8 => read!(u8, |v| Item::Int(v.into())),
        DType::U16 => read!(u16, |v| Item::Int(v.into())),
        DType::U32 => read!(u32, |v| Item::Int(v.into())),
        DType::U64 => read!(u64, |v| Item::Int(v.into())),
        DType::I8 => read!(i8, |v| Item::Int(v.into())),
        DType::I16 => read!(i16, |v| Item::Int(v.into())),
        DType::I32 => read!(i32, |v| Item::Int(v.into())),
        DType::I64 => read!(i64, |v| Item::Int(v.into())),
        DType::F16 => read!(half::f16, |v| Item::Float(v.into())),
        DType::BF16 => read!(half::bf16, |v| Item::Float(v.into())),
        DType::F32 => read!(f32, |v| Item::Float(v.into())),
        DType::F64 => read!(f64, Item::Float),
        DType::C64 => {
            read!(num_complex::Complex<f32>, |v| Item::Complex(v.re.into(), v.im.into()))
        }
        DType::C128 => read!(num_complex::Complex<f64>, |v| Item::Complex(v.re, v.im)),
    })
}

fn print_host(host: &HostArray) -> Result<String> {
    let (dtype, shape) = (host.dtype(), host.shape());
    let items = items(host)?;
    let mut suffixes = Vec::new();
    if items.is_empty() && shape.rank() != 1 {
        suffixes.push(format!("size={shape}"));
    }
    let is_default = match dtype {
        DType::F32 => true,
        DType::I64 | DType::Bool | DType::C64 => !items.is_empty(),
        _ => false,
    };
    if !is_default {
        suffixes.push(format!("dtype={dtype}"));
    }
    let body = if items.is_empty() {
        "[]".to_string()
    } else {
        let summarize = items.len() > THRESHOLD;
        let shown = shown(&items, shape, summarize);
        Printer { format: Format::of(dtype, &shown), summarize }.tensor(&items, shape, PREFIX.len())
    };
    Ok(with_suffixes(body, &suffixes))
}

fn with_suffixes(body: String, suffixes: &[String]) -> String {
    let mut last = body.len() - body.rfind('\n').map_or(0, |i| i + 1) + 2;
    let mut out = format!("{PREFIX}{body}");
    for suffix in suffixes {
        if last + suffix.len() + 2 > LINE {
            out.push_str(",\n");
            out.push_str(&" ".repeat(PREFIX.len()));
            last = PREFIX.len() + suffix.len();
        } else {
            out.push_str(", ");
            last += suffix.len() + 2;
        }
        out.push_str(suffix);
    }
    out.push(')');
    out
}

/// The indices of a dimension that are printed.
fn edges(size: usize, summarize: bool) -> Vec<usize> {
    if summarize && size > 2 * EDGE {
        (0..EDGE).chain(size - EDGE..size).collect()
    } else {
        (0..size).collect()
    }
}

/// The elements that are printed.
fn shown(items: &[Item], shape: &[usize], summarize: bool) -> Vec<Item> {
    match shape {
        [] => items.to_vec(),
        [size, rest @ ..] => {
            let stride = rest.iter().product::<usize>();
            let part = |i: usize| shown(&items[i * stride..(i + 1) * stride], rest, summarize);
            edges(*size, summarize).into_iter().flat_map(part).collect()
        }
    }
}

/// How one column of real numbers is written.
#[derive(Clone, Copy)]
struct Column {
    style: Style,
    width: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// Whole numbers of floats: `3.`.
    Whole,
    /// `0.3333`.
    Fixed,
    /// `3.3333e-05`.
    Scientific,
}

fn scientific(x: f64) -> String {
    if !x.is_finite() {
        return plain(x);
    }
    let text = format!("{x:.PRECISION$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, size) = match exponent.strip_prefix('-') {
        Some(size) => ('-', size),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{size:0>2}")
}

fn plain(x: f64) -> String {
    match x {
        x if x.is_nan() => "nan".into(),
        x if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.into(),
        x => format!("{x:.PRECISION$}"),
    }
}

impl Column {
    fn of(values: impl Iterator<Item = f64>) -> Column {
        let values: Vec<f64> = values.filter(|v| v.is_finite() && *v != 0.0).collect();
        if values.is_empty() {
            return Column { style: Style::Whole, width: 1 };
        }
        let (low, high) = values
            .iter()
            .fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v.abs()), high.max(v.abs())));
        let whole = values.iter().all(|v| *v == v.ceil());
        let style = match whole {
            _ if high / low > 1000.0 || high > 1e8 => Style::Scientific,
            true => Style::Whole,
            false if low < 1e-4 => Style::Scientific,
            false => Style::Fixed,
        };
        let column = Column { style, width: 0 };
        let width = values.iter().map(|&v| column.digits(v).len()).max().unwrap_or(1);
        Column { style, width }
    }

    fn digits(self, x: f64) -> String {
        match self.style {
            Style::Scientific => scientific(x),
            Style::Whole if x.is_finite() => format!("{x:.0}."),
            _ => plain(x),
        }
    }

    fn write(self, x: f64) -> String {
        format!("{:>1$}", self.digits(x), self.width)
    }
}

/// How all elements of a tensor are written.
enum Format {
    /// Bools and integers, right-aligned.
    Exact(usize),
    Real(Column),
    Complex(Column, Column),
}

fn exact(item: Item) -> String {
    match item {
        Item::Bool(true) => "True".into(),
        Item::Bool(false) => "False".into(),
        Item::Int(v) => v.to_string(),
        Item::Float(v) | Item::Complex(v, _) => plain(v),
    }
}

fn re(item: &Item) -> f64 {
    match *item {
        Item::Float(v) | Item::Complex(v, _) => v,
        _ => 0.0,
    }
}

fn im(item: &Item) -> f64 {
    if let Item::Complex(_, v) = *item { v } else { 0.0 }
}

impl Format {
    fn of(dtype: DType, items: &[Item]) -> Format {
        match dtype.category() {
            Category::Float => Format::Real(Column::of(items.iter().map(re))),
            Category::Complex => {
                Format::Complex(Column::of(items.iter().map(re)), Column::of(items.iter().map(im)))
            }
            _ => Format::Exact(items.iter().map(|&i| exact(i).len()).max().unwrap_or(1)),
        }
    }

    fn width(&self) -> usize {
        match self {
            Format::Exact(width) => *width,
            Format::Real(column) => column.width,
            Format::Complex(re, im) => re.width + im.width + 1,
        }
    }

    fn write(&self, item: Item) -> String {
        match self {
            Format::Exact(width) => format!("{:>width$}", exact(item)),
            Format::Real(column) => column.write(re(&item)),
            Format::Complex(real, imag) => {
                let part = imag.write(im(&item));
                let part = part.trim_start();
                let sign = if part.starts_with('-') { "" } else { "+" };
                format!("{}{sign}{part}j", real.write(re(&item)))
            }
        }
    }
}

struct Printer {
    format: Format,
    summarize: bool,
}

impl Printer {
    fn tensor(&self, items: &[Item], shape: &[usize], indent: usize) -> String {
        match shape {
            [] => self.format.write(items[0]),
            [_] => self.vector(items, indent),
            [size, rest @ ..] => {
                let stride = rest.iter().product::<usize>();
                let slices = edges(*size, self.summarize).into_iter();
                let slices = slices
                    .map(|i| self.tensor(&items[i * stride..(i + 1) * stride], rest, indent + 1));
                let mut slices: Vec<String> = slices.collect();
                if slices.len() < *size {
                    slices.insert(EDGE, "...".into());
                }
                let gap = format!(",{}{}", "\n".repeat(rest.len()), " ".repeat(indent + 1));
                format!("[{}]", slices.join(&gap))
            }
        }
    }

    fn vector(&self, items: &[Item], indent: usize) -> String {
        let kept = edges(items.len(), self.summarize);
        let mut texts: Vec<String> = kept.iter().map(|&i| self.format.write(items[i])).collect();
        if texts.len() < items.len() {
            texts.insert(EDGE, " ...".into());
        }
        let per_line = ((LINE - indent.min(LINE)) / (self.format.width() + 2)).max(1);
        let lines: Vec<String> = texts.chunks(per_line).map(|line| line.join(", ")).collect();
        format!("[{}]", lines.join(&format!(",\n{}", " ".repeat(indent + 1))))
    }
}
