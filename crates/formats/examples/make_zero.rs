//! Writes a ZeRO checkpoint of a real size, to convert and measure with. No trainer is needed: every element is made
//! of its address.
//!
//! `cargo run --release -p reshard-formats --example make_zero -- FOLDER CONFIG.json autotp:tp=2,dp=2,zero=1`

#![allow(clippy::print_stderr)]

use std::error::Error;
use std::path::Path;

use reshard_formats::zero::write::{AdamGroup, TrainerState, ZeroFiles, files};
use reshard_formats::{FileId, Filling, Kept, Part, Silent, WriteOptions, write_files};
use reshard_layout::{Bytes, Layout, StorageId};
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Topology;
use reshard_parallel::zero::ZeroOptions;
use reshard_plan::{Plan, Policy, plan};
use reshard_transport::{Assembly, ReadAt};

/// A memory in which every four bytes are a small float made of where they stand. Replicas agree: a storage's number is
/// not in it.
struct Pattern;

impl ReadAt for Pattern {
    fn read_at(&self, _storage: StorageId, offset: Bytes, into: &mut [u8]) -> std::io::Result<()> {
        for (at, byte) in (offset.0..).zip(into) {
            let float = ((at / 4 % 8191) as f32 / 8191.0).to_le_bytes();
            *byte = float[(at % 4) as usize];
        }
        Ok(())
    }
}

fn state_of(engine: &DeepSpeed) -> TrainerState {
    let bf16 = engine.dtype() == reshard_layout::DType::Bf16;
    let stage = engine.topology().stage().number();
    let group = AdamGroup { step: 2, lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 };
    TrainerState {
        tag: "global_step2".to_owned(),
        global_steps: 2,
        skipped_steps: 0,
        global_samples: 8,
        groups: vec![group],
        clip_grad: 0.0,
        config: format!(r#"{{"bf16": {{"enabled": {bf16}}}, "zero_optimization": {{"stage": {stage}}}}}"#),
    }
}

/// What is kept in memory of a part's parameters.
fn layout(engine: &DeepSpeed, kept: &Kept) -> Result<Layout, Box<dyn Error>> {
    let state = State::ALL.into_iter().find(|state| state.name() == kept.name());
    Ok(state.map_or_else(|| engine.layout(), |state| engine.optimizer_layout(state))?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, config, topology] = arguments.as_slice() else {
        return Err("FOLDER, CONFIG.json and a topology are needed".into());
    };
    let config = ModelConfig::from_json(&std::fs::read_to_string(config)?)?;
    let Topology::AutoTp(topology) = Topology::parse(topology)? else {
        return Err("a topology of autotp is needed".into());
    };
    let engine = DeepSpeed::new(&config, &topology, ZeroOptions::default())?;
    let ZeroFiles { output, .. } = files(&engine, &state_of(&engine))?;
    let planned = |(kept, part): (Kept, Part)| {
        let plan = plan(&layout(&engine, &kept)?, &part.layout, Policy::Local)?;
        Ok::<_, Box<dyn Error>>((part, plan))
    };
    let parts: Vec<(Part, Plan)> = output.parts.into_iter().map(planned).collect::<Result<_, _>>()?;
    let assemblies: Vec<Assembly<'_>> =
        parts.iter().map(|(_, plan)| Assembly::new(plan)).collect::<Result<_, _>>()?;
    let fillings: Vec<Filling<'_>> = parts
        .iter()
        .zip(&assemblies)
        .map(|((part, _), assembly)| Filling { part, assembly, sources: &Pattern })
        .collect();
    std::fs::create_dir_all(folder)?;
    let all: Vec<FileId> = (0u32..).map(FileId).take(output.files.len()).collect();
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    let report = write_files(Path::new(folder), &output.files, &all, &fillings, &options, &Silent)?;
    eprintln!("{folder}: {} files, {} bytes", report.files, report.bytes_written);
    Ok(())
}
