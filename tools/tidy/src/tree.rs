//! The files of the workspace. The only part of `tidy` that touches the disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A text file of the workspace.
#[derive(Debug)]
pub struct File {
    /// Its path below the root, with forward slashes.
    pub path: String,
    /// What it says.
    pub text: String,
}

impl File {
    /// Whether it is Rust of one of our crates.
    #[must_use]
    pub fn is_rust(&self) -> bool {
        (self.path.starts_with("crates/") || self.path.starts_with("tools/"))
            && Path::new(&self.path).extension().is_some_and(|it| it == "rs")
    }

    /// Whether it is code of an engine that a server runs.
    #[must_use]
    pub fn is_script(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|it| it == "lua" || it == "sql")
    }

    /// Whether it is a Cargo manifest.
    #[must_use]
    pub fn is_manifest(&self) -> bool {
        Path::new(&self.path).file_name().is_some_and(|name| name == "Cargo.toml")
    }

    /// Whether it is a page for readers: Markdown at the root or directly in `docs`.
    #[must_use]
    pub fn is_page(&self) -> bool {
        let below = self.path.strip_prefix("docs/").unwrap_or(&self.path);
        !below.contains('/') && Path::new(below).extension().is_some_and(|it| it == "md")
    }
}

/// The root of the workspace under test.
///
/// Cargo says at run time which one that is. What it said when this was compiled may name another
/// clone that shares its target directory.
#[must_use]
pub fn root() -> PathBuf {
    let at_run = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    at_run.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).join("../..")
}

/// Every text file below a root, in order; what git or Cargo keep for themselves is left out.
///
/// # Errors
/// When a directory or a file cannot be read.
pub fn text_files(root: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let (entry, kind) =
                entry.and_then(|entry| entry.file_type().map(|kind| (entry, kind)))?;
            if kind.is_dir() && !is_scratch(&entry.path()) {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.extend(read(root, &entry.path())?);
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Cargo marks its target directories with a file, whatever they are called.
fn is_scratch(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default();
    name == ".git" || name == "target" || folder.join("CACHEDIR.TAG").exists()
}

/// A file, if it is text.
fn read(root: &Path, path: &Path) -> io::Result<Option<File>> {
    let bytes = match fs::read(path) {
        // An editor may remove its own files while we look.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let below = path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/");
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    Ok(text.map(|text| File { path: below, text }))
}

#[cfg(test)]
mod tests {
    use super::{File, root, text_files};

    fn file(path: &str) -> File {
        File { path: path.to_owned(), text: String::new() }
    }

    #[test]
    fn files_are_told_apart_by_name() {
        assert!(file("crates/tenure/src/lib.rs").is_rust());
        assert!(!file("crates/tenure/README.md").is_rust());
        assert!(file("crates/tenure/Cargo.toml").is_manifest() && file("Cargo.toml").is_manifest());
        assert!(file("README.md").is_page() && file("docs/guide.md").is_page());
        assert!(!file("crates/tenure/README.md").is_page());
    }

    #[test]
    fn the_walk_finds_this_file_and_nothing_that_was_built() {
        let files = text_files(&root()).unwrap();
        assert!(files.iter().any(|file| file.path == "tools/tidy/src/tree.rs"));
        assert!(!files.iter().any(|file| file.path.split('/').any(|part| part == "target")));
    }
}
