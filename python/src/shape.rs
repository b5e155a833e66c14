//! Extents, origins and strides: tuples of integers in Python.

#[cfg(feature = "stubs")]
use pyo3::inspect::{PyStaticConstant, PyStaticExpr};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use reshard_layout::Dims;

/// `tuple[int, ...]`.
#[cfg(feature = "stubs")]
const TUPLE_OF_INTEGERS: PyStaticExpr = pyo3::type_hint_subscript!(
    pyo3::type_hint_identifier!("builtins", "tuple"),
    pyo3::type_hint_identifier!("builtins", "int"),
    PyStaticExpr::Constant { value: PyStaticConstant::Ellipsis }
);

/// A tuple of counts.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Shape(pub(crate) Dims);

impl Shape {
    pub(crate) fn of(numbers: &[u64]) -> Self {
        Self(Dims::from_slice(numbers))
    }

    /// As Python writes it: `(18, 4)`, `(18,)`, `()`.
    pub(crate) fn text(&self) -> String {
        match self.0.as_slice() {
            [one] => format!("({one},)"),
            numbers => format!("({})", numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
        }
    }
}

impl<'py> IntoPyObject<'py> for Shape {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    #[cfg(feature = "stubs")]
    const OUTPUT_TYPE: PyStaticExpr = TUPLE_OF_INTEGERS;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        PyTuple::new(py, self.0)
    }
}

impl<'py> IntoPyObject<'py> for &Shape {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    #[cfg(feature = "stubs")]
    const OUTPUT_TYPE: PyStaticExpr = TUPLE_OF_INTEGERS;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        PyTuple::new(py, &self.0)
    }
}
