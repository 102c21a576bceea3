//! `tenure order` as its users meet it, and the order checker in `tenure run`.

mod common;

use common::{Place, output, stderr, stdout};

common::on_stores!(
    [embedded, redis, postgres, etcd],
    [a_nested_run_in_the_other_order_is_reported_the_first_time]
);

/// A line of an exported file.
fn line(held: &str, acquired: &str, service: &str) -> String {
    let at = format!("src/{service}.rs");
    format!(
        "{held}\texclusive\t{at}:7\t{acquired}\texclusive\t{at}:9\tunlimited\t15\t{service}\t\
         2.4\t1763471460\t1763471460\n"
    )
}

fn export(place: &Place, name: &str, lines: &[String]) -> String {
    let text = format!("tenure lock order 1\n{}", lines.concat());
    place.write(name, &text).display().to_string()
}

fn a_nested_run_in_the_other_order_is_reported_the_first_time(place: &Place) {
    let run = |first: &str, second: &str, mode: &str| {
        let nested = format!("tenure run {first} -- tenure run {second} -- echo done");
        output(place.shell(&nested).env("TENURE_ORDER", mode))
    };
    let first = run("account:1", "ledger", "warn");
    assert!(!stderr(&first).contains("can deadlock"), "{}", stderr(&first));
    let second = run("ledger", "account:2", "warn");
    assert_eq!(stdout(&second), "done\n", "a warning stops nothing: {}", stderr(&second));
    let said = stderr(&second);
    assert!(said.contains("can deadlock") && said.contains("account:*"), "{said}");
    let shown = place.says(&["order", "show"]);
    assert!(shown.contains("ledger") && shown.contains("warning: "), "{shown}");
    assert_eq!(place.code(&["order", "check"]), 1);
    // Denied before it waits, and the command does not run.
    let third = run("ledger", "account:3", "deny");
    assert_eq!(stdout(&third), "");
    assert!(stderr(&third).contains("can deadlock"), "{}", stderr(&third));
    // Off is the default.
    let quiet = output(&mut place.shell("tenure run ledger -- tenure run account:4 -- echo done"));
    assert_eq!((stdout(&quiet), stderr(&quiet)), ("done\n".to_owned(), String::new()));
}

