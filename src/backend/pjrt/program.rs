//! [`Program`]: a compiled program apart from its devices; what can be asked of it.

use super::api::{AttrValue, Padded, Plugin, named_values};
use super::buffer::{dtype_of, shape_of};
use super::error::{self, slice, text};
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::Shape;
use pjrt_sys::{
    PJRT_Executable, PJRT_Executable_Destroy_Args, PJRT_Executable_Fingerprint_Args,
    PJRT_Executable_GetCompiledMemoryStats_Args, PJRT_Executable_GetCostAnalysis_Args,
    PJRT_Executable_Name_Args, PJRT_Executable_NumOutputs_Args,
    PJRT_Executable_OptimizedProgram_Args, PJRT_Executable_OutputDimensions_Args,
    PJRT_Executable_OutputElementTypes_Args, PJRT_Executable_Serialize_Args, PJRT_Program,
};
use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;

/// A compiled program apart from its devices.
pub struct Program {
    plugin: Plugin,
    executable: NonNull<PJRT_Executable>,
    num_outputs: usize,
}

// SAFETY: the header ties no executable to a thread, and what it tells has the lifetime of the
// executable, which nothing changes.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

/// A program after the compiler's passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimizedProgram {
    /// The program, in the form that `format` names.
    pub code: Vec<u8>,
    /// `mlir`, `hlo` or `hlo_with_config`.
    pub format: String,
}

/// Bytes that one run of a program needs on each device, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramMemory {
    /// The machine code.
    pub generated_code: i64,
    /// The operands.
    pub arguments: i64,
    /// The results.
    pub outputs: i64,
    /// The results that take over the memory of operands.
    pub aliases: i64,
    /// What is freed when the run ends.
    pub temporaries: i64,
    /// The highest sum at any moment; 0 if the plugin does not tell.
    pub peak: i64,
    /// The machine code in host memory.
    pub host_generated_code: i64,
    /// The operands in host memory.
    pub host_arguments: i64,
    /// The results in host memory.
    pub host_outputs: i64,
    /// The aliased results in host memory.
    pub host_aliases: i64,
    /// The temporaries in host memory.
    pub host_temporaries: i64,
}

/// A StableHLO module as PJRT takes it; borrows the text.
pub(super) fn mlir(stablehlo: &str) -> Padded<PJRT_Program> {
    let mut program = Padded::<PJRT_Program>::new();
    program.code = stablehlo.as_ptr().cast_mut().cast();
    program.code_size = stablehlo.len();
    program.format = c"mlir".as_ptr();
    program.format_size = 4;
    program
}

impl Program {
    /// Takes over an executable that `function` gave out.
    ///
    /// # Safety
    /// `executable` is null or an executable of `plugin` that nobody else frees.
    pub(super) unsafe fn new(
        plugin: &Plugin,
        executable: *mut PJRT_Executable,
        function: &'static str,
    ) -> Result<Program> {
        let executable = NonNull::new(executable)
            .ok_or_else(|| error::broken(function, "the plugin gave no executable"))?;
        let mut program = Program { plugin: plugin.clone(), executable, num_outputs: 0 };
        program.num_outputs = program.count_outputs()?;
        Ok(program)
    }

