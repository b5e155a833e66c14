//! Optimizer states: the file that each rank writes.
//!
//! ```text
//!   stages 1, 2   base_optimizer_state.state[group]  {step, exp_avg, exp_avg_sq}   whole windows
//!                 single_partition_of_fp32_groups    the same without the tail's padding
//!                 param_slice_mappings               which stretch of the window each parameter has
//!   stage 3       optimizer_state_dict.state[sub-group], fp32_flat_groups          whole sub-groups
//! ```
//!
//! Source: DeepSpeed 0.19.8 `state_dict` of `runtime/zero/stage_1_and_2.py`, `runtime/zero/stage3.py`.

use reshard_layout::Elements;
use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::zero::{FlatGroup, Stage};

use super::record::{Record, stage_enum};
use super::tree::Tree;

/// The storages of such a file: those of the masters, then those of each state, one a flat group.
pub(super) struct Flats<'a> {
    pub(super) states: &'a [String],
    pub(super) lengths: Vec<Elements>,
}

impl Flats<'_> {
    fn view(&self, kept: usize, group: usize, length: Elements) -> Tree<'static> {
        let storage = kept * self.lengths.len() + group;
        Tree::View { storage, offset: Elements(0), shape: vec![length.0] }
    }

    fn master(&self, group: usize, padding: Elements) -> Tree<'static> {
        self.view(0, group, self.lengths[group] - padding)
    }

    /// What the optimizer keeps of a flat tensor: what is not a tensor of its length, then the states.
    fn state<'a>(&self, group: usize, scalars: &[(String, Tree<'a>)]) -> Tree<'a> {
        let states = self.states.iter().enumerate();
        let states =
            states.map(|(index, name)| (name.clone(), self.view(index + 1, group, self.lengths[group])));
        Tree::dict(scalars.iter().cloned().chain(states).collect())
    }
}

/// The file of one rank.
pub(super) fn contents<'a>(
    engine: &DeepSpeed,
    record: &Record<'a>,
    flats: &Flats<'_>,
    tp_rank: u32,
    dp_rank: u32,
) -> Tree<'a> {
    let inner = match engine.topology().stage() {
        Stage::Three => sliced(engine, record, flats, tp_rank),
        _ => flat(engine, record, flats, &engine.flat_groups(tp_rank), dp_rank),
    };
    Tree::dict(vec![
        ("optimizer_state_dict", Tree::dict(inner)),
        ("ds_config", record.config.clone()),
        ("ds_version", record.version.clone()),
    ])
}

fn flat<'a>(
    engine: &DeepSpeed,
    record: &Record<'a>,
    flats: &Flats<'_>,
    groups: &[FlatGroup],
    dp_rank: u32,
) -> Vec<(String, Tree<'a>)> {
    let name = |parameter: usize| engine.parameters()[parameter].name.clone();
    let padding = |group: &FlatGroup| group.padding(u64::from(dp_rank));
    let state = |(index, group): (usize, &FlatGroup)| {
        let first = group.entries().first().map(|entry| name(entry.parameter)).unwrap_or_default();
        flats.state(index, record.scalars.of(&first))
    };
    let slices = |group: &FlatGroup| {
        let slices = group.fragments(u64::from(dp_rank));
        Tree::Ordered(
            slices.map(|slice| (name(slice.parameter), address(slice.length, slice.offset))).collect(),
        )
    };
    let partitions = Tree::count(u64::from(engine.topology().dp().get()));
    let states = groups.iter().enumerate().map(state).collect();
    let masters = groups.iter().enumerate().map(|(index, group)| flats.master(index, padding(group)));
    let members: Vec<Vec<usize>> = (0..groups.len()).map(|group| vec![group]).collect();
    let mut entries = record.optimizer.clone();
    entries.extend(owned([
        (
            "base_optimizer_state",
            Tree::dict(vec![("state", numbered(states)), ("param_groups", param_groups(record, &members))]),
        ),
        ("single_partition_of_fp32_groups", Tree::List(masters.collect())),
        ("zero_stage", stage_enum(engine.topology().stage().number())),
        ("group_paddings", Tree::List(groups.iter().map(|group| Tree::count(padding(group).0)).collect())),
        ("param_alignment_paddings", Tree::List(groups.iter().map(alignment).collect())),
        ("partition_count", Tree::List(vec![partitions; groups.len()])),
        ("ds_version", record.version.clone()),
        ("param_slice_mappings", Tree::List(groups.iter().map(slices).collect())),
    ]));
    entries
}

fn sliced<'a>(
    engine: &DeepSpeed,
    record: &Record<'a>,
    flats: &Flats<'_>,
    tp_rank: u32,
) -> Vec<(String, Tree<'a>)> {
    let groups = engine.sub_groups(tp_rank);
    let mut members = vec![Vec::new(); record.groups.len()];
    let mut states = Vec::with_capacity(groups.len());
    for (index, group) in groups.iter().enumerate() {
        members[group.group].push(index);
        let first = group.entries.first().map(|entry| engine.parameters()[entry.parameter].name.as_str());
        states.push(flats.state(index, record.scalars.of(first.unwrap_or_default())));
    }
    let masters = (0..groups.len()).map(|group| flats.master(group, Elements(0))).collect();
    let inner = vec![("state", numbered(states)), ("param_groups", param_groups(record, &members))];
    // Stage 3 keeps no limit of gradients here.
    let scale = record.optimizer.iter().filter(|(key, _)| key != "clip_grad").cloned();
    let mut entries = owned([("zero_stage", stage_enum(engine.topology().stage().number()))]);
    entries.extend(scale);
    entries.extend(owned([
        ("partition_count", Tree::count(u64::from(engine.topology().dp().get()))),
        ("optimizer_state_dict", Tree::dict(inner)),
        ("fp32_flat_groups", Tree::List(masters)),
    ]));
    entries
}

/// Hyper-parameters, with the numbers of the flat tensors that each group has.
fn param_groups<'a>(record: &Record<'a>, members: &[Vec<usize>]) -> Tree<'a> {
    let group = |(entries, members): (&Vec<(String, Tree<'a>)>, &Vec<usize>)| {
        let numbers = members.iter().map(|&number| Tree::count(number as u64)).collect();
        let numbers = owned([("params", Tree::List(numbers))]);
        Tree::dict(entries.iter().cloned().chain(numbers).collect())
    };
    Tree::List(record.groups.iter().zip(members).map(group).collect())
}

fn address(numel: Elements, start: Elements) -> Tree<'static> {
    Tree::Object {
        module: "deepspeed.utils.tensor_fragment",
        name: "fragment_address",
        attributes: vec![("numel", Tree::count(numel.0)), ("start", Tree::count(start.0))],
    }
}

/// How far each parameter of a flat group is from the next.
fn alignment(group: &FlatGroup) -> Tree<'static> {
    let ends = group.entries().iter().map(|entry| entry.offset + entry.numel);
    let next = group.entries().iter().skip(1).map(|entry| entry.offset).chain([group.unpadded()]);
    Tree::List(ends.zip(next).map(|(end, next)| Tree::count((next - end).0)).collect())
}

fn numbered(values: Vec<Tree<'_>>) -> Tree<'_> {
    Tree::Dict((0..).map(Tree::Int).zip(values).collect())
}

fn owned<'a, const COUNT: usize>(entries: [(&str, Tree<'a>); COUNT]) -> Vec<(String, Tree<'a>)> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
