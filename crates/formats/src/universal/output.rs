//! Writing a Universal checkpoint: a plan of every file, and no temporary tree.
//!
//! ```text
//!   source            part fp32     up.weight ─► <tag>_universal/zero/up.weight/fp32.pt      a storage each, filled
//!   (ZeRO 1, 2, 3,    part exp_avg  up.weight ─►                  .../exp_avg.pt             by the planner
//!    Universal)       step          up.weight ─►                  .../step.pt                known bytes
//!                     hyper-parameters        ─► <tag>_universal/zero/optimizer_state.pt     known bytes
//!                     model states            ─► copied, or rewritten for the other family of stages
//! ```

use std::path::PathBuf;

use reshard_layout::{DType, Elements, Parameter, volume};

use super::fault::UniversalFault;
use super::models;
use super::optimizer::optimizer_state;
use super::tensors::{PARAM, TensorsDraft};
use crate::checkpoint::{Checkpoint, Format};
use crate::error::FormatError;
use crate::files::FileId;
use crate::kept::Kept;
use crate::output::Output;
use crate::paths::is_name;
use crate::torch::TorchFile;
use crate::zero::write::{
    LATEST_UNIVERSAL, OPTIMIZER_STATE, Origin, Record, Tree, UNIVERSAL_ENDING, file, text_file,
};
use crate::zero::{Join, PartExtents, Parts, UniversalInfo, ZeroFault};

/// Bytes of a name of a folder, at most, as Linux has it.
const NAME_BYTES_MAX: usize = 255;

/// For engines of which ZeRO stages the checkpoint is. Stages 1 and 2 load the same files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ForStage {
    /// The source's.
    #[default]
    Same,
    /// Stages 1 and 2.
    OneTwo,
    /// Stage 3.
    Three,
    /// All: both sets of model states lie side by side.
    Both,
}

/// How a Universal checkpoint is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UniversalOptions {
    /// Who is to load it.
    pub for_stage: ForStage,
}

/// Which families of files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Families {
    /// Stages 1 and 2.
    pub(super) plain: bool,
    /// Stage 3.
    pub(super) partitioned: bool,
}

impl Families {
    pub(super) fn of(origin: &Origin<'_>) -> Self {
        Self { plain: !origin.plain.is_empty(), partitioned: !origin.partitioned.is_empty() }
    }

    fn wanted(for_stage: ForStage, source: Self) -> Self {
        match for_stage {
            ForStage::Same => source,
            ForStage::OneTwo => Self { plain: true, partitioned: false },
            ForStage::Three => Self { plain: false, partitioned: true },
            ForStage::Both => Self { plain: true, partitioned: true },
        }
    }
}

/// The Universal checkpoint of what a ZeRO or a Universal checkpoint holds. The folder holds `latest_universal` and
/// `<tag>_universal/`.
///
/// # Errors
/// [`FormatError::Universal`] without master weights or with names that are no folders; [`FormatError::ZeroWrite`] if
/// the source does not say where its trainer stood; errors of reading.
pub fn output(source: &Checkpoint, options: &UniversalOptions) -> Result<Output, FormatError> {
    let origin = Origin::open(source)?;
    let record = origin.record()?;
    let found = Families::of(&origin);
    let families = Families::wanted(options.for_stage, found);
    let folder = PathBuf::from(format!("{}{UNIVERSAL_ENDING}", record.tag));
    let info = match source.format {
        Format::Universal => None,
        _ => origin.universal_info()?,
    };
    let mut writer = Writer { source, info, zero: folder.join("zero"), output: Output::default() };
    writer.states()?;
    writer.untrained()?;
    writer.steps(&record)?;
    let state = optimizer_state(&origin, &record, found, families)?;
    let mut output = writer.output;
    output.files.push(file(folder.join("zero").join(OPTIMIZER_STATE), &state, &[])?.0);
    models::add(&mut output, &origin, &folder, families)?;
    output.files.push(text_file(PathBuf::from(LATEST_UNIVERSAL), &folder.to_string_lossy()));
    Ok(output)
}

