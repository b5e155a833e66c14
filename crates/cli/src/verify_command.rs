//! `reshard verify`: whether two checkpoints hold the same bits, whatever their layouts.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use reshard_formats::{Checkpoint, CompareOptions, Comparison, compare};
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
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}
