//! The machine that reads a pickle: a stack, a memo, and an arena of nodes. It only collects; it never calls.
//!
//! ```text
//!   bytes   ]  q\x00  K\x01  a  h\x00  a  .          a list that holds 1 and itself
//!   stack   L  L      L 1    L  L L    L             memo 0 = L; nodes L = List[1, L]
//! ```
//!
//! One loop, no recursion. Every operation makes at most one node, so that a pickle costs memory in proportion to
//! its length; what copies (bytes and sets as protocol 2 spells them) is counted against a limit of its own.

use super::fault::PickleFault;
use super::memo::Memo;
use super::opcode::*;
use super::{Node, NodeId, Pickle};

/// Bytes that a pickle may have.
pub const PICKLE_BYTES_MAX: u64 = 256 << 20;
/// Nodes that it may have, and objects that may lie on its stack or in its memo.
pub const NODES_MAX: u64 = 1 << 24;
/// Marks that may be open at a time: how deep it may be nested.
pub const MARKS_MAX: u64 = 1 << 16;
/// The newest protocol.
pub(super) const PROTOCOL_MAX: u8 = 5;
/// Integers below this, and `None`, `False` and `True`, are one node each.
pub(super) const SMALL_MAX: usize = 256;

pub(super) type Step<T = ()> = Result<T, PickleFault>;

pub(super) fn read(bytes: &[u8]) -> Step<Pickle> {
    if bytes.len() as u64 > PICKLE_BYTES_MAX {
        return Err(PickleFault::Limit { what: "bytes", max: PICKLE_BYTES_MAX });
    }
    let mut machine = Machine {
        bytes,
        at: 0,
        operation_at: 0,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Memo::default(),
        small: vec![None; SMALL_MAX + 3],
        copies: 0,
    };
    let root = machine.run()?;
    if machine.at < bytes.len() {
        return Err(PickleFault::Trailing { bytes: bytes.len() - machine.at });
    }
    Ok(Pickle { nodes: machine.nodes, root })
}

pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    pub(super) operation_at: usize,
    pub(super) nodes: Vec<Node>,
    pub(super) stack: Vec<NodeId>,
    /// How high the stack was at each open mark.
    marks: Vec<usize>,
    memo: Memo,
    small: Vec<Option<NodeId>>,
    pub(super) copies: u64,
}

