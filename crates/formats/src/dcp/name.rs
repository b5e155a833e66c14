//! What a name in a checkpoint stands for.
//!
//! ```text
//!   ("model", "layers.0.weight")                          the weights of layers.0.weight
//!   ("optim", "state", "layers.0.weight", "exp_avg")      exp_avg of layers.0.weight
//!   ("app", "optim", "state.layers.0.weight.exp_avg")     the same, from a flattened state dict
//!   ("optim", "param_groups", 0, "lr")                    options
//!   ("layers.0.weight",)                                  the weights of layers.0.weight
//! ```
//!
//! Source: torch 2.15, `torch/distributed/checkpoint/state_dict.py` (`get_state_dict`, `flatten_optimizer_state_dict`).

use std::borrow::Cow;

use crate::kept::Kept;

/// The keys under which models, states of optimizers and their options lie.
const MODEL: &str = "model";
const STATE: &str = "state";
const GROUPS: &str = "param_groups";

/// What of which parameter; `None` for options of an optimizer.
pub(super) fn meaning(keys: &[Cow<'_, str>]) -> Option<(Kept, String)> {
    let flattened =
        |key: &str, before: &str| key.strip_prefix(before).is_some_and(|rest| rest.starts_with('.'));
    if let Some(at) = keys.iter().position(|key| key == MODEL)
        && at + 1 < keys.len()
    {
        return Some((Kept::Weights, keys[at + 1..].join(".")));
    }
    if keys.len() > 1 && keys.iter().any(|key| key == GROUPS || flattened(key, GROUPS)) {
        return None;
    }
    match keys {
        [.., state, parameter, name] if state == STATE => Some((Kept::parse(name), parameter.to_string())),
        [_, .., state] if flattened(state, STATE) => {
            let (parameter, name) = state[STATE.len() + 1..].rsplit_once('.')?;
            Some((Kept::parse(name), parameter.to_owned()))
        }
        _ => Some((Kept::Weights, keys.join("."))),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::meaning;

    #[test]
    fn names_are_taken_apart_by_their_keys() {
        let cases = [
            (vec!["model", "a.weight"], "weights of a.weight"),
            (vec!["model", "model.a.weight"], "weights of model.a.weight"),
            (vec!["model.a.weight"], "weights of model.a.weight"),
            (vec!["app", "model", "a", "weight"], "weights of a.weight"),
            (vec!["model"], "weights of model"),
            (vec!["ema", "a.weight"], "weights of ema.a.weight"),
            (vec!["optim", "state", "a.weight", "exp_avg"], "exp_avg of a.weight"),
            (vec!["app", "optim", "state.a.weight.exp_avg"], "exp_avg of a.weight"),
            (vec!["optim", "param_groups", "0", "lr"], "nothing"),
            (vec!["app", "optim", "param_groups.a.weight.lr"], "nothing"),
            (vec!["state.a.weight"], "weights of state.a.weight"),
        ];
        for (keys, expected) in cases {
            let keys: Vec<Cow<'_, str>> = keys.into_iter().map(Cow::Borrowed).collect();
            let found = meaning(&keys).map(|(kept, name)| format!("{kept} of {name}"));
            assert_eq!(found.as_deref().unwrap_or("nothing"), expected, "{keys:?}");
        }
    }
}