#[test]
fn check_finds_the_deadlock_of_two_services_that_never_met_and_names_both_places() {
    let place = Place::embedded();
    let billing = export(&place, "billing.order", &[line("account:*", "ledger", "billing")]);
    let reports = export(&place, "reports.order", &[line("ledger", "account:*", "reports")]);
    assert_eq!(place.code(&["order", "check", &billing]), 0);
    assert_eq!(place.code(&["order", "check", &reports]), 0);
    let both = place.run(&["order", "check", &billing, &reports]);
    assert_eq!(both.status.code(), Some(1));
    let said = stdout(&both);
    for part in ["error: ", "src/billing.rs:9", "src/reports.rs:9", "2025-11-18T13:11:00Z"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let json = place.run(&["order", "check", &billing, &reports, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert_eq!(json["reports"][0]["kind"], "cycle");
    assert_eq!(json["reports"][0]["edges"].as_array().unwrap().len(), 2);
    let silenced = place.write("silenced", "ledger -> account:* : reports run alone at night\n");
    let silenced = silenced.display().to_string();
    let arguments = ["order", "check", &billing, &reports, "--silenced", &silenced];
    assert_eq!(place.code(&arguments), 0);
}

/// CI would be green for ever.
#[test]
fn a_check_of_no_edges_warns_and_says_what_to_set() {
    let place = Place::embedded();
    let empty = export(&place, "empty.order", &[]);
    for arguments in [&["order", "check"][..], &["order", "check", &empty, "--json"]] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(0));
        let said = stderr(&output);
        assert!(said.contains("no edge was read") && said.contains("TENURE_ORDER"), "{said}");
    }
    let one = export(&place, "one.order", &[line("a", "b", "one")]);
    let silenced = place.write("silenced", "a -> b : known\n").display().to_string();
    for arguments in
        [&["order", "check", &one][..], &["order", "check", &one, "--silenced", &silenced]]
    {
        let output = place.run(arguments);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    }
}

/// The first service waits with a limit, a third takes the same pair without one.
#[test]
fn a_deadlock_behind_a_wait_with_a_limit_is_an_error() {
    let place = Place::embedded();
    let limited = line("account:*", "ledger", "limited").replace("unlimited", "bounded");
    let limited = export(&place, "limited.order", &[limited]);
    let reports = line("ledger", "account:*", "reports").replace("1763471460", "1763471470");
    let reports = export(&place, "reports.order", &[reports]);
    let billing = line("account:*", "ledger", "billing").replace("1763471460", "1763471480");
    let billing = export(&place, "billing.order", &[billing]);
    assert_eq!(place.code(&["order", "check", &limited, &reports]), 0, "it ends by itself");
    let all = place.run(&["order", "check", &limited, &reports, &billing]);
    assert_eq!(all.status.code(), Some(1), "{}", stdout(&all));
    let said = stdout(&all);
    let error = said.split("error: ").nth(1).expect("the cycle of the other two");
    assert!(error.contains("src/reports.rs:9") && error.contains("src/billing.rs:9"), "{said}");
}

#[test]
fn the_order_flag_sets_the_mode_and_counts_before_the_variable() {
    let place = Place::embedded();
    let run = |first: &str, second: &str, flag: &str, variable: Option<&str>| {
        let tenure = format!("tenure run --order {flag}");
        let mut command =
            place.shell(&format!("{tenure} {first} -- {tenure} {second} -- echo done"));
        command.env_remove("TENURE_ORDER");
        if let Some(mode) = variable {
            command.env("TENURE_ORDER", mode);
        }
        output(&mut command)
    };
    let first = run("account:1", "ledger", "warn", None);
    assert_eq!(stdout(&first), "done\n", "{}", stderr(&first));
    assert!(place.says(&["order", "show"]).contains("then ledger"));
    let warned = run("ledger", "account:1", "warn", Some("deny"));
    assert_eq!(stdout(&warned), "done\n", "{}", stderr(&warned));
    assert!(stderr(&warned).contains("can deadlock"), "{}", stderr(&warned));
    let denied = run("ledger", "account:1", "deny", Some("warn"));
    assert_eq!(stdout(&denied), "", "{}", stderr(&denied));
    let quiet = run("ledger", "account:1", "off", Some("deny"));
    assert_eq!((stdout(&quiet), stderr(&quiet)), ("done\n".to_owned(), String::new()));
}

#[test]
fn a_declared_order_is_enforced_and_mistakes_in_files_are_named() {
    let place = Place::embedded();
    let billing = export(&place, "billing.order", &[line("account:*", "ledger", "billing")]);
    let declared = place.write("declared", "# the first first\nledger\naccount:*\n");
    let declared = declared.display().to_string();
    let output = place.run(&["order", "check", &billing, "--declared", &declared]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("ledger is declared before account:*"));
    for (name, text, says) in [("twice", "a\nb\na\n", "declared twice"), ("none", "", "")] {
        let file = place.write(name, text).display().to_string();
        let output = place.run(&["order", "check", &billing, "--declared", &file]);
        assert_eq!(output.status.success(), says.is_empty(), "{name}");
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    let bad = place.write("bad.order", "tenure lock order 1\nx\n").display().to_string();
    for (file, says) in [(bad.as_str(), "line 2"), ("/nonexistent", "cannot read")] {
        let output = place.run(&["order", "check", file]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    let reasonless = place.write("silenced", "a -> b\n").display().to_string();
    let output = place.run(&["order", "check", &billing, "--silenced", &reasonless]);
    assert!(stderr(&output).contains("reason"), "{}", stderr(&output));
}

#[test]
fn graphs_are_shown_drawn_exported_and_compared() {
    let place = Place::embedded();
    let old = export(&place, "old.order", &[line("a", "b", "one")]);
    let new = export(&place, "new.order", &[line("a", "b", "one"), line("b", "c", "two")]);
    let shown = place.says(&["order", "show", &new]);
    let at = |class: &str| shown.find(&format!(". {class}\n")).expect("the class");
    assert!(at("a") < at("b") && at("b") < at("c"), "{shown}");
    assert_eq!(place.says(&["order", "export", &old]), place.read("old.order"));
    let json = place.says_json(&["order", "export", &new, "--json"]);
    assert_eq!(json["classes"], serde_json::json!(["a", "b", "c"]));
    assert_eq!(json["edges"][0]["first_seen"], "2025-11-18T13:11:00Z");
    let differ = place.run(&["order", "diff", &old, &new]);
    assert_eq!(differ.status.code(), Some(1));
    assert!(stdout(&differ).starts_with("+ b -> c"), "{}", stdout(&differ));
    assert_eq!(place.code(&["order", "diff", &old, &old]), 0);
    for (form, begins) in [
        ("text", "a -> b"),
        ("dot", "digraph order {"),
        ("mermaid", "graph TD"),
        ("json", "{\"schema_version\""),
    ] {
        let drawn = place.says(&["order", "graph", &new, "--format", form]);
        assert!(drawn.starts_with(begins), "{drawn}");
    }
    assert!(place.says(&["order", "show"]).starts_with("no edges"));
}

#[test]
fn levels_of_the_config_file_hold_across_nested_runs() {
    let place = Place::embedded();
    let text = "[order]\nlevels = [\"region\", \"account\"]\n[order.names]\n\
                \"region:*\" = \"region\"\n\"account:*\" = \"account\"\n";
    let file = place.write("tenure.toml", text);
    let run = |script: &str| output(place.shell(script).env("TENURE_CONFIG", &file));
    let right = run("tenure run region:eu -- tenure run account:1 -- echo done");
    assert_eq!(stdout(&right), "done\n", "{}", stderr(&right));
    let wrong = run("tenure run account:1 -- tenure run region:eu -- echo done");
    assert_eq!(stdout(&wrong), "");
    let said = stderr(&wrong);
    assert!(said.contains("\"account:1\" of level \"account\""), "{said}");
    assert!(said.contains("\"region:eu\" of level \"region\""), "{said}");
    let again = run("tenure run account:1 -- tenure run account:1 -- echo done");
    assert_eq!(stdout(&again), "done\n", "it is entered again: {}", stderr(&again));
    let bad = place.write("bad.toml", "[order]\nlevels = [\"a\", \"a\"]\n");
    let output = output(place.tenure(&["ls"]).env("TENURE_CONFIG", &bad));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("named twice"), "{}", stderr(&output));
    let output = place.run(&["ls", "--order", "loud"]);
    assert_eq!(output.status.code(), Some(2));
}
