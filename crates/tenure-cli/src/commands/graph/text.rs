//! The picture as text: deadlocks first, as sentences; then each owner that holds and does not
//! wait,
//! with the tree of those that wait for it. Every owner is expanded once.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::picture::Picture;

/// Writes the picture as text.
pub(super) fn write(picture: &Picture, out: &mut impl Write) -> io::Result<()> {
    for words in &picture.sentences {
        writeln!(out, "deadlock: {words}")?;
    }
    if picture.edges.is_empty() {
        return writeln!(out, "no waiters");
    }
    let mut expanded = BTreeSet::new();
    let owners = || picture.nodes.iter().filter(|node| node.kind == "owner");
    let waits = |id: &str| picture.edges.iter().any(|one| one.kind == "waits" && one.from == id);
    for root in owners().filter(|node| !waits(&node.id)) {
        writeln!(out, "{}", root.label)?;
        branches(picture, &root.id, 1, &mut expanded, out)?;
    }
    // Owners on cycles have no root above them.
    for node in owners() {
        if !expanded.contains(&node.id) && holds_contended(picture, &node.id) {
            writeln!(out, "{}", node.label)?;
            branches(picture, &node.id, 1, &mut expanded, out)?;
        }
    }
    if picture.truncated {
        writeln!(out, "(not everything is shown)")?;
    }
    Ok(())
}

/// The slots that an owner holds, and below each the owners that wait for it.
fn branches(
    picture: &Picture,
    owner: &str,
    depth: usize,
    expanded: &mut BTreeSet<String>,
    out: &mut impl Write,
) -> io::Result<()> {
    expanded.insert(owner.to_owned());
    for hold in picture.edges.iter().filter(|edge| edge.kind == "holds" && edge.to == owner) {
        let indent = "  ".repeat(depth);
        writeln!(out, "{indent}{} ({})", picture.label(&hold.from), hold.label)?;
        let waits = picture.edges.iter().filter(|edge| edge.kind == "waits");
        for wait in waits.filter(|edge| edge.to == hold.from) {
            let above = expanded.contains(&wait.from);
            let (label, mark) = (picture.label(&wait.from), if above { " (above)" } else { "" });
            writeln!(out, "{indent}  {label} ({}){mark}", wait.label)?;
            // A chain of waits may be long, a terminal is not wide.
            if !above && depth < 32 {
                branches(picture, &wait.from, depth + 2, expanded, out)?;
            }
        }
    }
    Ok(())
}

fn holds_contended(picture: &Picture, owner: &str) -> bool {
    let mut holds = picture.edges.iter().filter(|one| one.kind == "holds" && one.to == owner);
    holds.any(|hold| picture.edges.iter().any(|one| one.kind == "waits" && one.to == hold.from))
}
