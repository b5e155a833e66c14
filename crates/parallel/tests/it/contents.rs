//! What a layout puts where, an element at a time: the dumb reading of pieces and fills.

use std::collections::BTreeMap;
use std::rc::Rc;

use reshard_layout::{Layout, address, coordinate};
use reshard_parallel::engine::DenseEngine;
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Topology;
use reshard_parallel::{Category, ParallelError};
use serde_json::{Value, json};

/// What one element of a storage is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// An element of a parameter, by its flat row-major index.
    Element(Rc<str>, u64),
    /// Padding, which must hold these bytes.
    Padding(Vec<u8>),
}

/// The tensors of all ranks, each flat: (rank, name) -> elements.
pub(crate) type Contents = BTreeMap<(u32, String), Vec<Cell>>;

/// Every element of every storage. Each must be in exactly one piece or fill.
pub(crate) fn contents(layout: &Layout) -> Contents {
    let places = layout.places();
    let mut found: Vec<Vec<Option<Cell>>> =
        places.buffers.iter().map(|buffer| vec![None; buffer.length.0 as usize]).collect();
    let mut put = |buffer: usize, offset: u64, cell: Cell| {
        let place = &mut found[buffer][offset as usize];
        assert_eq!(*place, None, "{cell:?} lies where another does");
        *place = Some(cell);
    };
    for piece in layout.pieces() {
        let parameter = layout.parameter(piece.parameter);
        let name: Rc<str> = parameter.name.as_str().into();
        for within in 0..piece.region.volume() {
            let within = coordinate(within, piece.region.extent());
            let at = within.iter().zip(piece.region.origin()).map(|(at, from)| at + from);
            let flat = at.zip(&parameter.shape).fold(0, |sum, (at, extent)| sum * extent + at);
            let offset = piece.offset.0 + address(&within, piece.strides);
            put(piece.buffer.index(), offset, Cell::Element(name.clone(), flat));
        }
    }
    for fill in layout.fills() {
        for within in 0..fill.shape.iter().product() {
            let offset = fill.offset.0 + address(&coordinate(within, &fill.shape), &fill.strides);
            put(fill.buffer.index(), offset, Cell::Padding(fill.value.clone()));
        }
    }
    let mut contents = Contents::new();
    for (buffer, cells) in places.buffers.iter().zip(found) {
        let storage = places.storage(buffer.storage);
        let cells: Vec<Cell> = cells
            .into_iter()
            .map(|cell| cell.unwrap_or_else(|| panic!("a hole in {}", storage.name)))
            .collect();
        assert_eq!(contents.insert((storage.rank.0, storage.name.clone()), cells), None, "{}", storage.name);
    }
    contents
}

/// Rows of a parameter of so many columns, as cells.
pub(crate) fn rows(name: &str, rows: std::ops::Range<u64>, columns: u64) -> Vec<Cell> {
    let name: Rc<str> = name.into();
    (rows.start * columns..rows.end * columns).map(|flat| Cell::Element(name.clone(), flat)).collect()
}

/// A small Llama. What is not given is 4 query heads, 2 key-value heads of 2 rows, hidden 3, MLP 6, 2 layers, 7 words.
pub(crate) fn llama(changes: Value) -> ModelConfig {
    let mut config = json!({"model_type": "llama", "hidden_size": 3, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 6,
        "vocab_size": 7, "torch_dtype": "bfloat16"});
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::from_json(&config.to_string()).unwrap()
}

pub(crate) fn try_engine(config: &ModelConfig, topology: &str) -> Result<DenseEngine, ParallelError> {
    match Topology::parse(topology) {
        Ok(Topology::Engine(topology)) => DenseEngine::new(config, &topology),
        other => panic!("{topology}: {other:?}"),
    }
}

pub(crate) fn engine(config: &ModelConfig, topology: &str) -> DenseEngine {
    try_engine(config, topology).unwrap_or_else(|error| panic!("{topology}: {error}"))
}

/// What is said of a model that an engine refuses.
pub(crate) fn refusal(config: &ModelConfig, topology: &str) -> String {
    let error = try_engine(config, topology).expect_err(topology);
    assert_eq!(error.category(), Category::Unsupported);
    error.to_string()
}
