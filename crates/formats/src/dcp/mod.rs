//! torch.distributed.checkpoint: `.metadata` and `.distcp` files.
//!
//! ```text
//!   .metadata      w (10, 3) = chunks (0, 0)+(5, 3), (5, 0)+(5, 3)
//!   __0_0.distcp   | a file of torch.save: chunk (0, 0) of w | another one ... |
//!   __1_0.distcp   | chunk (5, 0) of w | ...                          each chunk = a storage of the layout
//! ```
//!
//! Where a tensor has holes, torch leaves what it loads into as it was; here that is an error, and so is a chunk that
//! is there twice. What is no tensor is named in the facts and not read.

mod fault;
mod hub;
mod metadata;
mod name;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use reshard_layout::Bytes;

pub use fault::DcpFault;
pub(crate) use hub::recognise;

use crate::checkpoint::{Checkpoint, Facts, Format};
use crate::error::FormatError;
use crate::files::{FileId, Files, Span};
use crate::kept::Kept;
use crate::paths::folder_of;
use crate::pickle::{PICKLE_BYTES_MAX, Pickle};
use crate::safetensors::{config_beside, tensor_files};
use crate::torch::{Tensor, TorchFile, read_scalar};
use metadata::{Chunk, Item, Saved};
use parts::{Parts, Placed};

/// The name of the metadata; that of a rank that saved alone ends so.
pub(crate) const METADATA: &str = ".metadata";
/// The tensor of an optimizer that counts its steps, one a parameter.
const STEP: &str = "step";
/// The text of the facts that lists what is no tensor.
const IGNORED: &str = "ignored";
/// The text of the facts that says that parameters took different numbers of steps.
const STEPS_DIFFER: &str = "steps differ";

/// Opens a checkpoint: the folder, or a file in it. Also a folder of safetensors files into which each rank of a job
/// saved its shards with torch's writer for the Hugging Face hub.
///
/// Weights are what lies below `model`, or outside of any optimizer; what lies below `state` of an optimizer is kept
/// by its name there. Master weights are none of those: torch keeps them as the weights, if at all.
///
/// # Errors
/// [`FormatError::Dcp`] if files are absent or contradict the metadata; [`FormatError::Layout`] if a tensor has holes
/// or overlaps; [`FormatError::Torch`] for a chunk that is no tensor, or of a type that is not supported;
/// [`FormatError::Io`].
pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
    let folder = if path.is_file() { folder_of(path) } else { path };
    let metadata = folder.join(METADATA);
    if folder.is_dir() && !metadata.exists() {
        return without_metadata(folder);
    }
    let mut files = Files::default();
    let file = files.add(&metadata)?;
    let pickle = read(&files, file)?;
    let items = metadata::items(&pickle).map_err(|refused| refused.at(&metadata))?;
    apart(&items).map_err(|fault| FormatError::Dcp { path: metadata.clone(), fault })?;
    let found = find_files(&metadata, folder, &items, &mut files)?;
    let reader = Reader { metadata: &metadata, files: &files, found: &found };
    let mut parts = Parts::default();
    let mut facts = Facts { config: config_beside(folder), ..Facts::default() };
    let (mut ignored, mut steps) = (Vec::new(), Vec::new());
    for item in &items {
        match (&item.tensor, name::meaning(&item.keys)) {
            (Some(saved), Some((Kept::State(state), _))) if state == STEP && saved.shape.is_empty() => {
                steps.push(reader.step(item.name, saved)?);
            }
            (Some(saved), Some((kept, parameter))) => {
                reader.place(item.name, saved, (&kept, &parameter), &mut parts)?
            }
            _ => ignored.push(item.name),
        }
    }
    facts.step = steps.first().copied().filter(|first| steps.iter().all(|step| step == first));
    if facts.step.is_none() && !steps.is_empty() {
        facts.metadata.insert(STEPS_DIFFER.to_owned(), steps.len().to_string());
    }
    if !ignored.is_empty() {
        facts.metadata.insert(IGNORED.to_owned(), ignored.join(", "));
    }
    let parts = parts.finish(folder)?;
    Ok(Checkpoint { format: Format::Dcp, root: folder.to_owned(), files, parts, facts })
}

/// A folder without `.metadata`.
fn without_metadata(folder: &Path) -> Result<Checkpoint, FormatError> {
    let failed = |cause| FormatError::io("list", folder, cause);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if name.to_string_lossy().ends_with(METADATA) {
            return Err(FormatError::Dcp { path: folder.to_owned(), fault: DcpFault::SavedAlone });
        }
    }
    if tensor_files(folder).is_err() {
        return Err(FormatError::Dcp { path: folder.to_owned(), fault: DcpFault::NoMetadata });
    }
    hub::open(folder)
}

