//! The demo with ranks as processes, by the example of this crate.

use std::process::{Command, Output};

use reshard_trainer::demo::{DemoOptions, DemoReport, Faults};
use reshard_trainer::{Category, UNEVEN};

/// Runs the example, which cargo has built beside the tests. However it ends, it leaves no checkpoint behind.
fn run(options: &DemoOptions) -> Output {
    let tests = std::env::current_exe().expect("this program");
    let program = tests.ancestors().nth(2).expect("a folder of programs").join("examples/demo");
    assert!(program.exists(), "{} is built by cargo test, or by cargo build --examples", program.display());
    let scratch = tempfile::tempdir().expect("a folder");
    let options = DemoOptions { scratch: Some(scratch.path().to_owned()), ..options.clone() };
    let json = serde_json::to_string(&options).expect("options are JSON");
    let output = Command::new(program).arg(json).output().expect("the example runs");
    assert_eq!(std::fs::read_dir(scratch.path()).expect("a folder").count(), 0);
    output
}

fn report(output: &Output) -> DemoReport {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn ranks_are_processes() {
    for (rollout, separate) in [("autotp:tp=4", false), ("autotp:tp=3,copies=2", true)] {
        let options = DemoOptions {
            rollout: rollout.to_owned(),
            model: UNEVEN.into(),
            separate,
            ..DemoOptions::default()
        };
        let output = run(&options);
        let report = report(&output);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(report.losses.len(), 3);
        assert!(report.is_equal() && report.paths.len() == 3);
        assert_eq!(report.rollout, rollout);
    }
}

#[test]
fn a_difference_is_in_the_exit_code() {
    let config = UNEVEN.config_json.replace("\"vocab_size\": 259", "\"vocab_size\": 260");
    let mut options =
        DemoOptions { faults: Faults { swap_tp_ranks: true, ..Faults::default() }, ..DemoOptions::default() };
    options.model.config_json = config;
    let output = run(&options);
    assert_eq!(output.status.code(), Some(i32::from(Category::Differs.exit_code())));
    let differing = &report(&output).paths[0].verified.differing;
    assert!(differing.iter().any(|found| found.parameter == "model.layers.2.mlp.up_proj.weight"));
}

#[test]
fn drift_reaches_the_launcher_by_name() {
    let options = DemoOptions {
        faults: Faults { weight_seed_offsets: vec![0, 7], ..Faults::default() },
        model: UNEVEN.into(),
        separate: true,
        ..DemoOptions::default()
    };
    let output = run(&options);
    assert_eq!(output.status.code(), Some(i32::from(Category::Differs.exit_code())));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with("error: replicas of \"model.embed_tokens.weight\" differ: ranks [1, 3]"),
        "{said}"
    );
    assert!(said.contains("model.layers.0.mlp.down_proj.bias") && said.lines().count() == 1, "{said}");
    assert!(output.stdout.is_empty());
}
