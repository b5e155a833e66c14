//! Trainers and engines: what goes from one to the other and back is what it was, and the worked examples of who
//! reads what from whom.

use std::collections::BTreeSet;

use proptest::prelude::*;
use reshard_layout::{BufferId, Layout, Places, address, coordinate};
use reshard_parallel::engine::Engine;
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Topology;
use reshard_parallel::zero::ZeroOptions;
use reshard_plan::{Options, Plan, Policy, verify};
use serde_json::{Value, json};

/// What no element of a parameter is numbered.
const POISON: u64 = u64::MAX;

/// A small Llama. What is not given is 4 query heads, 2 key-value heads of 2 rows, hidden 2, MLP 6, 1 layer, 7 words.
fn llama(changes: Value) -> ModelConfig {
    let mut config = json!({"model_type": "llama", "hidden_size": 2, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 6,
        "vocab_size": 7});
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::from_json(&config.to_string()).unwrap()
}

fn layout(config: &ModelConfig, topology: &str) -> Option<Layout> {
    let parsed = Topology::parse(topology).unwrap();
    let engine = Engine::new(config, &parsed, ZeroOptions::default()).ok()?;
    Some(engine.layout().unwrap_or_else(|error| panic!("{topology}: {error}")))
}

/// The elements of each buffer of one side, each a number that says which it is.
#[derive(Clone, PartialEq, Eq)]
struct Numbers(Vec<Vec<u64>>);

impl Numbers {
    fn poison(places: &Places) -> Self {
        Self(places.buffers.iter().map(|buffer| vec![POISON; buffer.length.0 as usize]).collect())
    }

    /// Every element of the layout in its place: parameter x 2^32 + flat index.
    fn of(layout: &Layout) -> Self {
        let mut numbers = Self::poison(layout.places());
        for piece in layout.pieces() {
            let parameter = layout.parameter(piece.parameter);
            for within in 0..piece.region.volume() {
                let within = coordinate(within, piece.region.extent());
                let at = within.iter().zip(piece.region.origin()).map(|(at, from)| at + from);
                let flat = at.zip(&parameter.shape).fold(0, |sum, (at, extent)| sum * extent + at);
                let offset = piece.offset.0 + address(&within, piece.strides);
                *numbers.at(piece.buffer, offset) = (u64::from(piece.parameter.0) << 32) + flat;
            }
        }
        numbers
    }

    fn at(&mut self, buffer: BufferId, offset: u64) -> &mut u64 {
        &mut self.0[buffer.index()][offset as usize]
    }

    /// Carries a plan out, one element at a time, into memory that nothing was written to.
    fn moved(&self, plan: &Plan) -> Self {
        let (mut source, mut target) = (self.clone(), Self::poison(&plan.target));
        for copy in &plan.copies {
            for flat in 0..copy.shape.iter().product() {
                let at = coordinate(flat, &copy.shape);
                let read = copy.source.offset.0 + address(&at, &copy.source.strides);
                let written = copy.target.offset.0 + address(&at, &copy.target.strides);
                let number = *source.at(copy.source.buffer, read);
                let place = target.at(copy.target.buffer, written);
                assert_eq!(*place, POISON, "written twice");
                *place = number;
            }
        }
        target
    }
}

fn planned(source: &Layout, target: &Layout, policy: Policy) -> Plan {
    let plan = Options::new(policy).plan(source, target).unwrap();
    verify(&plan, source, target).unwrap();
    plan
}

/// Dense models whose sizes two, four and sometimes three ranks can cut.
fn models() -> impl Strategy<Value = ModelConfig> {
    let heads =
        prop_oneof![Just((4, 1)), Just((4, 2)), Just((4, 4)), Just((12, 3)), Just((12, 6)), Just((8, 2))];
    (heads, 1u64..4, 1u64..4, 1u64..3, 1u64..140, 1u64..5, any::<[bool; 3]>()).prop_map(
        |((heads, kv_heads), head_dim, hidden, inner, vocabulary, layers, [tied, biases, norms])| {
            let biases = biases && !norms;
            llama(json!({"model_type": if norms { "qwen3" } else { "llama" },
                "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
                "hidden_size": hidden, "intermediate_size": 12 * inner, "vocab_size": vocabulary,
                "num_hidden_layers": layers, "tie_word_embeddings": tied, "attention_bias": biases,
                "mlp_bias": biases}))
        },
    )
}

