//! Torch files: what torch 2.15 wrote, and what is written here and read back.

use std::path::{Path, PathBuf};

use reshard_formats::pickle::{PickleBuilder, Value};
use reshard_formats::torch::{Contents, Tensor, TorchFile, read_bytes, read_scalar, torch_file};
use reshard_formats::{Files, FormatError, TargetFile};
use reshard_layout::{DType, Elements, Kind};

use crate::support::{files_below, ground_truth, own};

/// A file, opened.
pub(crate) struct Opened {
    pub(crate) files: Files,
    pub(crate) file: TorchFile,
}

impl Opened {
    pub(crate) fn new(path: &Path) -> Result<Self, FormatError> {
        let mut files = Files::default();
        let id = files.add(path)?;
        let file = TorchFile::open(&files, id)?;
        Ok(Self { files, file })
    }

    fn root(&self) -> Value<'_> {
        self.file.pickle.root()
    }

    fn tensor(&self, value: Value<'_>) -> Tensor {
        self.file.tensor(value).unwrap().expect("a tensor")
    }

    fn named(&self, name: &str) -> Tensor {
        self.tensor(self.root().get(name).unwrap_or_else(|| panic!("no {name}")))
    }

    /// The numbers of a tensor of f32.
    fn numbers(&self, name: &str) -> Vec<f32> {
        let bytes = read_bytes(&self.files, &self.named(name)).unwrap();
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    }
}

#[test]
fn every_type_of_elements_is_read() {
    let opened = Opened::new(&own("torch/dtypes.pt")).unwrap();
    let expected = [
        ("float64", DType::F64, 8),
        ("float32", DType::F32, 4),
        ("float16", DType::F16, 2),
        ("bfloat16", DType::Bf16, 2),
        ("int64", DType::I64, 8),
        ("int32", DType::I32, 4),
        ("int16", DType::I16, 2),
        ("int8", DType::I8, 1),
        ("uint8", DType::U8, 1),
        ("bool", DType::Bool, 1),
        ("complex64", DType::C64, 8),
        ("float8_e4m3fn", DType::F8E4m3, 1),
        ("float8_e5m2", DType::F8E5m2, 1),
        ("float8_e8m0fnu", DType::F8E8m0, 1),
        ("float8_e4m3fnuz", DType::F8E4m3fnuz, 1),
        ("float8_e5m2fnuz", DType::F8E5m2fnuz, 1),
        ("uint16", DType::U16, 2),
        ("uint32", DType::U32, 4),
        ("uint64", DType::U64, 8),
    ];
    assert_eq!(opened.root().entries().unwrap().count(), expected.len());
    for (name, dtype, size) in expected {
        let tensor = opened.named(name);
        assert_eq!((tensor.dtype, &tensor.shape[..]), (dtype, &[16 / size][..]), "{name}");
        assert_eq!(read_bytes(&opened.files, &tensor).unwrap(), (0..16).collect::<Vec<u8>>(), "{name}");
    }
}

#[test]
fn views_share_a_storage_and_have_offsets_and_strides() {
    let opened = Opened::new(&own("torch/views.pt")).unwrap();
    let whole: Vec<f32> = (0..24u8).map(f32::from).collect();
    let at = |rows: &[usize], columns: &[usize]| -> Vec<f32> {
        rows.iter().flat_map(|row| columns.iter().map(move |column| (row * 6 + column) as f32)).collect()
    };
    assert_eq!(opened.numbers("whole"), whole);
    assert_eq!(opened.numbers("row"), at(&[2], &[0, 1, 2, 3, 4, 5]));
    assert_eq!(opened.numbers("columns"), at(&[0, 1, 2, 3], &[1, 2]));
    let transposed: Vec<f32> =
        (0..6).flat_map(|column| (0..4).map(move |row| (row * 6 + column) as f32)).collect();
    assert_eq!(opened.numbers("transposed"), transposed);
    assert_eq!(opened.numbers("stepped"), [3.0, 8.0, 13.0, 18.0, 23.0]);
    assert_eq!(opened.numbers("repeated"), [9.0; 6]);
    assert_eq!(opened.numbers("empty"), [0f32; 0]);
    assert_eq!(opened.numbers("empty_at_end"), [0f32; 0]);
    assert_eq!(opened.numbers("parameter"), whole[..6]);
    assert_eq!(opened.numbers("decorated"), whole[6..8]);
    assert_eq!(opened.numbers("typed"), [20.0, 21.0]);

    let columns = opened.named("columns");
    assert_eq!((columns.offset, &columns.strides[..]), (Elements(1), &[6, 1][..]));
    assert!(!columns.is_dense() && opened.named("row").is_dense() && opened.named("parameter").is_dense());
    for name in ["row", "columns", "transposed", "scalar", "repeated", "parameter", "decorated"] {
        assert_eq!(opened.named(name).storage, opened.named("whole").storage, "{name}");
    }
    let scalar = opened.named("scalar");
    assert_eq!((&scalar.shape[..], read_scalar(&opened.files, &scalar).unwrap()), (&[][..], 7.0));
    let step = opened.root().get("nested").unwrap().items().unwrap()[0].get("step").unwrap();
    assert_eq!(read_scalar(&opened.files, &opened.tensor(step)).unwrap(), 5.0);
    let fault = read_scalar(&opened.files, &columns).unwrap_err();
    assert!(fault.to_string().ends_with("a tensor of shape [4, 2] where one number is expected"), "{fault}");
    assert!(opened.file.tensor(opened.root()).unwrap().is_none());
    assert!(opened.file.tensor(opened.root().get("none").unwrap()).unwrap().is_none());
}

