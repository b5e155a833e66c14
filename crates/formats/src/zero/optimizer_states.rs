//! `*_optim_states.pt`: one rank's share of master weights and optimizer states, as flat tensors.
//!
//! ```text
//!                  stages 1, 2 and the bf16 optimizer             stage 3
//!   masters        single_partition_of_fp32_groups                fp32_flat_groups
//!   states         base_optimizer_state.state.<id>                optimizer_state_dict.state.<id>
//!   one a          group: a window of its flat buffer             sub-group: slices of parameters, end to end
//! ```
//!
//! Any state that is as long as its master is kept, whatever the optimizer calls it; scalars are steps and the like.

use indexmap::IndexMap;

use super::fault::ZeroFault;
use super::field::Field;
use super::model_states::ReadError;
use crate::error::FormatError;
use crate::files::{FileId, Files};
use crate::torch::{Tensor, TorchFile, read_scalar};

/// Where a fragment lies in a rank's window, as a file records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentAddress {
    /// Its first element in the window.
    pub start: u64,
    /// Its length.
    pub length: u64,
}

/// One rank's share of a group or sub-group.
#[derive(Clone, Debug)]
pub struct GroupStates {
    /// The master weights, flat.
    pub master: Tensor,
    /// Every state that is a flat tensor, by its name.
    pub states: IndexMap<String, Tensor>,
    /// Steps that the optimizer had taken with this group, if it counts them.
    pub step: Option<f64>,
    /// Tensors among the states that are neither flat nor scalars.
    pub left_out: Vec<String>,
}

/// One optimizer file.
#[derive(Debug)]
pub struct OptimizerStates {
    /// The file.
    pub file: FileId,
    /// The ZeRO stage; the bf16 optimizer does not say, and lays out as stage 1.
    pub stage: Option<u64>,
    /// How many ranks share each group; one number at stage 3.
    pub partition_counts: Vec<u64>,
    /// Groups, or at stage 3 sub-groups.
    pub groups: Vec<GroupStates>,
    /// By group, where each parameter's fragment lies; stages 1 and 2 only.
    pub mappings: Option<Vec<IndexMap<String, FragmentAddress>>>,
    /// By group, elements of padding after each parameter (`parameter_alignment`).
    pub alignment_paddings: Vec<Vec<u64>>,
}

impl OptimizerStates {
    /// Reads an optimizer file.
    ///
    /// # Errors
    /// [`FormatError`] naming file and key.
    pub fn open(files: &Files, file: FileId) -> Result<Self, FormatError> {
        let torch = TorchFile::open(files, file)?;
        Self::read(files, file, &torch).map_err(|error| error.map(|fault| fault.at(files.path(file))))
    }

    fn read(files: &Files, file: FileId, torch: &TorchFile) -> Result<Self, ReadError> {
        let states = Field::root(torch.pickle.root()).get("optimizer_state_dict")?;
        if states.find("ds_zero_partition_groups")?.is_some() {
            return Err(
                ZeroFault::Experts { key: format!("{}.ds_zero_partition_groups", states.key()) }.into()
            );
        }
        let stage = states.find("zero_stage")?.map(|stage| stage.number()).transpose()?;
        let (masters, base) = match stage {
            Some(3) => (states.get("fp32_flat_groups")?, states.get("optimizer_state_dict")?),
            _ => (states.get("single_partition_of_fp32_groups")?, states.get("base_optimizer_state")?),
        };
        let masters = masters.items()?;
        let by_group = states_by_group(&base, masters.len())?;
        let common_step = states.find("base_optimizer_state_step")?;
        let mut groups = Vec::with_capacity(masters.len());
        for (master, group) in masters.iter().zip(by_group) {
            let master = flat_tensor(torch, master)?;
            let mut read = group_states(files, torch, master, group.states.as_ref())?;
            if read.step.is_none() {
                read.step = scalar(files, torch, group.step.as_ref().or(common_step.as_ref()))?;
            }
            groups.push(read);
        }
        Ok(Self {
            file,
            stage,
            partition_counts: counts(&states.get("partition_count")?)?,
            groups,
            mappings: states
                .find("param_slice_mappings")?
                .map(|mappings| addresses(&mappings))
                .transpose()?,
            alignment_paddings: match states.find("param_alignment_paddings")? {
                Some(paddings) => paddings.items()?.iter().map(Field::numbers).collect::<Result<_, _>>()?,
                None => Vec::new(),
            },
        })
    }
}