fn trainers() -> impl Strategy<Value = String> {
    prop_oneof![
        (1u32..4, 1u32..4, 0u32..4).prop_map(|(tp, dp, zero)| format!("autotp:tp={tp},dp={dp},zero={zero}")),
        (1u32..5, 1u32..3, 1u32..3, 1u32..9)
            .prop_map(|(tp, pp, dp, pad)| format!("megatron:tp={tp},pp={pp},dp={dp},pad={pad}")),
    ]
}

fn engines() -> impl Strategy<Value = String> {
    prop_oneof![
        (1u32..5, 1u32..4, 1u32..3)
            .prop_map(|(tp, pp, copies)| format!("vllm:tp={tp},pp={pp},copies={copies}")),
        (1u32..13, 1u32..3).prop_map(|(tp, copies)| format!("sglang:tp={tp},copies={copies}")),
        (1u32..5, 1u32..5).prop_map(|(tp, pp)| format!("megatron:tp={tp},pp={pp}")),
        Just("megatron:tp=2,pp=2,vp=2".to_owned()),
        Just("hf".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_global_rejects: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn there_and_back_is_the_identity(
        config in models(), trainer in trainers(), engine in engines(), apart in any::<bool>()
    ) {
        let Some(trainer) = layout(&config, &trainer) else { return Err(TestCaseError::reject("trainer")) };
        let first = if apart { trainer.world() } else { 0 };
        let separator = if engine.contains(':') { ',' } else { ':' };
        let engine = format!("{engine}{separator}first={first}");
        let Some(engine) = layout(&config, &engine) else { return Err(TestCaseError::reject("engine")) };
        let before = Numbers::of(&trainer);
        for policy in [Policy::Lowest, Policy::Balanced] {
            let there = before.moved(&planned(&trainer, &engine, policy));
            prop_assert!(there == Numbers::of(&engine));
            let back = there.moved(&planned(&engine, &trainer, policy));
            prop_assert!(back == before);
        }
    }
}

/// Who is read for which rows of a tensor of a rank: (source rank, source row, rows), in the order of the tensor's rows.
fn read(plan: &Plan, rank: u32, tensor: &str, columns: u64) -> Vec<(u32, u64, u64)> {
    let mut reads: Vec<(u64, u32, u64, u64)> = Vec::new();
    for copy in &plan.copies {
        let storage = plan.target.storage(plan.target.buffer(copy.target.buffer).storage);
        if storage.rank.0 == rank && storage.name == tensor {
            let (to, from) = (copy.target.offset.0 / columns, copy.source.offset.0 / columns);
            reads.push((to, plan.source_rank(copy).0, from, copy.elements().0 / columns));
        }
    }
    reads.sort_unstable();
    reads.into_iter().map(|(_, from, row, rows)| (from, row, rows)).collect()
}

fn plan(config: &ModelConfig, source: &str, target: &str) -> Plan {
    planned(&layout(config, source).unwrap(), &layout(config, target).unwrap(), Policy::Lowest)
}

const QKV: &str = "model.layers.0.self_attn.qkv_proj.weight";
const GATE_UP: &str = "model.layers.0.mlp.gate_up_proj.weight";

/// Four heads, two groups: rank 0 of four wants q0, k0 and v0, which Megatron's ranks 0 and 1 have.
#[test]
fn a_rank_reads_its_key_from_another_rank_than_its_query() {
    let plan = plan(&llama(json!({"intermediate_size": 8})), "megatron:tp=4", "vllm:tp=4,first=4");
    // Rank 0 of Megatron: q0 q1; rank 1: k0 v0; rank 2: q2 q3; rank 3: k1 v1; two rows each.
    assert_eq!(read(&plan, 4, QKV, 2), [(0, 0, 2), (1, 0, 2), (1, 2, 2)]);
    assert_eq!(read(&plan, 5, QKV, 2), [(0, 2, 2), (1, 0, 2), (1, 2, 2)]);
    assert_eq!(read(&plan, 7, QKV, 2), [(2, 2, 2), (3, 0, 2), (3, 2, 2)]);
}

/// L01: the key of rank 0 lies on two ranks of the source.
#[test]
fn l01_a_key_head_is_read_from_the_two_ranks_that_it_was_cut_over() {
    let config = llama(json!({"num_attention_heads": 8, "head_dim": 4, "intermediate_size": 8}));
    let plan = plan(&config, "megatron:tp=8", "sglang:tp=8,first=8");
    for rank in 0..8 {
        let sources: BTreeSet<u32> =
            read(&plan, 8 + rank, QKV, 2).into_iter().map(|(from, ..)| from).collect();
        let keys = if rank < 4 { [2, 3] } else { [6, 7] };
        assert!(sources.is_superset(&BTreeSet::from(keys)), "rank {rank} reads {sources:?}");
    }
    // q0 whole from rank 0; k0 in halves from 2 and 3; v0 from 3.
    assert_eq!(read(&plan, 8, QKV, 2), [(0, 0, 4), (2, 4, 2), (3, 0, 2), (3, 2, 4)]);
}

/// Six MLP rows over two ranks, into three: rank 1 wants g2 g3 u2 u3.
#[test]
fn gate_and_up_are_read_row_by_row_where_the_ranks_differ() {
    let heads = json!({"num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 192});
    let plan = plan(&llama(heads), "megatron:tp=2", "vllm:tp=3,first=2");
    assert_eq!(read(&plan, 3, GATE_UP, 2), [(0, 2, 1), (1, 0, 1), (0, 5, 1), (1, 3, 1)]);
}

/// 151936 rows over eight ranks on both sides, padded on one: rank 1 wants 80 rows of rank 0 and 18912 of rank 1.
#[test]
fn padding_that_differs_shifts_who_is_read() {
    let config = json!({"num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 8,
        "vocab_size": 151_936});
    let plan = plan(&llama(config), "megatron:tp=8", "sglang:tp=8,first=8");
    let rows = read(&plan, 9, "lm_head.weight", 2);
    assert_eq!(rows, [(0, 18_992, 80), (1, 0, 18_912)]);
}

/// L23: 13 words, four rows a rank here, seven there. No padding is read, the target's is left to its fill.
#[test]
fn l23_heights_differ_and_no_padding_moves() {
    let config = llama(json!({"vocab_size": 13, "intermediate_size": 8}));
    let source = layout(&config, "megatron:tp=4,pad=4").unwrap();
    let target = layout(&config, "megatron:tp=2,pad=7,first=4").unwrap();
    let plan = planned(&source, &target, Policy::Lowest);
    let mut moved = Numbers::of(&source).moved(&plan);
    assert!(moved == Numbers::of(&target));
    for (rank, padding) in [(4, 0), (5, 1)] {
        let fills: Vec<_> =
            target.fills().iter().filter(|fill| target.places().rank_of(fill.buffer).0 == rank).collect();
        // One each for embedding and head.
        assert_eq!(fills.len(), 2 * padding);
        for fill in fills {
            assert_eq!((fill.shape.as_slice(), fill.offset.0), ([1, 2].as_slice(), 12));
            assert!(fill.value.iter().all(|byte| *byte == 0));
            assert_eq!(*moved.at(fill.buffer, fill.offset.0), POISON);
        }
    }
}

/// L29: what is read of rank 1 is its own first row, not the row's number in the parameter.
#[test]
fn l29_a_shard_is_read_at_its_own_addresses() {
    let plan = plan(&llama(json!({"intermediate_size": 8})), "megatron:tp=2", "vllm:tp=4,first=2");
    assert_eq!(read(&plan, 4, GATE_UP, 2), [(1, 0, 2), (1, 4, 2)]);
}

/// N02: a tied head, held as one tensor or as two, is one parameter under both names.
#[test]
fn n02_a_tied_head_goes_to_every_copy_and_is_found_under_either_name() {
    let tied = llama(json!({"tie_word_embeddings": true, "num_hidden_layers": 2}));
    let source = layout(&tied, "autotp:tp=2,dp=2,zero=3").unwrap();
    let target = layout(&tied, "megatron:tp=2,pp=2,first=4").unwrap();
    let moved = Numbers::of(&source).moved(&planned(&source, &target, Policy::Balanced));
    assert!(moved == Numbers::of(&target));
    // A target that has both names apart finds the tied parameter under each.
    let untied = layout(&llama(json!({"num_hidden_layers": 2})), "vllm:tp=2,first=4").unwrap();
    let plan = planned(&source, &untied, Policy::Lowest);
    let filled: BTreeSet<&str> =
        plan.copies.iter().map(|copy| untied.parameter(copy.parameter).name.as_str()).collect();
    assert!(filled.contains("lm_head.weight") && filled.contains("model.embed_tokens.weight"));
}
