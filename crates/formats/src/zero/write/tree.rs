//! What a torch file says, as a value: built first, pickled afterwards.
//!
//! ```text
//!   Tree::Dict [("step",    Tensor 2.0)          ] ──file──►  data.pkl, data/1 = 2.0          known bytes
//!              [("exp_avg", View of storage 0    ]            data/0           = to be filled from a layout
//!              [("config",  Taken from elsewhere]            returns where data/0 begins in the file
//! ```

use std::collections::HashMap;
use std::path::PathBuf;

use reshard_layout::{DType, Elements, volume};

use super::fault::WriteFault;
use crate::error::FormatError;
use crate::files::{FileId, Files};
use crate::output::TargetFile;
use crate::pickle::{NodeId, PickleBuilder, Value};
use crate::torch::{Contents, TorchFile, read_bytes, torch_file};

/// A Python object to be.
#[derive(Clone, Debug)]
pub(crate) enum Tree<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    List(Vec<Tree<'a>>),
    Tuple(Vec<Tree<'a>>),
    Dict(Vec<(Tree<'a>, Tree<'a>)>),
    /// A `collections.OrderedDict`.
    Ordered(Vec<(String, Tree<'a>)>),
    /// A `torch.Size`.
    Size(Vec<u64>),
    /// An object made without arguments, and its attributes.
    Object {
        module: &'static str,
        name: &'static str,
        attributes: Vec<(&'static str, Tree<'a>)>,
    },
    /// What a call gives.
    Call {
        module: &'static str,
        name: &'static str,
        arguments: Vec<Tree<'a>>,
    },
    /// A small tensor with a storage of its own, whose bytes are known.
    Tensor {
        dtype: DType,
        shape: Vec<u64>,
        bytes: Vec<u8>,
    },
    /// A row-major tensor in one of the storages that the file is given.
    View {
        storage: usize,
        offset: Elements,
        shape: Vec<u64>,
    },
    /// An object of another pickle, with the small tensors in it.
    Taken(Taken<'a>),
}

/// An object of another file, and the tensors in it.
#[derive(Clone, Debug)]
pub(crate) struct Taken<'a> {
    value: Value<'a>,
    tensors: HashMap<NodeId, Tree<'a>>,
}

/// So many bytes of tensors beside the weights are taken over: schedulers, states of random generators.
const TAKEN_BYTES_MAX: u64 = 64 << 20;

impl<'a> Tree<'a> {
    /// A dictionary with text keys.
    pub(crate) fn dict<K: Into<String>>(entries: Vec<(K, Tree<'a>)>) -> Self {
        Self::Dict(entries.into_iter().map(|(key, value)| (Self::Str(key.into()), value)).collect())
    }

    /// A count. What is beyond 63 bits does not occur: counts are of bytes that exist.
    pub(crate) fn count(value: u64) -> Self {
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }

    /// A list of counts.
    pub(crate) fn counts(values: &[u64]) -> Self {
        Self::List(values.iter().copied().map(Self::count).collect())
    }

    /// Takes an object over from another file; `key` names it in errors.
    ///
    /// # Errors
    /// [`WriteFault::TakenOver`] for tensors of more than 64 MiB, and for storages that are no tensors.
    pub(crate) fn taken(
        files: &Files,
        file: FileId,
        torch: &TorchFile,
        key: &str,
        value: Value<'a>,
    ) -> Result<Self, FormatError> {
        let refuse = |what| WriteFault::TakenOver { entry: key.to_owned(), what }.at(files.path(file));
        let (mut found, mut fault) = (Vec::new(), None);
        // The copy is thrown away: it visits every object once.
        PickleBuilder::new().copy_replacing(value, |builder, value| match torch.tensor(value) {
            Ok(Some(tensor)) => {
                found.push((value.id(), tensor));
                Some(builder.none())
            }
            Ok(None) if value.as_persistent().is_some() => {
                fault = Some(refuse("a storage that is no tensor"));
                Some(builder.none())
            }
            Ok(None) => None,
            Err(error) => {
                fault = Some(error);
                Some(builder.none())
            }
        });
        if let Some(fault) = fault {
            return Err(fault);
        }
        let mut left = TAKEN_BYTES_MAX;
        let mut tensors = HashMap::new();
        for (id, tensor) in found {
            let elements =
                volume(&tensor.shape).and_then(|elements| elements.checked_mul(tensor.dtype.size()));
            left = elements
                .and_then(|bytes| left.checked_sub(bytes))
                .ok_or_else(|| refuse("too large tensors"))?;
            let bytes = read_bytes(files, &tensor)?;
            tensors.insert(id, Tree::Tensor { dtype: tensor.dtype, shape: tensor.shape, bytes });
        }
        Ok(Self::Taken(Taken { value, tensors }))
    }

    /// A tensor without elements.
    pub(crate) fn empty(dtype: DType, shape: Vec<u64>) -> Self {
        Self::Tensor { dtype, shape, bytes: Vec::new() }
    }
}

/// Lays out a file that holds `tree`, with storages of the given types and lengths that are to be filled: the file,
/// and where each of these storages begins in it.
///
/// # Errors
/// [`FormatError::Torch`] for a pickle over the limits.
pub(crate) fn file(
    path: PathBuf,
    tree: &Tree<'_>,
    storages: &[(DType, Elements)],
) -> Result<(TargetFile, Vec<u64>), FormatError> {
    let mut growth = Growth { builder: PickleBuilder::new(), storages, known: Vec::new() };
    let root = growth.grow(tree);
    let Growth { builder, known, .. } = growth;
    let filled = storages.iter().map(|(dtype, length)| Contents::Data(length.bytes(*dtype).0));
    let contents = filled.chain(known.into_iter().map(Contents::Known));
    let contents = contents.enumerate().map(|(key, contents)| (key.to_string(), contents)).collect();
    let archive = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let named = path.clone();
    let (file, mut offsets) = torch_file(path, &archive, &builder.finish(root), contents)
        .map_err(|fault| FormatError::Torch { path: named, fault: fault.into() })?;
    offsets.truncate(storages.len());
    Ok((file, offsets))
}

struct Growth<'s> {
    builder: PickleBuilder,
    storages: &'s [(DType, Elements)],
    known: Vec<Vec<u8>>,
}

impl Growth<'_> {
    fn grow(&mut self, tree: &Tree<'_>) -> NodeId {
        match tree {
            Tree::None => self.builder.none(),
            Tree::Bool(value) => self.builder.bool(*value),
            Tree::Int(value) => self.builder.int(*value),
            Tree::Float(value) => self.builder.float(*value),
            Tree::Str(text) => self.builder.str(text),
            Tree::List(items) => {
                let items = self.all(items);
                self.builder.list(items)
            }
            Tree::Tuple(items) => {
                let items = self.all(items);
                self.builder.tuple(items)
            }
            Tree::Dict(entries) => {
                let pairs: Vec<_> =
                    entries.iter().map(|(key, value)| (self.grow(key), self.grow(value))).collect();
                self.builder.dict(pairs)
            }
            Tree::Ordered(entries) => {
                let pairs = entries.iter().map(|(key, value)| (self.builder.str(key), self.grow(value)));
                let pairs: Vec<_> = pairs.collect();
                self.builder.ordered_dict(pairs)
            }
            Tree::Size(shape) => self.builder.size(shape),
            Tree::Object { module, name, attributes } => {
                let pairs = attributes.iter().map(|(key, value)| (self.builder.str(key), self.grow(value)));
                let pairs: Vec<_> = pairs.collect();
                let class = self.builder.class(module, name);
                self.builder.instance(class, pairs)
            }
            Tree::Call { module, name, arguments } => {
                let arguments = self.all(arguments);
                let (callable, arguments) = (self.builder.class(module, name), self.builder.tuple(arguments));
                self.builder.call(callable, arguments)
            }
            Tree::Tensor { dtype, shape, bytes } => {
                let key = (self.storages.len() + self.known.len()).to_string();
                self.known.push(bytes.clone());
                self.builder.tensor(&key, *dtype, bytes.len() as u64 / dtype.size(), 0, shape)
            }
            Tree::View { storage, offset, shape } => {
                let (dtype, length) = self.storages[*storage];
                self.builder.tensor(&storage.to_string(), dtype, length.0, offset.0, shape)
            }
            Tree::Taken(taken) => self.take(taken),
        }
    }

    fn take(&mut self, taken: &Taken<'_>) -> NodeId {
        let Self { builder, storages, known } = self;
        builder.copy_replacing(taken.value, |builder, value| {
            let Some(Tree::Tensor { dtype, shape, bytes }) = taken.tensors.get(&value.id()) else {
                return None;
            };
            let key = (storages.len() + known.len()).to_string();
            known.push(bytes.clone());
            Some(builder.tensor(&key, *dtype, bytes.len() as u64 / dtype.size(), 0, shape))
        })
    }

    fn all(&mut self, items: &[Tree<'_>]) -> Vec<NodeId> {
        items.iter().map(|item| self.grow(item)).collect()
    }
}
