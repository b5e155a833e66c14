//! What can be wrong with a pickle.

use reshard_layout::Kind;

/// Why a pickle cannot be read or written. Offsets count bytes of the pickle, up to the operation at fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PickleFault {
    /// It is over a limit of this reader or writer.
    #[error("the pickle has more than {max} {what}")]
    Limit {
        /// Of what there is too much.
        what: &'static str,
        /// How much there may be.
        max: u64,
    },
    /// It ends too early.
    #[error("the pickle ends inside the operation at byte {offset}")]
    Truncated {
        /// The operation.
        offset: usize,
    },
    /// A byte that is no operation.
    #[error("unknown operation {opcode:#04x} at byte {offset} of the pickle")]
    UnknownOperation {
        /// The byte.
        opcode: u8,
        /// The operation.
        offset: usize,
    },
    /// An operation that needs what is not in the pickle.
    #[error("operation {operation} at byte {offset} of the pickle refers to what is not in it")]
    OutOfBand {
        /// Its name.
        operation: &'static str,
        /// The operation.
        offset: usize,
    },
    /// A protocol after those that are known.
    #[error("pickle protocol {protocol} is not known")]
    Protocol {
        /// The protocol.
        protocol: u8,
    },
    /// An operation takes more objects than there are.
    #[error("the operation at byte {offset} of the pickle takes more objects than there are")]
    StackUnderflow {
        /// The operation.
        offset: usize,
    },
    /// An operation reads a place of the memo that is empty.
    #[error("the operation at byte {offset} of the pickle reads memo {key}, into which nothing was put")]
    NotMemoized {
        /// The operation.
        offset: usize,
        /// The place.
        key: u64,
    },
    /// An operation is handed an object that it cannot take.
    #[error("the operation at byte {offset} of the pickle takes {expected}, found {found}")]
    Operand {
        /// The operation.
        offset: usize,
        /// What it takes.
        expected: &'static str,
        /// What it is handed.
        found: &'static str,
    },
    /// A number or text that is none.
    #[error("the operation at byte {offset} of the pickle holds no {what}")]
    Literal {
        /// The operation.
        offset: usize,
        /// What it should hold.
        what: &'static str,
    },
    /// Bytes after the end.
    #[error("{bytes} bytes follow the end of the pickle")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// Objects that belong to nothing.
    #[error("the pickle leaves {objects} objects that belong to nothing")]
    Leftover {
        /// How many.
        objects: usize,
    },
    /// An object that must be there before it can be made, which no pickle of protocol 2 can say.
    #[error("{what} is part of what it is made of, which protocol 2 cannot say")]
    MadeOfItself {
        /// The class or kind of the object.
        what: String,
    },
}

impl PickleFault {
    /// Whether it is a contradiction, beyond this library, or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Limit { .. } => Kind::OverBudget,
            Self::OutOfBand { .. } | Self::Protocol { .. } | Self::MadeOfItself { .. } => Kind::Unsupported,
            _ => Kind::Invalid,
        }
    }
}
