//! The grammar: what it means, and what it says of a mistake.

use reshard_layout::Rank;
use reshard_parallel::topology::{EngineKind, EnginePlace, EngineTopology, Place, Slot, Topology};
use reshard_parallel::zero::{Init, Stage};

use crate::support::auto_tp;

#[test]
fn absent_keys_count_one() {
    for text in ["autotp", "autotp:tp=1", "autotp:copies=1,zero=0,first=0"] {
        let topology = auto_tp(text);
        assert_eq!((topology.world(), topology.stage(), topology.init()), (1, Stage::Zero, None), "{text}");
        assert_eq!(topology.ranks(), [Rank(0)], "{text}");
    }
    let topology = auto_tp("autotp:dp=4,zero=3,tp=2,init=zero");
    assert_eq!((topology.tp().get(), topology.dp().get(), topology.world()), (2, 4, 8));
    assert_eq!((topology.stage(), topology.init()), (Stage::Three, Some(Init::World)));
    // Data-parallel ranks without ZeRO are plain replicas, also beside copies.
    assert_eq!(auto_tp("autotp:tp=2,dp=2,copies=3").world(), 12);
}

#[test]
fn tensor_parallel_ranks_run_fastest_then_data_parallel_then_copies() {
    let topology = auto_tp("autotp:tp=2,dp=3,copies=2");
    let mut slot = 0;
    for copy in 0..2 {
        for dp_rank in 0..3 {
            for tp_rank in 0..2 {
                let place = Place { tp_rank, dp_rank, copy };
                assert_eq!(topology.place(Slot(slot)), place);
                assert_eq!(topology.slot(place), Slot(slot));
                slot += 1;
            }
        }
    }
    assert_eq!(topology.world(), slot);
}

#[test]
fn first_and_order_name_the_ranks() {
    let ranks = |text: &str| auto_tp(text).ranks().into_iter().map(|rank| rank.0).collect::<Vec<_>>();
    assert_eq!(ranks("autotp:tp=2,dp=2"), [0, 1, 2, 3]);
    assert_eq!(ranks("autotp:tp=2,dp=2,first=8"), [8, 9, 10, 11]);
    assert_eq!(ranks("autotp:tp=4,order=0.2.1.3"), [0, 2, 1, 3]);
    assert_eq!(ranks("autotp:tp=2,copies=2,first=4,order=4.6.5.7"), [4, 6, 5, 7]);
    assert_eq!(ranks("autotp:tp=2,first=1048576,order=1048577.1048576"), [1_048_577, 1_048_576]);
}

#[test]
fn a_topology_prints_as_the_text_that_means_it() {
    for text in [
        "autotp:tp=1",
        "autotp:tp=2,dp=4,zero=2",
        "autotp:tp=4,copies=2",
        "autotp:tp=2,dp=2,zero=3,init=zero,first=8",
        "autotp:tp=4,order=0.2.1.3",
    ] {
        let topology: Topology = text.parse().unwrap();
        assert_eq!(topology.to_string(), text);
    }
    assert_eq!(auto_tp("autotp:first=0,zero=0,tp=02").to_string(), "autotp:tp=2");
}

