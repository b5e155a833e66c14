//! `*_model_states.pt`: what the model computes with, or at stage 3 what there is beside the optimizer's share.
//!
//! ```text
//!   module            every tensor by name; at stage 3 parameters are empty placeholders, buffers are there
//!   param_shapes      by optimizer group: name -> shape of the tensor-parallel shard, in the order of the flat buffer
//!   frozen_param_*    shapes, and at stage 3 slices, of what no optimizer owns
//!   shared_params     second name -> first name (written by rank 0 only)
//! ```

use indexmap::IndexMap;

use super::fault::ZeroFault;
use super::field::Field;
use super::universal_info::UniversalInfo;
use crate::error::FormatError;
use crate::files::{FileId, Files};
use crate::torch::{Tensor, TorchFile};

/// Shapes of tensor-parallel shards by parameter, in the order of a flat buffer.
pub type Shapes = IndexMap<String, Vec<u64>>;

/// A parameter that no optimizer owns.
#[derive(Clone, Debug)]
pub struct FrozenParameter {
    /// The shape of the tensor-parallel shard.
    pub shape: Vec<u64>,
    /// Its values; at stage 3 the slice that this rank keeps.
    pub fragment: Option<Tensor>,
}

/// How many ranks a file says that there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankCounts {
    /// Data-parallel ranks.
    pub data: Option<u64>,
    /// Tensor-parallel ranks.
    pub tensor: Option<u64>,
}

/// One model file.
#[derive(Debug)]
pub struct ModelStates {
    /// The file.
    pub file: FileId,
    /// Every tensor of the module by name: parameters, then or between them buffers.
    pub module: IndexMap<String, Tensor>,
    /// The shapes of what the optimizer owns, by group and in the order of the flat buffer. `None`: no ZeRO.
    pub parameter_shapes: Option<Vec<Shapes>>,
    /// Tensors of the module that are no parameters.
    pub buffers: Vec<String>,
    /// What no optimizer owns, where the file says so (stages 2 and 3).
    pub frozen: IndexMap<String, FrozenParameter>,
    /// Second names of parameters, and the first names.
    pub shared: Vec<(String, String)>,
    /// How many ranks there were.
    pub ranks: RankCounts,
    /// Steps that the trainer had taken.
    pub global_steps: Option<u64>,
    /// DeepSpeed's version.
    pub version: Option<String>,
    /// The stage that the trainer's configuration asks for.
    pub stage: Option<u64>,
    /// Whether the trainer's configuration asks for dealing parameters out to ranks.
    pub round_robin: bool,
    /// Names in the module that are no tensors.
    pub left_out: Vec<String>,
    /// How tensor-parallel shards join, if the trainer said so. A [`Folder`](super::Folder) reads it once.
    pub universal: Option<UniversalInfo>,
}

impl ModelStates {
    /// Reads a model file.
    ///
    /// # Errors
    /// [`FormatError`] naming file and key.
    pub fn open(files: &Files, file: FileId) -> Result<Self, FormatError> {
        Self::read(files, file, true)
    }

    /// As [`open`](Self::open), without what every file says alike and at length: how shards join.
    pub(super) fn read(files: &Files, file: FileId, with_universal: bool) -> Result<Self, FormatError> {
        let torch = TorchFile::open(files, file)?;
        let fault = |fault: ZeroFault| fault.at(files.path(file));
        let root = Field::root(torch.pickle.root());
        let (module, left_out) = module(&torch, &root).map_err(|error| error.map(fault))?;
        let frozen = frozen(&torch, &root).map_err(|error| error.map(fault))?;
        let told = Told::read(&root).map_err(fault)?;
        let universal = root.find("universal_checkpoint_info").map_err(fault)?.filter(|_| with_universal);
        let universal = universal.map(|info| UniversalInfo::read(&info)).transpose().map_err(fault)?;
        Ok(Self {
            file,
            module,
            parameter_shapes: told.parameter_shapes,
            buffers: told.buffers,
            frozen,
            shared: told.shared,
            ranks: told.ranks,
            global_steps: told.global_steps,
            version: told.version,
            stage: told.stage,
            round_robin: told.round_robin,
            left_out,
            universal,
        })
    }
}

/// An error of reading: one that names its file, or a fault that is still to get one.
pub(super) enum ReadError {
    Format(FormatError),
    Fault(ZeroFault),
}

impl ReadError {
    pub(super) fn map(self, fault: impl FnOnce(ZeroFault) -> FormatError) -> FormatError {
        match self {
            Self::Format(error) => error,
            Self::Fault(found) => fault(found),
        }
    }
}

impl From<FormatError> for ReadError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

