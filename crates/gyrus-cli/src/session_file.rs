//! `--session FILE`: a conversation, or a text, with its KV cache, that goes on from run to run.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gyrus::text::template::Conversation;
use gyrus::{Message, Model, Session};
use serde_json::{Value, json};

use crate::chat::History;
use crate::foreign;
use crate::output::OutputFile;

/// A file that a session is loaded from if it exists, and saved to.
#[derive(Debug)]
pub(crate) struct SessionFile {
    path: PathBuf,
}

impl SessionFile {
    pub(crate) fn new(path: &Path) -> SessionFile {
        SessionFile { path: path.to_owned() }
    }

    pub(crate) fn name(&self) -> String {
        foreign::path(&self.path)
    }

    /// The session and its conversation, or none of that of a text. `None` if there is no file.
    pub(crate) fn load(&self, model: &Model) -> Result<Option<(Session, Option<History>)>> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| self.name())?,
        };
        let found = file.metadata().with_context(|| self.name())?;
        if !found.is_file() {
            bail!("{}: a session is saved to a file, and this is none", self.name());
        }
        let (session, attached) =
            model.load_session(&mut BufReader::new(file), found.len()).with_context(|| self.name())?;
        let history = read(&attached).with_context(|| self.name())?;
        Ok(Some((session, history)))
    }

    /// Whether `--system` names the system prompt that the conversation has, or none is given.
    pub(crate) fn check_system(&self, history: Option<&History>, wanted: Option<&str>) -> Result<()> {
        let has = history.and_then(History::system);
        match wanted.filter(|wanted| Some(*wanted) != has) {
            Some(_) => bail!("{}: its conversation has another system prompt than --system", self.name()),
            None => Ok(()),
        }
    }

    /// Saves a session and its conversation.
    pub(crate) fn save(&self, session: &Session, history: Option<&History>) -> Result<()> {
        let mut file = OutputFile::create(&self.path)?;
        session.save(&mut file, &written(history)).with_context(|| self.name())?;
        file.finish()
    }
}

/// What is attached to a session: the messages, with the tokens of generated ones.
fn written(history: Option<&History>) -> Vec<u8> {
    let document = match history {
        None => Value::Null,
        Some(history) => {
            let message = |message: &Message| json!({ "message": message.json, "ids": message.ids });
            let messages: Vec<Value> = history.messages().iter().map(message).collect();
            json!({ "messages": messages, "first": history.first() })
        }
    };
    document.to_string().into_bytes()
}

fn read(attached: &[u8]) -> Result<Option<History>> {
    let document: Value = serde_json::from_slice(attached).context("its conversation is no JSON")?;
    if document.is_null() {
        return Ok(None);
    }
    let (Some(listed), Some(first)) = (document["messages"].as_array(), document["first"].as_u64()) else {
        bail!("its conversation has no list of messages");
    };
    let all = listed.iter().map(|entry| entry["message"].clone()).collect();
    let conversation = Conversation::new(all).context("its conversation")?;
    let messages = conversation.messages().iter().zip(listed).map(|(message, entry)| {
        // A prompt takes them only as far as they spell the content.
        let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = entry["ids"].as_array().and_then(|ids| ids.iter().map(id).collect());
        Message { ids, json: message.clone() }
    });
    Ok(Some(History::resumed(messages.collect(), usize::try_from(first).unwrap_or(0))))
}
