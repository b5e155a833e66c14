//! `reshard demo`: train, sync into rollout engines by every way, compare every element, print the table.

use std::path::PathBuf;
use std::process::Command;

use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use reshard_parallel::topology::Topology;
use reshard_plan::Policy;
use reshard_trainer::BuiltIn;
use reshard_trainer::demo::{self, DemoModel, DemoOptions, DemoReport, Faults, Path, PathReport};

use crate::error::CliError;
use crate::format::{bytes, count, median, say_line, trimmed};
use crate::plan_command::policy;
use crate::side;

/// The hidden command that a rank's process is started with.
pub(crate) const RANK_COMMAND: &str = "demo-rank";

/// Arguments of `reshard demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Topology of the trainer
    #[arg(long, value_name = "TOPOLOGY", default_value = "autotp:tp=2,dp=2,zero=3")]
    train: String,
    /// Topology of the rollout engines: tp ranks a copy, any number of copies
    #[arg(long, value_name = "TOPOLOGY", default_value = "autotp:tp=4")]
    rollout: String,
    /// tiny, uneven (an MLP width of 18, biases), or a Hugging Face config.json
    #[arg(long, default_value = "tiny")]
    model: String,
    /// Text file to train on, byte by byte; a text of the program if there is none
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Training steps; every way syncs before the first and after each
    #[arg(long, default_value = "3")]
    steps: u32,
    /// Further syncs after the last step
    #[arg(long, default_value = "3")]
    repeats: u32,
    /// Who sends a box that several ranks hold: lowest, local or balanced
    #[arg(long, default_value = "balanced", value_parser = policy)]
    policy: Policy,
    /// Ways to move the weights: affine (by layouts and a plan), gather (whole parameters, sliced), checkpoint (ZeRO
    /// files, converted into Universal ones, loaded)
    #[arg(long, value_name = "WAYS", default_value = "affine,gather,checkpoint", value_delimiter = ',', value_parser = way)]
    paths: Vec<Path>,
    /// Give the rollout engines processes of their own
    #[arg(long)]
    separate: bool,
    /// Decides initial weights and batches
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Leave a ZeRO checkpoint in this folder after the last step; nothing may be there yet
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Go on from a ZeRO or Universal checkpoint of any topology instead of initial weights
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Where the folder is made that checkpoints pass through, and removed again; the system's temporary files unless
    /// given
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Plant a fault, to see that it is found
    #[arg(long)]
    fault: Option<Fault>,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

/// Faults that the checks must find.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fault {
    /// Describe the first two ranks of every tensor-parallel group in each other's place
    SwappedRanks,
    /// Start the tensor-parallel ranks from different weights, so that replicas differ
    Drift,
}

fn way(name: &str) -> Result<Path, String> {
    Path::parse(name).ok_or_else(|| format!("known are {}", Path::ALL.map(Path::name).join(", ")))
}

/// Runs the demo: what to print, and whether anything differed.
pub(crate) fn run(arguments: &DemoArguments) -> Result<(String, Result<(), CliError>), CliError> {
    let options = options(arguments)?;
    let program = std::env::current_exe()
        .map_err(|cause| CliError::Read { path: PathBuf::from("the program itself"), cause })?;
    let report = demo::launch(&options, |_| {
        let mut command = Command::new(&program);
        command.arg(RANK_COMMAND);
        command
    })?;
    let text = if arguments.json { serde_json::to_string_pretty(&report)? } else { human(&report) };
    let elements = report.paths.iter().map(|path| path.verified.mismatches).sum();
    Ok((text, if report.is_equal() { Ok(()) } else { Err(CliError::Differs { elements }) }))
}

/// One rank's process.
pub(crate) fn run_rank() -> Result<(), CliError> {
    Ok(demo::rank_main(say_line)?)
}

fn options(arguments: &DemoArguments) -> Result<DemoOptions, CliError> {
    let tp = Topology::parse(&arguments.train)
        .map_err(|error| CliError::Parallel { context: format!("--train {}", arguments.train), error })?;
    Topology::parse(&arguments.rollout)
        .map_err(|error| CliError::Parallel { context: format!("--rollout {}", arguments.rollout), error })?;
    if arguments.fault.is_some() && matches!(&tp, Topology::AutoTp(topology) if topology.tp().get() < 2) {
        return Err(CliError::Usage {
            message: format!("--fault needs a trainer with tp=2 or more, --train is {tp}"),
            hint: None,
        });
    }
    let faults = match arguments.fault {
        None => Faults::default(),
        Some(Fault::SwappedRanks) => Faults { swap_tp_ranks: true, ..Faults::default() },
        Some(Fault::Drift) => Faults { weight_seed_offsets: vec![0, 1], ..Faults::default() },
    };
    Ok(DemoOptions {
        train: arguments.train.clone(),
        rollout: arguments.rollout.clone(),
        model: model(&arguments.model)?,
        text: arguments.text.clone(),
        steps: arguments.steps,
        repeats: arguments.repeats,
        policy: arguments.policy,
        paths: arguments.paths.clone(),
        separate: arguments.separate,
        seed: arguments.seed,
        scratch: arguments.scratch.clone(),
        save: arguments.save.clone(),
        resume: arguments.resume.clone(),
        faults,
    })
}

