//! A JSON value and its place in the file, for errors that name it.

use serde_json::Value;

use crate::error::TokenizerError;

/// A value and its path.
pub(super) struct Node<'a> {
    file: &'static str,
    path: String,
    value: &'a Value,
}

impl<'a> Node<'a> {
    pub(super) fn new(file: &'static str, path: &str, value: &'a Value) -> Self {
        Self { file, path: path.to_owned(), value }
    }

    pub(super) fn fail(&self, what: impl Into<String>) -> TokenizerError {
        TokenizerError::Json { file: self.file, path: self.path.clone(), what: what.into() }
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    /// A member that is neither missing nor null.
    pub(super) fn get(&self, key: &str) -> Option<Node<'a>> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Node { file: self.file, path: format!("{}.{key}", self.path), value })
    }

    pub(super) fn require(&self, key: &str) -> Result<Node<'a>, TokenizerError> {
        self.get(key).ok_or_else(|| self.fail(format!("{key:?} is missing")))
    }

    /// The elements of a list.
    pub(super) fn elements(&self) -> Result<impl Iterator<Item = Node<'a>>, TokenizerError> {
        let list = self.value.as_array().ok_or_else(|| self.fail("it must be a list"))?;
        let (file, path) = (self.file, self.path.clone());
        Ok(list.iter().enumerate().map(move |(at, value)| Node {
            file,
            path: format!("{path}[{at}]"),
            value,
        }))
    }

    pub(super) fn text(&self) -> Result<&'a str, TokenizerError> {
        self.value.as_str().ok_or_else(|| self.fail("it must be a string"))
    }

    /// The id of a token.
    pub(super) fn id(&self) -> Result<u32, TokenizerError> {
        let id = self.value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| self.fail("it must be a token id"))
    }

    /// A flag, or its default if it is missing.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, TokenizerError> {
        match self.get(key) {
            Some(node) => node.value.as_bool().ok_or_else(|| node.fail("it must be true or false")),
            None => Ok(default),
        }
    }

    /// A number that counts, or its default if it is missing.
    pub(super) fn count(&self, key: &str, default: usize) -> Result<usize, TokenizerError> {
        match self.get(key) {
            Some(node) => {
                let count = node.value.as_u64().and_then(|count| usize::try_from(count).ok());
                count.ok_or_else(|| node.fail("it must be a whole number"))
            }
            None => Ok(default),
        }
    }

    /// The error for a value that is not supported.
    pub(super) fn unsupported(&self, supported: &str) -> TokenizerError {
        let shown: String = self.value.to_string().chars().take(100).collect();
        self.fail(format!("{shown} is not supported; supported: {supported}"))
    }
}
