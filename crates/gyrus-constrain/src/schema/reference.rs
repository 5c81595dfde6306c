//! References between the schemas of a document. Nothing is fetched.

use std::collections::HashMap;

use serde_json::Value;

use super::keywords::{APPLICATORS, Holds};
use super::values::Keyword;
use crate::Error;

/// A schema inside a document: the keys and indices that lead to it from the root.
pub(super) type Place = Vec<String>;

/// Bytes of a place and of the URI around it, where both are kept: each name and each reference has its own copy.
const MAX_ADDRESS: usize = 4096;

/// Whether a place and a URI are short enough to be kept.
pub(super) fn is_short(place: &[String], uri: &str) -> bool {
    place.iter().map(String::len).sum::<usize>() + uri.len() <= MAX_ADDRESS
}

/// The schemas that `$id` and `$anchor` name.
#[derive(Debug, Default)]
pub(super) struct Registry {
    /// Whether the draft is 7 or older: keywords beside `$ref` are ignored.
    legacy: bool,
    /// By absolute URI without a fragment.
    resources: HashMap<String, Place>,
    /// By URI of the resource and anchor.
    anchors: HashMap<(String, String), Place>,
}

impl Registry {
    pub(super) fn new(root: &Value) -> Result<Registry, Error> {
        let draft = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let legacy = draft.starts_with("http://json-schema.org/draft-0");
        let mut registry = Registry { legacy, ..Registry::default() };
        registry.resources.insert(String::new(), Vec::new());
        registry.visit(root, "", &mut Vec::new())?;
        Ok(registry)
    }

    fn visit(&mut self, schema: &Value, base: &str, place: &mut Place) -> Result<(), Error> {
        let Some(object) = schema.as_object() else { return Ok(()) };
        let base = self.base_of(schema, base);
        if self.only_refers(schema) {
            return Ok(());
        }
        let named = ["$id", "$anchor", "$dynamicAnchor"].into_iter().find(|name| object.contains_key(*name));
        if let Some(name) = named.filter(|_| !is_short(place, &base)) {
            let reason = format!("its URI and its JSON pointer have more than {MAX_ADDRESS} bytes");
            return Err(Keyword { name, place: &pointer(place) }.refused(reason));
        }
        if object.get("$id").is_some_and(Value::is_string) {
            self.resources.entry(base.clone()).or_insert_with(|| place.clone());
        }
        for name in ["$anchor", "$dynamicAnchor"] {
            if let Some(Value::String(anchor)) = object.get(name) {
                self.anchors.entry((base.clone(), anchor.clone())).or_insert_with(|| place.clone());
            }
        }
        // Drafts 4 to 7 write an anchor as `$id: "#name"`.
        if let Some(anchor) = object.get("$id").and_then(Value::as_str).and_then(|id| id.strip_prefix('#')) {
            self.anchors.entry((base.clone(), anchor.to_owned())).or_insert_with(|| place.clone());
        }
        for (keyword, holds) in APPLICATORS {
            let Some(value) = object.get(keyword) else { continue };
            place.push(keyword.to_owned());
            let children: Vec<(Option<String>, &Value)> = match (holds, value) {
                (Holds::One | Holds::OneOrList, Value::Object(_)) => vec![(None, value)],
                (Holds::Map, Value::Object(map)) => {
                    map.iter().map(|(key, value)| (Some(key.clone()), value)).collect()
                }
                (Holds::List | Holds::OneOrList, Value::Array(list)) => {
                    list.iter().enumerate().map(|(at, value)| (Some(at.to_string()), value)).collect()
                }
                _ => Vec::new(),
            };
            for (key, child) in children {
                let depth = place.len();
                place.extend(key);
                self.visit(child, &base, place)?;
                place.truncate(depth);
            }
            place.pop();
        }
        Ok(())
    }

    /// The schema that a reference in a schema with this base URI means.
    pub(super) fn resolve(&self, root: &Value, base: &str, reference: &str) -> Result<Place, String> {
        let uri = join(base, reference);
        let (resource, fragment) = uri.split_once('#').unwrap_or((&uri, ""));
        let missing = || format!("{resource:?} is not in this schema, and references are not fetched");
        let start = self.resources.get(resource).ok_or_else(missing)?;
        let fragment = percent_decoded(fragment);
        if !fragment.is_empty() && !fragment.starts_with('/') {
            let anchor = self.anchors.get(&(resource.to_owned(), fragment.clone()));
            return anchor.cloned().ok_or_else(|| format!("there is no anchor {fragment:?}"));
        }
        let mut place = start.clone();
        place.extend(fragment.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")));
        match at(root, &place) {
            Some(_) if !is_short(&place, "") => {
                Err(format!("the JSON pointer of what it refers to has more than {MAX_ADDRESS} bytes"))
            }
            Some(_) => Ok(place),
            None => Err(format!("there is nothing at {reference:?}")),
        }
    }
}

impl Registry {
    /// Whether a schema is a reference and nothing else.
    pub(super) fn only_refers(&self, schema: &Value) -> bool {
        self.legacy && schema.get("$ref").is_some_and(Value::is_string)
    }

