//! What the files of all ranks are to hold.

use std::path::PathBuf;

use indexmap::IndexMap;
use reshard_layout::{DType, Shard, volume};

use super::fault::ShardsFault;
use super::metadata::{BOXES_MAX, Entry, KEY, RankLayout, WORLD_MAX};
use super::ranks::{RankFile, Ranks};
use crate::checkpoint::Part;
use crate::error::FormatError;
use crate::files::FileId;
use crate::output::TargetFile;
use crate::safetensors::{RESERVED_NAME, SafetensorsFault, StoredType, Tensor, file};

/// What errors call the files of all ranks together.
const ALL_FILES: &str = "model-rank-*.safetensors";

/// What one rank is to hold of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSpec {
    /// The parameter.
    pub parameter: String,
    /// The parameter's whole shape.
    pub shape: Vec<u64>,
    /// The type of its elements.
    pub dtype: DType,
    /// Which boxes of it lie where in the rank's tensor. They fill the tensor.
    pub shard: Shard,
    /// Stored type and shape, where the parameter is of a type below a byte and lies as bytes in the layout: as in
    /// [`Facts::packed`](crate::Facts::packed).
    pub packed: Option<(String, Vec<u64>)>,
}

/// Lays out a file for each rank, `model-rank-00003-of-00008.safetensors`. A rank without a shard of a parameter has
/// no entry for it. The metadata `format` is `pt` unless it is given.
///
/// # Errors
/// [`FormatError::Shards`] naming parameter and rank; [`FormatError::Safetensors`] for names that are given twice or
/// reserved; [`FormatError::Layout`] where the ranks together leave a hole.
pub fn folder(
    ranks: &[Vec<ShardSpec>],
    topology: &str,
    metadata: &IndexMap<String, String>,
) -> Result<(Vec<TargetFile>, Part), FormatError> {
    let too_large = ShardsFault::WorldTooLarge { world: ranks.len(), limit: WORLD_MAX };
    let Some(world) = u32::try_from(ranks.len()).ok().filter(|world| *world <= WORLD_MAX) else {
        return Err(FormatError::Shards { path: PathBuf::from(ALL_FILES), fault: too_large });
    };
    let mut files = Vec::with_capacity(ranks.len());
    let mut all = Ranks::default();
    for (rank, specs) in (0..world).zip(ranks) {
        let name = format!("model-rank-{rank:05}-of-{world:05}.safetensors");
        let of_shards = |fault| FormatError::Shards { path: PathBuf::from(&name), fault };
        let of_file = |fault| FormatError::Safetensors { path: PathBuf::from(&name), fault };
        let mut layout = RankLayout { rank, world, topology: topology.to_owned(), entries: IndexMap::new() };
        let mut tensors = Vec::with_capacity(specs.len());
        for spec in specs {
            if spec.parameter == RESERVED_NAME {
                return Err(of_file(SafetensorsFault::ReservedName));
            }
            check(rank, spec).map_err(of_shards)?;
            let entry = Entry::of(spec.shard.shape(), spec.shard.geometry(), spec.packed.clone());
            if layout.entries.insert(spec.parameter.clone(), entry).is_some() {
                return Err(of_file(SafetensorsFault::RepeatedName { name: spec.parameter.clone() }));
            }
            tensors.push(tensor(spec, &of_shards, &of_file)?);
        }
        let mut metadata = metadata.clone();
        metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
        metadata.insert(KEY.to_owned(), layout.to_json().map_err(of_shards)?);
        files.push(file(&name, &mut tensors, &metadata).map_err(of_file)?);
        let rank_file = RankFile { file: FileId(rank), layout, tensors };
        all.add(&rank_file).map_err(of_shards)?;
    }
    let layout =
        all.builder.build().map_err(|error| FormatError::Layout { path: PathBuf::from(ALL_FILES), error })?;
    Ok((files, Part { layout, spans: all.spans }))
}

/// Whether the file can say what the shard is.
fn check(rank: u32, spec: &ShardSpec) -> Result<(), ShardsFault> {
    let parameter = spec.parameter.clone();
    let geometry = spec.shard.geometry();
    if geometry.shape() != spec.shape {
        return Err(ShardsFault::NotABox { parameter, shape: spec.shape.clone() });
    }
    let blocks = geometry.blocks();
    if blocks.len() > BOXES_MAX {
        return Err(ShardsFault::TooManyBoxes { parameter, boxes: blocks.len(), limit: BOXES_MAX });
    }
    if blocks.iter().any(|block| block.scale != 1.0) {
        return Err(ShardsFault::Scaled { parameter, rank });
    }
    let (elements, held) = (volume(spec.shard.shape()).unwrap_or(u64::MAX), geometry.volume().0);
    if elements != held {
        return Err(ShardsFault::Padded { parameter, rank, elements, held });
    }
    Ok(())
}

fn tensor(
    spec: &ShardSpec,
    of_shards: &impl Fn(ShardsFault) -> FormatError,
    of_file: &impl Fn(SafetensorsFault) -> FormatError,
) -> Result<Tensor, FormatError> {
    let name = spec.parameter.clone();
    let Some(stored) = StoredType::of(spec.dtype) else {
        return Err(of_shards(ShardsFault::UnknownType { parameter: name, dtype: spec.dtype }));
    };
    let shape = spec.shard.shape().to_vec();
    let length = stored.bytes(&name, &shape).map_err(of_file)?;
    Ok(Tensor { name, stored, shape, range: 0..length })
}
