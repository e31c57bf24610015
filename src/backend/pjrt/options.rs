//! What a program is compiled with, and its form as XLA's `CompileOptionsProto`.
//!
//! Only the fields that this crate sets are declared here. Their numbers are those of
//! `xla/pjrt/proto/compile_options.proto` and of `DeviceAssignmentProto` in `xla/xla_data.proto`.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

use prost::Message;

use crate::error::{Error, ErrorKind, Result};

/// How to compile a program: on which devices, and with which of XLA's flags.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompileOptions {
    /// How many times the whole program runs side by side.
    pub replicas: usize,
    /// Into how many parts the partitioner cuts the program.
    pub partitions: usize,
    /// The ids of the devices, replica by replica, partitions within one; empty for XLA's choice.
    pub devices: Vec<i32>,
    /// Whether the program carries Shardy (`sdy`) shardings.
    pub shardy: bool,
    /// Whether the partitioner may choose the shardings of the outputs.
    pub propagate_outputs: bool,
    /// Whether one executable serves any single device; it then has no device assignment.
    pub portable: bool,
    /// XLA flags for this program alone, for example `xla_cpu_enable_fast_math`.
    pub overrides: Vec<(String, OverrideValue)>,
}

impl Default for CompileOptions {
    /// One replica, one partition, on the device that XLA takes.
    fn default() -> CompileOptions {
        CompileOptions {
            replicas: 1,
            partitions: 1,
            devices: Vec::new(),
            shardy: false,
            propagate_outputs: false,
            portable: false,
            overrides: Vec::new(),
        }
    }
}

/// The value of an XLA flag.
#[derive(Clone, Debug)]
pub enum OverrideValue {
    /// Text, also for enums.
    String(String),
    /// A switch.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number; compared and hashed by its bits.
    Float(f64),
}

/// XLA flags by name, in order of their names.
pub type Overrides = Vec<(String, OverrideValue)>;

/// Sets one flag, in place of an earlier value.
pub fn set_override(overrides: &mut Overrides, name: &str, value: OverrideValue) {
    match overrides.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
        Ok(i) => overrides[i].1 = value,
        Err(i) => overrides.insert(i, (name.to_owned(), value)),
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident,)*) => {$(
        impl From<$from> for OverrideValue {
            fn from(value: $from) -> OverrideValue {
                OverrideValue::$variant(value.into())
            }
        }
    )*};
}

from! {
    bool => Bool,
    i32 => Int,
    i64 => Int,
    f64 => Float,
    &str => String,
    String => String,
}

impl PartialEq for OverrideValue {
    fn eq(&self, other: &OverrideValue) -> bool {
        match (self, other) {
            (OverrideValue::String(a), OverrideValue::String(b)) => a == b,
            (OverrideValue::Bool(a), OverrideValue::Bool(b)) => a == b,
            (OverrideValue::Int(a), OverrideValue::Int(b)) => a == b,
            (OverrideValue::Float(a), OverrideValue::Float(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

impl Eq for OverrideValue {}

impl fmt::Display for OverrideValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverrideValue::String(v) => f.write_str(v),
            OverrideValue::Bool(v) => write!(f, "{v}"),
            OverrideValue::Int(v) => write!(f, "{v}"),
            OverrideValue::Float(v) => write!(f, "{v:?}"),
        }
    }
}

impl Hash for OverrideValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            OverrideValue::String(v) => v.hash(state),
            OverrideValue::Bool(v) => v.hash(state),
            OverrideValue::Int(v) => v.hash(state),
            OverrideValue::Float(v) => v.to_bits().hash(state),
        }
    }
}

impl CompileOptions {
    /// The same options with the flags that a platform's programs need to follow StableHLO: on CPU
    /// `max` and `min` would else drop NaN, and a quotient be a product with a rounded reciprocal.
    #[must_use]
    pub fn exact_on(mut self, platform: &str) -> CompileOptions {
        if platform.eq_ignore_ascii_case("cpu") {
            for flag in ["xla_cpu_enable_fast_min_max", "xla_cpu_enable_fast_math"] {
                self.overrides.push((flag.into(), OverrideValue::Bool(false)));
            }
        }
        self
    }

