//! The `reshard` program: arguments in, data on stdout, talk on stderr, an exit code that says which it was.
//!
//! ```text
//! reshard plan   config.json + two topologies (or layout files) -> bytes local and sent
//! reshard demo   train a small model and sync it into rollout engines, checking every element
//! reshard convert, inspect, verify       checkpoints: another layout of one, what one holds, whether two are equal
//! ```

mod convert_command;
#[cfg(feature = "demo")]
mod demo_command;
mod error;
mod format;
mod inspect_command;
mod plan_command;
mod progress;
mod side;
mod size;
mod verify_command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::format::{say, say_error};

/// Move model weights between two shardings, bit for bit.
#[derive(Debug, Parser)]
#[command(name = "reshard", version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 ok, 1 differs, 2 usage, 3 invalid, 4 unsupported, 5 over budget, \
                          6 input or output, 7 a peer failed.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Plan a transfer and say what it would move. Needs no weights.
    Plan(plan_command::PlanArguments),
    /// Write a checkpoint in another layout: streaming, in bounded memory, whole or not at all.
    Convert(convert_command::ConvertArguments),
    /// Say what a checkpoint or a layout file holds. Reads no tensor.
    Inspect(inspect_command::InspectArguments),
    /// Say whether two checkpoints hold the same bits, whatever their formats and layouts.
    Verify(verify_command::VerifyArguments),
    /// Train a small model, sync it into rollout engines of another sharding, check every element.
    #[cfg(feature = "demo")]
    Demo(demo_command::DemoArguments),
    /// One rank of the demo; started by it.
    #[cfg(feature = "demo")]
    #[command(name = demo_command::RANK_COMMAND, hide = true)]
    DemoRank,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Plan(arguments) => plan_command::run(&arguments).map(|text| (text, Ok(()))),
        Command::Convert(arguments) => convert_command::run(&arguments).map(|text| (text, Ok(()))),
        Command::Inspect(arguments) => inspect_command::run(&arguments).map(|text| (text, Ok(()))),
        Command::Verify(arguments) => verify_command::run(&arguments),
        #[cfg(feature = "demo")]
        Command::Demo(arguments) => demo_command::run(&arguments),
        #[cfg(feature = "demo")]
        Command::DemoRank => return rank(),
    };
    match outcome.and_then(|(text, verdict)| say(&text).and(verdict)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// A rank says nothing but what its launcher reads: that reports the first failure of all of them.
#[cfg(feature = "demo")]
fn rank() -> ExitCode {
    match demo_command::run_rank() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(error.exit_code()),
    }
}
