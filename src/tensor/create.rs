//! Making tensors.

use super::promotion::{Kind, Operand, elementwise, expand, first_of};
use super::{placed, wrap};
use crate::array::{Array, Place};
use crate::aval::Aval;
use crate::backend::Device;
use crate::backend::host::HostArray;
use crate::dtype::{DType, Element, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::call::fused;
use crate::ops::{self, full_like};
use crate::shape::Shape;
use crate::trace::cell::Tensor;
use crate::trace::{Value, autograd};
use smallvec::smallvec;

impl Tensor {
    /// A tensor on the default device with the elements of `data`, row-major.
    ///
    /// # Errors
    /// If the number of elements is not that of `shape`.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// assert_eq!(x.to_string(), "tensor([[1., 2.],\n        [3., 4.]])");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn from_slice<T: Element>(data: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
        let host = HostArray::from_slice(data, &shape.into());
        wrap(host.and_then(upload))
    }

    /// A tensor of one dimension with the elements of `data`.
    #[track_caller]
    pub fn from_vec<T: Element>(data: Vec<T>) -> Result<Tensor> {
        Tensor::from_slice(&data, [data.len()])
    }

    /// A tensor that has a type and no data, as torch's on the device `meta`: for
    /// [`Jit::warm_up`](crate::transforms::Jit::warm_up), `lower` and
    /// [`eval_shape`](crate::transforms::eval_shape). [`shard`](Tensor::shard) and
    /// [`to_device`](Tensor::to_device) say where the data would lie.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::meta([32, 10], DType::F32);
    /// assert_eq!(x.aval().to_string(), "f32[32,10]");
    /// assert_eq!(*x.to_vec::<f32>().unwrap_err().kind(), ErrorKind::NotConcrete);
    /// ```
    ///
    /// **Source:** [meta device](https://docs.pytorch.org/docs/stable/meta.html); `jax.ShapeDtypeStruct`.
    #[track_caller]
    pub fn meta(shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let place = Place { device: None, committed: false };
        Tensor::from_value(Array::meta(Aval::new(dtype, shape), place).into())
    }

    /// The tensor's type, sharding and place, without its data.
    ///
    /// # Errors
    /// [`ErrorKind::NotConcrete`] for a traced tensor.
    #[track_caller]
    pub fn to_meta(&self) -> Result<Tensor> {
        placed(self.value().and_then(|value| {
            let array = value.array("to_meta")?;
            Ok(Tensor::from_value(Array::meta(array.aval().clone(), array.place()).into()))
        }))
    }

    /// A tensor without dimensions that holds `value`, in the dtype of its Rust type.
    ///
    /// It follows the other operands to their device.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// assert_eq!(Tensor::scalar(2.5f32).item::<f32>()?, 2.5);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_value(Value::scalar(Scalar::new(value)))
    }

    /// A tensor on the default device with a copy of an `ndarray` array.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let a = ndarray::arr2(&[[1i64, 2], [3, 4]]);
    /// let x = Tensor::from_ndarray(&a)?;
    /// assert_eq!(x.to_ndarray::<i64>()?, a.into_dyn());
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn from_ndarray<T, S, D>(array: &ndarray::ArrayBase<S, D>) -> Result<Tensor>
    where
        T: Element,
        S: ndarray::Data<Elem = T>,
        D: ndarray::Dimension,
    {
        let shape = Shape::from(array.shape());
        match array.as_slice() {
            Some(slice) => Tensor::from_slice(slice, shape),
            None => Tensor::from_slice(&array.iter().copied().collect::<Vec<T>>(), shape),
        }
    }

    /// Zeros.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// **Source:** [torch.zeros](https://docs.pytorch.org/docs/stable/generated/torch.zeros.html).
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        wrap(ops::full(Scalar::zero(dtype), &shape.into()))
    }

    /// Ones.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// **Source:** [torch.ones](https://docs.pytorch.org/docs/stable/generated/torch.ones.html).
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        wrap(ops::full(Scalar::one(dtype), &shape.into()))
    }

    /// `value` everywhere; the program is the same for every value.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// assert_eq!(Tensor::full([2], 3i64, DType::F32)?.to_vec::<f32>()?, [3.0, 3.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.full](https://docs.pytorch.org/docs/stable/generated/torch.full.html).
    #[track_caller]
    pub fn full<'t>(
        shape: impl Into<Shape>,
        value: impl Into<Operand<'t>>,
        dtype: DType,
    ) -> Result<Tensor> {
        let make = || expand(&ops::convert(&value.into().value()?, dtype)?, &shape.into());
        wrap(make())
    }

    /// Zeros of the shape and dtype of `self`.
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Tensor> {
        Tensor::zeros(self.shape(), self.dtype())
    }

    /// Ones of the shape and dtype of `self`.
    #[track_caller]
    pub fn ones_like(&self) -> Result<Tensor> {
        Tensor::ones(self.shape(), self.dtype())
    }

    /// `value` everywhere, in the shape and dtype of `self`.
    #[track_caller]
    pub fn full_like<'t>(&self, value: impl Into<Operand<'t>>) -> Result<Tensor> {
        Tensor::full(self.shape(), value, self.dtype())
    }

    /// The numbers `start, start + step, …` before `end`; `i64` if all three are integers, else
    /// `f32`.
    ///
    /// # Errors
    /// If `step` is 0 or leads away from `end`.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// assert_eq!(Tensor::arange(0, 5, 2)?.to_vec::<i64>()?, [0, 2, 4]);
    /// assert_eq!(Tensor::arange(0.0, 1.0, 0.5)?.to_vec::<f32>()?, [0.0, 0.5]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.arange](https://docs.pytorch.org/docs/stable/generated/torch.arange.html).
    #[track_caller]
    pub fn arange<N: Into<Scalar>>(start: N, end: N, step: N) -> Result<Tensor> {
        let (start, end, step) = (start.into(), end.into(), step.into());
        let whole = start.dtype().is_int() && end.dtype().is_int() && step.dtype().is_int();
        wrap(arange(start, end, step, if whole { DType::I64 } else { DType::F32 }))
    }

    /// `steps` numbers from `start` to `end`, both included, evenly apart, as `f32`.
    ///
    /// **Source:** [torch.linspace](https://docs.pytorch.org/docs/stable/generated/torch.linspace.html).
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// assert_eq!(Tensor::linspace(0.0, 1.0, 3)?.to_vec::<f32>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn linspace(start: f64, end: f64, steps: usize) -> Result<Tensor> {
        wrap(linspace(start, end, steps))
    }

    /// The identity matrix: ones on the diagonal of `n` rows and `m` columns.
    ///
    /// **Source:** [torch.eye](https://docs.pytorch.org/docs/stable/generated/torch.eye.html).
    #[track_caller]
    pub fn eye(n: usize, m: usize, dtype: DType) -> Result<Tensor> {
        let outs = fused("eye", &[n as i64, m as i64, dtype as i64], &[], |_| {
            let shape = Shape::from([n, m]);
            let rows = ops::iota(DType::I32, &shape, 0)?;
            let on = ops::eq(&rows, &ops::iota(DType::I32, &shape, 1)?)?;
            Ok(smallvec![ops::convert(&on, dtype)?])
        });
        wrap(first_of("eye", outs))
    }

    /// 1 at the class that each element names, 0 elsewhere: `[..]` gives `[.., classes]` of `i64`.
    ///
    /// **Unlike torch:** `num_classes` is asked for, and a class outside of it gives zeros.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[2i64, 0], [2])?;
    /// assert_eq!(x.one_hot(3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.nn.functional.one_hot](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.one_hot.html).
    #[track_caller]
    pub fn one_hot(&self, num_classes: usize) -> Result<Tensor> {
        wrap(self.value().and_then(|x| one_hot(&x, num_classes)))
    }

    /// The complex numbers with real parts `self` and imaginary parts `imag`.
    ///
    /// **Source:** [torch.complex](https://docs.pytorch.org/docs/stable/generated/torch.complex.html).
    #[track_caller]
    pub fn complex(&self, imag: &Tensor) -> Result<Tensor> {
        wrap(elementwise("complex", Kind::OneFloat, &[], &[self.into(), imag.into()], |v| {
            ops::complex(&v[0], &v[1])
        }))
    }

    /// The data on another device; `self`'s own data if they are there already.
    ///
    /// # Errors
    /// If the device refuses, inside of a transform, or if the tensor requires grad.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        placed(self.value().and_then(|value| {
            let recorded = autograd::graded(&value).is_some();
            let array = match recorded {
                true => value.concrete("to_device")?,
                false => value.array("to_device")?.clone(),
            };
            if array.place().device == Some(device.id()) && array.aval().sharding().is_none() {
                return Ok(Tensor::from_value(value.clone()));
            }
            if recorded && autograd::is_grad_enabled() {
                return Err(not_recorded(&value));
            }
            if array.is_meta() {
                let place = Place { device: Some(device.id()), committed: true };
                return Ok(Tensor::from_value(Array::meta(array.aval().unsharded(), place).into()));
            }
            let moved = Array::upload(array.to_host()?, device, true)?;
            Ok(Tensor::from_value(Value::Array(moved)))
        }))
    }
}

