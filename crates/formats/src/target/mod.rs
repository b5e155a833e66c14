//! What a checkpoint is converted into: which files, and which box of which parameter lies where in them.
//!
//! ```text
//!   Checkpoint + Target::HuggingFace { file size, tied names }  ─►  Output: files, known bytes, layouts
//!              + Target::Shards { topology }
//!              + Target::Universal, Target::Zero
//! ```

mod tensors;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use reshard_layout::{DType, Shard};
use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::{AutoTp, Topology};
use reshard_parallel::zero::{Stage, ZeroOptions};

use crate::checkpoint::{Checkpoint, Format, Part};
use crate::error::FormatError;
use crate::files::FileId;
use crate::kept::Kept;
use crate::output::{Output, TargetFile};
use crate::safetensors::TensorSpec;
use crate::shards::ShardSpec;
use crate::universal::UniversalOptions;
use crate::{safetensors, shards, universal, zero};

use tensors::{Selected, selected};

/// What becomes of the second name of a tied weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tied {
    /// It is left out: readers tie by the model's config.
    #[default]
    Drop,
    /// It is written as a tensor of its own, with equal bytes.
    Duplicate,
}

/// What is taken of a source.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Which tensors; the weights if there is none. Several are written to a folder each.
    pub kept: Vec<Kept>,
    /// The float type to write instead of the source's. Tensors that are no floats keep theirs.
    pub dtype: Option<DType>,
    /// What becomes of second names.
    pub tied: Tied,
}

/// What to write.
#[derive(Clone, Debug)]
pub enum Target {
    /// A Hugging Face folder: safetensors of whole tensors, with an index if there are several files.
    HuggingFace {
        /// What is taken.
        selection: Selection,
        /// The most bytes of tensors in a file; a tensor that has more gets a file of its own.
        file_bytes_max: u64,
    },
    /// A safetensors file for each rank of a topology.
    Shards {
        /// What is taken.
        selection: Selection,
        /// Which ranks.
        topology: Topology,
    },
    /// A DeepSpeed Universal checkpoint.
    Universal(UniversalOptions),
    /// A DeepSpeed ZeRO checkpoint.
    Zero {
        /// Which ranks, and which stage.
        topology: Topology,
    },
}

impl Target {
    /// Lays out what is to be written of `source`. `config` is the model's `config.json`, which topologies need; where
    /// there is none, one that lies beside the source is taken.
    ///
    /// # Errors
    /// [`FormatError::NotKept`] for a tensor that the source does not keep, [`FormatError::ConfigMissing`], and what
    /// the format's writer refuses.
    pub fn output(&self, source: &Checkpoint, config: Option<&Path>) -> Result<Output, FormatError> {
        let config = config.or(source.facts.config.as_deref());
        match self {
            Self::HuggingFace { selection, file_bytes_max } => {
                let mut output = written(source, selection, |tensors, metadata| {
                    let specs: Vec<TensorSpec> = tensors.iter().map(Selected::to_tensor).collect();
                    safetensors::folder(&specs, metadata, *file_bytes_max)
                })?;
                companions(source, config, &mut output)?;
                Ok(output)
            }
            Self::Shards { selection, topology } => {
                let engine = engine(config, topology, "shards")?;
                let topology = topology.to_string();
                let mut output = written(source, selection, |tensors, metadata| {
                    let ranks = ranks(source, &engine, tensors)?;
                    shards::folder(&ranks, &topology, metadata)
                })?;
                companions(source, config, &mut output)?;
                Ok(output)
            }
            Self::Universal(options) => universal::output(source, options),
            Self::Zero { topology } => zero::write::output(source, &engine(config, topology, "zero")?),
        }
    }
}

/// One folder of files for each tensor that is taken; for one alone the folder itself.
fn written(
    source: &Checkpoint,
    selection: &Selection,
    write: impl Fn(&[Selected], &IndexMap<String, String>) -> Result<(Vec<TargetFile>, Part), FormatError>,
) -> Result<Output, FormatError> {
    let weights = [Kept::Weights];
    let kept = if selection.kept.is_empty() { &weights[..] } else { &selection.kept };
    let mut output = Output::default();
    for kept in kept {
        let tensors = selected(source, kept, selection)?;
        let metadata = IndexMap::from([("format".to_owned(), "pt".to_owned())]);
        let (files, part) = write(&tensors, &metadata)?;
        let folder = if selection.kept.len() > 1 { PathBuf::from(kept.name()) } else { PathBuf::new() };
        output.add(kept.clone(), &folder, files, part);
    }
    Ok(output)
}

