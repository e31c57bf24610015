//! In-place methods: they write the storage that all handles and views share.
//!
//! Inside of `jit` a write to a tensor from outside becomes a hidden output. Each method gives a
//! handle on the tensor it wrote, so that calls chain as in torch.

use super::promotion::{Operand, expand};
use super::{operators, placed};
use crate::dtype::{Category, DType};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::trace::Value;
use crate::trace::cell::Tensor;
use std::ops::{AddAssign, BitAndAssign, BitOrAssign, DivAssign, MulAssign, RemAssign, SubAssign};

/// Whether torch writes a result of dtype `from` into a tensor of dtype `to`.
fn can_cast(from: DType, to: DType) -> bool {
    from.category() <= to.category() && !(to == DType::Bool && from.category() > Category::Bool)
}

impl Tensor {
    /// Writes `result`, which has torch's form of the result out of place.
    pub(super) fn store(&self, op: &'static str, result: Result<Tensor>) -> Result<Tensor> {
        let value = result?.value()?;
        let to = self.aval();
        if !can_cast(value.dtype(), to.dtype()) {
            let text = format!("the result {} cannot be written into {to}", value.aval());
            return Err(Error::new(ErrorKind::DType, op, text)
                .help(format!("use `{}`, or convert with `to_dtype`", op.trim_end_matches('_'))));
        }
        if value.shape() != to.shape() {
            let text = format!("the result {} does not fit into {to}", value.aval());
            return Err(Error::new(ErrorKind::Shape, op, text)
                .note("an in-place method keeps the shape; only the other operand broadcasts"));
        }
        self.set_value(ops::convert(&value, to.dtype())?).map_err(|e| e.in_op(op))?;
        Ok(self.clone())
    }

    /// Writes the elements of `src`, broadcast to the shape of `self` and converted to its dtype.
    ///
    /// # Errors
    /// If the shape does not broadcast, or complex numbers should become real.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::zeros([2, 2], DType::F32)?;
    /// x.copy_(&Tensor::from_slice(&[1i64, 2], [2])?)?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 1.0, 2.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.copy_](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.copy_.html).
    #[track_caller]
    pub fn copy_(&self, src: &Tensor) -> Result<Tensor> {
        placed(self.copy_value(src).map(|()| self.clone()))
    }

    fn copy_value(&self, src: &Tensor) -> Result<()> {
        let (to, value) = (self.aval(), src.value()?);
        let shape = crate::shape::broadcast("copy_", to.shape(), value.shape())?;
        if shape != *to.shape() {
            let text = format!("{} does not fit into {to}", value.aval());
            return Err(Error::new(ErrorKind::Shape, "copy_", text));
        }
        self.set_value(expand(&ops::convert(&value, to.dtype())?, &shape)?)
    }

    /// Writes `value` everywhere.
    ///
    /// **Source:** [torch.Tensor.fill_](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.fill_.html).
    #[track_caller]
    pub fn fill_<'t>(&'t self, value: impl Into<Operand<'t>>) -> Result<Tensor> {
        let filled = self.full_like(value);
        placed(self.store("fill_", filled))
    }

    /// Writes zeros everywhere.
    ///
    /// **Source:** [torch.Tensor.zero_](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.zero_.html).
    #[track_caller]
    pub fn zero_(&self) -> Result<Tensor> {
        placed(self.store("zero_", self.zeros_like()))
    }

    /// Writes [`Tensor::clamp`] of `self`.
    #[track_caller]
    pub fn clamp_<'t>(
        &'t self,
        min: impl Into<Operand<'t>>,
        max: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        placed(self.store("clamp_", self.clamp(min, max)))
    }

    /// Writes [`Tensor::lerp`] of `self`.
    #[track_caller]
    pub fn lerp_<'t>(&'t self, end: &'t Tensor, weight: impl Into<Operand<'t>>) -> Result<Tensor> {
        placed(self.store("lerp_", self.lerp(end, weight)))
    }

    /// Writes [`Tensor::addcmul`] of `self`.
    #[track_caller]
    pub fn addcmul_<'t>(
        &'t self,
        tensor1: &'t Tensor,
        tensor2: &'t Tensor,
        value: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        placed(self.store("addcmul_", self.addcmul(tensor1, tensor2, value)))
    }

    /// Writes [`Tensor::addcdiv`] of `self`.
    #[track_caller]
    pub fn addcdiv_<'t>(
        &'t self,
        tensor1: &'t Tensor,
        tensor2: &'t Tensor,
        value: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        placed(self.store("addcdiv_", self.addcdiv(tensor1, tensor2, value)))
    }

    /// `self` with `value` where `mask` holds; `mask` broadcasts to the shape of `self`.
    ///
    /// # Errors
    /// If the mask is not bool, or does not broadcast.
    ///
    /// **Source:** [torch.Tensor.masked_fill](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.masked_fill.html).
    #[track_caller]
    pub fn masked_fill<'t>(
        &'t self,
        mask: &'t Tensor,
        value: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        let fill = match value.into() {
            Operand::Scalar(scalar) if can_cast(scalar.dtype(), self.dtype()) => {
                Tensor::scalar_of(scalar.convert(self.dtype()))
            }
            Operand::Scalar(scalar) => Tensor::scalar_of(scalar),
            Operand::Tensor(tensor) => tensor.clone(),
        };
        if !can_cast(fill.dtype(), self.dtype()) || fill.dim() > 0 {
            let text = format!("{} cannot fill {}", fill.aval(), self.aval());
            return placed(Err(Error::new(ErrorKind::DType, "masked_fill", text)));
        }
        super::arithmetic::where_(mask, &fill, self)?.to_dtype(self.dtype())
    }

    fn scalar_of(scalar: crate::Scalar) -> Tensor {
        Tensor::from_value(Value::scalar(scalar))
    }

    /// Writes `value` where `mask` holds.
    #[track_caller]
    pub fn masked_fill_<'t>(
        &'t self,
        mask: &'t Tensor,
        value: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        placed(self.store("masked_fill_", self.masked_fill(mask, value)))
    }
}

