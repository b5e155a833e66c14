//! What the official crate accepts is accepted with the same ranges, and what it refuses is refused.
//!
//! Differences, each on purpose: a name or metadata key that is there twice is refused (parsers disagree on which one
//! counts); more than 64 axes are refused (neither numpy nor torch has them); a dtype is a string, never serde's other
//! spelling `{"F32": null}`; what an unknown key of a tensor holds may be nested deeper than 128.

use proptest::prelude::*;
use reshard_formats::safetensors::{Header, SafetensorsFault, StoredType};
use reshard_layout::Bytes;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use super::support::file_of;

/// Name, type, shape and range of each tensor, as either reader sees it; the range counts from the file's start.
type Seen = Vec<(String, String, Vec<u64>, u64, u64)>;

fn official(file: &[u8]) -> Option<Seen> {
    let (length, metadata) = SafeTensors::read_metadata(file).ok()?;
    let before = 8 + length as u64;
    let mut seen: Seen = Vec::new();
    for (name, info) in metadata.tensors() {
        let shape = info.shape.iter().map(|extent| *extent as u64).collect();
        let (begin, end) = info.data_offsets;
        seen.push((name, info.dtype.to_string(), shape, before + begin as u64, before + end as u64));
    }
    seen.sort();
    Some(seen)
}

fn ours(file: &[u8]) -> Result<Seen, SafetensorsFault> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let end = length.saturating_add(8).min(file.len());
    if end - 8 < length {
        let (length, file_length) = (Bytes(length as u64), Bytes(file.len() as u64));
        return Err(SafetensorsFault::HeaderTruncated { length, file_length });
    }
    let header = Header::parse(&file[8..end], Bytes(file.len() as u64))?;
    let mut seen: Seen = Vec::new();
    for tensor in header.tensors {
        let dtype = tensor.stored.name().to_owned();
        seen.push((tensor.name, dtype, tensor.shape, tensor.range.start, tensor.range.end));
    }
    seen.sort();
    Ok(seen)
}

pub(crate) fn assert_agree(file: &[u8]) {
    use SafetensorsFault::{RepeatedKey, RepeatedName, TooManyAxes};
    match (official(file), ours(file)) {
        (Some(official), Ok(ours)) => assert_eq!(official, ours),
        (None, Err(_)) | (_, Err(RepeatedName { .. } | RepeatedKey { .. } | TooManyAxes { .. })) => {}
        (official, ours) => {
            panic!("official {official:?}, ours {ours:?}: {}", String::from_utf8_lossy(file))
        }
    }
}

/// What to do to a header that was right.
#[derive(Clone, Debug)]
enum Damage {
    None,
    Begin(usize, i64),
    End(usize, i64),
    Shift(usize, i64),
    Type(usize, usize),
    Shape(usize, Vec<u64>),
    Drop(usize),
    Unknown(usize),
    Data(i64),
    Length(i64),
    Byte(usize, u8),
}

fn damages() -> impl Strategy<Value = Damage> {
    let small = -9i64..9;
    let extent = prop_oneof![0u64..5, Just(1 << 40), Just(u64::MAX), Just(1 << 61)];
    prop_oneof![
        2 => Just(Damage::None),
        1 => (0usize..6, small.clone()).prop_map(|(at, by)| Damage::Begin(at, by)),
        1 => (0usize..6, small.clone()).prop_map(|(at, by)| Damage::End(at, by)),
        1 => (0usize..6, small.clone()).prop_map(|(at, by)| Damage::Shift(at, by)),
        1 => (0usize..6, 0usize..22).prop_map(|(at, dtype)| Damage::Type(at, dtype)),
        1 => (0usize..6, prop::collection::vec(extent, 0..4)).prop_map(|(at, shape)| Damage::Shape(at, shape)),
        1 => (0usize..6).prop_map(Damage::Drop),
        1 => (0usize..6).prop_map(Damage::Unknown),
        1 => small.clone().prop_map(Damage::Data),
        1 => small.prop_map(Damage::Length),
        3 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
    ]
}

fn tensors() -> impl Strategy<Value = Vec<(String, usize, Vec<u64>)>> {
    let name = prop_oneof![
        "[a-c]{1,2}",
        "\\PC{0,6}",
        Just("model.layers.0/../x\"\\\n".to_owned()),
        Just("a\u{0}".to_owned())
    ];
    let tensor = (name, 0usize..22, prop::collection::vec(0u64..5, 0..4));
    prop::collection::vec(tensor, 0..6).prop_map(|mut tensors| {
        tensors.sort();
        tensors.dedup_by(|one, other| one.0 == other.0);
        tensors.retain(|(name, dtype, shape)| {
            let bits = shape.iter().product::<u64>() * StoredType::all()[*dtype].bits();
            name != "__metadata__" && bits.is_multiple_of(8)
        });
        tensors
    })
}

/// Entries of a right header in the order of `tensors`, lying in the order of `order`, and the bytes they take.
fn entries(tensors: &[(String, usize, Vec<u64>)], order: &[usize]) -> (Vec<(String, Value)>, u64) {
    let mut at = 0;
    let mut entries = vec![(String::new(), Value::Null); tensors.len()];
    let mut places: Vec<usize> = (0..tensors.len()).collect();
    places.sort_by_key(|place| order.get(*place).copied().unwrap_or(*place));
    for place in places {
        let (name, dtype, shape) = &tensors[place];
        let stored = StoredType::all()[*dtype];
        let end = at + shape.iter().product::<u64>() * stored.bits() / 8;
        let entry = json!({"dtype": stored.name(), "shape": shape, "data_offsets": [at, end]});
        entries[place] = (name.clone(), entry);
        at = end;
    }
    (entries, at)
}

