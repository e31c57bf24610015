//! Convolutions over one, two or three spatial dimensions, in torch's layout (channels first).

use super::promotion::first_of;
use super::wrap;
use crate::backend::host::conv::ConvDims;
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::call::fused;
use crate::ops::precision::matmul_precision;
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use smallvec::smallvec;

/// Options of the convolutions over `N` spatial dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Conv<const N: usize> {
    /// The distance of neighbouring windows.
    pub stride: [usize; N],
    /// Zeros on both sides of each dimension.
    pub padding: [usize; N],
    /// The distance of neighbouring elements of a window.
    pub dilation: [usize; N],
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

impl<const N: usize> Default for Conv<N> {
    fn default() -> Self {
        Conv { stride: [1; N], padding: [0; N], dilation: [1; N], groups: 1 }
    }
}

/// Options of the transposed convolutions over `N` spatial dimensions.
#[derive(Clone, Copy, Debug)]
pub struct ConvTranspose<const N: usize> {
    /// The distance in the result of neighbouring elements of the input.
    pub stride: [usize; N],
    /// What is cut off on both sides of each dimension of the result.
    pub padding: [usize; N],
    /// What is added at the end of each dimension of the result.
    pub output_padding: [usize; N],
    /// The distance of neighbouring elements of a window.
    pub dilation: [usize; N],
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

impl<const N: usize> Default for ConvTranspose<N> {
    fn default() -> Self {
        ConvTranspose {
            stride: [1; N],
            padding: [0; N],
            output_padding: [0; N],
            dilation: [1; N],
            groups: 1,
        }
    }
}

/// Torch's layout: batch and channels first.
fn plain<const N: usize>(groups: usize) -> ConvDims {
    ConvDims { feature_groups: groups, ..ConvDims::new(N) }
}

/// Input (with or without a batch), weight and perhaps bias, checked.
struct Case {
    op: &'static str,
    operands: Values,
    batched: bool,
}

impl Case {
    fn of<const N: usize>(
        op: &'static str,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        groups: usize,
        positive: [[usize; N]; 2],
    ) -> Result<Case> {
        let (x, w) = (x.value()?, weight.value()?);
        let fail = |why: String| {
            let text = format!("input {} and weight {} do not fit: {why}", x.aval(), w.aval());
            Err(Error::new(ErrorKind::Shape, op, text))
        };
        if w.rank() != N + 2 || !(N + 1..=N + 2).contains(&x.rank()) {
            return fail(format!(
                "the input needs {} or {} dims, the weight {}",
                N + 1,
                N + 2,
                N + 2
            ));
        }
        let channels = x.shape()[x.rank() - N - 1];
        let transposed = op.starts_with("conv_transpose");
        let wanted = if transposed { w.shape()[0] } else { w.shape()[1] * groups };
        if groups == 0 || channels != wanted || !w.shape()[0].is_multiple_of(groups) {
            return fail(format!(
                "{channels} channels in {groups} groups, the weight is of {wanted}"
            ));
        }
        if positive.iter().flatten().any(|&n| n == 0) {
            let text = "stride and dilation must be positive";
            return Err(Error::new(ErrorKind::Value, op, text));
        }
        let out = if transposed { w.shape()[1] * groups } else { w.shape()[0] };
        let bias = bias.map(Tensor::value).transpose()?;
        if let Some(bias) = bias.as_ref().filter(|b| b.shape().dims() != [out]) {
            return fail(format!("the bias is {}, the result has {out} channels", bias.aval()));
        }
        let batched = x.rank() == N + 2;
        let operands = [x, w].into_iter().chain(bias).collect();
        Ok(Case { op, operands, batched })
    }

