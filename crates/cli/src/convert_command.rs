//! `reshard convert`: a checkpoint in, another layout of it out, whole or not at all.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use reshard_formats::universal::{ForStage, UniversalOptions};
use reshard_formats::{
    Checkpoint, Conversion, Kept, PartSummary, Replicas, Selection, Summary, Target, Tied, WriteOptions,
};
use reshard_layout::{Bytes, DType};
use reshard_parallel::topology::Topology;
use serde::Serialize;

use crate::error::CliError;
use crate::format::{bytes, count};
use crate::progress::Bar;
use crate::size::size;

/// Arguments of `reshard convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArguments {
    /// The checkpoint: a safetensors file or folder, or a folder of DeepSpeed's (ZeRO, Universal) or torch's (DCP)
    input: PathBuf,
    /// The folder to write
    output: PathBuf,
    /// What to write: hf (whole tensors), shards (a file a rank), universal or zero (DeepSpeed's)
    #[arg(long, value_name = "FORMAT")]
    to: To,
    /// Which tensors hf and shards take: weights, fp32 (masters), exp_avg, exp_avg_sq, another state, or all; several
    /// get a folder each
    #[arg(long, value_name = "STATES", default_value = "weights", value_delimiter = ',')]
    state: Vec<String>,
    /// The ranks of shards and zero: autotp:tp=4, autotp:tp=2,dp=2,zero=3
    #[arg(long, value_name = "TOPOLOGY")]
    layout: Option<String>,
    /// Hugging Face config.json of the model, if none lies beside the input; copied beside hf and shards
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Float type to cast to: f64, f32, bf16, f16 (default: as the model computes, for other states as they are)
    #[arg(long, value_parser = dtype)]
    dtype: Option<DType>,
    /// Which stages load a Universal checkpoint: same as the input's, zero=1, zero=2, zero=3 or both
    #[arg(long = "for", value_name = "STAGE", default_value = "same", value_parser = for_stage)]
    for_stage: ForStage,
    /// Second names of tied weights: drop them, or write them as tensors of their own
    #[arg(long, default_value = "drop")]
    tied: TiedNames,
    /// The most bytes of tensors in a file of hf
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = size)]
    file_size: Bytes,
    /// Memory to work in
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = size)]
    memory: Bytes,
    /// Files and parts of files that are written at the same time (default: one a core)
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Say what would be read and written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Replace OUTPUT, at once and as a whole, when all is written
    #[arg(long)]
    force: bool,
    /// Do not wait until the disk has everything: for scratch
    #[arg(long)]
    no_sync: bool,
    /// Read one of several copies of a tensor without comparing it with the others
    #[arg(long)]
    trust_replicas: bool,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum To {
    Hf,
    Shards,
    Universal,
    Zero,
}