fn moved(value: &mut Value, by: i64) {
    *value = json!(value.as_u64().unwrap_or(0).saturating_add_signed(by));
}

fn damaged(mut entries: Vec<(String, Value)>, data: u64, damages: &[Damage]) -> Vec<u8> {
    let (mut data, mut length, mut edits) = (data, 0i64, Vec::new());
    for damage in damages {
        let entry = |entries: &mut Vec<(String, Value)>, at: usize, change: &dyn Fn(&mut Value)| {
            if let Some((_, entry)) = entries.get_mut(at) {
                change(entry);
            }
        };
        match damage {
            Damage::None => {}
            Damage::Begin(at, by) => entry(&mut entries, *at, &|e| moved(&mut e["data_offsets"][0], *by)),
            Damage::End(at, by) => entry(&mut entries, *at, &|e| moved(&mut e["data_offsets"][1], *by)),
            Damage::Shift(at, by) => entry(&mut entries, *at, &|e| {
                moved(&mut e["data_offsets"][0], *by);
                moved(&mut e["data_offsets"][1], *by);
            }),
            Damage::Type(at, dtype) => {
                entry(&mut entries, *at, &|e| e["dtype"] = json!(StoredType::all()[*dtype].name()));
            }
            Damage::Shape(at, shape) => entry(&mut entries, *at, &|e| e["shape"] = json!(shape)),
            Damage::Drop(at) if *at < entries.len() => drop(entries.remove(*at)),
            Damage::Drop(_) => {}
            Damage::Unknown(at) => {
                entry(&mut entries, *at, &|e| e["note"] = json!({"deep": [1, {"x": null}]}))
            }
            Damage::Data(by) => data = data.saturating_add_signed(*by),
            Damage::Length(by) => length += by,
            Damage::Byte(at, byte) => edits.push((*at, *byte)),
        }
    }
    let header: serde_json::Map<String, Value> = entries.into_iter().collect();
    let mut file = file_of(&Value::Object(header).to_string(), data as usize);
    let header_length = u64::from_le_bytes(file[..8].try_into().unwrap());
    for (at, byte) in edits {
        file[8 + at % header_length as usize] = byte;
    }
    file[..8].copy_from_slice(&header_length.saturating_add_signed(length).to_le_bytes());
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn the_official_crate_agrees(
        tensors in tensors(),
        order in prop::collection::vec(0usize..6, 6),
        damages in prop::collection::vec(damages(), 0..3),
    ) {
        let (entries, data) = entries(&tensors, &order);
        assert_agree(&damaged(entries, data, &damages));
    }
}

#[test]
fn the_official_crate_agrees_on_odd_headers() {
    let headers: [(&str, usize); 22] = [
        ("", 0),
        ("{}", 0),
        ("{}", 1),
        ("  {}  \n", 0),
        ("[]", 0),
        ("{} x", 0),
        (r#"{"__metadata__":null}"#, 0),
        (r#"{"__metadata__":{"a":1}}"#, 0),
        (r#"{"__metadata__":{"a":null}}"#, 0),
        (r#"{"__metadata__":{"dtype":"F32"}}"#, 0),
        (r#"{"a":null}"#, 0),
        (r#"{"a":["U8",[1],[0,1]]}"#, 1),
        (r#"{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}"#, 1),
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[-0,1]}}"#, 1),
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}"#, 1),
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}"#, 1),
        (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"dtype":"U8"}}"#, 1),
        (r#"{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}}"#, 1),
        (r#"{"a":{"dtype":"U8","shape":[1099511627776,1099511627776,0],"data_offsets":[0,0]}}"#, 0),
        (r#"{"a":{"dtype":"U8","shape":[0,1099511627776,1099511627776],"data_offsets":[0,0]}}"#, 0),
        (
            r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#,
            2,
        ),
        (r#"{"a":{"dtype":"u8","shape":[1],"data_offsets":[0,1]}}"#, 1),
    ];
    for (header, data) in headers {
        assert_agree(&file_of(header, data));
    }
    assert_agree(&file_of(&" ".repeat(9), 0));
    let deep = format!(r#"{{"a":{}}}"#, "[".repeat(100_000));
    assert_agree(&file_of(&deep, 0));
}

/// Sizes are computed from the names' own digits: an independent table of the 22 types.
#[test]
fn every_type_has_the_size_that_its_name_says() {
    for stored in StoredType::all() {
        let digits: String = stored
            .name()
            .chars()
            .skip_while(|letter| !letter.is_ascii_digit())
            .take_while(char::is_ascii_digit)
            .collect();
        let bits = if stored.name() == "BOOL" { 8 } else { digits.parse().unwrap() };
        assert_eq!(stored.bits(), bits, "{}", stored.name());
        assert_eq!(StoredType::parse(stored.name()), Some(*stored));
        assert_eq!(stored.dtype().map(|dtype| dtype.size() * 8), (bits >= 8).then_some(bits));
    }
    assert_eq!(StoredType::all().len(), 22);
}
