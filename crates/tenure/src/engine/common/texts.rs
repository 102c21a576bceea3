//! The scripts and SQL files of engines, built into the library.
//!
//! A build with the feature `seeded-bugs` reads a file from the directory that `TENURE_TEXTS` names
//! instead, if that directory has it, under the path that the file has below `src/engine`. So
//! `tidy mutants` runs the tests with a changed script and builds nothing. Without the feature the
//! environment is not read.

/// A text file of an engine.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Text {
    /// Its path below `src/engine`, by which a directory of changed texts is searched.
    #[cfg(feature = "seeded-bugs")]
    pub(in crate::engine) path: &'static str,
    /// What it said when the library was built.
    pub(in crate::engine) built_in: &'static str,
}

/// The file with this path below `src/engine`, as a [`Text`].
macro_rules! text {
    ($path:literal) => {
        $crate::engine::common::texts::Text {
            #[cfg(feature = "seeded-bugs")]
            path: $path,
            built_in: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/engine/", $path)),
        }
    };
}
pub(in crate::engine) use text;

impl Text {
    #[cfg(not(feature = "seeded-bugs"))]
    pub(in crate::engine) const fn get(self) -> &'static str {
        self.built_in
    }

    /// # Panics
    /// If `TENURE_TEXTS` has the file and it cannot be read: the tests must not pass with the text
    /// that they were not asked to judge.
    #[cfg(feature = "seeded-bugs")]
    pub(in crate::engine) fn get(self) -> &'static str {
        let Some(instead) = std::env::var_os("TENURE_TEXTS") else { return self.built_in };
        let path = std::path::Path::new(&instead).join(self.path);
        if !path.exists() {
            return self.built_in;
        }
        let text = std::fs::read_to_string(&path);
        text.unwrap_or_else(|error| panic!("{}: {error}", path.display())).leak()
    }
}
