//! Classes of names: `account:1001` and `account:1002` are both of the class `account:*`. What
//! counts or compares locks by kind (metrics, the order checker, pages) uses these classes, never
//! names, of which there may be millions.

use std::cell::RefCell;

use super::inspect::Pattern;
use super::name::Name;

/// Segments longer than this are taken for generated ones.
const LONG_SEGMENT: usize = 24;
/// Hexadecimal text from this length on is taken for an id, if it has a digit.
const HEX_ID: usize = 8;
/// A ULID has 26 characters of Crockford's base 32; a UUID without dashes is covered by hex.
const ULID: usize = 26;

/// Finds the classes of names: first by templates of the user, otherwise by their segments.
///
/// A name is split at `: / . - _ #`. A segment of digits, a UUID, hexadecimal text of 8 or more
/// with a digit, a ULID, a segment with an `@` and one of more than 24 bytes become `*`; neighbours
/// that are `*` merge.
///
/// # Examples
/// ```
/// use tenure::NameClasses;
///
/// let classes = NameClasses::new(["tenant:*:export"]);
/// let class = |name: &str| classes.class_of(&name.parse().unwrap());
/// assert_eq!(class("account:1001"), "account:*");
/// assert_eq!(class("tenant:acme:export"), "tenant:*:export");
/// assert_eq!(class("reports/nightly"), "reports/nightly");
/// ```
#[derive(Clone, Debug, Default)]
pub struct NameClasses {
    templates: Vec<(String, Pattern)>,
}

impl NameClasses {
    /// Classes by templates, of which the first that matches wins: patterns as in
    /// [`Pattern::new`].
    #[must_use]
    pub fn new<T: Into<String>>(templates: impl IntoIterator<Item = T>) -> Self {
        let template = |text: T| {
            let text = text.into();
            let pattern = Pattern::new(&text);
            (text, pattern)
        };
        Self { templates: templates.into_iter().map(template).collect() }
    }

    /// The class of a name.
    #[must_use]
    pub fn class_of(&self, name: &Name) -> String {
        let shown = name.shown();
        self.template(&shown).map_or_else(
            || {
                let mut class = String::with_capacity(shown.len());
                derive_into(&mut class, &shown);
                class
            },
            str::to_owned,
        )
    }

    /// Passes the class of a name to `work`, without an allocation once this thread has made one
    /// as long.
    pub(crate) fn with_class<T>(&self, name: &Name, work: impl FnOnce(&str) -> T) -> T {
        thread_local! {
            static BUFFER: RefCell<String> = const { RefCell::new(String::new()) };
        }
        let shown = name.shown();
        if let Some(template) = self.template(&shown) {
            return work(template);
        }
        BUFFER.with_borrow_mut(|buffer| {
            buffer.clear();
            derive_into(buffer, &shown);
            work(buffer)
        })
    }

    fn template(&self, shown: &str) -> Option<&str> {
        let found = self.templates.iter().find(|(_, pattern)| pattern.matches(shown));
        found.map(|(text, _)| text.as_str())
    }
}

/// Appends the class that the segments of a name tell.
fn derive_into(class: &mut String, text: &str) {
    let mut rest = text;
    while !rest.is_empty() {
        // A UUID contains separators, so it is looked for before the next segment is cut off.
        let uuid = rest.get(..36).filter(|text| is_uuid(text) && ends_segment(&rest[36..]));
        let end = uuid.map_or_else(|| rest.find(is_separator).unwrap_or(rest.len()), str::len);
        let (segment, tail) = rest.split_at(end);
        if uuid.is_some() || is_generated(segment) {
            push_star(class);
        } else {
            class.push_str(segment);
        }
        let mut chars = tail.chars();
        class.extend(chars.next());
        rest = chars.as_str();
    }
}

/// Appends a `*`; if the segment before is one too, they merge.
fn push_star(class: &mut String) {
    let before = class.trim_end_matches(is_separator);
    let separators = class.len() - before.len();
    if before.ends_with('*') && separators == 1 {
        class.pop();
    } else {
        class.push('*');
    }
}

fn is_separator(c: char) -> bool {
    matches!(c, ':' | '/' | '.' | '-' | '_' | '#')
}

fn ends_segment(rest: &str) -> bool {
    rest.chars().next().is_none_or(is_separator)
}

fn is_generated(segment: &str) -> bool {
    let all = |is: fn(&u8) -> bool| !segment.is_empty() && segment.bytes().all(|b| is(&b));
    let digit = segment.bytes().any(|b| b.is_ascii_digit());
    let hex = segment.len() >= HEX_ID && digit && all(u8::is_ascii_hexdigit);
    let ulid = segment.len() == ULID && digit && all(u8::is_ascii_alphanumeric);
    all(u8::is_ascii_digit) || hex || ulid || segment.contains('@') || segment.len() > LONG_SEGMENT
}

fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_segments_become_stars_and_words_stay() {
        let uuid = "user:123e4567-e89b-12d3-a456-426614174000:lock";
        let long = format!("cache:{}", "x".repeat(25));
        let cases = [
            ("account:1001", "account:*"),
            ("a/b/c", "a/b/c"),
            ("order-17-line-3", "order-*-line-*"),
            ("2024-11-18", "*"),
            ("report.2024.11", "report.*"),
            (uuid, "user:*:lock"),
            ("job:deadbeef1", "job:*"),
            ("job:deadbeef", "job:deadbeef"),
            ("job:cafe1", "job:cafe1"),
            ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "*"),
            ("mail:ann@example.org", "mail:*.org"),
            (&*long, "cache:*"),
            ("été:7", "été:*"),
            ("x::1", "x::*"),
            ("#", "#"),
        ];
        for (name, class) in cases {
            assert_eq!(NameClasses::default().class_of(&name.parse().unwrap()), class, "{name}");
        }
    }

    #[test]
    fn the_first_template_that_matches_wins() {
        let classes = NameClasses::new(["tenant:*:export", "tenant:*"]);
        let class = |name: &str| classes.class_of(&name.parse().unwrap());
        assert_eq!(class("tenant:a:export"), "tenant:*:export");
        assert_eq!(class("tenant:a:import"), "tenant:*");
        assert_eq!(class("account:1"), "account:*");
    }
}
