//! `gyrus chat` on a terminal, as a person types into it.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gyrus_testkit::{Need, skip, tempfile};

const CTRL_C: &[u8] = b"\x03";
const CTRL_D: &[u8] = b"\x04";
const UP: &[u8] = b"\x1b[A";
const ALT_ENTER: &[u8] = b"\x1b\r";

/// A chat on a pseudo terminal that `script` makes.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
    /// What was seen of the screen.
    seen: usize,
}

impl Terminal {
    /// `None` if there is no `script`.
    fn chat(cache: &Path, args: &str) -> Option<Terminal> {
        // Processes in the background of a script have SIGINT ignored, which the chat would respect.
        let gyrus = env!("CARGO_BIN_EXE_gyrus");
        let line = format!("exec env --default-signal=INT {gyrus} chat tales-7m --temp 0 {args}");
        let mut command = Command::new("script");
        command.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
        command.env("GYRUS_OFFLINE", "1").env("GYRUS_CACHE", cache).env("GYRUS_DEVICE", "cpu");
        command.env("NO_COLOR", "1").env("TERM", "xterm").env("SHELL", "/bin/sh").env_remove("GYRUS_THREADS");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else {
            skip(Need::Extra, "script of util-linux is not installed");
            return None;
        };
        let keys = child.stdin.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let of_thread = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                of_thread.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Some(Terminal { child, keys, screen, seen: 0 })
    }

    fn press(&mut self, keys: impl AsRef<[u8]>) {
        self.keys.write_all(keys.as_ref()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Types a line and ends it.
    fn enter(&mut self, line: &str) {
        self.press(format!("{line}\r"));
    }

    fn unseen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()[self.seen..]).into_owned()
    }

    /// Waits until this is on the screen, behind what was seen before.
    fn see(&mut self, text: &str) {
        let start = Instant::now();
        loop {
            let unseen = self.unseen();
            if let Some(at) = unseen.find(text) {
                self.seen += at + text.len();
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no {text:?} on the screen: {unseen:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for a prompt, after which keys are taken.
    fn see_prompt(&mut self) {
        self.see("> ");
        // The editor has drawn its line; it reads keys from now on.
        std::thread::sleep(Duration::from_millis(100));
    }

    /// Waits until the chat has ended, and returns its exit code.
    fn end(mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < Duration::from_secs(30), "the chat goes on: {:?}", self.unseen());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn lines_are_edited_kept_and_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("talk.json");
    let Some(mut chat) = Terminal::chat(folder.path(), "-n 8") else { return };
    chat.see("/help lists the commands");
    chat.see_prompt();
    // A backslash, Alt-Enter and a block: messages of several lines.
    chat.press(b"One dog\\\r");
    chat.press(b"and one cat,");
    chat.press(ALT_ENTER);
    chat.enter("said Tom.");
    chat.see("token limit reached");
    chat.see_prompt();
    // Ctrl-C clears what was typed.
    chat.press(b"not sent");
    chat.press(CTRL_C);
    chat.enter("/branch");
    chat.see("* main");
    chat.see_prompt();
    chat.enter("/branch other");
    chat.see("a new branch other, 2 messages");
    chat.see_prompt();
    chat.enter("/set temp 0.7");
    chat.see_prompt();
    chat.enter("/regen");
    chat.see("token limit reached");
    chat.see_prompt();
    chat.enter("/undo");
    chat.see("removed: One dog");
    chat.see_prompt();
    chat.enter("/branch main");
    chat.see("branch main, 2 messages");
    chat.see_prompt();
    chat.enter(&format!("/save {}", saved.display()));
    chat.see("saved 2 messages");
    chat.see_prompt();
    chat.press(CTRL_D);
    assert_eq!(chat.end(), Some(0));
    let messages: serde_json::Value = serde_json::from_slice(&std::fs::read(saved).unwrap()).unwrap();
    assert_eq!(messages[0]["content"], "One dog\nand one cat,\nsaid Tom.");

    // What was typed is kept, for its user alone.
    let history = folder.path().join("history.txt");
    let mode = std::fs::metadata(&history).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    let Some(mut again) = Terminal::chat(folder.path(), "-n 8") else { return };
    again.see_prompt();
    again.press(UP);
    again.see("/save");
    again.press(CTRL_C);
    // Twice where nothing is typed ends the chat.
    again.press(CTRL_C);
    again.see("Ctrl-C again");
    again.see_prompt();
    again.press(CTRL_C);
    assert_eq!(again.end(), Some(0));

    // Unless it is not wanted.
    std::fs::remove_file(&history).unwrap();
    let Some(mut without) = Terminal::chat(folder.path(), "-n 8 --no-history") else { return };
    without.see_prompt();
    without.enter("/system");
    without.see("no system prompt");
    without.see_prompt();
    without.enter("/exit");
    assert_eq!(without.end(), Some(0));
    assert!(!history.exists());
}

#[test]
fn ctrl_c_stops_an_answer_and_not_the_chat() {
    let folder = tempfile::tempdir().unwrap();
    // An answer that must be long: hundreds of milliseconds.
    let Some(mut chat) = Terminal::chat(folder.path(), "--regex 'z[xz]{4000}' --ctx 1024 --allow-repetition")
    else {
        return;
    };
    chat.see_prompt();
    chat.enter("Say a lot.");
    chat.see("z");
    chat.press(CTRL_C);
    chat.see("interrupted");
    chat.see_prompt();
    chat.enter("/branch");
    chat.see("2 messages");
    chat.see_prompt();
    chat.press(CTRL_D);
    assert_eq!(chat.end(), Some(0));
}
