//! What no dump shows: order, stage 0, optimizer-made order, partition groups, sizes of a large world.

use std::collections::{BTreeMap, BTreeSet};

use reshard_layout::{DType, Elements, Layout, Rank, address, coordinate, row_major};
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Slot;
use reshard_parallel::zero::{OptimizerMaker, ZeroOptions};
use reshard_parallel::{Category, RankStorage};

use crate::support::{auto_tp, ground_truth};

fn config() -> ModelConfig {
    let text = r#"{"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 3, "intermediate_size": 5, "vocab_size": 7,
        "attention_bias": true, "torch_dtype": "bfloat16"}"#;
    ModelConfig::from_json(text).unwrap()
}

fn engine(topology: &str, options: ZeroOptions) -> DeepSpeed {
    DeepSpeed::new(&config(), &auto_tp(topology), options).unwrap()
}

/// How often each element of each shard is stored, over all ranks: (tp rank, parameter, element) -> times.
fn stored(engine: &DeepSpeed, of: impl Fn(Slot) -> RankStorage) -> BTreeMap<(u32, usize, u64), u32> {
    let mut times = BTreeMap::new();
    for slot in engine.topology().slots() {
        let storage = of(slot);
        for run in &storage.runs {
            let end = run.offset + run.length;
            assert!(end <= storage.storages[run.storage].length, "slot {slot}: {run:?}");
            for element in run.first.0..run.first.0 + run.length.0 {
                *times.entry((storage.tp_rank, run.parameter, element)).or_insert(0) += 1;
            }
        }
    }
    times
}

/// Every (tp rank, parameter, element) that exists.
fn elements(engine: &DeepSpeed) -> Vec<(u32, usize, u64)> {
    let mut list = Vec::new();
    for tp_rank in 0..engine.topology().tp().get() {
        for parameter in 0..engine.parameters().len() {
            let numel = engine.shard_numel(parameter, tp_rank).0;
            list.extend((0..numel).map(|element| (tp_rank, parameter, element)));
        }
    }
    list
}

#[test]
fn every_shard_is_stored_once_or_on_every_replica() {
    for (topology, weights, states) in [
        ("autotp:tp=2,dp=3", 3, 3),
        ("autotp:tp=2,dp=2,copies=2", 4, 4),
        ("autotp:tp=2,dp=3,zero=1", 3, 1),
        ("autotp:tp=3,dp=5,zero=2", 5, 1),
        ("autotp:tp=2,dp=3,zero=3", 1, 1),
        ("autotp:tp=4,dp=3,zero=3,init=dp", 1, 1),
        ("autotp:dp=4,zero=3,init=zero", 1, 1),
    ] {
        let engine = engine(topology, ZeroOptions::default());
        let expected =
            |times| elements(&engine).into_iter().map(|at| (at, times)).collect::<BTreeMap<_, _>>();
        assert_eq!(stored(&engine, |slot| engine.weights(slot)), expected(weights), "{topology}");
        for state in State::ALL {
            let found = stored(&engine, |slot| engine.optimizer(slot, state));
            assert_eq!(found, expected(states), "{topology} {}", state.name());
        }
    }
}

#[test]
fn what_zero_init_partitions_over_the_world_has_no_replica() {
    let engine = engine("autotp:tp=2,dp=2,zero=3,init=zero", ZeroOptions::default());
    let mut owners: BTreeMap<(usize, u64), Vec<Rank>> = BTreeMap::new();
    for slot in engine.topology().slots() {
        let storage = engine.weights(slot);
        for run in &storage.runs {
            for element in run.first.0..run.first.0 + run.length.0 {
                owners.entry((run.parameter, element)).or_default().push(storage.rank);
            }
        }
    }
    for (index, parameter) in engine.parameters().iter().enumerate() {
        let name = &parameter.name;
        // The row-parallel bias is whole on both tensor-parallel ranks, but its module was replaced.
        let untouched = name.contains("norm") || name.contains("embed_tokens");
        let partition = engine.partition(index, Slot(3));
        let expected = if untouched { vec![0, 1, 2, 3] } else { vec![1, 3] };
        assert_eq!(partition.ranks, expected.into_iter().map(Rank).collect::<Vec<_>>(), "{name}");
        assert_eq!(partition.position, if untouched { 3 } else { 1 }, "{name}");
        let count = owners[&(index, 0)].len();
        assert_eq!(count, if untouched { 1 } else { 2 }, "{name}");
    }
}