fn model(name: &str) -> Result<DemoModel, CliError> {
    if let Some(built_in) = BuiltIn::find(name) {
        return Ok(built_in.into());
    }
    let path = std::path::Path::new(name);
    if !path.exists() {
        return Err(CliError::Usage {
            message: format!("--model {name}: there is no such file"),
            hint: Some("tiny and uneven are built in; anything else is a config.json".to_owned()),
        });
    }
    Ok(DemoModel { name: name.to_owned(), config_json: side::read(path)? })
}

/// Lines that name what differs: enough for every kind of parameter of a layer.
const MISMATCHES_SHOWN: usize = 16;

fn human(report: &DemoReport) -> String {
    let mut text = format!(
        "{}: {} parameters, trained as {}, rolled out as {}\nloss  ",
        report.model.name,
        count(report.model.parameters),
        report.train,
        report.rollout
    );
    if report.steps_before > 0 {
        text.push_str(&format!("after {} steps  ", count(report.steps_before)));
    }
    let losses: Vec<String> = report.losses.iter().map(|loss| format!("{loss:.4}")).collect();
    text.push_str(if losses.is_empty() { "not trained" } else { "" });
    text.push_str(&losses.join(" -> "));
    text.push_str("\n\n");
    text.push_str(&table(&report.paths));
    for path in &report.paths {
        let differing = &path.verified.differing;
        for mismatch in differing.iter().take(MISMATCHES_SHOWN) {
            text.push_str(&format!("\n{}: {mismatch}", path.name));
        }
        if let Some(more) = differing.len().checked_sub(MISMATCHES_SHOWN).filter(|&more| more > 0) {
            text.push_str(&format!("\n{}: and {more} more parameters and ranks", path.name));
        }
    }
    let memory = &report.memory;
    text.push_str(&format!(
        "\n\na trainer rank keeps {}, gradients {}, and works on at most {} of weights at once",
        bytes(memory.kept_bytes),
        bytes(memory.gradient_bytes),
        bytes(memory.working_weight_bytes_max)
    ));
    let samples = &report.samples;
    if samples.before.is_empty() {
        return text;
    }
    text.push_str(&format!("\n\nthe rollout engine goes on after {:?}", samples.prompt));
    for (when, said) in
        [("before training", &samples.before), ("after it", &samples.after), ("drawn", &samples.sampled)]
    {
        text.push_str(&format!("\n  {when:<16}\"{said}\""));
    }
    text
}

/// One column a way, one row a figure.
fn table(paths: &[PathReport]) -> String {
    let milliseconds = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let once = move |path: &PathReport| match path.seconds.layouts + path.seconds.plan {
        0.0 => "-".to_owned(),
        seconds => milliseconds(seconds),
    };
    type Figure<'a> = (&'a str, Box<dyn Fn(&PathReport) -> String>);
    let figures: [Figure<'_>; 10] = [
        ("layouts + plan, once", Box::new(once)),
        ("first sync", Box::new(move |path| milliseconds(path.seconds.first))),
        (
            "repeated syncs, median",
            Box::new(move |path| milliseconds(median(&mut path.seconds.repeats.clone()))),
        ),
        ("memory added", Box::new(|path| bytes(path.staging_bytes_max))),
        ("bytes local", Box::new(|path| bytes(path.bytes.local))),
        ("bytes sent, or through files", Box::new(|path| bytes(path.bytes.sent))),
        ("rounds", Box::new(|path| count(path.rounds))),
        (
            "pieces",
            Box::new(|path| match path.pieces.source {
                0 => "-".to_owned(),
                source => format!("{} -> {}", count(source), count(path.pieces.target)),
            }),
        ),
        ("elements compared", Box::new(|path| count(path.verified.elements))),
        ("mismatches", Box::new(|path| count(path.verified.mismatches))),
    ];
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(std::iter::once("").chain(paths.iter().map(|path| path.name.as_str())));
    for (name, figure) in figures {
        table.add_row(std::iter::once(name.to_owned()).chain(paths.iter().map(figure)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    trimmed(&table)
}
