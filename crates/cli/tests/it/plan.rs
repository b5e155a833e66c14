//! `reshard plan`: the published byte counts, layout files, and what is refused how.

use serde_json::Value;

use crate::{config, failure, file, reshard};

fn plan(source: &str, target: &str, policy: &str) -> Value {
    let model = config();
    let output = reshard(&[
        "plan", "--model", &model, "--source", source, "--target", target, "--policy", policy, "--json",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The byte model of the published sync of Qwen3-8B, worked out by hand in DeepSpeed's discussion:
/// S = 15,136,194,560 bytes are cut over tensor parallelism, E = 1,245,276,160 are whole on every rank.
#[test]
fn moves_the_published_bytes() {
    const S: u64 = 15_136_194_560;
    const E: u64 = 1_245_276_160;
    let cases = [
        (2, "lowest", S / 4 + E),
        (2, "balanced", S + 8 * E),
        (3, "balanced", S / 4 + 2 * E),
        (3, "lowest", S / 4 + E),
    ];
    for (zero, policy, local) in cases {
        let json = plan(&format!("autotp:tp=2,dp=4,zero={zero}"), "autotp:tp=4,copies=2", policy);
        assert_eq!(json["parameters"], 399);
        assert_eq!(json["pieces"], serde_json::json!({"source": 3192, "target": 3192}));
        assert_eq!(json["bytes"]["local"], local, "zero={zero} {policy}");
        assert_eq!(json["bytes"]["sent"], 2 * S + 8 * E - local, "zero={zero} {policy}");
        let sum = |key: &str| json[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>();
        assert_eq!(json["bytes"]["sent"], sum("sent_by_rank"));
        assert_eq!(json["bytes"]["sent"], sum("received_by_rank"));
    }
}

/// Into vLLM's fused tensors: over four ranks every element goes once, but for the normalisations (308,224 elements),
/// which are whole on each; over sixteen, each of eight key-value heads (36 layers of k and v) goes to two.
#[test]
fn an_engine_stands_where_a_topology_stands() {
    const ALL: u64 = 2 * 8_190_735_360;
    const NORMS: u64 = 2 * 308_224;
    const KEY_VALUE: u64 = 2 * 36 * 2 * 1024 * 4096;
    for (target, sent) in [
        ("vllm:tp=4,first=8", ALL + 3 * NORMS),
        ("sglang:tp=16,first=8", ALL + 15 * NORMS + KEY_VALUE),
        ("megatron:tp=16,pp=2,first=8", ALL + 15 * NORMS),
        ("hf:first=8", ALL),
    ] {
        let json = plan("autotp:tp=2,dp=4,zero=3", target, "balanced");
        assert_eq!((&json["bytes"]["sent"], &json["bytes"]["local"]), (&sent.into(), &0.into()), "{target}");
        assert_eq!((&json["parameters"], &json["unused"]), (&399.into(), &serde_json::json!([])), "{target}");
    }
}

#[test]
fn the_json_keys_are_stable_and_the_plan_does_not_depend_on_threads() {
    let model = config();
    let call = |threads: &str| -> Value {
        let sides = ["--source", "autotp:tp=2", "--target", "autotp:tp=3,first=2"];
        let output = reshard(
            &[&["plan", "--model", &model, "--threads", threads, "--repeats", "2", "--json"], &sides[..]]
                .concat(),
        );
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let one = call("1");
    let keys: Vec<&String> = one.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "policy",
            "cast",
            "parameters",
            "pieces",
            "copies",
            "bytes",
            "sent_by_rank",
            "received_by_rank",
            "seconds",
            "rounds",
            "rounds_bound",
            "staging_bytes",
            "fingerprint",
            "unused"
        ]
    );
    let seconds: Vec<&String> = one["seconds"].as_object().unwrap().keys().collect();
    assert_eq!(seconds, ["layouts", "plan", "schedule", "verify"]);
    assert_eq!(one["fingerprint"], call("2")["fingerprint"]);
    assert_eq!(one["bytes"]["local"], 0);
}

const FILE: &str = r#"{"version":1,"dtype":"bf16","parameters":{"up":{"logical_shape":[18,4],"ranks":{
    "0":{"shard_shape":[9,4],"pieces":[{"shape":[9,4],"source":[0,[4,1]],"dest":[0,[4,1]],"locations":[0]}]},
    "1":{"shard_shape":[9,4],"pieces":[{"shape":[9,4],"source":[36,[4,1]],"dest":[0,[4,1]],"locations":[1]}]}}}}}"#;

#[test]
fn a_layout_file_stands_where_a_topology_stands() {
    let (_folder, path) = file("two.json", FILE);
    let whole = FILE.replace("[9,4]", "[18,4]");
    let whole = format!("{}}}}}}}}}", whole.split(",\n    \"1\"").next().unwrap());
    let (_other, target) = file("one.json", &whole);
    let output = reshard(&["plan", "--source", &path, "--target", &target]);
    let text = String::from_utf8(output.stdout).unwrap();
    let text: String = text
        .lines()
        .filter(|line| !line.contains("milliseconds") && !line.contains("fingerprint"))
        .map(|line| format!("{line}\n"))
        .collect();
    insta::assert_snapshot!("layout_files", text);
}

