//! Looking into a pickle as Python would see it.

use super::{Node, NodeId, Object, Pickle};

/// One object of a pickle, to look into.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    pickle: &'a Pickle,
    id: NodeId,
}

impl<'a> Value<'a> {
    pub(super) fn new(pickle: &'a Pickle, id: NodeId) -> Self {
        Self { pickle, id }
    }

    pub(super) fn pickle(self) -> &'a Pickle {
        self.pickle
    }

    /// Its id: equal for what is one object.
    #[must_use]
    pub fn id(self) -> NodeId {
        self.id
    }

    /// Its node.
    #[must_use]
    pub fn node(self) -> &'a Node {
        self.pickle.node(self.id)
    }

    /// Whether it is `None`.
    #[must_use]
    pub fn is_none(self) -> bool {
        matches!(self.node(), Node::None)
    }

    /// A truth value.
    #[must_use]
    pub fn as_bool(self) -> Option<bool> {
        if let Node::Bool(value) = self.node() { Some(*value) } else { None }
    }

    /// An integer.
    #[must_use]
    pub fn as_i64(self) -> Option<i64> {
        if let Node::Int(value) = self.node() { Some(*value) } else { None }
    }

    /// An integer that is not negative.
    #[must_use]
    pub fn as_u64(self) -> Option<u64> {
        self.as_i64().and_then(|value| u64::try_from(value).ok())
    }

    /// A float, or an integer as one.
    #[must_use]
    pub fn as_f64(self) -> Option<f64> {
        match self.node() {
            Node::Float(value) => Some(*value),
            Node::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// Text.
    #[must_use]
    pub fn as_str(self) -> Option<&'a str> {
        if let Node::Str(text) = self.node() { Some(text) } else { None }
    }

    /// Bytes.
    #[must_use]
    pub fn as_bytes(self) -> Option<&'a [u8]> {
        if let Node::Bytes(bytes) = self.node() { Some(bytes) } else { None }
    }

    /// The result of a call.
    #[must_use]
    pub fn as_object(self) -> Option<&'a Object> {
        if let Node::Object(object) = self.node() { Some(object) } else { None }
    }

    /// Module and name of a class.
    #[must_use]
    pub fn as_class(self) -> Option<(&'a str, &'a str)> {
        if let Node::Class { module, name } = self.node() { Some((module, name)) } else { None }
    }

    /// Module and name of what an object is made by calling.
    #[must_use]
    pub fn made_by(self) -> Option<(&'a str, &'a str)> {
        self.as_object().and_then(|object| self.pickle.value(object.callable).as_class())
    }

    /// The arguments that an object is made of.
    pub fn arguments(self) -> Vec<Value<'a>> {
        self.as_object().and_then(|object| self.pickle.value(object.arguments).items()).unwrap_or_default()
    }

    /// What a persistent id consists of.
    #[must_use]
    pub fn as_persistent(self) -> Option<Value<'a>> {
        if let Node::Persistent(id) = self.node() { Some(self.pickle.value(*id)) } else { None }
    }

    /// The items of a list, tuple, set, or of an object that is one (`torch.Size`).
    #[must_use]
    pub fn items(self) -> Option<Vec<Value<'a>>> {
        let ids = match self.node() {
            Node::List(ids) | Node::Tuple(ids) | Node::Set(ids, _) => ids,
            Node::Object(object) if self.made_by() == Some(("torch", "Size")) => {
                return self.pickle.value(object.arguments).items()?.first()?.items();
            }
            Node::Object(object) if !object.elements.is_empty() => &object.elements,
            _ => return None,
        };
        Some(ids.iter().map(|id| self.pickle.value(*id)).collect())
    }

    /// Numbers, as a shape has them.
    #[must_use]
    pub fn as_numbers(self) -> Option<Vec<u64>> {
        self.items()?.into_iter().map(Value::as_u64).collect()
    }

    /// Keys and values of a dictionary, or of an object that is one (`OrderedDict`, `defaultdict`).
    #[must_use]
    pub fn entries(self) -> Option<Entries<'a>> {
        let entries = match self.node() {
            Node::Dict(entries) => entries,
            Node::Object(object) => {
                let ("collections", "OrderedDict" | "defaultdict") = self.made_by()? else { return None };
                &object.items
            }
            _ => return None,
        };
        Some(Entries { pickle: self.pickle, entries: entries.iter() })
    }

    /// The value of a text key of a dictionary: the last, if there are several, as in Python.
    #[must_use]
    pub fn get(self, key: &str) -> Option<Value<'a>> {
        self.entries()?.filter(|(known, _)| known.as_str() == Some(key)).last().map(|(_, value)| value)
    }

    /// What `BUILD` hands an object.
    #[must_use]
    pub fn state(self) -> Option<Value<'a>> {
        self.as_object()?.state.map(|state| self.pickle.value(state))
    }

    /// An attribute of an object whose `BUILD` was handed a dictionary (or a pair of which the second is one).
    #[must_use]
    pub fn attribute(self, name: &str) -> Option<Value<'a>> {
        let state = self.pickle.value(self.as_object()?.state?);
        match state.node() {
            Node::Tuple(parts) if parts.len() == 2 => self.pickle.value(parts[1]).get(name),
            _ => state.get(name),
        }
    }
}

/// Keys and values of a dictionary, in order.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    pickle: &'a Pickle,
    entries: std::slice::Iter<'a, (NodeId, NodeId)>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = (Value<'a>, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.entries.next()?;
        Some((self.pickle.value(*key), self.pickle.value(*value)))
    }
}
