//! The prompt of rerankers that are language models: Qwen3-Reranker's published one.

/// What is before the instruction.
pub(super) const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the \
    Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";

/// What is after the document.
pub(super) const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// The instruction of requests without one.
pub(super) const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// What is between the system's part and the document's text.
pub(super) fn question(instruction: &str, query: &str) -> String {
    format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: ")
}