impl Machine<'_> {
    fn run(&mut self) -> Step<NodeId> {
        loop {
            self.operation_at = self.at;
            match self.byte()? {
                STOP => break,
                opcode => self.operation(opcode)?,
            }
        }
        let root = self.pop()?;
        match self.stack.len() + self.marks.len() {
            0 => Ok(root),
            objects => Err(PickleFault::Leftover { objects }),
        }
    }

    fn operation(&mut self, opcode: u8) -> Step {
        match opcode {
            PROTO => self.protocol(),
            FRAME => self.eight().map(|_| ()),
            MARK => self.mark(),
            POP => self.pop_or_unmark(),
            POP_MARK => self.pop_mark().map(|_| ()),
            DUP => self.top().and_then(|top| self.lay(top)),
            NONE | NEWTRUE | NEWFALSE => self.constant(opcode),
            INT | LONG | FLOAT => self.number_line(opcode),
            BININT | BININT1 | BININT2 | LONG1 | LONG4 | BINFLOAT => self.number(opcode),
            STRING | UNICODE => self.text_line(opcode),
            BINSTRING | SHORT_BINSTRING | BINUNICODE | SHORT_BINUNICODE | BINUNICODE8 => self.text(opcode),
            BINBYTES | SHORT_BINBYTES | BINBYTES8 => {
                self.counted(opcode).and_then(|bytes| self.push(Node::Bytes(bytes)))
            }
            BYTEARRAY8 => self.byte_array(),
            EMPTY_TUPLE | TUPLE | TUPLE1 | TUPLE2 | TUPLE3 => self.tuple(opcode),
            EMPTY_LIST => self.push(Node::List(Vec::new())),
            EMPTY_DICT => self.push(Node::Dict(Vec::new())),
            EMPTY_SET => self.push(Node::Set(Vec::new(), false)),
            LIST => self.pop_mark().and_then(|items| self.push(Node::List(items))),
            FROZENSET => self.pop_mark().and_then(|items| self.push(Node::Set(items, true))),
            DICT => self
                .pop_mark()
                .and_then(|items| self.pairs(&items))
                .and_then(|pairs| self.push(Node::Dict(pairs))),
            APPEND | APPENDS => self.append(opcode),
            SETITEM | SETITEMS => self.set_items(opcode),
            ADDITEMS => self.add_items(),
            GLOBAL | STACK_GLOBAL => self.class(opcode),
            REDUCE | NEWOBJ | NEWOBJ_EX => self.call(opcode),
            INST | OBJ => self.instance(opcode),
            BUILD => self.build(),
            PERSID | BINPERSID => self.persistent(opcode),
            GET | BINGET | LONG_BINGET => self.get(opcode),
            PUT | BINPUT | LONG_BINPUT | MEMOIZE => self.put(opcode),
            EXT1 | EXT2 | EXT4 => Err(self.out_of_band("EXT")),
            NEXT_BUFFER | READONLY_BUFFER => Err(self.out_of_band("NEXT_BUFFER")),
            _ => Err(PickleFault::UnknownOperation { opcode, offset: self.operation_at }),
        }
    }

    // Bytes of the pickle.

    pub(super) fn take(&mut self, count: u64) -> Step<&[u8]> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(count).ok().and_then(|count| rest.get(..count)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(PickleFault::Truncated { offset: self.operation_at }),
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub(super) fn byte(&mut self) -> Step<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn four(&mut self) -> Step<u64> {
        self.array().map(u32::from_le_bytes).map(u64::from)
    }

    pub(super) fn eight(&mut self) -> Step<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes up to the next line feed, which is taken too.
    pub(super) fn line(&mut self) -> Step<&[u8]> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\n');
        let length = length.ok_or(PickleFault::Truncated { offset: self.operation_at })?;
        self.at += length + 1;
        Ok(&rest[..length])
    }

    pub(super) fn text_of(&mut self, what: &'static str) -> Step<String> {
        let literal = self.literal(what);
        String::from_utf8(self.line()?.to_vec()).map_err(|_| literal)
    }

    /// Bytes behind their own count.
    pub(super) fn counted(&mut self, opcode: u8) -> Step<Vec<u8>> {
        let count = match opcode {
            SHORT_BINSTRING | SHORT_BINUNICODE | SHORT_BINBYTES | LONG1 => u64::from(self.byte()?),
            BINUNICODE8 | BINBYTES8 | BYTEARRAY8 => self.eight()?,
            _ => self.four()?,
        };
        Ok(self.take(count)?.to_vec())
    }

    // The stack.

    pub(super) fn push(&mut self, node: Node) -> Step {
        let id = self.add(node)?;
        self.lay(id)
    }

    /// Lays an object that is there already on the stack.
    fn lay(&mut self, id: NodeId) -> Step {
        if self.stack.len() as u64 >= NODES_MAX {
            return Err(PickleFault::Limit { what: "objects on the stack", max: NODES_MAX });
        }
        self.stack.push(id);
        Ok(())
    }

    pub(super) fn add(&mut self, node: Node) -> Step<NodeId> {
        if self.nodes.len() as u64 >= NODES_MAX {
            return Err(PickleFault::Limit { what: "objects", max: NODES_MAX });
        }
        self.nodes.push(node);
        Ok(NodeId((self.nodes.len() - 1) as u32))
    }

    /// Pushes the only node of its kind.
    pub(super) fn push_small(&mut self, slot: usize, node: Node) -> Step {
        let id = match self.small[slot] {
            Some(id) => id,
            None => self.add(node)?,
        };
        self.small[slot] = Some(id);
        self.lay(id)
    }

    /// How far down the stack may be taken from.
    pub(super) fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    pub(super) fn top(&self) -> Step<NodeId> {
        match self.stack.last() {
            Some(top) if self.stack.len() > self.floor() => Ok(*top),
            _ => Err(PickleFault::StackUnderflow { offset: self.operation_at }),
        }
    }

    pub(super) fn pop(&mut self) -> Step<NodeId> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn mark(&mut self) -> Step {
        if self.marks.len() as u64 >= MARKS_MAX {
            return Err(PickleFault::Limit { what: "open marks", max: MARKS_MAX });
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    pub(super) fn pop_mark(&mut self) -> Step<Vec<NodeId>> {
        let mark = self.marks.pop().ok_or(PickleFault::StackUnderflow { offset: self.operation_at })?;
        Ok(self.stack.split_off(mark))
    }

    /// `POP` takes an open mark where it meets one.
    fn pop_or_unmark(&mut self) -> Step {
        if self.stack.len() == self.floor() && self.marks.pop().is_some() {
            return Ok(());
        }
        self.pop().map(|_| ())
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    pub(super) fn top_node(&mut self) -> Step<&mut Node> {
        let top = self.top()?;
        Ok(&mut self.nodes[top.0 as usize])
    }

    // The memo.

    fn key(&mut self, opcode: u8) -> Step<u64> {
        match opcode {
            BINGET | BINPUT => Ok(u64::from(self.byte()?)),
            LONG_BINGET | LONG_BINPUT => self.four(),
            MEMOIZE => Ok(self.memo.len()),
            _ => {
                let literal = self.literal("place of the memo");
                self.text_of("place of the memo")?.parse().map_err(|_| literal)
            }
        }
    }

    fn get(&mut self, opcode: u8) -> Step {
        let key = self.key(opcode)?;
        let known = self.memo.get(key);
        self.lay(known.ok_or(PickleFault::NotMemoized { offset: self.operation_at, key })?)
    }

    fn put(&mut self, opcode: u8) -> Step {
        let key = self.key(opcode)?;
        let top = self.top()?;
        self.memo.put(key, top)
    }

    // Faults.

    pub(super) fn literal(&self, what: &'static str) -> PickleFault {
        PickleFault::Literal { offset: self.operation_at, what }
    }

    pub(super) fn out_of_band(&self, operation: &'static str) -> PickleFault {
        PickleFault::OutOfBand { operation, offset: self.operation_at }
    }
}
