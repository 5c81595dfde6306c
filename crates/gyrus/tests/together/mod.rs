//! Decodes several sessions at once.

use gyrus::{Error, Event, Generation, Prompt, Request, Sampler, Session};

/// Decodes `tokens` tokens of each session. After each step `visit` gets one token of each; decoding ends when it returns
/// `false`.
pub(crate) fn decode_together(
    sessions: &mut [Session],
    samplers: &[Sampler],
    tokens: usize,
    mut visit: impl FnMut(&[u32]) -> bool,
) -> Result<(), Error> {
    let request = |sampler: &Sampler| {
        Request::new(Prompt::Continue).max_tokens(tokens).ignore_end(true).sampler(sampler.clone())
    };
    let started =
        sessions.iter_mut().zip(samplers).map(|(session, sampler)| session.generate(request(sampler)));
    let mut generations = started.collect::<Result<Vec<Generation<'_>>, Error>>()?;
    let mut step = Vec::with_capacity(generations.len());
    for _ in 0..tokens {
        step.clear();
        for generation in &mut generations {
            while let Some(event) = generation.next()? {
                if let Event::Token { id, .. } = event {
                    step.push(id);
                    break;
                }
            }
        }
        if step.len() < generations.len() || !visit(&step) {
            break;
        }
    }
    Ok(())
}
