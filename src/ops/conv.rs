//! Convolutions: `conv_general`, over up to three spatial axes, with strides, padding, dilation of
//! both operands and groups.

use super::convert;
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
pub use crate::backend::host::conv::ConvDims;
use crate::backend::host::conv::convolution as kernel;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::dot::{Precision, bilinear_jvp, check_product_dtypes, widen};
use crate::ops::shape::{move_axis, reshape};
use crate::ops::slice::reverse;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

/// The primitive `conv_general`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvGeneral {
    /// Axes, window and groups.
    pub dims: ConvDims,
    /// How exactly.
    pub precision: Precision,
    /// The dtype of sums and result.
    pub out: DType,
}

const NAME: &str = "conv_general";

#[cold]
fn fail<T>(kind: ErrorKind, text: String) -> Result<T> {
    Err(Error::new(kind, NAME, text))
}

/// Axis `src` split into `groups` and the rest, the groups first.
fn split_axis(x: &Value, src: usize, groups: usize) -> Result<Value> {
    let rest = x.shape()[src] / groups.max(1);
    reshape(x, &x.shape().with(src, rest).insert(src, groups))
}

/// Axis `src` merged into axis `dst`, counted without `src`, as its outer part.
fn merge_axis(x: &Value, src: usize, dst: usize) -> Result<Value> {
    let size = x.shape()[src];
    let rest = x.shape().remove(src);
    reshape(&move_axis(x, src, dst)?, &rest.with(dst, rest[dst] * size))
}

/// The size of an axis with `by - 1` holes between its elements.
fn dilated(size: usize, by: usize) -> i64 {
    if size == 0 { 0 } else { ((size - 1) * by + 1) as i64 }
}

/// Sizes along one spatial axis, dilated.
struct Sizes {
    lhs: i64,
    rhs: i64,
    out: i64,
    low: i64,
}

impl ConvGeneral {
    fn conv(&self, lhs: &Value, rhs: &Value, dims: &ConvDims) -> Result<Value> {
        conv_general(lhs, rhs, dims, self.precision, Some(self.out))
    }

    fn sizes(&self, lhs: &Aval, rhs: &Aval, out: &Aval) -> Vec<Sizes> {
        let d = &self.dims;
        let one = |i: usize| Sizes {
            lhs: dilated(lhs.shape()[d.lhs_spatial[i]], d.lhs_dilation[i]),
            rhs: dilated(rhs.shape()[d.rhs_spatial[i]], d.rhs_dilation[i]),
            out: dilated(out.shape()[d.out_spatial[i]], d.strides[i]),
            low: d.padding[i].0,
        };
        (0..d.lhs_spatial.len()).map(one).collect()
    }

    /// Spatial axes of the kernel whose reversal is `reversed`.
    fn kernel_axes(&self, reversed: bool) -> Vec<usize> {
        let axes = self.dims.rhs_spatial.iter().zip(&self.dims.window_reversal);
        axes.filter(|(_, r)| **r == reversed).map(|(&a, _)| a).collect()
    }

    /// The cotangent of the left operand: `ct` under the kernel turned around, where strides and the
    /// operand's dilation change places.
    fn back_lhs(&self, ct: &Value, lhs: &Aval, rhs: &Value) -> Result<Value> {
        let d = &self.dims;
        let padding = self.sizes(lhs, rhs.aval(), ct.aval()).into_iter().map(|s| {
            let before = s.rhs - s.low - 1;
            (before, s.lhs + s.rhs - 1 - s.out - before)
        });
        let groups = d.feature_groups * d.batch_groups;
        let mut kernel = convert(rhs, ct.dtype())?;
        if groups > 1 {
            // The groups go from the kernel's output features to its input features.
            kernel = split_axis(&kernel, d.rhs_out_feature, groups)?;
            kernel = merge_axis(&kernel, d.rhs_out_feature, d.rhs_in_feature)?;
        }
        let dims = ConvDims {
            lhs_batch: d.out_batch,
            lhs_feature: d.out_feature,
            lhs_spatial: d.out_spatial.clone(),
            rhs_out_feature: d.rhs_in_feature,
            rhs_in_feature: d.rhs_out_feature,
            rhs_spatial: d.rhs_spatial.clone(),
            out_batch: d.lhs_batch,
            out_feature: d.lhs_feature,
            out_spatial: d.lhs_spatial.clone(),
            strides: d.lhs_dilation.clone(),
            padding: padding.collect(),
            lhs_dilation: d.strides.clone(),
            rhs_dilation: d.rhs_dilation.clone(),
            window_reversal: vec![false; d.strides.len()],
            feature_groups: groups,
            batch_groups: 1,
        };
        let mut out = self.conv(ct, &reverse(&kernel, &self.kernel_axes(false))?, &dims)?;
        if d.batch_groups > 1 {
            out = split_axis(&out, d.lhs_feature, d.batch_groups)?;
            out = merge_axis(&out, d.lhs_feature, d.lhs_batch)?;
        }
        convert(&out, lhs.dtype())
    }

