//! Making tensors, and reading them back.

use super::wrap;
use crate::array::Array;
use crate::backend::Device;
use crate::backend::host::HostArray;
use crate::dtype::{DType, Element, Scalar};
use crate::error::Result;
use crate::ops;
use crate::shape::Shape;
use crate::trace::Value;
use crate::trace::cell::Tensor;

impl Tensor {
    /// A tensor on the default device with the elements of `data`, row-major.
    ///
    /// # Errors
    /// If the number of elements is not that of `shape`.
    #[track_caller]
    pub fn from_slice<T: Element>(data: &[T], shape: impl Into<Shape>) -> Result<Tensor> {
        let host = HostArray::from_slice(data, &shape.into());
        wrap(host.and_then(|host| upload(&host)))
    }

    /// Zeros.
    ///
    /// # Errors
    /// If the device refuses.
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        wrap(ops::full(Scalar::zero(dtype), &shape.into()))
    }

    /// The elements as Rust values, row-major; waits until they are there.
    ///
    /// # Errors
    /// If `T` does not stand for the dtype; inside of `jit`, where there are no values.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.value()?.concrete("to_vec")?.to_host()?.to_vec()
    }

    /// The one element.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; if there is not exactly one element.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        Ok(self.to_vec()?[0])
    }
}

fn upload(host: &HostArray) -> Result<Value> {
    Ok(Value::Array(Array::upload(host, &Device::default()?, false)?))
}
