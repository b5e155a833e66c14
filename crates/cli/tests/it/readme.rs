//! The commands of the README do what it says.

use std::path::Path;

const README: &str = include_str!("../../../../README.md");

/// Each command line of the README's code blocks that runs the program, with continued lines joined.
fn commands() -> Vec<String> {
    let blocks: String = README.split("```").skip(1).step_by(2).collect();
    let joined = blocks.replace("\\\n", " ");
    let of_program = joined.lines().filter_map(|line| line.split_once("-p reshard-cli -- "));
    of_program.map(|(_, arguments)| arguments.split('#').next().unwrap().trim().to_owned()).collect()
}

/// The layout file that it shows is one.
#[test]
fn its_layout_file_is_read() {
    let json = README.split("```json").nth(1).unwrap().split("```").next().unwrap();
    let (_folder, path) = crate::file("readme.json", json);
    let output = crate::reshard(&["plan", "--source", &path, "--target", &path, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bytes"], serde_json::json!({"local": 144, "sent": 0, "total": 144}));
}

#[test]
fn its_commands_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let commands = commands();
    assert_eq!(commands.len(), 4, "{commands:?}");
    for command in commands {
        let output = assert_cmd::Command::cargo_bin("reshard")
            .unwrap()
            .current_dir(&root)
            .args(command.split_whitespace())
            .output()
            .unwrap();
        // A planted fault must be found: the weights differ.
        let expected = i32::from(command.contains("--fault"));
        assert_eq!(
            output.status.code(),
            Some(expected),
            "{command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        for published in if command.starts_with("plan") { &["15.14 GB", "25.10 GB"][..] } else { &[] } {
            assert!(text.contains(published) && README.contains(&published[..5]), "{text}");
        }
    }
}
