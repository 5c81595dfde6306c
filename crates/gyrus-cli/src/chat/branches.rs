//! Branches of a conversation: each has its messages and its session, which share the KV cache of what they have in common.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Result, ensure};
use gyrus::Session;

use super::history::History;
use crate::foreign;

/// A conversation and its session.
pub(crate) struct Talk {
    pub(crate) session: Session,
    pub(crate) history: History,
}

/// The branches beside the one that goes on.
pub(crate) struct Branches {
    current: String,
    others: BTreeMap<String, Talk>,
}

/// The most branches: names are typed, but a script can type many.
const MOST: usize = 64;

impl Branches {
    pub(crate) fn new() -> Branches {
        Branches { current: "main".to_owned(), others: BTreeMap::new() }
    }

    /// The branches, one to a line; `talk` is the one that goes on.
    pub(crate) fn list(&self, talk: &Talk) -> String {
        let mut all: Vec<(&String, &Talk)> = self.others.iter().chain([(&self.current, talk)]).collect();
        all.sort_by_key(|(name, _)| *name);
        let mut text = String::new();
        for (name, talk) in all {
            let mark = if *name == self.current { '*' } else { ' ' };
            let count = talk.history.all().len();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{mark} {:<20} {count} messages", foreign::one_line(name, 40));
        }
        text
    }

    /// Goes on with another branch. One that does not exist yet begins with what `talk` has. Returns whether it is new.
    pub(crate) fn switch(&mut self, name: &str, talk: &mut Talk) -> Result<bool> {
        if name == self.current {
            return Ok(false);
        }
        let (next, is_new) = match self.others.remove(name) {
            Some(next) => (next, false),
            None => {
                ensure!(self.others.len() + 1 < MOST, "there are {MOST} branches already");
                (Talk { session: talk.session.fork()?, history: talk.history.clone() }, true)
            }
        };
        let before = std::mem::replace(&mut self.current, name.to_owned());
        self.others.insert(before, std::mem::replace(talk, next));
        Ok(is_new)
    }
}
