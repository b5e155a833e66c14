//! `reshard inspect`: what a checkpoint or a layout file holds, from headers alone.

use std::path::{Path, PathBuf};

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indexmap::IndexMap;
use reshard_formats::{Checkpoint, Facts, Kept, Part};
use reshard_layout::affine::AffineFile;
use reshard_layout::{Bytes, Elements, Layout, ParameterId, volume};
use serde::Serialize;

use crate::error::CliError;
use crate::format::{bytes, count, trimmed};
use crate::side;

/// Arguments of `reshard inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// A checkpoint, or a layout file in the affine form (.json)
    path: PathBuf,
    /// Say which box of this parameter lies where
    #[arg(long, value_name = "NAME")]
    parameter: Option<String>,
    /// Machine-readable output, with every parameter
    #[arg(long)]
    json: bool,
}

/// The keys of `--json`: bytes are integers, shapes are lists.
#[derive(Serialize)]
struct Output {
    path: PathBuf,
    format: String,
    files: u64,
    bytes: Bytes,
    world: u32,
    stage: Option<u32>,
    tp: Option<u32>,
    dp: Option<u32>,
    step: Option<u64>,
    frozen: Vec<String>,
    buffers: Vec<String>,
    metadata: IndexMap<String, String>,
    /// What is odd about it, and was read all the same.
    notes: Vec<String>,
    kept: Vec<KeptOutput>,
}

#[derive(Serialize)]
struct KeptOutput {
    name: String,
    bytes: Bytes,
    parameters: Vec<ParameterOutput>,
    aliases: IndexMap<String, String>,
}

#[derive(Serialize)]
struct ParameterOutput {
    name: String,
    shape: Vec<u64>,
    dtype: String,
    pieces: u64,
    /// The ranks that hold a part of it.
    holders: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    boxes: Vec<BoxOutput>,
}

/// Where one box lies.
#[derive(Serialize)]
struct BoxOutput {
    origin: Vec<u64>,
    shape: Vec<u64>,
    rank: u32,
    /// The file, or the name of the storage in a layout file.
    holder: String,
    /// Byte of the file, or of the storage, at which it begins.
    offset: Bytes,
    /// Elements between neighbours along each axis.
    strides: Vec<u64>,
}

/// What there is to look into.
enum Opened {
    Checkpoint(Box<Checkpoint>),
    Layout(Box<Layout>),
}

/// Looks, and returns what to print.
pub(crate) fn run(arguments: &InspectArguments) -> Result<String, CliError> {
    let opened = open(&arguments.path)?;
    let output = match &opened {
        Opened::Checkpoint(checkpoint) => of_checkpoint(checkpoint, arguments)?,
        Opened::Layout(layout) => of_layout(layout, arguments)?,
    };
    if arguments.json {
        return Ok(serde_json::to_string_pretty(&output)?);
    }
    Ok(if arguments.parameter.is_some() { boxes(&output) } else { human(&output) })
}

fn open(path: &Path) -> Result<Opened, CliError> {
    let name = path.to_string_lossy();
    if !name.ends_with(".json") || name.ends_with(".index.json") {
        return Ok(Opened::Checkpoint(Box::new(Checkpoint::open(path)?)));
    }
    let wrong = |error| CliError::Layout { context: path.display().to_string(), error };
    let file = AffineFile::from_json(&side::read(path)?).map_err(wrong)?;
    Ok(Opened::Layout(Box::new(file.to_layout().map_err(wrong)?)))
}

