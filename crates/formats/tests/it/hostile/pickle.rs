//! Pickles that were damaged or made to do harm.

use reshard_formats::pickle::{MARKS_MAX, NODES_MAX, Node, Pickle, PickleFault};
use reshard_layout::Kind;

use crate::support::{is_sound_or_refused, own, reachable, same_graph};

fn specimens() -> impl Iterator<Item = Vec<u8>> {
    (0..=5).map(|protocol| std::fs::read(own(&format!("pickle/protocol_{protocol}.pkl"))).unwrap())
}

#[test]
fn cut_anywhere_is_refused() {
    for bytes in specimens() {
        for length in 0..bytes.len() {
            assert!(Pickle::read(&bytes[..length]).is_err(), "cut to {length} of {}", bytes.len());
        }
    }
}

#[test]
fn any_flipped_bit_is_refused_or_another_sound_pickle() {
    for mut bytes in specimens() {
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            is_sound_or_refused(&bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn absurd_lengths_are_the_end_of_the_pickle() {
    let cases: [&[u8]; 9] = [
        b"T\xff\xff\xff\x7fabc.",
        b"T\xff\xff\xff\xffabc.",
        b"X\xff\xff\xff\xffabc.",
        b"B\xff\xff\xff\xffabc.",
        b"\x8b\xff\xff\xff\x7f\x01.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x8a\xffabc.",
    ];
    for bytes in cases {
        assert_eq!(Pickle::read(bytes).unwrap_err(), PickleFault::Truncated { offset: 0 }, "{bytes:?}");
    }
}

#[test]
fn ids_of_the_memo_may_be_any_number() {
    // Binary, in text beyond 32 bits, and counted.
    let pickle = Pickle::read(b"]r\xff\xff\xff\xff(j\xff\xff\xff\xffe.").unwrap();
    assert_eq!(pickle.root().items().unwrap()[0].id(), pickle.root().id());
    assert!(Pickle::read(b"]p18446744073709551615\ng18446744073709551615\na.").is_ok());
    let fault = Pickle::read(b"]p18446744073709551616\n.").unwrap_err();
    assert_eq!(fault, PickleFault::Literal { offset: 1, what: "place of the memo" });
    assert!(Pickle::read(b"]p-1\n.").is_err());
    // A hundred thousand places for one object are as many entries and no more.
    let mut many = b"]".to_vec();
    for key in 0..100_000u32 {
        many.push(b'r');
        many.extend((u32::MAX - key).to_le_bytes());
    }
    many.push(b'.');
    assert_eq!(reachable(&Pickle::read(&many).unwrap()).len(), 1);
}

#[test]
fn stack_and_memo_are_bounded() {
    // One object, copied onto the stack or put aside once more than there may be.
    for (operation, what) in [(b'2', "objects on the stack"), (0x94, "objects in the memo")] {
        let mut bytes = vec![b'N'];
        bytes.resize(usize::try_from(NODES_MAX).unwrap() + 2, operation);
        let fault = Pickle::read(&bytes).unwrap_err();
        assert_eq!(fault, PickleFault::Limit { what, max: NODES_MAX });
        assert_eq!(fault.kind(), Kind::OverBudget);
    }
}

/// Each list holds the one before it ten times: 10^60 of the innermost, if they were copied.
#[test]
fn shared_objects_are_never_copied() {
    // All lie on the stack behind a mark, and are dropped with it; the last one is fetched again.
    let mut bytes = b"\x80\x02(]q\x00".to_vec();
    for level in 1..=60u8 {
        bytes.push(b'(');
        bytes.extend([b'h', level - 1].repeat(10));
        bytes.extend([b'l', b'q', level]);
    }
    bytes.extend([b'1', b'h', 60, b'.']);
    let read = Pickle::read(&bytes).unwrap();
    assert_eq!(reachable(&read).len(), 61);
    let written = read.write().unwrap();
    assert!(written.len() < 61 * 32, "{} bytes", written.len());
    same_graph(&read, &Pickle::read(&written).unwrap()).unwrap();
}

#[test]
fn what_old_protocols_copy_is_counted() {
    // One list of 100,000 numbers, and a thousand sets of it.
    let mut bytes = b"(c__builtin__\nset\nq\x00(".to_vec();
    bytes.extend(b"K\x01".repeat(100_000));
    bytes.extend(b"lq\x01");
    bytes.extend(b"h\x00h\x01\x85R".repeat(1000));
    bytes.extend(b"l.");
    let fault = Pickle::read(&bytes).unwrap_err();
    assert!(matches!(fault, PickleFault::Limit { what: "copied bytes", .. }), "{fault}");
    assert_eq!(fault.kind(), Kind::OverBudget);
    // One name of a million bytes, and a thousand classes of it.
    let mut bytes = b"(X\x40\x42\x0f\x00".to_vec();
    bytes.extend(b"x".repeat(1_000_000));
    bytes.extend(b"q\x00");
    bytes.extend(b"h\x00h\x00\x93".repeat(1000));
    bytes.extend(b"l.");
    assert_eq!(Pickle::read(&bytes).unwrap_err().kind(), Kind::OverBudget);
}

#[test]
fn depth_costs_no_stack() {
    // A million lists in one another, without a mark.
    let mut bytes = vec![b']'; 1_000_000];
    bytes.extend(vec![b'a'; 999_999]);
    bytes.push(b'.');
    let read = Pickle::read(&bytes).unwrap();
    let again = Pickle::read(&read.write().unwrap()).unwrap();
    same_graph(&read, &again).unwrap();
    assert_eq!(reachable(&again).len(), 1_000_000);
    // A million tuples of one.
    let mut bytes = vec![b'N'];
    bytes.extend(vec![0x85; 1_000_000]);
    bytes.push(b'.');
    let read = Pickle::read(&bytes).unwrap();
    same_graph(&read, &Pickle::read(&read.write().unwrap()).unwrap()).unwrap();
    // A million marks.
    let fault = Pickle::read(&vec![b'('; 1_000_000]).unwrap_err();
    assert_eq!(fault, PickleFault::Limit { what: "open marks", max: MARKS_MAX });
}

/// A tuple of n lists, each of which holds the tuple: as Python writes it, every list would repeat the tuple.
#[test]
fn tuples_that_hold_themselves_are_written_within_the_limit() {
    let mut bytes = b"\x80\x02(".to_vec();
    for key in 0..200u32 {
        bytes.extend(b"]r");
        bytes.extend(key.to_le_bytes());
    }
    bytes.extend(b"tr");
    bytes.extend(1000u32.to_le_bytes());
    for key in 0..200u32 {
        bytes.push(b'j');
        bytes.extend(key.to_le_bytes());
        bytes.extend(b"j\xe8\x03\0\0a0");
    }
    bytes.push(b'.');
    let read = Pickle::read(&bytes).unwrap();
    assert!(matches!(read.root().node(), Node::Tuple(items) if items.len() == 200));
    same_graph(&read, &Pickle::read(&read.write().unwrap()).unwrap()).unwrap();
}

#[test]
fn operations_that_would_run_code_only_describe_it() {
    let cases: [&[u8]; 6] = [
        b"cos\nsystem\n(S'touch /tmp/x'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"cbuiltins\neval\n(V__import__('os').system('true')\ntR.",
        b"c__builtin__\nexec\n(Vx\ntR}(Vy\nNub.",
        b"\x80\x02cos\nsystem\n)\x81}b.",
        b"\x80\x04cos\nsystem\n)}\x92.",
    ];
    for bytes in cases {
        let pickle = Pickle::read(bytes).unwrap();
        let (module, _) = pickle.root().made_by().unwrap();
        assert!(["os", "builtins", "__builtin__"].contains(&module));
        assert!(matches!(pickle.root().node(), Node::Object(_)));
    }
}
