//! `reshard demo` in real processes: a representative set of shapes, bad input, and deaths.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{failure, file, reshard};

fn config(width: u32, tied: bool, bias: bool) -> String {
    format!(
        r#"{{"model_type":"qwen3","hidden_size":64,"num_hidden_layers":1,"num_attention_heads":8,
        "num_key_value_heads":4,"head_dim":8,"intermediate_size":{width},"vocab_size":258,
        "tie_word_embeddings":{tied},"attention_bias":{bias},"mlp_bias":{bias},"rms_norm_eps":1e-6,
        "rope_theta":10000,"torch_dtype":"bfloat16"}}"#
    )
}

fn demo(arguments: &[&str]) -> Value {
    let output = reshard(&[&["demo", "--json"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every ZeRO kind, trainer shape, rollout tp and kind of model at least once; `make matrix` runs all.
#[test]
fn a_representative_set_has_no_mismatch() {
    let (_one, tied) = file("tied.json", &config(144, true, false));
    let (_two, tied_uneven) = file("tied_uneven.json", &config(18, true, true));
    let set: [(&str, &str, &str, &[&str]); 12] = [
        ("tiny", "autotp:tp=1,dp=1,zero=0", "autotp:tp=1", &[]),
        ("uneven", "autotp:tp=2,dp=1,zero=0", "autotp:tp=1,copies=2", &[]),
        ("tiny", "autotp:tp=1,dp=2,zero=1", "autotp:tp=2", &[]),
        ("uneven", "autotp:tp=2,dp=2,zero=1", "autotp:tp=4", &[]),
        (&tied, "autotp:tp=2,dp=2,zero=2", "autotp:tp=3", &[]),
        (&tied_uneven, "autotp:tp=2,dp=2,zero=2", "autotp:tp=2,copies=2", &["--policy", "lowest"]),
        ("tiny", "autotp:tp=2,dp=4,zero=3", "autotp:tp=4,copies=2", &[]),
        ("uneven", "autotp:tp=2,dp=4,zero=3,init=zero", "autotp:tp=3,copies=2", &["--policy", "local"]),
        (&tied, "autotp:tp=2,dp=2,zero=3,init=dp", "autotp:tp=4", &[]),
        (&tied_uneven, "autotp:tp=2,dp=2,zero=3,init=zero", "autotp:tp=4", &["--separate"]),
        ("uneven", "autotp:tp=1,dp=2,zero=3", "autotp:tp=3,copies=2", &["--separate"]),
        ("tiny", "autotp:tp=2,dp=1,zero=2", "autotp:tp=1,copies=2", &["--separate"]),
    ];
    for (model, train, rollout, more) in set {
        let base =
            ["--model", model, "--train", train, "--rollout", rollout, "--steps", "2", "--repeats", "1"];
        let report = demo(&[&base[..], more].concat());
        let paths = report["paths"].as_array().unwrap();
        assert_eq!(paths.len(), 3);
        for path in paths {
            assert_eq!(path["verified"]["mismatches"], 0, "{train} {rollout}");
            // Before any step, after each of two, and once more.
            let target: u64 =
                path["bytes"]["local"].as_u64().unwrap() + path["bytes"]["sent"].as_u64().unwrap();
            if path["name"] == "affine" {
                assert_eq!(path["verified"]["elements"], 4 * target / 2, "{train} {rollout}");
            }
        }
    }
}

#[test]
fn the_json_keys_are_stable() {
    let report = demo(&["--steps", "1", "--repeats", "0"]);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&report), "model train rollout steps_before losses paths samples memory");
    let path = &report["paths"][0];
    assert_eq!(keys(path), "name seconds bytes staging_bytes_max rounds pieces verified");
    assert_eq!(keys(&path["seconds"]), "layouts plan first repeats");
    assert_eq!(keys(&path["bytes"]), "local sent");
    assert_eq!(keys(&path["pieces"]), "source target");
    assert_eq!(keys(&report["model"]), "name parameters");
    assert_eq!(keys(&report["samples"]), "prompt before after sampled");
    assert_eq!(keys(&report["memory"]), "kept_bytes gradient_bytes working_weight_bytes_max");
    assert_eq!(keys(&path["verified"]), "elements mismatches differing");
}

#[test]
fn a_repeated_way_is_tried_once() {
    let report = demo(&["--steps", "0", "--repeats", "0", "--paths", "affine,gather,affine"]);
    let names: Vec<&str> =
        report["paths"].as_array().unwrap().iter().map(|path| path["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["affine", "gather"]);
}

#[test]
fn training_goes_on_from_what_a_demo_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (saved, scratch) = (path("saved"), path("scratch"));
    std::fs::create_dir(&scratch).unwrap();
    let run = |steps: &str, more: &[&str]| {
        let base = ["--model", "uneven", "--steps", steps, "--repeats", "0", "--scratch", &scratch];
        demo(&[&base, more].concat())
    };
    let losses = |report: &Value| report["losses"].as_array().unwrap().clone();
    let whole = losses(&run("5", &["--paths", "checkpoint"]));
    let first = run("3", &["--save", &saved]);
    assert_eq!((&first["steps_before"], losses(&first).as_slice()), (&Value::from(0), &whole[..3]));
    let next = run("2", &["--resume", &saved]);
    assert_eq!((&next["steps_before"], losses(&next).as_slice()), (&Value::from(3), &whole[3..]));
    let elsewhere =
        run("2", &["--resume", &saved, "--train", "autotp:tp=1,dp=3,zero=1", "--rollout", "autotp:tp=3"]);
    for (found, expected) in losses(&elsewhere).iter().zip(&whole[3..]) {
        let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
        assert!((found - expected).abs() < 1e-5 * expected, "{found} at another topology, here {expected}");
    }
    for report in [&first, &next, &elsewhere] {
        let mismatches =
            report["paths"].as_array().unwrap().iter().map(|path| &path["verified"]["mismatches"]);
        assert_eq!(mismatches.collect::<Vec<_>>(), [0, 0, 0]);
    }
    assert_eq!(names(folder.path()), ["saved".to_owned(), "scratch".to_owned()].into());
    assert!(names(Path::new(&scratch)).is_empty());
}

#[test]
fn refuses_bad_input_by_name_and_number() {
    let (_a, no_heads) = file("a.json", r#"{"model_type":"qwen3","hidden_size":64}"#);
    let (_b, heads) = file(
        "b.json",
        &config(18, false, false).replace(r#""num_attention_heads":8"#, r#""num_attention_heads":6"#),
    );
    let (_c, short) = file("short.txt", "too short");
    let (_d, gelu) = file("d.json", &config(18, false, false).replace('{', r#"{"hidden_act":"gelu","#));
    let (_e, odd) = file("e.json", &config(18, false, false).replace(r#""head_dim":8"#, r#""head_dim":7"#));
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().to_str().unwrap();
    let calls: [&[&str]; 20] = [
        &["--train", "autotp:tp=2,dp=1", "--rollout", "autotp:tp=2,copies=2"],
        &["--train", "autotp:tp=0"],
        &["--train", "autotp:tp=2,zero=7"],
        &["--train", "autotp:tp=2,init=zero"],
        &["--train", "autotp:tp=2,dp=33"],
        &["--train", "autotp:tp=2,dp=32", "--separate"],
        &["--rollout", "autotp:tp=2,dp=2"],
        &["--rollout", "autotp:tp=2,zero=1"],
        &["--paths", "affine,teleport"],
        &["--save", there],
        &["--save", "absent/checkpoint"],
        &["--resume", "absent"],
        &["--resume", there],
        &["--scratch", "absent"],
        &["--text", "absent.txt"],
        &["--text", &short],
        &["--model", &no_heads],
        &["--model", &heads],
        &["--model", &gelu],
        &["--model", &odd],
    ];
    let mut all = String::new();
    let large = crate::config();
    let (code, text) = failure(&["demo", "--model", &large]);
    all.push_str(&format!("$ --model LARGE\n[{code}] {}\n", text.replace(&large, "LARGE")));
    for call in calls {
        let (code, text) = failure(&[&["demo"], call].concat());
        let mut shown = format!("$ {}\n[{code}] {text}\n", call.join(" "));
        for (path, name) in
            [(&no_heads, "NO_HEADS"), (&heads, "HEADS"), (&short, "SHORT"), (&gelu, "GELU"), (&odd, "ODD")]
        {
            shown = shown.replace(path.as_str(), name);
        }
        shown = shown.replace(there, "THERE");
        all.push_str(&shown);
    }
    insta::assert_snapshot!("demo_refusals", all);
}

#[test]
fn planted_faults_are_found_and_named() {
    let (_folder, even) = file("even.json", &config(144, false, true));
    let (code, text) = {
        let output = reshard(&[
            "demo",
            "--model",
            &even,
            "--train",
            "autotp:tp=2,dp=1,zero=3",
            "--rollout",
            "autotp:tp=2",
            "--fault",
            "swapped-ranks",
            "--steps",
            "0",
        ]);
        let both = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(both).unwrap())
    };
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("up_proj"), "{text}");
    let (code, text) = failure(&["demo", "--model", &even, "--fault", "drift"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("replicas of \"model.embed_tokens.weight\" differ"), "{text}");
}

/// Processes below one, by reading /proc.
fn descendants(of: u32) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let mut fields = after_name.split_whitespace();
        let (state, parent) = (fields.next(), fields.next().and_then(|parent| parent.parse::<u32>().ok()));
        if parent == Some(of) && state != Some("Z") {
            all.insert(pid);
        }
    }
    all
}

fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

fn shared_memory_files() -> BTreeSet<String> {
    names(Path::new("/dev/shm"))
}

const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A demo that would train for hours, with its four ranks running and a checkpoint on its way.
fn endless(scratch: &Path) -> (Child, BTreeSet<u32>) {
    let program = assert_cmd::cargo::cargo_bin("reshard");
    let launcher = Command::new(program)
        .args(["demo", "--steps", "1000000", "--scratch"])
        .arg(scratch)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ranks = BTreeSet::new();
    wait_until("the start of four ranks", || {
        ranks = descendants(launcher.id());
        ranks.len() == 4
    });
    wait_until("a checkpoint", || names(scratch).iter().any(|name| scratch.join(name).join("zero").exists()));
    (launcher, ranks)
}

/// What lies in a folder.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

#[test]
fn a_killed_rank_ends_the_demo_with_one_error() {
    let before = shared_memory_files();
    let scratch = tempfile::tempdir().unwrap();
    let (mut launcher, ranks) = endless(scratch.path());
    signal(*ranks.last().unwrap(), "KILL");
    let status = launcher.wait().unwrap();
    let mut text = String::new();
    launcher.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(status.code(), Some(7), "{text}");
    assert!(text.starts_with("error: rank ") && text.lines().count() == 1, "{text}");
    assert!(text.contains("signal 9") || text.contains("SIGKILL") || text.contains("killed"), "{text}");
    assert!(ranks.iter().all(|&rank| !is_alive(rank)));
    assert!(shared_memory_files().is_subset(&before));
    assert!(names(scratch.path()).is_empty(), "{:?}", names(scratch.path()));
}

/// But for the checkpoints of the moment, which nobody is there to remove: the next demo does.
#[test]
fn nothing_is_left_when_the_launcher_dies() {
    let before = shared_memory_files();
    let scratch = tempfile::tempdir().unwrap();
    for name in ["KILL", "INT", "TERM"] {
        let (mut launcher, ranks) = endless(scratch.path());
        signal(launcher.id(), name);
        assert!(!launcher.wait().unwrap().success());
        wait_until("the end of all ranks", || ranks.iter().all(|&rank| !is_alive(rank)));
        assert_eq!(names(scratch.path()).len(), 1, "the demo before is cleaned up after");
    }
    let folder = scratch.path().to_str().unwrap();
    demo(&["--steps", "0", "--repeats", "0", "--scratch", folder]);
    assert!(names(scratch.path()).is_empty(), "{:?}", names(scratch.path()));
    assert!(shared_memory_files().is_subset(&before));
}
