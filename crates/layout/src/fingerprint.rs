//! A hash of a layout that every rank computes alike, whatever its threads, memory or byte order.

use xxhash_rust::xxh3::Xxh3Default;

use crate::layout::Layout;
use crate::region::Region;

/// Feeds numbers and strings so that two different sequences never feed the same bytes.
struct Digest(Xxh3Default);

impl Digest {
    fn number(&mut self, value: u64) {
        self.0.update(&value.to_le_bytes());
    }

    fn numbers(&mut self, values: &[u64]) {
        self.number(values.len() as u64);
        for &value in values {
            self.number(value);
        }
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn region(&mut self, region: &Region) {
        self.numbers(region.origin());
        self.numbers(region.extent());
    }
}

pub(crate) fn of(layout: &Layout) -> u64 {
    let mut digest = Digest(Xxh3Default::new());
    let places = layout.places();
    digest.number(places.storages.len() as u64);
    for storage in &places.storages {
        digest.number(u64::from(storage.rank.0));
        digest.text(&storage.name);
        digest.number(storage.length.0);
    }
    digest.number(places.buffers.len() as u64);
    for buffer in &places.buffers {
        digest.numbers(&[u64::from(buffer.storage.0), buffer.offset.0, buffer.length.0]);
        digest.text(buffer.dtype.name());
    }
    digest.number(layout.geometry_count() as u64);
    for (_, geometry) in layout.geometries() {
        digest.numbers(geometry.shape());
        digest.number(geometry.blocks().len() as u64);
        for block in geometry.blocks() {
            digest.region(&block.region);
            digest.number(block.offset.0);
            digest.numbers(&block.strides);
            digest.number(block.scale.to_bits());
        }
    }
    digest.number(layout.parameters().len() as u64);
    for (id, parameter) in layout.parameters() {
        digest.text(&parameter.name);
        digest.numbers(&parameter.shape);
        digest.text(parameter.dtype.name());
        digest.number(layout.instances(id).len() as u64);
        for instance in layout.instances(id) {
            digest.numbers(&[u64::from(instance.buffer.0), instance.base.0, u64::from(instance.geometry.0)]);
        }
    }
    digest.number(layout.aliases().count() as u64);
    for (alias, id) in layout.aliases() {
        digest.text(alias);
        digest.number(u64::from(id.0));
    }
    digest.number(layout.fills().len() as u64);
    for fill in layout.fills() {
        digest.numbers(&[u64::from(fill.buffer.0), fill.offset.0]);
        digest.numbers(&fill.shape);
        digest.numbers(&fill.strides);
        digest.number(fill.value.len() as u64);
        digest.0.update(&fill.value);
    }
    digest.0.digest()
}
