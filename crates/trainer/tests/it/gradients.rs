//! Gradients: every parameter has one, and it is the slope of the loss.

use reshard_parallel::model::{ModelConfig, Role};
use reshard_trainer::{Stored, TINY, Trainer, TrainerOptions, UNEVEN};

use crate::harness::{in_f32, with_trainers};

/// Models that together have every kind of parameter.
fn models() -> Vec<(&'static str, ModelConfig)> {
    let layers = ("num_hidden_layers", 2.into());
    vec![
        ("tiny", in_f32(TINY, std::slice::from_ref(&layers))),
        ("uneven", in_f32(UNEVEN, std::slice::from_ref(&layers))),
        ("uneven tied", in_f32(UNEVEN, &[layers.clone(), ("tie_word_embeddings", true.into())])),
        ("llama", in_f32(UNEVEN, &[layers, ("model_type", "llama".into())])),
    ]
}

/// The gradients of all parameters of one rank at stage 0.
fn gradients(trainer: &mut Trainer) -> Vec<Vec<f32>> {
    trainer.backward().expect("a backward pass");
    (0..trainer.engine().model().parameters().len()).map(|index| trainer.engine().gradient(index)).collect()
}

#[test]
fn every_parameter_has_a_gradient() {
    for (name, config) in models() {
        for topology in ["autotp:tp=1", "autotp:tp=2", "autotp:tp=4"] {
            with_trainers(&config, topology, &TrainerOptions::default(), |trainer| {
                let gradients = gradients(trainer);
                for (parameter, gradient) in trainer.engine().model().parameters().iter().zip(gradients) {
                    let zeros = gradient.iter().filter(|value| **value == 0.0).count();
                    // Only bytes that the batch lacks may leave rows of an untied embedding at zero.
                    let allowed = parameter.role == Role::Embedding && !config.tie_word_embeddings();
                    assert!(!gradient.is_empty(), "{name} {topology}: {} has no gradient", parameter.name);
                    assert!(zeros == 0 || allowed, "{name} {topology}: {} has zeros", parameter.name);
                    assert!(zeros < gradient.len(), "{name} {topology}: {} is all zero", parameter.name);
                }
            });
        }
    }
}

#[test]
fn gradients_are_slopes() {
    for (name, config) in models() {
        with_trainers(&config, "autotp:tp=1", &TrainerOptions::default(), |trainer| {
            let gradients = gradients(trainer);
            for (parameter, gradient) in gradients.iter().enumerate() {
                // The steepest element: its slope stands out from rounding.
                let steepest = |best: usize, index: usize| {
                    if gradient[index].abs() > gradient[best].abs() { index } else { best }
                };
                let element = (0..gradient.len()).fold(0, steepest);
                let step = 4e-3;
                let high = loss_with(trainer, parameter, element, step);
                let low = loss_with(trainer, parameter, element, -step);
                let slope = (high - low) / (2.0 * step);
                let error = (slope - gradient[element]).abs();
                let name = format!("{name} {}", trainer.engine().model().parameters()[parameter].name);
                assert!(
                    error < 2e-2 * gradient[element].abs() + 4e-4,
                    "{name}[{element}]: slope {slope}, gradient {}",
                    gradient[element]
                );
            }
        });
    }
}

/// The loss with one element of a parameter moved, which is moved back.
fn loss_with(trainer: &mut Trainer, parameter: usize, element: usize, by: f32) -> f32 {
    let before = move_element(trainer, parameter, element, |value| value + by);
    let loss = trainer.loss().expect("a forward pass");
    move_element(trainer, parameter, element, |_| before);
    loss
}

fn move_element(trainer: &mut Trainer, parameter: usize, element: usize, change: impl Fn(f32) -> f32) -> f32 {
    let runs = &trainer.engine().description(Stored::Weights).runs;
    let run = *runs.iter().find(|run| run.parameter == parameter).expect("one process has every parameter");
    let storage = &mut trainer.engine_mut().storages_mut(Stored::Weights)[run.storage];
    let numbers: &mut [f32] = bytemuck::cast_slice_mut(storage.memory_mut().as_mut_slice());
    let number = &mut numbers[run.offset.0 as usize + element];
    let before = *number;
    *number = change(before);
    before
}

#[test]
fn shards_of_gradients_are_those_of_one_process() {
    for (name, config) in models() {
        let options = TrainerOptions::default();
        let whole = with_trainers(&config, "autotp:tp=1", &options, gradients).remove(0);
        for topology in ["autotp:tp=2,dp=2", "autotp:tp=4"] {
            with_trainers(&config, topology, &options, |trainer| {
                let shards = gradients(trainer);
                let model = trainer.engine().model();
                let tp_rank = trainer.engine().description(Stored::Weights).tp_rank as usize;
                for (parameter, (shard, whole)) in model.parameters().iter().zip(shards.iter().zip(&whole)) {
                    let largest = whole.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                    for (index, found) in shard.iter().enumerate() {
                        let expected = whole[parameter.logical_index(tp_rank, index)];
                        let what = format!("{name} {topology} {}[{index}]", parameter.name);
                        assert!(
                            (found - expected).abs() < 1e-4 * largest.max(1e-2),
                            "{what}: gradient {found}, one process has {expected}"
                        );
                    }
                }
            });
        }
    }
}
