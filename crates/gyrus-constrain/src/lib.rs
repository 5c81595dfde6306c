//! Constraints on generated text: which tokens may come next.
//!
//! A [`Vocabulary`] is made once for a model, from the bytes of its tokens. It compiles a [`Source`] (JSON Schema, a
//! regular expression, a Lark or GBNF grammar) to a [`Constraint`]. Each sequence has a [`State`] of it, which gives a
//! mask over the vocabulary before every token and is told the token that was chosen.
//!
//! Masks are exact: a token is allowed if some complete text begins with the text so far and that token. What cannot be
//! enforced exactly is refused by name when the constraint is compiled. The crate knows nothing of tokenizers, models,
//! devices or threads.

#![forbid(unsafe_code)]

mod constraint;
mod error;
mod gbnf;
mod lark;
mod limits;
mod regex;
pub mod schema;
mod state;
pub mod template;
mod trigger;
mod vocabulary;
mod work;

pub use constraint::{Constraint, Source};
pub use error::Error;
pub use limits::Limits;
pub use state::State;
pub use vocabulary::{Encode, Piece, Vocabulary};
