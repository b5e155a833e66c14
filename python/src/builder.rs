//! Layouts by hand: parameters, storages, and what lies where.

use numpy::PyReadonlyArray2;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBytes};
use reshard_layout::{
    Block, BufferId, Bytes, Dims, Elements, Fill, Geometry, LayoutBuilder as Inner, ParameterId, Rank,
    Region, Shard, ShardId, StorageId, row_major,
};

use crate::affine::{dtype_of, map_of};
use crate::errors;
use crate::layout::Layout;

/// Columns of the array that `place_runs` takes.
const RUN_COLUMNS: usize = 6;

/// Collects a layout, which ``build`` checks and returns.
///
/// ```text
///   builder = reshard.LayoutBuilder()
///   up = builder.parameter("up.weight", (18, 4), "f32")
///   for rank in range(2):                                        # two ranks hold nine rows each
///       buffer = builder.tensor(rank, "up.weight", "f32", 36)
///       builder.place(up, buffer, origin=(9 * rank, 0), shape=(9, 4))
///   layout = builder.build()
/// ```
#[pyclass(module = "reshard")]
#[derive(Default)]
pub(crate) struct LayoutBuilder {
    inner: Inner,
    parameters: Vec<(String, Dims)>,
    storages: u32,
    buffers: u32,
    shards: Vec<(ShardId, Dims)>,
}

/// A box of a shard: origin and extent in the parameter, offset and strides in the shard.
type BlockArguments = (Vec<u64>, Vec<u64>, u64, Option<Vec<u64>>);

#[pymethods]
impl LayoutBuilder {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Adds a logical tensor and returns its number.
    fn parameter(&mut self, py: Python<'_>, name: &str, shape: Vec<u64>, dtype: &str) -> PyResult<u32> {
        let dtype = dtype_of(py, dtype)?;
        let id = self.inner.parameter(name, shape.iter().copied(), dtype);
        if id.index() == self.parameters.len() {
            self.parameters.push((name.to_owned(), Dims::from_vec(shape)));
        }
        Ok(id.0)
    }

    /// Gives a parameter a second name, as tied weights have.
    fn alias(&mut self, py: Python<'_>, name: &str, parameter: u32) -> PyResult<()> {
        let id = self.known_parameter(py, parameter)?;
        self.inner.alias(name, id);
        Ok(())
    }

    /// Adds an allocation of ``bytes`` bytes that a rank owns, and returns its number. Names are unique on a rank.
    fn storage(&mut self, rank: u32, name: &str, bytes: u64) -> u32 {
        self.storages += 1;
        self.inner.storage(Rank(rank), name, Bytes(bytes)).0
    }

    /// Adds a window of a storage, at a byte offset, of ``length`` elements; returns its number.
    fn buffer(
        &mut self,
        py: Python<'_>,
        storage: u32,
        offset: u64,
        dtype: &str,
        length: u64,
    ) -> PyResult<u32> {
        known(py, "storage", storage, self.storages as usize)?;
        let dtype = dtype_of(py, dtype)?;
        self.buffers += 1;
        Ok(self.inner.buffer(StorageId(storage), Bytes(offset), dtype, Elements(length)).0)
    }

    /// Adds a storage that is one tensor of ``length`` elements, and returns the number of its buffer.
    fn tensor(&mut self, py: Python<'_>, rank: u32, name: &str, dtype: &str, length: u64) -> PyResult<u32> {
        let size = dtype_of(py, dtype)?.size();
        let bytes = length.checked_mul(size).ok_or_else(|| {
            errors::usage(py, format!("{name}: {length} elements do not fit in 64 bits of bytes"))
        })?;
        let storage = self.storage(rank, name, bytes);
        self.buffer(py, storage, 0, dtype, length)
    }

