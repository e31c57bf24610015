//! Pooling of images.

use super::module::Layer;
use crate::backend::host::window::WindowDims;
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::tensor::placed;
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use oxbridge_derive::Module;

/// The largest element under a window, for each channel; padding counts as minus infinity.
///
/// **Shapes:** `[n, c, height, width]`, `n` being optional, gives the same with
/// `(size + 2 padding - window) / stride + 1` for each size.
///
/// # Example
/// ```
/// use oxbridge::nn::MaxPool2d;
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], [1, 1, 2, 2])?;
/// assert_eq!(MaxPool2d::new(2).forward(&x)?.to_vec::<f32>()?, [4.0]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.nn.MaxPool2d](https://docs.pytorch.org/docs/stable/generated/torch.nn.MaxPool2d.html).
#[derive(Clone, Debug, Module)]
pub struct MaxPool2d {
    /// The size of the window.
    #[tree(static)]
    pub window: [usize; 2],
    /// The distance of neighbouring windows.
    #[tree(static)]
    pub stride: [usize; 2],
    /// What is added on both sides; at most half of the window.
    #[tree(static)]
    pub padding: [usize; 2],
}

/// The mean of the elements under a window, for each channel; padding counts as zeros.
///
/// **Shapes:** as [`MaxPool2d`].
///
/// **Source:** [torch.nn.AvgPool2d](https://docs.pytorch.org/docs/stable/generated/torch.nn.AvgPool2d.html).
#[derive(Clone, Debug, Module)]
pub struct AvgPool2d {
    /// The size of the window.
    #[tree(static)]
    pub window: [usize; 2],
    /// The distance of neighbouring windows.
    #[tree(static)]
    pub stride: [usize; 2],
    /// What is added on both sides; at most half of the window.
    #[tree(static)]
    pub padding: [usize; 2],
}

macro_rules! pools {
    ($($name:ident $op:literal $body:expr;)*) => {$(
        impl $name {
            /// Square windows side by side, without padding.
            pub fn new(size: usize) -> $name {
                $name { window: [size; 2], stride: [size; 2], padding: [0; 2] }
            }
        }

        impl Layer for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let window = Window { size: self.window, stride: self.stride, padding: self.padding };
                placed(window.pool($op, x, $body))
            }
        }
    )*};
}

pools! {
    MaxPool2d "max_pool2d" ops::reduce_window_max;
    AvgPool2d "avg_pool2d" average;
}

fn average(x: &Value, dims: &WindowDims) -> Result<Value> {
    let sum = ops::reduce_window_sum(x, dims)?;
    let count: usize = dims.window.iter().product();
    ops::div(&sum, &ops::full_like(&sum, count as f64)?)
}

#[derive(Clone, Copy)]
struct Window {
    size: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
}

impl Window {
    fn pool(
        self,
        op: &'static str,
        x: &Tensor,
        body: impl FnOnce(&Value, &WindowDims) -> Result<Value>,
    ) -> Result<Tensor> {
        let x = x.value()?;
        self.check(op, &x)?;
        let key = [self.size, self.stride, self.padding].concat();
        let key: Vec<i64> = key.into_iter().map(|n| n as i64).collect();
        let dims = self.dims(x.rank());
        let outs =
            ops::call::fused(op, &key, &[x], |v| Ok(Values::from_iter([body(&v[0], &dims)?])));
        Ok(Tensor::from_value(outs?.remove(0)))
    }

    fn dims(self, rank: usize) -> WindowDims {
        let lead = vec![1; rank - 2];
        let mut dims =
            WindowDims::new(&[&lead[..], &self.size].concat(), &[&lead[..], &self.stride].concat());
        for (axis, padding) in self.padding.into_iter().enumerate() {
            dims.padding[rank - 2 + axis] = (padding as i64, padding as i64);
        }
        dims
    }

    fn check(self, op: &'static str, x: &Value) -> Result<()> {
        let Window { size, stride, padding } = self;
        let bad = |kind, text: String| Err(Error::new(kind, op, text));
        if !matches!(x.rank(), 3 | 4) || !x.dtype().is_float() {
            let text = format!(
                "takes floats [n, c, height, width] or [c, height, width], not {}",
                x.aval()
            );
            return bad(ErrorKind::Shape, text);
        }
        if size.contains(&0) || stride.contains(&0) {
            return bad(
                ErrorKind::Value,
                format!("window {size:?} and stride {stride:?} must not be 0"),
            );
        }
        let sizes = &x.shape().dims()[x.rank() - 2..];
        for axis in 0..2 {
            if 2 * padding[axis] > size[axis] {
                let text = format!("padding {padding:?} is more than half of window {size:?}");
                return bad(ErrorKind::Value, text);
            }
            if sizes[axis] + 2 * padding[axis] < size[axis] {
                let text =
                    format!("window {size:?} is larger than {} with padding {padding:?}", x.aval());
                return bad(ErrorKind::Shape, text);
            }
        }
        Ok(())
    }
}