impl From<ZeroFault> for ReadError {
    fn from(fault: ZeroFault) -> Self {
        Self::Fault(fault)
    }
}

type Module = (IndexMap<String, Tensor>, Vec<String>);

fn module(torch: &TorchFile, root: &Field<'_>) -> Result<Module, ReadError> {
    let (mut tensors, mut left_out) = (IndexMap::new(), Vec::new());
    let Some(module) = root.find("module")? else {
        // A pipeline keeps its layers in files of their own.
        return Err(ZeroFault::Missing { key: "module".to_owned() }.into());
    };
    for (name, field) in module.entries()? {
        match torch.tensor(field.value())? {
            Some(tensor) => {
                tensors.insert(name, tensor);
            }
            None => left_out.push(name),
        }
    }
    Ok((tensors, left_out))
}

fn frozen(torch: &TorchFile, root: &Field<'_>) -> Result<IndexMap<String, FrozenParameter>, ReadError> {
    let mut frozen = IndexMap::new();
    for (name, shape) in
        root.find("frozen_param_shapes")?.map_or(Ok(Vec::new()), |shapes| shapes.entries())?
    {
        frozen.insert(name, FrozenParameter { shape: shape.shape()?, fragment: None });
    }
    for (name, field) in root.find("frozen_param_fragments")?.map_or(Ok(Vec::new()), |all| all.entries())? {
        let tensor = torch.tensor(field.value())?.ok_or_else(|| field.wrong("tensor"))?;
        let missing = || ZeroFault::Missing { key: format!("frozen_param_shapes.{name}") };
        frozen.get_mut(&name).ok_or_else(missing)?.fragment = Some(tensor);
    }
    Ok(frozen)
}

/// What the file says in words and numbers.
struct Told {
    parameter_shapes: Option<Vec<Shapes>>,
    buffers: Vec<String>,
    shared: Vec<(String, String)>,
    ranks: RankCounts,
    global_steps: Option<u64>,
    version: Option<String>,
    stage: Option<u64>,
    round_robin: bool,
}

impl Told {
    fn read(root: &Field<'_>) -> Result<Self, ZeroFault> {
        for key in ["ds_autoep_layers", "autoep_layers"] {
            if root.find(key)?.is_some() {
                return Err(ZeroFault::Experts { key: key.to_owned() });
            }
        }
        let number = |key: &str| root.find(key)?.map(|field| field.number()).transpose();
        let dimensions = root.find("checkpoint_parallel_dimensions")?;
        let degree = |key: &str| match &dimensions {
            Some(dimensions) => dimensions.find(key)?.map(|field| field.number()).transpose(),
            None => Ok(None),
        };
        if let Some(degree) = degree("pp_degree")?.filter(|degree| *degree > 1) {
            return Err(ZeroFault::Pipeline { degree });
        }
        let zero = match root.find("ds_config")? {
            Some(config) => config.find("zero_optimization")?,
            None => None,
        };
        let asked = |key: &str| zero.as_ref().map_or(Ok(None), |zero| zero.find(key));
        let tensor = degree("tp_degree")?.or(number("mp_world_size")?);
        Ok(Self {
            parameter_shapes: parameter_shapes(root)?,
            buffers: match root.find("buffer_names")? {
                Some(names) => names.texts()?.into_iter().map(str::to_owned).collect(),
                None => Vec::new(),
            },
            shared: shared(root)?,
            ranks: RankCounts { data: number("dp_world_size")?, tensor },
            global_steps: number("global_steps")?,
            version: root.find("ds_version")?.map(|version| Ok(version.text()?.to_owned())).transpose()?,
            stage: asked("stage")?.map(|stage| stage.number()).transpose()?,
            round_robin: asked("round_robin_gradients")?.and_then(|asked| asked.value().as_bool())
                == Some(true),
        })
    }
}

fn parameter_shapes(root: &Field<'_>) -> Result<Option<Vec<Shapes>>, ZeroFault> {
    let Some(groups) = root.find("param_shapes")? else { return Ok(None) };
    let shapes = |group: &Field<'_>| -> Result<Shapes, ZeroFault> {
        group.entries()?.into_iter().map(|(name, shape)| Ok((name, shape.shape()?))).collect()
    };
    groups.items()?.iter().map(shapes).collect::<Result<_, _>>().map(Some)
}

fn shared(root: &Field<'_>) -> Result<Vec<(String, String)>, ZeroFault> {
    let Some(shared) = root.find("shared_params")? else { return Ok(Vec::new()) };
    let pairs = shared.entries()?.into_iter().map(|(second, first)| Ok((second, first.text()?.to_owned())));
    pairs.collect()
}
