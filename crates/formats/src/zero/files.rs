//! Which file of a ZeRO checkpoint holds what: names, read strictly and by number.
//!
//! ```text
//!   mp_rank_01_model_states.pt                       stages 0 to 2: what tensor-parallel rank 1 computes with
//!   zero_pp_rank_2_mp_rank_01_model_states.pt        stage 3: the same of data-parallel rank 2
//!   bf16_zero_pp_rank_2_mp_rank_01_optim_states.pt   the optimizer's share of that rank
//! ```
//!
//! Numbers are padded to two digits and no further, so a sorted list of names puts rank 100 before rank 11; here
//! they are numbers. Source: DeepSpeed 0.19.8 `runtime/engine.py`, `checkpoint/constants.py`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use super::fault::ZeroFault;
use crate::error::FormatError;
use crate::files::open_regular;

/// The file that names the newest checkpoint of a folder.
pub const LATEST: &str = "latest";
/// `latest` holds one folder name.
const LATEST_BYTES_MAX: u64 = 4096;
/// Files of a checkpoint, at most.
pub(super) const FILES_MAX: usize = 65_536;
/// So many unknown files are named.
const UNKNOWN_MAX: usize = 100;

/// A process, by its place in the data-parallel and in the model-parallel (tensor-parallel) groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Data-parallel rank; 0 where one file stands for all of them.
    pub data: u32,
    /// Tensor-parallel rank.
    pub tensor: u32,
}

/// What a file's name says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileName {
    /// Model states that every data-parallel rank shares (stages 0 to 2).
    Model(Position),
    /// Model states of one rank (stage 3).
    PartitionedModel(Position),
    /// Optimizer states of one rank.
    Optimizer(Position),
    /// A pipeline layer: `layer_00-model_00-model_states.pt`.
    Layer,
    /// An expert's weights, or an expert group's optimizer states.
    Expert,
    /// Something else.
    Unknown,
}

impl FileName {
    /// Reads a file's name.
    #[must_use]
    pub fn parse(name: &str) -> Self {
        Self::of_rank(name).or_else(|| Self::of_part(name)).unwrap_or(Self::Unknown)
    }

    fn of_rank(name: &str) -> Option<Self> {
        if let Some(rest) = name.strip_prefix("mp_rank_") {
            let (tensor, rest) = number(rest)?;
            return (rest == "_model_states.pt").then_some(Self::Model(Position { data: 0, tensor }));
        }
        let typed = name.strip_prefix("bf16_").or_else(|| name.strip_prefix("fp16_"));
        let (data, rest) = number(typed.unwrap_or(name).strip_prefix("zero_pp_rank_")?)?;
        let (tensor, rest) = number(rest.strip_prefix("_mp_rank_")?)?;
        let position = Position { data, tensor };
        match rest {
            "_model_states.pt" if typed.is_none() => Some(Self::PartitionedModel(position)),
            // Older versions left the underscore out.
            "_optim_states.pt" | "optim_states.pt" => Some(Self::Optimizer(position)),
            _ => None,
        }
    }

    fn of_part(name: &str) -> Option<Self> {
        if let Some(rest) = name.strip_prefix("expp_rank_") {
            return of_model_parallel_rank(number(rest)?.1, "_optim_states.pt").then_some(Self::Expert);
        }
        if let Some(rest) = name.strip_prefix("expert_") {
            return of_model_parallel_rank(number(rest)?.1, "_model_states.pt").then_some(Self::Expert);
        }
        let (_, rest) = number(name.strip_prefix("layer_")?)?;
        if let Some(rest) = rest.strip_prefix("_expert_") {
            return of_model_parallel_rank(number(rest)?.1, "_model_states.pt").then_some(Self::Expert);
        }
        let is_layer = rest == "-model_states.pt"
            || rest
                .strip_prefix("-model_")
                .and_then(number)
                .is_some_and(|(_, rest)| rest == "-model_states.pt");
        is_layer.then_some(Self::Layer)
    }
}

fn of_model_parallel_rank(rest: &str, ending: &str) -> bool {
    rest.strip_prefix("_mp_rank_").and_then(number).is_some_and(|(_, rest)| rest == ending)
}

/// The number that a text begins with, and what follows it.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|at: char| !at.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

