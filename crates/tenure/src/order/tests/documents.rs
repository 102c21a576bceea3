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

/// An edge with its wait and the time of its first sighting.
fn seen(held: &str, acquired: &str, service: &str, bounded: bool, at: u64) -> OrderEdge {
    let mut edge = edge(held, acquired, service);
    (edge.bounded, edge.first_seen) = (bounded, at);
    edge
}

/// One service waits with a limit, and could not hang; a third one takes the same pair without.
#[test]
fn a_sighting_without_a_limit_that_comes_late_makes_a_cycle_of_one_that_healed_itself() {
    let (one, two) = (seen("a", "b", "one", true, 1), seen("b", "a", "two", false, 2));
    let kinds = |graph: &OrderGraph| -> Vec<ReportKind> {
        graph.cycles().iter().map(|report| report.kind).collect()
    };
    let mut all = graph([one, two]);
    assert_eq!(kinds(&all), [ReportKind::SelfHealingCycle]);
    all.add(seen("a", "b", "three", false, 3));
    assert_eq!(kinds(&all), [ReportKind::SelfHealingCycle, ReportKind::Cycle]);
    let text = all.cycles()[1].to_string();
    assert!(text.contains("two.rs:2") && text.contains("three.rs:2"), "{text}");
    assert!(!text.contains("with a time limit"), "{text}");
    // The same edge of the same service: the report shows where it waits without a limit.
    let mut later = seen("a", "b", "one", false, 9).places("later.rs:1", "later.rs:2");
    later.service = "one".into();
    let mut all = graph([seen("a", "b", "one", true, 1), seen("b", "a", "two", false, 2)]);
    all.add(later);
    let text = all.cycles()[0].to_string();
    assert!(text.contains("later.rs:2") && !text.contains("one.rs"), "{text}");
}

/// The arc that closes both was searched once, and the first path had a limit.
#[test]
fn a_path_with_a_limit_hides_no_other_path_without_one() {
    for turned in [false, true] {
        let mut middle = [
            seen("a", "b", "one", true, 1),
            seen("a", "c", "two", false, 1),
            seen("c", "b", "two", false, 1),
        ];
        if turned {
            middle.reverse();
        }
        let all = graph(middle.into_iter().chain([seen("b", "a", "three", false, 2)]));
        let cycles = all.cycles();
        let cycle = cycles.iter().find(|report| report.kind == ReportKind::Cycle);
        let cycle = cycle.unwrap_or_else(|| panic!("a -> c -> b -> a can hang: {cycles:?}"));
        assert!(cycle.edges.iter().all(|edge| !edge.bounded), "{cycle}");
    }
}

/// As many edges as a large fleet has: an index finds the same edge again.
#[test]
fn edges_that_are_added_again_are_found_among_100_000() {
    let many =
        || (0..100_000).map(|n| edge(&format!("c{}", n % 317), &format!("d{}", n / 317), "fleet"));
    let mut all = graph(many());
    all.merge(graph(many()));
    assert_eq!(all.edges().len(), 100_000);
    let silenced = SilencedEdges::parse("c1 -> d0 : known\n").unwrap();
    let mut all = all.without(&silenced);
    assert_eq!(all.edges().len(), 99_999);
    // The index still fits what is left.
    all.merge(graph(many()));
    assert_eq!(all.edges().len(), 100_000);
    assert_eq!(all.diff(&graph(many().take(99_000))).1.len(), 1_000);
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
fn readers_of_one_class_in_opposite_orders_are_a_cycle_once_the_class_has_a_writer() {
    let read = |service: &str, first: &str, second: &str| {
        let mut edge = edge("a:*", "a:*", service);
        (edge.held_mode, edge.acquired_mode) = (LockMode::Shared, LockMode::Shared);
        edge.orders = NameOrders::of_pair(first, second);
        edge
    };
    let mut all = graph([read("one", "a:1", "a:2"), read("two", "a:2", "a:1")]);
    assert!(all.cycles().is_empty(), "nothing makes a reader wait");
    all.add(seen("x", "a:*", "three", false, 7));
    let cycles = all.cycles();
    assert_eq!(cycles.len(), 1, "{cycles:?}");
    assert_eq!(cycles[0].kind, ReportKind::NamesOutOfOrder);
    assert_eq!(cycles[0].edges.len(), 2, "{}", cycles[0]);
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