    /// Options for a program that is cut over `devices`, with Shardy shardings.
    pub fn spmd(devices: Vec<i32>) -> CompileOptions {
        CompileOptions {
            partitions: devices.len(),
            devices,
            shardy: true,
            ..CompileOptions::default()
        }
    }

    /// That the counts fit the device list.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if a count is 0, if the list is neither empty nor has one device for
    /// each partition of each replica, if a device stands in it twice, or if a portable executable
    /// names devices.
    pub fn check(&self) -> Result<()> {
        let fail = |text: String| Err(Error::new(ErrorKind::Device, "compile", text));
        let (replicas, partitions, named) = (self.replicas, self.partitions, self.devices.len());
        if replicas == 0 || partitions == 0 {
            return fail(format!("{replicas} replicas of {partitions} partitions are no program"));
        }
        if named != 0 && replicas.checked_mul(partitions) != Some(named) {
            return fail(format!(
                "{replicas} replicas of {partitions} partitions need as many devices, but {named} \
                 are named"
            ));
        }
        if self.portable && (named != 0 || replicas != 1 || partitions != 1) {
            return fail("a portable executable has one device and names none".to_owned());
        }
        let mut sorted = self.devices.clone();
        sorted.sort_unstable();
        match sorted.windows(2).find(|w| w[0] == w[1]) {
            Some(w) => fail(format!("device {} is named twice", w[0])),
            None => Ok(()),
        }
    }

    /// The serialised `CompileOptionsProto`; equal options give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let build = BuildOptions {
            device_ordinal: -1,
            num_replicas: self.replicas as i64,
            num_partitions: self.partitions as i64,
            use_spmd_partitioning: self.partitions > 1 || self.shardy,
            device_assignment: self.device_assignment(),
            propagate_to_output: vec![self.propagate_outputs],
            propagate_to_parameters: vec![false],
            use_shardy_partitioner: self.shardy,
        };
        let proto = OptionsProto {
            build: Some(build),
            portable: self.portable,
            overrides: self.overrides.iter().map(|(k, v)| (k.clone(), v.to_proto())).collect(),
        };
        proto.encode_to_vec()
    }

    /// A list for each partition with its device in each replica.
    fn device_assignment(&self) -> Option<DeviceAssignment> {
        if self.devices.is_empty() {
            return None;
        }
        let column = |partition| {
            let devices = self.devices.iter().skip(partition).step_by(self.partitions.max(1));
            ComputationDevice { replica_device_ids: devices.map(|d| i64::from(*d)).collect() }
        };
        Some(DeviceAssignment {
            replica_count: self.replicas as i32,
            computation_count: self.partitions as i32,
            computation_devices: (0..self.partitions).map(column).collect(),
        })
    }
}

