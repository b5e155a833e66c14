//! Pickles as data: parsed without running anything, and written back.
//!
//! ```text
//!   80 02 7d 71 00 58 .. 'step' 4b 02 73 2e     ──read──►  nodes 0 Dict[(1, 2)]  1 Str "step"  2 Int 2   root 0
//!                                               ◄─write──  shared and cyclic nodes stay shared and cyclic
//! ```
//!
//! A class is two names, a call is what would be called and with what. Nothing is looked up, so nothing can run.

mod atoms;
mod build;
mod collect;
mod fault;
mod memo;
mod opcode;
mod read;
mod text;
mod value;
mod write;

pub use build::PickleBuilder;
pub use fault::PickleFault;
pub use read::{MARKS_MAX, NODES_MAX, PICKLE_BYTES_MAX};
pub use value::{Entries, Value};

/// Names a node of a [`Pickle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// One object of a pickle.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A longer integer: little-endian two's complement.
    BigInt(Vec<u8>),
    /// A float.
    Float(f64),
    /// Text.
    Str(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<NodeId>),
    /// A tuple.
    Tuple(Vec<NodeId>),
    /// A dictionary, in order.
    Dict(Vec<(NodeId, NodeId)>),
    /// A set; frozen if the flag says so.
    Set(Vec<NodeId>, bool),
    /// A class or function, by its names.
    Class {
        /// The module.
        module: String,
        /// The name in it.
        name: String,
    },
    /// What a call would give.
    Object(Box<Object>),
    /// What a persistent id stands for: a tensor's storage, in torch's files.
    Persistent(NodeId),
}

/// What a call would give, and what is done to it afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// What is called.
    pub callable: NodeId,
    /// Its arguments, a tuple.
    pub arguments: NodeId,
    /// Keyword arguments of `NEWOBJ_EX`, a dictionary.
    pub keywords: Option<NodeId>,
    /// Whether `callable` is a class whose `__new__` is called (`NEWOBJ`), and not called itself (`REDUCE`).
    pub is_new: bool,
    /// What `BUILD` hands it.
    pub state: Option<NodeId>,
    /// What `SETITEM` and `SETITEMS` put into it.
    pub items: Vec<(NodeId, NodeId)>,
    /// What `APPEND`, `APPENDS` and `ADDITEMS` put into it.
    pub elements: Vec<NodeId>,
}

impl Object {
    /// What calling `callable` gives.
    pub(crate) fn call(callable: NodeId, arguments: NodeId) -> Self {
        let (items, elements) = (Vec::new(), Vec::new());
        Self { callable, arguments, keywords: None, is_new: false, state: None, items, elements }
    }
}

impl Node {
    /// What it is, in words.
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a truth value",
            Self::Int(_) | Self::BigInt(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Str(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "a list",
            Self::Tuple(_) => "a tuple",
            Self::Dict(_) => "a dictionary",
            Self::Set(..) => "a set",
            Self::Class { .. } => "a class",
            Self::Object(_) => "an object",
            Self::Persistent(_) => "a persistent id",
        }
    }

    /// Visits every id that it holds.
    fn for_each_child(&mut self, mut visit: impl FnMut(&mut NodeId)) {
        match self {
            Self::List(items) | Self::Tuple(items) | Self::Set(items, _) => items.iter_mut().for_each(visit),
            Self::Dict(entries) => entries.iter_mut().flat_map(|(key, value)| [key, value]).for_each(visit),
            Self::Persistent(id) => visit(id),
            Self::Object(object) => {
                let Object { callable, arguments, keywords, is_new: _, state, items, elements } =
                    &mut **object;
                let single = [callable, arguments].into_iter().chain(keywords).chain(state);
                let pairs = items.iter_mut().flat_map(|(key, value)| [key, value]);
                single.chain(pairs).chain(elements).for_each(visit);
            }
            _ => {}
        }
    }
}

/// A pickle as a graph. Invariant: every id in it is a node of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pickle {
    pub(crate) nodes: Vec<Node>,
    pub(crate) root: NodeId,
}

impl Pickle {
    /// Reads a pickle of protocol 0 to 5.
    ///
    /// # Errors
    /// [`PickleFault`], if it is no pickle, refers to what is not in it, or is over a limit:
    /// [`PICKLE_BYTES_MAX`], [`NODES_MAX`], [`MARKS_MAX`].
    pub fn read(bytes: &[u8]) -> Result<Self, PickleFault> {
        read::read(bytes)
    }

    /// The pickle in protocol 2 (4 if an object has keyword arguments). Reading it gives the same graph.
    ///
    /// # Errors
    /// [`PickleFault::MadeOfItself`], and [`PickleFault::Limit`] over [`PICKLE_BYTES_MAX`] or [`MARKS_MAX`].
    pub fn write(&self) -> Result<Vec<u8>, PickleFault> {
        write::write(self)
    }

    /// What was pickled.
    #[must_use]
    pub fn root(&self) -> Value<'_> {
        self.value(self.root)
    }

    /// One object of it.
    #[must_use]
    pub fn value(&self, id: NodeId) -> Value<'_> {
        Value::new(self, id)
    }

    /// The node with this id.
    ///
    /// # Panics
    /// If the id belongs to another pickle.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }
}