/// The files of a checkpoint's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Whether there is a model file a rank (stage 3), and not one a tensor-parallel rank.
    pub partitioned: bool,
    /// The model files.
    pub model: BTreeMap<Position, PathBuf>,
    /// The optimizer files.
    pub optimizer: BTreeMap<Position, PathBuf>,
    /// Names that mean nothing here, sorted; the first hundred.
    pub unknown: Vec<String>,
}

impl Survey {
    /// Looks at the names in `folder`.
    ///
    /// # Errors
    /// [`FormatError::Zero`] without a model file, with two files for one rank, or with files of pipeline or expert
    /// parallelism; [`FormatError::Io`].
    pub fn of(folder: &Path) -> Result<Self, FormatError> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|cause| FormatError::io("list", folder, cause))? {
            let entry = entry.map_err(|cause| FormatError::io("list", folder, cause))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Self::of_names(folder, names).map_err(|fault| fault.at(folder))
    }

    fn of_names(folder: &Path, names: Vec<String>) -> Result<Self, ZeroFault> {
        let (mut plain, mut partitioned) = (BTreeMap::new(), BTreeMap::new());
        let mut survey = Self::default();
        if names.len() > FILES_MAX {
            let (found, limit) = (names.len() as u64, FILES_MAX as u64);
            return Err(ZeroFault::TooLarge { key: "the number of files".to_owned(), found, limit });
        }
        for name in names {
            let (files, position) = match FileName::parse(&name) {
                FileName::Model(position) => (&mut plain, position),
                FileName::PartitionedModel(position) => (&mut partitioned, position),
                FileName::Optimizer(position) => (&mut survey.optimizer, position),
                FileName::Layer => return Err(ZeroFault::PipelineFile { name }),
                FileName::Expert => return Err(ZeroFault::ExpertFile { name }),
                FileName::Unknown => {
                    survey.unknown.push(name);
                    continue;
                }
            };
            if let Some(first) = files.insert(position, folder.join(&name)) {
                return Err(ZeroFault::TwoFiles { first: base_name(&first), second: name });
            }
        }
        survey.unknown.truncate(UNKNOWN_MAX);
        survey.partitioned = !partitioned.is_empty();
        survey.model = match (plain.first_key_value(), partitioned.first_key_value()) {
            (None, None) => return Err(ZeroFault::NoModelFile),
            (Some((_, first)), Some((_, second))) => {
                return Err(ZeroFault::TwoStages { first: base_name(first), second: base_name(second) });
            }
            _ if survey.partitioned => partitioned,
            _ => plain,
        };
        Ok(survey)
    }
}

pub(super) fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The folder of a checkpoint: `path` itself, or the one in it that its `latest` names.
///
/// # Errors
/// [`FormatError::Zero`] if `latest` names no folder below `path`; [`FormatError::Io`].
pub fn checkpoint_folder(path: &Path) -> Result<PathBuf, FormatError> {
    named_folder(path, LATEST)
}

