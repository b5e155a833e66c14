//! What can be wrong with safetensors files and their index.

use reshard_layout::{Bytes, Kind};

/// Why a safetensors file, folder or index cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsFault {
    /// The file is too short to say how long its header is.
    #[error("the file has {file_length} bytes, the length of its header alone takes 8")]
    LengthAbsent {
        /// Bytes of the file.
        file_length: Bytes,
    },
    /// A header above the limit of the format.
    #[error("a header of {length} bytes, at most {limit} are allowed")]
    HeaderTooLong {
        /// Its length.
        length: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The file ends inside its header.
    #[error("a header of {length} bytes in a file of {file_length}")]
    HeaderTruncated {
        /// Its length.
        length: Bytes,
        /// Bytes of the file.
        file_length: Bytes,
    },
    /// A header that is no text.
    #[error("the header is no UTF-8 from its byte {byte} on")]
    NotUtf8 {
        /// The first byte that is none.
        byte: Bytes,
    },
    /// JSON that is none, or not of this format.
    #[error("not the JSON of this format: {cause}")]
    Json {
        /// What the parser says, with the name of the entry.
        cause: serde_json::Error,
    },
    /// Two tensors of one name in one header, index or output.
    #[error("duplicate name {name}")]
    RepeatedName {
        /// The name.
        name: String,
    },
    /// One key twice in the metadata.
    #[error("duplicate key {key} in the metadata")]
    RepeatedKey {
        /// The key.
        key: String,
    },
    /// An element type that this format has not.
    #[error("{tensor}: unknown dtype {dtype}")]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type.
        dtype: String,
    },
    /// A shape of too many axes.
    #[error("{tensor}: {axes} axes, at most {limit} are allowed")]
    TooManyAxes {
        /// The tensor.
        tensor: String,
        /// Its axes.
        axes: usize,
        /// The limit.
        limit: usize,
    },
    /// A range with its end before its begin.
    #[error("{tensor}: its bytes begin at {begin} and end at {end}")]
    EndsBeforeItBegins {
        /// The tensor.
        tensor: String,
        /// First byte, counted from the end of the header.
        begin: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A size that does not fit in 64 bits.
    #[error("{tensor}: the size of {dtype} of shape {shape:?} does not fit in 64 bits")]
    SizeOverflow {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: &'static str,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A tensor of a type below a byte that ends inside one.
    #[error("{tensor}: {dtype} of shape {shape:?} takes {bits} bits, which are no whole bytes")]
    PartOfByte {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: &'static str,
        /// Its shape.
        shape: Vec<u64>,
        /// Bits that it takes.
        bits: u64,
    },
    /// A range that is not as long as type and shape say.
    #[error("{tensor}: {dtype} of shape {shape:?} takes {expected} bytes, its range has {found}")]
    WrongLength {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: &'static str,
        /// Its shape.
        shape: Vec<u64>,
        /// What these take.
        expected: Bytes,
        /// What the range has.
        found: Bytes,
    },
    /// Bytes before a tensor that belong to none.
    #[error("bytes {begin} to {end} of the data, before {tensor}, belong to no tensor")]
    Hole {
        /// The tensor behind them.
        tensor: String,
        /// First byte, counted from the end of the header.
        begin: u64,
        /// One past the last.
        end: u64,
    },
    /// A byte with two owners.
    #[error("{first} and {second} overlap: {second} begins at byte {begin}, {first} ends at {end}")]
    SharedBytes {
        /// The tensor that begins first.
        first: String,
        /// The other.
        second: String,
        /// Where the second begins, counted from the end of the header.
        begin: u64,
        /// One past the last byte of the first.
        end: u64,
    },
    /// The file ends before its last tensor does.
    #[error("{tensor} ends at byte {end} of the data, of which the file has {length}")]
    Truncated {
        /// The last tensor.
        tensor: String,
        /// One past its last byte, counted from the end of the header.
        end: Bytes,
        /// Bytes of the file behind the header.
        length: Bytes,
    },
    /// Bytes behind the last tensor.
    #[error("the tensors end at byte {end} of the data, of which the file has {length}")]
    TrailingBytes {
        /// One past the last byte of the last tensor.
        end: Bytes,
        /// Bytes of the file behind the header.
        length: Bytes,
    },
    /// A folder without a file of this format.
    #[error("no .safetensors file in the folder")]
    NoFiles,
    /// Several indexes, and none of the usual name.
    #[error("several indexes, name the one to read: {}", indexes.join(", "))]
    SeveralIndexes {
        /// Their names.
        indexes: Vec<String>,
    },
    /// An index or a config above the limit.
    #[error("{length} bytes, at most {limit} are read")]
    TextTooLong {
        /// Its length.
        length: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// An index entry with a path that leaves the folder.
    #[error("{tensor} is said to lie in {file}, which is no path inside the folder")]
    PathEscapes {
        /// The tensor.
        tensor: String,
        /// The path.
        file: String,
    },
    /// Files that an index names and the folder has not.
    #[error("{} of {named} files of the index are absent, and with them {tensors} tensors: {}", files.len(), shown(files))]
    FilesAbsent {
        /// The names of all that are absent.
        files: Vec<String>,
        /// Files that the index names.
        named: usize,
        /// Tensors that it expects in the absent ones.
        tensors: usize,
    },
    /// Tensors that an index names and their file has not.
    #[error("{} tensors of the index are not in their file: {}", tensors.len(), shown(tensors))]
    TensorsAbsent {
        /// The names of all that are absent.
        tensors: Vec<String>,
    },
    /// A tensor in two files, and no index to say which is meant.
    #[error("{tensor} is in {first} and in {second}")]
    TensorInTwoFiles {
        /// The tensor.
        tensor: String,
        /// The first file.
        first: String,
        /// The other.
        second: String,
    },
    /// A tensor that is to be written under the name of the metadata.
    #[error("a tensor cannot be called __metadata__")]
    ReservedName,
    /// A tensor to be written that is said to be packed from what does not take its bytes.
    #[error("{tensor}: {bytes} bytes in the layout, packed {dtype} of shape {shape:?} in the file")]
    PackedDisagrees {
        /// The tensor.
        tensor: String,
        /// Bytes in the layout.
        bytes: Bytes,
        /// The packed type.
        dtype: String,
        /// The packed shape.
        shape: Vec<u64>,
    },
}

impl SafetensorsFault {
    /// Whether it is a contradiction, beyond this library, or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::HeaderTooLong { .. } | Self::TooManyAxes { .. } | Self::TextTooLong { .. } => {
                Kind::OverBudget
            }
            Self::UnknownType { .. } => Kind::Unsupported,
            _ => Kind::Invalid,
        }
    }
}

const SHOWN: usize = 10;

/// The first few of a list.
pub(crate) fn shown(names: &[String]) -> String {
    let mut text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}
