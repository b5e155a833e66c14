//! What a checkpoint says beside its weights and states, whoever says it: a trainer, or another checkpoint.

use indexmap::IndexMap;
use reshard_layout::DType;

use super::tree::Tree;

/// The version of DeepSpeed whose files these are; its loaders compare it.
pub(crate) const VERSION: &str = "0.19.8";

/// What the files say that does not follow from a topology.
#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    /// The name of the checkpoint's folder.
    pub(crate) tag: String,
    /// Entries of model states: steps, schedulers, what the training script added.
    pub(crate) model: Vec<(String, Tree<'a>)>,
    /// Entries of the optimizer's dictionary: loss scale, clipping.
    pub(crate) optimizer: Vec<(String, Tree<'a>)>,
    /// The hyper-parameters of every optimizer group, without `params`.
    pub(crate) groups: Vec<Vec<(String, Tree<'a>)>>,
    /// What the optimizer keeps of parameters that is no tensor of their shape: `step`.
    pub(crate) scalars: Scalars<'a>,
    /// DeepSpeed's configuration.
    pub(crate) config: Tree<'a>,
    /// The version of DeepSpeed.
    pub(crate) version: Tree<'a>,
}

/// Per-parameter entries, which many parameters share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scalars<'a> {
    entries: Vec<Vec<(String, Tree<'a>)>>,
    of: IndexMap<String, usize>,
}

impl<'a> Scalars<'a> {
    /// Says what holds of some parameters.
    pub(crate) fn add(&mut self, entries: Vec<(String, Tree<'a>)>, parameters: impl Iterator<Item = String>) {
        let index = self.entries.len();
        self.entries.push(entries);
        self.of.extend(parameters.map(|parameter| (parameter, index)));
    }

    /// What holds of a parameter; nothing of one that the optimizer has not touched.
    pub(crate) fn of(&self, parameter: &str) -> &[(String, Tree<'a>)] {
        self.of.get(parameter).map_or(&[], |index| &self.entries[*index])
    }
}

/// A count of steps as torch's optimizers keep it: a 32-bit float without axes.
pub(crate) fn step_tensor(step: f32) -> Tree<'static> {
    Tree::Tensor { dtype: DType::F32, shape: Vec::new(), bytes: step.to_le_bytes().to_vec() }
}

/// What stands for loss scaling where there is none.
pub(crate) fn no_loss_scale() -> Vec<(String, Tree<'static>)> {
    let scaler = Tree::Object {
        module: "deepspeed.runtime.fp16.loss_scaler",
        name: "LossScaler",
        attributes: vec![("cur_scale", Tree::Float(1.0)), ("dynamic", Tree::Bool(false))],
    };
    vec![
        ("loss_scaler".to_owned(), scaler),
        ("dynamic_loss_scale".to_owned(), Tree::Bool(false)),
        ("overflow".to_owned(), Tree::Bool(false)),
    ]
}

/// DeepSpeed's name of a ZeRO stage.
pub(crate) fn stage_enum(stage: u32) -> Tree<'static> {
    Tree::Call {
        module: "deepspeed.runtime.zero.config",
        name: "ZeroStageEnum",
        arguments: vec![Tree::Int(i64::from(stage))],
    }
}
