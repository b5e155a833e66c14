//! Pickles as data: parsed without running anything, and written back.
//!
//! ```text
//!   80 02 7d 71 00 58 .. 'step' 4b 02 73 2e     ──read──►  nodes 0 Dict[(1, 2)]  1 Str "step"  2 Int 2   root 0
//!                                               ◄─write──  shared and cyclic nodes stay shared and cyclic
//! ```
//!
//! A class is two names, a call is what would be called and with what. Nothing is looked up, so nothing can run.

mod value;

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

/// A pickle as a graph. Invariant: every id in it is a node of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pickle {
    pub(crate) nodes: Vec<Node>,
    pub(crate) root: NodeId,
}

impl Pickle {
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