/// 72 bytes go from rank 1 to rank 0: 5 messages of at most 16 bytes, or 1 of at most 64 MiB.
#[test]
fn staging_decides_the_number_of_rounds() {
    let (_folder, path) = file("two.json", FILE);
    let whole = FILE.replace("[9,4]", "[18,4]");
    let whole = format!("{}}}}}}}}}", whole.split(",\n    \"1\"").next().unwrap());
    let (_other, target) = file("one.json", &whole);
    let call = |staging: &[&str]| -> Value {
        let sides = ["plan", "--source", &path, "--target", &target, "--json"];
        let output = reshard(&[&sides[..], staging].concat());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for (staging, bytes, rounds) in
        [(&["--staging", "64"][..], 64, 5), (&["--staging", "1KB"], 1000, 1), (&[], 268_435_456, 1)]
    {
        let json = call(staging);
        assert_eq!(json["staging_bytes"], bytes);
        assert_eq!((&json["rounds"], &json["rounds_bound"]), (&rounds.into(), &rounds.into()));
    }
}

/// The busiest rank's bytes in messages of at most 64 MiB, and at most one more for what is left of each of its
/// seven peers.
#[test]
fn the_rounds_of_a_real_model_are_near_its_bytes() {
    let json = plan("autotp:tp=2,dp=4,zero=3", "autotp:tp=4,copies=2", "balanced");
    let most = |key: &str| json[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).max().unwrap();
    let least = most("received_by_rank").max(most("sent_by_rank")).div_ceil(64 << 20);
    let rounds = json["rounds"].as_u64().unwrap();
    assert_eq!(json["rounds_bound"], rounds);
    assert!(least <= rounds && rounds <= least + 7, "{rounds} rounds, {least} at least");
}

#[test]
fn a_cast_is_made_with_permission_and_counted_on_the_wire() {
    let (_folder, wide) = file("wide.json", &FILE.replace("bf16", "f32"));
    let (_other, narrow) = file("narrow.json", FILE);
    let call = ["plan", "--source", &wide, "--target", &narrow];
    let (code, text) = failure(&call);
    assert_eq!(code, 4);
    assert_eq!(
        text,
        "error: up: the source holds f32, the target bf16, and a plan casts only with permission\n\
         hint: --cast permits to cast from one float type to another\n"
    );
    let output = reshard(&[&call[..], &["--cast", "--json"]].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["cast"], true);
    assert_eq!(json["bytes"], serde_json::json!({"local": 144, "sent": 0, "total": 144}));
}

#[test]
fn a_full_disk_under_stdout_is_an_error_that_is_said() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin("reshard"))
        .args(["plan", "--model", &config(), "--source", "autotp", "--target", "autotp:tp=2"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: cannot write to stdout: "));
}

#[test]
fn says_what_is_wrong_and_exits_accordingly() {
    let model = config();
    let (_folder, layout) = file("two.json", FILE);
    let (_broken_folder, broken) = file("broken.json", &FILE.replace("[36,", "[40,"));
    let (_bad_folder, bad) = file("config.json", "{\"model_type\":\"qwen3\"}");
    let calls: [&[&str]; 13] = [
        &["plan", "--source", "autotp:tp=2", "--target", "autotp:tp=4"],
        &["plan", "--model", &model, "--source", "autotp:tq=2", "--target", "autotp:tp=4"],
        &["plan", "--model", &model, "--source", "autotp:tp=2,tp=2", "--target", "autotp:tp=4"],
        &["plan", "--model", &model, "--source", "fsdp:shard=8", "--target", "autotp:tp=4"],
        &["plan", "--model", &model, "--source", "autotp:tp=2,zero=2,init=dp", "--target", "autotp:tp=4"],
        &[
            "plan",
            "--model",
            &model,
            "--source",
            "autotp:tp=2",
            "--target",
            "autotp:tp=4",
            "--policy",
            "best",
        ],
        &["plan", "--model", "absent.json", "--source", "autotp:tp=2", "--target", "autotp:tp=4"],
        &["plan", "--model", &bad, "--source", "autotp:tp=2", "--target", "autotp:tp=4"],
        &["plan", "--source", &broken, "--target", &layout],
        &["plan", "--model", &model, "--source", &layout, "--target", "autotp:tp=4"],
        &["plan", "--source", &layout, "--target", &layout, "--staging", "1.5GB"],
        &["plan", "--source", &layout, "--target", &layout, "--staging", "63"],
        &["plan", "--model", &model, "--source", "autotp", "--target", "autotp:first=1", "--staging", "1KB"],
    ];
    let mut all = String::new();
    for call in calls {
        let (code, text) = failure(call);
        let shown = call[1..].join(" ").replace(&model, "MODEL").replace(&bad, "BAD");
        let text = text.replace(&model, "MODEL").replace(&bad, "BAD").replace(&broken, "BROKEN");
        let shown = shown.replace(&broken, "BROKEN").replace(&layout, "LAYOUT");
        all.push_str(&format!("$ {shown}\n[{code}] {text}\n"));
    }
    insta::assert_snapshot!("refusals", all);
}
