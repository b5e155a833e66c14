//! The demo with ranks as processes, in as few lines as it takes: `cargo run -p reshard-trainer --example demo`.
//!
//! Options are read as JSON from the first argument; the defaults stand where there is none. The report goes to
//! stdout, as JSON. `reshard demo` is the same with a command line and a table.

use std::io::Write;
use std::process::{Command, ExitCode};

use reshard_trainer::demo::{DemoOptions, OPTIONS_VARIABLE, launch, rank_main};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    if std::env::var_os(OPTIONS_VARIABLE).is_some() {
        rank_main()?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = match std::env::args().nth(1) {
        Some(json) => serde_json::from_str(&json)?,
        None => DemoOptions::default(),
    };
    let program = std::env::current_exe()?;
    let report = launch(&options, |_| Command::new(&program))?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&report)?)?;
    Ok(if report.is_equal() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
