//! The only file that prints.

use std::io::Write;
use std::process::ExitCode;

use comfy_table::Table;
use reshard_layout::Bytes;

use crate::error::CliError;

/// Writes data to stdout and returns `code`. A reader that went away is no failure; anything else is.
pub(crate) fn say(text: &str, code: ExitCode) -> ExitCode {
    match say_line(text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::from(6),
        _ => code,
    }
}

/// Writes data to stdout, with the end of a line.
pub(crate) fn say_line(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Writes an error and its hint to stderr.
pub(crate) fn say_error(error: &CliError) {
    let mut out = std::io::stderr().lock();
    // Nothing is left to do if stderr is closed: the exit code still says what happened.
    let _ = writeln!(out, "error: {error}");
    if let Some(hint) = error.hint() {
        let _ = writeln!(out, "hint: {hint}");
    }
}

/// Bytes in the largest decimal unit that fits, as the field writes them: 15.14 GB.
#[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
pub(crate) fn bytes(count: Bytes) -> String {
    let value = count.0 as f64;
    match count.0 {
        0..1_000 => format!("{} B", count.0),
        1_000..1_000_000 => format!("{:.2} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

/// Whole numbers with a comma every three digits.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The middle one of some measurements, the mean of the two middle ones if they are even in number.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The table without the blanks at the ends of its lines.
pub(crate) fn trimmed(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
