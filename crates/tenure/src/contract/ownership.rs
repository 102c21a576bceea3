//! A grant as another transaction of the same store can check it. Knows a key and a number.

/// Where a grant stands in its store, for a comparison in a transaction of your own: it holds
/// exactly as long as the lock is held.
///
/// In etcd: compare that the creation revision of `key` equals `revision`. What is written in the
/// same transaction is then written under the lock or not at all, which is stronger than any check
/// of a clock or of a fence on the client.
///
/// # Examples
/// ```
/// use tenure::{ErrorKind, Ownership, Tenure};
///
/// # tenure::block_on(async {
/// let tenure = Tenure::connect("memory:").await?; // with etcd://..., the first arm
/// let guard = tenure.mutex("reports")?.lock().await?;
/// match guard.ownership().await {
///     Ok(Ownership { key, revision }) => println!("compare {key:?} with {revision}"),
///     Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
/// }
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The key of the hold.
    pub key: Vec<u8>,
    /// The revision that created it.
    pub revision: i64,
}
