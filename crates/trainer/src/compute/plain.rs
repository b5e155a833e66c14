//! The parts of the model that are loops over plain numbers: embedding lookup, its gradient, and cross entropy.
//!
//! ```text
//! tokens [2, 0]   table rows 0..3 of 5, of a vocabulary-parallel rank
//! lookup:    row 2, row 0         a token whose row is elsewhere gives zeros, which the all-reduce fills
//! gradient:  row 2 += g0, row 0 += g1
//! ```

use std::ops::Range;

/// One row of `width` numbers for each token, zeros for tokens outside `rows`, the rows that `table` holds.
pub(crate) fn lookup(tokens: &[u32], table: &[f32], rows: &Range<usize>, width: usize) -> Vec<f32> {
    let mut output = vec![0.0; tokens.len() * width];
    for (row, &token) in output.chunks_exact_mut(width).zip(tokens) {
        if let Some(at) = local_row(token, rows) {
            row.copy_from_slice(&table[at * width..][..width]);
        }
    }
    output
}

/// The gradient of [`lookup`] with respect to the table.
pub(crate) fn lookup_gradient(
    tokens: &[u32],
    upstream: &[f32],
    rows: &Range<usize>,
    width: usize,
) -> Vec<f32> {
    let mut gradient = vec![0.0; rows.len() * width];
    for (row, &token) in upstream.chunks_exact(width).zip(tokens) {
        if let Some(at) = local_row(token, rows) {
            for (sum, value) in gradient[at * width..][..width].iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
    gradient
}

fn local_row(token: u32, rows: &Range<usize>) -> Option<usize> {
    let token = token as usize;
    rows.contains(&token).then(|| token - rows.start)
}

/// The sum of the cross entropies of rows of logits, and turns the logits into the gradient of
/// `sum / tokens_global` in place.
pub(crate) fn cross_entropy(logits: &mut [f32], targets: &[u32], tokens_global: usize) -> f64 {
    let vocabulary = logits.len() / targets.len();
    let mut loss = 0.0;
    for (row, &target) in logits.chunks_exact_mut(vocabulary).zip(targets) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        loss += sum.ln() - f64::from(row[target as usize] - largest);
        for (index, value) in row.iter_mut().enumerate() {
            let probability = f64::from(*value - largest).exp() / sum;
            let expected = if index == target as usize { 1.0 } else { 0.0 };
            *value = ((probability - expected) / tokens_global as f64) as f32;
        }
    }
    loss
}
