//! Model states: the file that each tensor-parallel rank writes, at stage 3 each rank.
//!
//! ```text
//!   stages 1, 2   module        views of the flat buffers, in module order       param_shapes   one dictionary
//!                 [ a a a|b b b b|0 ] storage 0                                                 a flat group, in
//!   stage 3       module        a placeholder without elements a parameter                      its order
//! ```
//!
//! Source: DeepSpeed 0.19.8 `_common_checkpoint_state` and `_get_zero_param_shapes` of `runtime/engine.py`.

use indexmap::IndexMap;
use reshard_layout::{DType, Elements};
use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::zero::Stage;

use super::info::universal_info;
use super::record::Record;
use super::tree::Tree;

/// A tensor of the model that is no parameter: whole on every rank.
#[derive(Clone, Debug)]
pub(super) struct BufferSpec {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    pub(super) dtype: DType,
}

/// The keys that follow from the topology, or that are written on their own; all others are taken over.
pub(crate) const DERIVED: [&str; 13] = [
    "module",
    "buffer_names",
    "optimizer",
    "param_shapes",
    "frozen_param_shapes",
    "shared_params",
    "frozen_param_fragments",
    "dp_world_size",
    "mp_world_size",
    "checkpoint_parallel_dimensions",
    "ds_config",
    "ds_version",
    "universal_checkpoint_info",
];

/// The file of one rank. Its storages: the flat groups (stages 1, 2), then the buffers.
pub(super) fn contents<'a>(
    engine: &DeepSpeed,
    record: &Record<'a>,
    buffers: &[BufferSpec],
    tp_rank: u32,
    dp_rank: u32,
) -> Tree<'a> {
    let stage = engine.topology().stage();
    let (tp, dp) =
        (Tree::count(u64::from(engine.topology().tp().get())), u64::from(engine.topology().dp().get()));
    let unowned = unowned(engine, tp_rank);
    // Slices are flat, whatever they are of.
    let fragment: fn(DType, &[u64]) -> Tree<'static> = match stage {
        Stage::Three => |dtype, _| Tree::empty(dtype, vec![0]),
        _ => |dtype, shape| Tree::empty(dtype, shape.to_vec()),
    };
    // Stage 1 does not say what its optimizer does not own.
    let frozen = |value: fn(DType, &[u64]) -> Tree<'static>| match stage {
        Stage::Two | Stage::Three => {
            let entry = |(name, shape): &(String, Vec<u64>)| (name.clone(), value(engine.dtype(), shape));
            Tree::Ordered(unowned.iter().map(entry).collect())
        }
        _ => Tree::None,
    };
    let names = buffers.iter().map(|buffer| Tree::Str(buffer.name.clone())).collect();
    let degrees = vec![("pp_degree", Tree::Int(1)), ("tp_degree", tp.clone())];
    let mut entries = vec![
        ("module".to_owned(), Tree::Ordered(module(engine, buffers, tp_rank))),
        ("buffer_names".to_owned(), Tree::List(names)),
        ("optimizer".to_owned(), Tree::None),
        ("param_shapes".to_owned(), Tree::List(param_shapes(engine, tp_rank))),
        ("frozen_param_shapes".to_owned(), frozen(|_, shape| Tree::Size(shape.to_vec()))),
        ("shared_params".to_owned(), shared(engine, tp_rank == 0 && dp_rank == 0)),
        ("frozen_param_fragments".to_owned(), frozen(fragment)),
    ];
    entries.extend(record.model.iter().cloned());
    entries.extend([
        ("dp_world_size".to_owned(), Tree::count(dp)),
        ("mp_world_size".to_owned(), tp),
        ("checkpoint_parallel_dimensions".to_owned(), Tree::dict(degrees)),
        ("ds_config".to_owned(), record.config.clone()),
        ("ds_version".to_owned(), record.version.clone()),
    ]);
    entries.extend(universal_info(engine).map(|info| ("universal_checkpoint_info".to_owned(), info)));
    Tree::dict(entries)
}

/// Every parameter and buffer under every name, in module order, second names of tied weights last.
fn module(engine: &DeepSpeed, buffers: &[BufferSpec], tp_rank: u32) -> Vec<(String, Tree<'static>)> {
    let sliced = engine.topology().stage() == Stage::Three;
    let groups = if sliced { Vec::new() } else { engine.flat_groups(tp_rank) };
    let mut places = IndexMap::new();
    for (storage, group) in groups.iter().enumerate() {
        places.extend(group.entries().iter().map(|entry| (entry.parameter, (storage, entry.offset))));
    }
    let tensor = |parameter: usize| match places.get(&parameter) {
        Some(&(storage, offset)) => {
            Tree::View { storage, offset, shape: engine.shard_shape(parameter, tp_rank) }
        }
        None if sliced => Tree::empty(engine.dtype(), vec![0]),
        None => Tree::empty(engine.dtype(), engine.shard_shape(parameter, tp_rank)),
    };
    let parameters = engine.parameters().iter().enumerate();
    let mut entries: Vec<_> =
        parameters.clone().map(|(index, parameter)| (parameter.name.clone(), tensor(index))).collect();
    for (index, buffer) in buffers.iter().enumerate() {
        let view =
            Tree::View { storage: groups.len() + index, offset: Elements(0), shape: buffer.shape.clone() };
        entries.push((buffer.name.clone(), view));
    }
    for (index, parameter) in parameters {
        entries.extend(parameter.aliases.iter().map(|alias| (alias.clone(), tensor(index))));
    }
    entries
}

/// Shapes of the shards, a dictionary for each flat group in its order.
fn param_shapes(engine: &DeepSpeed, tp_rank: u32) -> Vec<Tree<'static>> {
    let shapes = |parameters: Vec<usize>| {
        let entry = |parameter: usize| {
            (engine.parameters()[parameter].name.clone(), Tree::Size(engine.shard_shape(parameter, tp_rank)))
        };
        Tree::Ordered(parameters.into_iter().map(entry).collect())
    };
    if engine.topology().stage() == Stage::Three {
        let groups = engine.sub_groups(tp_rank);
        return groups
            .iter()
            .map(|group| shapes(group.entries.iter().map(|entry| entry.parameter).collect()))
            .collect();
    }
    let groups = engine.flat_groups(tp_rank);
    groups.iter().map(|group| shapes(group.entries().iter().map(|entry| entry.parameter).collect())).collect()
}

/// Parameters without elements on this rank: no optimizer owns them.
fn unowned(engine: &DeepSpeed, tp_rank: u32) -> Vec<(String, Vec<u64>)> {
    let parameters = engine.parameters().iter().enumerate();
    parameters
        .map(|(index, parameter)| (parameter.name.clone(), engine.shard_shape(index, tp_rank)))
        .filter(|(_, shape)| shape.contains(&0))
        .collect()
}

/// Second names, and the first of each; only global rank 0 says them.
fn shared(engine: &DeepSpeed, says: bool) -> Tree<'static> {
    let names = engine.parameters().iter().filter(|_| says);
    let names = names.flat_map(|parameter| {
        parameter.aliases.iter().map(|alias| (alias.clone(), Tree::Str(parameter.name.clone())))
    });
    Tree::dict(names.collect())
}
