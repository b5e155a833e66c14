//! Pickles: against Python's own, of every protocol, and against themselves.

use reshard_formats::pickle::{Node, Pickle, PickleBuilder, PickleFault, Value};
use reshard_layout::Kind;

use crate::support::{files_below, ground_truth, own, same_graph};

fn specimen(protocol: u32) -> Vec<u8> {
    std::fs::read(own(&format!("pickle/protocol_{protocol}.pkl"))).unwrap()
}

fn list<'a>(root: Value<'a>, key: &str) -> Vec<Value<'a>> {
    root.get(key).unwrap_or_else(|| panic!("no {key}")).items().unwrap_or_else(|| panic!("{key} is no list"))
}

#[test]
fn every_protocol_of_python_reads_alike() {
    for protocol in 0..=5 {
        let pickle = Pickle::read(&specimen(protocol)).unwrap_or_else(|fault| panic!("{protocol}: {fault}"));
        let root = pickle.root();
        assert!(root.get("none").unwrap().is_none());
        let truth: Vec<_> = list(root, "truth").into_iter().map(Value::as_bool).collect();
        assert_eq!(truth, [Some(true), Some(false)]);
        atoms_are_right(root);
        containers_are_right(root);
        graphs_are_right(root);
        assert_eq!(root.entries().unwrap().count(), 18);
    }
}

