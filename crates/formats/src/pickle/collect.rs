//! The operations of the machine that make containers, classes and calls out of what lies on its stack.

use super::fault::PickleFault;
use super::opcode::*;
use super::read::{Machine, Step};
use super::{Node, NodeId, Object};

/// Bytes and ids that may be copied while a pickle is read.
const COPIES_MAX: u64 = 1 << 26;

impl Machine<'_> {
    // Containers.

    pub(super) fn tuple(&mut self, opcode: u8) -> Step {
        let count = match opcode {
            EMPTY_TUPLE => 0,
            TUPLE1 => 1,
            TUPLE2 => 2,
            TUPLE3 => 3,
            _ => {
                let items = self.pop_mark()?;
                return self.push(Node::Tuple(items));
            }
        };
        if self.stack.len() - self.floor() < count {
            return Err(PickleFault::StackUnderflow { offset: self.operation_at });
        }
        let items = self.stack.split_off(self.stack.len() - count);
        self.push(Node::Tuple(items))
    }

    /// The values that an operation takes: one, or all since the last mark.
    pub(super) fn taken(&mut self, is_one: bool) -> Step<Vec<NodeId>> {
        if is_one { Ok(vec![self.pop()?]) } else { self.pop_mark() }
    }

    pub(super) fn append(&mut self, opcode: u8) -> Step {
        let items = self.taken(opcode == APPEND)?;
        let offset = self.operation_at;
        match self.top_node()? {
            Node::List(list) => list.extend(items),
            Node::Object(object) => object.elements.extend(items),
            other => return Err(operand(offset, "a list", other)),
        }
        Ok(())
    }

    pub(super) fn add_items(&mut self) -> Step {
        let items = self.pop_mark()?;
        let offset = self.operation_at;
        match self.top_node()? {
            Node::Set(set, false) => set.extend(items),
            Node::Object(object) => object.elements.extend(items),
            other => return Err(operand(offset, "a set", other)),
        }
        Ok(())
    }

    pub(super) fn pairs(&self, items: &[NodeId]) -> Step<Vec<(NodeId, NodeId)>> {
        let (pairs, rest) = items.as_chunks::<2>();
        if rest.is_empty() {
            Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
        } else {
            Err(PickleFault::StackUnderflow { offset: self.operation_at })
        }
    }

    pub(super) fn set_items(&mut self, opcode: u8) -> Step {
        let pairs = if opcode == SETITEM {
            let value = self.pop()?;
            vec![(self.pop()?, value)]
        } else {
            let items = self.pop_mark()?;
            self.pairs(&items)?
        };
        let offset = self.operation_at;
        match self.top_node()? {
            Node::Dict(entries) => entries.extend(pairs),
            Node::Object(object) => object.items.extend(pairs),
            other => return Err(operand(offset, "a dictionary", other)),
        }
        Ok(())
    }

    // Classes, calls and what stands for something outside.

    pub(super) fn class(&mut self, opcode: u8) -> Step {
        let (module, name) = if opcode == GLOBAL {
            (self.text_of("module")?, self.text_of("name")?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            (self.name(module)?, self.name(name)?)
        };
        self.push(Node::Class { module, name })
    }

    /// Text that can be half of a class's name: a line. Copied, hence counted.
    pub(super) fn name(&mut self, id: NodeId) -> Step<String> {
        let Node::Str(text) = self.node(id) else {
            return Err(operand(self.operation_at, "a name", self.node(id)));
        };
        if text.contains('\n') {
            return Err(self.literal("name"));
        }
        let text = text.clone();
        self.count_copies(text.len())?;
        Ok(text)
    }

    pub(super) fn count_copies(&mut self, count: usize) -> Step {
        self.copies += count as u64;
        if self.copies > COPIES_MAX {
            return Err(PickleFault::Limit { what: "copied bytes", max: COPIES_MAX });
        }
        Ok(())
    }

    pub(super) fn call(&mut self, opcode: u8) -> Step {
        let keywords = if opcode == NEWOBJ_EX { Some(self.pop()?) } else { None };
        let arguments = self.pop()?;
        let callable = self.pop()?;
        if !matches!(self.node(arguments), Node::Tuple(_)) {
            return Err(operand(self.operation_at, "a tuple of arguments", self.node(arguments)));
        }
        if let Some(keywords) = keywords
            && !matches!(self.node(keywords), Node::Dict(_))
        {
            return Err(operand(self.operation_at, "a dictionary of arguments", self.node(keywords)));
        }
        if opcode == REDUCE
            && let Some(plain) = self.plain(callable, arguments)?
        {
            return self.push(plain);
        }
        let mut object = Object::call(callable, arguments);
        object.is_new = opcode != REDUCE;
        object.keywords = keywords;
        self.push(Node::Object(Box::new(object)))
    }

    /// Bytes and sets, which protocols before 3 and 4 spell as calls.
    pub(super) fn plain(&mut self, callable: NodeId, arguments: NodeId) -> Step<Option<Node>> {
        let (Node::Class { module, name }, Node::Tuple(arguments)) =
            (self.node(callable), self.node(arguments))
        else {
            return Ok(None);
        };
        let arguments: Vec<&Node> = arguments.iter().take(3).map(|id| self.node(*id)).collect();
        let plain = match (module.as_str(), name.as_str(), &arguments[..]) {
            ("_codecs", "encode", [Node::Str(text), Node::Str(encoding)]) if encoding == "latin1" => {
                let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
                bytes.map(|bytes| (bytes.len(), Node::Bytes(bytes)))
            }
            ("builtins" | "__builtin__", "bytes", []) => Some((0, Node::Bytes(Vec::new()))),
            ("builtins" | "__builtin__", "set" | "frozenset", [Node::List(items)]) => {
                Some((items.len(), Node::Set(items.clone(), name == "frozenset")))
            }
            _ => None,
        };
        let Some((count, node)) = plain else { return Ok(None) };
        self.count_copies(count)?;
        Ok(Some(node))
    }

    /// Instances of Python 2's classes: what a call would give.
    pub(super) fn instance(&mut self, opcode: u8) -> Step {
        let mut items = self.pop_mark()?;
        let callable = if opcode == OBJ {
            if items.is_empty() {
                return Err(PickleFault::StackUnderflow { offset: self.operation_at });
            }
            items.remove(0)
        } else {
            let (module, name) = (self.text_of("module")?, self.text_of("name")?);
            self.add(Node::Class { module, name })?
        };
        let arguments = self.add(Node::Tuple(items))?;
        self.push(Node::Object(Box::new(Object::call(callable, arguments))))
    }

    pub(super) fn build(&mut self) -> Step {
        let state = self.pop()?;
        let offset = self.operation_at;
        match self.top_node()? {
            Node::Object(object) if object.state.is_none() => object.state = Some(state),
            Node::Object(_) => {
                return Err(PickleFault::Operand { offset, expected: "one state", found: "a second one" });
            }
            other => return Err(operand(offset, "an object", other)),
        }
        Ok(())
    }

    pub(super) fn persistent(&mut self, opcode: u8) -> Step {
        let id = if opcode == BINPERSID {
            self.pop()?
        } else {
            let text = self.text_of("persistent id")?;
            self.add(Node::Str(text))?
        };
        self.push(Node::Persistent(id))
    }
}

fn operand(offset: usize, expected: &'static str, found: &Node) -> PickleFault {
    PickleFault::Operand { offset, expected, found: found.what() }
}
