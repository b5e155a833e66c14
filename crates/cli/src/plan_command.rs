//! `reshard plan`: two sides in, bytes out. No weights are needed.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use reshard_layout::{Bytes, Layout};
use reshard_plan::{Options, Plan, Policy, Schedule, unused_parameters, verify};
use serde::Serialize;

use crate::error::CliError;
use crate::format::{bytes, count, median, trimmed};
use crate::side::{self, Side};
use crate::size::size;

/// Arguments of `reshard plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArguments {
    /// Hugging Face config.json of the model; needed by topologies, not by layout files
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Where the weights are: engine:key=value,... or a layout file (.json)
    #[arg(long, value_name = "TOPOLOGY")]
    source: String,
    /// Where the weights shall be
    #[arg(long, value_name = "TOPOLOGY")]
    target: String,
    /// Who sends a box that several ranks hold: lowest, local or balanced
    #[arg(long, default_value = "balanced", value_parser = policy)]
    policy: Policy,
    /// Permit copies that cast, where the two sides have different float types
    #[arg(long)]
    cast: bool,
    /// Memory a rank may use for what it sends and receives in rounds: bytes, or with KB, MB, GB, KiB, MiB, GiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    staging: Bytes,
    /// Measure this often and report medians
    #[arg(long, value_name = "N", default_value = "1")]
    repeats: NonZeroUsize,
    /// Threads that lay out the two sides; a plan does not depend on them
    #[arg(long, value_name = "N", default_value = "1")]
    threads: NonZeroUsize,
    /// Machine-readable output
    #[arg(long)]
    json: bool,
}

/// Reads `--policy`.
pub(crate) fn policy(name: &str) -> Result<Policy, String> {
    Policy::parse(name).ok_or_else(|| "known are lowest, local and balanced".to_owned())
}

/// The keys of `--json`: bytes are integers, seconds are numbers.
#[derive(Serialize)]
struct Output {
    policy: &'static str,
    cast: bool,
    parameters: u64,
    pieces: Pieces,
    copies: u64,
    bytes: Moved,
    sent_by_rank: Vec<Bytes>,
    received_by_rank: Vec<Bytes>,
    seconds: Seconds,
    rounds: u32,
    rounds_bound: u32,
    staging_bytes: Bytes,
    fingerprint: String,
    /// Source parameters that no target parameter is filled from.
    unused: Vec<String>,
}

#[derive(Serialize)]
struct Pieces {
    source: u64,
    target: u64,
}

#[derive(Serialize)]
struct Moved {
    local: Bytes,
    sent: Bytes,
    total: Bytes,
}

#[derive(Serialize)]
struct Seconds {
    layouts: f64,
    plan: f64,
    schedule: f64,
    verify: f64,
}

struct Measured {
    source: Layout,
    target: Layout,
    plan: Plan,
    schedule: Schedule,
    seconds: Seconds,
}

/// Plans, proves the plan, and returns what to print.
pub(crate) fn run(arguments: &PlanArguments) -> Result<String, CliError> {
    let model = arguments.model.as_deref().map(side::model).transpose()?;
    let source = Side::read("--source", &arguments.source, model.as_ref())?;
    let target = Side::read("--target", &arguments.target, model.as_ref())?;
    let mut times = [const { Vec::new() }; 4];
    let mut measured = measure(&source, &target, arguments)?;
    for repeat in 0..arguments.repeats.get() {
        if repeat > 0 {
            measured = measure(&source, &target, arguments)?;
        }
        let Seconds { layouts, plan, schedule, verify } = measured.seconds;
        for (times, time) in times.iter_mut().zip([layouts, plan, schedule, verify]) {
            times.push(time);
        }
    }
    let [layouts, plan, schedule, verify] = times.each_mut().map(|times| median(times));
    let seconds = Seconds { layouts, plan, schedule, verify };
    let output = output(&measured, seconds);
    if arguments.json {
        return Ok(serde_json::to_string_pretty(&output)?);
    }
    Ok(human(&output, &measured))
}

