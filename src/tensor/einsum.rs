//! `einsum`: products and sums by names of dimensions.

use super::promotion::{Operand, first_of, result_type};
use super::wrap;
use crate::backend::host::dot::DotDims;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::call::fused;
use crate::ops::precision::matmul_precision;
use crate::shape::Shape;
use crate::trace::Value;
use crate::trace::cell::Tensor;
use smallvec::smallvec;
use std::borrow::Cow;
use std::fmt;

/// The name of a dimension: a letter, or a place of the ellipsis counted from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Dots(usize),
    Letter(char),
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Dots(place) => write!(f, "dim {place} from the end of `...`"),
            Label::Letter(letter) => write!(f, "`{letter}`"),
        }
    }
}

/// A value with the names of its dimensions.
#[derive(Clone, Debug)]
struct Named {
    value: Value,
    labels: Vec<Label>,
}

impl Tensor {
    /// The sum of products that `equation` names: dimensions with one letter go together, and are
    /// summed over unless the part after `->` has them. Without `->`, letters that stand once make
    /// the result, in alphabetic order; `...` stands for any leading dimensions, which broadcast.
    ///
    /// Operands are multiplied from left to right.
    ///
    /// # Errors
    /// If the equation does not fit the operands, or sizes of one letter differ.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 4, 1)?.view([2, 2])?;
    /// assert_eq!(Tensor::einsum("ij,kj->ik", &[&x, &x])?.to_vec::<i64>()?, [1, 3, 3, 13]);
    /// assert_eq!(Tensor::einsum("ii", &[&x])?.item::<i64>()?, 3);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.einsum](https://docs.pytorch.org/docs/stable/generated/torch.einsum.html).
    #[track_caller]
    pub fn einsum<T: AsRef<Tensor>>(equation: &str, operands: &[T]) -> Result<Tensor> {
        wrap(einsum(equation, operands))
    }
}

#[cold]
fn bad(equation: &str, why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Value, "einsum", format!("`{equation}`: {}", why.into()))
}

fn einsum<T: AsRef<Tensor>>(equation: &str, tensors: &[T]) -> Result<Value> {
    let operands: Vec<Operand<'_>> = tensors.iter().map(|t| t.as_ref().into()).collect();
    let dtype = result_type(&operands).map_err(|e| e.in_op("einsum"))?;
    let values: Vec<Value> = tensors.iter().map(|t| t.as_ref().value()).collect::<Result<_>>()?;
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let params: Vec<i64> =
        std::iter::once(dtype as i64).chain(text.bytes().map(i64::from)).collect();
    first_of("einsum", fused("einsum", &params, &values, |v| Ok(smallvec![run(&text, v, dtype)?])))
}

fn run(equation: &str, values: &[Value], dtype: DType) -> Result<Value> {
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (equation, None),
    };
    let parts: Vec<&str> = inputs.split(',').collect();
    if parts.len() != values.len() {
        let why = format!("names {} operands, there are {}", parts.len(), values.len());
        return Err(bad(equation, why));
    }
    let mut named = Vec::with_capacity(values.len());
    let mut all = Vec::new();
    for (part, value) in parts.iter().zip(values) {
        let labels = labels(equation, part, Some(value.rank()))?;
        all.extend(&labels);
        named.push(diagonals(equation, Named { value: ops::convert(value, dtype)?, labels })?);
    }
    let dots = all.iter().filter_map(|l| if let Label::Dots(i) = l { Some(i + 1) } else { None });
    let dots = dots.max().unwrap_or(0);
    let out = match output {
        Some(output) => {
            let plain = output.chars().filter(char::is_ascii_alphabetic).count();
            let dots = if output.contains("...") { dots } else { 0 };
            labels(equation, output, Some(plain + dots))?
        }
        None => implicit(&all, dots),
    };
    if let Some(missing) = out.iter().find(|l| !all.contains(l)) {
        return Err(bad(equation, format!("no operand has {missing} of the result")));
    }
    let mut named = named.into_iter();
    let mut acc = named.next().ok_or_else(|| bad(equation, "there are no operands"))?;
    while let Some(next) = named.next() {
        let needed =
            |l: &Label| out.contains(l) || named.as_slice().iter().any(|n| n.labels.contains(l));
        acc = contract(equation, acc, next, &needed)?;
    }
    let acc = sum_out(acc, |l| out.contains(l))?;
    let place = |l: &Label| acc.labels.iter().position(|a| a == l);
    let perm: Vec<usize> = out.iter().filter_map(place).collect();
    ops::permute(&acc.value, &perm)
}

/// The result's labels where the equation names none.
fn implicit(all: &[Label], dots: usize) -> Vec<Label> {
    let once = |l: &&Label| all.iter().filter(|a| a == l).count() == 1;
    let mut letters: Vec<Label> =
        all.iter().filter(|l| matches!(l, Label::Letter(_))).filter(once).copied().collect();
    letters.sort_unstable();
    (0..dots).rev().map(Label::Dots).chain(letters).collect()
}

