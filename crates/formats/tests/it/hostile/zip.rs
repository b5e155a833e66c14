//! Zip archives that lie, made entry by entry.

use reshard_formats::FormatError;
use reshard_formats::pickle::PickleBuilder;
use reshard_layout::Kind;

use crate::torch::Opened;

/// What the two headers of an entry say.
#[derive(Clone)]
struct Entry {
    name: &'static str,
    name_in_front: &'static str,
    data: Vec<u8>,
    method: u16,
    flags: u16,
    length_in_front: u32,
    length: u32,
    length_unpacked: u32,
    crc32: u32,
    /// Where the directory says that it lies, if not where it does.
    offset: Option<u32>,
}

impl Entry {
    fn new(name: &'static str, data: &[u8]) -> Self {
        let length = u32::try_from(data.len()).unwrap();
        Self {
            name,
            name_in_front: name,
            data: data.to_vec(),
            method: 0,
            flags: 0,
            length_in_front: length,
            length,
            length_unpacked: length,
            crc32: crc32fast::hash(data),
            offset: None,
        }
    }
}

fn none() -> Vec<u8> {
    let mut builder = PickleBuilder::new();
    let root = builder.none();
    builder.finish(root).write().unwrap()
}

/// A file that opens.
fn sound() -> Vec<Entry> {
    vec![
        Entry::new("x/data.pkl", &none()),
        Entry::new("x/byteorder", b"little"),
        Entry::new("x/data/0", b"01234567"),
    ]
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let begin = u32::try_from(bytes.len()).unwrap();
        bytes.extend(0x0403_4b50u32.to_le_bytes());
        bytes.extend([20, entry.flags, entry.method, 0, 0].map(u16::to_le_bytes).concat());
        bytes.extend(
            [entry.crc32, entry.length_in_front, entry.length_in_front].map(u32::to_le_bytes).concat(),
        );
        bytes.extend([u16::try_from(entry.name_in_front.len()).unwrap(), 0].map(u16::to_le_bytes).concat());
        bytes.extend(entry.name_in_front.as_bytes());
        bytes.extend(&entry.data);
        directory.extend(0x0201_4b50u32.to_le_bytes());
        directory.extend([20, 20, entry.flags, entry.method, 0, 0].map(u16::to_le_bytes).concat());
        directory.extend([entry.crc32, entry.length, entry.length_unpacked].map(u32::to_le_bytes).concat());
        directory
            .extend([u16::try_from(entry.name.len()).unwrap(), 0, 0, 0, 0].map(u16::to_le_bytes).concat());
        directory.extend([0, entry.offset.unwrap_or(begin)].map(u32::to_le_bytes).concat());
        directory.extend(entry.name.as_bytes());
    }
    let (begin, length) = (u32::try_from(bytes.len()).unwrap(), u32::try_from(directory.len()).unwrap());
    let count = u16::try_from(entries.len()).unwrap();
    bytes.extend(directory);
    bytes.extend(0x0605_4b50u32.to_le_bytes());
    bytes.extend([0, 0, count, count].map(u16::to_le_bytes).concat());
    bytes.extend([length, begin].map(u32::to_le_bytes).concat());
    bytes.extend([0, 0]);
    bytes
}

fn open(bytes: &[u8]) -> Result<(), FormatError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.pt");
    std::fs::write(&path, bytes).unwrap();
    Opened::new(&path).map(|_| ())
}

/// The message, without the path, and the kind.
fn refusal(bytes: &[u8]) -> (String, Kind) {
    let error = open(bytes).unwrap_err();
    let text = error.to_string();
    let (_, reason) = text.split_once("hostile.pt: ").expect("the error names the file");
    (reason.to_owned(), error.kind().unwrap())
}

fn refusal_of(change: impl Fn(&mut Vec<Entry>)) -> (String, Kind) {
    let mut entries = sound();
    change(&mut entries);
    refusal(&archive(&entries))
}

fn invalid(reason: &str) -> (String, Kind) {
    (reason.to_owned(), Kind::Invalid)
}

#[test]
fn the_archive_before_it_is_changed_opens() {
    open(&archive(&sound())).unwrap();
}

#[test]
fn packed_entries_are_refused_before_they_are_unpacked() {
    let (reason, kind) = refusal_of(|entries| entries[2].method = 8);
    assert_eq!(reason, "zip entry \"x/data/0\" is compressed; torch stores entries as they are");
    assert_eq!(kind, Kind::Unsupported);
    // Four gigabytes in eight bytes.
    let bomb = refusal_of(|entries| {
        entries[2].method = 8;
        entries[2].length_unpacked = u32::MAX - 1;
    });
    assert_eq!(bomb.1, Kind::Unsupported);
    let (reason, _) = refusal_of(|entries| entries[2].flags = 1);
    assert_eq!(reason, "zip entry \"x/data/0\" is encrypted; torch stores entries as they are");
}

