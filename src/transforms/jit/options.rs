//! What the user asks of a compiled function beside its body.

use super::signature::Signature;
use crate::aval::Aval;
use crate::backend::pjrt::options::Overrides;
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::NamedSharding;
use crate::transforms::tree::Leaves;
use smallvec::SmallVec;
use std::sync::Arc;

/// The options that are part of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Options {
    pub(super) name: Arc<str>,
    pub(super) donated: Vec<usize>,
    pub(super) in_shardings: Vec<Option<NamedSharding>>,
    pub(super) out_shardings: OutShardings,
    pub(super) flags: Option<Arc<Overrides>>,
}

/// The shardings that results must have, by element of the result's outermost tuple.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum OutShardings {
    /// Left to the compiler.
    #[default]
    Free,
    /// One for all tensors of an element; none leaves them to the compiler.
    Named(Vec<Option<NamedSharding>>),
    /// Those of the tensors of an element of the argument, in order.
    Like(Vec<Option<usize>>),
}

fn flags_text(flags: &Overrides) -> String {
    flags.iter().map(|(flag, value)| format!("{flag}={value}")).collect::<Vec<_>>().join(", ")
}

impl Options {
    /// The options by name, as text.
    pub(super) fn named(&self) -> [(&'static str, String); 5] {
        [
            ("name", self.name.to_string()),
            ("donate", format!("{:?}", self.donated)),
            ("in_shardings", format!("{:?}", self.in_shardings)),
            ("out_shardings", format!("{:?}", self.out_shardings)),
            ("compiler_option", self.flags.as_deref().map_or("none".into(), flags_text)),
        ]
    }

    /// The sharding that each tensor of the result must have; none at all if all are free.
    pub(super) fn shardings_of(
        &self,
        out: &(impl Leaves + ?Sized),
        signature: &Signature<'_>,
        avals: &[Aval],
    ) -> Result<SmallVec<[Option<NamedSharding>; 1]>> {
        let elements = Signature::of(out).elements;
        match &self.out_shardings {
            OutShardings::Free => Ok(SmallVec::new()),
            OutShardings::Named(named) => {
                Ok(elements.iter().map(|&e| named.get(e).cloned().flatten()).collect())
            }
            OutShardings::Like(like) => {
                let mut taken = vec![0; like.len()];
                let follow = |&e: &usize| {
                    let Some(Some(argument)) = like.get(e) else { return Ok(None) };
                    let of = signature.elements.iter().zip(avals);
                    let mut of = of.filter(|(a, _)| *a == argument).map(|(_, aval)| aval);
                    taken[e] += 1;
                    let aval = of.nth(taken[e] - 1).ok_or_else(|| {
                        let text = format!("result {e} has more tensors than argument {argument}");
                        Error::new(ErrorKind::Tree, "jit", text)
                    })?;
                    Ok(aval.sharding().cloned())
                };
                elements.iter().map(follow).collect()
            }
        }
    }
}
