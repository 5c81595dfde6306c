//! Speculative decoding: guesses of the next tokens that one pass verifies together.

mod automaton;
mod draft_model;
mod lookup;
mod policy;

use std::fmt;
use std::sync::Arc;

use self::draft_model::{Asker, DraftModel};
use crate::Error;
use crate::model::Model;

pub use lookup::Lookup;
pub(crate) use policy::{PassTimes, Speculator};

/// Makes the drafter of a sequence that has these tokens.
pub type NewDrafter = dyn Fn(&[u32]) -> Box<dyn Drafter> + Send + Sync;

/// Where guesses of the next tokens come from. What is generated does not depend on it: a guess counts only if it is the
/// token that would have been sampled without it.
#[derive(Clone)]
#[non_exhaustive]
pub enum Speculation {
    /// The text goes on as it did where its last tokens occurred before, in the prompt or in the output.
    Lookup,
    /// Drafters of the caller's own. The function gets the tokens of the prompt.
    Custom(Arc<NewDrafter>),
}

impl Speculation {
    /// Guesses by a smaller model where a look-up has none. It runs on a thread of its own, beside the model. Both must
    /// have the same vocabulary.
    pub fn model(model: &Model, draft: Model) -> Result<Speculation, Error> {
        Speculation::model_for(model, draft, "", "")
    }

    /// The same for a client and a tenant, whose guesses share the smaller model and its cached prefixes with others as requests
    /// do ([`Request::client`](crate::Request::client), [`Request::tenant`](crate::Request::tenant)).
    pub fn model_for(model: &Model, draft: Model, client: &str, tenant: &str) -> Result<Speculation, Error> {
        draft_model::check_vocabularies(model, &draft)?;
        let asker = Asker { client: client.into(), tenant: tenant.into() };
        let new = move |tokens: &[u32]| {
            Box::new(DraftModel::new(draft.clone(), tokens, asker.clone())) as Box<dyn Drafter>
        };
        Ok(Speculation::Custom(Arc::new(new)))
    }

    /// The drafter of a sequence that has these tokens.
    pub(crate) fn drafter(&self, tokens: &[u32]) -> Box<dyn Drafter> {
        match self {
            Speculation::Lookup => Box::new(Lookup::new(tokens)),
            Speculation::Custom(new) => new(tokens),
        }
    }
}

impl fmt::Debug for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Speculation::Lookup => "Lookup",
            Speculation::Custom(_) => "Custom",
        })
    }
}

/// The [evidence](Drafter::evidence) of guesses by a model: they are counted apart from all others, and further guesses of a
/// draft are as likely as the first.
pub const MODEL_EVIDENCE: usize = usize::MAX;

/// Guesses the next tokens of one sequence. The scheduler calls it between steps, so that it must be quick: other sequences
/// wait for it.
pub trait Drafter: fmt::Debug + Send {
    /// A token was appended to the sequence.
    fn push(&mut self, token: u32);

    /// How much speaks for its guesses; 0 if it has none. Drafts of much evidence have been right more often than others:
    /// the scheduler counts how often, and decides by that how many guesses are worth a pass.
    fn evidence(&self) -> usize;

    /// Whether a draft has as many guesses as there is evidence, whatever that costs. The scheduler decides by times
    /// otherwise, of which tests and measurements may not depend.
    fn is_eager(&self) -> bool {
        false
    }

    /// Appends guesses of the next tokens, at most this many. Ids beyond the vocabulary end a draft.
    fn guess(&mut self, most: usize, guesses: &mut Vec<u32>);
}
