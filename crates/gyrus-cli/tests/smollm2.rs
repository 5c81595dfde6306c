//! SmolLM2, a real model, against llama.cpp: exact on the same values, fast by the same yardstick.

use gyrus_testkit::{model, oracle, repository};

#[test]
fn smollm2_says_what_llama_cpp_says() {
    let Some(path) = model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let arguments = [
        env!("CARGO_BIN_EXE_gyrus").into(),
        path,
        repository().join("LICENSE-APACHE"),
        repository().join("LICENSE-MIT"),
    ];
    if let Some(printed) = oracle("smollm2.py", &arguments) {
        println!("{printed}");
    }
}
