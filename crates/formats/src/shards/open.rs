//! From a folder to a checkpoint: the files of all ranks, told apart by their metadata and never by their names.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::fault::ShardsFault;
use super::metadata::{KEY, RankLayout, WORLD_MAX};
use super::ranks::{RankFile, Ranks};
use crate::checkpoint::{Checkpoint, Facts, Format, Part};
use crate::error::FormatError;
use crate::files::Files;
use crate::kept::Kept;
use crate::paths::folder_of;
use crate::safetensors::{Header, config_beside, tensor_files, tied};

/// The key of [`Facts::metadata`] under which the topology stands.
pub const TOPOLOGY: &str = "topology";

/// Opens a folder of files of one rank each, or one of these files and with it its folder. Storages belong to the
/// rank that the file's metadata names; the topology is in [`Facts::metadata`] under [`TOPOLOGY`].
///
/// # Errors
/// [`FormatError::Shards`] naming file and reason, also where ranks are absent; [`FormatError::Safetensors`] for
/// files that are none; [`FormatError::Layout`] where the ranks together leave a hole or share bytes.
pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
    let folder = if path.is_file() { folder_of(path) } else { path };
    let names = tensor_files(folder)?;
    if names.len() > WORLD_MAX as usize {
        let fault = ShardsFault::WorldTooLarge { world: names.len(), limit: WORLD_MAX };
        return Err(FormatError::Shards { path: folder.to_owned(), fault });
    }
    let mut files = Files::default();
    let mut facts = Facts::default();
    let mut found: Vec<(PathBuf, RankFile)> = Vec::new();
    for name in names {
        let path = folder.join(&name);
        let (file, metadata) = read(&mut files, &path)?;
        for (key, value) in metadata {
            facts.metadata.entry(key).or_insert(value);
        }
        found.push((path, file));
    }
    found.sort_by_key(|(_, file)| file.layout.rank);
    check_world(folder, &found)?;
    let mut ranks = Ranks::default();
    for (path, file) in &found {
        ranks.add(file).map_err(|fault| FormatError::Shards { path: path.clone(), fault })?;
    }
    facts.packed = ranks.packed();
    if let Some((_, first)) = found.first() {
        facts.metadata.insert(TOPOLOGY.to_owned(), first.layout.topology.clone());
    }
    facts.config = config_beside(folder);
    if let Some((first, second)) = tied(facts.config.as_deref(), |name| ranks.has(name))? {
        ranks.alias(first, second);
    }
    let Ranks { builder, spans, .. } = ranks;
    let root = folder.to_owned();
    let layout = builder.build().map_err(|error| FormatError::Layout { path: root.clone(), error })?;
    let parts = IndexMap::from([(Kept::Weights, Part { layout, spans })]);
    Ok(Checkpoint { format: Format::Shards, root, files, parts, facts })
}

/// Whether a folder holds files of one rank each, or a path is such a file: whether the first has the key.
///
/// # Errors
/// [`FormatError::Safetensors`] for files that are none, [`FormatError::Io`].
pub fn recognise(path: &Path) -> Result<bool, FormatError> {
    let first = if path.is_dir() { tensor_files(path)?.first().map(|name| path.join(name)) } else { None };
    let mut files = Files::default();
    let file = files.add(first.as_deref().unwrap_or(path))?;
    Ok(Header::read(&files, file)?.metadata.contains_key(KEY))
}

/// The layout of one file, and the rest of its metadata.
fn read(files: &mut Files, path: &Path) -> Result<(RankFile, IndexMap<String, String>), FormatError> {
    let file = files.add(path)?;
    let Header { tensors, mut metadata } = Header::read(files, file)?;
    let text = metadata.shift_remove(KEY).ok_or(ShardsFault::NoLayout);
    let layout = text
        .and_then(|text| RankLayout::parse(&text))
        .map_err(|fault| FormatError::Shards { path: path.to_owned(), fault })?;
    Ok((RankFile { file, layout, tensors }, metadata))
}

/// Proves that files in order of their ranks are those of one world, each rank once.
fn check_world(folder: &Path, found: &[(PathBuf, RankFile)]) -> Result<(), FormatError> {
    let Some((first_path, first)) = found.first() else { return Ok(()) };
    let invalid = |path: &Path, fault| Err(FormatError::Shards { path: path.to_owned(), fault });
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (world, topology) = (first.layout.world, &first.layout.topology);
    for (path, file) in found {
        if file.layout.world != world {
            let (expected, found, first) = (world, file.layout.world, name(first_path));
            return invalid(path, ShardsFault::WorldDisagrees { expected, found, first });
        }
        if file.layout.topology != *topology {
            let (expected, found) = (topology.clone(), file.layout.topology.clone());
            let first = name(first_path);
            return invalid(path, ShardsFault::TopologyDisagrees { expected, found, first });
        }
    }
    for pair in found.windows(2) {
        let (rank, first) = (pair[1].1.layout.rank, name(&pair[0].0));
        if pair[0].1.layout.rank == rank {
            return invalid(&pair[1].0, ShardsFault::RankTwice { rank, first });
        }
    }
    if found.len() < world as usize {
        let mut there = found.iter().map(|(_, file)| file.layout.rank).peekable();
        let is_absent = |rank: &u32| there.next_if_eq(rank).is_none();
        let ranks = (0..world).filter(is_absent).map(|rank| rank.to_string()).collect();
        return invalid(folder, ShardsFault::RanksAbsent { world, ranks });
    }
    Ok(())
}
