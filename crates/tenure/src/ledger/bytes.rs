//! Encodes and decodes numbers, texts and durations as bytes, one after the other. Reads are
//! checked against the end of the bytes.

use std::time::Duration;

use smallvec::SmallVec;

use crate::time::Tick;

/// The bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

pub(crate) type Read<T> = Result<T, Damaged>;

/// Appends encoded values.
#[derive(Debug, Default)]
pub(crate) struct Writer(SmallVec<[u8; 512]>);

impl Writer {
    /// Makes a writer with this capacity.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(SmallVec::with_capacity(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends bytes that are encoded already.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn id(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn tick(&mut self, value: Tick) {
        self.u64(value.as_nanos());
    }

    pub(crate) fn duration(&mut self, value: Duration) {
        self.u64(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Texts are bounded by the limits far below what 32 bits can count.
    pub(crate) fn text(&mut self, text: &str) {
        self.raw(text.as_bytes());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Decodes values one after the other, with checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Damaged)
    }

    pub(crate) fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn id(&mut self) -> Read<u128> {
        self.array().map(u128::from_be_bytes)
    }

    pub(crate) fn tick(&mut self) -> Read<Tick> {
        self.u64().map(Tick::from_nanos)
    }

    pub(crate) fn duration(&mut self) -> Read<Duration> {
        self.u64().map(Duration::from_nanos)
    }

    pub(crate) fn text(&mut self) -> Read<&'a str> {
        std::str::from_utf8(self.raw()?).map_err(|_| Damaged)
    }

    pub(crate) fn raw(&mut self) -> Read<&'a [u8]> {
        let count = self.u32()?;
        self.take(count as usize)
    }

    /// Reads a count of elements, each of which takes at least a byte.
    pub(crate) fn count(&mut self, most: usize) -> Read<usize> {
        let count = self.u32()? as usize;
        if count > most || count > self.0.len() { Err(Damaged) } else { Ok(count) }
    }

    pub(crate) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<Option<T>> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(Damaged),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn end(self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Damaged) }
    }
}
