//! Tokens of texts and texts of tokens, without a generation. It is work for a CPU that nothing can stop once it has begun, so
//! that it has a place in the queue, and few threads: generations prepare their prompts on the others.

use std::sync::Arc;

use gyrus::Model;
use gyrus::text::Special;

use crate::failure::Failure;
use crate::places::Places;
use crate::routes::Call;
use crate::wanted::Wanted;

/// How many requests encode or decode at once.
pub(crate) const THREADS: usize = 4;

/// Takes a language model into use, waits for one of the threads, and works with the model on it, in the time of the request.
async fn run<T: Send + 'static>(
    call: &Call,
    model: &str,
    work: impl FnOnce(&Model) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (state, caller) = (&call.state, &call.caller);
    let listed = state.find(caller, model).await?;
    let places = Places::take(state, caller, 1, "model")?;
    let part = async {
        let lease = state.models.lease(&listed).await?;
        let turn = Arc::clone(&state.encoding).acquire_owned().await;
        let turn = turn.map_err(|_| Failure::server("no thread encodes any more"))?;
        let caller = Arc::clone(caller);
        let work = move || {
            // Work whose client has gone keeps its places and its bytes until it has ended.
            let _kept = (places, turn, caller);
            work(lease.model())
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| Failure::server(format!("the work did not end: {error}")))?
    };
    state.within(state.deadline(caller, None), part).await
}

/// The tokens of a text.
pub(crate) async fn encode(
    call: &Call,
    model: &str,
    text: String,
    special: bool,
    add_special: bool,
) -> Result<Vec<u32>, Failure> {
    let encode = move |model: &Model| {
        let tokenizer = model.tokenizer().ok_or(gyrus::Error::NoTokenizer)?;
        let special = if special { Special::Parse } else { Special::Literal };
        Ok(tokenizer.encode(&text, special, add_special))
    };
    run(call, model, encode).await
}

/// The text of tokens.
pub(crate) async fn decode(call: &Call, model: &str, ids: Vec<u32>) -> Result<String, Failure> {
    run(call, model, move |model| text_of(model, &ids)).await
}

/// The number of tokens of a prompt.
pub(crate) async fn count(call: &Call, wanted: Wanted) -> Result<usize, Failure> {
    let name = wanted.model.clone();
    run(call, &name, move |model| Ok(prompt_of(model, wanted)?.len())).await
}

/// The text of a prompt, with its control tokens.
pub(crate) async fn prompt(call: &Call, wanted: Wanted) -> Result<String, Failure> {
    let name = wanted.model.clone();
    run(call, &name, move |model| text_of(model, &prompt_of(model, wanted)?)).await
}

fn prompt_of(model: &Model, wanted: Wanted) -> Result<Vec<u32>, Failure> {
    Ok(model.prompt_tokens(&wanted.request(model, None)?)?)
}

fn text_of(model: &Model, ids: &[u32]) -> Result<String, Failure> {
    let tokenizer = model.tokenizer().ok_or(gyrus::Error::NoTokenizer)?;
    let vocab = tokenizer.vocab_size();
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(gyrus::Error::TokenId { id: *id, vocab }.into()),
        None => Ok(tokenizer.decode(ids, true)),
    }
}
