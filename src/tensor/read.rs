//! What a tensor is, and its elements as Rust values.

use super::{placed, wrap};
use crate::backend::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::shape::{self, Shape};
use crate::trace::cell::Tensor;

impl Tensor {
    /// The sizes.
    pub fn shape(&self) -> Shape {
        self.aval().shape().clone()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.aval().dtype()
    }

    /// The number of dimensions.
    pub fn dim(&self) -> usize {
        self.aval().rank()
    }

    /// The size of one dimension; a negative one counts from the end.
    ///
    /// # Errors
    /// If there is no such dimension.
    #[track_caller]
    pub fn size(&self, dim: i64) -> Result<usize> {
        let shape = self.shape();
        let axis = placed(shape::axis("size", dim, shape.rank()))?;
        match shape.get(axis) {
            Some(&size) => Ok(size),
            None => placed(Err(Error::new(ErrorKind::Axis, "size", "a scalar has no dimensions"))),
        }
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.aval().size()
    }

    /// Whether the dtype is real floating point.
    pub fn is_floating_point(&self) -> bool {
        self.dtype().is_float()
    }

    /// The device that holds the data; of a sharded tensor the first one.
    ///
    /// # Errors
    /// Inside of `jit` and `vmap`, where there are no data.
    #[track_caller]
    pub fn device(&self) -> Result<Device> {
        placed(self.value().and_then(|value| match value.concrete("device")?.place().device {
            Some(id) => Device::by_id(id),
            None => Device::default(),
        }))
    }

    /// The elements as Rust values, row-major; waits until they are there.
    ///
    /// # Errors
    /// If `T` does not stand for the dtype; inside of `jit`, where there are no values.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        placed(self.value().and_then(|v| v.concrete("to_vec")?.to_host()?.to_vec()))
    }

    /// The elements as an `ndarray` array; waits until they are there.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    #[track_caller]
    pub fn to_ndarray<T: Element>(&self) -> Result<ndarray::ArrayD<T>> {
        let data = self.to_vec()?;
        let shape = ndarray::IxDyn(&self.shape());
        placed(
            ndarray::ArrayD::from_shape_vec(shape, data)
                .map_err(|e| Error::new(ErrorKind::Shape, "to_ndarray", e.to_string())),
        )
    }

    /// The one element, whatever the number of dimensions; waits until it is there.
    ///
    /// It is converted to `T`, but never to a lower category: a float is not read as an integer.
    ///
    /// # Errors
    /// If there is not exactly one element; if `T` cannot hold the dtype's category; inside of
    /// `jit`, where there are no values.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.5f32], [1, 1])?;
    /// assert_eq!(x.item::<f64>()?, 1.5);
    /// assert!(x.item::<i64>().is_err());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.item](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.item.html).
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        placed(self.one_element())
    }

    fn one_element<T: Element>(&self) -> Result<T> {
        let aval = self.aval();
        if aval.size() != 1 {
            let text = format!("takes a tensor of one element, not {aval}");
            return Err(Error::new(ErrorKind::Shape, "item", text));
        }
        if T::DTYPE.category() < aval.dtype().category() {
            let text = format!("an element of {aval} is not read as {}", T::DTYPE);
            return Err(Error::new(ErrorKind::DType, "item", text)
                .help(format!("ask for `item::<{}>`, or convert with `to_dtype`", aval.dtype())));
        }
        let array = self.value()?.concrete("item")?;
        let scalar = match array.as_literal() {
            Some(scalar) => scalar,
            None => array.to_host()?.scalar()?,
        };
        Ok(T::from_bytes(scalar.convert(T::DTYPE).bytes())[0])
    }

    /// The elements by value in another dtype: floats go to integers towards zero, anything but
    /// zero is `true`. The derivative passes through between floats.
    ///
    /// # Errors
    /// If complex numbers should become real.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.7f32, -1.7], [2])?;
    /// assert_eq!(x.to_dtype(DType::I64)?.to_vec::<i64>()?, [1, -1]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.to](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html).
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        wrap(self.value().and_then(|x| ops::convert(&x, dtype)))
    }

    /// `self` in the dtype of `other`.
    #[track_caller]
    pub fn type_as(&self, other: &Tensor) -> Result<Tensor> {
        self.to_dtype(other.dtype())
    }
}
