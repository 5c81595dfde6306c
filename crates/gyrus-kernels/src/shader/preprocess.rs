//! The preprocessor: expands includes, conditions and constants of kernel files to plain WGSL.
//!
//! ```wgsl
//! #include "lib/words.wgsl"      // included once, however often it is named
//! #define PAIRS 4                // a name for a value; the name is replaced wherever it is a whole word
//! #if STORAGE == f16             // with #elif, #else, #endif; an undefined name is an error
//! #repeat I 4                    // what follows up to #end four times, I being 0, 1, 2, 3
//! var c##I = I##u;               // words are joined after names are replaced: c0 = 0u
//! ```
//!
//! `enable` lines are moved to the front, as WGSL requires. Every line of the result has its origin, so that a compiler
//! error can name the file and line.

use std::collections::BTreeSet;

use super::condition::{Constants, holds, substitute};

/// Plain WGSL and the origin of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The WGSL text.
    pub text: String,
    origins: Vec<(String, u32)>,
}

impl Source {
    /// The file and the line (both from 1) that a line of the text came from.
    pub fn origin(&self, line: u32) -> Option<(&str, u32)> {
        let (file, line) = self.origins.get((line as usize).checked_sub(1)?)?;
        Some((file, *line))
    }
}

/// Why a kernel's files could not be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub struct PreprocessError {
    /// The file with the mistake.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// What is wrong.
    pub reason: String,
}

/// Expands a file. `read` gives the text of a file by its path.
pub fn preprocess<'a>(
    file: &str,
    constants: impl IntoIterator<Item = (&'a str, String)>,
    read: &dyn Fn(&str) -> Option<String>,
) -> Result<Source, PreprocessError> {
    let constants = constants.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let mut state =
        State { constants, included: BTreeSet::new(), enables: Vec::new(), lines: Vec::new(), read };
    let text = read(file).ok_or_else(|| at(file, 0, "there is no such file"))?;
    state.included.insert(file.to_owned());
    state.expand(file, &text)?;
    let State { enables, lines, .. } = state;
    let mut source = Source { text: String::new(), origins: Vec::new() };
    for (line, origin) in enables.into_iter().chain(lines) {
        source.text.push_str(&line);
        source.text.push('\n');
        source.origins.push(origin);
    }
    Ok(source)
}

fn at(file: &str, line: usize, reason: impl Into<String>) -> PreprocessError {
    PreprocessError { file: file.to_owned(), line: line as u32 + 1, reason: reason.into() }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The number of lines of a `#repeat`: those up to its own `#end`.
fn repeated(lines: &[(usize, &str)]) -> Option<usize> {
    let mut open = 1;
    lines.iter().position(|(_, line)| {
        match line.trim_start().split(|c: char| c.is_whitespace()).next() {
            Some("#repeat") => open += 1,
            Some("#end") => open -= 1,
            _ => {}
        }
        open == 0
    })
}

type Line = (String, (String, u32));

struct State<'r> {
    constants: Constants,
    included: BTreeSet<String>,
    enables: Vec<Line>,
    lines: Vec<Line>,
    read: &'r dyn Fn(&str) -> Option<String>,
}

/// An open `#if`.
struct Branch {
    opened: usize,
    /// Whether its lines are active: its own condition and all enclosing ones hold.
    active: bool,
    /// Whether an earlier branch was taken, or the whole `#if` is inactive.
    taken: bool,
    /// Whether `#else` was seen.
    last: bool,
}