/// Whether a name can be that of one folder.
fn is_folder_name(name: &str) -> bool {
    is_name(name) && name.len() <= NAME_BYTES_MAX
}

/// The extents of a parameter, with those of its parts along the axis on which they lie.
fn sub_parameters(parameter: &Parameter, parts: &Parts) -> Result<Tree<'static>, UniversalFault> {
    if parts.axes != parameter.shape.len() {
        let (expected, found) = (parameter.shape.len(), parts.axes);
        return Err(UniversalFault::SubParameters { parameter: parameter.name.clone(), expected, found });
    }
    let extents = match &parts.extents {
        PartExtents::Each(extents) => extents.clone(),
        PartExtents::Equal(count) => {
            let extent = parameter.shape[parts.axis].checked_div(*count).unwrap_or_default();
            vec![extent; usize::try_from(*count).unwrap_or_default()]
        }
    };
    let axis = |axis: usize| match axis == parts.axis {
        true => Tree::Tuple(extents.iter().copied().map(Tree::count).collect()),
        false => Tree::count(parameter.shape[axis]),
    };
    Ok(Tree::Object {
        module: "deepspeed.checkpoint.universal_checkpoint",
        name: "SubparamShape",
        attributes: vec![
            ("patterns", Tree::List(vec![Tree::Str(parameter.name.clone())])),
            ("shape", Tree::Tuple((0..parts.axes).map(axis).collect())),
            ("partition_dim", Tree::count(parts.axis as u64)),
        ],
    })
}

struct Writer<'c> {
    source: &'c Checkpoint,
    info: Option<UniversalInfo>,
    zero: PathBuf,
    output: Output,
}

