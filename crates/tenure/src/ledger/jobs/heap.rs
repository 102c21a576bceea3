//! The rows of a queue in memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::JobRows;

/// Rows in the order of their keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobHeap(BTreeMap<Vec<u8>, Vec<u8>>);

impl JobHeap {
    /// How many rows there are: for leak checks.
    #[cfg(test)]
    pub(super) fn rows(&self) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
        self.0.iter()
    }
}

impl JobRows for JobHeap {
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get(key).cloned()
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.insert(key.to_vec(), value.to_vec());
    }

    fn remove(&mut self, key: &[u8]) {
        self.0.remove(key);
    }

    fn next(&self, key: &[u8], including: bool, prefix: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let from = if including { Bound::Included(key) } else { Bound::Excluded(key) };
        let (key, value) = self.0.range::<[u8], _>((from, Bound::Unbounded)).next()?;
        key.starts_with(prefix).then(|| (key.clone(), value.clone()))
    }

    fn damaged(&self, what: &'static str) {
        unreachable!("{what} in memory cannot be decoded");
    }
}