impl State<'_> {
    fn expand(&mut self, file: &str, text: &str) -> Result<(), PreprocessError> {
        let lines: Vec<(usize, &str)> = text.lines().enumerate().collect();
        self.expand_lines(file, &lines)
    }

    fn expand_lines(&mut self, file: &str, lines: &[(usize, &str)]) -> Result<(), PreprocessError> {
        let mut branches: Vec<Branch> = Vec::new();
        let mut next = 0;
        while let Some(&(number, line)) = lines.get(next) {
            next += 1;
            let active = branches.last().is_none_or(|branch| branch.active);
            let Some(directive) = line.trim_start().strip_prefix('#') else {
                if active {
                    self.line(file, number, line);
                }
                continue;
            };
            // A comment after a directive is not part of it.
            let directive = directive.split("//").next().unwrap_or_default().trim();
            let (word, rest) = directive.split_once(char::is_whitespace).unwrap_or((directive, ""));
            let rest = rest.trim();
            match word {
                "if" => {
                    let value = active && self.holds(file, number, rest)?;
                    branches.push(Branch {
                        opened: number,
                        active: value,
                        taken: value || !active,
                        last: false,
                    });
                }
                "elif" | "else" => {
                    let Some(open) = branches.last_mut() else {
                        return Err(at(file, number, format!("#{word} without #if")));
                    };
                    if open.last {
                        return Err(at(file, number, format!("#{word} after #else")));
                    }
                    let value = !open.taken && (word == "else" || self.holds(file, number, rest)?);
                    open.active = value;
                    open.taken |= value;
                    open.last = word == "else";
                }
                "endif" => {
                    branches.pop().ok_or_else(|| at(file, number, "#endif without #if"))?;
                }
                "repeat" => {
                    let inside = repeated(&lines[next..])
                        .ok_or_else(|| at(file, number, "this #repeat has no #end"))?;
                    if active {
                        self.repeat(file, number, rest, &lines[next..next + inside])?;
                    }
                    next += inside + 1;
                }
                "end" => return Err(at(file, number, "#end without #repeat")),
                _ if !active => {}
                "define" => self.define(file, number, rest)?,
                "include" => self.include(file, number, rest)?,
                _ => return Err(at(file, number, format!("'#{word}' is no directive"))),
            }
        }
        match branches.last() {
            Some(open) => Err(at(file, open.opened, "this #if has no #endif")),
            None => Ok(()),
        }
    }

    fn repeat(
        &mut self,
        file: &str,
        number: usize,
        rest: &str,
        lines: &[(usize, &str)],
    ) -> Result<(), PreprocessError> {
        let (name, count) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let count = substitute(count.trim(), &self.constants);
        let times: u32 = count
            .trim_end_matches('u')
            .parse()
            .map_err(|_| at(file, number, format!("#repeat needs a name and a number, not '{count}'")))?;
        if !is_name(name) || self.constants.contains_key(name) {
            return Err(at(file, number, format!("'{name}' is no new name for #repeat")));
        }
        for time in 0..times {
            self.constants.insert(name.to_owned(), time.to_string());
            self.expand_lines(file, lines)?;
        }
        self.constants.remove(name);
        Ok(())
    }

    fn line(&mut self, file: &str, number: usize, line: &str) {
        let line = (substitute(line, &self.constants), (file.to_owned(), number as u32 + 1));
        if line.0.trim_start().starts_with("enable ") {
            self.enables.push(line)
        } else {
            self.lines.push(line)
        }
    }

    fn holds(&self, file: &str, number: usize, condition: &str) -> Result<bool, PreprocessError> {
        holds(condition, &self.constants).map_err(|reason| at(file, number, reason))
    }

    fn define(&mut self, file: &str, number: usize, rest: &str) -> Result<(), PreprocessError> {
        let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if !is_name(name) || value.trim().is_empty() {
            return Err(at(file, number, "#define needs a name and a value"));
        }
        let value = substitute(value.trim(), &self.constants);
        match self.constants.insert(name.to_owned(), value.clone()) {
            Some(old) if old != value => {
                Err(at(file, number, format!("{name} is already {old}, and would become {value}")))
            }
            _ => Ok(()),
        }
    }

    fn include(&mut self, file: &str, number: usize, rest: &str) -> Result<(), PreprocessError> {
        let path = rest.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let path = path.ok_or_else(|| at(file, number, "#include needs a path in quotation marks"))?;
        if !self.included.insert(path.to_owned()) {
            return Ok(());
        }
        let text = (self.read)(path)
            .ok_or_else(|| at(file, number, format!("there is no file '{path}' to include")))?;
        self.expand(path, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(main: &str, constants: &[(&str, &str)]) -> Result<Source, PreprocessError> {
        let main = main.to_owned();
        let read = move |path: &str| match path {
            "main" => Some(main.clone()),
            "lib" => Some("#include \"main\"\nconst A = WIDTH;\nenable f16;\n".to_owned()),
            "bad" => Some("fine\n#frob\n".to_owned()),
            _ => None,
        };
        preprocess("main", constants.iter().map(|(n, v)| (*n, (*v).to_owned())), &read)
    }

    #[test]
    fn includes_come_once_and_enables_first() {
        let source =
            expand("one\n#include \"lib\"\n#include \"lib\"\nlast WIDTH", &[("WIDTH", "4")]).unwrap();
        assert_eq!(source.text, "enable f16;\none\nconst A = 4;\nlast 4\n");
        assert_eq!(source.origin(1), Some(("lib", 3)));
        assert_eq!(source.origin(2), Some(("main", 1)));
        assert_eq!(source.origin(4), Some(("main", 4)));
        assert_eq!(source.origin(0), None);
        assert_eq!(source.origin(5), None);
    }

    #[test]
    fn one_branch_is_taken_and_the_others_are_not_looked_at() {
        let text = "#if A == 1\none\n#elif A == 2\ntwo\n#if B // missing, but not reached\n#endif\n#else\nthree\n#endif\n";
        assert_eq!(expand(text, &[("A", "1"), ("B", "1")]).unwrap().text, "one\n");
        assert_eq!(expand(text, &[("A", "2"), ("B", "1")]).unwrap().text, "two\n");
        assert_eq!(expand(text, &[("A", "3")]).unwrap().text, "three\n");
        assert_eq!(expand("#if A\n#if A\nx\n#else\ny\n#endif\n#endif", &[("A", "0")]).unwrap().text, "");
    }

    #[test]
    fn defines_hold_from_their_line_on() {
        let source = expand("N\n#define N 4\n#define M N\nN M\n#define N 4", &[]).unwrap();
        assert_eq!(source.text, "N\n4 4\n");
    }

    #[test]
    fn repeats_count_and_nest() {
        let text = "#repeat I N\na[I]\n#repeat J 2\n#if I == J\nI J\n#endif\n#end\n#end\nI\n#if 0\n#repeat K x\n#end\n#endif";
        assert_eq!(expand(text, &[("N", "2u")]).unwrap().text, "a[0]\n0 0\na[1]\n1 1\nI\n");
        assert_eq!(expand(text, &[("N", "0")]).unwrap().text, "I\n");
        assert_eq!(expand(text, &[("N", "2")]).unwrap().origin(3), Some(("main", 2)));
    }

    #[test]
    fn repeats_make_names() {
        let text = "#repeat I 2\n#repeat J 2\nc##I##J = a##I + J##u;\n#end\n#end\nc##I";
        let expected = "c00 = a0 + 0u;\nc01 = a0 + 1u;\nc10 = a1 + 0u;\nc11 = a1 + 1u;\ncI\n";
        assert_eq!(expand(text, &[]).unwrap().text, expected);
    }

    #[test]
    fn mistakes_are_told_with_file_and_line() {
        for (text, message) in [
            ("#repeat I 2\n", "main:1: this #repeat has no #end"),
            ("x\n#end", "main:2: #end without #repeat"),
            ("#repeat I J\n#end", "main:1: #repeat needs a name and a number, not 'J'"),
            ("#define I 1\n#repeat I 2\n#end", "main:2: 'I' is no new name for #repeat"),
            ("a\n#if B\n#endif", "main:2: B is not defined"),
            ("#if 1\n", "main:1: this #if has no #endif"),
            ("x\n#endif", "main:2: #endif without #if"),
            ("#else", "main:1: #else without #if"),
            ("#if 1\n#else\n#else\n#endif", "main:3: #else after #else"),
            ("#include lib", "main:1: #include needs a path in quotation marks"),
            ("\n#include \"nowhere\"", "main:2: there is no file 'nowhere' to include"),
            ("#include \"bad\"", "bad:2: '#frob' is no directive"),
            ("#define", "main:1: #define needs a name and a value"),
            ("#define 4 4", "main:1: #define needs a name and a value"),
            ("#define A##B 1", "main:1: #define needs a name and a value"),
            ("#if A##B\n#endif", "main:1: '#' has no meaning in a condition"),
            ("#define A 1\n#define A 2", "main:2: A is already 1, and would become 2"),
        ] {
            assert_eq!(expand(text, &[]).unwrap_err().to_string(), message);
        }
    }
}
