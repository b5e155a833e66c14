//! Making a pickle from nothing, or from pieces of others.
//!
//! ```text
//!   step = builder.int(2)   key = builder.str("step")   root = builder.dict([(key, step)])   builder.finish(root)
//! ```

use std::collections::HashMap;

use super::{Node, NodeId, Object, Pickle, Value};

/// Collects the objects of a pickle. Ids are those that it gave out itself.
#[derive(Clone, Debug, Default)]
pub struct PickleBuilder {
    nodes: Vec<Node>,
    classes: HashMap<(String, String), NodeId>,
}

impl PickleBuilder {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Any object whose parts are there already.
    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX))
    }

    /// `None`.
    pub fn none(&mut self) -> NodeId {
        self.add(Node::None)
    }

    /// A truth value.
    pub fn bool(&mut self, value: bool) -> NodeId {
        self.add(Node::Bool(value))
    }

    /// An integer.
    pub fn int(&mut self, value: i64) -> NodeId {
        self.add(Node::Int(value))
    }

    /// An integer that is not negative.
    pub fn uint(&mut self, value: u64) -> NodeId {
        match i64::try_from(value) {
            Ok(value) => self.int(value),
            Err(_) => {
                let bytes = value.to_le_bytes().into_iter().chain([0]).collect();
                self.add(Node::BigInt(bytes))
            }
        }
    }

    /// A float.
    pub fn float(&mut self, value: f64) -> NodeId {
        self.add(Node::Float(value))
    }

    /// Text.
    pub fn str(&mut self, text: &str) -> NodeId {
        self.add(Node::Str(text.to_owned()))
    }

    /// Bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> NodeId {
        self.add(Node::Bytes(bytes.to_vec()))
    }

    /// A list.
    pub fn list(&mut self, items: impl IntoIterator<Item = NodeId>) -> NodeId {
        self.add(Node::List(items.into_iter().collect()))
    }

    /// A tuple.
    pub fn tuple(&mut self, items: impl IntoIterator<Item = NodeId>) -> NodeId {
        self.add(Node::Tuple(items.into_iter().collect()))
    }

    /// A dictionary.
    pub fn dict(&mut self, entries: impl IntoIterator<Item = (NodeId, NodeId)>) -> NodeId {
        self.add(Node::Dict(entries.into_iter().collect()))
    }

    /// A `collections.OrderedDict`.
    pub fn ordered_dict(&mut self, entries: impl IntoIterator<Item = (NodeId, NodeId)>) -> NodeId {
        let callable = self.class("collections", "OrderedDict");
        let arguments = self.tuple([]);
        let mut object = Object::call(callable, arguments);
        object.items = entries.into_iter().collect();
        self.add(Node::Object(Box::new(object)))
    }

    /// A class or function. Named twice, it is one object. Neither name may hold a line feed.
    pub fn class(&mut self, module: &str, name: &str) -> NodeId {
        let key = (module.to_owned(), name.to_owned());
        if let Some(known) = self.classes.get(&key) {
            return *known;
        }
        let id = self.add(Node::Class { module: module.to_owned(), name: name.to_owned() });
        self.classes.insert(key, id);
        id
    }

    /// What calling `callable` gives; `arguments` is a tuple.
    pub fn call(&mut self, callable: NodeId, arguments: NodeId) -> NodeId {
        self.add(Node::Object(Box::new(Object::call(callable, arguments))))
    }

    /// A new object of a class without arguments, with these attributes.
    pub fn instance(
        &mut self,
        class: NodeId,
        attributes: impl IntoIterator<Item = (NodeId, NodeId)>,
    ) -> NodeId {
        let arguments = self.tuple([]);
        let state = self.dict(attributes);
        let mut object = Object::call(class, arguments);
        object.is_new = true;
        object.state = Some(state);
        self.add(Node::Object(Box::new(object)))
    }

    /// A `torch.Size`.
    pub fn size(&mut self, shape: &[u64]) -> NodeId {
        let callable = self.class("torch", "Size");
        let shape = self.numbers(shape);
        let arguments = self.tuple([shape]);
        self.call(callable, arguments)
    }

    /// A tuple of integers.
    pub fn numbers(&mut self, numbers: &[u64]) -> NodeId {
        let items: Vec<NodeId> = numbers.iter().map(|number| self.uint(*number)).collect();
        self.tuple(items)
    }

    /// What the persistent id `id` stands for.
    pub fn persistent(&mut self, id: NodeId) -> NodeId {
        self.add(Node::Persistent(id))
    }

    /// A copy of an object of another pickle and of all that it holds. What is shared or cyclic in it stays so.
    pub fn copy_from(&mut self, value: Value<'_>) -> NodeId {
        self.copy_replacing(value, |_, _| None)
    }

    /// As [`copy_from`](Self::copy_from), but wherever `replace` gives an object, that one stands in place of the
    /// one it was asked for. It is asked once for each object.
    pub fn copy_replacing(
        &mut self,
        value: Value<'_>,
        mut replace: impl FnMut(&mut Self, Value<'_>) -> Option<NodeId>,
    ) -> NodeId {
        let pickle = value.pickle();
        let mut copies: HashMap<NodeId, NodeId> = HashMap::new();
        let mut pending = Vec::new();
        let mut queue = vec![value.id()];
        while let Some(id) = queue.pop() {
            if copies.contains_key(&id) {
                continue;
            }
            if let Some(stand_in) = replace(self, pickle.value(id)) {
                copies.insert(id, stand_in);
                continue;
            }
            if let Node::Class { module, name } = pickle.node(id) {
                copies.insert(id, self.class(module, name));
                continue;
            }
            let mut node = pickle.node(id).clone();
            node.for_each_child(|child| queue.push(*child));
            let copy = self.add(Node::None);
            copies.insert(id, copy);
            pending.push((copy, node));
        }
        for (copy, mut node) in pending {
            node.for_each_child(|child| *child = copies[child]);
            self.nodes[copy.0 as usize] = node;
        }
        copies[&value.id()]
    }

    /// The pickle whose root is `root`.
    ///
    /// # Panics
    /// If the id is not one of this builder's.
    #[must_use]
    pub fn finish(self, root: NodeId) -> Pickle {
        assert!((root.0 as usize) < self.nodes.len(), "the root is an object of this builder");
        Pickle { nodes: self.nodes, root }
    }
}
