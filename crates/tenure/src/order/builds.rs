//! Builds of services: the id of this one, and which ones are no longer seen.
//!
//! An edge in the store belongs to a service and a build of it. A running process writes that it
//! was seen (`last_seen` of an edge) at least every [`limits::ORDER_SEEN_EVERY`] in which it checks
//! locks. So a build is gone when another build of its service was seen
//! [`limits::ORDER_BUILD_GONE`] after it: what it did is no evidence any more, and an order that
//! was repaired is not reported for what it was. A service that has only one build keeps its edges
//! for as long as the store does, since a job that runs once a month has not changed either.
//!
//! The id of a build is the one that the linker wrote into the executable file (the ELF note
//! `NT_GNU_BUILD_ID`), the same on every host. A file without one is told apart by its size and
//! time.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::OnceLock;

use super::checker::hash_byte;
use super::edge::OrderEdge;
use crate::limits;

/// Removes the edges of builds that are no longer seen. Returns them.
pub(super) fn split_off_gone<T>(edges: &mut Vec<T>, edge_of: impl Fn(&T) -> &OrderEdge) -> Vec<T> {
    let mut services: HashMap<String, u64> = HashMap::new();
    let mut builds: HashMap<(String, String), u64> = HashMap::new();
    for edge in edges.iter().map(&edge_of) {
        let service = services.entry(edge.service.clone()).or_default();
        *service = edge.last_seen.max(*service);
        let build = builds.entry((edge.service.clone(), edge.build.clone())).or_default();
        *build = edge.last_seen.max(*build);
    }
    builds.retain(|(service, _), seen| {
        let last = services.get(service).copied().unwrap_or_default();
        last.saturating_sub(*seen) > limits::ORDER_BUILD_GONE.as_secs()
    });
    if builds.is_empty() {
        return Vec::new();
    }
    let is_gone = |one: &T| {
        let edge = edge_of(one);
        builds.contains_key(&(edge.service.clone(), edge.build.clone()))
    };
    let (gone, left) = std::mem::take(edges).into_iter().partition(is_gone);
    *edges = left;
    gone
}

/// The id of the build of a program that does not say.
pub(super) fn default_build() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| {
        let file = std::env::current_exe().ok();
        file.and_then(|file| elf_build_id(&file).or_else(|| size_and_time(&file)))
            .unwrap_or_else(|| "unknown".to_owned())
    })
}

fn size_and_time(file: &Path) -> Option<String> {
    let facts = std::fs::metadata(file).ok()?;
    let time = facts.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    let bytes = facts.len().to_le_bytes().into_iter().chain(time.as_nanos().to_le_bytes());
    Some(format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, hash_byte)))
}

/// Reads the build id of a 64-bit little-endian ELF file. None if it is no such file, or has none.
fn elf_build_id(path: &Path) -> Option<String> {
    /// The type of a program header that describes notes, and of the note with the build id.
    const PT_NOTE: u32 = 4;
    const NT_GNU_BUILD_ID: u32 = 3;
    /// More than any header or note has: a damaged file must not fill the memory.
    const MOST: u64 = 1 << 16;
    let mut file = File::open(path).ok()?;
    let mut read = |from: u64, len: u64| -> Option<Vec<u8>> {
        file.seek(SeekFrom::Start(from)).ok()?;
        let mut bytes = Vec::new();
        Read::by_ref(&mut file).take(len.min(MOST)).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    let head = read(0, 64)?;
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (u64_at(&head, 32)?, u16_at(&head, 54)?, u16_at(&head, 56)?);
    let table = read(table, u64::from(size) * u64::from(count))?;
    for header in table.chunks_exact(usize::from(size).max(1)) {
        if u32_at(header, 0)? != PT_NOTE {
            continue;
        }
        let notes = read(u64_at(header, 8)?, u64_at(header, 32)?)?;
        let mut rest = &notes[..];
        while let (Some(name), Some(desc), Some(kind)) =
            (u32_at(rest, 0), u32_at(rest, 4), u32_at(rest, 8))
        {
            let name_end = 12 + (name as usize).next_multiple_of(4);
            let end = name_end.checked_add(desc as usize)?;
            if kind == NT_GNU_BUILD_ID && rest.get(12..16)? == b"GNU\0" {
                // Eight bytes tell builds of one service apart.
                let id = rest.get(name_end..end)?.iter().take(8);
                return Some(id.fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                }));
            }
            rest = rest.get(end.next_multiple_of(4)..)?;
        }
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: u64 = limits::ORDER_BUILD_GONE.as_secs();

    fn edge(service: &str, build: &str, last_seen: u64) -> OrderEdge {
        let mut edge = OrderEdge::new("a", "b").service(service).build(build);
        edge.last_seen = last_seen;
        edge
    }

    fn gone(mut edges: Vec<OrderEdge>) -> Vec<String> {
        let gone = split_off_gone(&mut edges, |edge| edge);
        assert!(edges.iter().all(|left| !gone.contains(left)));
        gone.into_iter().map(|edge| format!("{} {}", edge.service, edge.build)).collect()
    }

    #[test]
    fn a_build_is_gone_when_another_of_its_service_was_seen_long_after_it() {
        let (old, new) = (edge("s", "1", 100), edge("s", "2", 100 + GONE));
        assert_eq!(gone(vec![old.clone(), new]), [""; 0], "both may run");
        let new = edge("s", "2", 101 + GONE);
        assert_eq!(gone(vec![old.clone(), new.clone()]), ["s 1"]);
        // One edge that was seen lately speaks for its whole build.
        let seen = OrderEdge { acquired: "c".into(), last_seen: 200, ..old.clone() };
        assert_eq!(gone(vec![old.clone(), seen, new.clone()]), [""; 0]);
        let other = edge("other", "1", 0);
        assert_eq!(gone(vec![other, new, old]), ["s 1"], "a service with one build keeps its own");
    }

    #[test]
    fn the_id_of_this_build_is_found_and_of_other_files_is_none() {
        let id = default_build();
        assert_eq!(id.len(), 16, "{id}");
        assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let exe = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for bytes in [&b""[..], b"#!/bin/sh\n", &exe[..40], &exe[..100]] {
            std::fs::write(&file, bytes).unwrap();
            assert_eq!(elf_build_id(&file), None);
            assert_eq!(size_and_time(&file).map(|id| id.len()), Some(16));
        }
        let mut damaged = exe[..4096.min(exe.len())].to_vec();
        for byte in &mut damaged[32..] {
            *byte ^= 0xff;
        }
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(elf_build_id(&file), None);
    }
}