macro_rules! binary {
    ($($name:ident $plain:ident)*) => {
        impl Tensor {$(
            #[doc = concat!("Writes [`Tensor::", stringify!($plain), "`] of `self` and `rhs`.")]
            ///
            /// # Errors
            /// If the result's shape is not that of `self`, or its dtype is of a higher category.
            #[track_caller]
            pub fn $name<'t>(&'t self, rhs: impl Into<Operand<'t>>) -> Result<Tensor> {
                placed(self.store(stringify!($name), self.$plain(rhs)))
            }
        )*}
    };
}

binary! {
    add_ add sub_ sub mul_ mul div_ div floor_divide_ floor_divide remainder_ remainder fmod_ fmod
    pow_ pow clamp_min_ clamp_min clamp_max_ clamp_max copysign_ copysign
    bitwise_and_ bitwise_and bitwise_or_ bitwise_or bitwise_xor_ bitwise_xor
}

macro_rules! unary {
    ($($name:ident $plain:ident)*) => {
        impl Tensor {$(
            #[doc = concat!("Writes [`Tensor::", stringify!($plain), "`] of `self`.")]
            ///
            /// # Errors
            /// If the result's dtype is of a higher category: integers do not hold floats.
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                placed(self.store(stringify!($name), self.$plain()))
            }
        )*}
    };
}

unary! {
    neg_ neg abs_ abs exp_ exp log_ log sqrt_ sqrt rsqrt_ rsqrt square_ square
    reciprocal_ reciprocal sin_ sin cos_ cos tan_ tan tanh_ tanh sigmoid_ sigmoid relu_ relu
    silu_ silu floor_ floor ceil_ ceil round_ round trunc_ trunc erf_ erf
}

macro_rules! assign {
    ($($trait:ident $op:ident $method:ident [$($rhs:ty)*])*) => {$($(
        impl $trait<$rhs> for Tensor {
            #[doc = concat!("[`Tensor::", stringify!($method), "`] as an operator: writes the storage.")]
            ///
            /// # Panics
            /// With the text of the error, if the method gives one.
            #[track_caller]
            fn $op(&mut self, rhs: $rhs) {
                operators::done(self.$method(rhs));
            }
        }
    )*)*};
}

assign! {
    AddAssign add_assign add_ [&Tensor f64 f32 i64 i32]
    SubAssign sub_assign sub_ [&Tensor f64 f32 i64 i32]
    MulAssign mul_assign mul_ [&Tensor f64 f32 i64 i32]
    DivAssign div_assign div_ [&Tensor f64 f32 i64 i32]
    RemAssign rem_assign remainder_ [&Tensor f64 f32 i64 i32]
    BitAndAssign bitand_assign bitwise_and_ [&Tensor bool]
    BitOrAssign bitor_assign bitwise_or_ [&Tensor bool]
}
