//! Every command in README and docs is what it claims to be: those of `tenure` have the options
//! they show, the others name things that exist. The snippets of the command's own pages run in
//! `recipes.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README and docs, by name.
fn pages() -> Vec<(String, String)> {
    let mut paths = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    paths.extend(docs.map(|entry| entry.unwrap().path()));
    let read =
        |path: PathBuf| (path.display().to_string(), std::fs::read_to_string(&path).unwrap());
    paths.into_iter().map(read).collect()
}

/// The lines of all `sh` blocks, and all commands in backquotes.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_shell = false;
    for line in page.lines() {
        if line.starts_with("```") {
            in_shell = line == "```sh" || line == "```console";
        } else if in_shell {
            let line = line.trim().trim_start_matches("$ ");
            // What is more than one command is run as a whole, elsewhere.
            let plain = ["cargo ", "./", "tenure "].iter().any(|start| line.starts_with(start));
            found.extend(plain.then(|| line.split("  ").next().unwrap_or(line).to_owned()));
        } else {
            let quoted = line.split('`').skip(1).step_by(2);
            let starts = ["cargo ", "./", "tenure "];
            // A line of a manifest begins like a command.
            let wanted = |text: &&str| {
                starts.iter().any(|start| text.starts_with(start)) && !text.contains(" = ")
            };
            found.extend(quoted.filter(wanted).map(str::to_owned));
        }
    }
    found.retain(|line| !line.is_empty() && !line.starts_with('#'));
    found
}

#[test]
fn every_command_in_the_docs_runs_or_names_what_exists() {
    let mut checked = 0;
    for (path, page) in pages() {
        let runs_elsewhere =
            ["docs/command.md", "docs/recipes.md"].iter().any(|p| path.ends_with(p));
        for command in commands(&page) {
            // Programs of the reader.
            if runs_elsewhere && command.starts_with("./") {
                continue;
            }
            check(&command).unwrap_or_else(|why| panic!("{path}: `{command}`: {why}"));
            checked += 1;
        }
    }
    assert!(checked > 5, "only {checked} commands were found");
}

fn check(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    // Settings before a command stand for themselves.
    let words: Vec<&str> = words.into_iter().skip_while(|word| word.contains('=')).collect();
    match words.as_slice() {
        ["cargo", "run", "--release", "--", args @ ..] | ["tenure", args @ ..] => known(args),
        ["cargo", "test", "-p", package, "--test", test, ..] => {
            let (file, folder) = (format!("tests/{test}.rs"), format!("tests/{test}/main.rs"));
            let places = ["crates", "tools"].map(|place| format!("{place}/{package}"));
            let found =
                places.iter().flat_map(|place| [&file, &folder].map(|f| format!("{place}/{f}")));
            let mut tried = found.map(|path| exists(&path));
            tried.find(Result::is_ok).unwrap_or_else(|| exists(&format!("{}/{file}", places[0])))
        }
        // The benchmark and the house rules have tests of their own; here it is enough that the
        // crate is there.
        ["cargo", "run", "--release", "-p", package, "--", ..]
        | ["cargo", "run", "-p", package, "--", ..]
        | ["cargo", "test" | "clippy" | "doc", "-p", package, ..] => {
            let crates = exists(&format!("crates/{package}"));
            crates.or_else(|why| exists(&format!("tools/{package}")).or(Err(why)))
        }
        // The name under which it is installed is that of the program.
        ["cargo", "install", "--path", path] => {
            let manifest = root().join(path).join("Cargo.toml");
            let text = std::fs::read_to_string(&manifest).map_err(|error| error.to_string())?;
            let named = text.contains("[[bin]]") && text.contains("name = \"tenure\"");
            if named { Ok(()) } else { Err(format!("{path} has no program `tenure`")) }
        }
        // A tool of its own, which no test assumes to be there.
        ["cargo", "fmt" | "clippy" | "test" | "doc" | "mutants", ..] => Ok(()),
        [script, ..] if script.starts_with("./") => exists(script),
        _ => Err("no test knows this kind of command".to_owned()),
    }
}

/// Whether there is such a command, with such options.
fn known(args: &[&str]) -> Result<(), String> {
    let name = args.first().ok_or("no command")?;
    // A command of a family, such as `cells put` or `jobs cron add`, has a help of its own.
    let depth = match args {
        ["jobs", "cron", ..] => 3,
        ["cells" | "jobs" | "order", ..] => 2,
        _ => 1,
    };
    let words = args.iter().take(depth).chain(&["--help"]);
    let help = Command::new(env!("CARGO_BIN_EXE_tenure")).args(words).output();
    let help = help.map_err(|error| error.to_string())?;
    if !help.status.success() {
        return Err(format!("there is no `tenure {name}`"));
    }
    let help = String::from_utf8_lossy(&help.stdout);
    let own = args.iter().take_while(|word| **word != "--");
    for option in own.filter(|word| word.starts_with("--")) {
        if !help.contains(&format!("{option} ")) && !help.contains(&format!("{option}\n")) {
            return Err(format!("`tenure {name}` has no {option}"));
        }
    }
    Ok(())
}

fn exists(path: &str) -> Result<(), String> {
    if root().join(path).exists() { Ok(()) } else { Err(format!("there is no {path}")) }
}