fn read(files: &Files, file: FileId) -> Result<Pickle, FormatError> {
    let fail = |fault: DcpFault| FormatError::Dcp { path: files.path(file).to_owned(), fault };
    let (bytes, max) = (files.length(file).0, PICKLE_BYTES_MAX);
    if bytes > max {
        return Err(fail(DcpFault::TooLong { bytes, max }));
    }
    let mut buffer = vec![0; bytes as usize];
    files.read_at(file, Bytes(0), &mut buffer)?;
    Pickle::read(&buffer).map_err(|fault| fail(fault.into()))
}

/// Checks that no two chunks lie in the same bytes, so that no byte is looked at twice.
fn apart(items: &[Item<'_>]) -> Result<(), DcpFault> {
    let chunks = items.iter().flat_map(|item| {
        let chunks = item.tensor.iter().flat_map(|saved| &saved.chunks);
        chunks.map(|chunk| (chunk.place.file, chunk.place.offset, chunk.place.length, item.name))
    });
    let mut places: Vec<_> = chunks.collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        let [(before, offset, length, one), (after, next, _, other)] = pair else { continue };
        if before == after && offset.checked_add(*length).is_none_or(|end| end > *next) {
            return Err(DcpFault::SharedBytes { one: (*one).to_owned(), other: (*other).to_owned() });
        }
    }
    Ok(())
}

/// The files that hold chunks of tensors.
fn find_files<'a>(
    metadata: &Path,
    folder: &Path,
    items: &[Item<'a>],
    files: &mut Files,
) -> Result<BTreeMap<&'a str, FileId>, FormatError> {
    let chunks = || items.iter().filter_map(|item| item.tensor.as_ref()).flat_map(|saved| &saved.chunks);
    let names: BTreeSet<&str> = chunks().map(|chunk| chunk.place.file).collect();
    let missing: BTreeSet<&str> = names.iter().copied().filter(|name| !folder.join(name).is_file()).collect();
    if !missing.is_empty() {
        let chunks = chunks().filter(|chunk| missing.contains(chunk.place.file)).count() as u64;
        let fault =
            DcpFault::MissingFiles { files: missing.into_iter().map(str::to_owned).collect(), chunks };
        return Err(FormatError::Dcp { path: metadata.to_owned(), fault });
    }
    names.into_iter().map(|name| Ok((name, files.add(&folder.join(name))?))).collect()
}

/// Reads where the chunks of tensors lie.
struct Reader<'a> {
    metadata: &'a Path,
    files: &'a Files,
    found: &'a BTreeMap<&'a str, FileId>,
}

impl Reader<'_> {
    fn place(
        &self,
        name: &str,
        saved: &Saved<'_>,
        (kept, parameter): (&Kept, &str),
        parts: &mut Parts,
    ) -> Result<(), FormatError> {
        let id = parts.parameter(kept, parameter, &saved.shape, saved.dtype);
        for chunk in &saved.chunks {
            let Tensor { strides, offset, storage, .. } = self.tensor(name, saved, chunk)?;
            let Chunk { offsets, sizes, .. } = chunk;
            let placed = Placed { offsets, sizes, span: storage, first: offset, strides: &strides };
            parts.place(self.files, (kept, id), (&saved.shape, saved.dtype), &placed);
        }
        Ok(())
    }

    /// The tensor that lies where the metadata says that a chunk lies.
    fn tensor(&self, name: &str, saved: &Saved<'_>, chunk: &Chunk<'_>) -> Result<Tensor, FormatError> {
        let place = chunk.place;
        let file = self.found[place.file];
        let span = Span { file, offset: Bytes(place.offset), length: Bytes(place.length) };
        let file = TorchFile::open_span(self.files, span)?;
        let root = file.pickle.root();
        let found = match file.tensor(root)? {
            Some(tensor) if tensor.dtype == saved.dtype && tensor.shape == chunk.sizes => return Ok(tensor),
            Some(other) => format!("{} {:?}", other.dtype, other.shape),
            None => root.node().what().to_owned(),
        };
        let (name, offsets, sizes) = (name.to_owned(), chunk.offsets.clone(), chunk.sizes.clone());
        let fault = DcpFault::OtherTensor { name, offsets, found, dtype: saved.dtype, sizes };
        Err(FormatError::Dcp { path: self.metadata.to_owned(), fault })
    }

    fn step(&self, name: &str, saved: &Saved<'_>) -> Result<u64, FormatError> {
        let fault = || DcpFault::Metadata { what: STEP, name: name.to_owned() };
        let fail = || FormatError::Dcp { path: self.metadata.to_owned(), fault: fault() };
        let chunk = saved.chunks.first().ok_or_else(fail)?;
        let step = read_scalar(self.files, &self.tensor(name, saved, chunk)?)?;
        // A float counts exactly up to 2^53.
        let is_count = step.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&step);
        if is_count { Ok(step as u64) } else { Err(fail()) }
    }
}
