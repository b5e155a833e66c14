//! Where the ground truth comes from, and short ways to read it.
//!
//! The full data lies beside the checkout, in `shared/data`. Where it is absent, the copies in `tests/data` stand in
//! (fewer ranks, only the fields that are used), and what has no copy is named on stderr as not checked.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

use reshard_layout::{Elements, Rank};
use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::{AutoTp, Slot, Topology};
use reshard_parallel::zero::{Grouping, ZeroOptions};
use serde_json::{Value, json};

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
const COPIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");

/// Every dump of an engine, by its path in the ground truth.
pub(crate) const DUMPS: [&str; 16] = [
    "ds_storage_stage1.json",
    "ds_storage_stage2.json",
    "ds_storage_stage3.json",
    "ds_storage_stage1_ids.json",
    "ds_storage_stage2_ids.json",
    "ds_storage_stage3_ids.json",
    "ds_storage_stage3_zinit.json",
    "ds_storage_stage3_zinit_world.json",
    "variants/s1_param_alignment.json",
    "variants/s1_tied.json",
    "variants/s1_tp2dp3_bias.json",
    "variants/s1_tp4_kv2_dp2.json",
    "variants/s2_tp2dp3_twogroups.json",
    "variants/s3_persist1000.json",
    "variants/s3_tp1dp4.json",
    "variants/s3_tp2dp3_bias.json",
];

/// The text of a file of the ground truth, or of its copy in the repository.
pub(crate) fn ground_truth(path: &str) -> Option<String> {
    let shared = Path::new(SHARED);
    if shared.is_dir() {
        let file = shared.join(path);
        let text = std::fs::read_to_string(&file);
        return Some(text.unwrap_or_else(|error| panic!("{}: {error}", file.display())));
    }
    let name = Path::new(path).file_name().unwrap();
    let copy = std::fs::read_to_string(Path::new(COPIES).join(name)).ok();
    let what = if copy.is_some() { "checked against the small copy in tests/data" } else { "NOT CHECKED" };
    say_once(format!("ground truth {SHARED}/{path} is absent: {what}"));
    copy
}

/// Writes past the capture of the test harness, which would hide it while tests pass.
fn say_once(line: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap().insert(line.clone()) {
        let mut stderr = std::io::stderr();
        writeln!(stderr, "{line}").unwrap();
    }
}

/// A dump and what is derived from its configuration.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) dump: Value,
    pub(crate) config: ModelConfig,
    pub(crate) engine: DeepSpeed,
}

impl Case {
    /// All dumps that are at hand; at least three.
    pub(crate) fn all() -> Vec<Self> {
        let cases: Vec<Self> = DUMPS.into_iter().filter_map(Self::read).collect();
        assert!(cases.len() >= 3, "the repository holds copies of three dumps, found {}", cases.len());
        cases
    }

    fn read(name: &'static str) -> Option<Self> {
        let dump: Value = serde_json::from_str(&ground_truth(&format!("deepspeed/{name}"))?).unwrap();
        let config = ModelConfig::from_json(&config_json(&dump)).unwrap();
        let engine = DeepSpeed::new(&config, &topology(&dump), options(&dump)).unwrap();
        Some(Self { name, dump, config, engine })
    }

    /// The ranks of the dump, each with its slot and a name for messages.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = (Slot, &Value, String)> {
        list(&self.dump["ranks"]).iter().map(|rank| {
            let number = u32::try_from(number(&rank["rank"])).unwrap();
            (Slot(number), rank, format!("{} rank {number}", self.name))
        })
    }

    pub(crate) fn stage(&self) -> u64 {
        number(&self.dump["config"]["stage"])
    }

    /// The position of a parameter in the model's list.
    pub(crate) fn parameter(&self, name: &Value) -> usize {
        let name = string(name);
        self.engine.parameters().iter().position(|parameter| parameter.name == name).unwrap()
    }
}

fn config_json(dump: &Value) -> String {
    let mut config = dump["model_config"].clone();
    config["model_type"] = json!("qwen3");
    config["attention_bias"] = dump["config"]["bias"].clone();
    let dtype = if dump["config"]["dtype"] == "fp32" { "float32" } else { "bfloat16" };
    config["torch_dtype"] = json!(dtype);
    config.to_string()
}

fn topology(dump: &Value) -> AutoTp {
    let config = &dump["config"];
    let (tp, world) = (number(&config["tp"]), number(&config["world"]));
    let mut text = format!("autotp:tp={tp},dp={},zero={}", world / tp, config["stage"]);
    text += match config["zinit_group"].as_str() {
        None => "",
        Some("world") => ",init=zero",
        Some("data-parallel group") => ",init=dp",
        Some(other) => panic!("unknown partition group {other}"),
    };
    auto_tp(&text)
}

pub(crate) fn auto_tp(text: &str) -> AutoTp {
    match Topology::parse(text) {
        Ok(Topology::AutoTp(topology)) => topology,
        other => panic!("{text}: {other:?}"),
    }
}

fn options(dump: &Value) -> ZeroOptions {
    let zero = &dump["ds_config"]["zero_optimization"];
    let default = ZeroOptions::default();
    let grouping =
        if dump["config"]["two_groups"] == true { Grouping::MatricesAndVectors } else { Grouping::One };
    ZeroOptions {
        grouping,
        parameter_alignment: zero["parameter_alignment"] == true,
        round_robin_gradients: zero["round_robin_gradients"] == true,
        sub_group_size: zero["sub_group_size"].as_u64().map_or(default.sub_group_size, Elements),
        persistence_threshold: zero["stage3_param_persistence_threshold"]
            .as_u64()
            .map_or(default.persistence_threshold, Elements),
        ..default
    }
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value}"))
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

pub(crate) fn elements(value: &Value) -> Elements {
    Elements(number(value))
}

pub(crate) fn numbers(value: &Value) -> Vec<u64> {
    list(value).iter().map(number).collect()
}

pub(crate) fn ranks(value: &Value) -> Vec<Rank> {
    numbers(value).into_iter().map(|rank| Rank(u32::try_from(rank).unwrap())).collect()
}

pub(crate) fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}"))
}
