//! [`Executable`]: a compiled program on its devices, ready to run.

use super::api::Padded;
use super::buffer::Buffer;
use super::client::Client;
use super::error::{self, slice};
use super::program::Program;
use crate::error::{Error, ErrorKind, Result};
use pjrt_sys::{
    Function, PJRT_Buffer, PJRT_Buffer_Destroy_Args, PJRT_Client_Compile_Args, PJRT_Device,
    PJRT_Executable_DeserializeAndLoad_Args, PJRT_ExecuteOptions, PJRT_LoadedExecutable,
    PJRT_LoadedExecutable_AddressableDevices_Args, PJRT_LoadedExecutable_Destroy_Args,
    PJRT_LoadedExecutable_Execute_Args, PJRT_LoadedExecutable_GetExecutable_Args,
};
use smallvec::{SmallVec, smallvec};
use std::fmt;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::time::{Duration, Instant};

const EXECUTE: &str = PJRT_LoadedExecutable_Execute_Args::FUNCTION;

/// Pointers to the operands or results of one device, most often without an allocation.
type Pointers = SmallVec<[*mut PJRT_Buffer; 16]>;

/// Operands and room for results, one list for each device.
#[derive(Clone, Copy)]
struct Lists<'a> {
    inputs: &'a [*const *mut PJRT_Buffer],
    num_args: usize,
    outputs: &'a [*mut *mut PJRT_Buffer],
}

/// A compiled program on its devices. What it is, apart from them, is its [`Program`], which it
/// dereferences to.
pub struct Executable {
    program: Program,
    devices: Vec<usize>,
    handle: Handle,
}

/// The C executable, freed when dropped.
struct Handle {
    executable: NonNull<PJRT_LoadedExecutable>,
    client: Client,
}

// SAFETY: the header ties no executable to a thread, and running one does not change it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Client {
    /// Compiles a StableHLO module, given as text, with a serialised `CompileOptionsProto`.
    ///
    /// # Errors
    /// The plugin's, for a module that does not parse, verify or compile.
    pub fn compile(&self, stablehlo: &str, options: &[u8]) -> Result<Executable> {
        let mut program = super::program::mlir(stablehlo);
        // SAFETY: program and options live until the call returns.
        let args = unsafe {
            self.plugin().call(|args: &mut PJRT_Client_Compile_Args| {
                args.client = self.as_ptr();
                args.program = program.as_mut_ptr();
                args.compile_options = options.as_ptr().cast();
                args.compile_options_size = options.len();
            })
        }?;
        // SAFETY: the caller owns the new executable.
        unsafe { Executable::new(self, args.executable, PJRT_Client_Compile_Args::FUNCTION) }
    }

    /// Loads an executable that [`Program::serialize`] wrote with the same plugin.
    ///
    /// # Errors
    /// The plugin's, for bytes that are not such an executable.
    pub fn deserialize(&self, bytes: &[u8]) -> Result<Executable> {
        let function = PJRT_Executable_DeserializeAndLoad_Args::FUNCTION;
        // SAFETY: the bytes live until the call returns.
        let args = unsafe {
            self.plugin().call(|args: &mut PJRT_Executable_DeserializeAndLoad_Args| {
                args.client = self.as_ptr();
                args.serialized_executable = bytes.as_ptr().cast();
                args.serialized_executable_size = bytes.len();
            })
        }?;
        // SAFETY: the caller owns the new executable.
        unsafe { Executable::new(self, args.loaded_executable, function) }
    }
}

impl Executable {
    /// Takes over an executable that `function` gave out.
    ///
    /// # Safety
    /// `executable` is null or an executable of `client` that nobody else frees.
    unsafe fn new(
        client: &Client,
        executable: *mut PJRT_LoadedExecutable,
        function: &'static str,
    ) -> Result<Executable> {
        let executable = NonNull::new(executable)
            .ok_or_else(|| error::broken(function, "the plugin gave no executable"))?;
        let handle = Handle { executable, client: client.clone() };
        Ok(Executable { program: handle.program()?, devices: handle.devices()?, handle })
    }

    /// The client that the executable belongs to.
    pub fn client(&self) -> &Client {
        &self.handle.client
    }

