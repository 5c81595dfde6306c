//! The messages of a chat, and which of them fit into a prompt.

use anyhow::{Result, bail};
use gyrus::Message;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::cli::OnFull;
use crate::pieces::json_of;

/// The context counts as full if the prompt leaves less than 1/8 of it to the answer.
const LEAST_FREE: usize = 8;

/// Messages are dropped until 1/4 of the context is free: each drop costs a prefill of the whole prompt, so it should not
/// happen at every turn.
const FREED: usize = 4;

/// All messages of a chat, and those that prompts are made of.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    messages: Vec<Message>,
    /// Messages before this one are dropped from prompts, except the system prompt.
    first: usize,
}

/// A prompt that fits.
#[derive(Debug, PartialEq)]
pub(crate) struct Fitted {
    pub(crate) messages: Vec<Message>,
    /// Messages that were dropped from this prompt and not from the previous one.
    pub(crate) dropped: usize,
}

impl History {
    pub(crate) fn new(system: Option<&str>) -> History {
        History { messages: system.map(Message::system).into_iter().collect(), first: 0 }
    }

    /// A conversation that goes on. `first`: messages before this one are dropped from prompts.
    pub(crate) fn resumed(messages: Vec<Message>, first: usize) -> History {
        let first = first.min(messages.len());
        History { messages, first }
    }