#[test]
fn an_optimizer_made_by_the_engine_keeps_module_order() {
    let order = |topology: &str, optimizer: OptimizerMaker| -> Vec<usize> {
        let engine = engine(topology, ZeroOptions { optimizer, ..ZeroOptions::default() });
        engine.sub_groups(0).iter().flat_map(|group| &group.entries).map(|entry| entry.parameter).collect()
    };
    let module: Vec<usize> = (0..config().parameters().len()).collect();
    assert_eq!(order("autotp:tp=2,dp=2,zero=3,init=dp", OptimizerMaker::Engine), module);
    assert_ne!(order("autotp:tp=2,dp=2,zero=3,init=dp", OptimizerMaker::Caller), module);
    // AutoTP replaces nothing for one rank, and nothing needs a new parameter without zero.Init.
    assert_eq!(order("autotp:tp=1,dp=2,zero=3,init=dp", OptimizerMaker::Caller), module);
    assert_eq!(order("autotp:tp=2,dp=2,zero=3", OptimizerMaker::Caller), module);
    // A split by partition group puts what appears first in front, whoever made the optimizer.
    assert_ne!(order("autotp:tp=2,dp=2,zero=3,init=zero", OptimizerMaker::Engine), module);
}

#[test]
fn stage_zero_keeps_everything_everywhere_without_padding() {
    let engine = engine("autotp:tp=2,dp=3", ZeroOptions::default());
    for slot in engine.topology().slots() {
        let (weights, master) = (engine.weights(slot), engine.optimizer(slot, State::Fp32));
        let numel: Elements = (0..engine.parameters().len()).map(|p| engine.shard_numel(p, slot.0 % 2)).sum();
        assert_eq!((weights.storages[0].length, weights.storages[0].dtype), (numel, DType::Bf16));
        assert_eq!((master.storages[0].length, master.storages[0].dtype), (numel, DType::F32));
        assert_eq!(weights.runs, master.runs);
        let partition = engine.partition(0, slot);
        assert_eq!((partition.ranks, partition.position), (vec![weights.rank], 0));
    }
}

#[test]
fn order_renames_ranks_and_moves_nothing() {
    let plain = engine("autotp:tp=2,dp=2,zero=3", ZeroOptions::default());
    let renamed = engine("autotp:tp=2,dp=2,zero=3,first=4,order=4.6.5.7", ZeroOptions::default());
    for (slot, rank) in plain.topology().slots().zip([4, 6, 5, 7].map(Rank)) {
        let expected = RankStorage { rank, ..plain.weights(slot) };
        assert_eq!(renamed.weights(slot), expected);
    }
    assert_eq!(renamed.tp_group(Slot(0)), [Rank(4), Rank(6)]);
    assert_eq!(renamed.dp_group(Slot(0)), [Rank(4), Rank(5)]);
}