#[test]
fn lying_lengths_are_refused() {
    let twice = refusal_of(|entries| entries[2].length_unpacked = 4_000_000_000);
    assert_eq!(twice, invalid("zip entry \"x/data/0\" is stored as it is, but with two lengths"));
    let front = refusal_of(|entries| entries[2].length_in_front = 7);
    assert_eq!(front, invalid("zip entry \"x/data/0\" has another length in its own header"));
    let long = refusal_of(|entries| {
        entries[2].length_in_front = 4_000_000_000;
        entries[2].length = 4_000_000_000;
        entries[2].length_unpacked = 4_000_000_000;
    });
    assert_eq!(long, invalid("zip entry \"x/data/0\" ends beyond the entries of the archive"));
    // Into the directory by one byte.
    let long = refusal_of(|entries| {
        entries[2].length_in_front = 9;
        entries[2].length = 9;
        entries[2].length_unpacked = 9;
    });
    assert_eq!(long, invalid("zip entry \"x/data/0\" ends beyond the entries of the archive"));
}

#[test]
fn overlapping_entries_are_refused() {
    let overlap = refusal_of(|entries| {
        // The second one takes in the third.
        let length = u32::try_from(entries[1].data.len() + 30 + "x/data/0".len() + 4).unwrap();
        entries[1].length_in_front = length;
        entries[1].length = length;
        entries[1].length_unpacked = length;
    });
    assert_eq!(overlap, invalid("zip entry \"x/data/0\" shares bytes with the one before it"));
    let same = refusal_of(|entries| {
        let mut again = entries[0].clone();
        again.offset = Some(0);
        entries.push(again);
    });
    assert_eq!(same, invalid("zip entry \"x/data.pkl\" shares bytes with the one before it"));
}

#[test]
fn names_are_plain_and_there_once() {
    for name in
        ["x/../data.pkl", "/x/data.pkl", "x//data.pkl", "x/./a", "x\\data.pkl", "x/a\0", "..", "", "x/"]
    {
        let (reason, kind) = refusal_of(|entries| {
            entries[2].name = name;
            entries[2].name_in_front = name;
        });
        assert_eq!(reason, format!("zip entry {name:?} has a name that is no plain path"));
        assert_eq!(kind, Kind::Invalid);
    }
    let twice = refusal_of(|entries| entries.push(Entry::new("x/data/0", b"")));
    assert_eq!(twice, invalid("zip entry \"x/data/0\" is there twice"));
    let other = refusal_of(|entries| entries[2].name_in_front = "x/data/1");
    assert_eq!(other, invalid("zip entry \"x/data/0\" has another name in its own header"));
}

#[test]
fn other_archives_are_not_torchs() {
    let expected = invalid("a zip archive, but without `data.pkl` in one folder");
    assert_eq!(refusal_of(|entries| drop(entries.remove(0))), expected);
    assert_eq!(refusal_of(|entries| entries.push(Entry::new("y/data/1", b""))), expected);
    assert_eq!(refusal_of(|entries| entries.push(Entry::new("readme", b""))), expected);
    assert_eq!(refusal(&archive(&[])), expected);
    assert_eq!(refusal(b"").1, Kind::Invalid);
    assert_eq!(refusal(&[0; 4096]).1, Kind::Invalid);
}

#[test]
fn damaged_entries_are_refused() {
    let damaged = refusal_of(|entries| entries[0].data[0] ^= 1);
    assert_eq!(damaged, invalid("zip entry \"x/data.pkl\" is damaged: its checksum is another one"));
    let order = refusal_of(|entries| entries[1] = Entry::new("x/byteorder", b"middle"));
    assert_eq!(order, ("byte order \"middle\"; only little is read".to_owned(), Kind::Unsupported));
    let long = refusal_of(|entries| entries[1] = Entry::new("x/byteorder", &[b'a'; 1000]));
    assert_eq!(long.1, Kind::OverBudget);
    let pickle = refusal_of(|entries| entries[0] = Entry::new("x/data.pkl", b"\x80\x09."));
    assert_eq!(pickle, ("pickle protocol 9 is not known".to_owned(), Kind::Unsupported));
}

#[test]
fn bytes_before_and_after_the_archive() {
    let mut bytes = archive(&sound());
    bytes.extend([0; 10]);
    assert_eq!(refusal(&bytes), invalid("10 bytes follow the zip archive"));
    // A directory that says that it has more entries than there are.
    let mut bytes = archive(&sound());
    let count = bytes.len() - 12;
    bytes[count] = 200;
    assert_eq!(refusal(&bytes), invalid("no sound zip archive: 3 entries where the archive says 200"));
    // An offset beyond everything.
    let (reason, kind) = refusal_of(|entries| entries[0].offset = Some(u32::MAX - 1));
    assert!(reason.starts_with("no sound zip archive: entry \"x/data.pkl\": "), "{reason}");
    assert_eq!(kind, Kind::Invalid);
}
