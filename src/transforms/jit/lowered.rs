//! A traced program that is not yet compiled.

use crate::backend::pjrt::options::{OverrideValue, set_override};
use crate::error::Result;
use crate::mesh::{Mesh, NamedSharding};
use crate::ops::call::Call;
use crate::trace::Values;
use crate::trace::eval::{Compiled, compile_only, platform_of};
use crate::trace::graph::Graph;
use crate::trace::lower;
use crate::trace::primitive::Primitive;
use std::sync::Arc;

/// A function's program for one signature, traced and not yet compiled.
#[derive(Clone, Debug)]
pub struct Lowered {
    pub(super) call: Arc<Call>,
    pub(super) operands: Values,
}

impl Lowered {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.call.graph
    }

    /// The call that `jit` binds.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The text of the StableHLO module, with the operands' shardings.
    pub fn stablehlo(&self) -> String {
        let in_shardings: Vec<Option<NamedSharding>> =
            self.operands.iter().map(|v| v.aval().sharding().cloned()).collect();
        let mesh = in_shardings.iter().flatten().next().map(NamedSharding::mesh);
        let mesh = mesh.or_else(|| self.call.mesh());
        let platform = platform_of(&self.operands);
        let entry = lower::Entry {
            name: &self.call.name,
            in_shardings: &in_shardings,
            out_shardings: &self.call.out_shardings,
            donated: &self.call.donated,
            partitions: mesh.map_or(1, Mesh::size),
            platform: &platform,
        };
        lower::module(&self.call.graph, &entry).unwrap_or_else(|error| format!("// {error}\n"))
    }

    /// The same with an XLA flag, as [`Jit::compiler_option`](super::Jit::compiler_option) has it, in
    /// place of the function's own value of that flag.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let lowered = jit(|x: &Tensor| x.sin()).lower(&Tensor::zeros([3], DType::F32)?)?;
    /// let quick = lowered.clone().compiler_option("xla_backend_optimization_level", 0);
    /// assert_eq!(quick.compile()?.outs(), lowered.compile()?.outs());
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn compiler_option(mut self, flag: &str, value: impl Into<OverrideValue>) -> Lowered {
        let all = Arc::make_mut(&mut self.call).compiler_options.get_or_insert_default();
        set_override(Arc::make_mut(all), flag, value.into());
        self
    }

    /// The program compiled, or taken from the caches, without running it; the first call with this
    /// signature then compiles nothing.
    ///
    /// # Errors
    /// What the compiler says; [`ErrorKind::NotConcrete`](crate::ErrorKind::NotConcrete) inside of another transform.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let f = jit(|x: &Tensor| x.sin());
    /// let compiled = f.lower(&Tensor::zeros([3], DType::F32)?)?.compile()?;
    /// assert_eq!(compiled.outs()[0].to_string(), "f32[3]");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn compile(&self) -> Result<Arc<Compiled>> {
        compile_only(&*self.call, &self.operands)
    }
}
