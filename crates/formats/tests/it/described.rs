//! What a torch file says, as a map from where it stands to what stands there.
//!
//! ```text
//!   optimizer_state_dict/state/0/step          f32 [] 00000040
//!   optimizer_state_dict/param_groups/0/lr     float 0.001
//!   param_shapes/0                             OrderedDict of 47: model.embed_tokens.weight, ...
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use reshard_formats::Files;
use reshard_formats::pickle::{Node, Value};
use reshard_formats::torch::{TorchFile, read_bytes};
use sha2::{Digest, Sha256};

pub(crate) type Described = BTreeMap<String, String>;

/// Every entry of a file.
pub(crate) fn described(path: &Path) -> Described {
    let mut files = Files::default();
    let file = files.add(path).unwrap();
    let torch = TorchFile::open(&files, file).unwrap_or_else(|error| panic!("{error}"));
    let mut found = Described::new();
    describe(&files, &torch, "", torch.pickle.root(), &mut found);
    found
}

/// What one has and the other has not, or has otherwise.
pub(crate) fn differences(one: &Described, other: &Described) -> Vec<String> {
    let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differing = keys.into_iter().filter(|key| one.get(*key) != other.get(*key));
    differing.map(|key| format!("{key}: {:?} / {:?}", one.get(key), other.get(key))).collect()
}

fn describe(files: &Files, torch: &TorchFile, at: &str, value: Value<'_>, found: &mut Described) {
    let mut say = |text: String| {
        found.insert(at.to_owned(), text);
    };
    if let Some(tensor) = torch.tensor(value).unwrap() {
        let bytes = read_bytes(files, &tensor).unwrap();
        let digest: String =
            Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        return say(format!("{} {:?} {digest}", tensor.dtype, tensor.shape));
    }
    if let Some(shape) = value.as_numbers().filter(|_| value.made_by() == Some(("torch", "Size"))) {
        return say(format!("size {shape:?}"));
    }
    if let Some(entries) = value.entries() {
        let entries: Vec<_> = entries.collect();
        let kind = value.made_by().map_or("dict", |(_, name)| name);
        say(format!("{kind} of {}", entries.len()));
        for (key, value) in entries {
            let key =
                key.as_str().map(str::to_owned).or_else(|| Some(format!("[{}]", key.as_i64()?))).unwrap();
            describe(files, torch, &format!("{at}/{key}"), value, found);
        }
        return;
    }
    if let Some(items) = value.items() {
        let kind = if matches!(value.node(), Node::Tuple(_)) { "tuple" } else { "list" };
        say(format!("{kind} of {}", items.len()));
        for (index, item) in items.into_iter().enumerate() {
            describe(files, torch, &format!("{at}/{index}"), item, found);
        }
        return;
    }
    if let Some((module, name)) = value.made_by() {
        say(format!("{module}.{name}"));
        for (index, item) in value.arguments().into_iter().enumerate() {
            describe(files, torch, &format!("{at}/argument {index}"), item, found);
        }
        if let Some(state) = value.as_object().and_then(|object| object.state) {
            describe(files, torch, &format!("{at}/state"), torch.pickle.value(state), found);
        }
        return;
    }
    say(format!("{:?}", value.node()));
}
