//! Whether the numbered promises agree wherever they stand: `docs/model.md` has them in full, the
//! conformance suite has one sentence each as data, and scenarios, comments and docs cite numbers.

/// The page that numbers the promises.
pub const MODEL: &str = "docs/model.md";
/// The file that has their sentences as data.
pub const DATA: &str = "crates/tenure/src/conformance/promises.rs";

/// The sentences in bold of the numbered list under "## The promises", in order.
#[must_use]
pub fn in_model(page: &str) -> Vec<String> {
    let list = page.split("## The promises").nth(1).unwrap_or_default();
    let list = list.split("\n## ").next().unwrap_or_default();
    // A sentence may go on in the next line.
    let list = list.replace("\n   ", " ");
    let mut found: Vec<String> = Vec::new();
    for line in list.lines() {
        let item = line.split_once(". **").filter(|(number, _)| {
            number.parse::<usize>().is_ok_and(|number| number == found.len() + 1)
        });
        if let Some((sentence, _)) = item.and_then(|(_, rest)| rest.split_once("**")) {
            found.push(sentence.to_owned());
        }
    }
    found
}

/// The string literals of the table `PROMISES`, in order, with continued lines joined.
#[must_use]
pub fn in_data(text: &str) -> Vec<String> {
    let table = text.split("PROMISES: [").nth(1).and_then(|rest| rest.split("\n];").next());
    let strings = table.unwrap_or_default().split('"').skip(1).step_by(2);
    strings.map(|text| text.split("\\\n").map(str::trim_start).collect()).collect()
}

/// Complains about citations of a promise that does not exist: `promise 12`, `promises 3 and 4`,
/// `cites [1, 12]`.
#[must_use]
pub fn unresolved(path: &str, text: &str, promises: usize) -> Vec<String> {
    let mut complaints = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for number in cited(line) {
            if !(1..=promises).contains(&number) {
                complaints.push(format!(
                    "{path}:{}: there is no promise {number}; {MODEL} has 1 to {promises}",
                    index + 1
                ));
            }
        }
    }
    complaints
}

/// The numbers that a line cites.
fn cited(line: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for opening in ["promise ", "promises ", "Promise ", "Promises ", "cites ["] {
        for (at, _) in line.match_indices(opening) {
            let list = line[at + opening.len()..].split([']', '.', ';', ':', ')']).next();
            let words = list.unwrap_or_default().split([',', ' ']).filter(|word| !word.is_empty());
            let numbers = words.map_while(|word| match word {
                "and" | "to" | "or" => Some(None),
                word => word.parse::<usize>().ok().map(Some),
            });
            found.extend(numbers.flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_the_page_and_the_table_of_the_suite_are_read_alike() {
        let page = "## The promises\nText.\n1. **One.** More.\n   12. no item\n2. **Two.**\n\n\
                    ## Next\n3. **Three.**\n";
        let data =
            "pub const PROMISES: [&str; 2] = [\n    \"One.\",\n    \"Tw\\\n     o.\",\n];\n\"x\"";
        assert_eq!(in_model(page), ["One.", "Two."]);
        assert_eq!(in_data(data), ["One.", "Two."]);
    }

    #[test]
    fn a_citation_that_leads_nowhere_is_found() {
        let text = "keeps promise 2; promises 1 and 4\n    x cites [1, 12] needs [Queue];\n";
        let found = unresolved("a.rs", text, 3);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:1: there is no promise 4;"), "{found:?}");
        assert!(found[1].starts_with("a.rs:2: there is no promise 12;"), "{found:?}");
    }

    #[test]
    fn other_numbers_are_no_citations() {
        let text = "promises that 212 scenarios cite; it is a promise. 12 of them";
        assert_eq!(unresolved("a.md", text, 3), Vec::<String>::new());
    }
}
