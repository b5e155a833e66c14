//! One side of a transfer, as it is named on the command line: a topology, or a layout file.

use std::path::{Path, PathBuf};

use reshard_layout::Layout;
use reshard_layout::affine::AffineFile;
use reshard_parallel::engine;
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Topology;
use reshard_parallel::zero::ZeroOptions;

use crate::error::CliError;

/// What a `--source` or `--target` names, read and checked but not yet laid out.
pub(crate) enum Side {
    /// A model on a topology.
    Engine(Box<engine::Engine>),
    /// A file in the public affine form.
    File { path: PathBuf, file: Box<AffineFile> },
}

impl Side {
    /// Reads one side. A text that ends in `.json` is a layout file; anything else is a topology, which
    /// needs the model.
    pub(crate) fn read(option: &str, text: &str, model: Option<&ModelConfig>) -> Result<Self, CliError> {
        if Path::new(text).extension().is_some_and(|extension| extension == "json") {
            let path = PathBuf::from(text);
            let file = AffineFile::from_json(&read(&path)?)
                .map_err(|error| CliError::Layout { context: text.to_owned(), error })?;
            return Ok(Self::File { path, file: Box::new(file) });
        }
        let context = || format!("{option} {text}");
        let wrong = |error| CliError::Parallel { context: context(), error };
        let topology = Topology::parse(text).map_err(wrong)?;
        let model = model.ok_or_else(|| CliError::Usage {
            message: format!("{} is a topology and needs --model", context()),
            hint: Some("--model takes a Hugging Face config.json".to_owned()),
        })?;
        let engine = engine::Engine::new(model, &topology, ZeroOptions::default()).map_err(wrong)?;
        Ok(Self::Engine(Box::new(engine)))
    }

    /// Where every element lies.
    pub(crate) fn layout(&self) -> Result<Layout, CliError> {
        match self {
            Self::Engine(engine) => {
                engine.layout().map_err(|error| CliError::Layout { context: "topology".to_owned(), error })
            }
            Self::File { path, file } => file
                .to_layout()
                .map_err(|error| CliError::Layout { context: path.display().to_string(), error }),
        }
    }
}

/// Reads a Hugging Face `config.json`.
pub(crate) fn model(path: &Path) -> Result<ModelConfig, CliError> {
    ModelConfig::from_json(&read(path)?)
        .map_err(|error| CliError::Parallel { context: path.display().to_string(), error })
}

pub(crate) fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|cause| CliError::Read { path: path.to_owned(), cause })
}
