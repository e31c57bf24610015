//! A row, its operands, and what they are filled with.

use num_complex::Complex;
use oxbridge::array::Array;
use oxbridge::backend::host::{HostArray, convert::convert};
use oxbridge::mesh::DeviceId;
use oxbridge::{Client, DType, Device, Result, Scalar, Shape, Value};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The call of a row.
pub type Apply = Arc<dyn Fn(&[Value]) -> Result<Vec<Value>> + Send + Sync>;

/// One row: an operation, its operands, and what the engines have to know.
#[derive(Clone)]
pub struct Case {
    /// The primitive that the row is about.
    pub prim: &'static str,
    /// The operands.
    pub operands: Vec<Operand>,
    /// The call.
    pub apply: Apply,
    /// A factor to the tolerance of the dtype.
    pub tol: f64,
    /// Whether derivatives are compared with differences.
    pub grad: bool,
    /// Whether derivatives of derivatives are, too.
    pub second: bool,
    tag: String,
}

impl Case {
    /// A row with one result.
    pub fn one(
        prim: &'static str,
        operands: impl Into<Vec<Operand>>,
        apply: impl Fn(&[Value]) -> Result<Value> + Send + Sync + 'static,
    ) -> Case {
        Case::many(prim, operands, move |values| Ok(vec![apply(values)?]))
    }

    /// A row with several results.
    pub fn many(
        prim: &'static str,
        operands: impl Into<Vec<Operand>>,
        apply: impl Fn(&[Value]) -> Result<Vec<Value>> + Send + Sync + 'static,
    ) -> Case {
        Case {
            prim,
            operands: operands.into(),
            apply: Arc::new(apply),
            tol: 1.0,
            grad: true,
            second: true,
            tag: String::new(),
        }
    }

    /// The same row with a word more in its id.
    pub fn tag(mut self, tag: impl Into<String>) -> Case {
        self.tag = tag.into();
        self
    }

    /// The same row with a tolerance `factor` times that of the dtype.
    pub fn tol(mut self, factor: f64, _reason: &str) -> Case {
        self.tol = factor;
        self
    }

    /// The same row, not differentiated.
    pub fn no_grad(mut self, _reason: &str) -> Case {
        self.grad = false;
        self
    }

    /// The same row, differentiated once only.
    pub fn no_second(mut self, _reason: &str) -> Case {
        self.second = false;
        self
    }

    /// The row's name: primitive, operands, tag.
    pub fn id(&self) -> String {
        let operands: Vec<String> = self.operands.iter().map(Operand::describe).collect();
        let tag = if self.tag.is_empty() { String::new() } else { format!(" {}", self.tag) };
        format!("{}({}){tag}", self.prim, operands.join(", "))
    }

    /// The operands' data of the `example`-th example.
    pub fn data(&self, example: u64) -> Vec<HostArray> {
        let seed = self.id().bytes().fold(example, |h, b| mix(h ^ u64::from(b)));
        let operands = self.operands.iter().enumerate();
        operands.map(|(i, o)| o.data(mix(seed ^ i as u64), example)).collect()
    }

    /// The results on the host for the given data.
    pub fn run(&self, data: &[HostArray]) -> Result<Vec<HostArray>> {
        let values = data.iter().map(place).collect::<Result<Vec<_>>>()?;
        (self.apply)(&values)?.iter().map(read).collect()
    }

    /// The same row with doubles in place of f32 and c64, or none if it has operands of less.
    pub fn doubled(&self) -> Option<Case> {
        let mut case = self.clone();
        for operand in &mut case.operands {
            operand.dtype = match operand.dtype {
                DType::F32 => DType::F64,
                DType::C64 => DType::C128,
                d if d.is_differentiable() && d.size() < 4 => return None,
                d => d,
            };
            if let Fill::Values(values) = &mut operand.fill {
                *values = convert(values, operand.dtype);
            }
        }
        Some(case)
    }
}

/// An operand: its type, and what it is filled with.
#[derive(Clone)]
pub struct Operand {
    /// The dtype.
    pub dtype: DType,
    /// The shape.
    pub shape: Shape,
    fill: Fill,
}

#[derive(Clone)]
enum Fill {
    Uniform(f64, f64),
    Values(HostArray),
}

/// An operand of uniform numbers: -2 to 2 for floats, -8 to 8 for integers (0 to 8 unsigned).
pub fn arg(dtype: DType, shape: impl Into<Shape>) -> Operand {
    let (low, high) = match dtype {
        d if d.is_unsigned() || d == DType::Bool => (0.0, 8.0),
        d if d.is_int() => (-8.0, 8.0),
        _ => (-2.0, 2.0),
    };
    Operand { dtype, shape: shape.into(), fill: Fill::Uniform(low, high) }
}

