//! JSON objects with every name that they hold, also one that is there twice.
//!
//! ```text
//!   {"a": 1, "a": 2}    a map keeps a: 2, another parser a: 1    ──►  repeated name a
//! ```

use std::fmt;
use std::marker::PhantomData;

use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// The entries of a JSON object, in order.
#[derive(Debug)]
pub(crate) struct Entries<V>(pub(crate) Vec<(String, V)>);

impl<V> Entries<V> {
    /// The entries as a map.
    ///
    /// # Errors
    /// The first name that is given twice.
    pub(crate) fn unique(self) -> Result<IndexMap<String, V>, String> {
        let mut map = IndexMap::with_capacity(self.0.len());
        for (name, value) in self.0 {
            if map.contains_key(&name) {
                return Err(name);
            }
            map.insert(name, value);
        }
        Ok(map)
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

impl<V: Serialize> Serialize for Entries<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

struct EntriesVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
    type Value = Entries<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value =
                map.next_value().map_err(|cause| A::Error::custom(format_args!("{name}: {cause}")))?;
            entries.push((name, value));
        }
        Ok(Entries(entries))
    }
}
