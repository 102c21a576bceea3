//! Documents of learned edges: what goes out comes in again, and what they say of cycles.

use crate::order::edge::utc;
use crate::order::{LockMode, NameOrders, OrderEdge, OrderGraph, ReportKind, SilencedEdges};

fn edge(held: &str, acquired: &str, service: &str) -> OrderEdge {
    OrderEdge::new(held, acquired)
        .service(service)
        .places(format!("{service}.rs:1"), format!("{service}.rs:2"))
}

fn graph(edges: impl IntoIterator<Item = OrderEdge>) -> OrderGraph {
    let mut graph = OrderGraph::default();
    for edge in edges {
        graph.add(edge);
    }
    graph
}

#[test]
fn a_graph_survives_its_text_and_bad_lines_are_named() {
    let mut odd = edge("a \"quoted\"", "b", "s\tu\nv");
    odd.held_mode = LockMode::Shared;
    odd.bounded = true;
    (odd.first_seen, odd.last_seen) = (17, 18);
    let text = graph([edge("x", "y", "one"), odd]).to_text();
    let read = OrderGraph::from_text(&text).unwrap();
    assert_eq!(read.to_text(), text);
    assert!(text.contains("s?u?v"), "{text}");
    for (bad, expected) in [
        ("", "first line"),
        ("tenure lock order 1\nx\n", "line 2"),
        ("tenure lock order 1\na\tw\t\tb\tw\t\tbounded\t1\ts\tb\t1\t1\n", "line 2"),
    ] {
        let error = OrderGraph::from_text(bad).unwrap_err().to_string();
        assert!(error.contains(expected), "{bad:?}: {error}");
    }
}

#[test]
fn a_cycle_over_three_services_names_all_places_and_a_silenced_edge_ends_it() {
    let all = graph([edge("a", "b", "one"), edge("b", "c", "two"), edge("c", "a", "three")]);
    let cycles = all.cycles();
    assert_eq!(cycles.len(), 1);
    assert_eq!(cycles[0].kind, ReportKind::Cycle);
    let text = cycles[0].to_string();
    for place in ["one.rs:2", "two.rs:2", "three.rs:2"] {
        assert!(text.contains(place), "{text}");
    }
    let silenced = SilencedEdges::parse("# why\n\nc -> a : only at start\n").unwrap();
    assert!(all.without(&silenced).cycles().is_empty());
}

#[test]
fn a_cycle_with_a_bounded_wait_heals_itself_until_an_unlimited_wait_is_seen() {
    let mut bounded = edge("b", "a", "two");
    bounded.bounded = true;
    let mut all = graph([edge("a", "b", "one"), bounded]);
    assert_eq!(all.cycles()[0].kind, ReportKind::SelfHealingCycle);
    all.add(edge("b", "a", "two"));
    assert_eq!(all.cycles()[0].kind, ReportKind::Cycle);
}

#[test]
fn names_in_opposite_orders_of_two_services_are_a_cycle() {
    let mut up = edge("a:*", "a:*", "one");
    up.orders = NameOrders::of_pair("a:1", "a:2");
    let mut down = edge("a:*", "a:*", "two");
    down.orders = NameOrders::of_pair("a:2", "a:1");
    assert!(graph([up.clone()]).cycles().is_empty());
    let cycles = graph([up, down]).cycles();
    assert_eq!(cycles[0].kind, ReportKind::NamesOutOfOrder);
    assert_eq!(cycles[0].edges.len(), 2);
}

#[test]
fn classes_stand_before_what_is_acquired_under_them_and_against_a_declared_order_is_told() {
    let all = graph([edge("c", "d", "s"), edge("a", "c", "s"), edge("a", "b", "s")]);
    let classes = all.classes();
    let place = |class: &str| classes.iter().position(|other| other == class).unwrap();
    assert!(place("a") < place("b") && place("a") < place("c") && place("c") < place("d"));
    assert!(all.against(&["a", "b", "c", "d"]).is_empty());
    let against = all.against(&["d", "a", "c"]);
    assert_eq!(against.len(), 1);
    assert!(against[0].to_string().contains("d is declared before c"), "{}", against[0]);
}

#[test]
fn graphs_are_drawn_with_their_cycles_and_compared() {
    let old = graph([edge("a", "b", "one")]);
    let new = graph([edge("a", "b", "two"), edge("b", "a\"<", "two"), edge("b", "a", "two")]);
    let (added, removed) = old.diff(&new);
    assert_eq!((added.len(), removed.len()), (2, 0));
    let (added, removed) = new.diff(&old);
    assert_eq!((added.len(), removed.len()), (0, 2));
    let dot = new.to_dot();
    assert!(dot.contains("\"a\" -> \"b\" [label=\"two\", color=red];"), "{dot}");
    assert!(dot.contains("\"a\\\"<\""), "{dot}");
    let mermaid = new.to_mermaid();
    assert!(mermaid.contains("==>|\"two\"|") && mermaid.contains("a&quot;&lt;"), "{mermaid}");
}

#[test]
fn seconds_are_shown_as_dates() {
    assert_eq!(utc(0), "1970-01-01T00:00:00Z");
    assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
    assert_eq!(utc(1_763_471_460), "2025-11-18T13:11:00Z");
}
