//! What a trainer that has no DeepSpeed says of itself.

use serde_json::Value as Json;

use reshard_parallel::engine::DeepSpeed;

use super::fault::WriteFault;
use super::record::{Record, Scalars, VERSION, no_loss_scale, step_tensor};
use super::tree::Tree;

/// How deep a configuration may be nested.
const CONFIG_DEPTH_MAX: usize = 64;

/// Where a trainer with AdamW stands.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerState {
    /// The name of the checkpoint's folder: `global_step7`.
    pub tag: String,
    /// Steps that were taken.
    pub global_steps: u64,
    /// Steps that were skipped because of an overflow.
    pub skipped_steps: u64,
    /// Samples that were seen.
    pub global_samples: u64,
    /// One for each optimizer group of the engine.
    pub groups: Vec<AdamGroup>,
    /// The largest norm of a gradient; 0 if gradients are not clipped.
    pub clip_grad: f64,
    /// DeepSpeed's configuration, as JSON.
    pub config: String,
}

/// The hyper-parameters of one optimizer group of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamGroup {
    /// Updates that were made.
    pub step: u32,
    /// The learning rate.
    pub lr: f64,
    /// How fast the moments decay.
    pub betas: (f64, f64),
    /// What the root of the second moment is raised by.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl AdamGroup {
    /// As torch 2.15's `AdamW` keeps them.
    fn entries(&self) -> Vec<(String, Tree<'static>)> {
        let entries = [
            ("lr", Tree::Float(self.lr)),
            ("betas", Tree::Tuple(vec![Tree::Float(self.betas.0), Tree::Float(self.betas.1)])),
            ("eps", Tree::Float(self.eps)),
            ("weight_decay", Tree::Float(self.weight_decay)),
            ("amsgrad", Tree::Bool(false)),
            ("maximize", Tree::Bool(false)),
            ("foreach", Tree::None),
            ("capturable", Tree::Bool(false)),
            ("differentiable", Tree::Bool(false)),
            ("fused", Tree::None),
            ("decoupled_weight_decay", Tree::Bool(true)),
        ];
        entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "torch counts steps in 32-bit floats")]
    fn scalars(&self) -> Vec<(String, Tree<'static>)> {
        vec![("step".to_owned(), step_tensor(self.step as f32))]
    }
}

impl TrainerState {
    pub(super) fn record(&self, engine: &DeepSpeed) -> Result<Record<'static>, WriteFault> {
        let members = super::members(engine);
        if members.len() != self.groups.len() {
            return Err(WriteFault::Groups { expected: members.len(), found: self.groups.len() });
        }
        let mut scalars = Scalars::default();
        for (group, members) in self.groups.iter().zip(&members) {
            let names = members.iter().map(|&parameter| engine.parameters()[parameter].name.clone());
            scalars.add(group.scalars(), names);
        }
        let config: Json = serde_json::from_str(&self.config)
            .map_err(|error| WriteFault::Config { reason: error.to_string() })?;
        let model = [
            ("lr_scheduler", Tree::None),
            ("data_sampler", Tree::None),
            ("random_ltd", Tree::None),
            ("skipped_steps", Tree::count(self.skipped_steps)),
            ("global_steps", Tree::count(self.global_steps)),
            ("global_samples", Tree::count(self.global_samples)),
        ];
        let mut optimizer = no_loss_scale();
        optimizer.push(("clip_grad".to_owned(), Tree::Float(self.clip_grad)));
        Ok(Record {
            tag: self.tag.clone(),
            model: model.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            optimizer,
            groups: self.groups.iter().map(AdamGroup::entries).collect(),
            scalars,
            config: json_tree(&config, CONFIG_DEPTH_MAX)?,
            version: Tree::Str(VERSION.to_owned()),
        })
    }
}

fn json_tree(value: &Json, depth: usize) -> Result<Tree<'static>, WriteFault> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(WriteFault::Config { reason: format!("nested more than {CONFIG_DEPTH_MAX} deep") });
    };
    Ok(match value {
        Json::Null => Tree::None,
        Json::Bool(value) => Tree::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(value) => Tree::Int(value),
            None => Tree::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Tree::Str(text.clone()),
        Json::Array(items) => {
            Tree::List(items.iter().map(|item| json_tree(item, depth)).collect::<Result<_, _>>()?)
        }
        Json::Object(entries) => {
            let entry = |(key, value): (&String, &Json)| Ok((key.clone(), json_tree(value, depth)?));
            Tree::dict(entries.iter().map(entry).collect::<Result<Vec<_>, WriteFault>>()?)
        }
    })
}