/// As [`checkpoint_folder`], for a pointer file of another name.
///
/// # Errors
/// As [`checkpoint_folder`].
pub(crate) fn named_folder(path: &Path, pointer: &str) -> Result<PathBuf, FormatError> {
    let pointer = path.join(pointer);
    let metadata = match std::fs::metadata(&pointer) {
        Ok(metadata) => metadata,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(path.to_owned()),
        Err(cause) => return Err(FormatError::io("look at", &pointer, cause)),
    };
    if metadata.len() > LATEST_BYTES_MAX {
        return Err(ZeroFault::LatestTooLong { found: metadata.len(), limit: LATEST_BYTES_MAX }.at(&pointer));
    }
    let text = std::io::read_to_string(open_regular(&pointer)?.take(LATEST_BYTES_MAX))
        .map_err(|cause| FormatError::io("read", &pointer, cause))?;
    let tag = text.trim();
    let climbs = Path::new(tag).components().any(|part| !matches!(part, Component::Normal(_)));
    if tag.is_empty() || tag.contains('\0') || climbs {
        return Err(ZeroFault::BadTag { tag: tag.to_owned() }.at(&pointer));
    }
    Ok(path.join(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(data: u32, tensor: u32) -> Position {
        Position { data, tensor }
    }

    #[test]
    fn names_are_read_by_number_and_strictly() {
        let cases = [
            ("mp_rank_00_model_states.pt", FileName::Model(position(0, 0))),
            ("mp_rank_7_model_states.pt", FileName::Model(position(0, 7))),
            ("mp_rank_100_model_states.pt", FileName::Model(position(0, 100))),
            ("zero_pp_rank_12_mp_rank_03_model_states.pt", FileName::PartitionedModel(position(12, 3))),
            ("zero_pp_rank_0_mp_rank_00_optim_states.pt", FileName::Optimizer(position(0, 0))),
            ("bf16_zero_pp_rank_10_mp_rank_02_optim_states.pt", FileName::Optimizer(position(10, 2))),
            ("fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt", FileName::Optimizer(position(1, 0))),
            ("zero_pp_rank_1_mp_rank_00optim_states.pt", FileName::Optimizer(position(1, 0))),
            ("layer_00-model_00-model_states.pt", FileName::Layer),
            ("layer_01-model_states.pt", FileName::Layer),
            ("layer_00_expert_3_mp_rank_00_model_states.pt", FileName::Expert),
            ("expert_3_mp_rank_00_model_states.pt", FileName::Expert),
            ("expp_rank_1_mp_rank_00_optim_states.pt", FileName::Expert),
        ];
        for (name, expected) in cases {
            assert_eq!(FileName::parse(name), expected, "{name}");
        }
        let unknown = [
            "mp_rank_model_states.pt",
            "mp_rank_00_model_states.pt.tmp",
            "xmp_rank_00_model_states.pt",
            "mp_rank_-1_model_states.pt",
            "mp_rank_4294967296_model_states.pt",
            "bf16_zero_pp_rank_0_mp_rank_00_model_states.pt",
            "layer_00_expert_x_mp_rank_00_model_states.pt",
            "zero_to_fp32.py",
            "",
        ];
        for name in unknown {
            assert_eq!(FileName::parse(name), FileName::Unknown, "{name}");
        }
    }

    #[test]
    fn ranks_above_99_keep_their_numbers() {
        let names =
            |ranks: std::ops::Range<u32>| ranks.map(|rank| format!("mp_rank_{rank:02}_model_states.pt"));
        let survey = Survey::of_names(Path::new("c"), names(0..102).collect()).unwrap();
        assert_eq!(survey.model.len(), 102);
        for (at, path) in &survey.model {
            assert_eq!(path, &Path::new("c").join(format!("mp_rank_{:02}_model_states.pt", at.tensor)));
        }
        let order: Vec<u32> = survey.model.keys().map(|at| at.tensor).collect();
        assert_eq!(order, (0..102).collect::<Vec<_>>());
    }

    #[test]
    fn what_cannot_stand_side_by_side_is_named() {
        let survey = |names: &[&str]| {
            let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            names.sort_unstable();
            Survey::of_names(Path::new("c"), names)
        };
        let two = survey(&["mp_rank_07_model_states.pt", "mp_rank_7_model_states.pt"]).unwrap_err();
        let ZeroFault::TwoFiles { first, second } = two else { panic!("{two}") };
        assert_eq!(
            (first.as_str(), second.as_str()),
            ("mp_rank_07_model_states.pt", "mp_rank_7_model_states.pt")
        );
        let stages =
            survey(&["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"]).unwrap_err();
        assert!(matches!(stages, ZeroFault::TwoStages { .. }), "{stages}");
        let layer = survey(&["layer_00-model_00-model_states.pt", "mp_rank_00_model_states.pt"]).unwrap_err();
        assert!(matches!(layer, ZeroFault::PipelineFile { .. }), "{layer}");
        let expert = survey(&["layer_0_expert_1_mp_rank_00_model_states.pt"]).unwrap_err();
        assert!(matches!(expert, ZeroFault::ExpertFile { .. }), "{expert}");
        assert!(matches!(survey(&["notes.txt"]).unwrap_err(), ZeroFault::NoModelFile));
        let known = survey(&["mp_rank_00_model_states.pt", "notes.txt"]).unwrap();
        assert_eq!(known.unknown, ["notes.txt"]);
    }
}
