//! The operations of the machine that make numbers, text and bytes.

use super::Node;
use super::Object;
use super::fault::PickleFault;
use super::opcode::*;
use super::read::{Machine, PROTOCOL_MAX, SMALL_MAX, Step};
use super::text;

impl Machine<'_> {
    // Atoms.

    pub(super) fn protocol(&mut self) -> Step {
        match self.byte()? {
            0..=PROTOCOL_MAX => Ok(()),
            protocol => Err(PickleFault::Protocol { protocol }),
        }
    }

    pub(super) fn constant(&mut self, opcode: u8) -> Step {
        match opcode {
            NEWFALSE => self.push_small(SMALL_MAX, Node::Bool(false)),
            NEWTRUE => self.push_small(SMALL_MAX + 1, Node::Bool(true)),
            _ => self.push_small(SMALL_MAX + 2, Node::None),
        }
    }

    pub(super) fn integer(&mut self, value: i64) -> Step {
        match usize::try_from(value) {
            Ok(slot) if slot < SMALL_MAX => self.push_small(slot, Node::Int(value)),
            _ => self.push(Node::Int(value)),
        }
    }

    /// An integer in little-endian two's complement.
    pub(super) fn long(&mut self, mut bytes: Vec<u8>) -> Step {
        text::shorten(&mut bytes);
        if bytes.len() > 8 {
            return self.push(Node::BigInt(bytes));
        }
        let sign = if bytes.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 };
        bytes.resize(8, sign);
        let mut array = [0; 8];
        array.copy_from_slice(&bytes);
        self.integer(i64::from_le_bytes(array))
    }

    pub(super) fn number(&mut self, opcode: u8) -> Step {
        match opcode {
            BININT => {
                let value = self.array().map(i32::from_le_bytes)?;
                self.integer(i64::from(value))
            }
            BININT1 => self.byte().and_then(|value| self.integer(i64::from(value))),
            BININT2 => {
                let value = self.array().map(u16::from_le_bytes)?;
                self.integer(i64::from(value))
            }
            BINFLOAT => {
                let value = self.array().map(f64::from_be_bytes)?;
                self.push(Node::Float(value))
            }
            _ => self.counted(opcode).and_then(|bytes| self.long(bytes)),
        }
    }

    pub(super) fn number_line(&mut self, opcode: u8) -> Step {
        let literal = self.literal("number");
        let line = self.text_of("number")?;
        match (opcode, line.as_str()) {
            (INT, "00") => self.constant(NEWFALSE),
            (INT, "01") => self.constant(NEWTRUE),
            (FLOAT, line) => self.push(Node::Float(line.parse().map_err(|_| literal)?)),
            (_, line) => self.long(text::decimal(line.strip_suffix('L').unwrap_or(line)).ok_or(literal)?),
        }
    }

    pub(super) fn text(&mut self, opcode: u8) -> Step {
        let literal = self.literal("text");
        let text = String::from_utf8(self.counted(opcode)?).map_err(|_| literal)?;
        self.push(Node::Str(text))
    }

    pub(super) fn text_line(&mut self, opcode: u8) -> Step {
        let literal = self.literal("text");
        let line = self.line()?;
        let text = match opcode {
            STRING => text::quoted(line).and_then(|bytes| String::from_utf8(bytes).ok()),
            _ => text::raw_unicode(line),
        };
        self.push(Node::Str(text.ok_or(literal)?))
    }

    /// A mutable array of bytes is a call, as protocols before 5 spell it.
    pub(super) fn byte_array(&mut self) -> Step {
        let bytes = self.counted(BYTEARRAY8)?;
        let bytes = self.add(Node::Bytes(bytes))?;
        let callable = self.add(Node::Class { module: "builtins".into(), name: "bytearray".into() })?;
        let arguments = self.add(Node::Tuple(vec![bytes]))?;
        self.push(Node::Object(Box::new(Object::call(callable, arguments))))
    }
}
