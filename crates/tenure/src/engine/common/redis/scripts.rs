//! Lua scripts, assembled from their files. A script is called by its digest; a server that does
//! not have it gets the text.
//!
//! A file includes a part by a line `--#include PART`. Comments and indentation are left out: a
//! script is sent once per connection, and a server may cache several versions of it.

/// One verb's script.
#[derive(Clone, Debug)]
pub(in crate::engine) struct LuaScript {
    /// The whole text.
    pub(in crate::engine) text: String,
    /// Its SHA-1 digest, for `EVALSHA`.
    pub(in crate::engine) sha: String,
}

impl LuaScript {
    /// Assembles the script of a verb: `flags`, which is empty or the line that begins with `#!`,
    /// and the lines of `verb`, each include replaced by what `part` returns for its name. `push`
    /// appends lines, see [`push_lines`].
    pub(in crate::engine) fn assemble<'a>(
        flags: &str,
        verb: &str,
        part: impl Fn(&str) -> &'a str,
        push: fn(&mut String, &str),
    ) -> Self {
        let mut text = flags.to_owned();
        for line in verb.lines() {
            match line.trim().strip_prefix("--#include ") {
                Some(name) => push(&mut text, part(name)),
                None => push(&mut text, line),
            }
        }
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

/// Appends lines without comments and indentation.
pub(in crate::engine) fn push_lines(text: &mut String, lines: &str) {
    for line in lines.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with("--") {
            text.push_str(line);
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_included_and_comments_are_not() {
        let verb = "-- A verb.\n  --#include head\n\n  return x -- as it is\n";
        let part = |name: &str| {
            assert_eq!(name, "head");
            "-- A part.\nlocal x = 1"
        };
        let script = LuaScript::assemble("#!lua flags=allow-oom\n", verb, part, push_lines);
        assert_eq!(script.text, "#!lua flags=allow-oom\nlocal x = 1\nreturn x -- as it is\n");
        // By `sha1sum` of the text.
        assert_eq!(script.sha, "0dd148811d9ec7ccad12856e6980e92fa45d9039");
    }
}