fn of_checkpoint(checkpoint: &Checkpoint, arguments: &InspectArguments) -> Result<Output, CliError> {
    let Facts { stage, tp, dp, step, frozen, buffers, metadata, notes, .. } = checkpoint.facts.clone();
    let files = &checkpoint.files;
    let ids = (0..u32::try_from(files.len()).unwrap_or(u32::MAX)).map(reshard_formats::FileId);
    let world = checkpoint.parts.values().map(|part| part.layout.world()).max().unwrap_or(0);
    let mut kept = Vec::new();
    for (name, part) in &checkpoint.parts {
        let place = |buffer| {
            let buffer = part.layout.places().buffer(buffer);
            let span = part.spans[buffer.storage.index()];
            (files.path(span.file).display().to_string(), span.offset + buffer.offset)
        };
        kept.extend(of_part(name, &part.layout, arguments, place));
    }
    found(&kept, checkpoint.parts.values().map(|part: &Part| &part.layout), arguments)?;
    Ok(Output {
        path: arguments.path.clone(),
        format: checkpoint.format.to_string(),
        files: files.len() as u64,
        bytes: ids.map(|id| files.length(id)).sum(),
        world,
        stage,
        tp,
        dp,
        step,
        frozen,
        buffers,
        metadata,
        notes,
        kept,
    })
}

fn of_layout(layout: &Layout, arguments: &InspectArguments) -> Result<Output, CliError> {
    let place = |buffer| {
        let buffer = layout.places().buffer(buffer);
        (layout.places().storage(buffer.storage).name.clone(), buffer.offset)
    };
    let kept: Vec<KeptOutput> = of_part(&Kept::Weights, layout, arguments, place).into_iter().collect();
    found(&kept, std::iter::once(layout), arguments)?;
    Ok(Output {
        path: arguments.path.clone(),
        format: "layout".to_owned(),
        files: 1,
        bytes: layout.places().storages.iter().map(|storage| storage.length).sum(),
        world: layout.world(),
        stage: None,
        tp: None,
        dp: None,
        step: None,
        frozen: Vec::new(),
        buffers: Vec::new(),
        metadata: IndexMap::new(),
        notes: Vec::new(),
        kept,
    })
}

/// A parameter that was asked for must be somewhere.
fn found<'a>(
    kept: &[KeptOutput],
    mut layouts: impl Iterator<Item = &'a Layout>,
    arguments: &InspectArguments,
) -> Result<(), CliError> {
    let Some(name) = arguments.parameter.as_ref().filter(|_| kept.is_empty()) else { return Ok(()) };
    let nearest = layouts.find_map(|layout| layout.nearest_name(name));
    Err(CliError::Usage {
        message: format!("{} has no parameter {name}", arguments.path.display()),
        hint: nearest.map(|nearest| format!("the nearest name is {nearest}")),
    })
}

/// One kept tensor; nothing if it lacks the parameter that was asked for.
fn of_part(
    kept: &Kept,
    layout: &Layout,
    arguments: &InspectArguments,
    place: impl Fn(reshard_layout::BufferId) -> (String, Bytes),
) -> Option<KeptOutput> {
    let wanted: Vec<ParameterId> = match &arguments.parameter {
        Some(name) => vec![layout.find(name)?],
        None => layout.parameters().map(|(id, _)| id).collect(),
    };
    let parameter = |id: ParameterId| {
        let parameter = layout.parameter(id);
        let mut holders: Vec<u32> = layout.instances(id).iter().map(|at| at.rank.0).collect();
        holders.dedup();
        let boxes = layout.pieces_of(id).filter(|_| arguments.parameter.is_some()).map(|piece| {
            let (holder, begin) = place(piece.buffer);
            BoxOutput {
                origin: piece.region.origin().to_vec(),
                shape: piece.region.extent().to_vec(),
                rank: piece.rank.0,
                holder,
                offset: begin + piece.offset.bytes(layout.places().buffer(piece.buffer).dtype),
                strides: piece.strides.to_vec(),
            }
        });
        ParameterOutput {
            name: parameter.name.clone(),
            shape: parameter.shape.to_vec(),
            dtype: parameter.dtype.to_string(),
            pieces: layout.pieces_of(id).count() as u64,
            holders,
            boxes: boxes.collect(),
        }
    };
    let total = |id: &ParameterId| {
        let parameter = layout.parameter(*id);
        Elements(volume(&parameter.shape).unwrap_or(0)).bytes(parameter.dtype)
    };
    Some(KeptOutput {
        name: kept.name().to_owned(),
        bytes: wanted.iter().map(total).sum(),
        aliases: layout
            .aliases()
            .map(|(alias, id)| (alias.to_owned(), layout.parameter(id).name.clone()))
            .collect(),
        parameters: wanted.into_iter().map(parameter).collect(),
    })
}

