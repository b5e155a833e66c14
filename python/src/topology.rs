//! The Rust builders: a model's configuration and a topology -> a layout.

use std::num::NonZeroU64;

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PyString};
use reshard_layout::{Elements, Layout};
use reshard_parallel::engine::{Engine, State};
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Topology;
use reshard_parallel::zero::{Grouping, OptimizerMaker, ZeroOptions};

use crate::errors;

pub(crate) fn layout_of(
    py: Python<'_>,
    config: &Bound<'_, PyAny>,
    topology: &str,
    state: Option<&str>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Layout> {
    let text: String = match config.cast::<PyString>() {
        Ok(text) => text.to_string(),
        Err(_) => py.import("json")?.call_method1("dumps", (config,))?.extract()?,
    };
    let state = state.map(|name| state_of(py, name)).transpose()?;
    let options = options_of(py, options)?;
    let parsed =
        py.detach(|| ModelConfig::from_json(&text).and_then(|c| Ok((c, Topology::parse(topology)?))));
    let (config, parsed) = parsed.map_err(|error| errors::parallel(py, &error))?;
    let engine =
        py.detach(|| Engine::new(&config, &parsed, options)).map_err(|error| errors::parallel(py, &error))?;
    let layout = match (state, &engine) {
        (None, engine) => py.detach(|| engine.layout()),
        (Some(state), Engine::DeepSpeed(engine)) => py.detach(|| engine.optimizer_layout(state)),
        (Some(state), _) => {
            let name = state.name();
            return Err(errors::unsupported_layout(py, format!("{topology} has no optimizer state {name}")));
        }
    };
    layout.map_err(|error| errors::layout(py, &error))
}

fn state_of(py: Python<'_>, name: &str) -> PyResult<State> {
    State::ALL.into_iter().find(|state| state.name() == name).ok_or_else(|| {
        let known: Vec<&str> = State::ALL.iter().map(|state| state.name()).collect();
        errors::usage(py, format!("there is no optimizer state {name:?}; known are {}", known.join(", ")))
    })
}

fn options_of(py: Python<'_>, given: Option<&Bound<'_, PyDict>>) -> PyResult<ZeroOptions> {
    let mut options = ZeroOptions::default();
    for (name, value) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        match name.as_str() {
            "parameter_alignment" => options.parameter_alignment = value.extract()?,
            "round_robin_gradients" => options.round_robin_gradients = value.extract()?,
            "tp_grain_size" => {
                options.tp_grain_size = NonZeroU64::new(value.extract()?)
                    .ok_or_else(|| errors::usage(py, "tp_grain_size must be at least 1"))?;
            }
            "sub_group_size" => options.sub_group_size = Elements(value.extract()?),
            "two_groups" if value.extract()? => options.grouping = Grouping::MatricesAndVectors,
            "config_optimizer" if value.extract()? => options.optimizer = OptimizerMaker::Engine,
            "two_groups" | "config_optimizer" => {}
            _ => return Err(errors::usage(py, format!("there is no option {name:?}"))),
        }
    }
    Ok(options)
}