    /// Says that a buffer holds a box of a parameter from element ``offset`` on. Without ``origin`` and ``shape`` the
    /// box is the whole parameter; without ``strides`` its elements lie one after another in row-major order. The
    /// stored value is the logical one times ``scale``.
    #[pyo3(signature = (parameter, buffer, *, offset=0, origin=None, shape=None, strides=None, scale=1.0))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn place(
        &mut self,
        py: Python<'_>,
        parameter: u32,
        buffer: u32,
        offset: u64,
        origin: Option<Vec<u64>>,
        shape: Option<Vec<u64>>,
        strides: Option<Vec<u64>>,
        scale: f64,
    ) -> PyResult<()> {
        let id = self.known_parameter(py, parameter)?;
        known(py, "buffer", buffer, self.buffers as usize)?;
        let whole = self.parameters[id.index()].1.clone();
        let block = self.block(py, id, (origin, shape, 0, strides))?;
        let geometry = self.inner.geometry(Geometry::new(whole, [Block { scale, ..block }]));
        self.inner.place(id, BufferId(buffer), Elements(offset), geometry);
        Ok(())
    }

    /// Adds a shard (what one rank of a tensor-parallel group computes with) of parameters of shape ``parameter``:
    /// ``blocks`` are tuples of origin and extent in the parameter, offset in the row-major shard, and strides there
    /// (``None``: the shard's own). ``shape`` is the shard's. Equal shards get one number.
    #[pyo3(signature = (parameter, shape, blocks))]
    fn shard(
        &mut self,
        py: Python<'_>,
        parameter: Vec<u64>,
        shape: Vec<u64>,
        blocks: Vec<BlockArguments>,
    ) -> PyResult<usize> {
        let own = row_major(&shape);
        let mut all = Vec::with_capacity(blocks.len());
        for (origin, extent, offset, strides) in blocks {
            let strides = strides.unwrap_or_else(|| own.to_vec());
            let axes = [origin.len(), extent.len(), strides.len()];
            if axes != [parameter.len(); 3] {
                return Err(errors::usage(
                    py,
                    format!("a block of a parameter with {} axes has {axes:?} axes", parameter.len()),
                ));
            }
            all.push(Block::new(region_of(py, "a block", origin, extent)?, Elements(offset), strides));
        }
        let shape = Dims::from_vec(shape);
        let shard = Shard::new(shape.clone(), Geometry::new(parameter, all));
        Ok(self.keep(shard, shape))
    }

    /// The shards that an affine map over a tensor-parallel group describes (a ``ParamAffineMap``, or its dictionary
    /// form): index in the group -> number of the shard. The map may be in a view of the parameter's shape.
    fn shards(
        &mut self,
        py: Python<'_>,
        name: &str,
        parameter: Vec<u64>,
        affine_map: &Bound<'_, PyAny>,
    ) -> PyResult<std::collections::BTreeMap<u32, usize>> {
        let shards =
            map_of(affine_map)?.shards(name, &parameter).map_err(|error| errors::layout(py, &error))?;
        let keep = |(rank, shard): (u32, Shard)| {
            let shape = Dims::from_slice(shard.shape());
            (rank, self.keep(shard, shape))
        };
        Ok(shards.into_iter().map(keep).collect())
    }

    /// The shape of a shard.
    fn shard_shape(&self, py: Python<'_>, shard: usize) -> PyResult<Vec<u64>> {
        match self.shards.get(shard) {
            Some((_, shape)) => Ok(shape.to_vec()),
            None => {
                Err(errors::usage(py, format!("there is no shard {shard}, there are {}", self.shards.len())))
            }
        }
    }

    /// Says what lies in buffers, a row a run: ``parameter, shard, buffer, offset, first, length``: elements ``first`` to
    /// ``first + length`` of the flattened row-major shard lie from element ``offset`` of the buffer on. Rows of
    /// length 0 say nothing. ``runs`` is an ``int64`` array of shape ``(n, 6)``.
    #[pyo3(signature = (runs: "NDArray[int64]"))]
    fn place_runs(&mut self, py: Python<'_>, runs: PyReadonlyArray2<'_, i64>) -> PyResult<()> {
        let runs = runs.as_array();
        if runs.ncols() != RUN_COLUMNS {
            return Err(errors::usage(py, format!("runs have {} columns, not {RUN_COLUMNS}", runs.ncols())));
        }
        for (row, run) in runs.rows().into_iter().enumerate() {
            let mut numbers = [0u64; RUN_COLUMNS];
            for (number, value) in numbers.iter_mut().zip(run) {
                *number = u64::try_from(*value)
                    .map_err(|_| errors::usage(py, format!("run {row} has the negative number {value}")))?;
            }
            let [parameter, shard, buffer, offset, first, length] = numbers;
            known(py, "parameter", parameter, self.parameters.len())?;
            known(py, "shard", shard, self.shards.len())?;
            known(py, "buffer", buffer, self.buffers as usize)?;
            let (id, buffer) = (ParameterId(narrow(parameter)), BufferId(narrow(buffer)));
            let (shard, _) = self.shards[usize::try_from(shard)?];
            self.inner.place_run(id, buffer, Elements(offset), shard, first..first + length);
        }
        Ok(())
    }

    /// Adds target padding: a box of a buffer whose elements must each hold ``value``, the bytes of one element.
    #[pyo3(signature = (buffer, offset, shape, value, strides=None))]
    fn fill(
        &mut self,
        py: Python<'_>,
        buffer: u32,
        offset: u64,
        shape: Vec<u64>,
        value: &Bound<'_, PyBytes>,
        strides: Option<Vec<u64>>,
    ) -> PyResult<()> {
        known(py, "buffer", buffer, self.buffers as usize)?;
        let strides = strides.map_or_else(|| row_major(&shape), Dims::from_vec);
        self.inner.fill(Fill {
            buffer: BufferId(buffer),
            offset: Elements(offset),
            shape: Dims::from_vec(shape),
            strides,
            value: value.as_bytes().to_vec(),
        });
        Ok(())
    }

    /// Checks everything and returns the layout. Raises ``LayoutError``, whose ``findings`` lists all that is wrong.
    fn build(&self, py: Python<'_>) -> PyResult<Layout> {
        let inner = self.inner.clone();
        py.detach(|| inner.build()).map(Layout::wrap).map_err(|error| errors::layout(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("<LayoutBuilder: {} parameters, {} storages>", self.parameters.len(), self.storages)
    }
}

/// Optional origin and extent, offset and optional strides of a box.
type BoxArguments = (Option<Vec<u64>>, Option<Vec<u64>>, u64, Option<Vec<u64>>);

impl LayoutBuilder {
    fn keep(&mut self, shard: Shard, shape: Dims) -> usize {
        let id = self.inner.shard(shard);
        match self.shards.iter().position(|(known, _)| *known == id) {
            Some(known) => known,
            None => {
                self.shards.push((id, shape));
                self.shards.len() - 1
            }
        }
    }

    fn known_parameter(&self, py: Python<'_>, parameter: u32) -> PyResult<ParameterId> {
        known(py, "parameter", parameter, self.parameters.len())?;
        Ok(ParameterId(parameter))
    }

    fn block(&self, py: Python<'_>, parameter: ParameterId, given: BoxArguments) -> PyResult<Block> {
        let (origin, extent, offset, strides) = given;
        let (name, whole) = &self.parameters[parameter.index()];
        let origin = origin.unwrap_or_else(|| vec![0; whole.len()]);
        let extent = extent.unwrap_or_else(|| whole.to_vec());
        let strides = strides.unwrap_or_else(|| row_major(&extent).to_vec());
        for (what, axes) in [("origin", origin.len()), ("shape", extent.len()), ("strides", strides.len())] {
            if axes != whole.len() {
                let expected = whole.len();
                return Err(errors::usage(
                    py,
                    format!("{name}: {what} has {axes} axes, the parameter {expected}"),
                ));
            }
        }
        Ok(Block::new(region_of(py, name, origin, extent)?, Elements(offset), strides))
    }
}

/// A box whose two corners have been seen to fit in 64 bits; `origin` and `extent` have as many axes.
fn region_of(py: Python<'_>, what: &str, origin: Vec<u64>, extent: Vec<u64>) -> PyResult<Region> {
    if origin.iter().zip(&extent).any(|(start, length)| start.checked_add(*length).is_none()) {
        let message = format!("{what}: box {origin:?}+{extent:?} does not fit in 64 bits");
        return Err(errors::usage(py, message));
    }
    Ok(Region::new(origin, extent))
}

fn known(py: Python<'_>, what: &str, id: impl Into<u64>, count: usize) -> PyResult<()> {
    let id: u64 = id.into();
    if id < count as u64 {
        return Ok(());
    }
    Err(errors::usage(py, format!("there is no {what} {id}, there are {count}")))
}

/// An id that was compared with a count of 32-bit ids.
fn narrow(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}
