//! Tensors over a mesh: `shard`, `with_sharding_constraint`, and a picture of what lies where.

use super::wrap;
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::{Mesh, NamedSharding, PartitionSpec};
use crate::ops;
use crate::trace::cell::Tensor;
use std::fmt::Write;

impl Tensor {
    /// The tensor split over a mesh, as `jax.device_put` with a `NamedSharding`: eager operations
    /// and `jit` follow the data from then on. Inside of `jit` it is a constraint.
    ///
    /// # Errors
    /// If the spec names an axis that the mesh does not have, has more entries than the tensor
    /// dims, or a size does not divide evenly.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let mesh = Mesh::new(&Client::host(4).devices(), [("data", 4)])?;
    /// let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [4])?.shard(&mesh, spec!["data"])?;
    /// assert_eq!(x.aval().to_string(), "f32[4@data]");
    /// assert_eq!(x.to_vec::<f32>()?, [1., 2., 3., 4.]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn shard(&self, mesh: &Mesh, spec: PartitionSpec) -> Result<Tensor> {
        wrap(
            NamedSharding::new(mesh, spec)
                .and_then(|sharding| ops::sharding_constraint(&self.value()?, &sharding)),
        )
    }

    /// [`shard`](Tensor::shard) with a sharding that is made already
    /// (`jax.lax.with_sharding_constraint`).
    ///
    /// # Errors
    /// As for [`shard`](Tensor::shard).
    #[track_caller]
    pub fn with_sharding_constraint(&self, sharding: &NamedSharding) -> Result<Tensor> {
        wrap(self.value().and_then(|value| ops::sharding_constraint(&value, sharding)))
    }

    /// How the tensor is split; none for a tensor on one device, and inside of `jit`, where the
    /// compiler decides.
    ///
    /// # Errors
    /// If the tensor was made inside of a transform that has ended.
    pub fn sharding(&self) -> Result<Option<NamedSharding>> {
        Ok(self.value()?.aval().sharding().cloned())
    }

    /// A picture of which devices hold which part of a tensor of one or two dims.
    ///
    /// # Errors
    /// If the tensor has more than two dims, or is traced.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let mesh = Mesh::new(&Client::host(4).devices(), [("data", 2), ("model", 2)])?;
    /// let x = Tensor::zeros([4, 4], DType::F32)?.shard(&mesh, spec!["data", None])?;
    /// let picture = x.visualize_sharding()?;
    /// assert!(picture.contains("host 0,1"), "{picture}");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn visualize_sharding(&self) -> Result<String> {
        let value = self.value()?;
        let array = value.concrete("visualize_sharding")?;
        let aval = array.aval();
        if aval.rank() > 2 {
            let text = format!("draws tensors of one or two dims, not {aval}");
            return Err(Error::new(ErrorKind::Shape, "visualize_sharding", text));
        }
        let Some(sharding) = aval.sharding() else {
            return Ok(grid(&[vec![self.device()?.to_string().replace(':', " ")]]));
        };
        let platform = crate::Client::by_id(sharding.mesh().device_ids()[0].client)?;
        let (rows, columns) = (
            if aval.rank() > 1 { sharding.parts(0) } else { 1 },
            if aval.rank() > 0 { sharding.parts(aval.rank() - 1) } else { 1 },
        );
        let mut cells = vec![vec![Vec::new(); columns]; rows];
        for (position, id) in sharding.mesh().device_ids().iter().enumerate() {
            let ranges = sharding.shard_ranges(aval.shape(), position);
            let part = |r: &std::ops::Range<usize>| r.start / r.len().max(1);
            let column = ranges.last().map_or(0, part);
            let row = if ranges.len() > 1 { part(&ranges[0]) } else { 0 };
            cells[row][column].push(id.index.to_string());
        }
        let name = |ids: &Vec<String>| format!("{} {}", platform.platform(), ids.join(","));
        let cells: Vec<Vec<String>> =
            cells.iter().map(|row| row.iter().map(name).collect()).collect();
        Ok(grid(&cells))
    }
}

/// A table with one cell for each part.
fn grid(cells: &[Vec<String>]) -> String {
    let width = cells.iter().flatten().map(String::len).max().unwrap_or(0) + 2;
    let columns = cells.first().map_or(0, Vec::len);
    let rule = format!("+{}\n", format!("{}+", "-".repeat(width)).repeat(columns));
    let mut out = rule.clone();
    for row in cells {
        for cell in row {
            // Writing to a `String` cannot fail.
            let _ = write!(out, "|{cell:^width$}");
        }
        out.push_str("|\n");
        out.push_str(&rule);
    }
    out
}
