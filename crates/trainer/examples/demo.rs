//! The demo with ranks as processes, in as few lines as it takes: `cargo run -p reshard-trainer --example demo`.
//!
//! Options are read as JSON from the first argument; the defaults stand where there is none. The report goes to
//! stdout, as JSON. `reshard demo` is the same with a command line and a table.

use std::io::Write;
use std::process::{Command, ExitCode};

use reshard_trainer::demo::{DemoOptions, OPTIONS_VARIABLE, launch, rank_main};
use reshard_trainer::{Category, TrainerError};

fn main() -> ExitCode {
    let is_rank = std::env::var_os(OPTIONS_VARIABLE).is_some();
    let outcome = if is_rank {
        rank_main(|line| writeln!(std::io::stdout(), "{line}")).map(|()| 0)
    } else {
        launcher_main()
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // A rank says nothing: its launcher tells the first failure of all of them.
            if !is_rank {
                // Nothing is left to do if stderr is closed: the exit code still says what happened.
                let _ = writeln!(std::io::stderr(), "error: {error}");
            }
            ExitCode::from(error.category().exit_code())
        }
    }
}

fn launcher_main() -> Result<u8, TrainerError> {
    let options = match std::env::args().nth(1) {
        Some(json) => serde_json::from_str(&json)?,
        None => DemoOptions::default(),
    };
    let io = |cause| TrainerError::Io { operation: "run the demo".to_owned(), cause };
    let program = std::env::current_exe().map_err(io)?;
    let report = launch(&options, |_| Command::new(&program))?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&report)?).map_err(io)?;
    Ok(if report.is_equal() { 0 } else { Category::Differs.exit_code() })
}
