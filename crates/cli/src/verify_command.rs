//! `reshard verify`: whether two checkpoints hold the same bits, whatever their layouts.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use reshard_formats::{Checkpoint, CompareOptions, Comparison, Kept, Replicas, comparable_bytes, compare};
use reshard_layout::Bytes;
use serde::Serialize;

use crate::convert_command::{cores, states};
use crate::error::CliError;
use crate::format::{bytes, count};
use crate::progress::Bar;
use crate::size::size;

/// Arguments of `reshard verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// One checkpoint, of any format
    one: PathBuf,
    /// The other
    other: PathBuf,
    /// What to compare: weights, fp32, exp_avg, ..., or all that both keep
    #[arg(long, value_name = "STATES", default_value = "all", value_delimiter = ',')]
    state: Vec<String>,
    /// Compare bytes, also where the files are large and fingerprints would do
    #[arg(long)]
    exact: bool,
    /// Memory to work in
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = size)]
    memory: Bytes,
    /// Parts that are read at the same time (default: one a core)
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Read one of several copies of a tensor without comparing it with the others
    #[arg(long)]
    trust_replicas: bool,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

/// The keys of `--json`: bytes are integers, seconds are numbers.
#[derive(Serialize)]
struct Output {
    equal: bool,
    compared: Vec<String>,
    /// What only one of the two keeps; it is no difference.
    alone: Vec<String>,
    parameters: u64,
    /// Whether bytes were compared; else fingerprints.
    exact: bool,
    bytes_read: Bytes,
    seconds: f64,
    /// Every parameter that differs, and how.
    differing: Vec<String>,
}

/// Differences that are shown before the rest is counted.
const DIFFERENCES_SHOWN: usize = 20;

/// Compares: what to print, and whether anything differed.
pub(crate) fn run(arguments: &VerifyArguments) -> Result<(String, Result<(), CliError>), CliError> {
    let open = |path: &PathBuf| -> Result<Checkpoint, CliError> {
        let mut checkpoint = Checkpoint::open(path)?;
        let wanted = states(&arguments.state, &checkpoint);
        checkpoint.parts.retain(|kept, _| wanted.contains(kept));
        Ok(checkpoint)
    };
    let (one, other) = (open(&arguments.one)?, open(&arguments.other)?);
    let options = CompareOptions {
        exact: arguments.exact,
        memory: arguments.memory,
        threads: arguments.threads.unwrap_or_else(cores),
        replicas: if arguments.trust_replicas { Replicas::First } else { Replicas::Compare },
    };
    let bar = Bar::new("comparing", comparable_bytes(&one, &other), arguments.json);
    let found = compare(&one, &other, &options, &bar)?;
    drop(bar);
    if found.compared.is_empty() {
        return Err(nothing_in_common(arguments, &one, &other));
    }
    let output = output(&found);
    let text = if arguments.json { serde_json::to_string_pretty(&output)? } else { human(&output) };
    let parameters = found.differences.len() as u64;
    Ok((text, if output.equal { Ok(()) } else { Err(CliError::CheckpointsDiffer { parameters }) }))
}

fn nothing_in_common(arguments: &VerifyArguments, one: &Checkpoint, other: &Checkpoint) -> CliError {
    let kept = |of: &Checkpoint| {
        let names: Vec<&str> = of.parts.keys().map(Kept::name).collect();
        if names.is_empty() { "nothing of it".to_owned() } else { names.join(", ") }
    };
    CliError::Usage {
        message: format!(
            "nothing to compare of {}: {} keeps {}, {} keeps {}",
            arguments.state.join(","),
            one.root.display(),
            kept(one),
            other.root.display(),
            kept(other)
        ),
        hint: None,
    }
}

fn output(found: &Comparison) -> Output {
    let name = |kept: &Kept| kept.name().to_owned();
    Output {
        equal: found.differences.is_empty(),
        compared: found.compared.iter().map(name).collect(),
        alone: found.alone.iter().map(|(kept, _)| name(kept)).collect(),
        parameters: found.parameters as u64,
        exact: found.is_exact,
        bytes_read: found.bytes_read,
        seconds: found.seconds,
        differing: found.differences.iter().map(ToString::to_string).collect(),
    }
}

fn human(output: &Output) -> String {
    let how = if output.exact { "byte by byte" } else { "by fingerprints" };
    let verdict = if output.equal { "equal" } else { "different" };
    let mut text = format!(
        "{verdict}: {} tensors of {}, {how}, {} read in {:.2} s",
        count(output.parameters),
        output.compared.join(", "),
        bytes(output.bytes_read),
        output.seconds
    );
    if !output.alone.is_empty() {
        text.push_str(&format!("\nnot compared, only one keeps it: {}", output.alone.join(", ")));
    }
    for difference in output.differing.iter().take(DIFFERENCES_SHOWN) {
        text.push_str(&format!("\n{difference}"));
    }
    if let Some(more) = output.differing.len().checked_sub(DIFFERENCES_SHOWN).filter(|&more| more > 0) {
        text.push_str(&format!("\nand {} more: --json has all", count(more as u64)));
    }
    text
}
