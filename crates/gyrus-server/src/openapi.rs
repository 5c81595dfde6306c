//! The description of the routes, made of the table of routes.

use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, json_response};
use crate::routes::{BodyKind, Call, ROUTES, Route};
use crate::schemas;

/// `/openapi.json`.
pub(crate) async fn serve(_: Call) -> Result<Response, Failure> {
    Ok(json_response(&description()))
}

/// The description, in the format of OpenAPI 3.1.
pub(crate) fn description() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let path = route.path.replace("{*", "{");
        let tag = route.summary.split_once(": ").map_or("Gyrus", |(tag, _)| tag);
        let mut operation = json!({
            "summary": route.summary,
            "operationId": operation_id(route.method.as_str(), route.path),
            "tags": [tag],
            "responses": {
                "200": { "description": "Success" },
                "default": { "description": "An error in the format of the route's API" },
            },
        });
        let kind = match route.body {
            BodyKind::None => None,
            BodyKind::Json => Some("application/json"),
            BodyKind::Form => Some("multipart/form-data"),
        };
        if let Some(kind) = kind {
            let properties = properties(route);
            let schema = json!({ "type": "object", "required": route.required, "properties": properties });
            operation["requestBody"] = json!({ "required": true, "content": { kind: { "schema": schema } } });
        }
        if let Some((_, name)) = path.split_once('{') {
            let name = name.trim_end_matches('}');
            operation["parameters"] =
                json!([{ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }]);
        }
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.method.as_str().to_lowercase()] = operation;
    }
    let schemes = json!({ "key": { "type": "http", "scheme": "bearer" } });
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Gyrus", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": { "securitySchemes": schemes },
        "security": [{}, { "key": [] }],
    })
}

/// The fields of a request. `{}` is a field of any type.
fn properties(route: &Route) -> Value {
    let mut properties = schemas::properties(route.path);
    let mut add = |name: &str, schema: Value| {
        properties.entry(name).or_insert(schema);
    };
    if route.body == BodyKind::Form {
        add("file", json!({ "type": "string", "format": "binary" }));
    }
    route.required.iter().for_each(|name| add(name, json!({})));
    Value::Object(properties)
}

fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(method.to_lowercase(), |all, word| format!("{all}_{word}"))
}