#[test]
fn empty_placeholders_are_told_apart_by_their_storage() {
    // Three placeholders without elements, the first and the third one object: they alone are one storage.
    let mut builder = PickleBuilder::new();
    let keys = ["0", "1", "0"].map(|key| builder.tensor(key, DType::Bf16, 0, 0, &[0]));
    let root = builder.list(keys);
    let storages = ["0", "1"].map(|key| (key.to_owned(), Contents::Known(Vec::new())));
    let (target, _) = torch_file("x.pt".into(), "x", &builder.finish(root), storages.to_vec()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let opened = Opened::new(&render(&target, folder.path(), &[])).unwrap();
    let tensors: Vec<Tensor> =
        opened.root().items().unwrap().into_iter().map(|value| opened.tensor(value)).collect();
    assert!(tensors.iter().all(|tensor| tensor.shape == [0]));
    assert_eq!(tensors[0].key, tensors[2].key);
    assert_ne!(tensors[0].key, tensors[1].key);
    assert_ne!(tensors[0].storage, tensors[1].storage, "even without bytes, each lies somewhere else");
}

#[test]
fn what_cannot_be_read_is_refused_by_its_name() {
    let cases = [
        ("sparse", "a tensor made by torch._utils._rebuild_sparse_tensor, which is not supported"),
        ("quantized", "a tensor made by torch._utils._rebuild_qtensor, which is not supported"),
        ("meta", "a tensor made by torch._utils._rebuild_meta_tensor_no_storage, which is not supported"),
        ("complex128", "a tensor of torch.ComplexDoubleStorage, which is not supported"),
        ("float4", "a tensor of torch.float4_e2m1fn_x2, which is not supported"),
        ("big", "byte order \"big\"; only little is read"),
        ("compressed", "is compressed; torch stores entries as they are"),
        ("legacy", "written by torch before 1.6"),
        ("program", "a TorchScript program, not a file of `torch.save`"),
    ];
    for (name, expected) in cases {
        let path = own(&format!("torch/refused_{name}.pt"));
        let error =
            Opened::new(&path).and_then(|opened| opened.file.tensor(opened.root()).map(|_| ())).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(path.to_str().unwrap()), "{text}");
        assert!(text.contains(expected), "{text}");
        assert_eq!(error.kind(), Some(Kind::Unsupported), "{text}");
    }
}

#[test]
fn every_file_of_deepspeed_is_read() {
    let Some(folder) = ground_truth("deepspeed") else { return };
    let mut tensors = 0;
    for path in files_below(&folder, ".pt") {
        let opened = Opened::new(&path).unwrap_or_else(|error| panic!("{error}"));
        let mut used = std::collections::HashSet::new();
        let mut queue = vec![opened.root()];
        while let Some(value) = queue.pop() {
            if let Some(tensor) = opened.file.tensor(value).unwrap_or_else(|error| panic!("{error}")) {
                tensors += 1;
                used.insert(tensor.key);
            } else {
                queue.extend(value.entries().into_iter().flatten().map(|(_, value)| value));
                queue.extend(value.items().into_iter().flatten());
            }
        }
        assert_eq!(used.len(), opened.file.storages().len(), "{}: every storage is used", path.display());
    }
    assert!(tensors > 1000, "{tensors}");
}

/// Writes a target file as the engine would: what is known, then the bytes of each storage at its place, then the
/// checksums.
pub(crate) fn render(target: &TargetFile, folder: &Path, storages: &[(u64, &[u8])]) -> PathBuf {
    let mut bytes = vec![0; usize::try_from(target.length).unwrap()];
    let mut put = |offset: u64, part: &[u8]| {
        let offset = usize::try_from(offset).unwrap();
        assert!(
            bytes[offset..offset + part.len()].iter().all(|byte| *byte == 0),
            "written twice at {offset}"
        );
        bytes[offset..offset + part.len()].copy_from_slice(part);
    };
    for known in &target.known {
        put(known.offset, &known.bytes);
    }
    for (offset, part) in storages {
        put(*offset, part);
    }
    for checksum in &target.checksums {
        let range =
            usize::try_from(checksum.data.start).unwrap()..usize::try_from(checksum.data.end).unwrap();
        let value = crc32fast::hash(&bytes[range]).to_le_bytes();
        for at in &checksum.at {
            let at = usize::try_from(*at).unwrap();
            assert_eq!(bytes[at..at + 4], [0; 4], "a checksum overwrites something at {at}");
            bytes[at..at + 4].copy_from_slice(&value);
        }
    }
    let path = folder.join(&target.path);
    std::fs::write(&path, &bytes).unwrap();
    path
}