    /// The cotangent of the kernel: the left operand under `ct` as kernel, where batch and features
    /// change places, and strides and the kernel's dilation do.
    fn back_rhs(&self, ct: &Value, lhs: &Value, rhs: &Aval) -> Result<Value> {
        let d = &self.dims;
        let sizes = self.sizes(lhs.aval(), rhs, ct.aval());
        let padding = sizes.iter().map(|s| (s.low, s.out - s.lhs + s.rhs - s.low - 1));
        let dims = ConvDims {
            lhs_batch: d.lhs_feature,
            lhs_feature: d.lhs_batch,
            lhs_spatial: d.lhs_spatial.clone(),
            rhs_out_feature: d.out_feature,
            rhs_in_feature: d.out_batch,
            rhs_spatial: d.out_spatial.clone(),
            out_batch: d.rhs_in_feature,
            out_feature: d.rhs_out_feature,
            out_spatial: d.rhs_spatial.clone(),
            strides: d.rhs_dilation.clone(),
            padding: padding.collect(),
            lhs_dilation: d.lhs_dilation.clone(),
            rhs_dilation: d.strides.clone(),
            window_reversal: vec![false; d.strides.len()],
            feature_groups: d.batch_groups,
            batch_groups: d.feature_groups,
        };
        let out = self.conv(&convert(lhs, ct.dtype())?, ct, &dims)?;
        convert(&reverse(&out, &self.kernel_axes(true))?, rhs.dtype())
    }

    /// `x` with its mapped axis merged into axis `into`, below the groups that this one has.
    fn fold(x: &Value, mapped: usize, into: usize, groups: usize) -> Result<Value> {
        if groups == 1 {
            return merge_axis(x, mapped, into);
        }
        let x = split_axis(x, into + usize::from(mapped <= into), groups)?;
        let x = merge_axis(&x, mapped + usize::from(into < mapped), into + 1)?;
        merge_axis(&x, into, into)
    }

    fn batch_both(&self, x: &Value, y: &Value, at: (usize, usize)) -> Result<(Value, usize)> {
        let (mut dims, size) = (self.dims.clone(), x.shape()[at.0]);
        let lhs = if dims.batch_groups > 1 {
            dims.batch_groups *= size;
            merge_axis(x, at.0, dims.lhs_batch)?
        } else {
            dims.feature_groups *= size;
            merge_axis(x, at.0, dims.lhs_feature)?
        };
        let rhs = merge_axis(y, at.1, dims.rhs_out_feature)?;
        let out = self.conv(&lhs, &rhs, &dims)?;
        Ok((split_axis(&out, dims.out_feature, size)?, dims.out_feature))
    }

    fn batch_lhs(&self, x: &Value, y: &Value, at: usize) -> Result<(Value, usize)> {
        let (d, size) = (&self.dims, x.shape()[at]);
        let lhs = ConvGeneral::fold(x, at, d.lhs_batch, d.batch_groups)?;
        let out = self.conv(&lhs, y, d)?;
        Ok((split_axis(&out, d.out_batch, size)?, d.out_batch))
    }

