//! Element-wise layers without parameters.

use super::module::Layer;
use crate::error::Result;
use crate::tensor::unary::Approximate;
use crate::trace::cell::Tensor;
use oxbridge_derive::Module;

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident $torch:literal |$x:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        ///
        #[doc = concat!(
            "**Source:** [torch.nn.", $torch, "](https://docs.pytorch.org/docs/stable/generated/torch.nn.",
            $torch, ".html)."
        )]
        #[derive(Clone, Copy, Debug, Default, Module)]
        pub struct $name;

        impl Layer for $name {
            #[track_caller]
            fn forward(&self, $x: &Tensor) -> Result<Tensor> {
                $body
            }
        }
    )*};
}

activations! {
    /// The input, or 0 below 0.
    ReLU "ReLU" |x| x.relu();
    /// The input times the normal distribution at it.
    GELU "GELU" |x| x.gelu(Approximate::None);
    /// The input times its logistic function.
    SiLU "SiLU" |x| x.silu();
    /// The hyperbolic tangent.
    Tanh "Tanh" |x| x.tanh();
    /// The logistic function.
    Sigmoid "Sigmoid" |x| x.sigmoid();
    /// The input as it is.
    Identity "Identity" |x| Ok(x.clone());
}

/// All axes from the second on as one.
///
/// **Source:** [torch.nn.Flatten](https://docs.pytorch.org/docs/stable/generated/torch.nn.Flatten.html).
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Flatten;

impl Layer for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.flatten(1, -1)
    }
}