/// A file with a storage of 24 floats (a whole and a view), one of eight bytes in float8, and an empty one.
fn written(folder: &Path) -> (PathBuf, Vec<u64>) {
    let mut builder = PickleBuilder::new();
    let names = ["whole", "view", "float8", "empty", "step"].map(|name| builder.str(name));
    let values = [
        builder.tensor("0", DType::F32, 24, 0, &[4, 6]),
        builder.tensor("0", DType::F32, 24, 12, &[2, 6]),
        builder.tensor("1", DType::F8E4m3, 8, 0, &[8]),
        builder.tensor("2", DType::Bf16, 0, 0, &[0]),
        builder.tensor("3", DType::I64, 1, 0, &[]),
    ];
    let root = builder.dict(names.into_iter().zip(values));
    let storages = vec![
        ("0".to_owned(), Contents::Data(96)),
        ("1".to_owned(), Contents::Data(8)),
        ("2".to_owned(), Contents::Data(0)),
        ("3".to_owned(), Contents::Known(7i64.to_le_bytes().to_vec())),
    ];
    let (target, offsets) =
        torch_file("written.pt".into(), "written", &builder.finish(root), storages).unwrap();
    let floats: Vec<u8> = (0..24u8).flat_map(|value| f32::from(value).to_le_bytes()).collect();
    let path = render(&target, folder, &[(offsets[0], &floats), (offsets[1], &[0, 1, 2, 3, 4, 5, 6, 7])]);
    (path, offsets)
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let (path, offsets) = written(folder.path());
    let opened = Opened::new(&path).unwrap();
    let whole: Vec<f32> = (0..24u8).map(f32::from).collect();
    assert_eq!(opened.numbers("whole"), whole);
    assert_eq!(opened.numbers("view"), whole[12..]);
    assert_eq!(read_bytes(&opened.files, &opened.named("float8")).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(opened.named("empty").shape, [0]);
    assert_eq!(read_scalar(&opened.files, &opened.named("step")).unwrap(), 7.0);
    for (key, offset) in ["0", "1", "2", "3"].into_iter().zip(offsets) {
        assert_eq!((opened.file.storages()[key].offset.0, offset % 64), (offset, 0));
    }
}

/// Reads every entry with its checksum, by the zip crate's own reader.
#[test]
fn checksums_of_what_is_written_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = written(folder.path());
    let bytes = std::fs::read(path).unwrap();
    let archive = rawzip::ZipArchive::from_slice(&bytes[..]).unwrap();
    let mut entries = archive.entries();
    let mut names = Vec::new();
    while let Some(record) = entries.next_entry().unwrap() {
        let entry = archive.get_entry(record.wayfinder()).unwrap();
        std::io::copy(&mut entry.verifying_reader(entry.data()), &mut std::io::sink()).unwrap();
        assert_eq!(entry.local_header().crc32(), record.crc32());
        names.push(String::from_utf8(record.file_path().as_bytes().to_vec()).unwrap());
    }
    let expected =
        ["data.pkl", ".storage_alignment", "byteorder", "data/0", "data/1", "data/2", "data/3", "version"];
    assert_eq!(names, expected.map(|name| format!("written/{name}")));
}

/// A storage of 5 GiB and one behind it, in a sparse file: lengths and offsets of 64 bits.
#[test]
fn files_over_four_gibibytes_are_zip64() {
    const LARGE: u64 = 5 << 30;
    let mut builder = PickleBuilder::new();
    let large = builder.tensor("0", DType::F32, LARGE / 4, LARGE / 4 - 2, &[2]);
    let behind = builder.tensor("1", DType::U8, 3, 0, &[3]);
    let root = builder.tuple([large, behind]);
    let storages =
        vec![("0".to_owned(), Contents::Data(LARGE)), ("1".to_owned(), Contents::Known(vec![1, 2, 3]))];
    let (target, offsets) = torch_file("large.pt".into(), "large", &builder.finish(root), storages).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.pt");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(target.length).unwrap();
    let put =
        |offset: u64, bytes: &[u8]| std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset).unwrap();
    for known in &target.known {
        put(known.offset, &known.bytes);
    }
    put(offsets[0] + LARGE - 4, &2.5f32.to_le_bytes());
    let opened = Opened::new(&path).unwrap();
    let items = opened.root().items().unwrap();
    let last = read_bytes(&opened.files, &opened.tensor(items[0])).unwrap();
    assert_eq!(last, [0f32.to_le_bytes(), 2.5f32.to_le_bytes()].concat());
    assert_eq!(read_bytes(&opened.files, &opened.tensor(items[1])).unwrap(), [1, 2, 3]);
    assert!(offsets[1] > LARGE && opened.file.storages()["1"].offset.0 == offsets[1]);
}