#[test]
fn qwen3_8b_has_the_published_pieces_and_bytes() {
    let config = ModelConfig::from_json(&ground_truth("models/Qwen3-8B.json").unwrap()).unwrap();
    // Copies and replicas hold what each rank needs: 2 S + 8 E bytes; slices hold everything once a group.
    let (s, e) = (15_136_194_560, 1_245_276_160);
    for (topology, bytes) in [
        ("autotp:tp=4,copies=2", 2 * s + 8 * e),
        ("autotp:tp=2,dp=4,zero=2", 4 * s + 8 * e),
        ("autotp:tp=2,dp=4,zero=3", s + 2 * e),
        ("autotp:tp=2,dp=4,zero=3,init=zero", s + e),
    ] {
        let engine = DeepSpeed::new(&config, &auto_tp(topology), ZeroOptions::default()).unwrap();
        let layout = engine.layout().unwrap();
        assert_eq!(layout.piece_count(), 3_192, "{topology}");
        let held: u64 = layout.pieces().map(|piece| piece.region.volume()).sum();
        assert_eq!(2 * held, bytes, "{topology}");
        // 36 equal layers share the geometries of one.
        assert!(layout.geometry_count() < 3_192 / 36, "{topology}: {}", layout.geometry_count());
    }
}

#[test]
fn a_tied_head_is_a_second_name() {
    let text = r#"{"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 5, "vocab_size": 7, "tie_word_embeddings": true}"#;
    let config = ModelConfig::from_json(text).unwrap();
    let engine = DeepSpeed::new(&config, &auto_tp("autotp:tp=2"), ZeroOptions::default()).unwrap();
    let layout = engine.layout().unwrap();
    assert_eq!(layout.find("lm_head.weight"), layout.find("model.embed_tokens.weight"));
}

#[test]
fn a_sub_group_of_no_elements_is_refused() {
    let options = ZeroOptions { sub_group_size: Elements(0), ..ZeroOptions::default() };
    let error = DeepSpeed::new(&config(), &auto_tp("autotp:dp=2,zero=3"), options).unwrap_err();
    assert_eq!(error.category(), Category::Usage);
    assert_eq!(error.to_string(), "option sub_group_size must be at least 1");
}

#[test]
fn four_thousand_ranks_are_laid_out() {
    let config = ModelConfig::from_json(&ground_truth("models/Qwen3-8B.json").unwrap()).unwrap();
    let (shared, whole) = (7_568_097_280, 622_638_080);
    let volume = |layout: &Layout| layout.pieces().map(|piece| piece.region.volume()).sum::<u64>();

    let topology = auto_tp("autotp:tp=8,dp=512,zero=1");
    let engine = DeepSpeed::new(&config, &topology, ZeroOptions::default()).unwrap();
    assert_eq!(engine.layout().unwrap().piece_count(), 399 * 4096);
    assert_eq!(volume(&engine.optimizer_layout(State::ExpAvg).unwrap()), shared + 8 * whole);

    let topology = auto_tp("autotp:tp=8,dp=512,zero=3,init=zero");
    let engine = DeepSpeed::new(&config, &topology, ZeroOptions::default()).unwrap();
    let (weights, states) = (engine.layout().unwrap(), engine.optimizer_layout(State::ExpAvgSq).unwrap());
    assert_eq!((volume(&weights), volume(&states)), (shared + whole, shared + whole));
}

/// Independent copies of a ZeRO trainer: each keeps every element, in its own ranks.
#[test]
fn copies_of_a_partitioned_trainer_each_hold_everything() {
    for stage in 1..=3 {
        let engine = engine(&format!("autotp:tp=2,dp=3,copies=2,zero={stage}"), ZeroOptions::default());
        let layout = engine.optimizer_layout(State::Fp32).unwrap();
        for (id, parameter) in layout.parameters() {
            for copy in 0..2 {
                let mut held = BTreeSet::new();
                for piece in layout.pieces_of(id).filter(|piece| piece.rank.0 / 6 == copy) {
                    held.extend((0..piece.region.volume()).map(|index| {
                        let within = coordinate(index, piece.region.extent());
                        let at: Vec<u64> =
                            within.iter().zip(piece.region.origin()).map(|(at, from)| at + from).collect();
                        address(&at, &row_major(&parameter.shape))
                    }));
                }
                let total: u64 = parameter.shape.iter().product();
                assert!(held.into_iter().eq(0..total), "{} in copy {copy} at stage {stage}", parameter.name);
            }
        }
    }
}