fn engine(text: &str) -> EngineTopology {
    match Topology::parse(text) {
        Ok(Topology::Engine(topology)) => topology,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn engines_number_their_axes_each_in_its_own_order() {
    // vLLM, two data-parallel ranks, two stages, two tensor-parallel ranks: rank 5 is tp 1, stage 0, dp 1.
    let topology = engine("vllm:tp=2,pp=2,dp=2");
    let place = EnginePlace { tp_rank: 1, stage: 0, dp_rank: 1, copy: 0 };
    assert_eq!((topology.world(), topology.place(Slot(5))), (8, place));
    // Megatron, 16 ranks, tp 2, dp 4, pp 2: rank 13 is tp 1, dp 2, pp 1.
    let topology = engine("megatron:tp=2,pp=2,dp=4");
    let place = EnginePlace { tp_rank: 1, stage: 1, dp_rank: 2, copy: 0 };
    assert_eq!((topology.world(), topology.place(Slot(13))), (16, place));
    for text in ["vllm:tp=3,pp=2,dp=2,copies=2", "megatron:tp=3,pp=2,dp=2,copies=2"] {
        let topology = engine(text);
        let mut slot = 0;
        for copy in 0..2 {
            for outer in 0..2 {
                for inner in 0..2 {
                    for tp_rank in 0..3 {
                        let megatron = topology.kind() == EngineKind::Megatron;
                        let (stage, dp_rank) = if megatron { (outer, inner) } else { (inner, outer) };
                        assert_eq!(topology.place(Slot(slot)), EnginePlace { tp_rank, stage, dp_rank, copy });
                        slot += 1;
                    }
                }
            }
        }
        assert_eq!(topology.world(), slot);
    }
    let ranks = |text: &str| engine(text).ranks().into_iter().map(|rank| rank.0).collect::<Vec<_>>();
    assert_eq!(ranks("hf:first=3"), [3]);
    assert_eq!(ranks("sglang:tp=2,copies=2,first=4,order=4.6.5.7"), [4, 6, 5, 7]);
}

#[test]
fn an_engine_prints_as_the_text_that_means_it() {
    for text in [
        "vllm:tp=4",
        "vllm:tp=2,pp=2,dp=3,copies=2,layers=3.2,first=8",
        "sglang:tp=8,copies=2",
        "megatron:tp=2,pp=4,vp=2,dp=2,pad=64",
        "megatron:tp=1,pp=4,layers=2.3.3.2,order=0.2.1.3",
        "hf",
        "hf:copies=2,order=1.0",
    ] {
        let topology: Topology = text.parse().unwrap();
        assert_eq!(topology.to_string(), text);
        assert_eq!(topology.to_string().parse::<Topology>().unwrap(), topology);
    }
    assert_eq!(engine("vllm").to_string(), "vllm:tp=1");
    assert_eq!(engine("megatron:pad=128,tp=02,pp=1").to_string(), "megatron:tp=2");
}

#[test]
fn mistakes_are_named() {
    let mut text = String::new();
    for topology in [
        "",
        "autotpp:tp=2",
        "tp=2",
        "AutoTP:tp=2",
        "fsdp:shard=8",
        "autotp:",
        "autotp:tp",
        "autotp:tp=2,",
        "autotp:tp=2,,dp=2",
        "autotp:tp=2, dp=2",
        "autotp:td=2",
        "autotp:TP=2",
        "autotp:shard=8",
        "autotp:pp=2",
        "autotp:tp=2,ep=8",
        "autotp:tp=2,etp=2",
        "autotp:tp=2,dp=2,tp=4",
        "autotp:tp=0",
        "autotp:tp=",
        "autotp:tp=+2",
        "autotp:tp=-2",
        "autotp:tp=2.0",
        "autotp:tp=two",
        "autotp:tp=2=3",
        "autotp:tp=1048577",
        "autotp:tp=99999999999999999999999",
        "autotp:tp=1048576,dp=2",
        "autotp:tp=1048576,dp=1048576,copies=1048576",
        "autotp:zero=4",
        "autotp:zero=01",
        "autotp:zero=3,init=world",
        "autotp:init=zero",
        "autotp:zero=2,init=dp",
        "autotp:copies=2,zero=3,init=zero",
        "autotp:first=-1",
        "autotp:tp=4,order=0.2.1",
        "autotp:tp=4,order=",
        "autotp:tp=4,order=0.2.1.4",
        "autotp:tp=4,order=0.2.1.2",
        "autotp:tp=4,order=0.2.1.x",
        "autotp:tp=2,first=8,order=0.1",
        "vllm:tq=2",
        "vllm:tp=2,ep=2",
        "vllm:tp=2,zero=1",
        "vllm:pp=2,layers=3",
        "vllm:pp=2,layers=3.0",
        "vllm:tp=1048576,pp=1048576,dp=1048576,copies=1048576",
        "vllm:tp=2,pp=2,order=0.1",
        "sglang:tp=2,pp=2",
        "sglang:tp=2,dp=2",
        "megatron:vp=2",
        "megatron:pp=2,vp=2,layers=3.5",
        "megatron:tp=2,cp=2",
        "megatron:pad=0",
        "hf:tp=2",
        "hf:",
    ] {
        let error = Topology::parse(topology).unwrap_err();
        text += &format!("{topology:?}\n  {:?}: {error}\n", error.category());
    }
    insta::assert_snapshot!(text);
}