fn measure(source: &Side, target: &Side, arguments: &PlanArguments) -> Result<Measured, CliError> {
    let start = Instant::now();
    let (source, target) = if arguments.threads.get() > 1 {
        thread::scope(|scope| {
            let other = scope.spawn(|| target.layout());
            let source = source.layout();
            (source, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    } else {
        (source.layout(), target.layout())
    };
    let (source, target) = (source?, target?);
    let layouts = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let made = Options::new(arguments.policy).cast(arguments.cast).plan(&source, &target)?;
    let planned = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let schedule = Schedule::new(&made, arguments.staging)?;
    let scheduled = start.elapsed().as_secs_f64();
    let start = Instant::now();
    verify(&made, &source, &target)?;
    let verify = start.elapsed().as_secs_f64();
    let seconds = Seconds { layouts, plan: planned, schedule: scheduled, verify };
    Ok(Measured { source, target, plan: made, schedule, seconds })
}

fn output(measured: &Measured, seconds: Seconds) -> Output {
    let statistics = &measured.plan.statistics;
    let (local, sent) = (statistics.bytes_local, statistics.bytes_sent);
    Output {
        policy: measured.plan.policy.name(),
        cast: measured.plan.cast,
        parameters: measured.target.parameters().len() as u64,
        pieces: Pieces { source: statistics.source_pieces, target: statistics.target_pieces },
        copies: statistics.copies,
        bytes: Moved { local, sent, total: local + sent },
        sent_by_rank: statistics.sent_by_rank.clone(),
        received_by_rank: statistics.received_by_rank.clone(),
        seconds,
        rounds: measured.schedule.rounds(),
        rounds_bound: measured.schedule.bound(),
        staging_bytes: measured.schedule.staging(),
        fingerprint: format!("{:016x}", measured.plan.fingerprint),
        unused: unused_parameters(&measured.source, &measured.target),
    }
}

/// Ranks of which the table of senders and receivers is still readable.
const RANKS_SHOWN: usize = 16;

fn human(output: &Output, measured: &Measured) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let rows = [
        ("parameters", count(output.parameters)),
        ("pieces", format!("{} source, {} target", count(output.pieces.source), count(output.pieces.target))),
        ("copies", count(output.copies)),
        ("policy", output.policy.to_owned()),
        ("sent", bytes(output.bytes.sent)),
        ("local", bytes(output.bytes.local)),
        ("busiest sender", busiest(&output.sent_by_rank)),
        ("busiest receiver", busiest(&output.received_by_rank)),
        (
            "rounds",
            format!(
                "{} with {} of staging a rank, bound {}",
                count(output.rounds.into()),
                bytes(output.staging_bytes),
                count(output.rounds_bound.into())
            ),
        ),
        ("milliseconds", milliseconds(&output.seconds)),
        ("fingerprint", output.fingerprint.clone()),
    ];
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    let mut text = trimmed(&table);
    if output.sent_by_rank.len() <= RANKS_SHOWN {
        text.push_str("\n\nwho gets how much from whom (rows receive, columns hold):\n");
        text.push_str(&matrix(&measured.plan));
    } else {
        text.push_str("\n\nmore than 16 ranks: --json has what each sends and receives");
    }
    if let Some(first) = output.unused.first() {
        let number = output.unused.len();
        text.push_str(&format!("\n\nsource parameters that are not used: {number}, the first is {first}"));
    }
    text
}

fn milliseconds(seconds: &Seconds) -> String {
    let shown = [
        (seconds.layouts, "layouts"),
        (seconds.plan, "plan"),
        (seconds.schedule, "schedule"),
        (seconds.verify, "verify"),
    ];
    shown.map(|(seconds, what)| format!("{:.1} {what}", seconds * 1e3)).join(", ")
}

fn busiest(by_rank: &[Bytes]) -> String {
    match by_rank.iter().enumerate().max_by_key(|&(rank, amount)| (*amount, std::cmp::Reverse(rank))) {
        Some((rank, amount)) if amount.0 > 0 => format!("rank {rank}, {}", bytes(*amount)),
        _ => "nobody".to_owned(),
    }
}

fn matrix(plan: &Plan) -> String {
    let world = plan.statistics.sent_by_rank.len();
    let mut amounts = vec![vec![Bytes(0); world]; world];
    for copy in &plan.copies {
        amounts[plan.target_rank(copy).index()][plan.source_rank(copy).index()] += plan.bytes(copy);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(std::iter::once(String::new()).chain((0..world).map(|rank| rank.to_string())));
    for (rank, row) in amounts.iter().enumerate() {
        let cell = |amount: &Bytes| if amount.0 == 0 { ".".to_owned() } else { bytes(*amount) };
        table.add_row(std::iter::once(rank.to_string()).chain(row.iter().map(cell)));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    trimmed(&table)
}
