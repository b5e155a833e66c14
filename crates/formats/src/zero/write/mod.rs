//! ZeRO checkpoints, written: for another topology or stage, or by a trainer of one's own.
//!
//! ```text
//!   DeepSpeed engine ──what lies where──┐                          latest
//!                                       ├─► Output: <tag>/mp_rank_00_model_states.pt      weights of tp rank 0
//!   Checkpoint  ──steps, hyper-  ───────┤          <tag>/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt
//!   TrainerState  parameters            ┘          a storage of a file = a storage of a rank, byte for byte
//! ```

mod fault;
mod info;
mod model;
mod optimizer;
mod part;
mod record;
mod source;
mod trainer;
mod tree;

pub use fault::ZeroWriteFault;
pub use trainer::{AdamGroup, TrainerState};

pub(crate) use record::{Record, stage_enum};
pub(crate) use source::{LATEST_UNIVERSAL, OPTIMIZER_STATE, Opened, Origin, UNIVERSAL_ENDING};
pub(crate) use tree::{Tree, file};

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use reshard_layout::{DType, Elements, Rank};
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::topology::Slot;
use reshard_parallel::zero::Stage;

use super::files::LATEST;
use crate::checkpoint::Checkpoint;
use crate::error::FormatError;
use crate::files::FileId;
use crate::kept::Kept;
use crate::output::{Known, Output, TargetFile};
use crate::paths::is_name;
use model::BufferSpec;
use optimizer::Flats;
use part::PartDraft;

/// The files of a ZeRO checkpoint, and who writes each.
#[derive(Clone, Debug)]
pub struct ZeroFiles {
    /// The files. The storages of its parts are those of the ranks: same order, same bytes, padding included.
    pub output: Output,
    /// The rank that writes each file.
    pub writers: Vec<Rank>,
}

/// The ZeRO checkpoint of an engine that goes on where `source` stands. The folder holds `latest` and `<tag>/`.
///
/// # Errors
/// [`FormatError::ZeroWrite`] if the topology has no ZeRO checkpoint or the source does not say what a trainer needs;
/// errors of reading.
pub fn output(source: &Checkpoint, engine: &DeepSpeed) -> Result<Output, FormatError> {
    let origin = Origin::open(source)?;
    let record = origin.record()?;
    let record = Record { config: origin.config_for(engine)?, ..record };
    let Some(weights) = source.parts.get(&Kept::Weights) else {
        return Err(ZeroWriteFault::NoMaster.at(&source.root));
    };
    let mut frozen = source.facts.frozen.iter().filter(|name| weights.layout.find(name).is_some());
    if let Some(first) = frozen.next() {
        let fault = ZeroWriteFault::Frozen { parameter: first.clone(), others: frozen.count() };
        return Err(fault.at(&source.root));
    }
    let buffer = |name: &String| {
        let parameter = weights.layout.parameter(weights.layout.find(name)?);
        Some(BufferSpec { name: name.clone(), shape: parameter.shape.to_vec(), dtype: parameter.dtype })
    };
    let buffers: Vec<BufferSpec> = source.facts.buffers.iter().filter_map(buffer).collect();
    let states = source.parts.keys().filter_map(|kept| match kept {
        Kept::State(name) => Some(name.clone()),
        Kept::Weights | Kept::Master => None,
    });
    let states: Vec<String> = states.collect();
    Ok(assemble(engine, &record, &states, &buffers, &source.root)?.output)
}

/// The ZeRO checkpoint of a trainer that keeps what `engine` describes, with AdamW's two moments.
///
/// # Errors
/// [`FormatError::ZeroWrite`] if the topology has no ZeRO checkpoint, or the state does not fit the engine.
pub fn files(engine: &DeepSpeed, state: &TrainerState) -> Result<ZeroFiles, FormatError> {
    let root = Path::new(&state.tag);
    let record = state.record(engine).map_err(|fault| fault.at(root))?;
    let states = [State::ExpAvg, State::ExpAvgSq].map(|state| state.name().to_owned());
    assemble(engine, &record, &states, &[], root)
}

/// The parameters of each optimizer group, over all tensor-parallel ranks.
fn members(engine: &DeepSpeed) -> Vec<Vec<usize>> {
    let mut members: Vec<Vec<usize>> = Vec::new();
    let mut add = |group: usize, parameters: Vec<usize>| {
        members.resize_with(members.len().max(group + 1), Vec::new);
        members[group].extend(parameters);
    };
    for tp_rank in 0..engine.topology().tp().get() {
        if engine.topology().stage() == Stage::Three {
            for group in engine.sub_groups(tp_rank) {
                add(group.group, group.entries.iter().map(|entry| entry.parameter).collect());
            }
        } else {
            for (index, group) in engine.flat_groups(tp_rank).iter().enumerate() {
                add(index, group.entries().iter().map(|entry| entry.parameter).collect());
            }
        }
    }
    members
}

fn assemble(
    engine: &DeepSpeed,
    record: &Record<'_>,
    states: &[String],
    buffers: &[BufferSpec],
    root: &Path,
) -> Result<ZeroFiles, FormatError> {
    let topology = engine.topology();
    let fault = if topology.stage() == Stage::Zero {
        Some(ZeroWriteFault::StageZero)
    } else if topology.world() != topology.tp().get() * topology.dp().get() {
        Some(ZeroWriteFault::Copies { copies: topology.world() / topology.tp().get() / topology.dp().get() })
    } else if !is_folder_name(&record.tag) {
        Some(ZeroWriteFault::Tag { tag: record.tag.clone() })
    } else {
        let expected = members(engine).len();
        (record.groups.len() != expected)
            .then_some(ZeroWriteFault::Groups { expected, found: record.groups.len() })
    };
    if let Some(fault) = fault {
        return Err(fault.at(root));
    }
    let mut writer = Writer {
        engine,
        record,
        states,
        buffers,
        folder: PathBuf::from(&record.tag),
        files: Vec::new(),
        writers: Vec::new(),
        weights: PartDraft::new(engine.dtype()),
        kept: IndexMap::new(),
    };
    for slot in topology.slots() {
        writer.model_states(slot)?;
        writer.optimizer_states(slot)?;
    }
    writer.finish(root)
}

