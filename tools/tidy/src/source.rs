//! Reads Rust just well enough: what is code, what is a test, where functions begin and end.
//! Knows strings, characters, lifetimes, comments and brackets; knows no grammar beyond that.

use std::ops::Range;

/// The text with comments, strings and character literals turned into spaces.
///
/// Offsets and line breaks stay where they were, so that a place in the answer is a place in the
/// text.
#[must_use]
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        match hidden_end(bytes, at) {
            Some(end) => {
                blank(&mut out, at..end);
                at = end;
            }
            None => at += 1,
        }
    }
    into_text(out)
}

/// Code (see [`code_only`]) with every item under `#[cfg(test)]` turned into spaces.
#[must_use]
pub fn without_tests(code: &str) -> String {
    if code.contains("#![cfg(test)]") {
        let mut out = code.as_bytes().to_vec();
        blank(&mut out, 0..code.len());
        return into_text(out);
    }
    let mut out = code.as_bytes().to_vec();
    for mark in ["#[cfg(test)]", "#[cfg(all(test"] {
        for (at, _) in code.match_indices(mark) {
            blank(&mut out, at..item_end(code.as_bytes(), at));
        }
    }
    into_text(out)
}

/// The number, from one, of the line that holds a place in the text.
#[must_use]
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Every identifier or keyword of a piece of code, with its place.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let bytes = code.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        at += bytes[at..].iter().position(|&byte| in_word(byte))?;
        let start = at;
        at += bytes[at..].iter().take_while(|&&byte| in_word(byte)).count();
        Some((start, &code[start..at]))
    })
}

/// A function as it stands in the code.
#[derive(Debug)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where the keyword `fn` stands.
    pub at: usize,
    /// From the keyword to its body, or to the semicolon.
    pub signature: &'a str,
    /// One past its last character.
    pub end: usize,
}

impl Function<'_> {
    /// What stands after the arrow, without the `where` clause; empty when there is no arrow.
    #[must_use]
    pub fn returns(&self) -> &str {
        let bytes = self.signature.as_bytes();
        let mut angles = 0_i32;
        let mut at = 0;
        // The parameters open with the first parenthesis outside the generics.
        while at < bytes.len() && !(bytes[at] == b'(' && angles == 0) {
            match bytes[at] {
                b'<' => angles += 1,
                b'>' if at > 0 && bytes[at - 1] != b'-' => angles -= 1,
                _ => {}
            }
            at += 1;
        }
        let after = &self.signature[closing(bytes, at)..];
        let Some((_, answer)) = after.split_once("->") else { return "" };
        let end =
            words(answer).find(|(_, word)| *word == "where").map_or(answer.len(), |(at, _)| at);
        answer[..end].trim()
    }
}

/// Every named function of a piece of code, in order; the nested ones too.
#[must_use]
pub fn functions(code: &str) -> Vec<Function<'_>> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut words = words(code).peekable();
    while let Some((at, word)) = words.next() {
        let Some(&(name_at, name)) = words.peek() else { break };
        // `fn(u8)` is a type and has no name; `fn $name` is a macro's.
        let between = code[at + word.len()..name_at].trim();
        if word != "fn" || !(between.is_empty() || between == "$") {
            continue;
        }
        let stop = signature_end(bytes, name_at);
        let has_body = bytes.get(stop) == Some(&b'{');
        let end = if has_body { closing(bytes, stop) } else { stop };
        found.push(Function { name, at, signature: &code[at..stop], end });
    }
    found
}

/// Every path in a piece of code with its line, `use` trees spelled out:
/// `std::{fs, net::TcpStream}` gives `std::fs` and `std::net::TcpStream`.
#[must_use]
pub fn paths(code: &str) -> Vec<(usize, String)> {
    let mut reader = PathReader { code, at: 0, found: Vec::new() };
    while reader.at < code.len() {
        match reader.word() {
            Some(_) => reader.tree(""),
            None => reader.skip(),
        }
    }
    reader.found
}

struct PathReader<'a> {
    code: &'a str,
    at: usize,
    found: Vec<(usize, String)>,
}

