//! `reshard convert`, `inspect` and `verify` on checkpoints that real engines wrote, as their users call them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{failure, reshard};

/// Checkpoints of real DeepSpeed engines in miniature: what is nasty about each stands in its name.
const FIXTURES: [&str; 6] =
    ["aligned", "frozen_tied_buffers", "round_robin", "uneven", "zero_init", "zero_init_frozen"];

fn fixture(name: &str) -> String {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/data/zero");
    data.join(name).canonicalize().unwrap().display().to_string()
}

/// The JSON of a call that succeeds.
fn json_of(arguments: &[&str]) -> Value {
    let output = reshard(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn convert(arguments: &[&str]) -> Value {
    json_of(&[&["convert", "--no-sync"], arguments].concat())
}

/// A folder for outputs, and paths in it.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn names(&self) -> Vec<String> {
        names(self.0.path())
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Tensors of a safetensors file, by the published layout of the format and none of the program's code.
fn tensors(path: &str) -> Vec<(String, Vec<u64>, String, Vec<u8>)> {
    let bytes = std::fs::read(path).unwrap();
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).unwrap();
    let tensor = |(name, entry): (&String, &Value)| {
        let at = |index: usize| 8 + header_bytes + entry["data_offsets"][index].as_u64().unwrap() as usize;
        let shape = entry["shape"].as_array().unwrap().iter().map(|extent| extent.as_u64().unwrap());
        let dtype = entry["dtype"].as_str().unwrap().to_owned();
        (name.clone(), shape.collect(), dtype, bytes[at(0)..at(1)].to_vec())
    };
    let entries = header.as_object().unwrap().iter();
    entries.filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every state of every checkpoint, through hf and through Universal and hf, has the digests of DeepSpeed's own
/// accessors.
#[test]
fn whole_tensors_are_those_of_the_engines() {
    let expected = std::fs::read_to_string(Path::new(&fixture("expected.json"))).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for name in FIXTURES {
        let (source, scratch) = (fixture(name), Scratch::new());
        let [hf, universal, again] = ["hf", "universal", "again"].map(|name| scratch.path(name));
        convert(&[&source, "--to", "hf", "--state", "all", &hf]);
        convert(&[&source, "--to", "universal", &universal]);
        convert(&[&universal, "--to", "hf", "--state", "all", &again]);
        let kept = expected[name]["kept"].as_object().unwrap();
        assert!(kept.contains_key("fp32") && kept.contains_key("exp_avg"), "{name}");
        for (kept, parameters) in kept {
            let parameters = parameters.as_object().unwrap();
            for folder in [&hf, &again] {
                let path = format!("{folder}/{kept}/model.safetensors");
                let found = tensors(&path);
                assert!(parameters.keys().all(|name| found.iter().any(|found| found.0 == *name)), "{path}");
                let mut compared = 0;
                for (parameter, shape, dtype, bytes) in &found {
                    // Buffers have no digest here.
                    let Some(expected) = parameters.get(parameter) else { continue };
                    assert_eq!(expected["shape"], json!(shape), "{path} {parameter}");
                    let named = match dtype.as_str() {
                        "F32" => "float32",
                        "BF16" => "bfloat16",
                        other => other,
                    };
                    assert_eq!(expected["dtype"], named, "{path} {parameter}");
                    assert_eq!(expected["sha256"], sha256(bytes), "{path} {parameter}");
                    compared += 1;
                }
                assert_eq!(compared, parameters.len(), "{path}");
            }
        }
        assert_eq!(json_of(&["verify", &source, &universal])["equal"], true, "{name}");
        assert_eq!(json_of(&["verify", &source, &universal, "--exact", "--state", "fp32"])["exact"], true);
    }
}

/// A config for which AutoTP cuts alike what the small model of the fixtures has.
fn tiny() -> (tempfile::TempDir, String) {
    let config = json!({
        "model_type": "qwen3", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 18, "vocab_size": 33,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16"
    });
    crate::file("config.json", &config.to_string())
}

/// The parameters of [`tiny`] as a safetensors file whose elements are their own running numbers.
fn tiny_model(scratch: &Scratch) -> String {
    let (_folder, config) = tiny();
    let config = std::fs::read_to_string(config).unwrap();
    let config = reshard_parallel::model::ModelConfig::from_json(&config).unwrap();
    let folder = scratch.path("model");
    std::fs::create_dir(&folder).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
    for parameter in config.parameters() {
        let begin = data.len();
        let elements: u64 = parameter.shape.iter().product();
        data.extend((0..elements).flat_map(|at| (at as u16 ^ begin as u16).to_le_bytes()));
        let entry = json!({"dtype": "BF16", "shape": parameter.shape, "data_offsets": [begin, data.len()]});
        header.insert(parameter.name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(format!("{folder}/model.safetensors"), bytes).unwrap();
    std::fs::write(format!("{folder}/tokenizer.json"), "{}").unwrap();
    folder
}

/// hf -> shards of three ranks -> hf -> one file a tensor: identical bytes, and a folder that is a model.
#[test]
fn shards_and_back_are_identical() {
    let scratch = Scratch::new();
    let model = tiny_model(&scratch);
    let (_folder, config) = tiny();
    let [shards, back, many] = ["shards", "back", "many"].map(|name| scratch.path(name));
    let done = convert(&[&model, "--to", "shards", "--layout", "autotp:tp=3", "--model", &config, &shards]);
    assert_eq!(done["files"], 4, "three ranks and the config");
    convert(&[&shards, "--to", "hf", &back]);
    let original = tensors(&format!("{model}/model.safetensors"));
    let mut sorted = original.clone();
    let mut found = tensors(&format!("{back}/model.safetensors"));
    sorted.sort();
    found.sort();
    assert_eq!(found, sorted);
    assert_eq!(names(Path::new(&back)), ["config.json", "model.safetensors"]);
    convert(&[&back, "--to", "hf", "--file-size", "1KB", &many]);
    let index = std::fs::read_to_string(format!("{many}/model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    let total: usize = original.iter().map(|(_, _, _, bytes)| bytes.len()).sum();
    assert_eq!(index["metadata"]["total_size"], total);
    assert_eq!(json_of(&["verify", &model, &many, "--exact"])["equal"], true);
}

/// What lies beside a model goes with it; what is asked of a cast is done, and what is not asked is not.
#[test]
fn casts_are_asked_for() {
    let scratch = Scratch::new();
    let model = tiny_model(&scratch);
    let [same, wide] = ["same", "wide"].map(|name| scratch.path(name));
    convert(&[&model, "--to", "hf", &same]);
    let path = format!("{model}/model.safetensors");
    assert_eq!(tensors(&format!("{same}/model.safetensors")).len(), tensors(&path).len());
    convert(&[&model, "--to", "hf", "--dtype", "f32", &wide]);
    let narrow: std::collections::BTreeMap<_, _> =
        tensors(&path).into_iter().map(|(name, _, _, bytes)| (name, bytes)).collect();
    for (name, _, dtype, bytes) in tensors(&format!("{wide}/model.safetensors")) {
        assert_eq!(dtype, "F32");
        // A bf16 is the upper half of the float that it stands for.
        let widened: Vec<u8> =
            narrow[&name].chunks_exact(2).flat_map(|half| [0, 0, half[0], half[1]]).collect();
        let is_nan = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap()).is_nan();
        for (found, expected) in bytes.chunks_exact(4).zip(widened.chunks_exact(4)) {
            assert!(found == expected || is_nan(found) && is_nan(expected), "{name}");
        }
    }
    let (code, error) =
        failure(&["convert", &model, "--to", "hf", "--state", "exp_avg", &scratch.path("no")]);
    assert_eq!(code, 2);
    assert!(error.contains("keeps no exp_avg; it keeps weights"), "{error}");
}

#[test]
fn what_differs_is_named_and_the_exit_code_says_so() {
    let scratch = Scratch::new();
    let model = tiny_model(&scratch);
    let other = scratch.path("other");
    convert(&[&model, "--to", "hf", &other]);
    let path = format!("{other}/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let output = reshard(&["verify", &model, &other, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["equal"], false);
    assert_eq!(json["differing"].as_array().unwrap().len(), 1, "{json}");
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        ["equal", "compared", "alone", "parameters", "exact", "bytes_read", "seconds", "differing"]
    );
}

/// Nothing is overwritten unless that is said, and nothing is left beside.
#[test]
fn outputs_are_replaced_when_that_is_said() {
    let (source, scratch) = (fixture("aligned"), Scratch::new());
    let out = scratch.path("out");
    let dry = convert(&[&source, "--to", "universal", "--dry-run", &out]);
    assert_eq!((&dry["written"], scratch.names().len()), (&json!(false), 0));
    convert(&[&source, "--to", "hf", &out]);
    let (code, error) = failure(&["convert", &source, "--to", "universal", &out]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("hint: --force replaces it"), "{error}");
    assert_eq!(names(Path::new(&out)), ["model.safetensors"]);
    let done = convert(&[&source, "--to", "universal", "--force", &out]);
    assert_eq!(done["bytes"]["written"], dry["bytes"]["written"]);
    assert_eq!(scratch.names(), ["out"]);
    assert_eq!(names(Path::new(&out)), ["latest_universal", "step2_universal"]);
}

#[test]
fn bad_requests_are_refused_by_name() {
    let (source, scratch) = (fixture("aligned"), Scratch::new());
    let out = scratch.path("out");
    let cases: [(&[&str], i32, &str); 8] = [
        (&["--to", "shards"], 2, "--to shards needs --layout"),
        (&["--to", "shards", "--layout", "autotp:tp=2"], 2, "needs the model's config.json"),
        (&["--to", "universal", "--dtype", "bf16"], 2, "takes all states as they are"),
        (&["--to", "zero", "--layout", "autotp:tp=2"], 4, "of stage 0"),
        (&["--to", "shards", "--layout", "autotp:tp=2,dp=2"], 4, "with dp or zero"),
        (&["--to", "hf", "--memory", "1KiB"], 5, "memory"),
        (&["--to", "hf", "--for", "zero=4"], 2, "known are same"),
        (&["--to", "hf", "--state", "momentum"], 2, "keeps no momentum"),
    ];
    for (arguments, expected, text) in cases {
        let (code, error) = failure(&[&["convert", &source], arguments, &[&out]].concat());
        assert_eq!(code, expected, "{arguments:?}: {error}");
        assert!(error.contains(text), "{arguments:?}: {error}");
    }
    assert!(scratch.names().is_empty());
    for command in ["inspect", "verify"] {
        let both = [command, &out, &out];
        let (code, error) = failure(&both[..if command == "verify" { 3 } else { 2 }]);
        assert_eq!(code, 6, "{error}");
    }
    let (code, error) = failure(&["inspect", &scratch.path("")]);
    assert_eq!(code, 3);
    assert!(error.contains("holds no checkpoint"), "{error}");
}

/// A dry run ends as the run would: what is in the way is said before hours of reading, and nothing is touched.
#[test]
fn dry_runs_are_refused_as_the_runs_are() {
    let (source, scratch) = (fixture("aligned"), Scratch::new());
    let hf = scratch.path("hf");
    convert(&[&source, "--to", "hf", &hf]);
    let file = scratch.path("file");
    std::fs::write(&file, "").unwrap();
    let inside = format!("{hf}/inside");
    let orphan = scratch.path("no/parent");
    let cases: [(&[&str], i32); 6] = [
        (&[&hf, &hf, "--force"], 2),
        (&[&source, &hf], 2),
        (&[&hf, &inside], 2),
        (&[&source, &file, "--force"], 6),
        (&[&source, &orphan], 6),
        (&[&source, &scratch.path("new"), "--memory", "1KiB"], 5),
    ];
    for (arguments, expected) in cases {
        let run = failure(&[&["convert", "--to", "hf"], arguments].concat());
        let dry = failure(&[&["convert", "--to", "hf", "--dry-run"], arguments].concat());
        assert_eq!((run.0, &run), (expected, &dry), "{arguments:?}");
    }
    convert(&[&source, "--to", "universal", "--dry-run", "--force", &hf]);
    assert_eq!(names(Path::new(&hf)), ["model.safetensors"]);
    assert_eq!(scratch.names(), ["file", "hf"]);
}

/// A pipe that nobody writes is refused and not waited for, wherever a small file is expected.
#[test]
fn pipes_are_refused_at_once() {
    let (source, scratch) = (fixture("aligned"), Scratch::new());
    let pipe = |path: &str| {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
        path.to_owned()
    };
    let hf = scratch.path("hf");
    convert(&[&source, "--to", "hf", &hf]);
    let index = pipe(&format!("{hf}/model.safetensors.index.json"));
    let pointer = pipe(&scratch.path("latest"));
    let config = pipe(&scratch.path("config"));
    let shards = [
        "convert",
        &source,
        "--to",
        "shards",
        "--layout",
        "autotp:tp=2",
        "--model",
        &config,
        &scratch.path("out"),
    ];
    let cases: [(&[&str], &str); 3] =
        [(&["inspect", &hf], &index), (&["inspect", &scratch.path("")], &pointer), (&shards, &config)];
    for (arguments, path) in cases {
        let (code, error) = failure(arguments);
        assert_eq!(code, 6, "{error}");
        assert!(error.contains(path) && error.contains("not a regular file"), "{error}");
    }
}

#[test]
fn inspect_says_what_is_there_and_where() {
    let all = json_of(&["inspect", &fixture("frozen_tied_buffers")]);
    assert_eq!(
        (&all["format"], &all["stage"], &all["tp"], &all["dp"]),
        (&json!("ZeRO"), &json!(3), &json!(2), &json!(2))
    );
    assert_eq!(all["frozen"].as_array().unwrap().len(), 2);
    let names: Vec<&str> =
        all["kept"].as_array().unwrap().iter().map(|kept| kept["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["weights", "fp32", "exp_avg", "exp_avg_sq"]);
    let one = json_of(&["inspect", &fixture("aligned"), "--parameter", "norm.weight"]);
    let holders = &one["kept"][0]["parameters"][0]["holders"];
    assert_eq!(*holders, json!([0, 1]), "whole on both tensor-parallel ranks");
    // The bytes that it points at are those of the whole tensor, found without the program.
    let at = &one["kept"][1]["parameters"][0]["boxes"][0];
    let (file, offset) = (at["holder"].as_str().unwrap(), at["offset"].as_u64().unwrap() as usize);
    let bytes = std::fs::read(file).unwrap();
    let scratch = Scratch::new();
    convert(&[&fixture("aligned"), "--to", "hf", "--state", "fp32", &scratch.path("hf")]);
    let whole = tensors(&format!("{}/model.safetensors", scratch.path("hf")));
    let (_, _, _, expected) = whole.iter().find(|(name, ..)| name == "norm.weight").unwrap();
    let length = 4 * at["shape"][0].as_u64().unwrap() as usize;
    assert_eq!(&bytes[offset..offset + length], &expected[..length]);
    let (code, error) = failure(&["inspect", &fixture("aligned"), "--parameter", "norm.wait"]);
    assert_eq!(code, 2);
    assert!(error.contains("hint: the nearest name is norm.weight"), "{error}");
    let output = reshard(&["inspect", &fixture("aligned")]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("norm.weight"));
}