/// Whether a tag can be the name of the folder of a checkpoint.
pub(crate) fn is_folder_name(tag: &str) -> bool {
    is_name(tag) && !tag.contains(['\\', '\n'])
}

struct Writer<'a, 'r> {
    engine: &'a DeepSpeed,
    record: &'a Record<'r>,
    states: &'a [String],
    buffers: &'a [BufferSpec],
    folder: PathBuf,
    files: Vec<TargetFile>,
    writers: Vec<Rank>,
    weights: PartDraft,
    kept: IndexMap<Kept, PartDraft>,
}

impl Writer<'_, '_> {
    /// Stages 1 and 2: one file for a data-parallel group, by its first rank.
    fn model_states(&mut self, slot: Slot) -> Result<(), FormatError> {
        let sliced = self.engine.topology().stage() == Stage::Three;
        let place = self.engine.topology().place(slot);
        if !sliced && place.dp_rank > 0 {
            return Ok(());
        }
        let name = if sliced {
            format!("zero_pp_rank_{}_mp_rank_{:02}_model_states.pt", place.dp_rank, place.tp_rank)
        } else {
            format!("mp_rank_{:02}_model_states.pt", place.tp_rank)
        };
        let stored = self.engine.weights(slot);
        let flats = if sliced { &[][..] } else { &stored.storages };
        let mut storages: Vec<(DType, Elements)> =
            flats.iter().map(|flat| (flat.dtype, flat.length)).collect();
        let elements = |buffer: &BufferSpec| Elements(buffer.shape.iter().product());
        storages.extend(self.buffers.iter().map(|buffer| (buffer.dtype, elements(buffer))));
        let tree = model::contents(self.engine, self.record, self.buffers, place.tp_rank, place.dp_rank);
        let (file, offsets) = self.add(slot, &name, &tree, &storages)?;
        if !sliced {
            self.weights.add(self.engine, &stored, file, &offsets);
        }
        for (buffer, offset) in self.buffers.iter().zip(&offsets[flats.len()..]) {
            self.weights.add_buffer(buffer, stored.rank, file, *offset);
        }
        Ok(())
    }

    fn optimizer_states(&mut self, slot: Slot) -> Result<(), FormatError> {
        let place = self.engine.topology().place(slot);
        let prefix = if self.engine.dtype() == DType::Bf16 { "bf16_" } else { "" };
        let name =
            format!("{prefix}zero_pp_rank_{}_mp_rank_{:02}_optim_states.pt", place.dp_rank, place.tp_rank);
        // Every state lies as the master does.
        let stored = self.engine.optimizer(slot, State::Fp32);
        let lengths: Vec<Elements> = stored.storages.iter().map(|flat| flat.length).collect();
        let kept: Vec<Kept> =
            [Kept::Master].into_iter().chain(self.states.iter().cloned().map(Kept::State)).collect();
        let storages: Vec<(DType, Elements)> =
            kept.iter().flat_map(|_| lengths.iter().map(|length| (DType::F32, *length))).collect();
        let flats = Flats { states: self.states, lengths };
        let tree = optimizer::contents(self.engine, self.record, &flats, place.tp_rank, place.dp_rank);
        let (file, offsets) = self.add(slot, &name, &tree, &storages)?;
        for (kept, offsets) in kept.into_iter().zip(offsets.chunks(stored.storages.len().max(1))) {
            let draft = self.kept.entry(kept).or_insert_with(|| PartDraft::new(DType::F32));
            draft.add(self.engine, &stored, file, offsets);
        }
        Ok(())
    }

    fn add(
        &mut self,
        slot: Slot,
        name: &str,
        tree: &Tree<'_>,
        storages: &[(DType, Elements)],
    ) -> Result<(FileId, Vec<u64>), FormatError> {
        let (file, offsets) = file(self.folder.join(name), tree, storages)?;
        self.files.push(file);
        self.writers.push(self.engine.topology().rank(slot));
        Ok((FileId(u32::try_from(self.files.len() - 1).unwrap_or(u32::MAX)), offsets))
    }

    fn finish(mut self, root: &Path) -> Result<ZeroFiles, FormatError> {
        self.files.push(text_file(PathBuf::from(LATEST), &self.record.tag));
        self.writers.push(self.engine.topology().rank(Slot(0)));
        let mut parts = IndexMap::new();
        let at = |error| FormatError::Layout { path: root.to_owned(), error };
        if self.weights.holds_any() {
            parts.insert(Kept::Weights, self.weights.build().map_err(at)?);
        }
        for (kept, draft) in self.kept {
            parts.insert(kept, draft.build().map_err(at)?);
        }
        let output = Output { files: self.files, parts, copied: Vec::new() };
        Ok(ZeroFiles { output, writers: self.writers })
    }
}

/// A file of text.
pub(crate) fn text_file(path: PathBuf, text: &str) -> TargetFile {
    let known = vec![Known { offset: 0, bytes: text.as_bytes().to_vec() }];
    TargetFile { path, length: text.len() as u64, known, checksums: Vec::new() }
}