#[cold]
fn not_recorded(value: &Value) -> Error {
    let text = format!("the move of {} that requires grad is not recorded", value.aval());
    Error::new(ErrorKind::Autograd, "to_device", text)
        .help("move it before it requires grad, or move `detach` of it")
}

/// A host array as a value on the default device.
fn upload(host: HostArray) -> Result<Value> {
    Ok(Value::Array(Array::upload(host, &Device::default()?, false)?))
}

fn one_hot(x: &Value, classes: usize) -> Result<Value> {
    if !x.dtype().is_int() {
        return Err(Error::new(
            ErrorKind::DType,
            "one_hot",
            format!("takes integers, not {}", x.aval()),
        ));
    }
    let outs = fused("one_hot", &[classes as i64], std::slice::from_ref(x), |v| {
        let shape = v[0].shape().insert(v[0].rank(), classes);
        let axes: Vec<usize> = (0..v[0].rank()).collect();
        let spread = ops::broadcast_in_dim(&v[0], &shape, &axes)?;
        let class = ops::iota(v[0].dtype(), &shape, v[0].rank())?;
        Ok(smallvec![ops::convert(&ops::eq(&spread, &class)?, DType::I64)?])
    });
    first_of("one_hot", outs)
}

fn arange(start: Scalar, end: Scalar, step: Scalar, dtype: DType) -> Result<Value> {
    let count = if dtype == DType::I64 {
        let (s, e, d) = (start.to_i64().into(), end.to_i64().into(), step.to_i64().into());
        count_ints(s, e, d).map(|n| n as usize)
    } else {
        let n = ((end.to_f64() - start.to_f64()) / step.to_f64()).ceil();
        (n >= 0.0 && n.is_finite()).then_some(n as usize)
    };
    let Some(count) = count else {
        let text = format!("step {step} does not lead from {start} to {end}");
        return Err(Error::new(ErrorKind::Value, "arange", text));
    };
    // Floats are computed in f64, so that the last digits are right in f32.
    let work = if dtype == DType::I64 { DType::I64 } else { DType::F64 };
    let operands = [Value::scalar(start.convert(work)), Value::scalar(step.convert(work))];
    let outs = fused("arange", &[count as i64, dtype as i64], &operands, |v| {
        let i = ops::iota(work, &Shape::from([count]), 0)?;
        let (start, step) = (expand(&v[0], i.shape())?, expand(&v[1], i.shape())?);
        Ok(smallvec![ops::convert(&ops::add(&start, &ops::mul(&i, &step)?)?, dtype)?])
    });
    first_of("arange", outs)
}

