//! The keywords of JSON Schema.

/// How a keyword holds sub-schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// One schema.
    One,
    /// An array of schemas.
    List,
    /// An object whose values are schemas.
    Map,
    /// One schema or an array of schemas: `items` of older drafts.
    OneOrList,
}

/// Keywords with sub-schemas, for finding `$id` and `$anchor`.
pub(super) const APPLICATORS: [(&str, Holds); 23] = [
    ("$defs", Holds::Map),
    ("definitions", Holds::Map),
    ("properties", Holds::Map),
    ("patternProperties", Holds::Map),
    ("dependentSchemas", Holds::Map),
    ("dependencies", Holds::Map),
    ("allOf", Holds::List),
    ("anyOf", Holds::List),
    ("oneOf", Holds::List),
    ("prefixItems", Holds::List),
    ("items", Holds::OneOrList),
    ("additionalItems", Holds::One),
    ("additionalProperties", Holds::One),
    ("not", Holds::One),
    ("if", Holds::One),
    ("then", Holds::One),
    ("else", Holds::One),
    ("contains", Holds::One),
    ("propertyNames", Holds::One),
    ("unevaluatedItems", Holds::One),
    ("unevaluatedProperties", Holds::One),
    ("contentSchema", Holds::One),
    ("$recursiveAnchor", Holds::One),
];

/// Keywords that constrain an instance and that the engine cannot enforce, with a hint each.
pub(super) const REFUSED: [(&str, &str); 16] = [
    ("not", "list what is allowed instead"),
    ("if", "use anyOf with one branch for each case"),
    ("contains", "give items a schema instead"),
    ("dependentRequired", "use anyOf with one branch for each case"),
    ("dependentSchemas", "use anyOf with one branch for each case"),
    ("dependencies", "use anyOf with one branch for each case"),
    ("propertyNames", "use patternProperties with additionalProperties: false"),
    ("uniqueItems", "items cannot be compared while they are generated"),
    ("unevaluatedItems", "use items: false beside prefixItems"),
    ("unevaluatedProperties", "use additionalProperties: false"),
    ("$dynamicRef", "use $ref"),
    ("$recursiveRef", "use $ref"),
    ("extends", "use allOf"),
    ("disallow", "list what is allowed instead"),
    ("divisibleBy", "use multipleOf"),
    ("x-guidance", "settings of the engine are not part of a schema"),
];

/// The drafts whose keywords are known, by `$schema` without a trailing `#`.
pub(super) const DRAFTS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];
