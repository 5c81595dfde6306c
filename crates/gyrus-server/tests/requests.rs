//! Damaged bodies in every wire format: refused or understood, never a panic.

use gyrus_testkit::{Rng, cases};

const BODIES: [&str; 13] = [
    r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"y"}],"temperature":0.5,"n":2,"stop":["a"],"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":3,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto","response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object"}}},"chat_template_kwargs":{"enable_thinking":false},"timeout":3,"priority":1}"#,
    r#"{"model":"m","prompt":[1,2,3],"max_tokens":5,"logprobs":2,"best_of":1,"seed":-5,"keep_alive":"5m","regex":"a+"}"#,
    r#"{"input":[{"type":"message","role":"user","content":"x"},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"y"}],"instructions":"z","text":{"format":{"type":"json_object"}},"reasoning":{"effort":"low"},"tools":[{"type":"function","name":"f"}],"truncation":"disabled"}"#,
    r#"{"max_tokens":4,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]},{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},{"role":"user","content":"q"}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"},"thinking":{"type":"enabled","budget_tokens":9},"stop_sequences":["x"]}"#,
    r#"{"model":"m","prompt":"p","system":"s","suffix":"","raw":true,"format":{"type":"object"},"options":{"num_predict":-1,"num_ctx":5,"top_k":3,"stop":["x"]},"think":"low","keep_alive":-1}"#,
    r#"{"input_prefix":"a","input_suffix":"b","n_predict":-1,"n_probs":2,"mirostat":0,"grammar":"root ::= \"a\"","cache_prompt":true}"#,
    r#"{"model":"m","input":["a","b"],"encoding_format":"base64","dimensions":8,"truncate":true,"prompt_name":"query","user":"u"}"#,
    r#"{"model":"m","query":"q","documents":["a",{"text":"b"}],"top_n":1,"return_documents":true,"instruction":"i"}"#,
    r#"{"inputs":[[1,2],[3]],"normalize":false,"truncation_direction":"Right","dimensions":4}"#,
    r#"{"query":"q","texts":["a","b"],"raw_scores":true,"return_text":true,"truncate":true}"#,
    r#"{"content":"a","add_special":true,"parse_special":false,"with_pieces":false}"#,
    r#"{"tokens":[1,2,3],"model":"m"}"#,
    "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF:,\r\n--x\r\nContent-Disposition: form-data; name=\"vad\"\r\n\r\ntrue\r\n--x\r\nContent-Disposition: form-data; name=temperature\r\n\r\n0.5\r\n--x--\r\n",
];

const KEYS: &str = "[[key]]\nname = 'one'\nkey = 'sk-one-0123456789'\nrequests_per_minute = 4\nmodels = ['tales']\n\
    [[key]]\nname = 'two'\nsha256 = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'\ntokens_per_minute = 9\n\
    concurrent = 1\npriority = -5\n";

/// Damages a text at a few places.
fn damage(rng: &mut Rng, body: &mut Vec<u8>) {
    let pieces: [&[u8]; 12] = [
        b"null",
        b"-1",
        b"1e400",
        b"{}",
        b"[]",
        b"\"\"",
        b"true",
        b"99999999999999999999",
        b"\\ud800",
        b"\xff",
        b"[[[[",
        b"\0",
    ];
    for _ in 0..1 + rng.below(4) {
        if body.is_empty() {
            break;
        }
        let at = rng.below(body.len());
        match rng.below(4) {
            0 => body[at] = rng.u64() as u8,
            1 => drop(body.drain(at..(at + 1 + rng.below(12)).min(body.len()))),
            2 => drop(body.splice(at..at, rng.pick(&pieces).iter().copied())),
            _ => {
                // A value becomes another one.
                let from = body[at..].iter().position(|byte| b":=".contains(byte)).map_or(at, |n| at + n + 1);
                let to =
                    body[from..].iter().position(|byte| b",}]\n".contains(byte)).map_or(from, |n| from + n);
                drop(body.splice(from..to, rng.pick(&pieces).iter().copied()));
            }
        }
    }
}

#[test]
fn damaged_bodies_do_no_harm() {
    let mut rng = Rng::new(23);
    BODIES.iter().for_each(|body| gyrus_server::fuzzing::requests(body.as_bytes()));
    for _ in 0..cases(4000) {
        let mut body = rng.pick(&BODIES).as_bytes().to_vec();
        damage(&mut rng, &mut body);
        gyrus_server::fuzzing::requests(&body);
    }
}

#[test]
fn damaged_files_of_keys_do_no_harm() {
    let mut rng = Rng::new(24);
    gyrus_server::fuzzing::keys(KEYS.as_bytes());
    for _ in 0..cases(4000) {
        let mut file = KEYS.as_bytes().to_vec();
        damage(&mut rng, &mut file);
        gyrus_server::fuzzing::keys(&file);
    }
}