impl To {
    fn name(self) -> &'static str {
        match self {
            Self::Hf => "hf",
            Self::Shards => "shards",
            Self::Universal => "universal",
            Self::Zero => "zero",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TiedNames {
    Drop,
    Duplicate,
}

fn dtype(name: &str) -> Result<DType, String> {
    let floats = [DType::F64, DType::F32, DType::F16, DType::Bf16];
    DType::parse(name)
        .filter(|dtype| floats.contains(dtype))
        .ok_or_else(|| "known are f64, f32, f16 and bf16".to_owned())
}

fn for_stage(text: &str) -> Result<ForStage, String> {
    match text {
        "same" => Ok(ForStage::Same),
        "zero=1" | "zero=2" => Ok(ForStage::OneTwo),
        "zero=3" => Ok(ForStage::Three),
        "both" => Ok(ForStage::Both),
        _ => Err("known are same, zero=1, zero=2, zero=3 and both".to_owned()),
    }
}

/// The keys of `--json`: bytes are integers, seconds are numbers.
#[derive(Serialize)]
struct Output {
    from: String,
    to: &'static str,
    output: PathBuf,
    /// False after `--dry-run`.
    written: bool,
    files: u64,
    tensors: u64,
    bytes: Moved,
    seconds: f64,
    /// What each kept tensor comes to; empty where only files are copied.
    kept: Vec<KeptOutput>,
}

#[derive(Serialize)]
struct Moved {
    read: Bytes,
    written: Bytes,
}

#[derive(Serialize)]
struct KeptOutput {
    name: String,
    tensors: u64,
    bytes: Bytes,
}

/// Converts, or says what would be done.
pub(crate) fn run(arguments: &ConvertArguments) -> Result<String, CliError> {
    let source = Checkpoint::open(&arguments.input)?;
    let from = source.format.to_string();
    let target = target(arguments, &source)?;
    let output = target.output(&source, arguments.model.as_deref())?;
    let conversion = Conversion::new(source, output)?;
    let summary = conversion.summary();
    let mut report = Output {
        from,
        to: arguments.to.name(),
        output: arguments.output.clone(),
        written: !arguments.dry_run,
        files: summary.files as u64,
        tensors: summary.parts.values().map(|part| part.parameters as u64).sum(),
        bytes: Moved { read: summary.bytes_read(), written: summary.bytes_written },
        seconds: 0.0,
        kept: kept(&summary),
    };
    let options = write_options(arguments);
    if arguments.dry_run {
        conversion.check(&arguments.output, &options)?;
    } else {
        let bar = Bar::new("converting", summary.bytes_written, arguments.json);
        let done = conversion.run(&arguments.output, &options, &bar)?;
        report.seconds = done.seconds;
        report.bytes = Moved { read: done.bytes_read, written: done.bytes_written };
    }
    if arguments.json {
        return Ok(serde_json::to_string_pretty(&report)?);
    }
    Ok(human(&report))
}

fn write_options(arguments: &ConvertArguments) -> WriteOptions {
    WriteOptions {
        memory: arguments.memory,
        threads: arguments.threads.unwrap_or_else(cores),
        sync: !arguments.no_sync,
        force: arguments.force,
        replicas: if arguments.trust_replicas { Replicas::First } else { Replicas::Compare },
    }
}

/// As many as the machine lets the program use.
pub(crate) fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

fn target(arguments: &ConvertArguments, source: &Checkpoint) -> Result<Target, CliError> {
    let selection = Selection {
        kept: states(&arguments.state, source),
        dtype: arguments.dtype,
        tied: match arguments.tied {
            TiedNames::Drop => Tied::Drop,
            TiedNames::Duplicate => Tied::Duplicate,
        },
    };
    let takes_all = matches!(arguments.to, To::Universal | To::Zero);
    if takes_all && (arguments.state != ["weights"] || arguments.dtype.is_some()) {
        return Err(CliError::Usage {
            message: format!("--to {} takes all states as they are", arguments.to.name()),
            hint: Some("--state and --dtype go with --to hf and --to shards".to_owned()),
        });
    }
    Ok(match arguments.to {
        To::Hf => Target::HuggingFace { selection, file_bytes_max: arguments.file_size.0 },
        To::Shards => Target::Shards { selection, topology: topology(arguments)? },
        To::Universal => Target::Universal(UniversalOptions { for_stage: arguments.for_stage }),
        To::Zero => Target::Zero { topology: topology(arguments)? },
    })
}

/// What `--state` asks for: `all` is everything that the source keeps.
pub(crate) fn states(names: &[String], source: &Checkpoint) -> Vec<Kept> {
    if names.iter().any(|name| name == "all") {
        return source.parts.keys().cloned().collect();
    }
    names.iter().map(|name| Kept::parse(name)).collect()
}

fn topology(arguments: &ConvertArguments) -> Result<Topology, CliError> {
    let text = arguments.layout.as_deref().ok_or_else(|| CliError::Usage {
        message: format!("--to {} needs --layout", arguments.to.name()),
        hint: Some("--layout takes a topology, such as autotp:tp=4".to_owned()),
    })?;
    Topology::parse(text).map_err(|error| CliError::Parallel { context: format!("--layout {text}"), error })
}

fn kept(summary: &Summary) -> Vec<KeptOutput> {
    let output = |(kept, part): (&Kept, &PartSummary)| KeptOutput {
        name: kept.name().to_owned(),
        tensors: part.parameters as u64,
        bytes: part.bytes_written,
    };
    summary.parts.iter().map(output).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a rate, shown with two decimals")]
fn human(report: &Output) -> String {
    let what: Vec<String> = report
        .kept
        .iter()
        .map(|kept| format!("{} ({} tensors, {})", kept.name, count(kept.tensors), bytes(kept.bytes)))
        .collect();
    let moved = format!(
        "{} -> {}: {} files, reads {}, writes {}",
        report.from,
        report.to,
        count(report.files),
        bytes(report.bytes.read),
        bytes(report.bytes.written),
    );
    let end = if report.written {
        let rate = Bytes((report.bytes.written.0 as f64 / report.seconds.max(1e-9)) as u64);
        format!("{} in {:.2} s, {}/s", report.output.display(), report.seconds, bytes(rate))
    } else {
        format!("{} is not written: a dry run", report.output.display())
    };
    format!("{moved}\n{}\n{end}", what.join(", "))
}