impl<'a> PathReader<'a> {
    /// Reads one branch and all that hangs on it.
    fn tree(&mut self, prefix: &str) {
        if self.eat("{") {
            while self.at < self.code.len() && !self.eat("}") {
                match self.word() {
                    Some(_) => self.tree(prefix),
                    None if self.next_is("{") => self.tree(prefix),
                    None => self.skip(),
                }
            }
            return;
        }
        let Some(word) = self.word() else { return };
        let line = line_of(self.code, self.at);
        self.at += word.len();
        let path = if prefix.is_empty() { word.to_owned() } else { format!("{prefix}::{word}") };
        let goes_on = self.eat("::");
        if goes_on && (self.next_is("{") || self.word().is_some()) {
            return self.tree(&path);
        }
        let takes_all = goes_on && self.next_is("*");
        self.found.push((line, if takes_all { path + "::*" } else { path }));
        if self.word() == Some("as") {
            // The new name of an import is no path.
            self.at += "as".len();
            self.skip_space();
            self.at += self.word().map_or(0, str::len);
        }
    }

    fn word(&mut self) -> Option<&'a str> {
        self.skip_space();
        let rest = &self.code[self.at..];
        let length = rest.bytes().take_while(|&byte| in_word(byte)).count();
        (length > 0).then(|| &rest[..length])
    }

    fn next_is(&mut self, mark: &str) -> bool {
        self.skip_space();
        self.code[self.at..].starts_with(mark)
    }

    fn eat(&mut self, mark: &str) -> bool {
        let here = self.next_is(mark);
        self.at += if here { mark.len() } else { 0 };
        here
    }

    fn skip(&mut self) {
        self.at += self.code[self.at..].chars().next().map_or(0, char::len_utf8);
    }

    fn skip_space(&mut self) {
        let rest = &self.code[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }
}

/// The end of the comment, string or character literal that begins here, if one does.
fn hidden_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        let length = rest.iter().position(|&byte| byte == b'\n');
        return Some(length.map_or(bytes.len(), |length| at + length));
    }
    if rest.starts_with(b"/*") {
        return Some(block_comment_end(bytes, at));
    }
    match bytes[at] {
        b'"' => Some(string_end(bytes, at + 1)),
        b'\'' => char_end(bytes, at),
        b'r' | b'b' | b'c' if at == 0 || !in_word(bytes[at - 1]) => raw_string_end(bytes, at),
        _ => None,
    }
}

/// Block comments nest.
fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `'x'` and `'\n'` end; `'a` is a lifetime and is no literal at all.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    let first = *bytes.get(at + 1)?;
    if first == b'\\' {
        let length = bytes.get(at + 3..)?.iter().position(|&byte| byte == b'\'')?;
        return Some(at + 3 + length + 1);
    }
    // The bytes after the first of one UTF-8 character all begin with the bits 10.
    let tail = bytes[at + 2..].iter().take_while(|&&byte| byte & 0xC0 == 0x80).count();
    let close = at + 2 + tail;
    (bytes.get(close) == Some(&b'\'')).then_some(close + 1)
}

/// `r"…"`, `br#"…"#` and `cr"…"`; not `r#name`.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + usize::from(bytes[start] != b'r');
    if bytes.get(at) != Some(&b'r') {
        return None;
    }
    at += 1;
    let hashes = bytes[at..].iter().take_while(|&&byte| byte == b'#').count();
    at += hashes;
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let body = &bytes[at + 1..];
    let length = body.windows(close.len()).position(|window| window == close);
    Some(length.map_or(bytes.len(), |length| at + 1 + length + close.len()))
}

/// The end of the item at or after its first attribute.
fn item_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at += bytes[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if !bytes[at..].starts_with(b"#[") {
            break;
        }
        at = closing(bytes, at + 1);
    }
    let stop = signature_end(bytes, at);
    if bytes.get(stop) == Some(&b'{') { closing(bytes, stop) } else { stop }
}

/// The place of the brace that opens the body, or just past the semicolon that stands instead.
fn signature_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0_u32;
    for (at, byte) in bytes.iter().enumerate().skip(start) {
        match byte {
            b';' if depth == 0 => return at + 1,
            // What closes here was opened further out: the item ends with it.
            b'{' | b')' | b']' | b'}' if depth == 0 => return at,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
    }
    bytes.len()
}

/// One past the bracket that closes the one that stands here.
fn closing(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0_u32;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    bytes.len()
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn blank(bytes: &mut [u8], range: Range<usize>) {
    for byte in &mut bytes[range] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("whole characters were blanked")
}

#[cfg(test)]
mod tests;