fn atoms_are_right(root: Value<'_>) {
    let integers: Vec<_> = list(root, "integers").into_iter().map(|value| value.as_i64().unwrap()).collect();
    let powers = [(1 << 31) - 1, -(1 << 31), 1 << 31, i64::MAX, i64::MIN];
    assert_eq!(integers[..7], [0, 1, -1, 255, 256, 65_535, 65_536]);
    assert_eq!(integers[7..], powers);

    let long = list(root, "long");
    let bytes = |index: usize| match long[index].node() {
        Node::BigInt(bytes) => bytes.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(bytes(0), [0, 0, 0, 0, 0, 0, 0, 0x80, 0]);
    assert_eq!(bytes(1), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff]);
    assert_eq!(bytes(2), [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    // 3^700 has 1110 bits; its lowest byte is 3^(700 mod 64) = 3^60 mod 256.
    assert_eq!((bytes(3).len(), bytes(3)[0]), (139, (3u64.pow(30) % 256 * (3u64.pow(30) % 256) % 256) as u8));

    let floats: Vec<u64> =
        list(root, "floats").into_iter().map(|value| value.as_f64().unwrap().to_bits()).collect();
    let expected = [0.0, -0.0, 1.5, 1e300, f64::INFINITY, f64::NEG_INFINITY];
    assert_eq!(floats[..6], expected.map(f64::to_bits));
    assert!(f64::from_bits(floats[6]).is_nan());

    let text: Vec<_> = list(root, "text").into_iter().map(|value| value.as_str().unwrap()).collect();
    assert_eq!(text, ["", "plain", "zwölf €uro \u{1f600}", "line\nfeed \\ 'quote'"]);
    let bytes: Vec<_> =
        list(root, "bytes").into_iter().map(|value| value.as_bytes().unwrap().to_vec()).collect();
    assert_eq!(bytes, [vec![], b"abc".to_vec(), (0..=255).collect()]);
}

fn containers_are_right(root: Value<'_>) {
    let array = root.get("array").unwrap();
    assert_eq!(array.made_by().map(|(_, name)| name), Some("bytearray"));
    let tuples: Vec<_> = list(root, "tuples").into_iter().map(|value| value.as_numbers().unwrap()).collect();
    assert_eq!(tuples, [vec![], vec![1], vec![1, 2], vec![1, 2, 3], vec![1, 2, 3, 4]]);
    let sets: Vec<_> = list(root, "sets")
        .into_iter()
        .map(|value| (value.as_numbers().unwrap(), matches!(value.node(), Node::Set(_, true))))
        .collect();
    assert_eq!(sets, [(vec![], false), (vec![1], false), (vec![], true), (vec![2], true)]);
    assert_eq!(root.get("class").unwrap().as_class(), Some(("collections", "OrderedDict")));
    let called = root.get("called").unwrap();
    assert_eq!(called.made_by(), Some(("fractions", "Fraction")));
}

fn graphs_are_right(root: Value<'_>) {
    let shared = list(root, "shared");
    assert_eq!(shared[0].id(), shared[1].id());
    let cyclic = root.get("cyclic").unwrap();
    assert_eq!(cyclic.items().unwrap()[1].id(), cyclic.id());
    let recursive = root.get("recursive").unwrap();
    let inner = recursive.items().unwrap()[0];
    assert_eq!(inner.items().unwrap()[0].id(), recursive.id());
    let ordered = root.get("ordered").unwrap();
    assert_eq!(ordered.get("b").unwrap().as_f64(), Some(2.5));
    assert_eq!(ordered.get("self").unwrap().id(), ordered.id());
}

#[test]
fn what_is_written_reads_as_the_same_graph() {
    for protocol in 0..=5 {
        let read = Pickle::read(&specimen(protocol)).unwrap();
        let bytes = read.write().unwrap_or_else(|fault| panic!("{protocol}: {fault}"));
        let again = Pickle::read(&bytes).unwrap();
        same_graph(&read, &again).unwrap_or_else(|difference| panic!("{protocol}: {difference}"));
        assert_eq!(again.write().unwrap(), bytes, "written twice, it has the same bytes");
    }
}

#[test]
fn every_pickle_of_deepspeed_is_written_back_as_the_same_graph() {
    let Some(folder) = ground_truth("deepspeed") else { return };
    let files = files_below(&folder, ".pt");
    assert!(files.len() > 300, "{} files", files.len());
    for file in files {
        let data = std::fs::read(&file).unwrap();
        let archive = rawzip::ZipArchive::from_slice(&data[..]).unwrap();
        let mut entries = archive.entries();
        let entry = loop {
            let entry = entries.next_entry().unwrap().expect("a pickle");
            if entry.file_path().as_bytes().ends_with(b"/data.pkl") {
                break archive.get_entry(entry.wayfinder()).unwrap();
            }
        };
        let read = Pickle::read(entry.data()).unwrap_or_else(|fault| panic!("{}: {fault}", file.display()));
        let again = Pickle::read(&read.write().unwrap()).unwrap();
        same_graph(&read, &again).unwrap_or_else(|difference| panic!("{}: {difference}", file.display()));
    }
}

#[test]
fn a_copy_keeps_what_is_shared_and_cyclic() {
    let read = Pickle::read(&specimen(4)).unwrap();
    let mut builder = PickleBuilder::new();
    let copy = builder.copy_from(read.root());
    same_graph(&read, &builder.finish(copy)).unwrap();
}

#[test]
fn a_copy_can_have_parts_replaced() {
    let read = Pickle::read(&specimen(4)).unwrap();
    let mut builder = PickleBuilder::new();
    let copy = builder.copy_replacing(read.root(), |builder, value| {
        (value.as_str() == Some("shared")).then(|| builder.str("replaced"))
    });
    let copied = builder.finish(copy);
    // The key "shared" is one text with the item of the list, if Python wrote it so: look from the list.
    let entry = copied.root().get("replaced").or(copied.root().get("shared")).unwrap();
    assert_eq!(entry.items().unwrap()[0].items().unwrap()[0].as_str(), Some("replaced"));
    assert_eq!(copied.root().get("text").unwrap().items().unwrap()[1].as_str(), Some("plain"));
}

#[test]
fn built_pickles_have_the_bytes_of_python() {
    let mut builder = PickleBuilder::new();
    let size = builder.size(&[3, 70_000]);
    let key = builder.str("k");
    let ordered = builder.ordered_dict([(key, size)]);
    let large = builder.uint(u64::MAX);
    let root = builder.tuple([ordered, ordered, large]);
    // pickle.dumps((d, d, 2**64 - 1), 2) with d = OrderedDict(k=torch.Size([3, 70000])).
    let expected = b"\x80\x02ccollections\nOrderedDict\nq\0)Rq\x01X\x01\0\0\0kq\x02ctorch\nSize\nq\x03K\x03J\x70\x11\x01\0\
                     \x86q\x04\x85q\x05Rq\x06sh\x01\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0\x87q\x07.";
    assert_eq!(builder.finish(root).write().unwrap(), expected);
}

#[test]
fn nothing_in_a_pickle_is_run() {
    // cos\nsystem\n(S'true'\ntR. : os.system('true')
    let pickle = Pickle::read(b"cos\nsystem\n(S'true'\ntR.").unwrap();
    assert_eq!(pickle.root().made_by(), Some(("os", "system")));
    assert_eq!(pickle.root().arguments()[0].as_str(), Some("true"));
    // (ios\nsystem\n and (cos\nsystem\no : the same for Python 2's classes.
    for bytes in [&b"(S'true'\nios\nsystem\n."[..], b"(cos\nsystem\nS'true'\no."] {
        assert_eq!(Pickle::read(bytes).unwrap().root().made_by(), Some(("os", "system")));
    }
}

#[test]
fn an_object_made_of_itself_is_refused_by_the_writer() {
    // A list, memo 0; what m.f gives for it, memo 1, appended to it; the second is the root.
    let read = Pickle::read(b"\x80\x02]q\x000cm\nf\nh\x00\x85Rq\x010h\x00h\x01a0h\x01.").unwrap();
    let fault = read.write().unwrap_err();
    assert!(matches!(&fault, PickleFault::MadeOfItself { what } if what == "an object of m.f"), "{fault}");
    assert_eq!(fault.kind(), Kind::Unsupported);
    // From the list on, it can be said.
    let read = Pickle::read(b"\x80\x02]q\x000cm\nf\nh\x00\x85Rq\x010h\x00h\x01a.").unwrap();
    same_graph(&read, &Pickle::read(&read.write().unwrap()).unwrap()).unwrap();
}

#[test]
fn each_fault_names_its_place() {
    let cases: [(&[u8], &str); 25] = [
        (b"", "the pickle ends inside the operation at byte 0"),
        (b"\x80", "the pickle ends inside the operation at byte 0"),
        (b"\x80\x06.", "pickle protocol 6 is not known"),
        (b"N", "the pickle ends inside the operation at byte 1"),
        (b".", "the operation at byte 0 of the pickle takes more objects than there are"),
        (b"NN.", "the pickle leaves 1 objects that belong to nothing"),
        (b"N(.", "the operation at byte 2 of the pickle takes more objects than there are"),
        (b"(N.", "the pickle leaves 1 objects that belong to nothing"),
        (b"N.N", "1 bytes follow the end of the pickle"),
        (b"\xff", "unknown operation 0xff at byte 0 of the pickle"),
        (b"\x82\x01.", "operation EXT at byte 0 of the pickle refers to what is not in it"),
        (b"\x97.", "operation NEXT_BUFFER at byte 0 of the pickle refers to what is not in it"),
        (b"h\x07.", "the operation at byte 0 of the pickle reads memo 7, into which nothing was put"),
        (b"q\x00.", "the operation at byte 0 of the pickle takes more objects than there are"),
        (b"K\x01N\x86e", "the operation at byte 4 of the pickle takes more objects than there are"),
        (b"NNa.", "the operation at byte 2 of the pickle takes a list, found None"),
        (b"]NNs.", "the operation at byte 3 of the pickle takes a dictionary, found a list"),
        (b"}(Nu.", "the operation at byte 3 of the pickle takes more objects than there are"),
        (b"](N\x90.", "the operation at byte 3 of the pickle takes a set, found a list"),
        (b"}Nb.", "the operation at byte 2 of the pickle takes an object, found a dictionary"),
        (b"cm\nf\nNR.", "the operation at byte 6 of the pickle takes a tuple of arguments, found None"),
        (b"NN\x93.", "the operation at byte 2 of the pickle takes a name, found None"),
        (b"I1x\n.", "the operation at byte 0 of the pickle holds no number"),
        (b"X\x01\0\0\0\xff.", "the operation at byte 0 of the pickle holds no text"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "the pickle ends inside the operation at byte 0"),
    ];
    for (bytes, expected) in cases {
        assert_eq!(Pickle::read(bytes).unwrap_err().to_string(), expected, "{bytes:?}");
    }
}
