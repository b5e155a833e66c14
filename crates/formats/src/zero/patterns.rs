//! Lists of Python patterns, as the trainer names parameters by them.
//!
//! ```text
//!   ^model\.layers\.0\.mlp\.up_proj\.weight$     one name: looked up, however many thousands there are
//!   .*layers\.\d+\.attention\.dense\.weight      a regular expression: tried one after the other, and few
//! ```
//!
//! As with Python's `re.match`, a pattern must match from the beginning of a name, and need not reach its end.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

use super::fault::ZeroFault;

/// Regular expressions in one list, at most.
const EXPRESSIONS_MAX: usize = 4096;
/// Bytes that a compiled expression may take.
const EXPRESSION_BYTES_MAX: usize = 1 << 20;

/// Patterns, and what each stands for.
#[derive(Clone, Debug)]
pub(super) struct Patterns<T> {
    key: &'static str,
    entries: Vec<(String, T)>,
    names: HashMap<String, usize>,
    expressions: Vec<(Regex, usize)>,
}

impl<T> Patterns<T> {
    /// `key` is where the list stands, for errors.
    pub(super) fn new(key: &'static str, entries: Vec<(String, T)>) -> Result<Self, ZeroFault> {
        let mut patterns = Self { key, entries: Vec::new(), names: HashMap::new(), expressions: Vec::new() };
        for (at, (pattern, _)) in entries.iter().enumerate() {
            // A name that is given again is tried like an expression, so that both are found.
            if let Some(name) = one_name(pattern).filter(|name| !patterns.names.contains_key(name)) {
                patterns.names.insert(name, at);
                continue;
            }
            if patterns.expressions.len() == EXPRESSIONS_MAX {
                let (found, limit) = (entries.len() as u64, EXPRESSIONS_MAX as u64);
                return Err(ZeroFault::TooLarge { key: format!("the number of {key}"), found, limit });
            }
            let expression =
                RegexBuilder::new(&format!("^(?:{pattern})")).size_limit(EXPRESSION_BYTES_MAX).build();
            let expression = expression.map_err(|cause| ZeroFault::Pattern {
                key: key.to_owned(),
                pattern: pattern.clone(),
                cause: cause.to_string(),
            })?;
            patterns.expressions.push((expression, at));
        }
        patterns.entries = entries;
        Ok(patterns)
    }

    /// What the only pattern that matches `name` stands for.
    pub(super) fn find(&self, name: &str) -> Result<Option<&T>, ZeroFault> {
        let named = self.names.get(name).copied();
        let matched = self.expressions.iter().filter(|(expression, _)| expression.is_match(name));
        let mut found = named.into_iter().chain(matched.map(|(_, at)| *at));
        let Some(first) = found.next() else { return Ok(None) };
        if let Some(second) = found.next() {
            return Err(ZeroFault::TwoPatterns {
                key: self.key.to_owned(),
                parameter: name.to_owned(),
                first: self.entries[first].0.clone(),
                second: self.entries[second].0.clone(),
            });
        }
        Ok(Some(&self.entries[first].1))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, value)| value)
    }
}

/// The only name that a pattern matches, where it is an escaped name between `^` and `$`.
fn one_name(pattern: &str) -> Option<String> {
    let mut name = String::new();
    let mut characters = pattern.strip_prefix('^')?.strip_suffix('$')?.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => name.push(characters.next().filter(|escaped| !escaped.is_alphanumeric())?),
            '.' | '^' | '$' | '*' | '+' | '?' | '{' | '}' | '[' | ']' | '|' | '(' | ')' => return None,
            plain => name.push(plain),
        }
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(list: &[&str]) -> Patterns<usize> {
        Patterns::new("patterns", list.iter().map(|one| (*one).to_owned()).zip(0..).collect()).unwrap()
    }

    #[test]
    fn as_python_matches() {
        let list = patterns(&[r"^a\.b\-c$", r"layers\.\d+\.dense", "^head$"]);
        let found = |name: &str| list.find(name).unwrap().copied();
        assert_eq!(found("a.b-c"), Some(0));
        assert_eq!(found("axb-c"), None);
        assert_eq!(found("layers.12.dense.weight"), Some(1), "a match need not reach the end");
        assert_eq!(found("x.layers.12.dense"), None, "but begins at the beginning");
        assert_eq!(found("head"), Some(2));
        assert_eq!(found("heads"), None);
        let two = patterns(&["a.*", ".*b"]).find("ab").unwrap_err();
        assert!(matches!(two, ZeroFault::TwoPatterns { .. }), "{two}");
        let twice = patterns(&["^a$", "^a$"]).find("a").unwrap_err();
        assert!(matches!(twice, ZeroFault::TwoPatterns { .. }), "{twice}");
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for pattern in ["(?=ahead)", "(", "a{1000}{1000}{1000}"] {
            let fault = Patterns::new("row", vec![(pattern.to_owned(), ())]).unwrap_err();
            assert!(
                matches!(&fault, ZeroFault::Pattern { pattern: found, .. } if found == pattern),
                "{fault}"
            );
        }
    }
}