impl OverrideValue {
    fn to_proto(&self) -> Override {
        Override {
            value: Some(match self {
                OverrideValue::String(v) => OverrideField::String(v.clone()),
                OverrideValue::Bool(v) => OverrideField::Bool(*v),
                OverrideValue::Int(v) => OverrideField::Int(*v),
                OverrideValue::Float(v) => OverrideField::Double(*v),
            }),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct OptionsProto {
    #[prost(message, optional, tag = "3")]
    build: Option<BuildOptions>,
    #[prost(bool, tag = "4")]
    portable: bool,
    #[prost(btree_map = "string, message", tag = "7")]
    overrides: BTreeMap<String, Override>,
}

#[derive(Clone, PartialEq, Message)]
struct BuildOptions {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignment>,
    #[prost(bool, repeated, tag = "12")]
    propagate_to_output: Vec<bool>,
    #[prost(bool, repeated, tag = "18")]
    propagate_to_parameters: Vec<bool>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceAssignment {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Override {
    #[prost(oneof = "OverrideField", tags = "1, 2, 3, 4")]
    value: Option<OverrideField>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OverrideField {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(options: &CompileOptions) -> OptionsProto {
        OptionsProto::decode(options.encode().as_slice()).unwrap()
    }

    #[test]
    fn bytes_of_the_default() {
        // Field 3 of 22 bytes: ordinal -1, 1 replica, 1 partition, [false] twice.
        let mut bytes = vec![0x1a, 22, 0x08];
        bytes.extend([0xff; 9]);
        bytes.extend([0x01, 0x20, 1, 0x28, 1, 0x62, 1, 0, 0x92, 0x01, 1, 0]);
        assert_eq!(CompileOptions::default().encode(), bytes);
    }

    #[test]
    fn bytes_of_an_override_and_portable() {
        let options = CompileOptions {
            portable: true,
            overrides: vec![("a".into(), OverrideValue::Bool(true))],
            ..CompileOptions::default()
        };
        let tail = [0x20, 1, 0x3a, 7, 0x0a, 1, b'a', 0x12, 2, 0x10, 1];
        assert!(options.encode().ends_with(&tail), "{:?}", options.encode());
    }

    #[test]
    fn assignment_is_partition_major() {
        let options = CompileOptions {
            replicas: 2,
            partitions: 3,
            devices: vec![0, 1, 2, 3, 4, 5],
            ..CompileOptions::default()
        };
        let build = decode(&options).build.unwrap();
        assert!(build.use_spmd_partitioning, "three partitions need the partitioner");
        let assignment = build.device_assignment.unwrap();
        assert_eq!((assignment.replica_count, assignment.computation_count), (2, 3));
        let lists: Vec<_> =
            assignment.computation_devices.into_iter().map(|c| c.replica_device_ids).collect();
        assert_eq!(lists, [[0, 3], [1, 4], [2, 5]]);
    }

    #[test]
    fn spmd_uses_shardy() {
        let mut options = CompileOptions::spmd(vec![3, 2, 1, 0]);
        options.propagate_outputs = true;
        options.check().unwrap();
        let build = decode(&options).build.unwrap();
        assert_eq!(build.num_partitions, 4);
        assert!(build.use_shardy_partitioner && build.use_spmd_partitioning, "{build:?}");
        assert_eq!(build.propagate_to_output, [true]);
        assert_eq!(build.propagate_to_parameters, [false]);
    }

    #[test]
    fn all_sorts_of_flags() {
        let flags = vec![
            ("d".to_owned(), OverrideValue::Float(0.5)),
            ("c".to_owned(), OverrideValue::Int(-2)),
            ("a".to_owned(), OverrideValue::String("x".into())),
        ];
        let options = CompileOptions { overrides: flags, ..CompileOptions::default() };
        let read: Vec<_> =
            decode(&options).overrides.into_iter().map(|(k, v)| (k, v.value.unwrap())).collect();
        let expected = [
            ("a".to_owned(), OverrideField::String("x".into())),
            ("c".to_owned(), OverrideField::Int(-2)),
            ("d".to_owned(), OverrideField::Double(0.5)),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn float_flags_are_equal_by_bits() {
        let nan = OverrideValue::Float(f64::NAN);
        assert_eq!(nan, nan.clone());
        assert_ne!(OverrideValue::Float(0.0), OverrideValue::Float(-0.0));
        assert_ne!(OverrideValue::Int(1), OverrideValue::Bool(true));
    }

    #[test]
    fn counts_that_do_not_fit() {
        let with = |replicas, partitions, devices: &[i32], portable| {
            let devices = devices.to_vec();
            CompileOptions { replicas, partitions, devices, portable, ..CompileOptions::default() }
        };
        let cases = [
            (with(0, 1, &[], false), "are no program"),
            (with(1, 0, &[], false), "are no program"),
            (with(1, 2, &[0], false), "but 1 are named"),
            (with(usize::MAX, 2, &[0], false), "but 1 are named"),
            (with(1, 2, &[4, 4], false), "device 4 is named twice"),
            (with(1, 1, &[0], true), "portable"),
            (with(1, 2, &[], true), "portable"),
        ];
        for (options, words) in cases {
            let error = options.check().unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Device);
            assert!(error.text().contains(words), "{error} should say {words}");
        }
        with(1, 1, &[], true).check().unwrap();
        with(2, 2, &[0, 1, 2, 3], false).check().unwrap();
    }
}
