//! The picture for other programs: Graphviz and Mermaid. Labels are quoted and escaped.

use std::io::{self, Write};

use super::picture::Picture;

/// Writes the picture for Graphviz.
pub(super) fn dot(picture: &Picture, out: &mut impl Write) -> io::Result<()> {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    writeln!(out, "digraph tenure {{")?;
    for node in &picture.nodes {
        let shape = if node.kind == "slot" { "box" } else { "ellipse" };
        let color = if node.deadlocked { ", color=red" } else { "" };
        writeln!(out, "  {} [label=\"{}\", shape={shape}{color}];", node.id, quoted(&node.label))?;
    }
    for edge in &picture.edges {
        let style = if edge.kind == "waits" { "dashed" } else { "solid" };
        let (from, to, label) = (&edge.from, &edge.to, quoted(&edge.label));
        writeln!(out, "  {from} -> {to} [label=\"{label}\", style={style}];")?;
    }
    writeln!(out, "}}")
}

/// Writes the picture for Mermaid.
pub(super) fn mermaid(picture: &Picture, out: &mut impl Write) -> io::Result<()> {
    let quoted = |text: &str| text.replace('#', "#35;").replace('"', "#quot;");
    writeln!(out, "flowchart LR")?;
    for node in &picture.nodes {
        let (open, close) = if node.kind == "slot" { ("[", "]") } else { ("(", ")") };
        writeln!(out, "  {}{open}\"{}\"{close}", node.id, quoted(&node.label))?;
    }
    for edge in &picture.edges {
        let arrow = if edge.kind == "waits" { "-.->" } else { "-->" };
        let (from, to, label) = (&edge.from, &edge.to, quoted(&edge.label));
        writeln!(out, "  {from} {arrow}|\"{label}\"| {to}")?;
    }
    let deadlocked = picture.nodes.iter().filter(|node| node.deadlocked);
    let deadlocked: Vec<&str> = deadlocked.map(|node| node.id.as_str()).collect();
    if !deadlocked.is_empty() {
        writeln!(out, "  style {} stroke:red", deadlocked.join(","))?;
    }
    Ok(())
}
