//! Convolutions over one and two dims.

use super::init::Init;
use super::module::Layer;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::conv::Conv;
use crate::trace::cell::Tensor;
use oxbridge_derive::Module;

macro_rules! convolutions {
    ($($name:ident $n:literal $method:ident $dims:literal)*) => {$(
        #[doc = concat!("The convolution `", stringify!($method), "` with a weight and a bias.")]
        ///
        #[doc = concat!("**Shapes:** `[n, in, ", $dims, "]` gives `[n, out, ", $dims, "]`, smaller by \
            what the windows leave out.")]
        ///
        #[doc = concat!(
            "**Source:** [torch.nn.", stringify!($name),
            "](https://docs.pytorch.org/docs/stable/generated/torch.nn.", stringify!($name), ".html)."
        )]
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            #[doc = concat!("`[out, in / groups, ", $dims, "]`.")]
            pub weight: Tensor,
            /// `[out]`.
            pub bias: Option<Tensor>,
            /// The distance of neighbouring windows.
            #[tree(static)]
            pub stride: [usize; $n],
            /// Zeros on both sides of each dim.
            #[tree(static)]
            pub padding: [usize; $n],
            /// The distance of neighbouring elements of a window.
            #[tree(static)]
            pub dilation: [usize; $n],
            /// Groups of channels that do not see each other.
            #[tree(static)]
            pub groups: usize,
        }

        impl $name {
            /// A layer of the given window with a bias, both uniform within `1 / sqrt(fan_in)`.
            ///
            /// # Errors
            /// [`ErrorKind::Value`] if the groups do not divide the channels, or there are none.
            pub fn new(
                inputs: usize,
                outputs: usize,
                window: [usize; $n],
                options: Conv<$n>,
                init: &mut Init,
            ) -> Result<$name> {
                let shape = weight_shape(inputs, outputs, &window, options.groups)?;
                let (weight, bias) = init.weight_and_bias(shape, true)?;
                let Conv { stride, padding, dilation, groups } = options;
                Ok($name { weight, bias, stride, padding, dilation, groups })
            }

            /// The same layer without its bias.
            #[must_use]
            pub fn without_bias(self) -> $name {
                $name { bias: None, ..self }
            }
        }

        impl Layer for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let options = Conv {
                    stride: self.stride,
                    padding: self.padding,
                    dilation: self.dilation,
                    groups: self.groups,
                };
                x.$method(&self.weight, self.bias.as_ref(), options)
            }
        }
    )*};
}

convolutions! {
    Conv1d 1 conv1d "length"
    Conv2d 2 conv2d "height, width"
}

fn weight_shape(
    inputs: usize,
    outputs: usize,
    window: &[usize],
    groups: usize,
) -> Result<Vec<usize>> {
    if groups == 0 || !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
        let text =
            format!("{groups} groups do not divide {inputs} input and {outputs} output channels");
        return Err(Error::new(ErrorKind::Value, "conv", text));
    }
    Ok([outputs, inputs / groups].into_iter().chain(window.iter().copied()).collect())
}