    /// One program: the product of input and weight that `dims` say, and the bias.
    fn run(
        self,
        params: &[i64],
        dims: &ConvDims,
        weight: impl FnOnce(&Value) -> Result<Value>,
    ) -> Result<Value> {
        let first = self.operands[0].dtype();
        let dtype = self.operands.iter().try_fold(first, |d, v| d.promote(v.dtype()))?;
        let key: Vec<i64> = [dtype as i64].into_iter().chain(params.iter().copied()).collect();
        first_of(
            self.op,
            fused(self.op, &key, &self.operands, |v| {
                let x = ops::convert(&v[0], dtype)?;
                let x = if self.batched { x } else { ops::reshape(&x, &x.shape().insert(0, 1))? };
                let w = weight(&ops::convert(&v[1], dtype)?)?;
                let mut out = ops::conv_general(&x, &w, dims, matmul_precision(), None)?;
                if let Some(bias) = v.get(2) {
                    let bias = ops::convert(bias, dtype)?;
                    out = ops::add(&out, &ops::broadcast_in_dim(&bias, out.shape(), &[1])?)?;
                }
                let shape = out.shape().remove(0);
                Ok(smallvec![if self.batched { out } else { ops::reshape(&out, &shape)? }])
            }),
        )
    }
}

fn params<const N: usize>(sizes: &[[usize; N]], groups: usize) -> Vec<i64> {
    sizes.iter().flatten().chain([&groups]).map(|&n| n as i64).collect()
}

fn conv<const N: usize>(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: Conv<N>,
) -> Result<Value> {
    let Conv { stride, padding, dilation, groups } = options;
    let case = Case::of(op, x, weight, bias, groups, [stride, dilation])?;
    let dims = ConvDims {
        strides: stride.to_vec(),
        padding: padding.iter().map(|&p| (p as i64, p as i64)).collect(),
        rhs_dilation: dilation.to_vec(),
        ..plain::<N>(groups)
    };
    case.run(&params(&[stride, padding, dilation], groups), &dims, |w| Ok(w.clone()))
}

fn conv_transpose<const N: usize>(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvTranspose<N>,
) -> Result<Value> {
    let ConvTranspose { stride, padding, output_padding, dilation, groups } = options;
    let case = Case::of(op, x, weight, bias, groups, [stride, dilation])?;
    let window = weight.shape();
    let edge = |i: usize| {
        let reach = (dilation[i] * window[i + 2].saturating_sub(1)) as i64;
        let low = reach - padding[i] as i64;
        (low, low + output_padding[i] as i64)
    };
    let dims = ConvDims {
        padding: (0..N).map(edge).collect(),
        lhs_dilation: stride.to_vec(),
        rhs_dilation: dilation.to_vec(),
        window_reversal: vec![true; N],
        ..plain::<N>(groups)
    };
    let key = params(&[stride, padding, output_padding, dilation], groups);
    case.run(&key, &dims, |w| {
        // From `[in, out / groups, ..]` to `[out, in / groups, ..]`.
        let (inner, outer) = (w.shape()[0] / groups, w.shape()[1]);
        let split = ops::reshape(w, &w.shape().with(0, inner).insert(0, groups))?;
        let swapped = ops::move_axis(&split, 2, 1)?;
        ops::reshape(&swapped, &swapped.shape().remove(0).with(0, groups * outer))
    })
}

macro_rules! convolutions {
    ($($n:literal $name:ident $transpose:ident $dims:literal)*) => {
        impl Tensor {$(
            #[doc = concat!(
                "The convolution (without reversal of the window) of `self` `[batch, in, ", $dims,
                "]`, batch being optional, with `weight` `[out, in / groups, ", $dims,
                "]`, plus `bias` `[out]`."
            )]
            ///
            /// **Dtypes:** promoted; half precision is summed in `f32`.
            ///
            /// # Errors
            /// If the shapes do not fit, or a stride or dilation is 0.
            ///
            #[doc = concat!(
                "**Source:** [torch.nn.functional.", stringify!($name),
                "](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.",
                stringify!($name), ".html)."
            )]
            #[track_caller]
            pub fn $name(
                &self,
                weight: &Tensor,
                bias: Option<&Tensor>,
                options: Conv<$n>,
            ) -> Result<Tensor> {
                wrap(conv(stringify!($name), self, weight, bias, options))
            }

            #[doc = concat!(
                "The transpose of [`Tensor::", stringify!($name), "`] in its input: `self` `[batch, \
                 in, ", $dims, "]`, batch being optional, and `weight` `[in, out / groups, ", $dims,
                "]`, plus `bias` `[out]`."
            )]
            ///
            /// # Errors
            /// If the shapes do not fit, or a stride or dilation is 0.
            #[track_caller]
            pub fn $transpose(
                &self,
                weight: &Tensor,
                bias: Option<&Tensor>,
                options: ConvTranspose<$n>,
            ) -> Result<Tensor> {
                wrap(conv_transpose(stringify!($transpose), self, weight, bias, options))
            }
        )*}
    };
}

convolutions! {
    1 conv1d conv_transpose1d "length"
    2 conv2d conv_transpose2d "height, width"
    3 conv3d conv_transpose3d "depth, height, width"
}