fn labels(equation: &str, part: &str, rank: Option<usize>) -> Result<Vec<Label>> {
    let letters = part.replacen("...", "", 1);
    if let Some(odd) = letters.chars().find(|c| !c.is_ascii_alphabetic()) {
        return Err(bad(equation, format!("`{odd}` names no dimension")));
    }
    let count = letters.len();
    let rank = rank.unwrap_or(count);
    let dots = rank.checked_sub(count).filter(|&n| n == 0 || part.contains("..."));
    let Some(dots) = dots else {
        return Err(bad(equation, format!("`{part}` does not name {rank} dimensions")));
    };
    let before = part.find("...").unwrap_or(count);
    let letters: Vec<Label> = letters.chars().map(Label::Letter).collect();
    let (head, tail) = letters.split_at(before);
    Ok(head
        .iter()
        .copied()
        .chain((0..dots).rev().map(Label::Dots))
        .chain(tail.iter().copied())
        .collect())
}

/// Each label that stands twice in one operand becomes one dimension: the diagonal.
fn diagonals(equation: &str, mut x: Named) -> Result<Named> {
    while let Some((a, b)) = twice(&x.labels) {
        let shape = x.value.shape().clone();
        if shape[a] != shape[b] {
            let why = format!("{} has sizes {} and {}", x.labels[a], shape[a], shape[b]);
            return Err(bad(equation, why));
        }
        let on = ops::eq(&ops::iota(DType::I32, &shape, a)?, &ops::iota(DType::I32, &shape, b)?)?;
        let kept = ops::select(&on, &x.value, &ops::full_like(&x.value, 0.0)?)?;
        x.value = ops::reduce_sum(&kept, &[b])?;
        x.labels.remove(b);
    }
    Ok(x)
}

fn twice(labels: &[Label]) -> Option<(usize, usize)> {
    labels.iter().enumerate().find_map(|(b, l)| {
        let a = labels[..b].iter().position(|other| other == l)?;
        Some((a, b))
    })
}

/// `x` summed over the dimensions that are not needed.
fn sum_out(x: Named, needed: impl Fn(&Label) -> bool) -> Result<Named> {
    let axes: Vec<usize> = (0..x.labels.len()).filter(|&i| !needed(&x.labels[i])).collect();
    let value = ops::reduce_sum(&x.value, &axes)?;
    Ok(Named { value, labels: x.labels.into_iter().filter(|l| needed(l)).collect() })
}

/// `x` without its dimensions of size 1 that `y` has with another size.
fn without_ones(x: &Named, y: &Named) -> Result<Named> {
    let wider =
        |l: &Label| y.labels.iter().position(|o| o == l).is_some_and(|i| y.value.shape()[i] != 1);
    let keep: Vec<usize> =
        (0..x.labels.len()).filter(|&i| x.value.shape()[i] != 1 || !wider(&x.labels[i])).collect();
    let shape: Shape = keep.iter().map(|&i| x.value.shape()[i]).collect();
    let labels = keep.iter().map(|&i| x.labels[i]).collect();
    Ok(Named { value: ops::reshape(&x.value, &shape)?, labels })
}

/// The product of two operands, summed over what nothing needs any more.
fn contract(equation: &str, x: Named, y: Named, needed: &impl Fn(&Label) -> bool) -> Result<Named> {
    let (x, y) = (without_ones(&x, &y)?, without_ones(&y, &x)?);
    let x = sum_out(x, |l| needed(l) || y.labels.contains(l))?;
    let y = sum_out(y, |l| needed(l) || x.labels.contains(l))?;
    let mut dims = DotDims {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![],
        rhs_contract: vec![],
    };
    for (i, label) in x.labels.iter().enumerate() {
        let Some(j) = y.labels.iter().position(|l| l == label) else { continue };
        let (a, b) = (x.value.shape()[i], y.value.shape()[j]);
        if a != b {
            return Err(bad(equation, format!("{label} has sizes {a} and {b}")));
        }
        if needed(label) {
            dims.lhs_batch.push(i);
            dims.rhs_batch.push(j);
        } else {
            dims.lhs_contract.push(i);
            dims.rhs_contract.push(j);
        }
    }
    let free_x = dims.lhs_free(x.labels.len());
    let free_y: Vec<usize> = (0..y.labels.len())
        .filter(|j| !dims.rhs_batch.contains(j) && !dims.rhs_contract.contains(j))
        .collect();
    let left = dims.lhs_batch.iter().chain(&free_x).map(|&i| x.labels[i]);
    let labels = left.chain(free_y.iter().map(|&j| y.labels[j])).collect();
    let value = ops::dot_general(&x.value, &y.value, &dims, matmul_precision(), None)?;
    Ok(Named { value, labels })
}
