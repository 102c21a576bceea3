//! The picture as SVG, with a layout of its own: nodes in layers by their longest path, ordered in
//! each layer by the mean place of their neighbours, a few times to and fro. Edges that would close
//! a cycle are left out of the layers, and drawn all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use super::picture::Picture;

const WIDTH: usize = 220;
const HEIGHT: usize = 36;
const GAP_X: usize = 110;
const GAP_Y: usize = 24;
const SWEEPS: usize = 6;

/// Writes the picture as SVG.
pub(super) fn write(picture: &Picture, out: &mut impl Write) -> io::Result<()> {
    let layers = layers(picture);
    let mut places: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (x, layer) in layers.iter().enumerate() {
        for (y, id) in layer.iter().enumerate() {
            places.insert(id, (20 + x * (WIDTH + GAP_X), 20 + y * (HEIGHT + GAP_Y)));
        }
    }
    let rows = layers.iter().map(Vec::len).max().unwrap_or(0);
    let (width, height) = (40 + layers.len() * (WIDTH + GAP_X), 40 + rows * (HEIGHT + GAP_Y));
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">"
    )?;
    writeln!(
        out,
        "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" \
         markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\"/></marker></defs>"
    )?;
    for edge in &picture.edges {
        let (Some(from), Some(to)) = (places.get(&*edge.from), places.get(&*edge.to)) else {
            continue;
        };
        let forwards = from.0 < to.0;
        let (x1, x2) = if forwards { (from.0 + WIDTH, to.0) } else { (from.0, to.0 + WIDTH) };
        let (y1, y2) = (from.1 + HEIGHT / 2, to.1 + HEIGHT / 2);
        let dash = if edge.kind == "waits" { " stroke-dasharray=\"5 4\"" } else { "" };
        writeln!(
            out,
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"black\"{dash} \
             marker-end=\"url(#tip)\"><title>{}</title></line>",
            escaped(&edge.label)
        )?;
    }
    for node in &picture.nodes {
        let Some((x, y)) = places.get(&*node.id) else { continue };
        let round = if node.kind == "slot" { 2 } else { HEIGHT / 2 };
        let color = if node.deadlocked { "red" } else { "black" };
        let (tx, ty) = (x + WIDTH / 2, y + HEIGHT / 2 + 4);
        let label: String = node.label.chars().take(34).collect();
        writeln!(
            out,
            "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             rx=\"{round}\" fill=\"white\" stroke=\"{color}\"/><text x=\"{tx}\" y=\"{ty}\" \
             text-anchor=\"middle\">{}</text></g>",
            escaped(&node.label),
            escaped(&label)
        )?;
    }
    writeln!(out, "</svg>")
}

/// The nodes of each layer, in order.
fn layers(picture: &Picture) -> Vec<Vec<&str>> {
    let forward = forward_edges(picture);
    let mut depth: BTreeMap<&str, usize> =
        picture.nodes.iter().map(|node| (node.id.as_str(), 0)).collect();
    // Each pass moves nodes behind those before them; a longest path has no more nodes than there
    // are.
    for _ in 0..picture.nodes.len() {
        let mut moved = false;
        for (from, to) in &forward {
            let behind = depth[from] + 1;
            if depth[to] < behind {
                depth.insert(*to, behind);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let mut layers: Vec<Vec<&str>> = Vec::new();
    for node in &picture.nodes {
        let at = depth[node.id.as_str()];
        layers.resize_with(layers.len().max(at + 1), Vec::new);
        layers[at].push(&node.id);
    }
    for _ in 0..SWEEPS {
        let places: BTreeMap<&str, usize> = layers
            .iter()
            .flat_map(|layer| layer.iter().enumerate().map(|(place, id)| (*id, place)))
            .collect();
        for layer in &mut layers {
            layer.sort_by_key(|id| {
                let near = forward.iter().filter_map(|(from, to)| {
                    if from == id { Some(places[to]) } else { (to == id).then(|| places[from]) }
                });
                let near: Vec<usize> = near.collect();
                // The mean place of the neighbours, in thousandths: rounded to whole numbers,
                // different means would be equal.
                near.iter().sum::<usize>() * 1000 / near.len().max(1)
            });
        }
    }
    layers
}

/// The edges without those that a depth-first walk meets on its own path.
fn forward_edges(picture: &Picture) -> Vec<(&str, &str)> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for edge in &picture.edges {
        next.entry(&edge.from).or_default().push(&edge.to);
    }
    let (mut forward, mut done, mut path) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for node in &picture.nodes {
        let mut walk = vec![(node.id.as_str(), 0)];
        while let Some((id, step)) = walk.pop() {
            if step == 0 && !done.insert(id) {
                continue;
            }
            path.insert(id);
            let Some(to) = next.get(id).and_then(|all| all.get(step)) else {
                path.remove(id);
                continue;
            };
            walk.push((id, step + 1));
            if !path.contains(to) {
                forward.push((id, *to));
                if !done.contains(to) {
                    walk.push((*to, 0));
                }
            }
        }
    }
    forward
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
