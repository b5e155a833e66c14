//! `universal_checkpoint_info`: how AutoTP cut each parameter, as DeepSpeed publishes it in every file of model states.
//!
//! ```text
//!   up.weight    Axis 0, widths 9 9    affine_map.params["^up\.weight$"]   rank 0: rows 0..9   rank 1: rows 9..18
//!   down.weight  Axis 1                the same, and a pattern of row parallelism
//!   norm.weight  Whole                 one piece that every rank holds, and a pattern of replication
//! ```
//!
//! Source: DeepSpeed 0.19.8 `module_inject/layers.py` (`collect_autotp_universal_checkpoint_info`),
//! `checkpoint/affine.py` (`contiguous_split_map`, `replicated_map`).

use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::model::{ModelParameter, Role};
use reshard_parallel::tensor::Cut;

use super::tree::Tree;

/// The version of the form, as DeepSpeed 0.19.8 writes it.
const INFO_VERSION: f64 = 0.4;
/// The version of the affine maps in it.
const MAP_VERSION: i64 = 1;
/// What Python's `re.escape` puts a backslash before.
const ESCAPED: &str = "()[]{}?*+-|^$\\.&~# \t\n\r\u{b}\u{c}";

/// The entry for an engine; nothing without tensor parallelism, where DeepSpeed publishes none.
pub(super) fn universal_info(engine: &DeepSpeed) -> Option<Tree<'static>> {
    let tp = engine.topology().tp().get();
    if tp == 1 {
        return None;
    }
    let parameters: Vec<Cutting<'_>> = engine
        .parameters()
        .iter()
        .zip(engine.cuts())
        .map(|(parameter, cut)| Cutting { parameter, cut })
        .collect();
    let mut entries = vec![
        ("universal_checkpoint_version", Tree::Float(INFO_VERSION)),
        ("parameter_with_row_parallelism_patterns", patterns(&parameters, |one| one.axis() == Some(1))),
        ("tp_replicated_parameter_patterns", patterns(&parameters, |one| one.axis().is_none())),
        ("vocabulary_parameter_patterns", patterns(&parameters, |one| one.is_vocabulary())),
        ("parameter_with_sub_params", Tree::List(Vec::new())),
        ("autotp_unsupported_parameter_patterns", Tree::Dict(Vec::new())),
    ];
    if let Some(vocabulary) = parameters.iter().find(|one| one.is_vocabulary()) {
        entries.push(("original_vocab_size", Tree::count(vocabulary.parameter.shape[0])));
    }
    let (replaced, untouched): (Vec<_>, Vec<_>) = parameters.iter().partition(|one| one.is_replaced());
    let maps = replaced.into_iter().chain(untouched);
    let maps = maps.map(|one| (Tree::Str(one.pattern()), one.affine_map(tp))).collect();
    let maps = vec![("version", Tree::Int(MAP_VERSION)), ("params", Tree::Dict(maps))];
    entries.push(("affine_map", Tree::dict(maps)));
    Some(Tree::dict(entries))
}

fn patterns(parameters: &[Cutting<'_>], which: impl Fn(&Cutting<'_>) -> bool) -> Tree<'static> {
    let mut patterns: Vec<String> =
        parameters.iter().filter(|one| which(one)).map(Cutting::pattern).collect();
    patterns.sort();
    Tree::List(patterns.into_iter().map(Tree::Str).collect())
}

/// A parameter and how it is cut.
struct Cutting<'a> {
    parameter: &'a ModelParameter,
    cut: &'a Cut,
}

impl Cutting<'_> {
    fn axis(&self) -> Option<usize> {
        match self.cut {
            Cut::Axis { axis, .. } => Some(*axis),
            Cut::Whole => None,
        }
    }

    /// Whether AutoTP replaced its module: what it leaves alone comes last among the maps.
    fn is_replaced(&self) -> bool {
        matches!(self.parameter.role, Role::Weight(_) | Role::Bias(_)) || self.axis().is_some()
    }

    /// DeepSpeed goes by names here: `embed` or `lm_head`, cut along the rows of a matrix.
    fn is_vocabulary(&self) -> bool {
        matches!(self.parameter.role, Role::Embedding | Role::Head) && self.axis() == Some(0)
    }

    fn pattern(&self) -> String {
        let mut pattern = String::from("^");
        for letter in self.parameter.name.chars() {
            if ESCAPED.contains(letter) {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern.push('$');
        pattern
    }

    fn affine_map(&self, tp: u32) -> Tree<'static> {
        let shape = &self.parameter.shape;
        let rank = |tp_rank: u32| {
            let shard = self.cut.shard_shape(shape, tp_rank);
            let origin = self.cut.origin(shape.len(), tp_rank);
            let first: u64 = origin.iter().zip(strides(shape)).map(|(at, stride)| at * stride).sum();
            let holders: Vec<u64> = match self.cut {
                Cut::Whole => (0..u64::from(tp)).collect(),
                Cut::Axis { .. } => vec![u64::from(tp_rank)],
            };
            let piece = Tree::dict(vec![
                ("shape", Tree::counts(&shard)),
                ("source", address(first, strides(shape))),
                ("dest", address(0, strides(&shard))),
                ("locations", Tree::counts(&holders)),
            ]);
            let entries = vec![("shard_shape", Tree::counts(&shard)), ("pieces", Tree::List(vec![piece]))];
            (Tree::Int(i64::from(tp_rank)), Tree::dict(entries))
        };
        let ranks = (0..tp).map(rank).collect();
        Tree::dict(vec![("logical_shape", Tree::counts(shape)), ("ranks", Tree::Dict(ranks))])
    }
}

fn address(offset: u64, strides: Vec<u64>) -> Tree<'static> {
    Tree::List(vec![Tree::count(offset), Tree::counts(&strides)])
}

/// Row-major strides as DeepSpeed counts them: an axis of no extent makes the strides before it zero.
fn strides(shape: &[u64]) -> Vec<u64> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}
