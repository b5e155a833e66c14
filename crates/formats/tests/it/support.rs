//! Where the ground truth lies, and what several tests need.
//!
//! The full data lies beside the checkout, in `shared/data`. Where it is absent, what would have been checked against
//! it is named on stderr.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reshard_formats::pickle::{Node, NodeId, Object, Pickle, PickleFault};

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");

/// A file or folder of the ground truth.
pub(crate) fn ground_truth(path: &str) -> Option<PathBuf> {
    let shared = Path::new(SHARED);
    if shared.is_dir() {
        return Some(shared.join(path));
    }
    // Past the capture of the test harness, which would hide it while tests pass.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "ground truth {SHARED}/{path} is absent: NOT CHECKED").unwrap();
    None
}

/// A file or folder of the repository's own test data.
pub(crate) fn own(path: &str) -> PathBuf {
    Path::new(OWN).join(path)
}

/// How long a fuzz target runs: with nine of them a good minute in all, or as long as `RESHARD_FUZZ_SECONDS` says.
pub(crate) fn fuzz_time() -> Duration {
    let seconds = std::env::var("RESHARD_FUZZ_SECONDS").ok().map(|text| text.parse().unwrap());
    Duration::from_secs_f64(seconds.unwrap_or(7.5))
}

/// A folder for files that are written thousands of times: in memory, where the system has a place for that.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Every file below a folder whose name ends like this, in order.
pub(crate) fn files_below(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Whether two pickles are the same graph: the same objects, shared and cyclic in the same places. Numbers, truth
/// values and `None` have no identity.
pub(crate) fn same_graph(one: &Pickle, other: &Pickle) -> Result<(), String> {
    let (mut there, mut back) = (HashMap::new(), HashMap::new());
    let mut queue = vec![(one.root().id(), other.root().id())];
    while let Some((a, b)) = queue.pop() {
        let (left, right) = (one.node(a), other.node(b));
        if is_atom(left) || is_atom(right) {
            if !same_atom(left, right) {
                return Err(format!("{left:?} is not {right:?}"));
            }
            continue;
        }
        match (there.insert(a, b), back.insert(b, a)) {
            (None, None) => {}
            (Some(known), Some(known_back)) if known == b && known_back == a => continue,
            _ => return Err(format!("{left:?} and {right:?} are not shared alike")),
        }
        let (left, right) = (parts(left), parts(right));
        if left.0 != right.0 || left.1.len() != right.1.len() {
            return Err(format!("{left:?} is not {right:?}"));
        }
        queue.extend(left.1.into_iter().zip(right.1));
    }
    Ok(())
}

fn is_atom(node: &Node) -> bool {
    matches!(node, Node::None | Node::Bool(_) | Node::Int(_) | Node::BigInt(_) | Node::Float(_))
        || *node == Node::Tuple(Vec::new())
}

fn same_atom(one: &Node, other: &Node) -> bool {
    match (one, other) {
        (Node::Float(one), Node::Float(other)) => one.to_bits() == other.to_bits(),
        (one, other) => one == other,
    }
}

/// What a node says itself, and the nodes that it holds.
fn parts(node: &Node) -> (String, Vec<NodeId>) {
    let flatten = |pairs: &[(NodeId, NodeId)]| -> Vec<NodeId> {
        pairs.iter().flat_map(|(key, value)| [*key, *value]).collect()
    };
    match node {
        Node::List(items) => ("list".into(), items.clone()),
        Node::Tuple(items) => ("tuple".into(), items.clone()),
        Node::Set(items, is_frozen) => (format!("set {is_frozen}"), items.clone()),
        Node::Dict(entries) => ("dict".into(), flatten(entries)),
        Node::Persistent(id) => ("persistent".into(), vec![*id]),
        Node::Object(object) => {
            let Object { callable, arguments, keywords, is_new, state, items, elements } = &**object;
            let label = format!("{is_new} {} {} {}", keywords.is_some(), state.is_some(), items.len());
            let mut all = vec![*callable, *arguments];
            all.extend(keywords);
            all.extend(state);
            all.extend(flatten(items));
            all.extend(elements);
            (label, all)
        }
        leaf => (format!("{leaf:?}"), Vec::new()),
    }
}

/// Everything that can be reached from the root, each node once.
pub(crate) fn reachable(pickle: &Pickle) -> Vec<NodeId> {
    let mut seen = std::collections::HashSet::new();
    let mut queue = vec![pickle.root().id()];
    let mut found = Vec::new();
    while let Some(id) = queue.pop() {
        if seen.insert(id) {
            found.push(id);
            queue.extend(parts(pickle.node(id)).1);
        }
    }
    found
}

/// What must hold for any bytes: they are no pickle, or one that can be looked at and written back as it is. What
/// no pickle of protocol 2 can say is an error then, and nothing else.
pub(crate) fn is_sound_or_refused(bytes: &[u8]) {
    let Ok(read) = Pickle::read(bytes) else { return };
    for id in reachable(&read) {
        let value = read.value(id);
        let _ =
            (value.items(), value.as_numbers(), value.get("step"), value.attribute("step"), value.made_by());
    }
    match read.write() {
        Ok(written) => {
            let again = Pickle::read(&written).unwrap();
            same_graph(&read, &again).unwrap_or_else(|difference| panic!("{difference}: {bytes:?}"));
        }
        Err(PickleFault::MadeOfItself { .. }) => {}
        Err(fault) => panic!("{fault}: {bytes:?}"),
    }
}
