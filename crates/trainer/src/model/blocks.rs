//! The blocks of a model: which parameters each one computes with, by role.
//!
//! ```text
//! Attention 2: input norm, q k v o weights (and biases), q/k norms of layer 2
//! Mlp 2:       post-attention norm, gate up down weights (and biases) of layer 2
//! Head:        final norm, head (tied: the embedding in the role of the head)
//! ```

use reshard_parallel::model::{ModelConfig, Norm, Projection, Role};

use super::ShardedParameter;

/// What a block computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Tokens to hidden states.
    Embedding,
    /// Hidden states plus attention.
    Attention,
    /// Hidden states plus MLP.
    Mlp,
    /// Hidden states to logits.
    Head,
}

/// A part of the model that computes between two collectives of the tensor-parallel group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    kind: BlockKind,
    entries: Vec<(Role, usize)>,
}

impl Block {
    /// What it computes.
    #[must_use]
    pub fn kind(&self) -> BlockKind {
        self.kind
    }

    /// The roles in it, each with the index of the parameter that plays it.
    #[must_use]
    pub fn entries(&self) -> &[(Role, usize)] {
        &self.entries
    }

    /// The index of the parameter in a role.
    #[must_use]
    pub fn parameter(&self, role: Role) -> Option<usize> {
        self.entries.iter().find(|(known, _)| *known == role).map(|(_, parameter)| *parameter)
    }

    /// The bias that is added after the sum over the tensor-parallel group: whole on every rank.
    #[must_use]
    pub fn bias_after_sum(&self) -> Option<Role> {
        let role = match self.kind {
            BlockKind::Attention => Role::Bias(Projection::Output),
            BlockKind::Mlp => Role::Bias(Projection::Down),
            BlockKind::Embedding | BlockKind::Head => return None,
        };
        self.parameter(role).map(|_| role)
    }

    /// The weight of which this rank may hold nothing, in which case it adds zeros.
    #[must_use]
    pub(crate) fn pivot(&self) -> Role {
        match self.kind {
            BlockKind::Embedding => Role::Embedding,
            BlockKind::Attention => Role::Weight(Projection::Query),
            BlockKind::Mlp => Role::Weight(Projection::Up),
            BlockKind::Head => Role::Head,
        }
    }
}

/// All blocks in the order of the forward pass.
pub(super) fn blocks(config: &ModelConfig, parameters: &[ShardedParameter]) -> Vec<Block> {
    let select = |layer: Option<u32>, wanted: &dyn Fn(Role) -> bool| -> Vec<(Role, usize)> {
        let indexed = parameters.iter().enumerate();
        indexed
            .filter(|(_, parameter)| parameter.layer == layer && wanted(parameter.role))
            .map(|(index, parameter)| (parameter.role, index))
            .collect()
    };
    let mut blocks =
        vec![Block { kind: BlockKind::Embedding, entries: select(None, &|role| role == Role::Embedding) }];
    for layer in 0..config.num_hidden_layers() {
        blocks.push(Block { kind: BlockKind::Attention, entries: select(Some(layer), &in_attention) });
        blocks
            .push(Block { kind: BlockKind::Mlp, entries: select(Some(layer), &|role| !in_attention(role)) });
    }
    let mut entries = select(None, &|role| matches!(role, Role::Norm(Norm::Final) | Role::Head));
    if config.tie_word_embeddings() {
        entries.extend(blocks[0].entries.iter().map(|(_, parameter)| (Role::Head, *parameter)));
    }
    blocks.push(Block { kind: BlockKind::Head, entries });
    blocks
}

fn in_attention(role: Role) -> bool {
    match role {
        Role::Weight(projection) | Role::Bias(projection) => {
            !matches!(projection, Projection::Gate | Projection::Up | Projection::Down)
        }
        Role::Norm(norm) => matches!(norm, Norm::Input | Norm::Query | Norm::Key),
        Role::Embedding | Role::Head => false,
    }
}