    /// The program, apart from its devices.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The devices that it runs on, as positions among [`Client::devices`].
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// Runs the program once on each of its devices: `args` and the result hold one list for each,
    /// in the order of [`devices`](Self::devices).
    ///
    /// Operands that the program may overwrite are donated, unless their positions are in
    /// `non_donatable`. The call does not wait: an error while running comes out of the results.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] if the lists do not fit the devices or a buffer is of another client,
    /// [`ErrorKind::Donated`] if one was deleted or donated, or the plugin's error.
    pub fn execute(&self, args: &[&[&Buffer]], non_donatable: &[i64]) -> Result<Vec<Vec<Buffer>>> {
        let num_args = args.first().map_or(0, |list| list.len());
        if args.len() != self.devices.len() || args.iter().any(|list| list.len() != num_args) {
            return Err(self.misfit(args));
        }
        let inputs: Vec<Pointers> =
            args.iter().map(|list| self.pointers(list)).collect::<Result<_>>()?;
        let mut outputs = vec![self.no_outputs(); args.len()];
        let input_lists: Vec<*const *mut PJRT_Buffer> =
            inputs.iter().map(Pointers::as_ptr).collect();
        let output_lists: Vec<*mut *mut PJRT_Buffer> =
            outputs.iter_mut().map(Pointers::as_mut_ptr).collect();
        let lists = Lists { inputs: &input_lists, num_args, outputs: &output_lists };
        // SAFETY: the lists hold `num_args` and `num_outputs` elements for each device.
        unsafe { self.launch(lists, non_donatable, null_mut()) }
            .map_err(|error| explain(error, args))?;
        outputs.into_iter().map(|list| self.own(list)).collect()
    }

    /// Runs a program of one device once; [`execute`](Self::execute) without its lists of lists.
    ///
    /// # Errors
    /// As `execute`.
    #[inline]
    pub fn execute_one(&self, args: &[&Buffer]) -> Result<SmallVec<[Buffer; 1]>> {
        if self.devices.len() != 1 {
            return Err(self.misfit(&[args]));
        }
        self.run_on(null_mut(), args)
    }

    /// Runs a portable program once on the device at a position of [`Client::devices`], where its
    /// operands lie.
    ///
    /// # Errors
    /// As `execute`, and if there is no such device or the program is not portable.
    pub fn execute_on(&self, device: usize, args: &[&Buffer]) -> Result<SmallVec<[Buffer; 1]>> {
        self.run_on(self.client().device(device)?.as_ptr(), args)
    }

    #[inline]
    fn run_on(&self, device: *mut PJRT_Device, args: &[&Buffer]) -> Result<SmallVec<[Buffer; 1]>> {
        let inputs = self.pointers(args)?;
        let mut outputs = self.no_outputs();
        let (input_lists, output_lists) = ([inputs.as_ptr()], [outputs.as_mut_ptr()]);
        let lists = Lists { inputs: &input_lists, num_args: args.len(), outputs: &output_lists };
        // SAFETY: the lists hold `args.len()` and `num_outputs` elements.
        unsafe { self.launch(lists, &[], device) }.map_err(|error| explain(error, &[args]))?;
        self.own(outputs)
    }

    /// The time of `n` bare calls of `PJRT_LoadedExecutable_Execute` on one device, with arguments
    /// built once, results destroyed, and nothing checked: the floor for
    /// [`execute_one`](Self::execute_one) in benchmarks.
    ///
    /// # Errors
    /// As `execute`.
    pub fn execute_raw_loop(&self, args: &[&Buffer], n: usize) -> Result<Duration> {
        drop(self.execute_one(args)?); // All checks, once.
        let plugin = self.client().plugin();
        let execute = plugin.function().ok_or_else(|| plugin.missing(EXECUTE))?;
        let destroy = PJRT_Buffer_Destroy_Args::FUNCTION;
        let destroy = plugin.function().ok_or_else(|| plugin.missing(destroy))?;
        let (inputs, mut outputs) = (self.pointers(args)?, self.no_outputs());
        let (input_lists, output_lists) = ([inputs.as_ptr()], [outputs.as_mut_ptr()]);
        let mut options = Padded::<PJRT_ExecuteOptions>::new();
        let lists = Lists { inputs: &input_lists, num_args: args.len(), outputs: &output_lists };
        let mut call = self.arguments(lists, &mut options);
        let mut freed = Padded::<PJRT_Buffer_Destroy_Args>::new();
        let start = Instant::now();
        for _ in 0..n {
            // SAFETY: the same arguments that `execute_one` passed; errors are null here.
            let error = unsafe { execute(call.as_mut_ptr()) };
            if let Some(error) = NonNull::new(error) {
                // SAFETY: the caller of a function owns the error that it gives.
                return Err(unsafe { error::take(plugin, error, EXECUTE) });
            }
            for output in 0..self.num_outputs() {
                // SAFETY: the list has `num_outputs` elements.
                let output = unsafe { output_lists[0].add(output) };
                // SAFETY: the call has just written it.
                freed.buffer = unsafe { output.read() };
                // SAFETY: nobody else has seen the buffer; destroying one gives no error.
                unsafe { destroy(freed.as_mut_ptr()) };
            }
        }
        Ok(start.elapsed())
    }