fn flat_tensor(torch: &TorchFile, field: &Field<'_>) -> Result<Tensor, ReadError> {
    let tensor = torch.tensor(field.value())?.filter(is_flat);
    Ok(tensor.ok_or_else(|| field.wrong("flat tensor"))?)
}

/// One axis, neighbours side by side.
fn is_flat(tensor: &Tensor) -> bool {
    matches!((&tensor.shape[..], &tensor.strides[..]), ([length], [stride]) if *stride == 1 || *length < 2)
}

/// The states of one flat tensor, and the step of its parameter group where the optimizer keeps it there.
struct GroupFields<'a> {
    states: Option<Field<'a>>,
    step: Option<Field<'a>>,
}

/// The states of each master. torch's optimizers number their tensors, and list the numbers by parameter group;
/// an elastic checkpoint has a plain list.
fn states_by_group<'a>(base: &Field<'a>, masters: usize) -> Result<Vec<GroupFields<'a>>, ZeroFault> {
    let disagrees = |found: usize, because| ZeroFault::Disagrees {
        key: format!("the number of groups of {}", base.key()),
        expected: masters as u64,
        found: found as u64,
        because,
    };
    if let Some(list) = base.value().items() {
        if list.len() != masters {
            return Err(disagrees(list.len(), "one a group of masters"));
        }
        return Ok(base
            .items()?
            .into_iter()
            .map(|field| GroupFields { states: Some(field), step: None })
            .collect());
    }
    let states: IndexMap<String, Field<'a>> = base.get("state")?.entries()?.into_iter().collect();
    let mut groups = Vec::new();
    for group in base.get("param_groups")?.items()? {
        let step = group.find("step")?;
        for id in group.get("params")?.numbers()? {
            groups.push(GroupFields { states: states.get(&id.to_string()).cloned(), step: step.clone() });
        }
    }
    if groups.len() != masters {
        return Err(disagrees(groups.len(), "one tensor in param_groups for each group of masters"));
    }
    Ok(groups)
}

fn group_states(
    files: &Files,
    torch: &TorchFile,
    master: Tensor,
    states: Option<&Field<'_>>,
) -> Result<GroupStates, ReadError> {
    let mut group = GroupStates { master, states: IndexMap::new(), step: None, left_out: Vec::new() };
    for (name, field) in states.map_or(Ok(Vec::new()), |states| states.entries())? {
        let tensor = torch.tensor(field.value())?;
        match tensor {
            _ if name == "step" => group.step = scalar(files, torch, Some(&field))?,
            Some(tensor) if is_flat(&tensor) => {
                group.states.insert(name, tensor);
            }
            Some(tensor) if !tensor.shape.is_empty() => group.left_out.push(name),
            _ => {}
        }
    }
    Ok(group)
}

fn scalar(files: &Files, torch: &TorchFile, field: Option<&Field<'_>>) -> Result<Option<f64>, ReadError> {
    let Some(field) = field.filter(|field| !field.value().is_none()) else { return Ok(None) };
    match torch.tensor(field.value())? {
        Some(tensor) => Ok(Some(read_scalar(files, &tensor)?)),
        None => Ok(Some(field.float()?)),
    }
}

/// One number at stage 3, one a group otherwise.
fn counts(field: &Field<'_>) -> Result<Vec<u64>, ZeroFault> {
    match field.value().as_u64() {
        Some(count) => Ok(vec![count]),
        None => field.numbers(),
    }
}

fn addresses(mappings: &Field<'_>) -> Result<Vec<IndexMap<String, FragmentAddress>>, ZeroFault> {
    let address = |(name, field): (String, Field<'_>)| {
        let (start, length) = (field.get("start")?.number()?, field.get("numel")?.number()?);
        Ok((name, FragmentAddress { start, length }))
    };
    let group =
        |group: &Field<'_>| group.entries()?.into_iter().map(address).collect::<Result<_, ZeroFault>>();
    mappings.items()?.iter().map(group).collect()
}
