//! What saved, loaded and forked sessions must do, on any device.

use gyrus::{Device, Error, Event, Model, Options, Precision, Prompt, Request, Sampler, Session};
use gyrus_testkit::data;

/// A model of each kind of cache: plain, windowed, with recurrent states, and a mixture with sinks and windows.
pub(crate) const KINDS: [&str; 4] = ["llama", "gemma3", "qwen35", "gpt_oss"];

/// Prompts around the ends of blocks, and beyond windows of 16 and the blocks that are kept beside them.
#[allow(dead_code, reason = "on a GPU there are fewer")]
pub(crate) const LENGTHS: [usize; 14] = [1, 2, 30, 31, 32, 33, 63, 64, 65, 129, 190, 255, 289, 320];

pub(crate) fn open(name: &str, device: &Device, precision: Precision) -> Option<Model> {
    let options = Options {
        device: device.clone(),
        precision,
        context: Some(512),
        sessions: 3,
        threads: Some(2),
        session_files: true,
        ..Options::default()
    };
    Some(Model::open(&data(&format!("tiny/{name}"))?, &options).unwrap())
}

pub(crate) fn ids(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 37 + seed * 101 + i * i % 7) % 96) as u32).collect()
}

/// Tokens with the bits of their log-probabilities, and how many tokens were cached.
pub(crate) fn go_on(session: &mut Session, prompt: Prompt, tokens: usize) -> (Vec<(u32, u32)>, usize) {
    let sampler = Sampler { temperature: 0.9, seed: 7, ..Sampler::default() };
    let request = Request::new(prompt).max_tokens(tokens).ignore_end(true).logprobs(true).sampler(sampler);
    let mut generation = session.generate(request).unwrap();
    let (mut ids, mut found) = (Vec::new(), 0);
    while let Some(event) = generation.next().unwrap() {
        match event {
            Event::Token { id, logprob, .. } => ids.push((id, logprob.unwrap().to_bits())),
            Event::Prompt { cached, .. } => found = cached,
            _ => {}
        }
    }
    (ids, found)
}

pub(crate) fn saved(session: &Session, attachment: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    session.save(&mut file, attachment).unwrap();
    file
}

pub(crate) fn loaded(model: &Model, file: &[u8]) -> Result<(Session, Vec<u8>), Error> {
    model.load_session(&mut &file[..], file.len() as u64)
}

/// A session that is loaded, by the same or another process, goes on as the one that was saved. Nothing is computed again.
pub(crate) fn resumes_bit_for_bit(device: &Device, name: &str, precision: Precision, lengths: &[usize]) {
    let (Some(model), Some(other)) = (open(name, device, precision), open(name, device, precision)) else {
        return;
    };
    for &length in lengths {
        // Generated rows, too, over the end of a block.
        for generated in [1, 5] {
            let mut session = model.session();
            go_on(&mut session, Prompt::Ids(ids(length, 1)), generated);
            let file = saved(&session, b"attached");
            let tokens = session.tokens().to_vec();
            let what = format!("{name} {precision:?}, {length} tokens and {generated}");
            for model in [&other, &model] {
                let (mut again, attachment) = loaded(model, &file).unwrap();
                assert_eq!((again.tokens(), &attachment[..]), (&tokens[..], &b"attached"[..]), "{what}");
                assert!(saved(&again, b"attached") == file, "{what}: saved again");
                let mut first = session.fork().unwrap();
                let (expected, cached) = go_on(&mut first, Prompt::Continue, 34);
                assert_eq!(cached, tokens.len() - 1, "{what}: forked");
                let (found, cached) = go_on(&mut again, Prompt::Continue, 34);
                assert_eq!(cached, tokens.len() - 1, "{what}: loaded");
                assert!(found == expected, "{what}: {found:?} {expected:?}");
            }
            // The session itself, and a prompt after it.
            let (mut again, _) = loaded(&other, &file).unwrap();
            let more = Prompt::Ids(ids(40, 2));
            assert!(go_on(&mut session, more.clone(), 3) == go_on(&mut again, more, 3), "{what}");
        }
    }
}

/// A fork goes on as the session does, and neither changes the other, whatever is kept of the tokens.
pub(crate) fn forks_go_on_alone(device: &Device, name: &str, precision: Precision, lengths: &[usize]) {
    let Some(model) = open(name, device, precision) else { return };
    for &length in lengths {
        let mut session = model.session();
        go_on(&mut session, Prompt::Ids(ids(length, 3)), 6);
        let what = format!("{name} {precision:?}, {length} tokens");
        let mut forks = [session.fork().unwrap(), session.fork().unwrap(), session.fork().unwrap()];
        let [a, b, c] = &mut forks;
        // One goes another way first.
        go_on(a, Prompt::Ids(ids(20, 4)), 30);
        let expected = go_on(b, Prompt::Continue, 30);
        assert!(go_on(&mut session, Prompt::Continue, 30) == expected, "{what}");
        // A fork of a shortened session shares what is left.
        c.truncate(c.tokens().len().saturating_sub(3).max(1));
        let mut d = c.fork().unwrap();
        let (ended, forked) = (go_on(c, Prompt::Continue, 9), go_on(&mut d, Prompt::Continue, 9));
        assert_eq!(ended.0, forked.0, "{what}");
    }
    // No block is lost: the whole cache is free again.
    for _ in 0..2 {
        let context = model.context().tokens;
        let mut sessions: Vec<Session> = (0..3).map(|_| model.session()).collect();
        sessions.iter_mut().for_each(|session| session.prefill(&ids(context, 5)).unwrap());
    }
}

/// What is not cached any more is computed again, with the bits that it had.
pub(crate) fn what_was_reclaimed_is_computed_again(device: &Device, name: &str, precision: Precision) {
    let Some(model) = open(name, device, precision) else { return };
    let mut session = model.session();
    go_on(&mut session, Prompt::Ids(ids(70, 6)), 20);
    let (mut again, _) = loaded(&model, &saved(&session, b"")).unwrap();
    let expected = go_on(&mut session, Prompt::Continue, 20).0;
    // Others take all blocks.
    let context = model.context().tokens;
    for seed in 7..11 {
        model.session().prefill(&ids(context, seed)).unwrap();
    }
    let mut others: Vec<Session> = (0..3).map(|_| model.session()).collect();
    others.iter_mut().enumerate().for_each(|(i, other)| other.prefill(&ids(context, 20 + i)).unwrap());
    let (found, cached) = go_on(&mut again, Prompt::Continue, 20);
    assert_eq!(cached, 0, "{name}: it was not reclaimed");
    assert!(found == expected, "{name} {precision:?}: {found:?} {expected:?}");
}