/// Parameters that are listed before the rest is counted.
const PARAMETERS_SHOWN: usize = 40;

fn human(output: &Output) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("format", output.format.clone());
    row("files", format!("{}, {}", count(output.files), bytes(output.bytes)));
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    let facts = [
        ("stage", number(output.stage)),
        ("tensor parallel", number(output.tp)),
        ("data parallel", number(output.dp)),
        ("world", Some(output.world.to_string())),
        ("step", output.step.map(count)),
        ("frozen", named(&output.frozen)),
        ("buffers", named(&output.buffers)),
    ];
    for (name, value) in facts {
        if let Some(value) = value {
            row(name, value);
        }
    }
    for (name, value) in &output.metadata {
        row(name, value.clone());
    }
    for note in &output.notes {
        row("note", note.clone());
    }
    for kept in &output.kept {
        let tensors = format!("{} tensors, {}", count(kept.parameters.len() as u64), bytes(kept.bytes));
        row(&kept.name, tensors);
    }
    let mut text = trimmed(&table);
    if let Some(first) = output.kept.first() {
        text.push_str(&format!("\n\n{}:\n{}", first.name, parameters(first)));
    }
    text
}

fn named(names: &[String]) -> Option<String> {
    let first = names.first()?;
    Some(match names.len() {
        1 => first.clone(),
        more => format!("{}, the first is {first}", count(more as u64)),
    })
}

fn parameters(kept: &KeptOutput) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["name", "shape", "dtype", "pieces", "ranks"]);
    for parameter in kept.parameters.iter().take(PARAMETERS_SHOWN) {
        let holders: Vec<String> = parameter.holders.iter().map(u32::to_string).collect();
        let holders = if holders.len() > 16 { format!("{} ranks", holders.len()) } else { holders.join(" ") };
        let shape = format!("{:?}", parameter.shape);
        let pieces = count(parameter.pieces);
        table.add_row([parameter.name.clone(), shape, parameter.dtype.clone(), pieces, holders]);
    }
    let mut text = trimmed(&table);
    for (alias, name) in &kept.aliases {
        text.push_str(&format!("\n{alias} is {name}"));
    }
    if let Some(more) = kept.parameters.len().checked_sub(PARAMETERS_SHOWN).filter(|&more| more > 0) {
        text.push_str(&format!("\nand {} more: --json has all", count(more as u64)));
    }
    text
}

fn boxes(output: &Output) -> String {
    let mut text = String::new();
    for kept in &output.kept {
        for parameter in &kept.parameters {
            let head = format!("{} {} {:?} {}", kept.name, parameter.name, parameter.shape, parameter.dtype);
            let mut table = Table::new();
            table.load_style(presets::NOTHING);
            table.set_header(["rank", "origin", "shape", "byte", "strides", "in"]);
            for at in &parameter.boxes {
                table.add_row([
                    at.rank.to_string(),
                    format!("{:?}", at.origin),
                    format!("{:?}", at.shape),
                    at.offset.to_string(),
                    format!("{:?}", at.strides),
                    at.holder.clone(),
                ]);
            }
            if let Some(column) = table.column_mut(3) {
                column.set_cell_alignment(CellAlignment::Right);
            }
            text.push_str(&format!("{head}\n{}\n\n", trimmed(&table)));
        }
    }
    text.trim_end().to_owned()
}