    /// # Safety
    /// The lists hold as many elements as arguments and outputs, one list for each device.
    #[inline]
    unsafe fn launch(
        &self,
        lists: Lists<'_>,
        non_donatable: &[i64],
        device: *mut PJRT_Device,
    ) -> Result<()> {
        let mut options = Padded::<PJRT_ExecuteOptions>::new();
        options.non_donatable_input_indices = non_donatable.as_ptr();
        options.num_non_donatable_input_indices = non_donatable.len();
        let mut args = self.arguments(lists, &mut options);
        args.execute_device = device;
        // SAFETY: all that the arguments point to lives until the call returns; the caller's
        // promise for the lists.
        unsafe { self.client().plugin().invoke(&mut args) }
    }

    #[inline]
    fn arguments(
        &self,
        lists: Lists<'_>,
        options: &mut Padded<PJRT_ExecuteOptions>,
    ) -> Padded<PJRT_LoadedExecutable_Execute_Args> {
        let mut args = Padded::<PJRT_LoadedExecutable_Execute_Args>::new();
        args.executable = self.handle.executable.as_ptr();
        args.options = options.as_mut_ptr();
        args.argument_lists = lists.inputs.as_ptr();
        args.num_devices = lists.inputs.len();
        args.num_args = lists.num_args;
        args.output_lists = lists.outputs.as_ptr();
        args
    }

    #[inline]
    fn no_outputs(&self) -> Pointers {
        smallvec![null_mut(); self.num_outputs()]
    }

    /// The handles of operands, all of this client.
    #[inline]
    fn pointers(&self, args: &[&Buffer]) -> Result<Pointers> {
        if let Some(i) = args.iter().position(|arg| !arg.client().same(self.client())) {
            let text = format!("operand {i} is of another client than the program");
            return Err(Error::new(ErrorKind::Device, "execute", text));
        }
        Ok(args.iter().map(|arg| arg.as_ptr()).collect())
    }

    /// Takes over the outputs that a run has written.
    #[inline]
    fn own<B: FromIterator<Buffer>>(&self, outputs: Pointers) -> Result<B> {
        // SAFETY: the caller of `PJRT_LoadedExecutable_Execute` owns the outputs.
        let own = |output| unsafe { Buffer::new(self.client(), output, EXECUTE) };
        outputs.into_iter().map(own).collect()
    }

    #[cold]
    fn misfit(&self, args: &[&[&Buffer]]) -> Error {
        let counts: Vec<usize> = args.iter().map(|list| list.len()).collect();
        let text = format!(
            "the program runs on {} devices with as many operands on each, but is given {} lists \
             of {counts:?} operands",
            self.devices.len(),
            args.len()
        );
        Error::new(ErrorKind::Device, "execute", text)
    }
}

/// The error of a run, which says so if an operand's memory is gone.
#[cold]
fn explain(error: Error, args: &[&[&Buffer]]) -> Error {
    let gone = |arg: &&Buffer| arg.is_deleted().unwrap_or(false);
    match args.iter().find_map(|list| list.iter().position(gone)) {
        None => error,
        Some(i) => {
            let text = format!("operand {i} was deleted or donated to an earlier run");
            Error::new(ErrorKind::Donated, "execute", text).note(error.to_string())
        }
    }
}

impl Deref for Executable {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executable({:?} on devices {:?})", self.program, self.devices)
    }
}

impl Handle {
    fn program(&self) -> Result<Program> {
        let plugin = self.client.plugin();
        // SAFETY: the executable is alive.
        let args = unsafe {
            plugin.call(|args: &mut PJRT_LoadedExecutable_GetExecutable_Args| {
                args.loaded_executable = self.executable.as_ptr();
            })
        }?;
        let function = PJRT_LoadedExecutable_GetExecutable_Args::FUNCTION;
        // SAFETY: the header has the caller free this side of the executable.
        unsafe { Program::new(plugin, args.executable, function) }
    }

    fn devices(&self) -> Result<Vec<usize>> {
        // SAFETY: the executable is alive.
        let args = unsafe {
            self.client.plugin().call(|args: &mut PJRT_LoadedExecutable_AddressableDevices_Args| {
                args.executable = self.executable.as_ptr();
            })
        }?;
        let function = PJRT_LoadedExecutable_AddressableDevices_Args::FUNCTION;
        // SAFETY: the list belongs to the executable.
        let devices = unsafe { slice(args.addressable_devices, args.num_addressable_devices) };
        devices.iter().map(|&device| self.client.position(device, function)).collect()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let executable = self.executable.as_ptr();
        // SAFETY: this is the only owner of the executable.
        unsafe {
            self.client
                .plugin()
                .free(|args: &mut PJRT_LoadedExecutable_Destroy_Args| args.executable = executable);
        };
    }
}