    fn batch_rhs(&self, x: &Value, y: &Value, at: usize) -> Result<(Value, usize)> {
        let (d, size) = (&self.dims, y.shape()[at]);
        let groups = d.feature_groups * d.batch_groups;
        let rhs = ConvGeneral::fold(y, at, d.rhs_out_feature, groups)?;
        let mut out = split_axis(&self.conv(x, &rhs, d)?, d.out_feature, groups)?;
        out = split_axis(&out, d.out_feature + 1, size)?;
        Ok((merge_axis(&out, d.out_feature, d.out_feature + 1)?, d.out_feature))
    }

    fn check_axes(&self, lhs: &Aval, rhs: &Aval) -> Result<()> {
        let d = &self.dims;
        let count = d.strides.len();
        if lhs.rank() != count + 2 || rhs.rank() != count + 2 {
            let text =
                format!("lhs {lhs} and rhs {rhs} do not have {count} spatial axes and two more");
            return fail(ErrorKind::Shape, text);
        }
        if count > 3 {
            return fail(ErrorKind::Shape, format!("{count} spatial axes are more than three"));
        }
        let sides = [
            ("lhs", d.lhs_batch, d.lhs_feature, &d.lhs_spatial),
            ("rhs", d.rhs_out_feature, d.rhs_in_feature, &d.rhs_spatial),
            ("the result", d.out_batch, d.out_feature, &d.out_spatial),
        ];
        for (side, first, second, spatial) in sides {
            let mut axes = [&[first, second], spatial.as_slice()].concat();
            axes.sort_unstable();
            if !axes.iter().copied().eq(0..count + 2) {
                let text =
                    format!("axes {first}, {second} and {spatial:?} are not those of {side}");
                return fail(ErrorKind::Axis, text);
            }
        }
        let lengths = [d.padding.len(), d.lhs_dilation.len(), d.rhs_dilation.len()];
        if lengths != [count; 3] || d.window_reversal.len() != count {
            let text =
                format!("padding, dilations and reversal need {count} entries as strides have");
            return fail(ErrorKind::Value, text);
        }
        let steps = [&d.strides, &d.lhs_dilation, &d.rhs_dilation];
        if steps.into_iter().flatten().any(|&n| n == 0) {
            return fail(ErrorKind::Value, "a stride or dilation is 0".into());
        }
        Ok(())
    }

    fn check_groups(&self, lhs: &Aval, rhs: &Aval) -> Result<()> {
        let d = &self.dims;
        let (groups, images) = (d.feature_groups, d.batch_groups);
        if groups == 0 || images == 0 || (groups > 1 && images > 1) {
            let text = format!(
                "{groups} groups of features and {images} of the batch: one of them must be 1, and \
                 none 0"
            );
            return fail(ErrorKind::Value, text);
        }
        let (features, inner) = (lhs.shape()[d.lhs_feature], rhs.shape()[d.rhs_in_feature]);
        if features != inner * groups {
            let text = format!(
                "lhs {lhs} has {features} features along axis {}, but rhs {rhs} takes {inner} along \
                 axis {} for each of {groups} groups",
                d.lhs_feature, d.rhs_in_feature
            );
            return fail(ErrorKind::Shape, text);
        }
        let (out, batch) = (rhs.shape()[d.rhs_out_feature], lhs.shape()[d.lhs_batch]);
        if out % (groups * images) != 0 {
            let text = format!(
                "rhs {rhs} gives {out} features, which {} groups do not divide",
                groups * images
            );
            return fail(ErrorKind::Shape, text);
        }
        if batch % images != 0 {
            let text =
                format!("the batch of lhs {lhs} is {batch}, which {images} groups do not divide");
            return fail(ErrorKind::Shape, text);
        }
        Ok(())
    }
}

/// `[b, 0, 1, f]`: what stands on each axis.
fn layout(names: [&str; 2], first: usize, second: usize, spatial: &[usize]) -> String {
    let mut words = vec![String::new(); spatial.len() + 2];
    words[first] = names[0].into();
    words[second] = names[1].into();
    for (i, &axis) in spatial.iter().enumerate() {
        words[axis] = i.to_string();
    }
    hlo::list(words)
}

