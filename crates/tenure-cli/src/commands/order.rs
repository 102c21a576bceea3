//! `tenure order`: the order in which services take locks, read from files or from the store.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use tenure::{OrderEdge, OrderGraph, OrderReport, ReportKind, SilencedEdges};

use crate::args::{OrderArgs, OrderCommand, OrderFiles, OrderForm, OutputArg};
use crate::failure::{self, Failure};
use crate::output::{self, EdgeJson, GraphJson, ReportJson};
use crate::settings::Settings;

/// `tenure order`.
pub(super) fn run(
    settings: &Settings,
    args: &OrderArgs,
    form: OutputArg,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let json = matches!(form, OutputArg::Json | OutputArg::Ndjson);
    match &args.command {
        OrderCommand::Show(from) => show(&graph(settings, from)?, json, out),
        OrderCommand::Export(from) => {
            let graph = graph(settings, from)?;
            if json {
                output::json(&GraphJson::new(&graph), out)?;
            } else {
                write!(out, "{}", graph.to_text())?;
            }
            Ok(0)
        }
        OrderCommand::Check(args) => {
            let declared = args.declared.as_deref().map(declared_order).transpose()?;
            let read = read(settings, &args.from)?;
            if read.edges().is_empty() {
                // A test run without the checker must not pass for one without deadlocks.
                eprintln!(
                    "tenure: warning: no edge was read, so nothing was checked; run the tests with \
                     TENURE_ORDER=warn (or --order warn), and export after them"
                );
            }
            let graph = read.without(&silenced(&args.from)?);
            check(&graph, &declared.unwrap_or_default(), json, out)
        }
        OrderCommand::Diff(args) => diff(&file(&args.old)?, &file(&args.new)?, json, out),
        OrderCommand::Graph(args) => {
            let graph = graph(settings, &args.from)?;
            match args.format {
                OrderForm::Json => output::json(&GraphJson::new(&graph), out)?,
                OrderForm::Dot => write!(out, "{}", graph.to_dot())?,
                OrderForm::Mermaid => write!(out, "{}", graph.to_mermaid())?,
                OrderForm::Text if json => output::json(&GraphJson::new(&graph), out)?,
                OrderForm::Text => {
                    for edge in graph.edges() {
                        writeln!(out, "{}", line(edge))?;
                    }
                }
            }
            Ok(0)
        }
    }
}

/// The edges of all files together, or those of the store, without the silenced ones.
fn graph(settings: &Settings, from: &OrderFiles) -> Result<OrderGraph, Failure> {
    let silenced = silenced(from)?;
    Ok(read(settings, from)?.without(&silenced))
}

fn silenced(from: &OrderFiles) -> Result<SilencedEdges, Failure> {
    let silenced = from.silenced.as_ref().map(SilencedEdges::from_file).transpose()?;
    Ok(silenced.unwrap_or_default())
}

/// The edges of all files together, or those of the store.
fn read(settings: &Settings, from: &OrderFiles) -> Result<OrderGraph, Failure> {
    let mut graph = OrderGraph::default();
    if from.files.is_empty() {
        graph = settings.session(|tenure| Ok(tenure.blocking_stored_order()?))?;
    }
    for path in &from.files {
        graph.merge(file(path)?);
    }
    Ok(graph)
}

fn file(path: &Path) -> Result<OrderGraph, Failure> {
    let graph = OrderGraph::from_text(&text(path)?);
    graph.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

fn text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

/// The classes of a declared order. Empty lines and those that begin with `#` are skipped.
fn declared_order(path: &Path) -> Result<Vec<String>, Failure> {
    let text = text(path)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let classes: Vec<String> =
        lines.filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    if let Some(twice) = (1..classes.len()).find(|at| classes[..*at].contains(&classes[*at])) {
        let message = format!("{}: {} is declared twice", path.display(), classes[twice]);
        return Err(Failure::usage(message));
    }
    Ok(classes)
}

fn show(graph: &OrderGraph, json: bool, out: &mut impl Write) -> Result<u8, Failure> {
    if json {
        output::json(&GraphJson::new(graph), out)?;
        return Ok(0);
    }
    if graph.edges().is_empty() {
        writeln!(out, "no edges: no service has held two locks at once under the order checker")?;
        return Ok(0);
    }
    writeln!(out, "Locks are taken in this order:")?;
    for (at, class) in graph.classes().iter().enumerate() {
        writeln!(out, "{:>3}. {class}", at + 1)?;
        // A service may take a pair in several modes and builds: it is one line.
        let next = graph.edges().iter().filter(|edge| edge.held == *class);
        let next: BTreeSet<_> = next.map(|edge| (&edge.acquired, &edge.service)).collect();
        for (acquired, service) in next {
            writeln!(out, "       then {acquired}  [{service}]")?;
        }
    }
    for report in graph.cycles() {
        writeln!(out, "warning: {report}")?;
    }
    Ok(0)
}

fn check(
    graph: &OrderGraph,
    declared: &[String],
    json: bool,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let mut reports = graph.cycles();
    reports.extend(graph.against(declared));
    let fails = |report: &OrderReport| report.kind != ReportKind::SelfHealingCycle;
    let failed = reports.iter().any(fails);
    if json {
        let reports: Vec<ReportJson<'_>> = reports.iter().map(ReportJson::new).collect();
        output::json(&std::collections::BTreeMap::from([("reports", reports)]), out)?;
    } else {
        for report in &reports {
            let word = if fails(report) { "error" } else { "warning" };
            writeln!(out, "{word}: {}", report.to_string().replace("; ", "\n  "))?;
        }
        if !failed {
            match graph.edges().len() {
                1 => writeln!(out, "no cycle in 1 edge")?,
                count => writeln!(out, "no cycle in {count} edges")?,
            }
        }
    }
    Ok(if failed { failure::NO } else { 0 })
}

fn diff(
    old: &OrderGraph,
    new: &OrderGraph,
    json: bool,
    out: &mut impl Write,
) -> Result<u8, Failure> {
    let (added, removed) = old.diff(new);
    if json {
        let edges = |edges: &[&OrderEdge]| -> Vec<EdgeJson> {
            edges.iter().map(|edge| EdgeJson::new(edge)).collect()
        };
        let both = [("added", edges(&added)), ("removed", edges(&removed))];
        output::json(&std::collections::BTreeMap::from(both), out)?;
    } else {
        for edge in &removed {
            writeln!(out, "- {}", line(edge))?;
        }
        for edge in &added {
            writeln!(out, "+ {}", line(edge))?;
        }
    }
    Ok(if added.is_empty() && removed.is_empty() { 0 } else { failure::NO })
}

/// An edge as one line for people.
fn line(edge: &OrderEdge) -> String {
    format!(
        "{} -> {}  ({}; {} -> {})",
        edge.held, edge.acquired, edge.service, edge.held_at, edge.acquired_at
    )
}
