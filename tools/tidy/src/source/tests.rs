//! The reader of Rust against the texts that fool a simpler one.

use super::{code_only, functions, line_of, paths, without_tests};

fn names(code: &str) -> Vec<String> {
    paths(code).into_iter().map(|(_, path)| path).collect()
}

#[test]
fn comments_strings_and_characters_are_no_code() {
    let text =
        "a /* { /* } */ { */ b // }\nc \"} \\\" }\" d '}' e '\\'' f b'{' g '\\u{7d}' h 'é' i";
    assert_eq!(code_only(text).split_whitespace().collect::<String>(), "abcdefbghi");
}

#[test]
fn raw_strings_end_at_their_own_mark() {
    let text = "let a = r#\"} \" }\"#; let b = br\"{\\\"; let c = cr\"{\"; let r#d = bar;";
    let code = code_only(text);
    assert!(!code.contains(['{', '}']), "{code}");
    assert!(code.contains("let r#d = bar;"), "{code}");
}

#[test]
fn lifetimes_open_nothing() {
    let text = "fn f<'a, 'b>(x: &'a str) -> &'static str { x }";
    assert_eq!(code_only(text), text);
}

#[test]
fn places_stay_where_they_were() {
    let text = "// é\n\"two\nlines\" here";
    let code = code_only(text);
    assert_eq!(code.len(), text.len());
    assert_eq!(line_of(&code, code.find("here").unwrap()), 3);
}

#[test]
fn test_items_vanish_and_their_neighbours_stay() {
    let code = "use a;\n#[cfg(test)]\nuse b::{c, d};\n#[cfg(test)]\n#[path = x]\n\
                mod t { fn u() { v } }\n#[cfg(all(test, unix))]\nmod w;\nfn x() {}\n\
                enum E {\n    #[cfg(test)]\n    Y,\n}\nfn z() {}";
    let left = without_tests(code);
    assert_eq!(left.split_whitespace().collect::<String>(), "usea;;fnx(){}enumE{}fnz(){}");
    assert_eq!(without_tests("#![cfg(test)]\nfn a() {}").trim(), "");
}

#[test]
fn functions_are_found_whole() {
    let code = "fn a(x: [u8; 2], f: fn(u8) -> u8) { if x { y } }\ntrait T { fn b(&self); }\n\
                fn c() { fn d() {} }";
    let found = functions(code);
    let ends: Vec<_> = found.iter().map(|each| (each.name, &code[each.at..each.end])).collect();
    assert_eq!(
        ends,
        [
            ("a", "fn a(x: [u8; 2], f: fn(u8) -> u8) { if x { y } }"),
            ("b", "fn b(&self);"),
            ("c", "fn c() { fn d() {} }"),
            ("d", "fn d() {}"),
        ]
    );
}

#[test]
fn the_answer_of_a_function_is_read_without_its_bounds() {
    let code = "fn a<F: Fn(u8) -> Result<()>>(f: F) -> Option<T> where F: Fn() -> Result<T> { }\n\
                fn b<F: Fn() -> Result<()>>(f: F) {}";
    let found = functions(code);
    assert_eq!(found[0].returns(), "Option<T>");
    assert_eq!(found[1].returns(), "");
}

#[test]
fn use_trees_are_spelled_out() {
    let code =
        "use std::{fs, time::{self, Instant as Now}, net::*};\nlet x = crate::a::B::<u8>::c(y.z);";
    let found = names(code);
    for path in
        ["std::fs", "std::net::*", "std::time::self", "std::time::Instant", "crate::a::B", "y", "z"]
    {
        assert!(found.contains(&path.to_owned()), "{path} not in {found:?}");
    }
    assert!(!found.iter().any(|path| path.contains("Now")), "{found:?}");
    assert_eq!(paths("\n\nuse a::{\n    b,\n};"), [(3, "use".to_owned()), (4, "a::b".to_owned())]);
}
