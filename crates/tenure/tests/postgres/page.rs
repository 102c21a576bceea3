//! The program on the engine's page is this one, and it runs.

use servers::Postgres;
use tenure::Tenure;

fn report(url: &str) -> Result<(), tenure::Error> {
    let tenure = Tenure::blocking_connect(url)?; // postgres://user:password@host/database
    let guard = tenure.mutex("reports")?.blocking_lock()?;
    println!("one process of all hosts is here, with fence {}", guard.fence()?);
    guard.blocking_release()
}

#[test]
fn the_program_of_the_page_runs() {
    let page = include_str!("../../../../docs/postgres.md");
    let (_, rest) = page.split_once("```rust\n").expect("a program");
    let (program, _) = rest.split_once("```").expect("its end");
    let (_, function) = program.split_once("fn report").expect("a function");
    assert!(include_str!("page.rs").contains(&format!("fn report{function}")), "{function}");
    report(&Postgres::shared().url()).unwrap();
}
