//! What can be wrong with a torch file.

use reshard_layout::Kind;

use crate::pickle::PickleFault;

/// Why a file is not one that `torch.save` wrote, or why a tensor in it cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TorchFault {
    /// The zip archive is broken.
    #[error("no sound zip archive: {cause}")]
    Zip {
        /// What was found.
        cause: String,
    },
    /// A file of torch before 1.6, which is no zip archive.
    #[error(
        "written by torch before 1.6 or with `_use_new_zipfile_serialization=False`; load and save it again"
    )]
    Legacy,
    /// A program and not a pickled object.
    #[error("a TorchScript program, not a file of `torch.save`")]
    TorchScript,
    /// The zip archive is another one than `torch.save` writes.
    #[error("a zip archive, but without `{missing}` in one folder")]
    NotTorch {
        /// What there must be.
        missing: &'static str,
    },
    /// Bytes behind the archive.
    #[error("{bytes} bytes follow the zip archive")]
    Trailing {
        /// How many.
        bytes: u64,
    },
    /// An entry of the archive that cannot be.
    #[error("zip entry {name:?} {what}")]
    Entry {
        /// Its name.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Compressed or encrypted entries, which torch never writes.
    #[error("zip entry {name:?} is {how}; torch stores entries as they are")]
    Packed {
        /// Its name.
        name: String,
        /// In which way.
        how: &'static str,
    },
    /// More than this reader takes.
    #[error("more than {max} {what}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How much there may be.
        max: u64,
    },
    /// Bytes of another order.
    #[error("byte order {order:?}; only little is read")]
    ByteOrder {
        /// What the file says.
        order: String,
    },
    /// The pickle is broken.
    #[error(transparent)]
    Pickle(#[from] PickleFault),
    /// A tensor that is more than a window of a storage.
    #[error("a tensor made by {made_by}, which is not supported")]
    TensorKind {
        /// The function that makes it.
        made_by: String,
    },
    /// A type of elements that cannot be expressed.
    #[error("a tensor of {dtype}, which is not supported")]
    DType {
        /// Its name in torch.
        dtype: String,
    },
    /// A tensor whose description is not as torch writes it.
    #[error("a tensor whose {what} cannot be read")]
    Tensor {
        /// Which part.
        what: &'static str,
    },
    /// A storage that is not in the file, or has another length there.
    #[error("storage {key:?} has {found} bytes, expected {expected}")]
    StorageLength {
        /// Its name.
        key: String,
        /// What the pickle says.
        expected: u64,
        /// What the archive holds; 0 if nothing.
        found: u64,
    },
    /// A tensor that reaches outside its storage.
    #[error(
        "a tensor of shape {shape:?}, strides {strides:?} and offset {offset} leaves storage {key:?} of {elements} \
         elements"
    )]
    OutOfStorage {
        /// The storage.
        key: String,
        /// The tensor's extents.
        shape: Vec<u64>,
        /// Elements between neighbours along each axis.
        strides: Vec<u64>,
        /// Its first element in the storage.
        offset: u64,
        /// Elements of the storage.
        elements: u64,
    },
    /// A tensor with many elements where one is read.
    #[error("a tensor of shape {shape:?} where one number is expected")]
    NotOneNumber {
        /// Its extents.
        shape: Vec<u64>,
    },
}

impl TorchFault {
    /// Whether it is a contradiction, beyond this library, or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Pickle(fault) => fault.kind(),
            Self::Limit { .. } => Kind::OverBudget,
            Self::Legacy | Self::TorchScript | Self::Packed { .. } | Self::ByteOrder { .. } => {
                Kind::Unsupported
            }
            Self::TensorKind { .. } | Self::DType { .. } => Kind::Unsupported,
            _ => Kind::Invalid,
        }
    }
}
