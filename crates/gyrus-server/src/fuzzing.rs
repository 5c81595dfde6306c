//! An entrance for fuzzing: bodies of requests, without a server.

/// Parses a body as a request of every wire format.
pub fn requests(body: &[u8]) {
    let _ = crate::openai::chat::parse(body);
    let _ = crate::openai::completions::parse(body);
    let _ = crate::openai::responses::parse(body);
    let _ = crate::anthropic::parse(body, false);
    let _ = crate::ollama::parse_chat(body);
    let _ = crate::ollama::parse_generate(body);
    let _ = crate::llama_cpp::parse_completion(body);
    let _ = crate::llama_cpp::parse_infill(body);
}
