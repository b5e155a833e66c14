//! Writing a pickle: the graph in depth-first order, each object once, later mentions by the memo.
//!
//! ```text
//!   L = [(L,)]        ]  q\x00  h\x00  \x85  q\x01  a  .
//!                     L  put    get L  (L,)  put    append
//! ```
//!
//! Protocol 2, which is what `torch.save` writes and `torch.load(weights_only=True)` reads. Only an object made
//! with keyword arguments needs protocol 4. No recursion: what is still to be done lies on a list.

use super::fault::PickleFault;
use super::opcode::*;
use super::read::{MARKS_MAX, PICKLE_BYTES_MAX};
use super::{Node, NodeId, Object, Pickle};

type Step = Result<(), PickleFault>;

pub(super) fn write(pickle: &Pickle) -> Result<Vec<u8>, PickleFault> {
    let needs_newer = |node: &Node| matches!(node, Node::Object(object) if object.keywords.is_some());
    let protocol = if pickle.nodes.iter().any(needs_newer) { 4 } else { 2 };
    let mut writer = Writer {
        pickle,
        bytes: vec![PROTO, protocol],
        memo: vec![None; pickle.nodes.len()],
        memoized: 0,
        is_being_made: vec![false; pickle.nodes.len()],
        tasks: vec![Task::Save(pickle.root)],
        marks: 0,
    };
    while let Some(task) = writer.tasks.pop() {
        writer.carry_out(task)?;
        if writer.bytes.len() as u64 > PICKLE_BYTES_MAX {
            return Err(PickleFault::Limit { what: "bytes", max: PICKLE_BYTES_MAX });
        }
    }
    writer.bytes.push(STOP);
    Ok(writer.bytes)
}

/// What is still to be done, the next one last.
enum Task {
    /// Put an object on the stack.
    Save(NodeId),
    /// Carry out an operation.
    Operation(u8),
    /// What was on the stack has become this object: remember it.
    Made(NodeId),
    /// The items of this tuple are on the stack.
    Tuple(NodeId),
}

struct Writer<'a> {
    pickle: &'a Pickle,
    bytes: Vec<u8>,
    memo: Vec<Option<u32>>,
    memoized: u32,
    /// What cannot be named yet, as it is being made.
    is_being_made: Vec<bool>,
    tasks: Vec<Task>,
    /// How many marks are open.
    marks: u64,
}

