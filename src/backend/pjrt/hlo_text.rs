//! A compiled program as text: what the compiler made of it.
//!
//! The plugin gives the optimised program as an `HloModuleProto` (format `hlo`) or inside an
//! `HloModuleProtoWithConfig` (`hlo_with_config`). It is printed as XLA prints HLO, one instruction
//! a line, with the attributes that tell what an instruction does. Only the fields read here are
//! declared; their numbers are those of `xla/service/hlo.proto` and `xla/xla_data.proto`.

use super::program::OptimizedProgram;
use crate::error::{Error, ErrorKind, Result};
use prost::Message;
use std::collections::HashMap;
use std::fmt::{self, Write};

const OP: &str = "as_text";

impl OptimizedProgram {
    /// The program as text.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] if the bytes are damaged or the format is none that is known.
    pub fn as_text(&self) -> Result<String> {
        let bad = |e: &dyn fmt::Display| {
            Error::new(ErrorKind::Format, OP, format!("the optimised program is damaged: {e}"))
        };
        let module = match self.format.as_str() {
            "mlir" => return String::from_utf8(self.code.clone()).map_err(|e| bad(&e)),
            "hlo" => Module::decode(&*self.code).map_err(|e| bad(&e))?,
            "hlo_with_config" => ModuleWithConfig::decode(&*self.code)
                .map_err(|e| bad(&e))?
                .module
                .ok_or_else(|| bad(&"it has no module"))?,
            other => {
                let text = format!("the optimised program is in the format `{other}`");
                return Err(Error::new(ErrorKind::Format, OP, text));
            }
        };
        Ok(module.to_string())
    }
}

#[derive(Clone, PartialEq, Message)]
struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<Module>,
}

