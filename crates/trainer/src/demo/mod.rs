//! The end-to-end demo: train, sync by every way, verify bit for bit, generate.
//!
//! ```text
//! launch(options, command) ── starts ──► rank processes, each: rank_main() ─► run_rank(world, options)
//!       ▲                                                          │ rank 0
//!       └─────── report, or drift, as JSON that it tells ◄─────────┘
//! ```

mod faults;
mod file_way;
mod options;
mod rank;
mod report;
mod scratch;
mod summary;
mod syncs;
mod ways;

pub use options::{CheckedOptions, DemoModel, DemoOptions, ELEMENTS_MAX, Faults, PROCESSES_MAX, Path};
pub use rank::run_rank;
pub use report::{
    DemoReport, MemoryReport, ModelReport, PathBytes, PathReport, PathSeconds, Pieces, Samples, Verified,
};
pub use scratch::Scratch;

use std::io::Read;
use std::process::{Command, Stdio};

use reshard_layout::Rank;
use reshard_transport::{Launcher, World};
use serde::{Deserialize, Serialize};

use crate::error::TrainerError;

/// The environment variable that holds the options, as JSON, in a rank's process.
pub const OPTIONS_VARIABLE: &str = "RESHARD_DEMO_OPTIONS";

/// The environment variable that holds the folder that checkpoints pass through, in a rank's process.
const SCRATCH_VARIABLE: &str = "RESHARD_DEMO_SCRATCH";

/// What the first rank's process tells the launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Report(DemoReport),
    Drifted { parameter: String, ranks: Vec<u32>, others: Vec<String> },
}

impl Outcome {
    fn of_drift(error: &TrainerError) -> Option<Self> {
        let TrainerError::Drifted { parameter, ranks, others } = error else { return None };
        Some(Self::Drifted { parameter: parameter.clone(), ranks: ranks.clone(), others: others.clone() })
    }
}

/// Starts the ranks as processes, waits for them, and gives what they found. `rank_command` makes the command of
/// a rank: a program that calls [`rank_main`], and writes to stdout what that tells it and nothing else.
///
/// # Errors
/// What [`DemoOptions::check`] finds, or an unusable text, checkpoint or folder, before a process is started;
/// [`TrainerError::Drifted`]; the first failure of any rank, by rank and cause.
pub fn launch(
    options: &DemoOptions,
    mut rank_command: impl FnMut(Rank) -> Command,
) -> Result<DemoReport, TrainerError> {
    let checked = options.check()?;
    checked.check_files()?;
    let scratch = checked.scratch()?;
    let world = checked.world();
    let text = serde_json::to_string(options)?;
    let io = |operation: &str| {
        let operation = operation.to_owned();
        |cause| TrainerError::Io { operation, cause }
    };
    let (mut reader, writer) = std::io::pipe().map_err(io("make a pipe"))?;
    let mut writer = Some(writer);
    let commands = (0..world).map(Rank).map(|rank| {
        let mut command = rank_command(rank);
        // Ranks share few cores: one thread each, as they compute at the same time anyway.
        command.env(OPTIONS_VARIABLE, &text).env("RAYON_NUM_THREADS", "1").stdin(Stdio::null());
        command.envs(scratch.iter().map(|scratch| (SCRATCH_VARIABLE, scratch.path())));
        command.stdout(writer.take().map_or_else(Stdio::null, Stdio::from));
        (rank, command)
    });
    let launcher = Launcher::start(world as usize, commands.collect())?;
    let mut json = String::new();
    let read = reader.read_to_string(&mut json).map_err(io("read the report"));
    let ended = launcher.wait().into_result();
    read?;
    match (serde_json::from_str(&json), ended) {
        (Ok(Outcome::Drifted { parameter, ranks, others }), _) => {
            Err(TrainerError::Drifted { parameter, ranks, others })
        }
        (_, Err(failure)) => Err(failure.into()),
        (Ok(Outcome::Report(report)), Ok(_)) => Ok(report),
        (Err(error), Ok(_)) => Err(error.into()),
    }
}

/// The whole life of a rank's process: joins the world that [`launch`] made, and runs. On rank 0 it calls `tell`
/// with the one line that the program must write to its stdout, where [`launch`] reads it.
///
/// # Errors
/// As [`run_rank`], or if `tell` fails; every other rank learns of it before this returns.
pub fn rank_main(tell: impl FnOnce(&str) -> std::io::Result<()>) -> Result<(), TrainerError> {
    let world = World::from_environment()?;
    match joined(&world, tell) {
        Ok(()) => Ok(world.leave()?),
        Err(error) => {
            world.fail(error.to_string());
            Err(error)
        }
    }
}

fn joined(world: &World, tell: impl FnOnce(&str) -> std::io::Result<()>) -> Result<(), TrainerError> {
    let text = std::env::var(OPTIONS_VARIABLE).map_err(|cause| TrainerError::Io {
        operation: format!("read {OPTIONS_VARIABLE}"),
        cause: std::io::Error::other(cause),
    })?;
    let options: DemoOptions = serde_json::from_str(&text)?;
    let scratch = std::env::var_os(SCRATCH_VARIABLE).map(|path| Scratch::join(path.as_ref())).transpose()?;
    let folder = scratch.as_ref().map(Scratch::path);
    let (told, ended) = match run_rank(world, &options.check()?, folder) {
        Ok(report) => (report.map(Outcome::Report), Ok(())),
        Err(error) => (Outcome::of_drift(&error).filter(|_| world.rank() == Rank(0)), Err(error)),
    };
    if let Some(told) = told {
        tell(&serde_json::to_string(&told)?)
            .map_err(|cause| TrainerError::Io { operation: "write the report".to_owned(), cause })?;
    }
    ended
}
