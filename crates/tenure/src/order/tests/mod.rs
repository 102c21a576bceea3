//! Tests of the order checker's rules against naive ones.

mod cycles;
mod documents;
mod sharing;