impl Writer<'_> {
    /// Masters and every state of the optimizer.
    fn states(&mut self) -> Result<(), FormatError> {
        let source = self.source;
        if !source.parts.contains_key(&Kept::Master) {
            return Err(UniversalFault::NoMasters.at(&source.root));
        }
        for (kept, part) in source.parts.iter().filter(|(kept, _)| **kept != Kept::Weights) {
            let mut draft = TensorsDraft::default();
            for (id, parameter) in part.layout.parameters() {
                if source.format == Format::Universal {
                    let place = part.layout.instances(id).first();
                    let file = place
                        .map(|at| part.spans[part.layout.places().buffer(at.buffer).storage.index()].file);
                    self.tensor_again(&mut draft, kept, parameter, file)?;
                } else {
                    let entries = self.entries(parameter)?;
                    self.tensor(&mut draft, kept, parameter, parameter.dtype, entries)?;
                }
            }
            self.keep(kept.clone(), draft)?;
        }
        Ok(())
    }

    /// Frozen parameters, and buffers of float types, as floats: what DeepSpeed's converter does where it has them.
    fn untrained(&mut self) -> Result<(), FormatError> {
        let source = self.source;
        let Some(weights) = source.parts.get(&Kept::Weights) else { return Ok(()) };
        let mut draft = TensorsDraft::default();
        let mut any = false;
        for name in source.facts.frozen.iter().chain(&source.facts.buffers) {
            let Some(id) = weights.layout.find(name) else { continue };
            let parameter = weights.layout.parameter(id);
            if matches!(parameter.dtype, DType::F32 | DType::Bf16 | DType::F16) {
                self.tensor(&mut draft, &Kept::Master, parameter, DType::F32, Vec::new())?;
                any = true;
            }
        }
        if any {
            self.keep(Kept::Weights, draft)?;
        }
        Ok(())
    }

    fn keep(&mut self, kept: Kept, draft: TensorsDraft) -> Result<(), FormatError> {
        let at = |error| FormatError::Layout { path: self.source.root.clone(), error };
        self.output.parts.insert(kept, draft.build().map_err(at)?);
        Ok(())
    }

    /// The file of a Universal checkpoint, with the entries that it has there.
    fn tensor_again(
        &mut self,
        draft: &mut TensorsDraft,
        kept: &Kept,
        parameter: &Parameter,
        file: Option<FileId>,
    ) -> Result<(), FormatError> {
        let Some(file) = file else {
            return self.tensor(draft, kept, parameter, parameter.dtype, Vec::new());
        };
        let files = &self.source.files;
        let torch = TorchFile::open(files, file)?;
        let mut entries = Vec::new();
        for (key, value) in torch.pickle.root().entries().into_iter().flatten() {
            if let Some(key) = key.as_str().filter(|key| *key != PARAM) {
                entries.push((key.to_owned(), Tree::taken(files, file, &torch, key, value)?));
            }
        }
        self.tensor(draft, kept, parameter, parameter.dtype, entries)
    }

    /// How shards were joined, under the keys that DeepSpeed's converter gives it. Where a map of boxes says it there
    /// is nothing to add.
    fn entries(&self, parameter: &Parameter) -> Result<Vec<(String, Tree<'static>)>, FormatError> {
        let name = &parameter.name;
        let at = |fault: ZeroFault| FormatError::Zero { path: self.source.root.clone(), fault };
        let Some(info) = &self.info else {
            let stage_three = self.source.facts.stage == Some(3);
            return Ok(if stage_three { Vec::new() } else { vec![("cat_dim".to_owned(), Tree::Int(0))] });
        };
        let mut entries = match info.join(name, parameter.shape.contains(&0)).map_err(at)? {
            Join::Affine(_) | Join::Whole => Vec::new(),
            Join::Halves => vec![("cat_dim", Tree::Int(0)), ("param_n_sub_params", Tree::Int(2))],
            Join::Parts(parts) => {
                let shape = sub_parameters(parameter, &parts).map_err(|fault| fault.at(&self.source.root))?;
                vec![("sub_param_shape", shape)]
            }
            Join::Axis(axis) => vec![("cat_dim", Tree::count(axis as u64))],
        };
        if info.vocabulary_rows(name).map_err(at)?.is_some() {
            entries.push(("vocab_tensor", Tree::Bool(true)));
        }
        Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// One file: the tensor, and what loaders without AutoTP want to know of it.
    fn tensor(
        &mut self,
        draft: &mut TensorsDraft,
        kept: &Kept,
        parameter: &Parameter,
        dtype: DType,
        mut entries: Vec<(String, Tree<'_>)>,
    ) -> Result<(), FormatError> {
        let name = &parameter.name;
        if !is_folder_name(name) || !is_folder_name(kept.name()) {
            return Err(UniversalFault::Name { parameter: name.clone() }.at(&self.source.root));
        }
        let shape = parameter.shape.to_vec();
        let elements = Elements(volume(&shape).unwrap_or(u64::MAX));
        let view = Tree::View { storage: 0, offset: Elements(0), shape: shape.clone() };
        entries.push((PARAM.to_owned(), view));
        let path = self.zero.join(name).join(format!("{kept}.pt"));
        let (target, offsets) = file(path, &Tree::dict(entries), &[(dtype, elements)])?;
        let id = FileId(u32::try_from(self.output.files.len()).unwrap_or(u32::MAX));
        self.output.files.push(target);
        draft.add_whole(name, &shape, dtype, id, offsets[0]);
        Ok(())
    }

    fn steps(&mut self, record: &Record<'_>) -> Result<(), FormatError> {
        let master = &self.source.parts[&Kept::Master];
        for (_, parameter) in master.layout.parameters() {
            let scalars = record.scalars.of(&parameter.name);
            if let Some((_, step)) = scalars.iter().find(|(key, _)| key == "step") {
                let path = self.zero.join(&parameter.name).join("step.pt");
                self.output.files.push(file(path, step, &[])?.0);
            }
        }
        Ok(())
    }
}