    /// All messages.
    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The first message that is not dropped from prompts.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Where the last exchange begins: its user message.
    fn last_question(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.json["role"] == "user")
    }

    /// Removes what answers the last user message. `false` if there is no answer.
    pub(crate) fn take_answer(&mut self) -> bool {
        let Some(end) = self.last_question().map(|at| at + 1).filter(|end| *end < self.messages.len()) else {
            return false;
        };
        self.messages.truncate(end);
        self.first = self.first.min(end - 1);
        true
    }

    /// Removes the last user message and what answers it, and returns the message. `None` if there is none.
    pub(crate) fn undo(&mut self) -> Option<Message> {
        let at = self.last_question()?;
        let question = self.messages.drain(at..).next();
        self.first = self.first.min(self.messages.len());
        question
    }

    pub(crate) fn ask(&mut self, text: &str) {
        self.messages.push(Message::user(text));
    }

    /// Removes the last message, so that it can be sent again.
    pub(crate) fn take_back(&mut self) {
        self.messages.pop();
        self.first = self.first.min(self.messages.len());
    }

    /// Adds an answer. Its tokens are those of its text if that is all it has; of a text that a stop string has cut, prompts
    /// take the tokens before the cut.
    pub(crate) fn answer(&mut self, answer: &Answer) {
        let is_plain = answer.reasoning.is_empty() && answer.calls.is_empty();
        let mut message = Message::assistant(&answer.text, is_plain.then(|| answer.ids.clone()));
        if !answer.calls.is_empty() {
            let call = |call| json!({ "type": "function", "function": json_of(call) });
            message.json["tool_calls"] = answer.calls.iter().map(call).collect();
        }
        self.messages.push(message);
    }

    /// The system prompt, if there is one.
    pub(crate) fn system(&self) -> Option<&str> {
        let first = &self.messages.first()?.json;
        (first["role"] == "system").then(|| first["content"].as_str())?
    }

    /// Every message, including those dropped from prompts.
    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.messages.iter().map(|message| &message.json)
    }

    /// Number of leading system and developer messages, which every prompt keeps.
    fn instructions(&self) -> usize {
        let is_one =
            |message: &&Message| message.json["role"] == "system" || message.json["role"] == "developer";
        self.messages.iter().take_while(is_one).count()
    }

    /// The leading system messages and the messages from `first` on.
    fn messages_from(&self, first: usize) -> Vec<Message> {
        let instructions = self.instructions();
        let kept = self.messages[..instructions].iter().chain(&self.messages[first.max(instructions)..]);
        kept.cloned().collect()
    }

    /// The messages of the next prompt, whose tokens `count` counts. If it leaves too little of the context to the answer, whole
    /// exchanges are dropped, oldest first, or it is an error, as `on_full` says.
    ///
    /// On an error the history is as it was.
    pub(crate) fn fit(
        &mut self,
        context: usize,
        max_tokens: Option<usize>,
        on_full: OnFull,
        count: impl Fn(Vec<Message>) -> Result<usize>,
    ) -> Result<Fitted> {
        let share = |part: usize| (context / part).min(max_tokens.unwrap_or(usize::MAX)).max(1);
        let messages = self.messages_from(self.first);
        let tokens = count(messages.clone())?;
        let full = match on_full {
            OnFull::Drop => tokens + share(LEAST_FREE) > context,
            OnFull::Stop => tokens >= context,
        };
        if !full {
            return Ok(Fitted { messages, dropped: 0 });
        }
        // An exchange begins with a user message; the last one is never dropped.
        let kept = self.first.max(self.instructions());
        let begins = |at: &usize| self.messages[*at].json["role"] == "user";
        let starts: Vec<usize> = (kept + 1..self.messages.len()).filter(begins).collect();
        let last = starts.last().copied().unwrap_or(self.first);
        let alone = count(self.messages_from(last))?;
        if alone >= context {
            bail!(
                "the message and the system prompt have {alone} tokens, which do not fit into the context of \
                 {context}; the message was discarded (--ctx sets a larger context)"
            );
        }
        if starts.is_empty() {
            return Ok(Fitted { messages, dropped: 0 });
        }
        if on_full == OnFull::Stop {
            bail!(
                "the context of {context} tokens is full; /reset starts over, --on-full drop drops the \
                 oldest messages, --ctx sets a larger context"
            );
        }
        // The fewer exchanges, the shorter the prompt.
        let target = context.saturating_sub(share(FREED));
        let (mut low, mut high) = (0, starts.len() - 1);
        while low < high {
            let middle = (low + high) / 2;
            if count(self.messages_from(starts[middle]))? <= target {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.first = starts[low];
        Ok(Fitted { messages: self.messages_from(self.first), dropped: self.first - kept })
    }
}

impl From<Vec<Value>> for History {
    fn from(messages: Vec<Value>) -> History {
        History { messages: messages.into_iter().map(Message::from).collect(), first: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten tokens a message.
    fn count(messages: Vec<Message>) -> Result<usize> {
        Ok(messages.len() * 10)
    }

    fn fit(history: &mut History, context: usize, on_full: OnFull) -> Result<(usize, usize)> {
        history.fit(context, None, on_full, count).map(|fitted| (10 * fitted.messages.len(), fitted.dropped))
    }

    fn answer() -> Answer {
        Answer { text: "answer".into(), ids: vec![7], ..Answer::default() }
    }

    fn talk(system: Option<&str>, turns: usize) -> History {
        let mut history = History::new(system);
        for _ in 0..turns {
            history.ask("question");
            history.answer(&answer());
        }
        history.ask("question");
        history
    }

    #[test]
    fn answers_and_exchanges_are_taken_back() {
        let mut history = talk(Some("kind"), 2);
        assert!(!history.take_answer(), "the last question has no answer yet");
        history.answer(&answer());
        assert!(history.take_answer() && !history.take_answer());
        assert_eq!(history.all().len(), 6);
        for left in [5, 3, 1] {
            assert_eq!(history.undo().unwrap().json["content"], "question");
            assert_eq!(history.all().len(), left);
        }
        assert!(history.undo().is_none() && history.system() == Some("kind"));
        // Messages that were dropped from prompts are there again.
        let mut history = talk(None, 9);
        fit(&mut history, 80, OnFull::Drop).unwrap();
        assert!(history.first() > 0);
        while history.undo().is_some() {}
        assert_eq!((history.first(), history.all().len()), (0, 0));
    }

    #[test]
    fn what_fits_is_whole() {
        let mut history = talk(None, 3);
        assert_eq!(fit(&mut history, 80, OnFull::Drop).unwrap(), (70, 0));
        assert_eq!(fit(&mut history, 71, OnFull::Stop).unwrap(), (70, 0));
    }

    #[test]
    fn the_oldest_exchanges_are_dropped_and_the_system_prompt_stays() {
        let mut history = talk(Some("be kind"), 3);
        assert_eq!(fit(&mut history, 80, OnFull::Drop).unwrap(), (60, 2));
        assert_eq!(history.messages_from(history.first)[0].json["content"], "be kind");
        assert_eq!(history.messages_from(history.first)[1].json["role"], "user");
        // Dropped messages stay dropped, and the history still has them.
        assert_eq!(fit(&mut history, 80, OnFull::Drop).unwrap(), (60, 0));
        assert_eq!(history.all().len(), 8);
        history.answer(&answer());
        history.ask("question");
        assert_eq!(fit(&mut history, 80, OnFull::Drop).unwrap(), (60, 2));
    }

    #[test]
    fn a_long_history_is_cut_at_once() {
        let mut history = talk(None, 1000);
        assert_eq!(fit(&mut history, 100, OnFull::Drop).unwrap(), (70, 1994));
    }

    #[test]
    fn a_full_context_can_be_an_error() {
        let mut history = talk(None, 3);
        let error = fit(&mut history, 70, OnFull::Stop).unwrap_err().to_string();
        assert!(error.starts_with("the context of 70 tokens is full; /reset"), "{error}");
        assert_eq!(history.first, 0);
    }

    #[test]
    fn the_last_message_alone_may_take_what_there_is_but_not_more() {
        for on_full in [OnFull::Drop, OnFull::Stop] {
            assert_eq!(fit(&mut talk(Some("be kind"), 0), 21, on_full).unwrap(), (20, 0));
            let error = fit(&mut talk(Some("be kind"), 0), 20, on_full).unwrap_err().to_string();
            assert!(error.contains("have 20 tokens"), "{error}");
        }
        let mut history = talk(None, 2);
        assert_eq!(fit(&mut history, 11, OnFull::Drop).unwrap(), (10, 4));
        let mut history = talk(None, 2);
        assert!(fit(&mut history, 10, OnFull::Drop).is_err());
        assert_eq!(history.first, 0, "nothing was dropped in vain");
    }
}
