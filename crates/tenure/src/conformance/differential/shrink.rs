//! Makes a program that shows a difference as short as it gets. Knows that steps can be left out.

use super::play::{Difference, play};
use super::program::{Program, ProgramStep};
use crate::conformance::harness::Harness;

/// The shortest program found that still parts engine and ledger, and where it does.
pub(super) fn shrink(
    mut program: Program,
    mut difference: Difference,
    harness: &dyn Harness,
) -> (Program, Difference) {
    // Nothing after the first difference matters.
    program.0.truncate(difference.step + 1);
    let mut chunk = program.0.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < program.0.len() {
            let shorter = without(&program, at, chunk);
            match play(&shorter, harness) {
                Err(still) if !shorter.0.is_empty() => (program, difference) = (shorter, still),
                _ => at += chunk,
            }
        }
        chunk /= 2;
    }
    (program, difference)
}

/// The program without some of its steps. Steps of claims that are no longer made go along.
fn without(program: &Program, from: usize, count: usize) -> Program {
    let keeps = |at: usize| !(from..from + count).contains(&at);
    let kept = program.0.iter().enumerate().filter(|(at, _)| keeps(*at)).map(|(_, step)| step);
    let mut made = Vec::new();
    let mut steps = Vec::new();
    for step in kept {
        let mut step = step.clone();
        let known = match &mut step {
            ProgramStep::Claim { claim, replaces, .. } => {
                *replaces = replaces.filter(|old| made.contains(old));
                made.push(*claim);
                true
            }
            ProgramStep::Renew { claims, .. } => {
                claims.retain(|claim| made.contains(claim));
                !claims.is_empty()
            }
            ProgramStep::Repeat(claim)
            | ProgramStep::Release(claim)
            | ProgramStep::Withdraw(claim)
            | ProgramStep::Evict { claim, .. } => made.contains(claim),
            ProgramStep::End(_) | ProgramStep::Raise(_) | ProgramStep::Pass(_) => true,
        };
        if known {
            steps.push(step);
        }
    }
    Program(steps)
}
