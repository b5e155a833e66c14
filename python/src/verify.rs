//! An independent proof that a plan is right for two layouts.

use pyo3::prelude::*;

use crate::errors;
use crate::layout::Layout;
use crate::plan::Plan;

/// What was proved: so many elements are each written exactly once, by so many copies.
#[pyclass(frozen, get_all, eq, module = "reshard")]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Verified {
    elements: u64,
    copies: u64,
}

#[pymethods]
impl Verified {
    fn __repr__(&self) -> String {
        format!("Verified(elements={}, copies={})", self.elements, self.copies)
    }
}

/// Proves that a plan writes every element that ``target`` wants exactly once, each from where ``source`` holds it, by
/// code that shares nothing with the planner. Raises ``VerifyError`` naming parameter, rank and box if not.
#[pyfunction]
pub(crate) fn verify(py: Python<'_>, plan: &Plan, source: &Layout, target: &Layout) -> PyResult<Verified> {
    py.detach(|| reshard_plan::verify(&plan.0, &source.0, &target.0))
        .map(|proof| Verified { elements: proof.elements.0, copies: proof.copies })
        .map_err(|error| errors::verify(py, &error))
}