fn count_ints(start: i128, end: i128, step: i128) -> Option<i128> {
    if step == 0 || (end - start).signum() == -step.signum() {
        return None;
    }
    Some((end - start + step - step.signum()) / step)
}

fn linspace(start: f64, end: f64, steps: usize) -> Result<Value> {
    let step = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
    let operands = [start, end, step].map(|n| Value::scalar(Scalar::new(n)));
    let outs = fused("linspace", &[steps as i64], &operands, |v| {
        let i = ops::iota(DType::F64, &Shape::from([steps]), 0)?;
        let [start, end, step] = [0, 1, 2].map(|k| expand(&v[k], i.shape()));
        let (start, end, step) = (start?, end?, step?);
        // Each half is counted from its own end, so that both ends are met exactly.
        let low = ops::add(&start, &ops::mul(&i, &step)?)?;
        let left = ops::sub(&full_like(&i, steps.saturating_sub(1) as f64)?, &i)?;
        let high = ops::sub(&end, &ops::mul(&left, &step)?)?;
        let first_half = ops::lt(&i, &full_like(&i, steps.div_ceil(2) as f64)?)?;
        Ok(smallvec![ops::convert(&ops::select(&first_half, &low, &high)?, DType::F32)?])
    });
    first_of("linspace", outs)
}