    /// The base URI around the schema at a place.
    pub(super) fn base_at(&self, root: &Value, place: &[String]) -> String {
        let above = (0..place.len()).filter_map(|depth| at(root, &place[..depth]));
        above.fold(String::new(), |base, value| self.base_of(value, &base))
    }

    /// The base URI inside a schema.
    pub(super) fn base_of(&self, schema: &Value, base: &str) -> String {
        let id = schema.get("$id").and_then(Value::as_str).filter(|_| !self.only_refers(schema));
        match id.map(|id| id.split('#').next().unwrap_or_default()) {
            None | Some("") => base.to_owned(),
            Some(id) => join(base, id),
        }
    }
}

/// A place as a JSON pointer in a fragment.
pub(super) fn pointer(place: &[String]) -> String {
    let parts = place.iter().map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1")));
    format!("#{}", parts.collect::<String>())
}

/// The value at a place.
pub(super) fn at<'a>(root: &'a Value, place: &[String]) -> Option<&'a Value> {
    place.iter().try_fold(root, |value, part| match value {
        Value::Object(map) => map.get(part),
        Value::Array(list) => list.get(part.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Resolves a URI reference against a base (RFC 3986, section 5.2).
fn join(base: &str, reference: &str) -> String {
    let (path, fragment) = match reference.split_once('#') {
        Some((path, fragment)) => (path, format!("#{fragment}")),
        None => (reference, String::new()),
    };
    let has_scheme = |uri: &str| {
        let scheme = uri.split_once(':').map_or("", |(scheme, _)| scheme);
        let letter = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
        letter && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'.' | b'-'))
    };
    if path.is_empty() {
        return format!("{base}{fragment}");
    }
    if has_scheme(path) {
        return format!("{path}{fragment}");
    }
    let scheme_end = if has_scheme(base) { base.find(':').map_or(0, |at| at + 1) } else { 0 };
    let root_end = match base[scheme_end..].strip_prefix("//") {
        Some(rest) => scheme_end + 2 + rest.find('/').unwrap_or(rest.len()),
        None => scheme_end,
    };
    if let Some(rest) = path.strip_prefix("//") {
        return format!("{}//{rest}{fragment}", &base[..scheme_end]);
    }
    let merged = if path.starts_with('/') {
        path.to_owned()
    } else {
        let folder = base[root_end..].rfind('/').map_or("", |at| &base[root_end..=root_end + at]);
        let folder = if folder.is_empty() && root_end > scheme_end { "/" } else { folder };
        format!("{folder}{path}")
    };
    format!("{}{}{fragment}", &base[..root_end], without_dots(&merged))
}

fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for (at, part) in path.split('/').enumerate() {
        match part {
            "." => {}
            ".." if parts.len() > 1 => drop(parts.pop()),
            ".." if at > 0 => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn percent_decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.as_bytes().iter();
    while let Some(&byte) = bytes.next() {
        let code = bytes.as_slice().get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| byte == b'%') {
            Some(decoded) => {
                out.push(decoded);
                bytes.nth(1);
            }
            None => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn references_resolve_as_rfc_3986_says() {
        let cases = [
            ("http://a/b/c/d", "g", "http://a/b/c/g"),
            ("http://a/b/c/d", "./g#x", "http://a/b/c/g#x"),
            ("http://a/b/c/d", "../../g", "http://a/g"),
            ("http://a/b/c/d", "/g", "http://a/g"),
            ("http://a/b/c/d", "//g", "http://g"),
            ("http://a/b/c/d", "#s", "http://a/b/c/d#s"),
            ("http://a/b/c/d", "urn:x:y", "urn:x:y"),
            ("http://a", "g", "http://a/g"),
            ("urn:uuid:1", "#/b", "urn:uuid:1#/b"),
            ("", "node.json#/a", "node.json#/a"),
        ];
        for (base, reference, expected) in cases {
            assert_eq!(join(base, reference), expected, "{reference} in {base}");
        }
    }
}