impl Primitive for ConvGeneral {
    fn name(&self) -> &'static str {
        NAME
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (lhs, rhs) = (&operands[0], &operands[1]);
        self.check_axes(lhs, rhs)?;
        self.check_groups(lhs, rhs)?;
        check_product_dtypes(NAME, lhs, rhs, self.out)?;
        Ok(smallvec![Aval::new(self.out, self.dims.out_shape(lhs.shape(), rhs.shape()))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let d = &self.dims;
        let attrs = format!(
            "dimension_numbers = #stablehlo.conv<{}x{}->{}>, window_strides = {}, padding = {}, \
             lhs_dilation = {}, rhs_dilation = {}, window_reversal = {}, feature_group_count = {} : \
             i64, batch_group_count = {} : i64, {}",
            layout(["b", "f"], d.lhs_batch, d.lhs_feature, &d.lhs_spatial),
            layout(["o", "i"], d.rhs_out_feature, d.rhs_in_feature, &d.rhs_spatial),
            layout(["b", "f"], d.out_batch, d.out_feature, &d.out_spatial),
            hlo::i64_array(&d.strides),
            hlo::pairs(&d.padding),
            hlo::i64_array(&d.lhs_dilation),
            hlo::i64_array(&d.rhs_dilation),
            hlo::bool_array(d.window_reversal.iter().copied()),
            d.feature_groups,
            d.batch_groups,
            self.precision.hlo()
        );
        let operands = widen(cx, operands, self.out);
        Ok(cx.op("stablehlo.convolution", &operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![kernel(&operands[0], &operands[1], &self.dims, self.out)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        if !self.out.is_differentiable() {
            return Ok((smallvec![bind_one(self, primals)?], smallvec![None]));
        }
        bilinear_jvp(primals, tangents, |x, y| self.conv(x, y, &self.dims))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None]) };
        match (&operands[0], &operands[1]) {
            (Operand::Linear(lhs), Operand::Known(rhs)) => {
                Ok(smallvec![Some(self.back_lhs(ct, lhs, rhs)?), None])
            }
            (Operand::Known(lhs), Operand::Linear(rhs)) => {
                Ok(smallvec![None, Some(self.back_rhs(ct, lhs, rhs)?)])
            }
            _ => Err(not_linear(self)),
        }
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, y) = (&operands[0], &operands[1]);
        let (out, axis) = match (axes[0], axes[1]) {
            (Some(l), Some(r)) => self.batch_both(x, y, (l, r))?,
            (Some(l), None) => self.batch_lhs(x, y, l)?,
            (None, r) => self.batch_rhs(x, y, r.unwrap_or(0))?,
        };
        Ok((smallvec![out], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        let d = &self.dims;
        format!(
            "dims={}x{}->{}, strides={:?}, padding={:?}, lhs_dilation={:?}, rhs_dilation={:?}, \
             groups=({}, {}), out={}",
            layout(["b", "f"], d.lhs_batch, d.lhs_feature, &d.lhs_spatial),
            layout(["o", "i"], d.rhs_out_feature, d.rhs_in_feature, &d.rhs_spatial),
            layout(["b", "f"], d.out_batch, d.out_feature, &d.out_spatial),
            d.strides,
            d.padding,
            d.lhs_dilation,
            d.rhs_dilation,
            d.feature_groups,
            d.batch_groups,
            self.out
        )
    }
}

/// The convolution of `lhs` with the kernel `rhs` (which is not reversed unless `dims` says so).
/// Source: StableHLO `convolution`.
///
/// **Dtypes:** both operands have one, which is the result's unless `out` names a wider one of the
/// same kind; f16 and bf16 are summed in f32.
///
/// # Errors
/// If dtypes differ or are bool, axes do not match the shapes, features or groups do not fit, or
/// there are more than three spatial axes.
pub fn conv_general(
    lhs: &Value,
    rhs: &Value,
    dims: &ConvDims,
    precision: Precision,
    out: Option<DType>,
) -> Result<Value> {
    let out = out.unwrap_or(lhs.dtype());
    let prim = ConvGeneral { dims: dims.clone(), precision, out };
    bind_one(&prim, &[lhs.clone(), rhs.clone()])
}
