//! How often a look-up was right, and drafters that are right as often.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gyrus::{Drafter, Lookup, Speculation};
use serde::{Deserialize, Serialize};

/// The most bytes of a file of recordings.
const MAX_BYTES: u64 = 64 << 20;

/// The look-up of each token of a completion.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Recording {
    pub(super) set: String,
    pub(super) name: String,
    pub(super) prompt_tokens: usize,
    /// How many tokens before each occurred earlier, and whether the guess was right.
    evidence: Vec<usize>,
    pub(super) right: Vec<u8>,
}

impl Recording {
    /// Looks up every token of a completion.
    pub(super) fn of(set: &str, name: &str, prompt: &[u32], completion: &[u32]) -> Recording {
        let mut lookup = Lookup::new(prompt);
        let (mut evidence, mut right) = (Vec::new(), Vec::new());
        for &token in completion {
            let mut guess = Vec::new();
            lookup.guess(1, &mut guess);
            evidence.push(lookup.evidence());
            right.push(u8::from(guess == [token]));
            lookup.push(token);
        }
        Recording { set: set.into(), name: name.into(), prompt_tokens: prompt.len(), evidence, right }
    }

    pub(super) fn write(path: &Path, recordings: &[Recording]) -> Result<()> {
        let text = serde_json::to_string(recordings)?;
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    pub(super) fn read(path: &Path) -> Result<Vec<Recording>> {
        let name = || path.display().to_string();
        let bytes = std::fs::metadata(path).with_context(name)?.len();
        ensure!(bytes <= MAX_BYTES, "{}: more than {MAX_BYTES} bytes", name());
        let text = std::fs::read_to_string(path).with_context(name)?;
        let all: Vec<Recording> = serde_json::from_str(&text).with_context(name)?;
        let is_sound = |one: &Recording| one.evidence.len() == one.right.len() && one.right.len() > 1;
        ensure!(!all.is_empty() && all.iter().all(is_sound), "{}: not a recording of --record", name());
        Ok(all)
    }
}

/// A drafter that is right where a recording was, whatever the tokens are.
#[derive(Debug)]
pub(super) struct Replay {
    recording: Arc<Recording>,
    /// The completion.
    tokens: Arc<Vec<u32>>,
    at: usize,
    vocab: usize,
}

impl Replay {
    pub(super) fn of(recording: Arc<Recording>, tokens: Vec<u32>, vocab: usize) -> Speculation {
        let tokens = Arc::new(tokens);
        Speculation::Custom(Arc::new(move |_: &[u32]| {
            let (recording, tokens) = (Arc::clone(&recording), Arc::clone(&tokens));
            Box::new(Replay { recording, tokens, at: 0, vocab }) as Box<dyn Drafter>
        }))
    }
}

impl Drafter for Replay {
    fn push(&mut self, _: u32) {
        self.at += 1;
    }

    fn evidence(&self) -> usize {
        self.recording.evidence.get(self.at).copied().unwrap_or(0)
    }

    fn guess(&mut self, most: usize, guesses: &mut Vec<u32>) {
        let mut right = true;
        for at in self.at..(self.at + most).min(self.tokens.len()) {
            // After a wrong guess a look-up goes on at another place.
            right &= self.recording.right.get(at) == Some(&1);
            let other = (self.tokens[at] + 1) % self.vocab.max(1) as u32;
            guesses.push(if right { self.tokens[at] } else { other });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_right_where_the_look_up_was() {
        let prompt = [1, 2, 3, 4, 5, 6];
        let completion = [2, 3, 4, 9, 5, 6, 2, 3];
        let recording = Recording::of("set", "name", &prompt, &completion);
        assert_eq!(recording.right, [0, 1, 1, 0, 0, 1, 1, 1]);
        let other: Vec<u32> = (20..28).collect();
        let Speculation::Custom(new) = Replay::of(Arc::new(recording), other, 30) else { panic!() };
        let mut drafter = new(&prompt);
        let guess = |drafter: &mut Box<dyn Drafter>| {
            let mut guesses = Vec::new();
            drafter.guess(3, &mut guesses);
            guesses
        };
        assert_eq!((drafter.evidence(), guess(&mut drafter)), (0, vec![21, 22, 23]));
        drafter.push(20);
        assert_eq!((drafter.evidence(), guess(&mut drafter)), (1, vec![21, 22, 24]));
        (0..6).for_each(|_| drafter.push(0));
        assert_eq!(guess(&mut drafter), [27]);
    }
}