/// An operand of the given numbers, brought to `dtype`.
pub fn vals(dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> Operand {
    let shape = shape.into();
    let host = HostArray::from_slice(values, &shape).unwrap();
    Operand { dtype, shape, fill: Fill::Values(convert(&host, dtype)) }
}

/// An operand of the given Rust values.
pub fn exact<T: oxbridge::Element>(shape: impl Into<Shape>, values: &[T]) -> Operand {
    let shape = shape.into();
    let host = HostArray::from_slice(values, &shape).unwrap();
    Operand { dtype: T::DTYPE, shape, fill: Fill::Values(host) }
}

/// A one-dimensional operand of what is at the edge of a dtype: infinities, NaN, zeros of both
/// signs, the ends of the range.
pub fn edges(dtype: DType) -> Operand {
    let (low, high) = (Scalar::min_value(dtype), Scalar::max_value(dtype));
    let scalars: Vec<Scalar> = if dtype.is_differentiable() {
        let inf = f64::INFINITY;
        let plain = [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 100.0, inf, -inf, f64::NAN];
        let real = plain.iter().map(|&x| Scalar::from_f64(dtype, x));
        if dtype.is_complex() { real.collect() } else { real.chain(ends(dtype)).collect() }
    } else {
        let plain = [0, 1, 2, 3, 5, 7, 31, 64, 100];
        let some = plain.iter().map(|&x| Scalar::from_i64(dtype, x));
        some.chain([low, high, Scalar::from_i64(dtype, -1)]).collect()
    };
    let bytes: Vec<u8> = scalars.iter().flat_map(|s| s.bytes().to_vec()).collect();
    let shape = Shape::new(&[scalars.len()]);
    let host = HostArray::from_bytes(dtype, &shape, &bytes).unwrap();
    Operand { dtype, shape, fill: Fill::Values(host) }
}

/// The largest finite numbers of both signs.
fn ends(dtype: DType) -> [Scalar; 2] {
    let max = match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => 3.389_531_389_251_535_5e38,
        DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    };
    [Scalar::from_f64(dtype, max), Scalar::from_f64(dtype, -max)]
}

impl Operand {
    /// The same operand, uniform between `low` and `high`; of integers `high` is left out.
    pub fn range(mut self, low: f64, high: f64) -> Operand {
        self.fill = Fill::Uniform(low, high);
        self
    }

    fn describe(&self) -> String {
        format!("{}{}", self.dtype, self.shape)
    }

    fn data(&self, seed: u64, example: u64) -> HostArray {
        match &self.fill {
            Fill::Values(values) => rotated(values, example as usize),
            Fill::Uniform(low, high) => uniform(self.dtype, &self.shape, seed, *low, *high),
        }
    }
}

/// The elements of `x` in row-major order, moved on by `steps`, so that examples differ.
fn rotated(x: &HostArray, steps: usize) -> HostArray {
    let n = x.shape().size();
    if steps == 0 || n == 0 {
        return x.clone();
    }
    let whole = x.contiguous();
    let mut bytes = whole.contiguous_bytes().unwrap().to_vec();
    bytes.rotate_left((steps % n) * x.dtype().size());
    HostArray::from_bytes(x.dtype(), x.shape(), &bytes).unwrap()
}

/// Uniform numbers between `low` and `high`, the same for the same seed.
pub fn uniform(dtype: DType, shape: &Shape, seed: u64, low: f64, high: f64) -> HostArray {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        low + (high - low) * ((mix(state) >> 11) as f64 / (1u64 << 53) as f64)
    };
    let n = shape.size();
    if dtype.is_complex() {
        let data: Vec<Complex<f64>> = (0..n).map(|_| Complex::new(next(), next())).collect();
        return convert(&HostArray::from_slice(&data, shape).unwrap(), dtype);
    }
    let whole = !dtype.is_differentiable();
    let data: Vec<f64> = (0..n).map(|_| if whole { next().floor() } else { next() }).collect();
    if dtype == DType::Bool {
        let data: Vec<bool> = data.iter().map(|&x| x >= f64::midpoint(low, high)).collect();
        return HostArray::from_slice(&data, shape).unwrap();
    }
    convert(&HostArray::from_slice(&data, shape).unwrap(), dtype)
}

/// Spreads the bits of a number.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Tests that draw from the default generator, of which there is one, do it one after the other.
pub(crate) fn draws_alone() -> MutexGuard<'static, ()> {
    static DRAWS: Mutex<()> = Mutex::new(());
    DRAWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The host device that the engines run on, whatever the default device is.
pub fn host_device() -> &'static Device {
    static HOST: OnceLock<Device> = OnceLock::new();
    HOST.get_or_init(|| Client::host(1).device(0).unwrap())
}

thread_local! {
    static AT: RefCell<Option<DeviceId>> = const { RefCell::new(None) };
}

/// The device that the rows' operands are on, for rows that have to name it.
pub fn device_id() -> DeviceId {
    AT.with_borrow(|at| at.unwrap_or_else(|| host_device().id()))
}

/// Runs `f` with operands on `device`.
pub fn with_device<T>(device: &Device, f: impl FnOnce() -> T) -> T {
    AT.set(Some(device.id()));
    let out = f();
    AT.set(None);
    out
}

/// An array on the host device.
pub fn place(data: &HostArray) -> Result<Value> {
    Ok(Value::Array(Array::upload(data, host_device(), true)?))
}

/// The data of a result.
pub fn read(value: &Value) -> Result<HostArray> {
    value.array("read")?.to_host()
}
