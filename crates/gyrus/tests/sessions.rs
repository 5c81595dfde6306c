//! Sessions that are saved, loaded and forked on the CPU.

mod session_cases;

use gyrus::{Device, Event, Precision, Request, StopReason};
use session_cases::{KINDS, LENGTHS, go_on, ids, loaded, open, saved};

#[test]
fn a_saved_session_resumes_bit_for_bit() {
    for name in KINDS {
        for precision in [Precision::Fast, Precision::Exact] {
            session_cases::resumes_bit_for_bit(&Device::Cpu, name, precision, &LENGTHS);
        }
    }
}

#[test]
fn forks_share_blocks_and_go_on_alone() {
    for name in KINDS {
        session_cases::forks_go_on_alone(&Device::Cpu, name, Precision::Fast, &LENGTHS);
    }
}

#[test]
fn what_was_reclaimed_is_computed_again() {
    for name in KINDS {
        session_cases::what_was_reclaimed_is_computed_again(&Device::Cpu, name, Precision::Fast);
    }
}

/// A full context is shifted as often as it takes: the head stays, and the text goes on.
#[test]
fn a_shifted_context_goes_on_behind_its_head() {
    let run = || {
        let model = open("llama", &Device::Cpu, Precision::Fast)?;
        let mut session = model.session();
        let prompt = ids(100, 1);
        let request = Request::ids(prompt.clone()).max_tokens(1500).ignore_end(true).context_shift(40);
        let mut generation = session.generate(request).unwrap();
        let (mut tokens, mut stop) = (Vec::new(), None);
        while let Some(event) = generation.next().unwrap() {
            match event {
                Event::Token { id, .. } => tokens.push(id),
                Event::Stop { reason, usage, .. } => stop = Some((reason, usage.generated_tokens)),
                _ => {}
            }
        }
        assert_eq!((tokens.len(), stop), (1500, Some((StopReason::MaxTokens, 1500))));
        assert!(session.tokens().len() <= 512, "{}", session.tokens().len());
        assert_eq!(session.tokens()[..64], [&prompt[..], &tokens[..]].concat()[..64]);
        assert_eq!(session.tokens()[64..], tokens[tokens.len() - (session.tokens().len() - 64)..]);
        // It is saved with the keys that it has.
        let (mut again, _) = loaded(&model, &saved(&session, b"")).unwrap();
        let mut fork = session.fork().unwrap();
        let expected = go_on(&mut fork, gyrus::Prompt::Continue, 4);
        assert_eq!(go_on(&mut again, gyrus::Prompt::Continue, 4), expected);
        Some(tokens)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_context_that_cannot_be_shifted_is_refused_by_name() {
    for (name, why) in [("gemma3", "a window"), ("qwen35", "a recurrent state"), ("llama", "several choices")]
    {
        let Some(model) = open(name, &Device::Cpu, Precision::Fast) else { return };
        let request = Request::ids(ids(5, 1)).context_shift(0).choices(2);
        let mut session = model.session();
        let error = session.generate(request).err().unwrap().to_string();
        assert!(error.starts_with("the context cannot be shifted: ") && error.contains(why), "{error}");
    }
    let Some(model) = open("llama", &Device::Cpu, Precision::Fast) else { return };
    let mut session = model.session();
    let error = session.generate(Request::ids([1]).context_shift(400)).err().unwrap().to_string();
    assert!(error.contains("400 tokens to keep are more than half of 512"), "{error}");
}
