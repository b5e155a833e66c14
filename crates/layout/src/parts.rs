//! A layout taken apart, as it is serialised: only numbers and names, which are checked again on the way back.

use serde::{Deserialize, Serialize};

use crate::error::LayoutError;
use crate::geometry::Geometry;
use crate::layout::{Fill, Instance, Layout, LayoutBuilder, Parameter};
use crate::places::{ParameterId, Places};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parts {
    parameters: Vec<Parameter>,
    aliases: Vec<(String, ParameterId)>,
    places: Places,
    geometries: Vec<Geometry>,
    instances: Vec<Instance>,
    fills: Vec<Fill>,
}

impl From<Layout> for Parts {
    fn from(layout: Layout) -> Self {
        Self {
            parameters: layout.parameters.into_values().collect(),
            aliases: layout.aliases.into_iter().collect(),
            places: layout.places,
            geometries: layout.geometries.into_iter().collect(),
            instances: layout.instances.into_iter().flatten().collect(),
            fills: layout.fills,
        }
    }
}

impl TryFrom<Parts> for Layout {
    type Error = LayoutError;

    fn try_from(parts: Parts) -> Result<Self, LayoutError> {
        parts.check_ids()?;
        let mut builder = LayoutBuilder::new();
        for parameter in parts.parameters {
            builder.parameter(&parameter.name, parameter.shape, parameter.dtype);
        }
        for (name, parameter) in &parts.aliases {
            builder.alias(name, *parameter);
        }
        for storage in parts.places.storages {
            builder.storage(storage.rank, &storage.name, storage.length);
        }
        for buffer in parts.places.buffers {
            builder.buffer(buffer.storage, buffer.offset, buffer.dtype, buffer.length);
        }
        let ids: Vec<_> = parts.geometries.into_iter().map(|geometry| builder.geometry(geometry)).collect();
        for at in parts.instances {
            builder.place(at.parameter, at.buffer, at.base, ids[at.geometry.0 as usize]);
        }
        for fill in parts.fills {
            builder.fill(fill);
        }
        builder.build()
    }
}

impl Parts {
    /// A builder takes only ids that it gave out.
    fn check_ids(&self) -> Result<(), LayoutError> {
        let wrong = |what: &str, id: u32, count: usize| {
            if (id as usize) < count {
                return Ok(());
            }
            Err(LayoutError::LayoutFile { cause: format!("{what} {id} of {count}") })
        };
        for (_, parameter) in &self.aliases {
            wrong("parameter", parameter.0, self.parameters.len())?;
        }
        for buffer in &self.places.buffers {
            wrong("storage", buffer.storage.0, self.places.storages.len())?;
        }
        for at in &self.instances {
            wrong("parameter", at.parameter.0, self.parameters.len())?;
            wrong("buffer", at.buffer.0, self.places.buffers.len())?;
            wrong("geometry", at.geometry.0, self.geometries.len())?;
        }
        for fill in &self.fills {
            wrong("buffer", fill.buffer.0, self.places.buffers.len())?;
        }
        Ok(())
    }
}
