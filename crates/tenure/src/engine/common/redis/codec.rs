//! Where a claim comes from (host, process, place in the code, label), as text inside a stored
//! claim; and how the fields of stored texts are written. Both engines over Redis store claims this
//! way.
//!
//! Fields are separated by spaces. A text is `=` and its percent-encoded characters, an absent one
//! `-`; so no field contains a space, and an empty text differs from none.

use percent_encoding::percent_decode_str;

use super::keys::encoded;
use crate::contract::{About, Conduct, Label, Place};

/// Appends the origin of a claim, each field behind a space: host, process, place and label, and
/// its conduct in a deadlock.
pub(in crate::engine) fn push_about(text: &mut String, about: &About) {
    text.push_str(" =");
    text.extend(encoded(&about.host));
    text.push(' ');
    push_number(text, about.pid.into(), 1);
    match &about.place {
        Some(Place::Here(place)) => {
            text.push_str(" =");
            text.extend(encoded(place.file()));
            text.push_str("%3A");
            push_number(text, place.line().into(), 1);
        }
        Some(Place::Told(place)) => {
            text.push_str(" =");
            text.extend(encoded(place));
        }
        None => text.push_str(" -"),
    }
    text.push(' ');
    push_option(text, about.label.as_ref().map(Label::as_str), |text, label| {
        text.push('=');
        text.extend(encoded(label));
    });
    // Left out where it is 0, so that the text of most claims stays short.
    let conduct = about.conduct.to_code();
    if conduct != 0 {
        text.push(' ');
        push_number(text, conduct.into(), 1);
    }
}

/// Parses what `push_about` wrote.
#[cfg(feature = "redlock")]
pub(in crate::engine) fn parse_about(text: &str) -> Option<About> {
    parse_about_words(text.split(' ').skip(1))
}

/// Parses the fields that `push_about` wrote, one word each.
pub(in crate::engine) fn parse_about_words<'a>(
    mut words: impl Iterator<Item = &'a str>,
) -> Option<About> {
    let host = decoded(words.next()?)?.unwrap_or_default().into();
    let pid = words.next()?.parse().ok()?;
    let place = decoded(words.next()?)?.map(|text| Place::Told(text.into()));
    let label = decoded(words.next()?)?.and_then(|text| Label::try_from(&*text).ok());
    let conduct = match words.next() {
        Some(code) => Conduct::from_code(code.parse().ok()?),
        None => Conduct::default(),
    };
    Some(About { host, pid, place, label, conduct })
}

/// Decodes a field that is absent (`-`) or a text (`=` and the encoded text).
#[allow(clippy::option_option, reason = "not a field, no text, a text")]
fn decoded(word: &str) -> Option<Option<String>> {
    if word == "-" {
        return Some(None);
    }
    let text = percent_decode_str(word.strip_prefix('=')?).decode_utf8().ok()?;
    Some(Some(text.chars().filter(|c| !c.is_control()).collect()))
}

/// Appends a field, or `-` if it is absent.
pub(in crate::engine) fn push_option<T>(
    text: &mut String,
    value: Option<T>,
    push: impl FnOnce(&mut String, T),
) {
    match value {
        Some(value) => push(text, value),
        None => text.push('-'),
    }
}

/// Appends a number with at least so many digits.
pub(in crate::engine) fn push_number(text: &mut String, number: u128, digits: usize) {
    // Dividing 128 bits is slow, and nothing we write is that large.
    let mut left = u64::try_from(number).unwrap_or(u64::MAX);
    let mut all = [b'0'; 20];
    let mut at = all.len();
    while left > 0 || all.len() - at < digits {
        at -= 1;
        all[at] = b'0' + u8::try_from(left % 10).unwrap_or(0);
        left /= 10;
    }
    text.push_str(std::str::from_utf8(&all[at..]).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_formatting_would() {
        for (number, digits) in [(0, 1), (7, 1), (10, 2), (86_400_000_000, 11), (5, 11)] {
            let mut text = String::new();
            push_number(&mut text, number, digits);
            assert_eq!(text, format!("{number:0digits$}"));
        }
    }

    #[test]
    fn what_is_written_of_an_origin_is_read_again() {
        let label = Some(Label::try_from("- = %\u{e9}").unwrap());
        let place = Some(Place::Told("src/a b.rs:7".into()));
        for conduct in
            [Conduct::default(), Conduct { breakable: true, held_up: 1, priority: -7, flow: 9 }]
        {
            let (place, label) = (place.clone(), label.clone());
            let about = About { host: "h-1".into(), pid: 42, place, label, conduct };
            let mut text = String::new();
            push_about(&mut text, &about);
            assert_eq!(parse_about_words(text.split(' ').skip(1)), Some(about));
        }
        let about = About {
            host: "".into(),
            pid: 0,
            place: None,
            label: None,
            conduct: Conduct::default(),
        };
        let mut text = String::new();
        push_about(&mut text, &about);
        assert_eq!(text, " = 0 - -");
        assert_eq!(parse_about_words(text.split(' ').skip(1)), Some(about));
        for odd in ["", "h 1 - -", "=h x - -", "=h 1 -", "=h 1 - - x"] {
            assert_eq!(parse_about_words(odd.split(' ')), None, "{odd}");
        }
    }
}
