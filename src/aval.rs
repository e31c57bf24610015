//! [`Aval`]: the type of a value, that is, its dtype, shape and sharding.

use crate::dtype::DType;
use crate::mesh::NamedSharding;
use crate::shape::Shape;
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

/// A list of avals: operands or results.
pub type Avals = SmallVec<[Aval; 2]>;

/// The type of a value: dtype, shape, sharding. Prints as `f32[2,3]` or `f32[8@data,3]`.
///
/// Cheap to clone; the hash is worked out once.
#[derive(Clone)]
pub struct Aval(Arc<AvalInner>);

struct AvalInner {
    hash: u64,
    dtype: DType,
    shape: Shape,
    sharding: Option<NamedSharding>,
}

static SCALARS: LazyLock<Vec<Aval>> = LazyLock::new(|| {
    DType::ALL.iter().map(|&dtype| Aval::build(dtype, Shape::scalar(), None)).collect()
});

impl Aval {
    /// The type of an array of `dtype` and `shape` on one device.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Aval {
        Aval::build(dtype, shape.into(), None)
    }

    /// The type of a scalar of `dtype`; made once.
    pub fn scalar(dtype: DType) -> Aval {
        SCALARS[dtype as usize].clone()
    }

    fn build(dtype: DType, shape: Shape, sharding: Option<NamedSharding>) -> Aval {
        let mut hasher = FxHasher::default();
        (dtype, &shape, &sharding).hash(&mut hasher);
        Aval(Arc::new(AvalInner { hash: hasher.finish(), dtype, shape, sharding }))
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.shape.rank()
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        self.0.shape.size()
    }

    /// How the array is split over a mesh; none for an array on one device.
    pub fn sharding(&self) -> Option<&NamedSharding> {
        self.0.sharding.as_ref()
    }

    /// The same type with another dtype.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Aval {
        if dtype == self.dtype() {
            return self.clone();
        }
        Aval::build(dtype, self.shape().clone(), self.0.sharding.clone())
    }

    /// The same dtype with another shape and no sharding.
    #[must_use]
    pub fn with_shape(&self, shape: impl Into<Shape>) -> Aval {
        Aval::build(self.dtype(), shape.into(), None)
    }

    /// The same type with another sharding.
    #[must_use]
    pub fn with_sharding(&self, sharding: Option<NamedSharding>) -> Aval {
        if sharding.as_ref() == self.sharding() {
            return self.clone();
        }
        Aval::build(self.dtype(), self.shape().clone(), sharding)
    }

    /// The same type without its sharding.
    #[must_use]
    pub fn unsharded(&self) -> Aval {
        self.with_sharding(None)
    }

    /// The hash, worked out when the aval was made.
    pub fn hash_code(&self) -> u64 {
        self.0.hash
    }

    /// The type in StableHLO's text: `tensor<2x3xf32>`.
    pub fn hlo(&self) -> String {
        let mut out = String::with_capacity(24);
        self.write_hlo(&mut out);
        out
    }

    /// Appends [`Aval::hlo`].
    pub fn write_hlo(&self, out: &mut String) {
        out.push_str("tensor<");
        for &d in self.shape().iter() {
            crate::shape::push_number(out, d);
            out.push('x');
        }
        out.push_str(self.dtype().hlo_name());
        out.push('>');
    }

    /// Whether dtype and shape are equal; shardings may differ.
    pub fn same_elements(&self, other: &Aval) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.dtype() == other.dtype() && self.shape() == other.shape())
    }
}

impl PartialEq for Aval {
    fn eq(&self, other: &Aval) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.hash == other.0.hash
                && self.dtype() == other.dtype()
                && self.shape() == other.shape()
                && self.sharding() == other.sharding())
    }
}

impl Eq for Aval {}

impl Hash for Aval {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Display for Aval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype())?;
        for (axis, d) in self.shape().iter().enumerate() {
            if axis > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
            for name in self.sharding().map_or(&[][..], |s| s.spec().axis(axis)) {
                write!(f, "@{name}")?;
            }
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Aval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_in_errors_and_in_hlo() {
        let aval = Aval::new(DType::F32, [2, 3]);
        assert_eq!(aval.to_string(), "f32[2,3]");
        assert_eq!(aval.hlo(), "tensor<2x3xf32>");
        assert_eq!(Aval::scalar(DType::Bool).to_string(), "bool[]");
        assert_eq!(Aval::scalar(DType::U32).hlo(), "tensor<ui32>");
        assert_eq!(aval, Aval::new(DType::F32, [2, 3]));
    }
}
