//! Torch files that were damaged, and tensors that cannot be.

use std::path::Path;

use reshard_formats::pickle::{NodeId, PickleBuilder, Value};
use reshard_formats::torch::{Contents, SMALL_BYTES_MAX, TorchFile, read_bytes, torch_file};
use reshard_formats::{Files, FormatError, Span};
use reshard_layout::{Bytes, Kind};

use crate::support::{own, reachable, scratch};
use crate::torch::{Opened, render};

/// What must hold for any file: it is refused, or all its tensors lie inside it.
pub(super) fn is_sound_or_refused(path: &Path) {
    let Ok(opened) = Opened::new(path) else { return };
    let length = opened.files.length(opened.file.file()).0;
    for id in reachable(&opened.file.pickle) {
        if let Ok(Some(tensor)) = opened.file.tensor(opened.file.pickle.value(id)) {
            let span = tensor.span();
            assert!(span.offset.0 + span.length.0 <= length);
            if tensor.elements().bytes(tensor.dtype).0 < 4096 {
                let bytes = read_bytes(&opened.files, &tensor).unwrap();
                assert_eq!(bytes.len() as u64, tensor.elements().bytes(tensor.dtype).0);
            }
        }
    }
}

#[test]
fn cut_anywhere_is_refused() {
    let bytes = std::fs::read(own("torch/views.pt")).unwrap();
    let folder = scratch();
    let path = folder.path().join("cut.pt");
    for length in 0..bytes.len() {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let error = Opened::new(&path).err().unwrap_or_else(|| panic!("cut to {length} bytes, it opens"));
        assert!(error.to_string().contains("cut.pt") && error.kind().is_some(), "{error}");
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_or_harmless() {
    let mut bytes = std::fs::read(own("torch/views.pt")).unwrap();
    let folder = scratch();
    let path = folder.path().join("flipped.pt");
    let pickle = 64..64 + 1000;
    for at in 0..bytes.len() {
        // One bit of each byte, another one each time: bytes at the same place of a field meet all eight.
        let bit = 1 << (at * 5 % 8);
        bytes[at] ^= bit;
        std::fs::write(&path, &bytes).unwrap();
        is_sound_or_refused(&path);
        if pickle.contains(&at) {
            assert!(Opened::new(&path).is_err(), "byte {at} of the pickle is changed");
        }
        bytes[at] ^= bit;
    }
}

#[test]
fn a_stretch_outside_the_file_is_refused() {
    let mut files = Files::default();
    let file = files.add(&own("torch/views.pt")).unwrap();
    let length = files.length(file).0;
    for (offset, length) in [(0, length + 1), (length, 1), (u64::MAX, 2), (1, length - 1), (0, 0)] {
        let span = Span { file, offset: Bytes(offset), length: Bytes(length) };
        let error = TorchFile::open_span(&files, span).err().unwrap_or_else(|| panic!("{offset} {length}"));
        assert_eq!(error.kind(), Some(Kind::Invalid), "{error}");
    }
}

/// The parts of a tensor's description, each of which a test may get wrong.
struct Parts {
    storage: Vec<NodeId>,
    offset: NodeId,
    shape: NodeId,
    strides: NodeId,
}

/// What becomes of a tensor of 8 floats in a storage of 8, of shape (2, 4), after a change.
fn outcome(change: impl Fn(&mut PickleBuilder, &mut Parts)) -> Result<(), FormatError> {
    let mut builder = PickleBuilder::new();
    let storage = vec![
        builder.str("storage"),
        builder.class("torch", "FloatStorage"),
        builder.str("0"),
        builder.str("cpu"),
        builder.int(8),
    ];
    let (offset, shape, strides) = (builder.int(0), builder.numbers(&[2, 4]), builder.numbers(&[4, 1]));
    let mut parts = Parts { storage, offset, shape, strides };
    change(&mut builder, &mut parts);
    let id = builder.tuple(parts.storage);
    let storage = builder.persistent(id);
    let (requires_gradient, hooks) = (builder.bool(false), builder.ordered_dict([]));
    let arguments =
        builder.tuple([storage, parts.offset, parts.shape, parts.strides, requires_gradient, hooks]);
    let callable = builder.class("torch._utils", "_rebuild_tensor_v2");
    let root = builder.call(callable, arguments);
    with_file(builder, root, |opened, root| opened.file.tensor(root).map(|tensor| assert!(tensor.is_some())))
}

fn with_file<T>(builder: PickleBuilder, root: NodeId, run: impl Fn(&Opened, Value<'_>) -> T) -> T {
    let storages = vec![("0".to_owned(), Contents::Known(vec![0; 32]))];
    let (target, _) = torch_file("tensor.pt".into(), "x", &builder.finish(root), storages).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let opened = Opened::new(&render(&target, folder.path(), &[])).unwrap();
    run(&opened, opened.file.pickle.root())
}

fn refusal(change: impl Fn(&mut PickleBuilder, &mut Parts)) -> String {
    let error = outcome(change).unwrap_err();
    assert_eq!(error.kind(), Some(Kind::Invalid), "{error}");
    let text = error.to_string();
    text.split_once("tensor.pt: ").expect("the error names the file").1.to_owned()
}

#[test]
fn tensors_lie_inside_their_storages() {
    outcome(|_, _| {}).unwrap();
    let far = "a tensor of shape [2, 4], strides [4, 1] and offset 1 leaves storage \"0\" of 8 elements";
    assert_eq!(refusal(|builder, parts| parts.offset = builder.int(1)), far);
    let offsets = [u64::MAX, 1 << 63, 9];
    for offset in offsets {
        let text = refusal(|builder, parts| parts.offset = builder.uint(offset));
        assert!(text.contains("leaves storage") || text == "a tensor whose offset cannot be read", "{text}");
    }
    for (shape, strides) in [
        (vec![2, 4], vec![5, 1]),
        (vec![9], vec![1]),
        (vec![2], vec![(1 << 63) - 1]),
        (vec![1 << 62, 4], vec![1 << 62, 1]),
        (vec![1 << 31, 1 << 31], vec![1 << 33, 1 << 2]),
    ] {
        let text = refusal(|builder, parts| {
            parts.shape = builder.numbers(&shape);
            parts.strides = builder.numbers(&strides);
        });
        assert!(text.contains("leaves storage \"0\" of 8 elements") || text.contains("extents"), "{text}");
    }
    let text = refusal(|builder, parts| {
        parts.shape = builder.numbers(&[1 << 40, 1 << 40]);
        parts.strides = builder.numbers(&[0, 0]);
    });
    assert_eq!(text, "a tensor whose extents cannot be read");
    // Empty, it may begin at the end of its storage and not behind it.
    let empty = |offset: i64| {
        move |builder: &mut PickleBuilder, parts: &mut Parts| {
            parts.shape = builder.numbers(&[0, 4]);
            parts.offset = builder.int(offset);
        }
    };
    outcome(empty(8)).unwrap();
    assert!(refusal(empty(9)).contains("leaves storage"));
}

#[test]
fn descriptions_are_as_torch_writes_them() {
    assert_eq!(refusal(|b, parts| parts.shape = b.numbers(&[8])), "a tensor whose strides cannot be read");
    assert_eq!(refusal(|b, parts| parts.shape = b.int(8)), "a tensor whose shape cannot be read");
    assert_eq!(refusal(|b, parts| parts.offset = b.int(-1)), "a tensor whose offset cannot be read");
    let negative = |b: &mut PickleBuilder, parts: &mut Parts| {
        let numbers = [b.int(-4), b.int(1)];
        parts.strides = b.tuple(numbers);
    };
    assert_eq!(refusal(negative), "a tensor whose strides cannot be read");
    let storage = "a tensor whose storage cannot be read";
    assert_eq!(refusal(|_, parts| parts.storage.truncate(4)), storage);
    assert_eq!(refusal(|b, parts| parts.storage[0] = b.str("module")), storage);
    assert_eq!(refusal(|b, parts| parts.storage[1] = b.str("FloatStorage")), storage);
    assert_eq!(refusal(|b, parts| parts.storage[4] = b.int(-8)), storage);
    assert_eq!(refusal(|b, parts| parts.storage[4] = b.int(i64::MAX)), storage);
    let length = "storage \"0\" has 32 bytes, expected 36";
    assert_eq!(refusal(|b, parts| parts.storage[4] = b.int(9)), length);
    let absent = "storage \"1\" has 0 bytes, expected 32";
    assert_eq!(refusal(|b, parts| parts.storage[2] = b.str("1")), absent);
    assert_eq!(
        refusal(|b, parts| parts.storage[2] = b.str("../data.pkl")),
        "storage \"../data.pkl\" has 0 bytes, expected 32"
    );
    let unknown = outcome(|b, parts| parts.storage[1] = b.class("os", "system")).unwrap_err();
    assert_eq!(unknown.kind(), Some(Kind::Unsupported));
}

#[test]
fn wrappers_without_end_are_refused() {
    let mut builder = PickleBuilder::new();
    let callable = builder.class("torch._utils", "_rebuild_parameter");
    let mut inner = builder.tensor("0", reshard_layout::DType::F32, 8, 0, &[8]);
    for _ in 0..100 {
        let arguments = builder.tuple([inner]);
        inner = builder.call(callable, arguments);
    }
    let error = with_file(builder, inner, |opened, root| opened.file.tensor(root)).unwrap_err();
    assert_eq!(error.kind(), Some(Kind::OverBudget), "{error}");
}

/// A tensor that repeats one element 2^60 times is a tensor; it is not read at once.
#[test]
fn a_small_file_with_a_large_tensor_is_not_read_at_once() {
    let mut builder = PickleBuilder::new();
    let storage = ["storage", "0", "cpu"].map(|text| builder.str(text));
    let (class, count, zero) = (builder.class("torch", "FloatStorage"), builder.int(8), builder.int(0));
    let id = builder.tuple([storage[0], class, storage[1], storage[2], count]);
    let storage = builder.persistent(id);
    let (shape, strides) = (builder.numbers(&[1 << 60]), builder.numbers(&[0]));
    let arguments = builder.tuple([storage, zero, shape, strides]);
    let callable = builder.class("torch._utils", "_rebuild_tensor");
    let root = builder.call(callable, arguments);
    let error = with_file(builder, root, |opened, root| {
        let tensor = opened.file.tensor(root).unwrap().unwrap();
        read_bytes(&opened.files, &tensor)
    })
    .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with(&format!("more than {SMALL_BYTES_MAX} bytes in a tensor that is read at once"))
    );
}
