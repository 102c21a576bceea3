//! The program on the engine's page is this one, and it runs.

use tenure::Tenure;

use crate::host::Nodes;

fn report(url: &str) -> Result<(), tenure::Error> {
    let tenure = Tenure::blocking_connect(url)?; // redlock://h1:6379,h2:6379,h3:6379
    let guard = tenure.mutex("reports")?.blocking_lock()?;
    println!("a majority of nodes says that we hold, with fence {}", guard.fence()?);
    guard.blocking_release()
}

#[test]
fn the_program_of_the_page_runs() {
    let page = include_str!("../../../../docs/redlock.md");
    let (_, rest) = page.split_once("```rust\n").expect("a program");
    let (program, _) = rest.split_once("```").expect("its end");
    let (_, function) = program.split_once("fn report").expect("a function");
    assert!(include_str!("page.rs").contains(&format!("fn report{function}")), "{function}");
    report(&Nodes::start(3, 0).new_url()).unwrap();
}
