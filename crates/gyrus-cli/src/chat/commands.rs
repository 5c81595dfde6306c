//! The names of a chat's commands, and what they do.

pub(crate) const NAMES: [&str; 10] =
    ["/help", "/reset", "/system", "/regen", "/undo", "/branch", "/set", "/save", "/load", "/exit"];

pub(crate) const HELP: &str = "\
/help            this list
/reset           forget the conversation
/system TEXT     start over with this system prompt; without TEXT show it
/regen           answer the last message once more, with the next seed
/undo            remove the last message and its answer
/branch NAME     go on in a branch, which begins here if it is new; without NAME list all
/set NAME VALUE  change a sampling setting, max-tokens or think; without NAME list all
/save FILE       write the conversation to a file
/load FILE       continue a conversation from a file
/exit            quit, as does Ctrl-D
A line that ends with \\ goes on in the next one, as do lines between \"\"\" and \"\"\". Alt-Enter begins a line.
Ctrl-C stops an answer and keeps the part that was generated.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_command() {
        for name in NAMES {
            assert!(HELP.lines().any(|line| line.split(' ').next() == Some(name)), "{name}");
        }
    }
}