impl Output {
    /// Adds the files of one part under a folder of the output.
    pub(crate) fn add(&mut self, kept: Kept, folder: &Path, files: Vec<TargetFile>, mut part: Part) {
        let first = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        for span in &mut part.spans {
            span.file = FileId(span.file.0 + first);
        }
        self.files.extend(files.into_iter().map(|file| TargetFile { path: folder.join(&file.path), ..file }));
        self.parts.insert(kept, part);
    }
}

/// Which shard of each tensor each rank of a tensor-parallel group gets. Tensors of the source that are no parameters
/// of the model go whole to every rank.
fn ranks(
    source: &Checkpoint,
    engine: &DeepSpeed,
    tensors: &[Selected],
) -> Result<Vec<Vec<ShardSpec>>, FormatError> {
    let known: IndexMap<&str, usize> =
        engine.parameters().iter().enumerate().map(|(at, parameter)| (parameter.name.as_str(), at)).collect();
    let held: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let missing = engine.parameters().iter().find(|wanted| !held.contains(wanted.name.as_str()));
    if let Some(parameter) = missing {
        let (path, parameter) = (source.root.clone(), parameter.name.clone());
        return Err(FormatError::ParameterMissing { path, parameter });
    }
    let of_rank = |tp_rank: u32| {
        let mut specs = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let shard = match known.get(tensor.name.as_str()) {
                Some(&at) if engine.parameters()[at].shape == tensor.shape => {
                    engine.cuts()[at].shard(&tensor.shape, tp_rank)
                }
                Some(&at) => return Err(tensor.other_shape(source, &engine.parameters()[at].shape)),
                None if source.facts.buffers.contains(&tensor.name) => whole(&tensor.shape),
                None => return Err(tensor.unknown(source)),
            };
            specs.push(tensor.to_shard(shard));
        }
        Ok(specs)
    };
    (0..engine.topology().tp().get()).map(of_rank).collect()
}

fn whole(shape: &[u64]) -> Shard {
    Shard::of_box(shape, reshard_layout::Region::new(vec![0; shape.len()], shape.to_vec()))
}

/// The model on the ranks of a topology.
fn engine(config: Option<&Path>, topology: &Topology, to: &'static str) -> Result<DeepSpeed, FormatError> {
    let Topology::AutoTp(topology) = topology else {
        let topology = topology.to_string();
        return Err(FormatError::TopologyUnsupported { topology, to, reason: "of another engine" });
    };
    check_topology(topology, to)?;
    let config = config.ok_or_else(|| FormatError::ConfigMissing { topology: topology.to_string() })?;
    let text = String::from_utf8(safetensors::read_text(config)?)
        .map_err(|cause| FormatError::io("read", config, std::io::Error::other(cause.utf8_error())))?;
    Ok(DeepSpeed::new(&ModelConfig::from_json(&text)?, topology, ZeroOptions::default())?)
}

fn check_topology(topology: &AutoTp, to: &'static str) -> Result<(), FormatError> {
    let flat = topology.dp().get() == 1 && topology.stage() == Stage::Zero;
    let reason = match to {
        _ if topology.copies().get() > 1 => "of several copies: one is written, and read as often as wanted",
        "shards" if !flat => "with dp or zero: a file a tensor-parallel rank is written",
        "zero" if topology.stage() == Stage::Zero => "of stage 0: a ZeRO checkpoint has zero=1, 2 or 3",
        _ => return Ok(()),
    };
    Err(FormatError::TopologyUnsupported { topology: topology.to_string(), to, reason })
}

/// Files that make a folder of weights a model: the config, and what else lies beside the source's weights.
fn companions(source: &Checkpoint, config: Option<&Path>, output: &mut Output) -> Result<(), FormatError> {
    if let Some(config) = config {
        output.copied.push((config.to_owned(), PathBuf::from("config.json")));
    }
    let is_model = matches!(source.format, Format::HuggingFace | Format::Shards);
    let beside = source.facts.config.as_deref().filter(|_| is_model).and_then(Path::parent);
    let Some(beside) = beside else { return Ok(()) };
    let io = |cause| FormatError::io("list", beside, cause);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(beside).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.is_file() && is_companion(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    for path in paths {
        let Some(name) = path.file_name().map(PathBuf::from) else { continue };
        output.copied.push((path, name));
    }
    Ok(())
}

/// Tokenizers, generation settings, templates, code and licences; no weights, no index, and not the config itself.
fn is_companion(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let is_text = matches!(extension, "json" | "txt" | "model" | "jinja" | "py" | "md" | "tiktoken");
    let is_licence = ["LICENSE", "NOTICE"].contains(&name);
    (is_text || is_licence) && name != "config.json" && !name.ends_with(".index.json")
}