impl Writer<'_> {
    fn carry_out(&mut self, task: Task) -> Step {
        match task {
            Task::Save(id) => return self.save(id),
            Task::Operation(opcode) => return self.operation(opcode),
            Task::Made(id) => self.put(id),
            Task::Tuple(id) => return self.finish_tuple(id),
        }
        Ok(())
    }

    fn operation(&mut self, opcode: u8) -> Step {
        self.bytes.push(opcode);
        match opcode {
            MARK if self.marks == MARKS_MAX => {
                return Err(PickleFault::Limit { what: "open marks", max: MARKS_MAX });
            }
            MARK => self.marks += 1,
            APPENDS | SETITEMS | TUPLE | POP_MARK => self.marks -= 1,
            _ => {}
        }
        Ok(())
    }

    fn put(&mut self, id: NodeId) {
        let key = self.memoized;
        self.memoized += 1;
        self.memo[id.0 as usize] = Some(key);
        self.is_being_made[id.0 as usize] = false;
        self.place(BINPUT, LONG_BINPUT, key);
    }

    fn place(&mut self, short: u8, long: u8, key: u32) {
        match u8::try_from(key) {
            Ok(key) => self.bytes.extend([short, key]),
            Err(_) => {
                self.bytes.push(long);
                self.bytes.extend(key.to_le_bytes());
            }
        }
    }

    fn save(&mut self, id: NodeId) -> Step {
        if let Some(key) = self.memo[id.0 as usize] {
            self.place(BINGET, LONG_BINGET, key);
            return Ok(());
        }
        let pickle = self.pickle;
        match pickle.node(id) {
            Node::None => self.bytes.push(NONE),
            Node::Bool(value) => self.bytes.push(if *value { NEWTRUE } else { NEWFALSE }),
            Node::Int(value) => self.integer(*value),
            Node::BigInt(bytes) => self.long(bytes),
            Node::Float(value) => {
                self.bytes.push(BINFLOAT);
                self.bytes.extend(value.to_be_bytes());
            }
            Node::Str(text) => {
                self.text(text);
                self.put(id);
            }
            Node::Bytes(bytes) => {
                self.latin(bytes);
                self.put(id);
            }
            Node::Class { module, name } => {
                self.class(module, name);
                self.put(id);
            }
            Node::List(items) => {
                self.bytes.push(EMPTY_LIST);
                self.put(id);
                self.then_many(items);
            }
            Node::Dict(entries) => {
                self.bytes.push(EMPTY_DICT);
                self.put(id);
                self.then_pairs(entries);
            }
            Node::Tuple(items) => self.tuple(id, items),
            Node::Set(items, is_frozen) => return self.set(id, items, *is_frozen),
            Node::Persistent(of) => {
                self.begin(id)?;
                self.tasks.extend([Task::Made(id), Task::Operation(BINPERSID), Task::Save(*of)]);
            }
            Node::Object(object) => return self.object(id, object),
        }
        Ok(())
    }

    /// Marks an object as being made: met again before it is there, it is made of itself.
    fn begin(&mut self, id: NodeId) -> Step {
        if std::mem::replace(&mut self.is_being_made[id.0 as usize], true) {
            return Err(PickleFault::MadeOfItself { what: self.describe(id) });
        }
        Ok(())
    }

    fn describe(&self, id: NodeId) -> String {
        let node = self.pickle.node(id);
        if let Node::Object(object) = node
            && let Node::Class { module, name } = self.pickle.node(object.callable)
        {
            return format!("an object of {module}.{name}");
        }
        node.what().to_owned()
    }

    fn integer(&mut self, value: i64) {
        if let Ok(value) = u8::try_from(value) {
            self.bytes.extend([BININT1, value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.bytes.push(BININT2);
            self.bytes.extend(value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.bytes.push(BININT);
            self.bytes.extend(value.to_le_bytes());
        } else {
            let mut bytes = value.to_le_bytes().to_vec();
            super::text::shorten(&mut bytes);
            self.long(&bytes);
        }
    }

    fn long(&mut self, bytes: &[u8]) {
        match u8::try_from(bytes.len()) {
            Ok(length) => self.bytes.extend([LONG1, length]),
            Err(_) => {
                self.bytes.push(LONG4);
                self.length(bytes.len());
            }
        }
        self.bytes.extend(bytes);
    }

    /// A length in four bytes; one that has no room there is far over the limit of the whole.
    fn length(&mut self, length: usize) {
        self.bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.bytes.push(BINUNICODE);
        self.length(text.len());
        self.bytes.extend(text.as_bytes());
    }

    /// Bytes, as protocol 2 spells them.
    fn latin(&mut self, bytes: &[u8]) {
        self.class("_codecs", "encode");
        self.text(&bytes.iter().copied().map(char::from).collect::<String>());
        self.text("latin1");
        self.bytes.extend([TUPLE2, REDUCE]);
    }

    fn class(&mut self, module: &str, name: &str) {
        self.bytes.push(GLOBAL);
        self.bytes.extend(module.as_bytes());
        self.bytes.push(b'\n');
        self.bytes.extend(name.as_bytes());
        self.bytes.push(b'\n');
    }

    /// Adds items to what lies on the stack, then.
    fn then_many(&mut self, items: &[NodeId]) {
        match items {
            [] => {}
            [item] => self.tasks.extend([Task::Operation(APPEND), Task::Save(*item)]),
            _ => {
                self.tasks.push(Task::Operation(APPENDS));
                self.tasks.extend(items.iter().rev().copied().map(Task::Save));
                self.tasks.push(Task::Operation(MARK));
            }
        }
    }

    /// Adds pairs to what lies on the stack, then.
    fn then_pairs(&mut self, pairs: &[(NodeId, NodeId)]) {
        match pairs {
            [] => {}
            [(key, value)] => {
                self.tasks.extend([Task::Operation(SETITEM), Task::Save(*value), Task::Save(*key)]);
            }
            _ => {
                self.tasks.push(Task::Operation(SETITEMS));
                let pairs = pairs.iter().rev();
                self.tasks.extend(pairs.flat_map(|(key, value)| [Task::Save(*value), Task::Save(*key)]));
                self.tasks.push(Task::Operation(MARK));
            }
        }
    }

    fn tuple(&mut self, id: NodeId, items: &[NodeId]) {
        if items.is_empty() {
            self.bytes.push(EMPTY_TUPLE);
            return;
        }
        self.tasks.push(Task::Tuple(id));
        self.tasks.extend(items.iter().rev().copied().map(Task::Save));
        if items.len() > 3 {
            self.tasks.push(Task::Operation(MARK));
        }
    }

    /// A tuple that holds itself, through something that could be named, was made while its items were: the items
    /// are dropped and the one that is there is taken.
    fn finish_tuple(&mut self, id: NodeId) -> Step {
        let Node::Tuple(items) = self.pickle.node(id) else { return Ok(()) };
        let count = items.len();
        if let Some(key) = self.memo[id.0 as usize] {
            if count > 3 {
                self.operation(POP_MARK)?;
            } else {
                self.bytes.extend(std::iter::repeat_n(POP, count));
            }
            self.place(BINGET, LONG_BINGET, key);
        } else {
            self.operation([TUPLE1, TUPLE2, TUPLE3].get(count - 1).copied().unwrap_or(TUPLE))?;
            self.put(id);
        }
        Ok(())
    }

    /// A set, as protocol 2 spells it.
    fn set(&mut self, id: NodeId, items: &[NodeId], is_frozen: bool) -> Step {
        self.begin(id)?;
        self.class("builtins", if is_frozen { "frozenset" } else { "set" });
        self.bytes.push(EMPTY_LIST);
        self.tasks.extend([Task::Made(id), Task::Operation(REDUCE), Task::Operation(TUPLE1)]);
        self.then_many(items);
        Ok(())
    }

    fn object(&mut self, id: NodeId, object: &Object) -> Step {
        self.begin(id)?;
        if let Some(state) = object.state {
            self.tasks.extend([Task::Operation(BUILD), Task::Save(state)]);
        }
        self.then_pairs(&object.items);
        self.then_many(&object.elements);
        let operation = match (object.keywords, object.is_new) {
            (Some(_), _) => NEWOBJ_EX,
            (None, true) => NEWOBJ,
            (None, false) => REDUCE,
        };
        self.tasks.extend([Task::Made(id), Task::Operation(operation)]);
        self.tasks.extend(object.keywords.map(Task::Save));
        self.tasks.extend([Task::Save(object.arguments), Task::Save(object.callable)]);
        Ok(())
    }
}