#[derive(Clone, PartialEq, Message)]
struct Module {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    computations: Vec<Computation>,
    #[prost(int64, tag = "6")]
    entry: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Computation {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    instructions: Vec<Instruction>,
    #[prost(int64, tag = "5")]
    id: i64,
    #[prost(int64, tag = "6")]
    root: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Instruction {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    opcode: String,
    #[prost(message, optional, tag = "3")]
    shape: Option<ShapeProto>,
    #[prost(int64, tag = "9")]
    parameter: i64,
    #[prost(string, tag = "11")]
    fusion_kind: String,
    #[prost(int64, tag = "13")]
    tuple_index: i64,
    #[prost(int64, repeated, tag = "14")]
    dimensions: Vec<i64>,
    #[prost(string, tag = "28")]
    custom_call_target: String,
    #[prost(message, optional, tag = "30")]
    dot: Option<Dot>,
    #[prost(int64, tag = "35")]
    id: i64,
    #[prost(int64, repeated, tag = "36")]
    operands: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    called: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ShapeProto {
    #[prost(int32, tag = "2")]
    element: i32,
    #[prost(int64, repeated, tag = "3")]
    dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    tuple: Vec<ShapeProto>,
    #[prost(message, optional, tag = "5")]
    layout: Option<Layout>,
}

#[derive(Clone, PartialEq, Message)]
struct Layout {
    #[prost(int64, repeated, tag = "1")]
    minor_to_major: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Dot {
    #[prost(int64, repeated, tag = "1")]
    lhs_contracting: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    rhs_contracting: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    lhs_batch: Vec<i64>,
    #[prost(int64, repeated, tag = "4")]
    rhs_batch: Vec<i64>,
}

/// XLA's names of element types, by number.
const ELEMENTS: &[&str] = &[
    "invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64",
    "tuple", "opaque", "c64", "bf16", "token", "c128", "f8e5m2", "f8e4m3fn", "s4", "u4",
];

const TUPLE: i32 = 13;

/// Numbers between braces, `{0,1}`.
struct List<'l>(&'l [i64]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('{')?;
        for (i, n) in self.0.iter().enumerate() {
            write!(f, "{}{n}", if i > 0 { "," } else { "" })?;
        }
        f.write_char('}')
    }
}

impl fmt::Display for ShapeProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.element == TUPLE {
            f.write_char('(')?;
            for (i, shape) in self.tuple.iter().enumerate() {
                write!(f, "{}{shape}", if i > 0 { ", " } else { "" })?;
            }
            return f.write_char(')');
        }
        let name = usize::try_from(self.element).ok().and_then(|i| ELEMENTS.get(i));
        f.write_str(name.copied().unwrap_or("unknown"))?;
        let sizes: Vec<String> = self.dimensions.iter().map(ToString::to_string).collect();
        write!(f, "[{}]", sizes.join(","))?;
        match &self.layout {
            Some(layout) if !layout.minor_to_major.is_empty() => {
                write!(f, "{}", List(&layout.minor_to_major))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "HloModule {}", self.name)?;
        let names: HashMap<i64, &str> =
            self.computations.iter().map(|c| (c.id, c.name.as_str())).collect();
        for computation in &self.computations {
            let entry = if computation.id == self.entry { "ENTRY " } else { "" };
            writeln!(f, "\n{entry}%{} {{", computation.name)?;
            computation.write(f, &names)?;
            writeln!(f, "}}")?;
        }
        Ok(())
    }
}

impl Computation {
    fn write(&self, f: &mut fmt::Formatter<'_>, computations: &HashMap<i64, &str>) -> fmt::Result {
        let names: HashMap<i64, &str> =
            self.instructions.iter().map(|i| (i.id, i.name.as_str())).collect();
        for instruction in &self.instructions {
            let root = if instruction.id == self.root { "ROOT " } else { "" };
            write!(f, "  {root}")?;
            instruction.write(f, &names, computations)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Instruction {
    fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        names: &HashMap<i64, &str>,
        computations: &HashMap<i64, &str>,
    ) -> fmt::Result {
        write!(f, "%{} = ", self.name)?;
        if let Some(shape) = &self.shape {
            write!(f, "{shape} ")?;
        }
        let name = |map: &HashMap<i64, &str>, id: &i64| {
            format!("%{}", map.get(id).copied().unwrap_or("unknown"))
        };
        let operands = match self.opcode.as_str() {
            "parameter" => self.parameter.to_string(),
            _ => self.operands.iter().map(|id| name(names, id)).collect::<Vec<_>>().join(", "),
        };
        write!(f, "{}({operands})", self.opcode)?;
        if self.opcode == "get-tuple-element" {
            write!(f, ", index={}", self.tuple_index)?;
        }
        if !self.dimensions.is_empty() {
            write!(f, ", dimensions={}", List(&self.dimensions))?;
        }
        if let Some(dot) = &self.dot {
            dot.write(f)?;
        }
        if !self.fusion_kind.is_empty() {
            write!(f, ", kind={}", self.fusion_kind)?;
        }
        if !self.called.is_empty() {
            let called: Vec<String> = self.called.iter().map(|id| name(computations, id)).collect();
            write!(f, ", calls={}", called.join(", "))?;
        }
        if !self.custom_call_target.is_empty() {
            write!(f, ", custom_call_target=\"{}\"", self.custom_call_target)?;
        }
        Ok(())
    }
}

impl Dot {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("lhs_batch_dims", &self.lhs_batch),
            ("lhs_contracting_dims", &self.lhs_contracting),
            ("rhs_batch_dims", &self.rhs_batch),
            ("rhs_contracting_dims", &self.rhs_contracting),
        ];
        for (name, dims) in parts.iter().filter(|(_, dims)| !dims.is_empty()) {
            write!(f, ", {name}={}", List(dims))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_xla_does() {
        let shape = |element, dimensions: &[i64]| {
            let minor_to_major = (0..dimensions.len() as i64).rev().collect();
            let layout = Some(Layout { minor_to_major });
            Some(ShapeProto { element, dimensions: dimensions.to_vec(), tuple: vec![], layout })
        };
        let instruction = |id: i64, opcode: &str, dims: &[i64], operands: &[i64]| Instruction {
            name: format!("{opcode}.{id}"),
            opcode: opcode.into(),
            shape: shape(11, dims),
            id,
            operands: operands.to_vec(),
            ..Instruction::default()
        };
        let dot = Dot {
            lhs_contracting: vec![1],
            rhs_contracting: vec![0],
            lhs_batch: vec![],
            rhs_batch: vec![],
        };
        let instructions = vec![
            instruction(1, "parameter", &[2, 2], &[]),
            Instruction { dot: Some(dot), ..instruction(2, "dot", &[2, 2], &[1, 1]) },
        ];
        let main = Computation { name: "main".into(), instructions, id: 7, root: 2 };
        let module = Module { name: "f".into(), computations: vec![main], entry: 7 };
        let program = OptimizedProgram { code: module.encode_to_vec(), format: "hlo".into() };
        let text = "HloModule f\n\nENTRY %main {\n  \
            %parameter.1 = f32[2,2]{1,0} parameter(0)\n  \
            ROOT %dot.2 = f32[2,2]{1,0} dot(%parameter.1, %parameter.1), \
            lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n";
        assert_eq!(program.as_text().unwrap(), text);
        let wrapped = ModuleWithConfig { module: Some(module) }.encode_to_vec();
        let program = OptimizedProgram { code: wrapped, format: "hlo_with_config".into() };
        assert_eq!(program.as_text().unwrap(), text);
        let damaged = OptimizedProgram { code: vec![0xff; 3], format: "hlo".into() };
        assert_eq!(*damaged.as_text().unwrap_err().kind(), ErrorKind::Format);
        let other = OptimizedProgram { code: vec![], format: "other".into() };
        assert_eq!(*other.as_text().unwrap_err().kind(), ErrorKind::Format);
    }
}
