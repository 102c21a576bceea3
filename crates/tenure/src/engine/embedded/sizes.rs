//! From which size on a slot's queue and holders get rows of their own.
//!
//! The sizes are given to the store when it is opened, so that tests reach both layouts with a few
//! claims while the shipped sizes stay those of every other build.

/// The sizes at which the layout of rows changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The longest queue that is kept in its slot's row. Processes may differ.
    pub(super) short_queue: usize,
    /// The most holders that are kept in their slot's row. Processes may differ.
    pub(super) few_holders: usize,
    /// A block of a long queue has `1 << block_bits` arrival numbers. All processes that share a
    /// store must agree: rows count the tickets of a block.
    pub(super) block_bits: u32,
}

impl Sizes {
    /// What every store of a user has.
    pub(super) const SHIPPED: Self = Self { short_queue: 24, few_holders: 24, block_bits: 8 };

    /// Next to nothing, for tests.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) const SMALL: Self = Self { short_queue: 3, few_holders: 3, block_bits: 2 };
}