    fn count_outputs(&self) -> Result<usize> {
        // SAFETY: the executable is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Executable_NumOutputs_Args| {
                args.executable = self.executable.as_ptr();
            })
        }?;
        Ok(args.num_outputs)
    }

    /// The number of results on each device.
    pub fn num_outputs(&self) -> usize {
        self.num_outputs
    }

    /// The program's name, that of its module.
    pub fn name(&self) -> Result<String> {
        // SAFETY: the executable is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Executable_Name_Args| {
                args.executable = self.executable.as_ptr();
            })
        }?;
        // SAFETY: the text lives as long as the executable.
        Ok(unsafe { text(args.executable_name, args.executable_name_size) })
    }

    /// The dtypes of the results.
    pub fn output_dtypes(&self) -> Result<Vec<DType>> {
        // SAFETY: the executable is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Executable_OutputElementTypes_Args| {
                args.executable = self.executable.as_ptr();
            })
        }?;
        // SAFETY: the list lives as long as the executable.
        let types = unsafe { slice(args.output_types.cast_const(), args.num_output_types) };
        types.iter().map(|&t| dtype_of(t)).collect()
    }

    /// The shapes of the results on one device.
    pub fn output_shapes(&self) -> Result<Vec<Shape>> {
        // SAFETY: the executable is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Executable_OutputDimensions_Args| {
                args.executable = self.executable.as_ptr();
            })
        }?;
        // SAFETY: the list has one rank for each output and lives as long as the executable.
        let ranks = unsafe { slice(args.dim_sizes, args.num_outputs) };
        // SAFETY: the list has as many sizes as the ranks sum to.
        let dims = unsafe { slice(args.dims, ranks.iter().sum()) };
        let mut rest = dims;
        ranks
            .iter()
            .map(|&rank| {
                let (dims, next) = rest.split_at_checked(rank).unwrap_or((&[], &[]));
                rest = next;
                shape_of(dims)
            })
            .collect()
    }

    /// The executable as bytes, for [`Client::deserialize`](super::Client::deserialize).
    pub fn serialize(&self) -> Result<Vec<u8>> {
        // SAFETY: the executable is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Executable_Serialize_Args| {
                args.executable = self.executable.as_ptr();
            })
        }?;
        // SAFETY: the bytes live until the deleter is called.
        let bytes = unsafe { slice(args.serialized_bytes.cast(), args.serialized_bytes_size) };
        let bytes = bytes.to_vec();
        if let Some(delete) = args.serialized_executable_deleter {
            // SAFETY: called once, on what came with it.
            unsafe { delete(args.serialized_executable) };
        }
        Ok(bytes)
    }

    /// A text that differs when the program does.
    pub fn fingerprint(&self) -> Result<String> {
        // SAFETY: the executable is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Executable_Fingerprint_Args| {
                args.executable = self.executable.as_ptr();
            })
        }?;
        // SAFETY: the text lives as long as the executable.
        Ok(unsafe { text(args.executable_fingerprint, args.executable_fingerprint_size) })
    }

    /// The compiler's estimates, for example `flops` and `bytes accessed`.
    ///
    /// # Errors
    /// Code 12 (`UNIMPLEMENTED`) from plugins that make none.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, AttrValue>> {
        // SAFETY: the executable is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Executable_GetCostAnalysis_Args| {
                args.executable = self.executable.as_ptr();
            })
        }?;
        // SAFETY: the list lives as long as the executable.
        Ok(unsafe { named_values(args.properties, args.num_properties) })
    }

    /// The memory that one run needs.
    pub fn memory_stats(&self) -> Result<ProgramMemory> {
        // SAFETY: the executable is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Executable_GetCompiledMemoryStats_Args| {
                args.executable = self.executable.as_ptr();
            })
        }?;
        Ok(ProgramMemory {
            generated_code: args.generated_code_size_in_bytes,
            arguments: args.argument_size_in_bytes,
            outputs: args.output_size_in_bytes,
            aliases: args.alias_size_in_bytes,
            temporaries: args.temp_size_in_bytes,
            peak: args.peak_memory_in_bytes,
            host_generated_code: args.host_generated_code_size_in_bytes,
            host_arguments: args.host_argument_size_in_bytes,
            host_outputs: args.host_output_size_in_bytes,
            host_aliases: args.host_alias_size_in_bytes,
            host_temporaries: args.host_temp_size_in_bytes,
        })
    }

    /// The program after the compiler's passes.
    pub fn optimized_program(&self) -> Result<OptimizedProgram> {
        let mut program = Padded::<PJRT_Program>::new();
        self.write_optimized(&mut program)?;
        let mut code = vec![0_u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        self.write_optimized(&mut program)?;
        // SAFETY: the plugin's own constant text.
        let format = unsafe { text(program.format, program.format_size) };
        Ok(OptimizedProgram { code, format })
    }

    /// Has the plugin write the size of the optimised program or, where `code` is set, the bytes.
    fn write_optimized(&self, program: &mut Padded<PJRT_Program>) -> Result<()> {
        // SAFETY: the executable is alive; `code` is null or has the size written before.
        unsafe {
            self.plugin.call(|args: &mut PJRT_Executable_OptimizedProgram_Args| {
                args.executable = self.executable.as_ptr();
                args.program = program.as_mut_ptr();
            })
        }?;
        Ok(())
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or_else(|_| "?".to_owned());
        write!(f, "Program({name}, {} outputs)", self.num_outputs)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let executable = self.executable.as_ptr();
        // SAFETY: this is the only owner of the executable.
        unsafe {
            self.plugin
                .free(|args: &mut PJRT_Executable_Destroy_Args| args.executable = executable);
        };
    }
}
