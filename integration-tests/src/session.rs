//! Sessions: files of commands with what they print and how they end, played against a control plane (`docs/sessions.md`).
//!
//! A file is prose at the left margin and steps behind two blanks. This module reads and writes the files and compares; `play` runs the
//! commands.

mod play;

use std::fmt::Write as _;

pub use play::{Played, Player};

/// What a step does with its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `$`: the command runs to its end, and must print and end as the step says.
    Run,
    /// `~`: the command runs again and again until it succeeds; what it prints does not count.
    Until,
    /// `&`: the command runs until it has printed what the step says; it is then terminated, and must end as the step says.
    Daemon,
}

impl Kind {
    const ALL: [(Self, char); 3] = [(Self::Run, '$'), (Self::Until, '~'), (Self::Daemon, '&')];

    fn sign(self) -> char {
        match self {
            Self::Run => '$',
            Self::Until => '~',
            Self::Daemon => '&',
        }
    }
}

/// One command of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Line of the file, from 1.
    pub line: usize,
    /// What is done with the command.
    pub kind: Kind,
    /// Text for the shell, of one line or several.
    pub command: String,
    /// Lines of standard output, then those of standard error behind `! `.
    pub output: Vec<String>,
    /// Exit code.
    pub code: i32,
}

/// A piece of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Prose(String),
    Step(Step),
}

/// A session as its file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pieces: Vec<Piece>,
}

impl Session {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The line that cannot be read, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut step: Option<Step> = None;
        let (mut is_command, mut n_empty) = (false, 0);
        for (idx, line) in text.lines().enumerate() {
            let Some(rest) = line.strip_prefix("  ") else {
                if line.is_empty() && step.is_some() {
                    n_empty += 1;
                    continue;
                }
                pieces.extend(step.take().map(Piece::Step));
                pieces.extend(std::iter::repeat_n(Piece::Prose(String::new()), n_empty));
                n_empty = 0;
                pieces.push(Piece::Prose(line.to_owned()));
                continue;
            };
            let begins = Kind::ALL.into_iter().find(|(_, sign)| rest.starts_with(&format!("{sign} ")));
            if let Some((kind, _)) = begins {
                pieces.extend(step.take().map(Piece::Step));
                pieces.extend(std::iter::repeat_n(Piece::Prose(String::new()), n_empty));
                n_empty = 0;
                let command = rest[2..].to_owned();
                step = Some(Step { line: idx + 1, kind, command, output: Vec::new(), code: 0 });
                is_command = true;
                continue;
            }
            let Some(step) = &mut step else {
                return Err(format!("line {}: output without a command", idx + 1));
            };
            if let Some(more) = rest.strip_prefix('>').filter(|_| is_command) {
                step.command.push('\n');
                step.command.push_str(more.strip_prefix(' ').unwrap_or(more));
                continue;
            }
            is_command = false;
            step.output.extend(std::iter::repeat_n(String::new(), n_empty));
            n_empty = 0;
            let code = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')?.parse().ok());
            match code {
                Some(code) => step.code = code,
                None => step.output.push(rest.to_owned()),
            }
        }
        pieces.extend(step.map(Piece::Step));
        Ok(Self { pieces })
    }

    /// The steps in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Step(step) => Some(step),
            Piece::Prose(_) => None,
        })
    }

    fn steps_mut(&mut self) -> impl Iterator<Item = &mut Step> {
        self.pieces.iter_mut().filter_map(|piece| match piece {
            Piece::Step(step) => Some(step),
            Piece::Prose(_) => None,
        })
    }

    /// The text of its file.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Prose(line) => writeln!(text, "{line}"),
                Piece::Step(step) => write!(text, "{}", step.text()),
            }
            .expect("texts grow");
        }
        text
    }
}

impl Step {
    fn text(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for (idx, line) in self.command.lines().enumerate() {
            let sign = if idx == 0 { self.kind.sign() } else { '>' };
            lines.push(format!("  {sign} {line}").trim_end().to_owned());
        }
        lines.extend(self.output.iter().map(|line| format!("  {line}").trim_end().to_owned()));
        if self.code != 0 {
            lines.push(format!("  [{}]", self.code));
        }
        lines.join("\n") + "\n"
    }

    /// The words of each call of godel in the command: what follows `godel` where a command of the shell can stand.
    pub fn calls(&self) -> Vec<Vec<&str>> {
        let parts = self.command.split(['|', ';', '\n', '(', ')', '&']);
        let words = parts.map(|part| part.split_whitespace().collect::<Vec<_>>());
        let mut calls = Vec::new();
        for words in words {
            let first = words.iter().position(|word| !word.contains('=') && *word != "!");
            if let Some(at) = first.filter(|at| words[*at] == "godel") {
                calls.push(words[at + 1..].to_vec());
            }
        }
        calls
    }

    /// Whether the step asks for JSON and shows it as it is.
    pub fn is_json(&self) -> bool {
        let is_piped = self.command.contains(['|', '>', '\n']);
        self.command.contains("-o json") && !is_piped
    }
}

/// Whether what was printed is what a step says. `...` stands for any lines, `[..]` for any text of one line, and several blanks
/// are as two: columns are as wide as what stands in them.
pub fn matches(expected: &[String], printed: &[String]) -> bool {
    match (expected, printed) {
        ([], []) => true,
        ([first, rest @ ..], _) if first.trim() == "..." => {
            (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..]))
        }
        ([first, rest @ ..], [line, lines @ ..]) => {
            is_like(&narrowed(first), &narrowed(line)) && matches(rest, lines)
        }
        _ => false,
    }
}

