//! Values of a pickle by their keys, so that an error names the key.
//!
//! ```text
//!   optimizer_state_dict.base_optimizer_state.state.0.exp_avg is no tensor
//! ```

use reshard_layout::volume;

use super::fault::ZeroFault;
use crate::pickle::Value;

/// Axes of a tensor, at most.
const AXES_MAX: usize = 32;
/// Elements of a tensor, of all tensors of a group, and along an axis, at most: far above any model, and the sum over
/// all ranks of a checkpoint still fits in 64 bits.
pub(super) const ELEMENTS_MAX: u64 = 1 << 46;

/// A value, and the keys that lead to it.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    value: Value<'a>,
    key: String,
}

impl<'a> Field<'a> {
    pub(super) fn root(value: Value<'a>) -> Self {
        Self { value, key: String::new() }
    }

    pub(super) fn value(&self) -> Value<'a> {
        self.value
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    fn below(&self, name: &str, value: Value<'a>) -> Self {
        let key = if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) };
        Self { value, key }
    }

    pub(super) fn wrong(&self, expected: &'static str) -> ZeroFault {
        let key = if self.key.is_empty() { "the whole".to_owned() } else { self.key.clone() };
        ZeroFault::WrongType { key, expected }
    }

    /// The value of a key of a dictionary, or an attribute of an object.
    pub(super) fn get(&self, name: &str) -> Result<Self, ZeroFault> {
        self.member(name)?.ok_or_else(|| {
            let key = if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) };
            ZeroFault::Missing { key }
        })
    }

    /// The same, or `None` where it is absent or Python's `None`.
    pub(super) fn find(&self, name: &str) -> Result<Option<Self>, ZeroFault> {
        Ok(self.member(name)?.filter(|field| !field.value.is_none()))
    }

    fn member(&self, name: &str) -> Result<Option<Self>, ZeroFault> {
        let found = self.value.get(name).or_else(|| self.value.attribute(name));
        if found.is_none() && self.value.entries().is_none() && self.value.as_object().is_none() {
            return Err(self.wrong("dictionary"));
        }
        Ok(found.map(|value| self.below(name, value)))
    }

    pub(super) fn number(&self) -> Result<u64, ZeroFault> {
        // An enum is pickled as a call of its class with its value.
        let of_enum = || self.value.arguments().first().and_then(|value| value.as_u64());
        self.value.as_u64().or_else(of_enum).ok_or_else(|| self.wrong("whole number"))
    }

    pub(super) fn float(&self) -> Result<f64, ZeroFault> {
        self.value.as_f64().ok_or_else(|| self.wrong("number"))
    }

    pub(super) fn text(&self) -> Result<&'a str, ZeroFault> {
        self.value.as_str().ok_or_else(|| self.wrong("text"))
    }

    pub(super) fn items(&self) -> Result<Vec<Self>, ZeroFault> {
        let items = self.value.items().ok_or_else(|| self.wrong("list"))?;
        Ok(items.into_iter().enumerate().map(|(at, value)| self.below(&at.to_string(), value)).collect())
    }

    pub(super) fn texts(&self) -> Result<Vec<&'a str>, ZeroFault> {
        self.items()?.iter().map(Self::text).collect()
    }

    pub(super) fn numbers(&self) -> Result<Vec<u64>, ZeroFault> {
        self.value.as_numbers().ok_or_else(|| self.wrong("list of numbers"))
    }

    /// Keys that are texts or numbers, and their values.
    pub(super) fn entries(&self) -> Result<Vec<(String, Self)>, ZeroFault> {
        let entries = self.value.entries().ok_or_else(|| self.wrong("dictionary"))?;
        let named = entries.map(|(key, value)| {
            let number = || key.as_i64().map(|number| number.to_string());
            let name = key.as_str().map(str::to_owned).or_else(number);
            let name = name.ok_or_else(|| self.wrong("dictionary with names as keys"))?;
            let field = self.below(&name, value);
            Ok((name, field))
        });
        named.collect()
    }

    /// A shape whose elements can be counted.
    pub(super) fn shape(&self) -> Result<Vec<u64>, ZeroFault> {
        let shape = self.value.as_numbers().ok_or_else(|| self.wrong("shape"))?;
        let over = |found, limit| ZeroFault::TooLarge { key: self.key.clone(), found, limit };
        if shape.len() > AXES_MAX {
            return Err(over(shape.len() as u64, AXES_MAX as u64));
        }
        match volume(&shape) {
            Some(elements) if elements <= ELEMENTS_MAX => {
                let longest = shape.iter().copied().max().unwrap_or(0);
                if longest > ELEMENTS_MAX { Err(over(longest, ELEMENTS_MAX)) } else { Ok(shape) }
            }
            elements => Err(over(elements.unwrap_or(u64::MAX), ELEMENTS_MAX)),
        }
    }
}
