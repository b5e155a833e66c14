//! Progress of long work, on stderr, where a person looks at it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reshard_formats::Progress;
use reshard_layout::Bytes;

const TEMPLATE: &str = "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";

/// A bar of bytes; none where stderr is no terminal, or where `quiet`.
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    pub(crate) fn new(what: &'static str, total: Bytes, quiet: bool) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(total.0), target).with_message(what);
        let style = ProgressStyle::with_template(TEMPLATE);
        Self { bar: style.map(|style| bar.clone().with_style(style)).unwrap_or(bar) }
    }
}

impl Progress for Bar {
    fn advance(&self, bytes: Bytes) {
        self.bar.inc(bytes.0);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