/// Without blanks at the end, and with two where there are more.
fn narrowed(line: &str) -> String {
    let mut text = line.trim_end().to_owned();
    while text.contains("   ") {
        text = text.replace("   ", "  ");
    }
    text
}

fn is_like(pattern: &str, line: &str) -> bool {
    let Some((first, rest)) = pattern.split_once("[..]") else { return pattern == line };
    let Some(line) = line.strip_prefix(first) else { return false };
    (0..=line.len()).filter(|at| line.is_char_boundary(*at)).any(|at| is_like(rest, &line[at..]))
}

/// A line without what is another one in each run: uids, times, ids, revisions, loopback addresses, and numbers of twelve digits or more.
pub fn settled(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let is_inside = text.ends_with(|c: char| c.is_ascii_alphanumeric());
        let found = if is_inside { None } else { varying(rest, &text) };
        if let Some((n, word)) = found {
            text.push_str(word);
            rest = &rest[n..];
        } else {
            let n = rest.chars().next().map_or(1, char::len_utf8);
            text.push_str(&rest[..n]);
            rest = &rest[n..];
        }
    }
    text
}

/// How many bytes at the start of a text are another one in each run, and the word for them.
fn varying(text: &str, before: &str) -> Option<(usize, &'static str)> {
    let has_shape = |shape: &str| {
        let fits = |(c, shape): (char, char)| match shape {
            'x' => c.is_ascii_hexdigit(),
            '0' => c.is_ascii_digit(),
            other => c == other,
        };
        text.len() >= shape.len() && text.chars().zip(shape.chars()).all(fits)
    };
    let n_of = |is_of: fn(char) -> bool| text.find(|c| !is_of(c)).unwrap_or(text.len());
    let digits = n_of(|c| c.is_ascii_digit());
    if has_shape("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") {
        return Some((36, "UID"));
    }
    if has_shape("0000-00-00T00:00:00") {
        return Some((n_of(|c| c.is_ascii_digit() || "-:T.Z+".contains(c)), "TIME"));
    }
    if text.starts_with("127.") {
        let address = &text[..n_of(|c| c.is_ascii_digit() || ".:".contains(c))];
        return Some((address.trim_end_matches(['.', ':']).len(), "ADDRESS"));
    }
    if text.starts_with("/") && before.ends_with("unix:") {
        return Some((text.find(".sock").map_or(0, |at| at + ".sock".len()), "SOCKET"))
            .filter(|(n, _)| *n > 0);
    }
    let word = before.trim_end().trim_end_matches("\":");
    let stem = word.strip_suffix("revision").or_else(|| word.strip_suffix("id"));
    let is_word = stem.is_some_and(|stem| !stem.ends_with(|c: char| c.is_ascii_alphabetic()));
    let is_id = before.ends_with(' ') && is_word;
    (digits >= 12 || (digits > 0 && is_id)).then_some((digits, "N"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A title

Some words.

  $ godel node list
  NAME  STATUS

  n-1   Ready
  $ cat <<EOF |
  > a: b
  > EOF
  > godel apply -f -
  ! error: no
  [2]

  ~ ! godel unit list -o json | grep -q x
";

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_file_is_read_and_written_as_it_is() {
        let session = Session::parse(TEXT).unwrap();
        assert_eq!(session.text(), TEXT);
        let steps: Vec<&Step> = session.steps().collect();
        assert_eq!(steps[0].output, lines("NAME  STATUS\n\nn-1   Ready"));
        assert_eq!((steps[1].command.lines().count(), steps[1].code, steps[1].line), (4, 2, 9));
        assert_eq!(
            (steps[1].calls(), steps[2].calls()),
            (vec![vec!["apply", "-f", "-"]], vec![vec!["unit", "list", "-o", "json"]])
        );
        assert_eq!(steps[2].kind, Kind::Until);
        assert_eq!(Session::parse("  what"), Err("line 1: output without a command".to_owned()));
    }

    #[test]
    fn what_is_printed_is_compared_with_patterns() {
        for (expected, printed, is_so) in [
            ("a\nb", "a\nb", true),
            ("a", "a\nb", false),
            ("a\n...", "a\nb\nc", true),
            ("...\nc", "a\nb\nc", true),
            ("...\nd", "a\nb\nc", false),
            ("a [..] c", "a b b c", true),
            ("a [..]x", "a b", false),
            ("a   b", "a      b  ", true),
            ("a b", "a  b", false),
        ] {
            assert_eq!(matches(&lines(expected), &lines(printed)), is_so, "{expected:?} {printed:?}");
        }
    }

    #[test]
    fn what_is_another_one_each_time_has_a_word() {
        for (line, expected) in [
            ("uid 0190163d-8694-739b-aea5-000000000001 of", "uid UID of"),
            ("at revision 17, \"spec_revision\": 3,", "at revision N, \"spec_revision\": N,"),
            ("revision      11", "revision      N"),
            ("web submitted (id 3, revision 4)", "web submitted (id N, revision N)"),
            ("\"unit_id\": 3, \"said 3\"", "\"unit_id\": N, \"said 3\""),
            ("since 2026-11-27T15:30:01.5Z", "since TIME"),
            ("http://127.128.3.4:10000/x", "http://ADDRESS/x"),
            ("state at unix:/tmp/x/godel.sock answers", "state at unix:SOCKET answers"),
            ("\"at\": 1764257463123", "\"at\": N"),
            ("3 of 12 cpu, a1764257463123", "3 of 12 cpu, a1764257463123"),
        ] {
            assert_eq!(settled(line), expected);
        }
    }
}
